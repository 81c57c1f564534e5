"""JPEG in datasets: what is recorded of it, and that pixels are right with a record, without one
and with a wrong one."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import simplejpeg
from conftest import examples
from damage import file_of
from dataset_facts import sums
from dataset_files import content_of, shards_in, tables_in
from forged_datasets import read_table, sign, write_table
from hypothesis import given
from hypothesis import strategies as st
from image_files import saved as image_saved
from in_this_process import convert
from lossless import lossless_jpeg
from pictures import encoded, oriented, scene_pixels
from PIL import Image

import shardctl
from shardctl.errors import DatasetError
from shardctl.format.counts import JpegRecord
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.tables import JPEG_KEY, ShardTable
from shardctl.images.codecs import image, jpeg
from shardctl.images.codecs.image import ImageEncoding
from shardctl.images.codecs.jpeg import jpeg_facts

SIZE = (40, 32)
"""Width and height of all images."""

PICTURE = Image.fromarray(scene_pixels(*SIZE))


def saved(picture: Image.Image = PICTURE, form: str = "JPEG", **options: Any) -> bytes:
    return encoded(picture, form, **options)


def without_last_scan() -> bytes:
    whole = saved(progressive=True, quality=95)
    return whole[: whole.rindex(b"\xff\xda")] + b"\xff\xd9"


ODD: dict[str, Callable[[], bytes]] = {
    "plain": saved,
    "colours in full size": lambda: saved(subsampling=0),
    "colours as RGB": lambda: saved(keep_rgb=True),
    "grey": lambda: saved(PICTURE.convert("L")),
    "CMYK": lambda: saved(PICTURE.convert("CMYK")),
    "turned by EXIF": lambda: saved(exif=oriented(3)),  # upside down: of the same size
    "progressive": lambda: saved(progressive=True),
    "progressive without its last scan": without_last_scan,
    "lossless": lambda: lossless_jpeg(scene_pixels(*SIZE)),
    "PNG": lambda: saved(form="PNG"),
}
"""Images as they come, by what is odd about them."""

NOT_PLAIN = ("CMYK", "turned by EXIF", "progressive without its last scan", "PNG")


@pytest.fixture(scope="module")
def odd_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each of ODD."""
    folder = tmp_path_factory.mktemp("odd") / "in"
    folder.mkdir()
    for name, make in ODD.items():
        (folder / f"{name}.{'png' if name == 'PNG' else 'jpg'}").write_bytes(make())
    return folder


@pytest.fixture(scope="module")
def kept(odd_images: Path) -> Path:
    """A dataset of their original bytes, which tests only read."""
    out = odd_images.parent / "out"
    convert(odd_images, out, labels="none")
    return out


def with_record(out: Path, change: Callable[[JpegRecord], JpegRecord | None]) -> None:
    """Have a dataset record something else of its JPEG images, and make all checksums fit; None
    records nothing at all."""
    record = change(ShardTable(dataset_in(out)).read_jpegs())
    table = read_table(tables_in(out) / "shards.arrow")
    metadata = {key: value for key, value in table.schema.metadata.items() if key != JPEG_KEY}
    if record is not None:
        metadata[JPEG_KEY] = json.dumps(record.to_json()).encode()
    write_table(tables_in(out) / "shards.arrow", table.replace_schema_metadata(metadata))
    sign(out, jpeg=None if record is None else record.counts())


def loaded(out: Path, **options: Any) -> list[Any]:
    return [
        pixels
        for batch in shardctl.open(out).loader(4, columns=["image"], **options)
        for pixels in batch["image"]
    ]


def slowly(out: Path) -> list[Any]:
    """The pixels of every image, each decoded by itself from its bytes by the rules of
    docs/images.md."""
    ds = shardctl.open(out)
    return [image.decode(data) for data in ds.take(range(len(ds)), decode=False)["image"]]


def assert_same(some: list[Any], others: list[Any]) -> None:
    for one, other in zip(some, others, strict=True):
        np.testing.assert_array_equal(one, other)


def findings(out: Path, level: str) -> set[tuple[str, str | None]]:
    return {(finding.kind, finding.key) for finding in shardctl.verify(out, level).findings}


def test_what_is_recorded_of_images_is_what_they_are(kept):
    record = ShardTable(dataset_in(kept)).read_jpegs()
    keys = shardctl.open(kept).take(range(len(ODD)), columns=["key"])["key"]
    assert {
        Path(key).stem for key, plain in zip(keys, record.plain, strict=True) if not plain
    } == set(NOT_PLAIN)
    assert record.counts() == {"images": 9, "progressive": 2, "full_colour": 2}
    assert shardctl.open(kept).manifest.jpeg == record.counts()
    assert shardctl.verify(kept, "deep").findings == ()


