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
import pytest
from annotated_sources import source_with
from in_this_process import convert
from PIL import Image
from places import place_of
from pyarrow import parquet

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


@pytest.fixture
def annotated(tmp_path: Path) -> Path:
    """A folder with five images, one of them broken, with objects and masks: in/, masks/."""
    source = source_with(tmp_path, OBJECTS, Image.new("L", (60, 40), 3))
    lines = []
    for number, name in enumerate(("b.png", "c.png", "d.png")):
        picture = np.random.default_rng(number).integers(0, 256, (40, 60, 3), np.uint8)
        Image.fromarray(picture).save(source / name)
        shutil.copy(tmp_path / "masks" / "a.png", tmp_path / "masks" / name)
        lines.append({"file_name": name, "objects": OBJECTS})
    (source / "e.png").write_bytes(b"no image")
    lines.append({"file_name": "e.png", "objects": OBJECTS})
    with (source / "metadata.jsonl").open("a") as metadata:
        metadata.writelines(f"{json.dumps(line)}\n" for line in lines)
    return source


def test_what_is_shown_is_what_a_conversion_stores(annotated, tmp_path, out):
    labels = ["auto", f"masks:{tmp_path / 'masks'}"]
    preview = make_preview(
        [annotated], {**RANDOM, "seed": 7, "variants": 4}, 3, labels=labels, workers=0
    )
    there = stored(annotated, out, {**RANDOM, "seed": 7, "variants": 4}, labels=labels)
    assert [each.key for each in preview.inputs] == ["a.png", "c.png", "e.png"]
    assert shown(preview) == {
        place: values for place, values in there.items() if place[0] in ("a.png", "c.png")
    }
    assert preview.total == 5
    assert (
        preview.inputs[0].cut_off
        == 12 - sum(len(each.values["objects"]["bbox"]) for each in preview.inputs[0].samples)
        > 0
    )
    page = preview_page(preview, ["in"])
    images = embedded(page)
    assert all(values["image"]["bytes"] in images for values in shown(preview).values()), (
        "with their own bytes"
    )
    assert len(images) == 2 * (8 + 2), "each also with its annotations"


def test_the_first_variant_is_what_is_stored_without_variants(tmp_path, out):
    (tmp_path / "in").mkdir()
    # large enough to be decoded at a part of its size where the sample needs no more
    for number in range(4):
        pixels = np.random.default_rng(number).integers(0, 256, (24, 32, 3), np.uint8)
        Image.fromarray(pixels).resize((512, 384)).save(tmp_path / "in" / f"{number}.jpg")
    preview = make_preview([tmp_path / "in"], RANDOM, 8, workers=0)
    there = stored(tmp_path / "in", out, RANDOM)
    assert (preview.samples, preview.variants) == (16, 4)
    for (key, variant), values in shown(preview).items():
        assert (values["image"]["bytes"] == there[key, 0]["image"]["bytes"]) is (variant == 0)


def test_as_many_variants_are_shown_as_the_recipe_says(photos):
    assert make_preview([photos], {**RANDOM, "variants": 2}, 1, workers=0).samples == 2
    assert (
        make_preview(
            [photos], {"transform": [{"name": "resize", "size": 16}]}, 1, workers=0
        ).samples
        == 1
    )
    assert (
        make_preview(
            [photos], {"transform": [{"name": "five_crop", "size": 16}]}, 1, workers=0
        ).samples
        == 5
    )


@pytest.mark.parametrize("split", ["none", "train=0.5,val=0.5"])
def test_keys_choose_inputs_in_their_order(photos, tmp_path, split):
    keys = [path.relative_to(photos).as_posix() for path in sorted(photos.rglob("*.jpg"))]
    chosen = [keys[41], keys[3], keys[41]]
    preview = make_preview([photos], RANDOM, 8, chosen, split=split, workers=0)
    assert [each.key for each in preview.inputs] == [keys[41], keys[3]]
    assert all(each.samples[0].values["key"] == each.key for each in preview.inputs)
    with pytest.raises(
        InputError,
        match=r"there is no input with the key absent\.jpg; a key is a path such as",
    ):
        make_preview([photos], RANDOM, 8, ["absent.jpg"], workers=0)


def test_the_folders_of_splits_are_no_classes(photos, tmp_path):
    for part in ("train", "val"):
        shutil.copytree(photos, tmp_path / "in" / part)
    preview = make_preview([tmp_path / "in"], RANDOM, 3, workers=0)
    classes = {record.class_names["label"] for each in preview.inputs for record in each.samples}
    assert classes <= {folder.name for folder in photos.iterdir()}
    assert preview.total == 120


