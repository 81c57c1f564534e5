"""What `inspect` finds. Conditions are in test_where.py, pages in test_report.py."""

from __future__ import annotations

import io
import json
import shutil
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from damage import flip
from dataset_files import shard_in, shards_in
from in_this_process import convert
from PIL import Image
from places import file_at, place_of

import shardctl
from shardctl.errors import DatasetError, StorageError, UsageError
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.manifest import Manifest
from shardctl.format.roles import Image as Stored
from shardctl.format.roles import Roles
from shardctl.format.tables import ShardTable
from shardctl.inspection.content.blocks import Shard, StoredSample, some_samples
from shardctl.inspection.content.differences import differences
from shardctl.inspection.content.inspection import Inspection
from shardctl.inspection.content.overview import column_bytes, describe_shard, find_shard, overview
from shardctl.inspection.content.samples import head, matching, sample_at, samples_of_key, save
from shardctl.inspection.content.statistics import distribution, statistics_of
from shardctl.inspection.pages.pictures import picture_sheet, pictures_of

CLASSES = ("dunes", "forest", "harbour", "night", "snow", "sunset")


def pixels_of(path: Path) -> Any:
    with Image.open(path) as opened:
        return np.asarray(opened)


def test_the_overview_adds_up(raw_dataset):
    record = overview(dataset_in(raw_dataset)).record()
    assert record["samples"] == 60
    assert record["bytes"] == sum(path.stat().st_size for path in shards_in(raw_dataset))
    assert sum(split["samples"] for split in record["splits"]) == 60
    assert record["classes"] == dict.fromkeys(CLASSES, 10)
    for split in record["splits"]:
        assert sum(record["classes_by_split"][split["name"]].values()) == split["samples"]
    assert [column["name"] for column in record["schema"]] == ["key", "image", "label"]
    assert record["recipe"]["store"] == "raw"
    assert record["seconds"] > 0
    assert column_bytes(dataset_in(raw_dataset))["image"] == 60 * 32 * 32 * 3


def test_classes_are_counted_where_the_manifest_does_not_have_them(dataset):
    before = overview(dataset_in(dataset))
    manifest = replace(Manifest.load(dataset_in(dataset)), class_counts=None, seconds=None)
    (dataset / "manifest.json").write_text(manifest.to_json())
    assert overview(dataset_in(dataset)).classes_by_split == before.classes_by_split


def test_samples_without_a_label_are_counted_as_such(photos, tmp_path, out):
    keys = [path.relative_to(photos).as_posix() for path in sorted(photos.rglob("*.jpg"))]
    (tmp_path / "labels.csv").write_text(
        "file_name,label\n" + "\n".join(f"{key},cat" for key in keys[:20]) + "\n"
    )
    convert(photos, out, labels=str(tmp_path / "labels.csv"), lenient_labels=True)
    assert overview(dataset_in(out)).classes == {"cat": 20, "(no label)": 40}


def test_a_key_leads_to_its_record_and_its_source(raw_dataset, photos):
    ds = shardctl.open(raw_dataset)
    for index in (0, 17, 59):
        sample = ds[index]
        (record,) = samples_of_key(dataset_in(raw_dataset), sample["key"])
        source = str(photos / sample["key"])
        assert (record.index, record.source, record.intact) == (index, source, True)
        shard = file_at(shard_in(raw_dataset, record.shard))
        assert record.checksum == describe_shard(*shard).blocks[record.block].checksum
        assert np.array_equal(record.values["image"], sample["image"])
        same = sample_at(Shard(*shard, None), None, record.row)
        assert (same.values["key"], same.source) == (sample["key"], None), "a lone shard knows none"
        entry = find_shard(dataset_in(raw_dataset), record.shard)
        placed = sample_at(Shard(dataset_in(raw_dataset), entry.path, entry), None, record.row)
        assert (placed.index, placed.source) == (index, source)


