"""Tables whose records hold images, or name them: what becomes of them is what becomes of the files
themselves."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from damage import flip
from dataset_facts import rejects_of, stored
from dataset_files import content_of, shard_in, shards_in
from in_this_process import convert, repair
from PIL import Image
from pyarrow import csv, feather, parquet

import shardctl
from shardctl.errors import InputError, SourceGoneError, UsageError
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.making.shards import builder, inputs
from shardctl.making.shards.records import read_unit
from shardctl.sources.formats import RECORD_BYTES, Reading, Unit
from shardctl.sources.formats.numbered import Numbered
from shardctl.sources.formats.parquet import RowGroups

SMALL = {
    "kind": "image",
    "transform": [{"name": "resize", "size": 24}, {"name": "crop", "size": 16}],
    "store": "png",
}
NAMES = [f"p{number:02}.jpg" for number in range(12)]


def picture(number: int, kind: str = "jpeg") -> bytes:
    pixels = np.random.default_rng(number).integers(0, 256, (5, 6, 3), np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).resize((40 + number, 32)).save(data, kind)
    return data.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """in/ with twelve photos."""
    root = tmp_path_factory.mktemp("pictures") / "in"
    root.mkdir()
    for number, name in enumerate(NAMES):
        (root / name).write_bytes(picture(number))
    return root


@pytest.fixture(scope="module")
def plain(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray[Any, Any]]:
    """The pixels of the photos, converted as files."""
    return pixels_of(converted(folder, tmp_path_factory.mktemp("plain") / "out", SMALL))


def converted(
    source: Path, out: Path, recipe: dict[str, Any] | None = None, **options: Any
) -> shardctl.Dataset:
    convert(source, out, recipe=recipe, **options)
    return shardctl.open(out)


def pixels_of(ds: shardctl.Dataset) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(sample["image"]) for sample in ds]


def parquet_of(folder: Path, columns: Any) -> Path:
    parquet.write_table(pa.table(columns), folder / "t.parquet")
    return folder / "t.parquet"


def is_sound(cli: Any, out: Path) -> bool:
    return bool(cli("verify", out, "--level", "deep").code == 0 and cli("inspect", out).code == 0)


TYPES = {"struct": ENCODED_IMAGE, "bytes": pa.binary(), "path": pa.string()}


def table(form: str) -> pa.Table:
    """A table of the photos, with images as structs, bytes or paths."""
    images = [
        {"struct": {"bytes": picture(number), "path": name}, "bytes": picture(number), "path": name}
        for number, name in enumerate(NAMES)
    ]
    columns = {
        "n": range(12),
        "photo": pa.array([each[form] for each in images], TYPES[form]),
        "label": ["cat", "dog"] * 6,
    }
    return pa.table(columns)


def write_stream(found: pa.Table, path: Path) -> None:
    with pa.ipc.new_stream(str(path), found.schema) as writer:
        writer.write_table(found, max_chunksize=5)


def write_lines(found: pa.Table, path: Path) -> None:
    data = "".join(json.dumps(record) + "\n" for record in found.to_pylist()).encode()
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)


WRITERS: dict[str, Callable[[pa.Table, Path], object]] = {
    "t.parquet": lambda found, path: parquet.write_table(found, path, row_group_size=5),
    "t.arrow": write_stream,
    "t.feather": lambda found, path: feather.write_feather(found, str(path), chunksize=5),
    "t.csv": lambda found, path: csv.write_csv(found, path),
    "t.jsonl": write_lines,
    "t.jsonl.gz": write_lines,
    "t.json": lambda found, path: path.write_text(json.dumps(found.to_pylist())),
}
COLUMNS = ["t.parquet", "t.arrow", "t.feather"]
CASES = [(name, form) for form in ("struct", "bytes") for name in COLUMNS] + [
    (name, "path") for name in WRITERS
]


def source_of(folder: Path, at: Path, name: str, form: str, found: pa.Table | None = None) -> Path:
    """Write a table; with paths the photos lie beside it."""
    if form == "path":
        shutil.copytree(folder, at)
    else:
        at.mkdir()
    WRITERS[name](table(form) if found is None else found, at / name)
    return at / name


@pytest.mark.thorough(after=6)
@pytest.mark.parametrize(("name", "form"), CASES)
def test_images_in_tables_come_out_as_those_in_files(name, form, folder, plain, tmp_path, out, cli):
    source = source_of(folder, tmp_path / "in", name, form)
    ds = converted(source, out, {**SMALL, "image_field": "photo"})
    assert all(np.array_equal(one, other) for one, other in zip(pixels_of(ds), plain, strict=True))
    assert [(each["key"], each["n"], each["label"]) for each in ds] == [
        (f"{name}#{n + 1}", n, n % 2) for n in range(12)
    ]
    assert ds.classes == ("cat", "dog")
    assert is_sound(cli, out)


@pytest.mark.parametrize("form", ["struct", "bytes"])
def test_the_kind_is_found_for_tables_that_hold_images(form, folder, tmp_path, out, cli):
    source = source_of(folder, tmp_path / "in", "t.parquet", form).parent
    ran = cli("convert", source, out, "--resize=16x16", "--store=raw", "--workers=0", "--json")
    assert ran.code == 0, ran.err
    assert "images are in the column photo" in str(ran.json["notices"])
    assert shardctl.open(out)[3]["image"].shape == (16, 16, 3)


def test_bytes_that_are_not_called_like_images_stay_a_table(tmp_path, out):
    source = parquet_of(tmp_path, {"payload": [b"one", b"two"]})
    assert converted(source, out)[1]["payload"] == b"two"
    (note,) = convert(parquet_of(tmp_path, {"Img_path": ["1.png"]}), tmp_path / "text").notices
    assert "Img_path: kept as text; if" in note


def test_a_table_of_paths_stays_a_table_unless_images_are_asked_for(folder, tmp_path):
    """A CSV with a column `path` may be anything."""
    found = table("path").rename_columns(["n", "path", "label"])
    source = source_of(folder, tmp_path / "in", "t.csv", "path", found)
    assert converted(source, tmp_path / "table")[0]["path"] == NAMES[0]
    for recipe in ({"kind": "image"}, {"image_field": "path"}):
        ds = converted(source, tmp_path / "out", recipe, overwrite=True)
        assert ds[0]["image"].shape == (32, 40, 3)


def test_photos_win_over_tables_beside_them(folder, tmp_path, out):
    """As before: a table among photos is no source of photos, unless its field is named or it is
    the source."""
    source = Path(shutil.copytree(folder, tmp_path / "in")) / "t.jsonl"
    write_lines(table("path").rename_columns(["n", "file_name", "label"]), source)
    assert len(converted(source.parent, out, {"kind": "image"})) == len(NAMES)
    named = {"kind": "image", "image_field": "file_name"}
    assert converted(source.parent, tmp_path / "named", named)[0]["key"] == "t.jsonl#1"
    source = source.rename(source.with_name("metadata.jsonl"))
    assert [each["n"] for each in converted(source, tmp_path / "alone", {"kind": "image"})] == [
        *range(12)
    ]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"a": [b"x"], "b": [b"x"]}, "hold the images: a, b; say which with image_field"),
        (
            {"path": ["x"], "file_name": ["x"]},
            "several fields may hold the images: path, file_name",
        ),
        ({"url": ["x"], "n": [1]}, r"no field holds images \(there are url, n\)"),
    ],
)
def test_unclear_columns_are_refused_and_named(columns, said, tmp_path, out):
    with pytest.raises(InputError, match=said):
        converted(parquet_of(tmp_path, columns), out, {"kind": "image"})


@pytest.mark.parametrize(
    ("recipe", "error", "said"),
    [
        ({"kind": "image", "image_field": "picture"}, InputError, "have no field picture"),
        ({"kind": "image", "image_field": "n"}, InputError, "the field n is int64"),
        ({"kind": "table", "image_field": "photo"}, UsageError, "is for kind='image'"),
        ({"kind": "image", "image_field": "none"}, UsageError, "does not fit"),
    ],
)
def test_a_field_that_has_no_images_is_refused(recipe, error, said, folder, tmp_path):
    source = source_of(folder, tmp_path / "in", "t.parquet", "struct")
    with pytest.raises(error, match=said):
        converted(source, tmp_path / "out", recipe)


def test_bad_images_are_rejected_one_by_one(tmp_path, out, cli):
    photos = [picture(0), b"no image", None, picture(1)[:-90], picture(2)]
    source = parquet_of(tmp_path, {"photo": pa.array(photos, pa.binary())})
    ds = converted(source, out, SMALL, max_rejects="100%")
    assert [sample["key"] for sample in ds] == ["t.parquet#1", "t.parquet#5"]
    rejects = {reject.key: (reject.stage, reject.error) for reject in rejects_of(out)}
    assert set(rejects) == {"t.parquet#2", "t.parquet#3", "t.parquet#4"}
    assert rejects["t.parquet#2"][0] == "decode"
    assert rejects["t.parquet#3"] == ("read", "no-image")
    assert is_sound(cli, out)


def test_a_table_reads_no_file_outside_of_its_source(folder, tmp_path, out):
    """A table from elsewhere may name any file of this machine."""
    deep = Path(shutil.copytree(folder, tmp_path / "in" / "deep"))
    (tmp_path / "in2").mkdir()
    for path in (tmp_path / "secret.jpg", tmp_path / "in2" / "x.jpg"):
        path.write_bytes(picture(3))
    with open(deep / "huge.jpg", "wb") as huge:
        huge.truncate(RECORD_BYTES + 1)
    paths = {
        "p01.jpg": None,
        "./../deep/p02.jpg": None,
        str(deep / "p03.jpg"): None,
        "../../secret.jpg": "outside",
        str(tmp_path / "secret.jpg"): "outside",
        "../../in2/x.jpg": "outside",  # the name of the source is only its beginning
        "file:///etc/passwd": "not-a-path",
        "https://example.org/1.jpg": "not-a-path",
        "a\0b": "not-a-path",
        "huge.jpg": "too-large",
        "missing.jpg": "vanished",
        "p01.jpg/x": "vanished",
        ".": "unreadable",
        "": "no-image",
    }
    source = parquet_of(deep, {"path": list(paths)})
    recipe = {"kind": "image", "image_field": "path"}
    convert(tmp_path / "in", out, recipe=recipe, max_rejects="100%")
    rejects = {reject.key: reject.error for reject in rejects_of(out)}
    found = [rejects.get(f"deep/t.parquet#{number}") for number in range(1, len(paths) + 1)]
    assert found == list(paths.values())
    # A single file is a source of its own, and its folder the place that it may read from.
    assert len(converted(source, tmp_path / "one", recipe, max_rejects="100%")) == 3


def test_a_source_that_goes_away_stops_the_conversion(folder, tmp_path, out, monkeypatch):
    """It is no reject for each record."""
    source, read = source_of(folder, tmp_path / "in", "t.parquet", "path"), inputs.read_file

    def gone(path: str, size: int) -> Any:
        if path.endswith("p07.jpg") and out.exists():
            (tmp_path / "in").rename(tmp_path / "away")
        return read(path, size)

    monkeypatch.setattr(inputs, "read_file", gone)
    with pytest.raises(SourceGoneError, match="has gone away"):
        converted(source, out, {**SMALL, "image_field": "photo"})


def test_other_columns_keep_their_values(tmp_path, out):
    """They pass through Python on their way: no time loses its nanoseconds."""
    columns = {
        "time": pa.array([1_234_567_891, None], pa.timestamp("ns", "UTC")),
        "took": pa.array([7, 8], pa.duration("ns")),
        "clock": pa.array([86_399_999_999_999, 1], pa.time64("ns")),
        "day": pa.array([18_000, None], pa.date32()),
        "small": pa.array([0.1, None], pa.float32()),
        "half": pa.array(np.array([0.5, 2], np.float16)),
        "big": pa.array([2**64 - 1, 0], pa.uint64()),
        "raw": pa.array([b"\xff\x00", None], pa.large_binary()),
        "words": pa.array([["a", None], []], pa.large_list(pa.large_string())),
        "box": pa.array([{"x": 1, "y": [1.5]}, None]),
        "name": pa.array(["ä", None]),
    }
    convert(parquet_of(tmp_path, {"image": [picture(0), picture(1)], **columns}), out)
    made = pa.ipc.open_file(shard_in(out, "train-00000")).read_all()
    for name, column in columns.items():
        assert made[name].combine_chunks().cast(column.type) == column, name
    assert made["time"].type == columns["time"].type


def many(folder: Path) -> Path:
    """A table with two columns of images and one of audio, which has the same type."""
    columns = {
        "image": [{"bytes": picture(n), "path": f"{n}.jpg"} for n in range(4)],
        "mask": [{"bytes": picture(n, "png"), "path": None} for n in range(4)],
        "audio": [{"bytes": b"RIFF", "path": "x.wav"}] * 4,
    }
    encoded = {name: pa.array(values, ENCODED_IMAGE) for name, values in columns.items()}
    return parquet_of(folder, {**encoded, "n": range(4)})


@pytest.mark.parametrize("kind", ["table", "auto"])
def test_a_table_keeps_several_images_that_decode(kind, tmp_path, out, cli):
    result = convert(many(tmp_path), out, recipe={"kind": kind})
    assert "image, mask: columns of images" in str(result.notices)
    ds = shardctl.open(out)
    assert ds.manifest.fields["image"] == {"role": "image", "store": "source", "shape": None}
    for name, kind in (("image", "jpeg"), ("mask", "png")):
        assert np.array_equal(ds[2][name], Image.open(io.BytesIO(picture(2, kind))))
    assert ds[1]["audio"] == b"RIFF"
    assert stored(out, "image")[3] == {"bytes": picture(3), "path": "3.jpg"}
    assert is_sound(cli, out)


def list_of_images(folder: Path, *lists: list[bytes | None] | None) -> Path:
    images = [
        None if each is None else [{"bytes": data, "path": "a.jpg"} for data in each]
        for each in lists
    ]
    values = pa.array(images, pa.list_(ENCODED_IMAGE))
    return parquet_of(folder, {"images": values, "audio_clips": values})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inside datasets and what it imports
def test_lists_of_images_keep_their_type_for_hugging_face(tmp_path, out):
    import datasets

    data = picture(0)
    convert(list_of_images(tmp_path, [data, data], [], None, [data]), out)
    (shard,) = shards_in(out)
    read = datasets.load_dataset(
        "arrow", data_files=[str(shard)], split="train", cache_dir=str(tmp_path / "cache")
    )
    sizes = [each and [image.size for image in each] for each in read["images"]]
    assert sizes == [[(40, 32)] * 2, [], None, [(40, 32)]]
    assert "Image" not in str(read.features["audio_clips"])


def test_images_in_lists_are_decoded_by_deep_verification(tmp_path, out):
    good = picture(0)
    lists = [good], [good, b"no image"], [None], None, [good[: len(good) // 2]]
    convert(list_of_images(tmp_path, *lists), out)
    assert shardctl.verify(out, "full").ok
    findings = shardctl.verify(out, "deep").findings
    assert [(each.kind, each.row, each.message.split()[2]) for each in findings] == [
        ("does-not-decode", 1, "images[1]"),
        ("does-not-decode", 4, "images[0]"),
    ]


def test_the_recipe_works_on_one_image_and_keeps_the_others(tmp_path, out, cli):
    source = many(tmp_path)
    with pytest.raises(UsageError, match=r"not mask: it is a mask by its name, .* unmoved mask"):
        convert(source, out, recipe=SMALL)
    ds = converted(source, out, {**SMALL, "unmoved": "mask"})
    assert ds[1]["image"].shape == (16, 16, 3)
    assert ds[1]["mask"].shape == (32, 41, 3)
    assert is_sound(cli, out)
    parquet_of(tmp_path, parquet.read_table(source).drop_columns(["image"]))
    ds = converted(source, tmp_path / "none", {"kind": "table", "image_field": "none"})
    assert ds[0]["mask"] == picture(0, "png")


def add_mean(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "mean": float(sample["image"].mean()), "wide": len(sample["mask"]["bytes"])}


def test_own_functions_and_variants_get_the_images_of_tables(tmp_path, out):
    steps = [
        {"name": "random_resized_crop", "size": 16},
        {"name": "custom", "target": "test_image_tables:add_mean"},
    ]
    recipe = {"kind": "image", "store": "raw", "variants": 2, "unmoved": ["mask"]}
    ds = converted(many(tmp_path), out, {**recipe, "transform": steps})
    assert len(ds) == 8
    assert ds[5]["mean"] == pytest.approx(float(np.asarray(ds[5]["image"]).mean()))
    assert ds[5]["wide"] == len(picture(2, "png"))
    assert ds[5]["mask"].shape == (32, 42, 3)


def named(folder: Path, tmp_path: Path) -> Path:
    """A table of paths, some of which are no images or not there."""
    source = source_of(folder, tmp_path / "in", "t.parquet", "path")
    source.with_name("p03.jpg").write_bytes(b"no image")
    source.with_name("p08.jpg").unlink()
    return source


@pytest.mark.parametrize("form", ["path", "struct"])
def test_a_damaged_shard_is_made_again(form, folder, tmp_path, out):
    source = source_of(folder, tmp_path / "in", "t.parquet", form)
    converted(source, out, {**SMALL, "image_field": "photo"}, shuffle=1, samples_per_shard=4)
    before = content_of(out)
    flip(shard_in(out, "train-00001"))
    assert repair(out).status == "repaired"
    assert content_of(out) == before


@pytest.mark.parametrize("change", ["other", "gone"])
def test_repair_does_not_take_other_images(change, folder, tmp_path, out):
    """The digest of a unit covers the files that its records name."""
    source = named(folder, tmp_path)
    converted(source, out, {**SMALL, "image_field": "photo"})
    photo = source.with_name("p05.jpg")
    photo.write_bytes(picture(77))
    if change == "gone":
        photo.unlink()
    flip(shard_in(out, "train-00000"))
    result = repair(out)
    assert result.status != "repaired"
    said = "p05.jpg is not there" if change == "gone" else "its source has changed"
    assert said in str(result.lost)


def test_a_large_row_group_is_read_in_parts(tmp_path):
    """Batches are cut by bytes: photos of a few MB are not thousands at a time."""
    found = pa.table({"image": [os.urandom(1 << 20) for _ in range(24)]})
    path, form = str(parquet_of(tmp_path, found)), Numbered(RowGroups)
    (cut,) = form.join([form.scan(path, 0, 0, Reading())], 0) or []
    unit = Unit(cut.offset, cut.size, 0, 1, 24)
    parts = list(form.read(path, unit, Reading(), found.schema, None, xxhash.xxh3_64()))
    assert sum(part.batch.num_rows for part in parts) == 24
    assert max(part.batch.nbytes for part in parts) < 9 << 20


def test_repair_reads_the_records_of_a_table_of_paths_one_by_one_where_memory_ran_out(
    folder, tmp_path, out, monkeypatch
):
    """The digest of a unit covers its images, which are not read when the digest of its records
    alone is made."""
    converted(named(folder, tmp_path), out, {**SMALL, "image_field": "photo"})
    before = content_of(out)
    flip(shard_in(out, "train-00000"))
    reads = []

    def out_of_memory_at_first(*arguments: Any) -> Any:
        reads.append(arguments)
        if len(reads) == 1:
            raise MemoryError
        return read_unit(*arguments)

    monkeypatch.setattr(builder, "read_unit", out_of_memory_at_first)
    assert repair(out).status == "repaired"
    assert len(reads) >= 1 + 1 + 5, "all, the digest, and each of five"
    assert content_of(out) == before


def test_a_file_whose_one_record_does_not_fit_a_schema_is_one_reject(folder, tmp_path, out, cli):
    source = Path(shutil.copytree(folder, tmp_path / "in"))
    for name, number in (("a", "1"), ("b", '"word"')):
        (source / f"{name}.jsonl").write_text(f'{{"image": "{NAMES[0]}", "n": {number}}}\n')
    recipe = {"kind": "image", "schema": "image:string,n:int64"}
    convert([source / "a.jsonl", source / "b.jsonl"], out, recipe)
    (reject,) = rejects_of(out)
    assert (reject.key, reject.error) == ("b.jsonl#1", "other-type")
    assert is_sound(cli, out)
    before = content_of(out)
    flip(shard_in(out, "train-00000"))
    assert repair(out).status == "repaired"
    assert content_of(out) == before
