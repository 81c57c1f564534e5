"""Files that are named by options of commands: what was not written by shardctl stays."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from dataset_files import shard_in
from in_this_process import convert

import shardctl
from shardctl.errors import StorageError


@pytest.fixture
def here(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """out/, a dataset of photos, in the current folder."""
    convert(photos, tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    return tmp_path


OTHERS = ("photo.jpg", "out/manifest.json", "shard", "link.arrow", "page.html")


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
    (here / "link.arrow").hardlink_to(shard_in(here / "out", "train-00000"))
    (here / "page.html").write_text("<!doctype html><title>mine</title>")
    name = str(shard_in(here / "out").relative_to(here)) if name == "shard" else name
    before = (here / name).read_bytes()
    ran = cli(*command.format(name, photos=photos).split())
    wrong_ending = "give a name that ends in" in ran.err
    assert ran.code == (2 if wrong_ending else 3)
    assert wrong_ending or f"{name}: exists, and is not a " in ran.err
    assert (here / name).read_bytes() == before
    assert shardctl.verify(here / "out").ok


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(
    "command",
    ["inspect out --html {}.html", "bench out --html {}.html", "inspect out --images {}.png"],
)
def test_a_place_that_cannot_be_written_is_said_before_the_work(cli, here, monkeypatch, command):
    for name in ("folder.html", "folder.png"):
        (here / name).mkdir()
    for work in ("benchmark.measure.bench", "inspection.pages.dataset.dataset_page"):
        monkeypatch.setattr(f"shardctl.{work}", lambda *_, **__: pytest.fail("it had begun"))
    for name, why in (("none/page", "No such file or directory"), ("folder", "Is a directory")):
        ran = cli(*command.format(name).split())
        assert (ran.code, ran.out) == (3, "")
        assert re.search(rf"{name}\.\w+: cannot be written \({why}\)", ran.err)


def test_a_page_and_a_sheet_of_before_are_replaced(cli, here):
    (here / "other").mkdir()
    (here / "sheet.png").symlink_to(here / "other" / "sheet.png")
    page, second = here / "page.html", here / "second.html"
    page.touch()
    for _ in range(2):
        assert cli("inspect", "out", "--html", "page.html", "--images", "sheet.png").code == 0
    assert (here / "sheet.png").is_symlink()
    assert (here / "other" / "sheet.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(os.listdir(here)) == ["other", "out", "page.html", "sheet.png"]
    second.hardlink_to(page)
    before = page.read_bytes()
    assert cli("inspect", "out", "--html", "second.html", "--split", "train").code == 0
    assert page.read_bytes() == before != second.read_bytes()


@pytest.mark.thorough
@pytest.mark.usefixtures("short_rounds")
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
def test_metrics_are_not_written_into_another_file_and_go_on_in_their_own(tmp_path, out, name):
    pytest.importorskip("prometheus_client")
    (tmp_path / "in").mkdir()
    target = tmp_path / name
    for path in (tmp_path / "in" / "1.jsonl", target):
        path.write_text('{"x": 1}\n')
    with pytest.raises(StorageError, match=f"{name}: exists, and is not a file of metrics"):
        convert(tmp_path / "in", out, metrics=[target])
    assert target.read_text() == '{"x": 1}\n'
    target.unlink()
    counts = []
    for _ in range(2):
        convert(tmp_path / "in", out, overwrite=True, metrics=[target])
        counts.append(len(target.read_text().splitlines()))
    assert counts[0] > 0
    assert (counts[0] < counts[1]) == (name == "rows.jsonl")
