"""Filters of images: each keeps what is within its limits, and names value and limit of what is
not."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from dataset_facts import dropped, keys, rejects_of, sums
from dataset_files import shards_in, tables_in
from image_files import saved
from in_this_process import convert
from pictures import encoded, soft_shapes
from PIL import Image, ImageFilter

import shardctl
from shardctl.errors import Rejection, UsageError
from shardctl.images.codecs.image import Opened, open_image, upright
from shardctl.images.codecs.measures import blur_score, phash, taken_at, uniformity
from shardctl.transforms.base import judge, settings_of
from shardctl.transforms.table import parse_step

DATE_TIME, EXIF_BLOCK, DATE_TIME_ORIGINAL, ORIENTATION = 0x0132, 0x8769, 0x9003, 0x0112


def opened(picture: Image.Image, form: str = "PNG", **options: Any) -> Opened:
    return open_image(encoded(picture, form, **options))


def dated(original: Any = None, changed: Any = None, orientation: int = 1) -> Image.Exif:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    if changed is not None:
        exif[DATE_TIME] = changed
    if original is not None:
        exif.get_ifd(EXIF_BLOCK)[DATE_TIME_ORIGINAL] = original
    return exif


def noise(size: tuple[int, int] = (300, 280)) -> Image.Image:
    return Image.fromarray(
        np.random.default_rng(5).integers(0, 256, (size[1], size[0], 3), np.uint8)
    )


def flat(size: tuple[int, int], grey: int = 90) -> Image.Image:
    return Image.new("RGB", size, (grey, grey, grey))


def verdict(given: Opened, name: str, **settings: Any) -> str | None:
    """Return the message with which a filter rejects an image, None if it does not."""
    one = parse_step({"name": name, **settings})
    assert settings_of(parse_step(settings_of(one))) == settings_of(one)
    try:
        judge([one], given)
    except Rejection as rejection:
        return rejection.message
    return None


SIZES = [
    ("filter_size", {"min_width": 40}, None),
    ("filter_size", {"min_width": 41}, "width 40 is under 41"),
    ("filter_size", {"min_height": 31}, "height 30 is under 31"),
    ("filter_aspect", {"min": 1.3, "max": 1.34}, None),
    ("filter_aspect", {"max": 1.3}, "width / height 1.333 is over 1.3"),
    ("filter_aspect", {"min": 1.5}, "width / height 1.333 is under 1.5"),
    ("filter_area", {"min": 1201}, "area 1200 is under 1201"),
    ("filter_area", {"max": 1199}, "area 1200 is over 1199"),
]


@pytest.mark.parametrize(("name", "settings", "message"), SIZES)
def test_limits_of_size_and_shape_belong_to_what_is_kept(name, settings, message):
    assert verdict(opened(flat((40, 30))), name=name, **settings) == message
    turned = opened(flat((30, 40)), "JPEG", exif=dated(orientation=6))
    assert verdict(turned, name=name, **settings) == message


def test_a_blurred_image_is_told_from_a_sharp_one():
    sharp, blurred = noise(), noise().filter(ImageFilter.GaussianBlur(3))
    assert verdict(opened(sharp), name="filter_blur") is None
    assert " is under 100" in str(verdict(opened(blurred), name="filter_blur", min=100))
    assert verdict(opened(flat((2, 2))), name="filter_blur", min=1) == "sharpness 0 is under 1"


def test_sharpness_is_measured_at_one_size():
    """The same picture with more pixels, which show no more, is about as sharp; also where a JPEG
    is decoded at 1/2 or less."""
    picture = noise((80, 60)).resize((800, 600), Image.Resampling.BICUBIC)
    score = blur_score(picture)
    twice, four_times = (
        picture.resize((800 * by, 600 * by), Image.Resampling.BICUBIC) for by in (2, 4)
    )
    assert score == pytest.approx(blur_score(twice), rel=0.05)
    large = upright(opened(four_times, "JPEG", quality=95), (512, 512))
    assert large.size == (800, 600)
    assert blur_score(large) == pytest.approx(score, rel=0.1)


def test_the_laplacian_is_that_of_the_definition():
    grey = np.zeros((5, 5), np.uint8)
    grey[2, 2] = 90
    values = np.array([[0, 90, 0], [90, -360, 90], [0, 90, 0]])
    assert blur_score(Image.fromarray(grey)) == pytest.approx(values.var())


def test_an_image_of_one_brightness_is_told_from_others():
    half = np.zeros((40, 40), np.uint8)
    half[20:] = 24
    assert uniformity(Image.fromarray(half)) == 12.0
    given = opened(Image.fromarray(half))
    assert verdict(given, name="filter_uniform", min=12) is None
    assert "grey 12 is under 12.5" in str(verdict(given, name="filter_uniform", min=12.5))
    assert "is under 10" in str(verdict(opened(flat((50, 50))), name="filter_uniform"))


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_the_date_comes_from_exif(form):
    def given(*dates: Any) -> datetime | None:
        return taken_at(opened(soft_shapes(1), form, exif=dated(*dates)))

    assert given("2019:05:04 03:02:01", "2021:01:01 00:00:00") == datetime(2019, 5, 4, 3, 2, 1)
    assert given(None, "2021:01:01 00:00:00") == datetime(2021, 1, 1)
    assert given("0000:00:00 00:00:00", "2021:01:01 00:00:00") == datetime(2021, 1, 1)
    assert given("2019-05-04", "    :  :     :  :  ") is None
    assert given() is None
    assert taken_at(opened(soft_shapes(1), form)) is None


def test_a_tiff_has_its_date_among_its_own_tags():
    # Pillow writes no block of EXIF into it
    given = opened(soft_shapes(1), "TIFF", exif=dated(None, "2021:01:01 00:00:00"))
    assert taken_at(given) == datetime(2021, 1, 1)


def test_the_date_of_a_png_may_come_after_the_pixels():
    data = opened(soft_shapes(1), "PNG", exif=dated("2019:05:04 03:02:01")).data
    start = data.index(b"eXIf") - 4
    end = start + 12 + int.from_bytes(data[start : start + 4], "big")
    last = data.index(b"IEND") - 4
    moved = data[:start] + data[end:last] + data[start:end] + data[last:]
    assert taken_at(open_image(moved)) == datetime(2019, 5, 4, 3, 2, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"after": "2019-05-04"}, "None"),
        ({"after": "2019-05-04T03:02:02"}, "which is before 2019-05-04T03:02:02"),
        ({"after": "2019-05-05", "before": "2020-01-01"}, "which is before 2019-05-05"),
        ({"before": "2019-05-05"}, "None"),
        ({"before": "2019-05-04"}, "which is not before 2019-05-04"),
    ],
)
def test_the_first_day_is_kept_and_the_last_is_not(settings, message):
    given = opened(soft_shapes(1), "JPEG", exif=dated("2019:05:04 03:02:01"))
    assert str(verdict(given, name="filter_date", **settings)).endswith(message)


def test_images_without_a_date_are_kept_unless_they_are_to_be_rejected():
    given = opened(soft_shapes(1), "JPEG")
    assert verdict(given, name="filter_date", after="2000-01-01") is None
    assert verdict(given, name="filter_date", after="2000-01-01", undated="reject") is not None


@pytest.mark.parametrize(
    ("name", "settings", "word"),
    [
        ("filter_size", {}, "at least one"),
        ("filter_size", {"min_width": 0}, "min_width must be"),
        ("filter_size", {"min_width": 3, "max_width": 2}, "is under"),
        ("filter_aspect", {"min": 0}, "min must be"),
        ("filter_aspect", {"min": 2, "max": 1.5}, "is under"),
        ("filter_uniform", {"min": 128}, "127.5"),
        ("filter_date", {}, "after or before"),
        ("filter_date", {"after": "last year"}, "after must be"),
        ("filter_date", {"after": "2020-01-01", "before": "2020-01-01"}, "later than after"),
    ],
)
def test_limits_that_cannot_be_meant_are_refused(name, settings, word):
    with pytest.raises(UsageError, match=word):
        parse_step({"name": name, **settings})


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "in"
    saved(soft_shapes(0), root / "good.jpg", exif=dated("2019:05:04 03:02:01"))
    saved(soft_shapes(1, (20, 72)), root / "narrow.png")
    saved(flat((96, 72)), root / "blank.png")
    saved(soft_shapes(2), root / "old.jpg", exif=dated("1999:12:31 23:59:59"))
    (root / "broken.jpg").write_bytes(b"\xff\xd8\xff and no picture")
    return root


STEPS = """
[[transform]]
name = "filter_size"
min_width = 30

