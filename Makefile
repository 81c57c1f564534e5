# setup     .venv with shardctl and what its tests need      lint   ruff, mypy --strict, import-linter, plain words, the budget
# demo      a small dataset, converted, verified, read       docs   write what docs/ takes from the code
# test      the tests, the same examples in every run        bench  the figures of docs/performance.md
# fuzz      the property tests on new examples, for MINUTES=10
# memcheck  the tests of decoders and of the loader, with a C library that looks for writes beyond memory; images under valgrind
# interop   the real readers and writers of other formats, in environments of their own below .interop
# release   the source package and the wheel below dist, checked and installed; nothing is uploaded
# coverage  the tests, and what they do not reach: tracing every process makes them a third slower

bin := .venv/bin
.PHONY: setup demo test interop fuzz memcheck coverage lint docs site bench release clean

setup: .venv/.done

.venv/.done: pyproject.toml setup.py scripts/setup.sh
	sh scripts/setup.sh
	@touch $@

demo: setup
	PATH="$(CURDIR)/$(bin):$$PATH" sh scripts/demo.sh

# The tests start many processes, and each would compile all modules where Python is told to write no bytecode.
test: setup
	$(bin)/python -m compileall -q shardctl
	$(bin)/python -m pytest -n auto --dist loadfile

interop:
	sh scripts/setup_interop.sh

fuzz: setup
	$(bin)/python scripts/torture/fuzz.py --minutes $(or $(MINUTES),10)

# Neither is slow: 2 minutes on 2 cores. Where valgrind or such a C library is not there, less is looked at, which is said. With
# that library a process that is forked while threads allocate may stop.
memory_tests := images/test_jpeg images/test_damaged_images images/test_images loader/test_gather loader/test_loader_values loader/test_loader_faults
memcheck: setup
	SHARDCTL_THOROUGH=no $(bin)/python scripts/torture/checked_memory.py \
		$(bin)/python -m pytest -q -n auto --dist loadfile -k "not forked" $(memory_tests:%=tests/%.py)
	$(bin)/python scripts/torture/fuzz_headers.py --seconds 30 --seed 1

coverage: setup
	$(bin)/coverage erase
	$(bin)/python -m pytest --cov --cov-report=term

lint: setup
	$(bin)/ruff check
	$(bin)/ruff format --check
	$(bin)/mypy
	$(bin)/lint-imports
	$(bin)/python scripts/docs/check_words.py
	$(bin)/python scripts/check_budget.py

docs: setup
	$(bin)/python scripts/docs/write_cli_docs.py
	$(bin)/python scripts/docs/draw_recipe_pictures.py
	$(bin)/python scripts/docs/write_recipe_docs.py
	$(bin)/python scripts/docs/write_signatures.py
	$(bin)/python scripts/docs/write_api_docs.py
	$(bin)/python scripts/docs/write_architecture_docs.py
	$(bin)/python scripts/docs/write_llms.py
	$(bin)/python scripts/docs/write_chinese_code.py

# The pages in a browser: python -m http.server -d build/site
site: setup
	$(bin)/python scripts/docs/build_site.py

# ONLY='commands gpu' makes some of the tables.
bench: setup
	$(bin)/python scripts/bench/tables.py $(if $(ONLY),--only $(ONLY))

release: setup
	$(bin)/python scripts/release.py

clean:
	rm -rf .venv .interop demo build dist share .coverage* *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