def test_a_key_has_all_its_variants(photos, out):
    crop = {"name": "random_resized_crop", "size": 8}
    recipe = {"store": "raw", "variants": 3, "transform": [crop]}
    convert(photos, out, recipe=recipe, shuffle=1)
    key = shardctl.open(out)[5]["key"]
    records = samples_of_key(dataset_in(out), key)
    assert sorted(record.values["variant"] for record in records) == [0, 1, 2]
    assert {record.values["key"] for record in records} == {key}


def test_the_key_of_a_reject_tells_why(tmp_path, out, photos):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "good.jpg").write_bytes(next(photos.rglob("*.jpg")).read_bytes())
    (tmp_path / "in" / "bad.jpg").write_bytes(b"bad")
    convert(tmp_path / "in", out)
    with pytest.raises(DatasetError, match=r"bad.jpg: was rejected when .* \(not an image"):
        samples_of_key(dataset_in(out), "bad.jpg")
    assert overview(dataset_in(out)).reject_reasons == {"decode: not-an-image": 1}


def test_a_damaged_record_is_shown_and_said(dataset):
    shard = shard_in(dataset, "train-00001")
    flip(shard)
    assert sample_at(Shard(*file_at(shard), None), 0, 0).intact is False


def test_a_damaged_dataset_is_still_described(cli, dataset):
    for shard in shards_in(dataset)[:4]:
        shard.write_bytes(shard.read_bytes()[:-200])
    (shard_in(dataset, "train-00006")).unlink()
    shown = cli("inspect", dataset)
    assert shown.code == 0
    assert "60 image samples in 7 shards" in shown.out
    assert "DAMAGED: 3 of the blocks looked at; run shardctl verify." in shown.out
    assert len(cli("inspect", dataset, "--json").json["statistics"]["faults"]) == 3
    for shard in (dataset / "data").iterdir():
        shard.unlink()
    assert "DAMAGED: 4 of the blocks looked at" in cli("inspect", dataset).out


def test_a_shard_is_described_without_its_dataset(raw_dataset, tmp_path):
    lone = Path(shutil.copy(shard_in(raw_dataset, "val-00000"), tmp_path))
    found = describe_shard(*file_at(lone), check=True)
    assert found.split == "val"
    assert found.samples == sum(block.rows for block in found.blocks)
    assert all(block.intact for block in found.blocks)
    assert found.column_bytes["image"] == found.samples * 32 * 32 * 3
    assert len(list(head(place_of(lone), None, 3))) == 3
    assert len(list(matching(place_of(lone), None, "row < 2"))) == 2
    assert statistics_of(place_of(lone)).samples == found.samples


@pytest.mark.parametrize("count", [1, 7, 60, 500])
def test_some_records_come_from_everywhere_and_none_twice(raw_dataset, count):
    indices = [record.index for record in some_samples(place_of(raw_dataset), None, count)]
    assert indices == sorted(set(indices))
    assert len(indices) <= count
    assert len(indices) >= min(count, 60) * 0.7
    if count >= 7:
        shards = {record.shard for record in some_samples(place_of(raw_dataset), None, count)}
        assert shards == set(ShardTable(dataset_in(raw_dataset)).names)


def test_statistics_tell_lengths_sizes_and_compression(demo, tmp_path):
    convert(demo / "lines.jsonl", tmp_path / "lines")
    texts = [shardctl.open(tmp_path / "lines")[index]["text"] for index in range(50)]
    found = statistics_of(place_of(tmp_path / "lines"), blocks=100)
    assert found.samples == 50
    (spread,) = [each for each in found.distributions if each.what == "text, bytes"]
    lengths = [len(text.encode()) for text in texts]
    assert (spread.low, spread.high) == (min(lengths), max(lengths))
    assert spread.median == np.median(lengths)
    assert sum(spread.counts) == 50
    (text,) = [column for column in found.columns if column.name == "text"]
    assert text.stored_bytes < text.raw_bytes
    stored = sum(column.stored_bytes for column in found.columns) * 50
    whole = sum(path.stat().st_size for path in shards_in(tmp_path / "lines"))
    assert stored < whole, "metadata comes on top"


