"""The commands that pages show print what the pages say."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from doc_snippets import ROOT
from sessions import blocks, differences, masked, needs, run, same
from write_outputs import environment_of, main, run_page, write

PAGES = [
    path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"), reverse=True)]
    if not path.name.endswith(".zh.md")
    and any(block.commands for block in blocks(path.read_text(encoding="utf-8")))
]
"""All pages with commands. Tutorials, which take longest, are among the first. Chinese pages have
the commands of the English ones."""

PAGE = """# A page

```python title="count.py"
print("three", 1 + 2)
```

```console
$ python count.py
three 3
$ echo one \\
>   two
one two
```
"""


@pytest.mark.thorough
@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_shows_what_its_commands_print(path, tmp_path):
    page = path.read_text(encoding="utf-8")
    for name in needs(page):
        if name != "s3" and find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    with environment_of(page) as environment:
        found = list(differences(path, tmp_path, environment))
    assert not found, (
        "\n\n".join(map(str, found)) + "\n\nscripts/docs/write_outputs.py writes the outputs"
    )


def test_a_page_without_faults_has_no_differences(tmp_path):
    (tmp_path / "page.md").write_text(PAGE)
    assert run_page(tmp_path / "page.md") == []


@pytest.mark.parametrize(("right", "wrong"), [("three 3", "three 4"), ("one two", "one")])
def test_another_output_is_found_and_written(tmp_path, right, wrong):
    path = tmp_path / "page.md"
    path.write_text(PAGE.replace(right, wrong))
    found = run_page(path)
    assert len(found) == 1
    write(path, found)
    assert run_page(path) == []


def test_a_command_that_fails_is_a_difference(tmp_path):
    (tmp_path / "page.md").write_text(PAGE.replace("$ python count.py\nthree 3", "$ exit 3"))
    assert [each.code for each in run_page(tmp_path / "page.md")] == [3]


def test_a_page_with_a_command_that_fails_is_not_written(tmp_path, monkeypatch):
    path = tmp_path / "page.md"
    path.write_text(PAGE.replace("three 3", "three 4").replace("$ echo one", "$ exit 3; echo one"))
    before = path.read_text()
    monkeypatch.setattr("sys.argv", ["write_outputs.py", str(path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, path.read_text()) == (1, before)


def test_what_stands_before_the_first_command_is_refused():
    with pytest.raises(ValueError, match="line 8"):
        list(blocks(PAGE.replace("$ python count.py\n", "")))


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("made 40 samples in 1.4 s (28 samples/s)", "made 40 samples in 12 s (1,200 samples/s)"),
        ("378.3 KiB", "1 MiB"),
        ("40 samples (28\n    samples/s)", "40 samples (9 samples/s)"),
        ("loss 2.31", "loss 0.4"),
        ("a …, b", "a 17 c, b"),
        ("first\n…\nlast", "first\nx\ny\nlast"),
        ("one long\n  line", "one long line"),
    ],
)
def test_figures_that_differ_from_machine_to_machine_are_the_same(shown, printed):
    assert same(shown.split("\n"), printed.split("\n"))


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("made 40 samples", "made 41 samples"),
        ("out is whole", "out is damaged"),
        ("first", "first\nsecond"),
        ("a … b", "a b c"),
    ],
)
def test_other_words_and_counts_are_not_the_same(shown, printed):
    assert not same(shown.split("\n"), printed.split("\n"))


def test_a_mask_leaves_names_as_they_are():
    assert masked("shard-00001 of out2, 3 classes") == "shard-00001 of out2, 3 classes"


def test_a_command_runs_with_the_python_of_the_tests(tmp_path):
    assert run("shardctl --version | head -c 8", tmp_path, {}) == (["shardctl"], 0)