OPTIONS: list[dict[str, Any]] = [
    {},
    {"mmap": False},
    {"preload": True},
    {"cache": 2 * SIZE[0] * SIZE[1] * 3},
    {"crop": (24, 30)},
    {"crop": 20, "crop_from": "random", "flip": 0.5, "seed": 5},
    {"channels_first": True},
    {"dtype": {"image": "float16"}, "normalize": {"image": (127.0, 60.0)}},
    {"resize": 20},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_pixels_are_those_of_the_slow_way(kept, tmp_path, options):
    older = Path(shutil.copytree(kept, tmp_path / "older"))
    with_record(older, lambda _: None)
    assert_same(loaded(kept, **options), loaded(older, **options))
    if set(options) <= {"mmap", "preload", "cache"}:
        assert_same(loaded(kept, **options), slowly(kept))


@pytest.mark.parametrize("store", ["source", "jpeg:95"])
def test_images_of_several_sizes_have_the_pixels_of_the_slow_way(tmp_path, out, store):
    for number, size in enumerate(((8, 8), (9, 30), (64, 50), (40, 17), (10, 10))):
        picture = Image.fromarray(scene_pixels(*size))
        image_saved(picture, tmp_path / "in" / f"{number}.jpg", progressive=number == 3)
    convert(tmp_path / "in", out, {"store": store}, labels="none")
    whole = slowly(out)
    assert_same(loaded(out), whole)
    assert_same(loaded(out, flip=1.0), [pixels[:, ::-1] for pixels in whole])
    assert [pixels.shape for pixels in loaded(out, crop=8)] == [(8, 8, 3)] * 5


@pytest.fixture
def plain_images(tmp_path: Path) -> Path:
    for quality in (50, 90):
        image_saved(PICTURE, tmp_path / "in" / f"{quality}.jpg", quality=quality)
    return tmp_path / "in"


@pytest.mark.parametrize("store", ["source", "jpeg:90"])
def test_nothing_is_asked_of_images_that_are_known_to_be_plain(
    plain_images, out, store, monkeypatch
):
    convert(plain_images, out, {"store": store}, labels="none")
    before = loaded(out), loaded(out, crop=20)

    def asked(*_: Any) -> None:
        raise AssertionError("a header was asked for")

    monkeypatch.setattr(simplejpeg, "decode_jpeg_header", asked)
    monkeypatch.setattr(jpeg, "jpeg_header", asked)
    monkeypatch.setattr(image, "decode", asked)
    assert_same(loaded(out), before[0])
    assert_same(loaded(out, crop=20), before[1])


REFUSING = """
import simplejpeg
from shardctl.images.codecs import image, jpeg

def asked(*_, **__):
    raise AssertionError("a header was asked for")

simplejpeg.decode_jpeg_header = jpeg.jpeg_header = image.decode = image.open_image = asked
"""
"""Run at the start of worker processes, which have the path of the process that starts them."""


def test_nothing_is_asked_of_them_in_worker_processes_either(plain_images, tmp_path, monkeypatch):
    kept, older = tmp_path / "kept", tmp_path / "older"
    convert(plain_images, kept, {"store": "source"}, labels="none")
    with_record(Path(shutil.copytree(kept, older)), lambda _: None)
    (tmp_path / "sitecustomize.py").write_text(REFUSING)
    monkeypatch.syspath_prepend(tmp_path)
    assert_same(loaded(kept, crop=20, processes=1), loaded(kept, crop=20))
    with pytest.raises(DatasetError, match="a header was asked for"):
        loaded(older, crop=20, processes=1)


@pytest.fixture
def copied(kept: Path, out: Path) -> Path:
    return Path(shutil.copytree(kept, out))


def test_a_record_that_lies_is_found_and_does_no_more_harm_than_other_pixels(copied):
    out = copied
    with_record(out, lambda record: replace(record, plain=np.ones_like(record.plain)))
    assert shardctl.verify(out).findings == (), "the checksums fit"
    named = {key for kind, key in findings(out, "deep") if kind == "not-plain"}
    assert {Path(str(key)).stem for key in named} == set(NOT_PLAIN)
    assert [pixels.shape for pixels in loaded(out)] == [(SIZE[1], SIZE[0], 3)] * len(ODD)


def test_images_of_another_size_than_is_recorded_are_refused(copied):
    """numpy would repeat the one row."""
    for shape in ([1, 40, 3], [32, 41, 3]):
        sign(copied, fields={"image": {"role": "image", "store": "source", "shape": shape}})
        for options in ({}, {"dtype": {"image": "int16"}}):
            with pytest.raises(DatasetError, match=r"row 0, .*: image: it is 40x32"):
                loaded(copied, **options)


def test_a_role_that_lies_is_found(copied):
    (shard,) = shards_in(copied)
    schema = read_table(shard).schema
    info = json.loads(schema.metadata[b"shardctl"])
    info["fields"]["image"]["store"] = "jpeg:90"
    metadata = {**schema.metadata, b"shardctl": json.dumps(info).encode()}
    with pa.OSFile(str(shard)) as file:
        reader = pa.ipc.open_file(file)
        numbers = range(reader.num_record_batches)
        blocks = [reader.get_batch_with_custom_metadata(number) for number in numbers]
    with pa.ipc.new_file(shard, schema.with_metadata(metadata)) as writer:
        for block, checksum in blocks:
            writer.write_batch(block.replace_schema_metadata(metadata), custom_metadata=checksum)
    sign(copied, fields=info["fields"])
    named = {Path(str(key)).stem for kind, key in findings(copied, "deep") if kind == "not-plain"}
    assert named == set(NOT_PLAIN)


DAMAGE: list[Callable[[dict[str, Any]], object]] = [
    lambda record: record.update(plain=record["plain"].swapcase()),
    lambda record: record.update(plain=7),
    lambda record: record.update(xxh3="0" * 16),
    lambda record: record.update(images=11),
    lambda record: record.clear(),
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_is_found_and_not_used(kept, copied, damage):
    table = read_table(tables_in(copied) / "shards.arrow")
    record = json.loads(table.schema.metadata[JPEG_KEY])
    damage(record)
    metadata = {**table.schema.metadata, JPEG_KEY: json.dumps(record).encode()}
    write_table(tables_in(copied) / "shards.arrow", table.replace_schema_metadata(metadata))
    kinds = {kind for level in ("quick", "full") for kind, _ in findings(copied, level)}
    assert kinds & {"wrong-size", "wrong-checksum", "jpeg-differs"}
    assert_same(loaded(copied), slowly(kept))
    sign(copied)
    assert "jpeg-differs" in {kind for kind, _ in findings(copied, "quick")}


@examples(30)
@given(
    st.lists(st.booleans(), max_size=70).map(lambda bits: np.array(bits, bool)),
    st.lists(st.integers(0, 9), min_size=3, max_size=3),
)
def test_a_record_comes_back_as_it_was_written(plain, counts):
    few = [min(count, len(plain)) for count in sorted(counts, reverse=True)]
    record = JpegRecord(plain, *few)
    back = JpegRecord.from_json(json.loads(json.dumps(record.to_json())), len(plain))
    np.testing.assert_array_equal(back.plain, plain)
    assert back.counts() == record.counts()
    for samples in (len(plain) + 8, max(0, len(plain) - 8)):
        if samples != len(plain):
            with pytest.raises(ValueError, match=r"counted|damaged|bits of images"):
                JpegRecord.from_json(record.to_json(), samples)


@examples(40)
@given(
    st.integers(1, 100),
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from(["", "exif", "xmp", "comment", "icc_profile"]),
)
def test_what_is_stored_as_jpeg_is_plain_and_cheap_to_decode(quality, width, height, info):
    picture = Image.fromarray(scene_pixels(width, height))
    picture.info = {info: b"Exif\0\0" + bytes(40)} if info else {}
    facts = jpeg_facts(ImageEncoding("jpeg", quality).encode(picture))
    assert facts is not None
    assert facts.plain
    assert not facts.progressive
    assert not facts.full_colour, "at a quality of 100 too"


@pytest.fixture(scope="module")
def records_of_images(odd_images: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with the same images, five times over."""
    path = tmp_path_factory.mktemp("table") / "images.parquet"
    images = [
        {"bytes": file.read_bytes(), "path": file.name} for file in sorted(odd_images.iterdir())
    ]
    pq.write_table(pa.table({"image": images * 5, "number": range(5 * len(images))}), path)
    return path


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("shuffle", [3, None])
def test_the_record_follows_the_order_of_the_rows(records_of_images, tmp_path, shuffle):
    options: Any = {"split": "train=0.7,val=0.3", "samples_per_shard": 7, "shuffle": shuffle}
    options |= {"labels": "none", "recipe": {"kind": "image"}}
    for workers in (0, 2):
        shardctl.convert(records_of_images, tmp_path / str(workers), workers=workers, **options)
    out = tmp_path / "0"
    assert sums(out) == sums(tmp_path / "2")
    ds = shardctl.open(out)
    stored = ds.take(range(len(ds)), decode=False)["image"]
    facts = [jpeg_facts(data) for data in stored]
    record = ShardTable(dataset_in(out)).read_jpegs()
    assert record.plain.tolist() == [each is not None and each.plain for each in facts]
    assert record.counts() == {"images": 45, "progressive": 10, "full_colour": 10}
    assert_same(list(ds.take(range(len(ds)))["image"]), slowly(out))
    assert shardctl.verify(out, "deep").findings == ()


@pytest.mark.thorough(after=2)
@pytest.mark.parametrize("older", [False, True], ids=["with a record", "without"])
@pytest.mark.parametrize("lost", ["shards.arrow", "manifest.json", "train-00001"])
def test_repair_gives_back_the_record_that_there_was(odd_images, out, lost, older):
    convert(odd_images, out, labels="none", samples_per_shard=3)
    if older:
        with_record(out, lambda _: None)
    before = content_of(out)
    counts = shardctl.open(out).manifest.jpeg
    file_of(out, lost).unlink()
    result = shardctl.repair(out, [odd_images], workers=0)
    assert result.ok, result
    assert content_of(out) == before
    assert shardctl.open(out).manifest.jpeg == counts
    assert shardctl.verify(out, "deep").findings == ()


def test_what_images_cost_is_said(odd_images, tmp_path, out, cli):
    given_ones = ("convert", odd_images, out, *"--labels none --workers 0".split())
    result = cli(*given_ones)
    progressive = "2 of 10 images are progressive JPEG: --store jpeg:90 would make them 3.3 times"
    assert progressive in result.err
    assert "2 of 10 images are JPEG with colors in full size" in result.err
    counts = {"images": 9, "progressive": 2, "full_colour": 2}
    assert cli(*given_ones, "--json").json["jpeg"] == counts
    assert cli("inspect", out, "--json").json["jpeg"] == counts
    assert progressive in cli("inspect", out).out
    cheap = convert(odd_images, tmp_path / "cheap", {"store": "jpeg:100"}, labels="none")
    assert (cheap.jpeg, cheap.notices) == (None, ())


SIDE_DATA: dict[str, dict[str, Any]] = {
    "colour profile": {"icc_profile": b"p" * 300},
    "comment": {"comment": b"a note"},
    "XMP": {"xmp": b"<x:xmpmeta/>"},
    "nothing": {},
}
"""What else may be in a JPEG that Pillow copies where it encodes the image again."""


@pytest.mark.parametrize("side", SIDE_DATA)
@pytest.mark.parametrize(
    ("store", "form", "options"), [("png", "PNG", {}), ("jpeg:90", "JPEG", {"quality": 90})]
)
def test_an_image_that_is_encoded_again_keeps_what_pillow_keeps(
    side, store, form, options, tmp_path, out
):
    source = saved(**SIDE_DATA[side])
    (tmp_path / "a.jpg").write_bytes(source)
    convert(tmp_path / "a.jpg", out, {"store": store}, labels="none")
    (batch,) = shardctl.open(out).loader(batch_size=1, decode=False)
    assert batch["image"][0] == saved(Image.open(io.BytesIO(source)), form, **options)


def by_pillow(data: bytes, least: tuple[int, int] | None) -> Image.Image | None:
    """Return what Pillow decodes of a JPEG by itself, at a smaller size where `least` allows it;
    None for a fault."""
    try:
        picture = Image.open(io.BytesIO(data), formats=("JPEG",))
        if least is not None:
            picture.draft(None, least)
        picture.load()
    except Exception:  # noqa: BLE001 - damaged data raises errors of all kinds
        return None
    return picture


@examples(200)
@given(
    st.sampled_from(sorted(ODD)), st.sampled_from([None, (1, 1), (7, 9), SIZE, (90, 90)]), st.data()
)
def test_pixels_are_those_that_pillow_decodes_of_damaged_data_too(name, least, draw):
    """Most JPEGs are decoded without Pillow's own look at the header."""
    data = bytearray(ODD[name]())
    for place in draw.draw(st.lists(st.integers(2, len(data) - 1), max_size=3)):
        data[place] = draw.draw(st.integers(0, 255))
    whole = bytes(data[: draw.draw(st.sampled_from([len(data), len(data) * 2 // 3]))])
    expected = by_pillow(whole, least)
    try:
        opened = image.open_image(whole, pixels_only=draw.draw(st.booleans()))
        if opened.format != "JPEG" or (opened.jpeg and opened.jpeg.is_lossless):
            return
        found = opened.load(least)
    except Exception:  # noqa: BLE001 - whatever it is, Pillow must raise too
        assert expected is None
        return
    assert expected is not None
    assert (found.mode, found.size) == (expected.mode, expected.size)
    assert found.tobytes() == expected.tobytes()