def test_statistics_of_images_come_from_their_headers(photos, out):
    convert(photos, out)
    statistics = statistics_of(place_of(out), blocks=100)
    found = {spread.what: spread for spread in statistics.distributions}
    shapes = [sample["image"].shape for sample in shardctl.open(out)]
    assert found["image width"].low == min(width for _, width, _ in shapes)
    assert found["image height"].high == max(height for height, _, _ in shapes)
    assert found["image, bytes"].high == max(path.stat().st_size for path in photos.rglob("*.*"))
    counts = Counter(path.suffix for path in photos.rglob("*.*"))
    assert statistics.formats == {"JPEG": counts[".jpg"], "PNG": counts[".png"]}
    assert distribution("none", Counter()).counts == ()


def test_statistics_keep_no_block_in_memory(out):
    texts = ({"text": f"{number:05d}" * 2000} for number in range(4000))
    shardctl.write(out, texts, pa.schema({"text": pa.string()}), compression="zstd:1")
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        found = statistics_of(place_of(out), blocks=1024)
    finally:
        pa.set_memory_pool(before)
    whole = sum(column.raw_bytes for column in found.columns) * found.samples
    assert (found.samples, whole > 30e6) == (4000, True)
    assert 0 < pool.max_memory() < whole / 4


@pytest.mark.parametrize("store", ["source", "raw"])
def test_saved_records_are_ordinary_files(photos, tmp_path, out, store):
    steps = [] if store == "source" else [{"name": "resize", "size": "16x12"}]
    recipe = {"store": store, "transform": steps}
    convert(photos, out, recipe=recipe)
    written = save(head(place_of(out), None, 5), tmp_path / "saved")
    images = [path for path in written if path.suffix != ".json"]
    assert len(images) == 5
    for path in images:
        key = path.relative_to(tmp_path / "saved").as_posix().removesuffix(".png")
        if store == "source":
            assert path.read_bytes() == (photos / key).read_bytes()
        else:
            (record,) = samples_of_key(dataset_in(out), key)
            assert np.array_equal(pixels_of(path), record.values["image"])
    (rest, *_) = [path for path in written if path.suffix == ".json"]
    assert json.loads(rest.read_text()) == {"label": 0, "label_name": "dunes"}
    with pytest.raises(StorageError, match="exists already; give a folder that is new or empty"):
        save(head(place_of(out), None, 1), tmp_path / "saved")


def test_saved_texts_keep_their_names_and_fields(tmp_path, out):
    (tmp_path / "rows.jsonl").write_text('{"text": "Größe", "answer": 42, "ids": [1, 2]}\n')
    convert(tmp_path / "rows.jsonl", out)
    save(head(place_of(out), None, 1), tmp_path / "saved")
    assert (tmp_path / "saved" / "rows.jsonl#1.txt").read_text(encoding="utf-8") == "Größe"
    assert json.loads((tmp_path / "saved" / "rows.jsonl#1.json").read_text()) == {
        "answer": 42,
        "ids": [1, 2],
    }


@pytest.mark.parametrize(
    "key", ["../../evil", "/etc/evil", "a/../../evil", "..", "", "a\\..\\evil", "a\0b"]
)
def test_no_key_leads_a_saved_file_out_of_its_folder(tmp_path, key):
    values = {"key": key, "text": "t", "image": {"bytes": b"x", "path": "../../x.sh/y"}}
    record = StoredSample("x.arrow", 0, 3, None, None, None, values)
    inside = tmp_path / "in" / "saved"
    for path in save([record], inside):
        assert path.resolve().is_relative_to(inside.resolve())
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["saved"]


