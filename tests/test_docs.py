"""What the documents say is so."""

from __future__ import annotations

import inspect
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from doc_snippets import ROOT, snippets

import shardctl
from shardctl.cli import cli
from shardctl.errors import UsageError
from shardctl.format.dataset_folder import dataset_in
from shardctl.transforms.recipe import KEYS
from shardctl.transforms.table import TRANSFORMS, parse_step

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_command_and_option_is_in_the_reference():
    script = runpy.run_path(str(ROOT / "scripts" / "docs" / "write_cli_docs.py"))
    index = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert index == script["cli_docs"](), "run `make docs`"
    pages = {
        path.stem: path.read_text(encoding="utf-8")
        for path in (ROOT / "docs" / "commands").glob("*.md")
    }
    assert set(pages) == {name.split()[1] for name, _ in commands_of(cli, "shardctl")}
    for name, page in pages.items():
        assert page == script["command_page"](page, name), "run `make docs`"
        assert f"[`shardctl {name}`](commands/{name}.md)" in index
    for name, command in commands_of(cli, "shardctl"):
        page = pages[name.split()[1]]
        for parameter in command.params:
            names = [
                name
                for name in parameter.opts
                if name.startswith("--") and name != getattr(parameter, "was", None)
            ]
            assert all(name in index for name in names)
            assert all(name in page for name in names) or parameter.hidden


def commands_of(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for inner in group.list_commands(context):
        command = group.get_command(context, inner)
        assert command is not None
        yield f"{name} {inner}", command
        if isinstance(command, click.Group):
            yield from commands_of(command, f"{name} {inner}")


def test_every_public_function_and_class_is_in_the_reference():
    written = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    made = runpy.run_path(str(ROOT / "scripts" / "docs" / "write_api_docs.py"))["api_docs"]()
    assert written == made, "run `make docs`"
    import shardctl

    public = {getattr(shardctl, name) for name in shardctl._PUBLIC}
    classes = {each for each in public if isinstance(each, type)}
    for function in public - classes:
        assert f"shardctl.{function.__qualname__}(" in written
    for class_ in classes:
        public = [name for name in vars(class_) if not name.startswith("_")]
        assert [
            name for name in public if not re.search(rf"^(- `|  ){name}\b", written, re.MULTILINE)
        ] == []
    for module in ("torch", "tensorflow", "jax"):
        assert f"## shardctl.{module}" in written


CHINESE = runpy.run_path(str(ROOT / "scripts" / "docs" / "write_chinese_code.py"))
ENGLISH = CHINESE["pages"]()
"""The English page of each Chinese one."""


@pytest.mark.parametrize("page", ENGLISH, ids=lambda page: page.name)
def test_a_chinese_page_says_the_same_as_the_english_one(page):
    """The same sections, tables and lists, the same code, and links to the same pages (and to those
    that only it needs)."""
    other = ENGLISH[page]
    chinese, english = (path.read_text(encoding="utf-8") for path in (page, other))
    assert chinese == CHINESE["in_step"](chinese, english), "run `make docs`"
    for mark in (r"^```", r"^#+ ", r"^\|", r"^- "):
        found = [len(re.findall(mark, text, re.MULTILINE)) for text in (chinese, english)]
        assert found[0] == found[1], mark
    code = [
        set(re.findall(r"`[^`\n]+`", CHINESE["BLOCK"].sub("", text))) for text in (english, chinese)
    ]
    assert code[0] <= code[1]
    here, there = linked(page), linked(other)
    assert other in here
    assert page in there
    in_chinese = {each: chinese for chinese, each in ENGLISH.items()}
    assert {in_chinese.get(each, each) for each in there} <= {*here, page}


def linked(page: Path) -> set[str | Path]:
    """The pages and addresses that a page links to."""
    found = re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8"))
    return {link if ":" in link else (page.parent / link).resolve() for link in found}


def test_the_readme_calls_the_test_command_that_ci_runs():
    assert "make test" in README
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_links_between_pages_lead_somewhere():
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        for link, anchor in re.findall(
            r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")
        ):
            if not re.match(r"[a-z]+:", link):
                target = page.parent / link if link else page
                assert target.exists(), f"{page.name}: {link}"
                assert not anchor or anchor in anchors(target), f"{page.name}: {link}#{anchor}"


def anchors(page: Path) -> set[str]:
    """The names of a page's headings in links."""
    lines = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    titles = [
        re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title)
        for title in re.findall(r"^#+ (.*)$", lines, re.MULTILINE)
    ]
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_no_two_pages_have_the_same_name():
    # Those for developers are not in the wheel, and `shardctl help` does not show them.
    names = [
        path.stem
        for path in (ROOT / "docs").rglob("*.md")
        if "dev" not in path.relative_to(ROOT / "docs").parts
    ]
    assert sorted(names) == sorted(set(names))


