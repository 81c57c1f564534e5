"""JPEG in datasets: what is recorded of it, and that pixels are right with a record, without one
and with a wrong one."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import simplejpeg
from conftest import examples
from forged_datasets import read_table, sign, write_table
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import convert
from lossless import lossless_jpeg
from pictures import scene_pixels
from PIL import Image

import shardctl
from shardctl.errors import DatasetError
from shardctl.format.counts import JpegRecord
from shardctl.format.tables import JPEG_KEY, ShardTable
from shardctl.images.codecs import image, jpeg
from shardctl.images.codecs.image import ImageEncoding
from shardctl.images.codecs.jpeg import jpeg_facts
from shardctl.system.folders import LocalFolder

SIZE = (40, 32)
"""Width and height of all images."""

PICTURE = Image.fromarray(scene_pixels(*SIZE))


def saved(picture: Image.Image = PICTURE, form: str = "JPEG", **options: Any) -> bytes:
    target = io.BytesIO()
    picture.save(target, form, **options)
    return target.getvalue()


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down: of the same size
    return saved(exif=exif)


def without_last_scan() -> bytes:
    whole = saved(progressive=True, quality=95)
    return whole[: whole.rindex(b"\xff\xda")] + b"\xff\xd9"


ODD: dict[str, Callable[[], bytes]] = {
    "plain": saved,
    "colours in full size": lambda: saved(subsampling=0),
    "colours as RGB": lambda: saved(keep_rgb=True),
    "grey": lambda: saved(PICTURE.convert("L")),
    "CMYK": lambda: saved(PICTURE.convert("CMYK")),
    "turned by EXIF": turned,
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
    record = change(ShardTable(LocalFolder(out)).read_jpegs())
    table = read_table(out / "shards.arrow")
    metadata = {key: value for key, value in table.schema.metadata.items() if key != JPEG_KEY}
    if record is not None:
        metadata[JPEG_KEY] = json.dumps(record.to_json()).encode()
    write_table(out / "shards.arrow", table.replace_schema_metadata(metadata))
    sign(out, jpeg=None if record is None else record.counts())


def all_plain(record: JpegRecord) -> JpegRecord:
    return JpegRecord(
        np.ones_like(record.plain), record.images, record.progressive, record.full_colour
    )


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
    record = ShardTable(LocalFolder(kept)).read_jpegs()
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


@pytest.mark.parametrize(
    "options", [{}, {"flip": 1.0}, {"crop": 8}, {"channels_first": True}], ids=str
)
def test_images_of_several_sizes_have_the_pixels_of_the_slow_way(tmp_path, options):
    (tmp_path / "in").mkdir()
    for number, (width, height) in enumerate(((8, 8), (9, 30), (64, 50), (40, 17), (10, 10))):
        (tmp_path / "in" / f"{number}.jpg").write_bytes(
            saved(Image.fromarray(scene_pixels(width, height)), progressive=number == 3)
        )
    for store in ("source", "jpeg:95"):
        out = tmp_path / store
        convert(tmp_path / "in", out, {"store": store}, labels="none")
        whole = [pixels[:, ::-1] if "flip" in options else pixels for pixels in slowly(out)]
        whole = [
            pixels.transpose(2, 0, 1) if "channels_first" in options else pixels for pixels in whole
        ]
        if "crop" in options:
            places = [
                (round((pixels.shape[0] - 8) / 2), round((pixels.shape[1] - 8) / 2))
                for pixels in whole
            ]
            whole = [
                pixels[top : top + 8, left : left + 8]
                for pixels, (top, left) in zip(whole, places, strict=True)
            ]
        assert_same(loaded(out, **options), whole)


@pytest.mark.parametrize("options", [{}, {"crop": 20}], ids=str)
def test_nothing_is_asked_of_images_that_are_known_to_be_plain(tmp_path, options, monkeypatch):
    (tmp_path / "in").mkdir()
    for quality in (50, 90):
        (tmp_path / "in" / f"{quality}.jpg").write_bytes(saved(quality=quality))
    stores = ("source", "jpeg:90")
    for store in stores:
        convert(tmp_path / "in", tmp_path / store, {"store": store}, labels="none")
    before = [loaded(tmp_path / store, **options) for store in stores]

    def asked(*_: Any) -> None:
        raise AssertionError("a header was asked for")

    monkeypatch.setattr(simplejpeg, "decode_jpeg_header", asked)
    monkeypatch.setattr(jpeg, "jpeg_header", asked)
    monkeypatch.setattr(image, "decode", asked)
    for store, pixels in zip(stores, before, strict=True):
        assert_same(loaded(tmp_path / store, **options), pixels)


REFUSING = """
import simplejpeg
from shardctl.images.codecs import image, jpeg