def test_a_diff_names_samples_fields_and_settings(photos, tmp_path):
    shutil.copytree(photos, tmp_path / "in")
    convert(tmp_path / "in", tmp_path / "a", shuffle=1)
    (tmp_path / "in" / "snow" / "snow-0047.jpg").rename(tmp_path / "in" / "snow" / "new.jpg")
    changed, other = sorted((tmp_path / "in" / "dunes").glob("*.jpg"))[:2]
    shutil.copy(other, changed)
    convert(tmp_path / "in", tmp_path / "b", shuffle=2)
    found = differences(place_of(tmp_path / "a"), place_of(tmp_path / "b"))
    assert not found.same_samples
    assert (found.only_in_a, found.only_in_a_examples) == (1, ("snow/snow-0047.jpg",))
    assert (found.only_in_b, found.only_in_b_examples) == (1, ("snow/new.jpg",))
    assert (found.changed, found.changed_fields) == (1, {"image": 1})
    assert found.changed_examples[0].key == f"dunes/{changed.name}"
    assert [(pair.name, pair.a, pair.b) for pair in found.settings] == [("settings shuffle", 1, 2)]


def test_a_diff_of_other_recipes_compares_what_both_have(photos, tmp_path):
    resize = [{"name": "resize", "size": "16x12"}]
    convert(photos, tmp_path / "a", recipe={"store": "raw", "transform": resize})
    recipe = {"store": "png", "transform": resize}
    convert(photos, tmp_path / "b", recipe=recipe, split="a=0.5,b=0.5")
    heard: list[tuple[int, int]] = []
    found = differences(
        *map(place_of, (tmp_path / "a", tmp_path / "b")), lambda *counts: heard.append(counts)
    )
    assert [pair.name for pair in found.fields] == ["image"]
    assert {"recipe store", "settings split"} <= {pair.name for pair in found.settings}
    assert found.in_both == 60
    assert found.changed_fields == {"split": 60}, "labels are the same"
    assert heard[-1] == (60, 60)


def test_labels_are_shown_with_their_names(cli, raw_dataset):
    key = shardctl.open(raw_dataset)[0]["key"]
    name = key.partition("/")[0]
    label = f"{CLASSES.index(name)} ({name})"
    for options in ("--head 1", f"--key {key}", "--columns label"):
        assert label in cli("inspect", raw_dataset, *options.split()).out
    assert label in cli("inspect", raw_dataset, "--where", "index == 0").out
    shown = cli("inspect", raw_dataset, *"--head 1 --columns label --json".split()).json
    assert shown["samples"] == [{"label": CLASSES.index(name), "label_name": name}]
    record = cli("inspect", raw_dataset, "--key", key, "--json").json
    assert record["values"]["label_name"] == name
    assert record["records"][0]["values"] == record["values"]


def test_a_split_is_shown_alone(cli, raw_dataset):
    val = shardctl.open(raw_dataset, split="val")
    shown = cli("inspect", raw_dataset, "--split", "val")
    assert shown.out.startswith(f"split val of {raw_dataset}: {len(val)} image samples in ")
    assert "train" not in shown.out.partition("splits:")[2]
    found = cli("inspect", raw_dataset, "--split", "val", "--stats", "--json").json
    assert (found["split"], found["samples"]) == ("val", len(val))
    assert [split["name"] for split in found["splits"]] == ["val"]
    assert found["bytes"] == sum(path.stat().st_size for path in shards_in(raw_dataset, "val"))
    assert sum(found["classes"].values()) == found["statistics"]["samples"] == len(val)
    assert found["column_bytes"]["image"] == len(val) * 32 * 32 * 3
    assert cli("inspect", raw_dataset, "--json").json["split"] is None