@pytest.mark.parametrize("split", ["none", "train=0.5,val=0.5"])
def test_images_in_tables_are_shown_too(photos, tmp_path, out, split):
    import pyarrow as pa

    files = sorted(photos.rglob("*.jpg"))[:6]
    table = pa.table(
        {"photo": [path.read_bytes() for path in files], "name": [path.name for path in files]}
    )
    (tmp_path / "in").mkdir()
    parquet.write_table(table, tmp_path / "in" / "t.parquet")
    recipe = {**RANDOM, "kind": "image", "image_field": "photo"}
    there = stored(tmp_path / "in", out, recipe, split=split)
    preview = make_preview(
        [tmp_path / "in"],
        {**recipe, "variants": 1},
        8,
        ["t.parquet#2", "t.parquet#6"],
        split=split,
        workers=0,
    )
    assert shown(preview) == {
        place: values
        for place, values in there.items()
        if place[0] in ("t.parquet#2", "t.parquet#6")
    }
    assert [each.key for each in preview.inputs] == ["t.parquet#2", "t.parquet#6"]
    assert [each.bytes for each in preview.inputs] == [None, None]
    assert make_preview([tmp_path / "in"], recipe, 3, split=split, workers=0).total == 6
    with pytest.raises(InputError, match=r"such as t\.parquet#1, with the number of a record"):
        make_preview([tmp_path / "in"], recipe, 8, ["t.parquet#7"], workers=0)


def test_raw_pixels_are_on_the_page_as_they_are(photos):
    steps = [{"name": "resize", "size": 40}, {"name": "crop", "size": 32}]
    preview = make_preview([photos], {"store": "raw", "transform": steps}, 2, workers=0)
    images = [
        np.asarray(Image.open(io.BytesIO(data)))
        for data in embedded(preview_page(preview, ["photos"]))
    ]
    pixels = [record.values["image"] for each in preview.inputs for record in each.samples]
    assert all(any(np.array_equal(image, each) for image in images) for each in pixels)


def test_the_source_is_shown_upright_and_whole(tmp_path):
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.new("RGB", (40, 20), (200, 30, 30)).save(tmp_path / "a.jpg", exif=turned)
    (tried,) = make_preview(
        [tmp_path / "a.jpg"], {"transform": [{"name": "crop", "size": 8}]}, 1, workers=0
    ).inputs
    assert tried.source is not None
    assert Image.open(io.BytesIO(tried.source.values["image"]["bytes"])).size == (20, 40)
    assert tried.bytes == (tmp_path / "a.jpg").stat().st_size


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
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8))
    picture.save(source / "b.jpg")
    data = (source / "b.jpg").read_bytes()[:-900]
    (source / "b.jpg").write_bytes(data)
    with (source / "metadata.jsonl").open("a") as metadata:
        metadata.write(json.dumps({"file_name": "b.jpg", "objects": OBJECTS}) + "\n")
    preview = make_preview([source], {"truncated": "keep"}, 2, workers=0)
    assert preview.rejected == 0
    assert data in embedded(preview_page(preview, ["in"]))


def test_all_inputs_may_be_broken(tmp_path, cli):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jpg").write_bytes(b"bad")
    ran = cli(
        "preview",
        tmp_path / "in",
        "--flip",
        0.5,
        "--html",
        tmp_path / "p.html",
        "--workers",
        0,
        "--json",
    )
    assert (ran.code, ran.json["samples"], ran.json["rejected"]) == (0, 0, 1)
    assert ran.json["inputs"][0]["reject"]["error"] == "not-an-image"


def test_an_image_that_ends_its_process_is_a_reject(photos, tmp_path, monkeypatch, cli):
    (tmp_path / "ends_here.py").write_text(
        "import os\ndef leave(sample):\n    if sample['key'].endswith('000.jpg'):\n        "
        "os._exit(3)\n    return sample\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    keys = [path.relative_to(photos).as_posix() for path in sorted(photos.rglob("*.jpg"))]
    fatal = next(key for key in keys if key.endswith("000.jpg"))
    chosen = [keys[-1], fatal]
    preview = make_preview(
        [photos],
        {"transform": [{"name": "custom", "target": "ends_here:leave"}]},
        8,
        chosen,
        workers=1,
    )
    good, bad = preview.inputs
    assert len(good.samples) == 4
    assert bad.reject is not None
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
    preview = make_preview(
        [photos], {"transform": [{"name": "custom", "target": "refuses_some:some"}]}, 1, workers=0
    )
    assert (preview.samples, preview.rejected) == (1, 0)
    assert "further variants rejected, transform: ValueError" in preview_page(preview, ["photos"])


def test_captions_are_on_the_page(photos, tmp_path):
    (tmp_path / "in").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "in" / "a.png")
    (tmp_path / "in" / "a.txt").write_text("a dog to the left")
    preview = make_preview(
        [tmp_path / "in"],
        {"transform": [{"name": "hflip", "p": 1}]},
        1,
        labels="captions:",
        workers=0,
    )
    assert "a dog to the left" in preview_page(preview, ["in"])