def test_the_recipe_page_knows_every_setting_and_transform(tmp_path):
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert all(key in page for key in KEYS)
    assert all(f"\n#### {name}\n" in page for name in TRANSFORMS)
    from shardctl.transforms.recipe import Recipe
    from shardctl.transforms.recipe_files.reading import load_recipe

    steps = []
    for toml in snippets(page, "toml"):
        (tmp_path / "recipe.toml").write_text(toml)
        # Not loaded: the class of the last one is in the snippet before it
        # (tests/transforms/test_models.py).
        steps.append(
            [step.name for step in Recipe.parse(**load_recipe(tmp_path / "recipe.toml")).transform]
        )
    filters = ["filter_size", "filter_aspect", "filter_blur", "filter_date"]
    assert steps == [["random_resized_crop", "hflip"], ["resize"], filters, ["resize", "model"]]


def test_the_steps_of_the_recipe_page_are_written_from_their_settings():
    page = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert page == runpy.run_path(str(ROOT / "scripts" / "docs" / "write_recipe_docs.py"))["page"](
        page
    ), "run `make docs`"


READY = sorted((ROOT / "docs" / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)
def test_a_recipe_that_is_ready_has_no_problems_and_converts_images(path, photos, tmp_path):
    from shardctl.transforms.recipe_files.reading import check_recipe

    found = check_recipe(path)
    assert [str(problem) for problem in found.problems] == []
    assert f"](recipes/{path.name})" in (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    assert path.read_text().startswith("#:schema ../recipe.schema.json\n")
    (tmp_path / "in").mkdir()
    first = min(photos.rglob("*.jpg"))
    (tmp_path / "in" / first.name).write_bytes(first.read_bytes())
    made = shardctl.convert(tmp_path / "in", tmp_path / "out", recipe=path, workers=0)
    assert (made.samples, made.rejected) == (found.recipe.samples_per_record, 0)


def test_every_step_of_images_has_a_picture_and_they_are_small():
    script = runpy.run_path(str(ROOT / "scripts" / "docs" / "draw_recipe_pictures.py"))
    unknown = {*script["EXAMPLES"], *script["WITHOUT_PICTURE"]} - set(TRANSFORMS)
    assert not unknown, (
        f"scripts/docs/draw_recipe_pictures.py has settings for steps that are not there: {unknown}"
    )
    for name in script["pictured"]():
        try:
            parse_step({"name": name, **script["EXAMPLES"].get(name, {})})
        except UsageError as error:
            pytest.fail(
                f"add the step {name} to EXAMPLES in scripts/docs/draw_recipe_pictures.py: {error}"
            )
    there = {path.stem: path.stat().st_size for path in (ROOT / "docs" / "images").glob("*.webp")}
    assert set(there) == set(script["pictured"]()), (
        "run `make docs`, which draws a picture of each step"
    )
    assert sum(there.values()) < 300_000


def test_a_picture_shows_that_its_step_does_something():
    script = runpy.run_path(str(ROOT / "scripts" / "docs" / "draw_recipe_pictures.py"))
    before = script["scene"]()
    for name in script["pictured"]():
        after = script["afterwards"](name, before)
        shown = [
            image
            for image in after
            if image.size != before.size or image.tobytes() != before.tobytes()
        ]
        assert shown, f"{name}: its settings in EXAMPLES change nothing; write some that do"


def test_the_loader_page_runs_and_knows_every_option(raw_dataset):
    from shardctl.loader.dataset import Dataset

    page = (ROOT / "docs" / "loader.md").read_text(encoding="utf-8")
    code = "\n".join(
        snippet for snippet in snippets(page, "python") if "shardctl.torch" not in snippet
    )
    subprocess.run(
        [sys.executable, "-c", code], cwd=raw_dataset.parent, check=True, capture_output=True
    )
    missing = [
        name
        for name in inspect.signature(Dataset.loader).parameters
        if not re.search(rf"`.*\b{name}\b.*`|\b{name}=", page)
    ]
    assert missing == ["self"]


def test_the_format_page_knows_every_key(raw_dataset):
    import json

    from shardctl.format.tables import SHARDS_SCHEMA, open_table

    page = (ROOT / "docs" / "format.md").read_text(encoding="utf-8")
    record = json.loads((raw_dataset / "manifest.json").read_text())
    names = [
        *record,
        *record["settings"],
        *record["recipe"],
        *record["fingerprint_parts"],
        *SHARDS_SCHEMA.names,
    ]
    names += [
        *open_table(dataset_in(raw_dataset), "plan.arrow").column_names,
        *open_table(dataset_in(raw_dataset), "files.arrow").column_names,
    ]
    missing = [name for name in names if not re.search(rf"\b{name}\b", page)]
    assert missing == []


def test_the_page_on_architecture_and_its_picture_are_those_of_the_code():
    script = runpy.run_path(str(ROOT / "scripts" / "docs" / "write_architecture_docs.py"))
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert page == script["page"](page), "run `make docs`"
    for name, drawn in (("rooms", script["picture"]), ("commit", script["picture_of_commits"])):
        there = (ROOT / "docs" / "images" / f"{name}.svg").read_text(encoding="utf-8")
        assert there == drawn(), "run `make docs`"


@pytest.mark.parametrize("name", ["architecture.md", "format.md"])
def test_pages_name_files_and_folders_of_the_code_that_are_there(name):
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    named = re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+/|[a-z_]+\.py))`", page)
    assert len(named) > 30
    assert [
        path
        for path in named
        if not (ROOT / path).exists() and not (ROOT / "shardctl" / path).exists()
    ] == []