def asked(*_):
    raise AssertionError("a header was asked for")

simplejpeg.decode_jpeg_header = jpeg.jpeg_header = image.decode = asked
"""
"""Run at the start of worker processes, which have the path of the process that starts them."""


def test_nothing_is_asked_of_them_in_worker_processes_either(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    for quality in (50, 90):
        (tmp_path / "in" / f"{quality}.jpg").write_bytes(saved(quality=quality))
    kept, older = tmp_path / "kept", tmp_path / "older"
    convert(tmp_path / "in", kept, {"store": "source"}, labels="none")
    with_record(Path(shutil.copytree(kept, older)), lambda _: None)
    (tmp_path / "sitecustomize.py").write_text(REFUSING)
    monkeypatch.syspath_prepend(tmp_path)
    assert_same(loaded(kept, crop=20, processes=1), loaded(kept, crop=20))
    with pytest.raises(DatasetError, match="a header was asked for"):
        loaded(older, crop=20, processes=1)


def test_a_record_that_lies_is_found_and_does_no_more_harm_than_other_pixels(kept, tmp_path):
    out = Path(shutil.copytree(kept, tmp_path / "out"))
    with_record(out, all_plain)
    assert shardctl.verify(out).findings == (), "the checksums fit"
    named = {key for kind, key in findings(out, "deep") if kind == "not-plain"}
    assert {Path(str(key)).stem for key in named} == set(NOT_PLAIN)
    assert [pixels.shape for pixels in loaded(out)] == [(SIZE[1], SIZE[0], 3)] * len(ODD)


def test_images_of_another_size_than_is_recorded_are_refused(kept, tmp_path):
    """numpy would repeat the one row."""
    out = Path(shutil.copytree(kept, tmp_path / "out"))
    for shape in ([1, 40, 3], [32, 41, 3]):
        sign(out, fields={"image": {"role": "image", "store": "source", "shape": shape}})
        for options in ({}, {"dtype": {"image": "int16"}}):
            with pytest.raises(DatasetError, match=r"row 0, .*: image: it is 40x32"):
                loaded(out, **options)


def test_a_role_that_lies_is_found(kept, tmp_path):
    out = Path(shutil.copytree(kept, tmp_path / "out"))
    (shard,) = out.glob("train-*.arrow")
    table = read_table(shard)
    info = json.loads(table.schema.metadata[b"shardctl"])
    info["fields"]["image"]["store"] = "jpeg:90"
    shardctl_says = {**table.schema.metadata, b"shardctl": json.dumps(info).encode()}
    rewrite_with_metadata(shard, shardctl_says)
    sign(out, fields=info["fields"])
    named = {Path(str(key)).stem for kind, key in findings(out, "deep") if kind == "not-plain"}
    assert named == set(NOT_PLAIN)


def rewrite_with_metadata(shard: Path, metadata: dict[bytes, bytes]) -> None:
    with pa.OSFile(str(shard)) as file:
        reader = pa.ipc.open_file(file)
        blocks = [
            reader.get_batch_with_custom_metadata(number)
            for number in range(reader.num_record_batches)
        ]
    with pa.ipc.new_file(shard, blocks[0][0].schema.with_metadata(metadata)) as writer:
        for block, checksum in blocks:
            writer.write_batch(block.replace_schema_metadata(metadata), custom_metadata=checksum)


DAMAGE: list[Callable[[dict[str, Any]], object]] = [
    lambda record: record.update(plain=record["plain"].swapcase()),
    lambda record: record.update(plain=""),
    lambda record: record.update(plain=7),
    lambda record: record.update(xxh3="0" * 16),
    lambda record: record.update(images=11),
    lambda record: record.update(progressive=-1),
    lambda record: record.clear(),
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_is_found_and_not_used(kept, tmp_path, damage):
    out = Path(shutil.copytree(kept, tmp_path / "out"))
    table = read_table(out / "shards.arrow")
    record = json.loads(table.schema.metadata[JPEG_KEY])
    damage(record)
    metadata = {**table.schema.metadata, JPEG_KEY: json.dumps(record).encode()}
    write_table(out / "shards.arrow", table.replace_schema_metadata(metadata))
    assert {("wrong-checksum", None), ("jpeg-differs", None)} & findings(out, "full") or {
        kind for kind, _ in findings(out, "quick")
    } & {"wrong-size", "jpeg-differs"}
    assert_same(loaded(out), slowly(kept))
    sign(out)
    assert "jpeg-differs" in {kind for kind, _ in findings(out, "quick")}


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


@pytest.mark.parametrize("shuffle", [None, 3])
def test_the_record_follows_the_order_of_the_rows(records_of_images, tmp_path, shuffle):
    options = {
        "split": "train=0.7,val=0.3",
        "samples_per_shard": 7,
        "labels": "none",
        "shuffle": shuffle,
    }
    recipe = {"kind": "image"}
    for workers in (0, 2):
        shardctl.convert(
            records_of_images, tmp_path / str(workers), recipe, workers=workers, **options
        )
    out = tmp_path / "0"
    assert (out / "SHA256SUMS").read_bytes() == (tmp_path / "2" / "SHA256SUMS").read_bytes()
    ds = shardctl.open(out)
    stored = ds.take(range(len(ds)), decode=False)["image"]
    facts = [jpeg_facts(data) for data in stored]
    record = ShardTable(LocalFolder(out)).read_jpegs()
    assert record.plain.tolist() == [each is not None and each.plain for each in facts]
    assert record.counts() == {"images": 45, "progressive": 10, "full_colour": 10}
    for split in ("train", "val"):
        part = shardctl.open(out, split=split)
        slow = [image.decode(data) for data in part.take(range(len(part)), decode=False)["image"]]
        assert_same(list(part.take(range(len(part)))["image"]), slow)
    assert shardctl.verify(out, "deep").findings == ()


@pytest.mark.thorough(after=2)
@pytest.mark.parametrize("older", [False, True], ids=["with a record", "without"])
@pytest.mark.parametrize("lost", ["shards.arrow", "manifest.json", "train-00001.arrow"])
def test_repair_gives_back_the_record_that_there_was(odd_images, out, lost, older):
    convert(odd_images, out, labels="none", samples_per_shard=3)
    if older:
        with_record(out, lambda _: None)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    counts = shardctl.open(out).manifest.jpeg
    (out / lost).unlink()
    result = shardctl.repair(out, [odd_images], workers=0)
    assert result.ok, result
    assert all(
        (out / name).read_bytes() == data
        for name, data in before.items()
        if name != "manifest.json"
    )
    assert shardctl.open(out).manifest.jpeg == counts
    assert shardctl.verify(out, "deep").findings == ()


def test_what_images_cost_is_said(odd_images, tmp_path, out, cli):
    result = cli("convert", odd_images, out, "--labels", "none", "--workers", "0")
    progressive = (
        "2 of 10 images are progressive JPEG: --store jpeg:90 would make them 3.3 times "
        "as fast to decode"
    )
    assert progressive in result.err
    assert (
        "2 of 10 images are JPEG with colors in full size (4:4:4): --store jpeg:90 would make them "
        "1.3 times" in result.err
    )
    counts = {"images": 9, "progressive": 2, "full_colour": 2}
    assert (
        cli("convert", odd_images, out, "--labels", "none", "--workers", "0", "--json").json["jpeg"]
        == counts
    )
    assert cli("inspect", out, "--json").json["jpeg"] == counts
    assert progressive in cli("inspect", out).out
    cheap = cli(
        "convert",
        odd_images,
        tmp_path / "cheap",
        *"--labels none --workers 0 --store jpeg:100 --json".split(),
    )
    assert cheap.json["jpeg"] is None
    assert cheap.json["notices"] == []


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
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jpg").write_bytes(source)
    convert(tmp_path / "in", out, {"store": store}, labels="none")
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
    for place in draw.draw(
        st.lists(st.integers(2, len(data) - 1), max_size=3), label="changed bytes"
    ):
        data[place] = draw.draw(st.integers(0, 255))
    whole = bytes(
        data[: draw.draw(st.sampled_from([len(data), len(data) * 2 // 3]), label="length")]
    )
    expected = by_pillow(whole, least)
    try:
        opened = image.open_image(whole, pixels_only=draw.draw(st.booleans()))
        found = (
            None
            if opened.format != "JPEG" or (opened.jpeg and opened.jpeg.is_lossless)
            else opened.load(least)
        )
    except Exception:  # noqa: BLE001 - whatever it is, Pillow must raise too
        assert expected is None
        return
    if found is not None:
        assert expected is not None
        assert (found.mode, found.size, found.tobytes()) == (
            expected.mode,
            expected.size,
            expected.tobytes(),
        )