def test_a_contact_sheet_shows_what_is_asked_for(cli, raw_dataset, demo, tmp_path):
    drawn = cli("inspect", raw_dataset, "--images", tmp_path / "sheet.png")
    assert drawn.code == 0
    assert pixels_of(tmp_path / "sheet.png").shape[1] == 8 * 164
    snow = ("--where", "label == 'snow'")
    few = cli("inspect", raw_dataset, "--images", tmp_path / "few.png", *snow, "--json").json
    assert few["images"] == 10
    pixels = pixels_of(tmp_path / "few.png")
    (first, *_) = matching(place_of(raw_dataset), None, "label == 'snow'")
    middle = pixels[2 + 64 : 2 + 96, 2 + 64 : 2 + 96]  # of the first cell
    assert np.array_equal(middle, first.values["image"])
    convert(demo / "texts", tmp_path / "texts")
    refused = cli("inspect", tmp_path / "texts", "--images", tmp_path / "no.png")
    assert (refused.code, "there are no images to draw" in refused.err) == (2, True)
    assert not (tmp_path / "no.png").exists()


def test_an_image_that_does_not_decode_is_crossed_out(tmp_path):
    values = {"key": "k", "image": {"bytes": b"no image", "path": "k.jpg"}}
    roles = Roles({"image": Stored("source")})
    broken = StoredSample("x.arrow", 0, 0, None, None, None, values, roles=roles)
    sheet = np.asarray(Image.open(io.BytesIO(picture_sheet(pictures_of(broken)))))
    assert tuple(sheet[2, 2]) == (200, 60, 60)


def test_a_diff_compares_missing_values_and_lists_of_lists(tmp_path):
    first = [[[1, 2], [3]], [[1, 2], [3, 4]], None, [], [[5]]]
    for name, values in (("a", first), ("b", [*first[:2], [[9]], [], [[9]]])):
        samples = [{"rows": value} for value in values]
        shardctl.write(
            tmp_path / name, samples, pa.schema({"rows": pa.list_(pa.list_(pa.int64()))})
        )
    found = differences(place_of(tmp_path / "a"), place_of(tmp_path / "b"))
    assert (found.in_both, found.changed, found.changed_fields) == (5, 2, {"rows": 2})
    assert differences(place_of(tmp_path / "a"), place_of(tmp_path / "a")).changed == 0


@pytest.mark.parametrize("type_", [pa.float32(), pa.float64(), pa.float16()])
def test_numbers_that_are_nan_in_both_are_the_same(type_, tmp_path):
    for name, last in (("a", 1.0), ("b", 2.0)):
        samples = [{"x": float("nan")}, {"x": 1.0}, {"x": last}]
        shardctl.write(tmp_path / name, samples, schema=pa.schema([("x", type_)]))
    assert differences(place_of(tmp_path / "a"), place_of(tmp_path / "b")).changed == 1


def test_python_gives_what_the_command_prints(cli, raw_dataset):
    for target, given, arguments in (
        (raw_dataset, {}, ""),
        (raw_dataset, {"split": "val"}, "--split val"),
        (raw_dataset, {"stats": True}, "--stats"),
        (shard_in(raw_dataset), {"stats": True}, "--stats"),
    ):
        found = shardctl.inspect(target, **given)
        record = found.record() if isinstance(found, Inspection) else asdict(found)
        printed = cli("inspect", target, *arguments.split(), "--json").json
        assert json.loads(json.dumps(record)) == printed


def test_inspect_in_python_refuses_what_is_not_there(raw_dataset, tmp_path):
    shard = next(iter(shards_in(raw_dataset)))
    with pytest.raises(UsageError, match="is one shard"):
        shardctl.inspect(shard, split="val")
    with pytest.raises(UsageError, match="no split 'tset'"):
        shardctl.inspect(raw_dataset, split="tset")
    with pytest.raises(UsageError, match="stats"):
        shardctl.inspect(raw_dataset, stats="no")  # type: ignore[arg-type]
    with pytest.raises(DatasetError):
        shardctl.inspect(tmp_path)
