"""A preview shows what a conversion would store, and nothing stops it but wrong usage."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from annotated_sources import source_with
from followed_sources import files_of, write, write_lines
from image_files import saved
from in_this_process import convert
from PIL import Image
from places import place_of
from pyarrow import parquet
from written_samples import pixels

from shardctl.errors import InputError, UsageError
from shardctl.inspection.content.blocks import StoredSample, some_samples
from shardctl.making.preview import Preview, make_preview
from shardctl.making.preview.page import preview_page, preview_sheet, record_of, steps_in_words
from shardctl.transforms.recipe import Recipe

RANDOM = {
    "transform": [
        {"name": "random_resized_crop", "size": 24, "scale": [0.2, 0.9]},
        {"name": "hflip", "p": 0.5},
    ]
}
OBJECTS = {"bbox": [[20, 15, 10, 8], [0, 0, 5, 5], [40, 25, 10, 10]], "category": [0, 1, 2]}


def values_of(records: list[StoredSample]) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the values of samples by key and variant."""
    return {(each.values["key"], each.values.get("variant", 0)): each.values for each in records}


def shown(preview: Preview) -> dict[tuple[str, int], dict[str, Any]]:
    return values_of([record for each in preview.inputs for record in each.samples])


def stored(
    source: Path, out: Path, recipe: dict[str, Any], **options: Any
) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the values of all samples of a conversion."""
    convert(source, out, recipe, **options)
    return values_of(list(some_samples(place_of(out), None, 100_000)))


def embedded(page: str) -> list[bytes]:
    """Return the images that a page holds."""
    return [
        base64.b64decode(data) for data in re.findall(r'src="data:image/\w+;base64,([^"]*)"', page)
    ]


def preview_of(source: Path, recipe: Any, inputs: int = 8, *keys: str, **options: Any) -> Preview:
    return make_preview([source], recipe, inputs, keys or None, **{"workers": 0, **options})


CROP8 = {"transform": [{"name": "crop", "size": 8}]}


@pytest.fixture
def annotated(tmp_path: Path) -> Path:
    """A folder with five images, one of them broken, with objects and masks: in/, masks/."""
    source = source_with(tmp_path, OBJECTS, Image.new("L", (60, 40), 3))
    for number, name in enumerate("bcd"):
        Image.fromarray(pixels(number, 60)[:40]).save(source / f"{name}.png")
        shutil.copy(tmp_path / "masks" / "a.png", tmp_path / "masks" / f"{name}.png")
    write(source / "e.png", "no image")
    records = [{"file_name": f"{name}.png", "objects": OBJECTS} for name in "abcde"]
    write_lines(source / "metadata.jsonl", records)
    return source


def test_what_is_shown_is_what_a_conversion_stores(annotated, tmp_path, out):
    labels, recipe = ["auto", f"masks:{tmp_path / 'masks'}"], {**RANDOM, "seed": 7, "variants": 4}
    preview = preview_of(annotated, recipe, 3, labels=labels)
    there = stored(annotated, out, recipe, labels=labels)
    assert [each.key for each in preview.inputs] == ["a.png", "c.png", "e.png"]
    assert shown(preview) == {
        place: there[place] for place in there if place[0] in ("a.png", "c.png")
    }
    assert preview.total == 5
    first = preview.inputs[0]
    left = sum(len(each.values["objects"]["bbox"]) for each in first.samples)
    assert first.cut_off == 12 - left > 0
    images = embedded(preview_page(preview, ["in"]))
    # with their own bytes, and each also with its annotations
    assert all(values["image"]["bytes"] in images for values in shown(preview).values())
    assert len(images) == 2 * (8 + 2)


def test_the_first_variant_is_what_is_stored_without_variants(tmp_path, out):
    # large enough to be decoded at a part of its size where the sample needs no more
    for number in range(4):
        picture = Image.fromarray(pixels(number, 32)[:24]).resize((512, 384))
        saved(picture, tmp_path / "in" / f"{number}.jpg")
    preview = preview_of(tmp_path / "in", RANDOM)
    there = stored(tmp_path / "in", out, RANDOM)
    assert (preview.samples, preview.variants) == (16, 4)
    for (key, variant), values in shown(preview).items():
        assert (values["image"]["bytes"] == there[key, 0]["image"]["bytes"]) is (variant == 0)


def test_as_many_variants_are_shown_as_the_recipe_says(photos):
    five = {"transform": [{"name": "five_crop", "size": 16}]}
    recipes = ({**RANDOM, "variants": 2}, CROP8, five)
    assert [preview_of(photos, recipe, 1).samples for recipe in recipes] == [2, 1, 5]


@pytest.mark.parametrize("split", ["none", "train=0.5,val=0.5"])
def test_keys_choose_inputs_in_their_order(photos, split):
    keys = [path.relative_to(photos).as_posix() for path in files_of(photos)]
    preview = preview_of(photos, RANDOM, 8, keys[41], keys[3], keys[41], split=split)
    assert [each.key for each in preview.inputs] == [keys[41], keys[3]]
    assert all(each.samples[0].values["key"] == each.key for each in preview.inputs)
    with pytest.raises(InputError, match=r"no input with the key absent\.jpg; a key is a path"):
        preview_of(photos, RANDOM, 8, "absent.jpg")


def test_the_folders_of_splits_are_no_classes(photos, tmp_path):
    for part in ("train", "val"):
        shutil.copytree(photos, tmp_path / "in" / part)
    preview = preview_of(tmp_path / "in", RANDOM, 3)
    classes = {record.class_names["label"] for each in preview.inputs for record in each.samples}
    assert classes <= {folder.name for folder in photos.iterdir()}
    assert preview.total == 120


@pytest.mark.parametrize("split", ["none", "train=0.5,val=0.5"])
def test_images_in_tables_are_shown_too(photos, tmp_path, out, split):
    files = sorted(photos.rglob("*.jpg"))[:6]
    table = pa.table({"photo": [path.read_bytes() for path in files]})
    source = tmp_path / "t.parquet"
    parquet.write_table(table, source)
    recipe = {**RANDOM, "kind": "image", "image_field": "photo"}
    there = stored(source, out, recipe, split=split)
    keys = ["t.parquet#2", "t.parquet#6"]
    preview = preview_of(source, {**recipe, "variants": 1}, 8, *keys, split=split)
    assert shown(preview) == {place: there[place] for place in there if place[0] in keys}
    assert [(each.key, each.bytes) for each in preview.inputs] == [(key, None) for key in keys]
    assert preview_of(source, recipe, 3, split=split).total == 6
    with pytest.raises(InputError, match=r"such as t\.parquet#1, with the number of a record"):
        preview_of(source, recipe, 8, "t.parquet#7")


def test_raw_pixels_are_on_the_page_as_they_are(photos):
    preview = preview_of(photos, {"store": "raw", **CROP8}, 2)
    page = preview_page(preview, ["photos"])
    images = [np.asarray(Image.open(io.BytesIO(data))).tolist() for data in embedded(page)]
    for each in preview.inputs:
        for record in each.samples:
            assert record.values["image"].tolist() in images


def test_the_source_is_shown_upright_and_whole(tmp_path):
    turned = Image.Exif()
    turned[0x0112] = 6
    file = saved(Image.new("RGB", (40, 20), (200, 30, 30)), tmp_path / "a.jpg", exif=turned)
    (tried,) = preview_of(file, CROP8, 1).inputs
    assert tried.source is not None
    assert Image.open(io.BytesIO(tried.source.values["image"]["bytes"])).size == (20, 40)
    assert tried.bytes == file.stat().st_size


def test_a_broken_image_is_shown_with_its_reason(annotated, cli, tmp_path):
    page, sheet = tmp_path / "p.html", tmp_path / "p.png"
    ran = cli("preview", annotated, "--flip", 1, "--html", page, "--images", sheet, "--workers", 0)
    assert ran.code == 0
    assert "5 of 5 inputs: 4 samples, 1 rejected" in ran.out
    assert "e.png rejected, decode: not-an-image: " in ran.out
    assert f"page written to {page}" in ran.out
    assert '<b class="bad">rejected, decode: not-an-image</b>' in page.read_text(encoding="utf-8")
    size = Image.open(io.BytesIO(sheet.read_bytes())).size
    assert size == (2 * 260, 5 * (256 + 6 + 2 * 14)), "two columns, two lines below each picture"


def test_a_truncated_image_that_is_kept_is_shown_as_it_is(tmp_path):
    source = source_with(tmp_path, OBJECTS)
    file = saved(Image.fromarray(pixels(0, 60)[:40]), source / "b.jpg")
    file.write_bytes(file.read_bytes()[:-900])
    records = [{"file_name": name, "objects": OBJECTS} for name in ("a.png", "b.jpg")]
    write_lines(source / "metadata.jsonl", records)
    preview = preview_of(source, {"truncated": "keep"}, 2)
    assert preview.rejected == 0
    assert file.read_bytes() in embedded(preview_page(preview, ["in"]))


def test_all_inputs_may_be_broken(tmp_path, cli):
    file, page = write(tmp_path / "in" / "a.jpg", "bad"), tmp_path / "p.html"
    ran = cli("preview", file, "--flip", 0.5, "--html", page, "--workers", 0, "--json")
    assert (ran.code, ran.json["samples"], ran.json["rejected"]) == (0, 0, 1)
    assert ran.json["inputs"][0]["reject"]["error"] == "not-an-image"


def test_an_image_that_ends_its_process_is_a_reject(photos, tmp_path, monkeypatch):
    step = "import os\ndef leave(sample):\n    'forest' in sample['key'] and os._exit(3)\n    return sample\n"
    write(tmp_path / "ends_here.py", step)
    monkeypatch.syspath_prepend(tmp_path)
    keys = [path.relative_to(photos).as_posix() for path in files_of(photos)]
    fatal = next(key for key in keys if "forest" in key)
    own = {"transform": [{"name": "custom", "target": "ends_here:leave"}]}
    preview = preview_of(photos, own, 8, keys[-1], fatal, workers=1)
    good, bad = preview.inputs
    assert len(good.samples) == 4
    assert (bad.reject.stage, bad.reject.error) == ("transform", "exited")
    assert bad.source is not None, "before the function it is an image as any other"
    assert "rejected, transform: exited" in preview_page(preview, ["photos"])


def test_variants_that_would_be_rejected_are_told_beside_the_sample_that_is_stored(
    photos, monkeypatch
):
    def some(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["variant"] == 2:
            raise ValueError("not this one")
        return sample

    functions = types.ModuleType("refuses_some")
    vars(functions)["some"] = some
    monkeypatch.setitem(sys.modules, "refuses_some", functions)
    own = {"transform": [{"name": "custom", "target": "refuses_some:some"}]}
    preview = preview_of(photos, own, 1)
    assert (preview.samples, preview.rejected) == (1, 0)
    assert "further variants rejected, transform: ValueError" in preview_page(preview, ["photos"])


def test_nothing_is_written_but_the_page(photos, tmp_path, monkeypatch, cli):
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    monkeypatch.chdir(tmp_path)
    before = sorted(photos.rglob("*"))
    words = "--random-crop 16 --html p.html --inputs 2 --workers 0".split()
    assert cli("preview", photos, *words).code == 0
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["p.html", "scratch"]
    assert sorted(photos.rglob("*")) == before


def test_a_table_is_printed_where_no_page_is_asked_for(photos, cli):
    words = "--random-crop 16 --inputs 2 --variants 3 --workers 0".split()
    ran = cli("preview", photos, *words)
    assert ran.code == 0
    assert ran.out.splitlines()[0] == "2 of 60 inputs: 6 samples"
    assert len(re.findall(r"^ +variant [012] +16x16, \d+ B", ran.out, re.MULTILINE)) == 6


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("texts", 2, "a preview is for images, and these are text"),
        ("photos --kind table", 2, "and these are table"),
        ("photos --inputs 2 --key a", 2, "--inputs and --key contradict each other"),
        ("photos --inputs 0", 2, "--inputs"),
        ("photos --key a", 3, "there is no input with the key a"),
        ("photos --variants 3", 2, "no step is random"),
        ("photos --resize 8 --store source", 2, "keeps the original bytes, without resize"),
        ("photos --resize 8 --inputs 1 --html absent/p.html", 3, "No such file or directory"),
        ("photos --overwrite", 2, "there is no option --overwrite"),
        ("absent", 3, "absent: no such file or folder"),
    ],
)
def test_wrong_usage_is_one_sentence(demo, cli, monkeypatch, words, code, message):
    monkeypatch.chdir(demo)
    ran = cli("preview", *words.split(), "--workers", 0)
    assert (ran.code, message in ran.err) == (code, True), ran.err


def test_a_step_that_cannot_move_the_annotations_is_refused(annotated):
    with pytest.raises(UsageError, match="elastic cannot move"):
        preview_of(annotated, {"transform": [{"name": "elastic"}]}, 1)


def test_the_recipe_is_told_with_its_defaults_and_its_inner_steps():
    choice = [{"name": "vflip", "p": 1}, {"name": "rotate", "angle": 90}]
    inner = [{"name": "hflip"}, {"name": "choice", "steps": choice}]
    steps = [
        {"name": "maybe", "p": 0.25, "steps": inner},
        {"name": "random_resized_crop", "size": "32x24"},
    ]
    told = list(steps_in_words(Recipe.from_json({"transform": steps}).transform))
    assert [step[0] for step in told] == [0, 1, 1, 2, 2, 0]
    names = ["maybe", "hflip", "choice", "vflip", "rotate", "random_resized_crop"]
    assert [step[1] for step in told] == names
    assert (told[0][2], told[1][2]) == ("p 0.25", "p 0.5")
    assert told[5][2].startswith("size 32x24, scale 0.08 to 1, ratio 0.75 to 1.333")


def test_text_of_the_data_is_no_part_of_the_page(tmp_path):
    source = tmp_path / "in"
    saved(Image.new("RGB", (8, 8)), source / "<b>&.png")
    write(source / "<b>&.txt", "a dog to the left")
    preview = preview_of(source, CROP8, 1, labels="captions:")
    page = preview_page(preview, ["<i>in"])
    assert "<b>&.png" not in page
    assert "&lt;b&gt;&amp;.png" in page
    assert "<i>in" not in page
    assert "a dog to the left" in page
    assert preview_sheet(preview).startswith(b"\x89PNG")
    assert json.loads(json.dumps(record_of(preview)))["inputs"][0]["key"] == "<b>&.png"


def test_a_line_of_convert_can_become_one_of_preview(photos, cli):
    line = ("preview", photos, *"--resize 32 --workers 0".split())
    of_the_dataset = (
        "--update --moved-from old --keep-generations 1 --explain --append --metrics m.jsonl "
        "--part 1/2"
    )
    alone = cli(*line)
    assert alone.code == 0
    assert cli(*line, *of_the_dataset.split()).out == alone.out
