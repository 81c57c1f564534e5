"""Files that are named by options of commands: what was not written by shardctl stays."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from in_this_process import convert

import shardctl
from shardctl.errors import StorageError


@pytest.fixture
def here(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """out/, a dataset of photos, in the current folder."""
    convert(photos, tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    return tmp_path


OTHERS = ("photo.jpg", "out/manifest.json", "out/train-00000.arrow", "link.arrow", "page.html")


@pytest.mark.thorough(after=3)
@pytest.mark.parametrize(
    "command",
    [
        "inspect out --html {}",
        "inspect out --images {}",
        "preview {photos} --flip 0.5 --workers 0 --html {}",
        "preview {photos} --flip 0.5 --workers 0 --images {}",
        "bench out --epochs 1 --html {}",
        "advise {photos} --consumer-rate 1 --inputs 4 --workers 1 --write {}",
    ],
)
@pytest.mark.parametrize("name", OTHERS)
def test_another_file_is_not_replaced(cli, here, photos, command, name):
    (here / "photo.jpg").write_bytes(next(photos.rglob("*.jpg")).read_bytes())
    (here / "link.arrow").hardlink_to(here / "out" / "train-00000.arrow")
    (here / "page.html").write_text("<!doctype html><title>mine</title>")
    before = (here / name).read_bytes()
    ran = cli(*command.format(name, photos=photos).split())
    wrong_ending = "give a name that ends in" in ran.err
    assert ran.code == (2 if wrong_ending else 3)
    assert wrong_ending or f"{name}: exists, and is not a " in ran.err
    assert (here / name).read_bytes() == before
    assert shardctl.verify(here / "out").ok


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(
    "command", ["inspect out --html {}", "bench out --html {}", "inspect out --images {}"]
)
@pytest.mark.parametrize(
    ("name", "why"),
    [("none/page", "No such file or directory"), ("folder", "Is a directory")],
    ids=["no folder", "a folder"],
)
def test_a_place_that_cannot_be_written_is_said_before_the_work(
    cli, here, monkeypatch, command, name, why
):
    (here / "folder").mkdir()
    for work in (
        "shardctl.benchmark.measure.bench",
        "shardctl.inspection.pages.dataset.dataset_page",
    ):
        monkeypatch.setattr(work, lambda *_, **__: pytest.fail("it had begun"))
    ran = cli(*command.format(name).split())
    assert (ran.code, ran.out) == (3, "")
    assert f"{name}: cannot be written ({why})" in ran.err


def test_a_page_and_a_sheet_of_before_are_replaced(cli, here):
    (here / "other").mkdir()
    (here / "sheet.png").symlink_to(here / "other" / "sheet.png")
    (here / "page.html").touch()
    for _ in range(2):
        assert cli("inspect", "out", "--html", "page.html", "--images", "sheet.png").code == 0
    assert (here / "sheet.png").is_symlink()
    assert (here / "other" / "sheet.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(os.listdir(here)) == ["other", "out", "page.html", "sheet.png"]
    (here / "second.html").hardlink_to(here / "page.html")
    before = (here / "page.html").read_bytes()
    assert cli("inspect", "out", "--html", "second.html", "--split", "train").code == 0
    assert (here / "page.html").read_bytes() == before != (here / "second.html").read_bytes()


@pytest.mark.thorough
def test_a_recipe_of_advise_is_replaced_until_a_person_changes_it(cli, here, photos):
    options = "--resize 32x32 --consumer-rate 20 --inputs 8 --batch-size 4 --workers 0 --lossless"
    advise = ("advise", photos, *options.split(), "--write", "recipe.toml")
    assert [cli(*advise).code for _ in range(2)] == [0, 0]
    assert cli("convert", photos, "again", "--recipe", "recipe.toml", "--workers", 0).code == 0
    recipe = (here / "recipe.toml").read_text()
    (here / "recipe.toml").write_text(f"{recipe}seed = 7\n")
    ran = cli(*advise)
    assert (ran.code, "recipe.toml: exists, and is not a recipe" in ran.err) == (3, True)
    assert (here / "recipe.toml").read_text() == f"{recipe}seed = 7\n"


@pytest.mark.parametrize("name", ["rows.jsonl", "node.prom"])
def test_metrics_are_not_written_into_another_file(tmp_path, out, name):
    pytest.importorskip("prometheus_client")
    (tmp_path / "in").mkdir()
    for row in ("in/1.jsonl", name):
        (tmp_path / row).write_text('{"x": 1}\n')
    with pytest.raises(
        StorageError,
        match=f"{name}: exists, and is not a file of metrics of shardctl",
    ):
        convert(tmp_path / "in", out, metrics=[tmp_path / name])
    assert (tmp_path / name).read_text() == '{"x": 1}\n'
    (tmp_path / name).unlink()
    for _ in range(2):
        convert(tmp_path / "in", out, overwrite=True, metrics=[tmp_path / name])
    assert (tmp_path / name).stat().st_size


def test_metrics_go_on_in_their_file(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.jsonl").write_text('{"x": 1}\n')
    counts = []
    for _ in range(2):
        convert(
            tmp_path / "in",
            tmp_path / "out",
            overwrite=True,
            metrics=[tmp_path / "m.jsonl"],
        )
        lines = (tmp_path / "m.jsonl").read_text().splitlines()
        counts.append(len([json.loads(line) for line in lines]))
    assert 0 < counts[0] < counts[1]