[[transform]]
name = "filter_uniform"

[[transform]]
name = "filter_date"
after = 2000-01-01
"""


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("workers", [0, 2])
def test_filtered_images_are_rejects_with_value_and_limit(source, tmp_path, out, workers, cli):
    (tmp_path / "recipe.toml").write_text(STEPS)
    given_ones = (
        "convert",
        source,
        out,
        "--recipe",
        tmp_path / "recipe.toml",
        "--workers",
        workers,
    )
    ran = cli(*given_ones, "--json")
    assert ran.code == 0
    assert {reject.key: (reject.stage, reject.error) for reject in rejects_of(out)} == {
        "blank.png": ("filter", "filter_uniform"),
        "broken.jpg": ("decode", "damaged"),
        "narrow.png": ("filter", "filter_size"),
        "old.jpg": ("filter", "filter_date"),
    }
    assert rejects_of(out)[2].message == "width 20 is under 30"
    assert ran.json["reject_reasons"]["filter: filter_date"] == 1
    assert shardctl.open(out).manifest.recipe["store"] == "source"
    assert keys(out) == ["good.jpg"]
    assert cli(*given_ones).out.startswith(f"{out} is up")
    assert cli("verify", out, "--level", "deep").code == 0


def test_filters_look_at_the_source_wherever_they_stand(source, tmp_path):
    steps = [{"name": "resize", "size": "10x10"}, {"name": "filter_size", "min_width": 30}]
    convert(source, tmp_path / "after", recipe={"store": "raw", "transform": steps})
    convert(source, tmp_path / "before", recipe={"store": "raw", "transform": steps[::-1]})
    for name in ("after", "before"):
        assert keys(tmp_path / name) == ["blank.png", "good.jpg", "old.jpg"]


def test_filtered_samples_come_back_by_repair(source, out):
    recipe = {
        "transform": [{"name": "filter_uniform"}, {"name": "filter_date", "after": "2000-01-01"}]
    }
    convert(source, out, recipe=recipe)
    before = sums(out)
    for path in [
        *shards_in(out, "train"),
        tables_in(out) / "plan.arrow",
        tables_in(out) / "rejects.jsonl",
    ]:
        path.unlink()
    shardctl.repair(out, workers=0)
    assert sums(out) == before


def test_images_in_tables_are_filtered(source, tmp_path):
    images = [
        {"bytes": (source / name).read_bytes(), "path": name} for name in ("good.jpg", "narrow.png")
    ]
    pq.write_table(pa.table({"image": images}), tmp_path / "table.parquet")
    recipe = {"transform": [{"name": "filter_size", "min_width": 30}]}
    result = convert(tmp_path / "table.parquet", tmp_path / "out", recipe=recipe)
    assert (result.samples, result.reasons) == (1, {"filter: filter_size": 1})


@pytest.mark.parametrize("mode", ["exact", "similar"])
def test_nothing_is_dropped_for_an_image_that_a_filter_rejects(tmp_path, mode):
    """The small image comes first, and would be kept: then the large one would be lost with it."""
    root = tmp_path / "in"
    for name in ("a/small.png", "a/small_too.png"):
        saved(soft_shapes(0).resize((32, 24)), root / name)
    for name in ("b/large.png", "c/large_too.png"):
        saved(soft_shapes(0), root / name)
    recipe = {"duplicates": mode, "transform": [{"name": "filter_size", "min_width": 64}]}
    for workers in (0, 2):
        out = tmp_path / f"out{workers}"
        result = shardctl.convert(root, out, recipe=recipe, workers=workers)
        assert result.reasons == {"filter: filter_size": 2, "plan: duplicate": 1}
        assert list(dropped(out)) == ["c/large_too.png"]
        assert keys(out) == ["b/large.png"]


def test_a_symmetric_picture_has_the_same_hash_as_its_mirror_image():
    """Frequencies that are 0 by symmetry are exactly 0: with rounding errors their bits would be
    drawn by the machine."""
    half = np.asarray(soft_shapes(7, (16, 32)).convert("L"))
    picture = Image.fromarray(np.concatenate([half, half[:, ::-1]], axis=1))
    assert phash(picture) == phash(picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    assert phash(Image.new("RGB", (64, 64), "white")) is None