def test_nothing_is_written_but_the_page(photos, tmp_path, monkeypatch, cli):
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    monkeypatch.chdir(tmp_path)
    before = sorted(photos.rglob("*"))
    assert (
        cli(
            "preview",
            photos,
            "--random-crop",
            16,
            "--html",
            "p.html",
            "--inputs",
            2,
            "--workers",
            0,
        ).code
        == 0
    )
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["p.html", "scratch"]
    assert sorted(photos.rglob("*")) == before


def test_a_table_is_printed_where_no_page_is_asked_for(photos, cli):
    ran = cli(
        "preview", photos, "--random-crop", 16, "--inputs", 2, "--variants", 3, "--workers", 0
    )
    assert ran.code == 0
    assert ran.out.splitlines()[0] == "2 of 60 inputs: 6 samples"
    assert len(re.findall(r"^ +variant [012] +16x16, \d+ B", ran.out, re.MULTILINE)) == 6


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["texts"], 2, "a preview is for images, and these are text"),
        (["photos", "--kind", "table"], 2, "and these are table"),
        (["photos", "--inputs", 2, "--key", "a"], 2, "--inputs and --key contradict each other"),
        (["photos", "--inputs", 0], 2, "--inputs"),
        (["photos", "--key", "a"], 3, "there is no input with the key a"),
        (["photos", "--variants", 3], 2, "no step is random"),
        (
            ["photos", "--resize", 8, "--store", "source"],
            2,
            "keeps the original bytes, without resize",
        ),
        (
            ["photos", "--resize", 8, "--inputs", 1, "--html", "absent/p.html"],
            3,
            "cannot be written (No such file or directory)",
        ),
        (["photos", "--overwrite"], 2, "there is no option --overwrite"),
        (["absent"], 3, "absent: no such file or folder"),
    ],
)
def test_wrong_usage_is_one_sentence(
    demo,
    cli,
    monkeypatch,
    arguments,
    code,
    message,
):
    monkeypatch.chdir(demo)
    ran = cli("preview", *arguments, "--workers", 0)
    assert ran.code == code
    assert message in ran.err


def test_a_step_that_cannot_move_the_annotations_is_refused(annotated):
    with pytest.raises(UsageError, match="elastic cannot move"):
        make_preview([annotated], {"transform": [{"name": "elastic"}]}, 1, workers=0)


def test_the_recipe_is_told_with_its_defaults_and_its_inner_steps():
    inner = [
        {"name": "hflip"},
        {"name": "choice", "steps": [{"name": "vflip", "p": 1}, {"name": "rotate", "angle": 90}]},
    ]
    steps = [
        {"name": "maybe", "p": 0.25, "steps": inner},
        {"name": "random_resized_crop", "size": "32x24"},
    ]
    told = list(steps_in_words(Recipe.from_json({"transform": steps}).transform))
    assert [step[:2] for step in told] == [
        (0, "maybe"),
        (1, "hflip"),
        (1, "choice"),
        (2, "vflip"),
        (2, "rotate"),
        (0, "random_resized_crop"),
    ]
    assert told[0][2] == "p 0.25"
    assert told[1][2] == "p 0.5"
    assert told[5][2].startswith("size 32x24, scale 0.08 to 1, ratio 0.75 to 1.333")


def test_text_of_the_data_is_no_part_of_the_page(tmp_path):
    (tmp_path / "in").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "in" / "<b>&.png")
    preview = make_preview(
        [tmp_path / "in"], {"transform": [{"name": "resize", "size": 4}]}, 1, workers=0
    )
    page = preview_page(preview, ["<i>in"])
    assert "<b>&.png" not in page
    assert "&lt;b&gt;&amp;.png" in page
    assert "<i>in" not in page
    assert preview_sheet(preview).startswith(b"\x89PNG")
    assert json.loads(json.dumps(record_of(preview)))["inputs"][0]["key"] == "<b>&.png"


def test_a_line_of_convert_can_become_one_of_preview(photos, cli):
    of_the_dataset = [
        "--update",
        "--moved-from",
        "old",
        "--keep-generations",
        1,
        "--explain",
        "--append",
        "--metrics",
        "m.jsonl",
        "--part",
        "1/2",
    ]
    alone = cli("preview", photos, "--resize", 32, "--workers", 0)
    assert alone.code == 0
    assert cli("preview", photos, "--resize", 32, "--workers", 0, *of_the_dataset).out == alone.out
