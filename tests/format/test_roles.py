"""Fields by role: several images and masks in a sample, several labels, and roles that are not what
they should be."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from dataset_files import shards_in
from forged_datasets import write_manifest
from handmade import write_dataset
from PIL import Image as Pictures
from places import place_of

import shardctl
from shardctl.errors import DatasetError, Rejection, UsageError
from shardctl.format.layout import ENCODED_IMAGE, Layout, image_tensor
from shardctl.format.roles import Image, Label, Mask, Objects, Plain, Role, Roles
from shardctl.images.codecs import image as codec
from shardctl.inspection.content.statistics import statistics_of

HEIGHT, WIDTH = 20, 24
CLASSES, COLOURS = ("cat", "dog", "owl"), ("black", "white")
FIELDS = pa.schema(
    {
        "key": pa.string(),
        "image": ENCODED_IMAGE,
        "mask": ENCODED_IMAGE,
        "thumb": image_tensor((6, 8, 3)),
        "photo": ENCODED_IMAGE,
        "label": pa.int64(),
        "colour": pa.int64(),
    }
)
ROLES: dict[str, Role] = {
    "image": Image("png", (HEIGHT, WIDTH, 3)),
    "mask": Mask("png", (HEIGHT, WIDTH)),
    "thumb": Image("raw", (6, 8, 3)),
    "photo": Image("png"),
    "label": Label(CLASSES),
    "colour": Label(COLOURS),
}


def pixels_of(number: int, height: int = HEIGHT, width: int = WIDTH) -> Any:
    return np.random.default_rng(number).integers(0, 200, (height, width, 3)).astype(np.uint8)


def values_of(number: int) -> dict[str, Any]:
    """Return the pixels and labels of a sample: its mask is the red of its image, and its photo has
    a size of its own."""
    return {
        "image": pixels_of(number),
        "mask": pixels_of(number)[:, :, 0],
        "thumb": pixels_of(2000 + number, 6, 8),
        "photo": pixels_of(1000 + number, 10 + number, 12),
        "label": number % 3,
        "colour": number % 2,
    }


def png(pixels: Any) -> bytes:
    target = io.BytesIO()
    Pictures.fromarray(pixels).save(target, "PNG")
    return target.getvalue()


def palette_png(values: Any) -> bytes:
    """Encode numbers as the indices of a palette, as masks of PASCAL VOC are."""
    picture = Pictures.fromarray(values)
    picture.putpalette([(7 * number) % 256 for number in range(768)])
    target = io.BytesIO()
    picture.save(target, "PNG")
    return target.getvalue()


def sample(number: int) -> tuple[Any, ...]:
    key, (image, mask, thumb, photo, *labels) = f"k{number:02d}", values_of(number).values()
    name = f"{key}.png"
    return (key, (png(image), name), (palette_png(mask), name), thumb, (png(photo), name), *labels)


def samples(count: int = 20) -> list[tuple[Any, ...]]:
    return [sample(number) for number in range(count)]


def write(
    root: Path,
    rows: list[tuple[Any, ...]],
    compression: str = "none",
    roles: Any = ROLES,
    fields: Any = FIELDS,
) -> Path:
    write_dataset(root, fields, rows, 7, compression, sample_bytes=400_000, roles=roles)
    return root


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("several") / "out", samples())


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("options", [{}, {"cache": 1 << 20, "repeat": 2}])
def test_every_image_of_a_sample_is_decoded(tmp_path, compression, options):
    ds = shardctl.open(write(tmp_path / "out", samples(), compression))
    seen = 0
    for batch in ds.loader(5, shuffle=True, threads=2, **options):
        for place, key in enumerate(batch["key"]):
            for name, values in values_of(int(key[1:])).items():
                assert np.array_equal(batch[name][place], values), name
            seen += 1
        assert isinstance(batch["image"], np.ndarray)
        assert batch["mask"].shape == (5, HEIGHT, WIDTH)
        assert isinstance(batch["photo"], list)
    assert seen == 20 * options.get("repeat", 1)
    assert [each["mask"].shape for each in ds] == [(HEIGHT, WIDTH)] * 20
    assert np.array_equal(ds[3]["photo"], values_of(3)["photo"])
    stored = ds.take([4], decode=False)
    assert [*stored["mask"], *stored["photo"]] == [sample(4)[2][0], sample(4)[4][0]]


def test_image_and_mask_are_cut_and_mirrored_alike(several):
    ds = shardctl.open(several)
    options = {"crop": (9, 11), "crop_from": "random", "flip": True, "channels_first": True}
    batches = list(ds.loader(10, seed=3, columns=["image", "mask"], **options))
    for batch in batches:
        assert batch["image"].shape == (10, 3, 9, 11)
        assert np.array_equal(batch["image"][:, 0], batch["mask"])
    whole = ds.take(range(10), columns=["mask"])["mask"]
    assert not np.array_equal(batches[0]["mask"], whole[:, 5:14, 6:17])


@pytest.mark.parametrize("size", [(12, 10), (3, 5), (41, 31), (1, 1)])
def test_masks_are_resized_to_the_nearest_pixel_and_images_are_not(several, size):
    ds = shardctl.open(several)
    (batch,) = ds.loader(20, resize=size[::-1], columns=["image", "mask", "thumb", "photo"])
    for number, values in enumerate(map(values_of, range(20))):
        for name, how in (("mask", "NEAREST"), ("image", "BILINEAR")):
            pixels = Pictures.fromarray(values[name]).resize(size, Pictures.Resampling[how])
            assert np.array_equal(batch[name][number], np.asarray(pixels))
    assert batch["thumb"].shape == batch["photo"].shape == (20, *size[::-1], 3)


def test_options_are_checked_for_each_image(several):
    ds = shardctl.open(several)
    for options, said in (
        ({"normalize": {"mask": ([1, 2, 3], [1, 1, 1])}}, "mask takes .* of 1 channels"),
    ):
        with pytest.raises(UsageError, match=said):
            ds.loader(4, **options)
    given = {"mask": (10, 2), "image": ([1, 2, 3], [1, 1, 1])}
    (normal,) = ds.loader(20, normalize=given, columns=["image", "mask"])
    assert np.allclose(normal["mask"] * 2 + 10, normal["image"][..., 0] + 1)


def test_a_mask_is_read_as_numbers_or_refused():
    bits = np.array([[True, False], [False, True]])
    values = np.arange(6, dtype=np.uint8).reshape(2, 3)
    for encoded, numbers in (
        (png(bits), bits),
        (palette_png(values), values),
        (png(values), values),
    ):
        assert np.array_equal(codec.decode_mask(encoded), numbers)
    for encoded, said in ((png(pixels_of(1)), "mode RGB"), (palette_png(values)[:-30], "image")):
        with pytest.raises(Rejection, match=said):
            codec.decode_mask(encoded)


def shown(cli: Any, root: Path, *options: object) -> Any:
    """Return what inspect says of the first sample in JSON."""
    return cli("inspect", root, *(options or ("--head", 1)), "--json").json


@pytest.fixture
def broken(out: Path) -> Path:
    """A mask of its samples does not decode."""
    rows = [list(each) for each in samples(8)]
    rows[5][2] = (b"no image at all", "x.png")
    return write(out, [tuple(row) for row in rows])


def test_the_field_of_an_image_that_does_not_decode_is_named(broken):
    ds = shardctl.open(broken)
    with pytest.raises(DatasetError, match=r"key 'k05': mask: it does not decode"):
        ds.take([5])
    (batch,) = ds.loader(8, on_error="skip")
    assert batch["key"] == [f"k{number:02d}" for number in range(8) if number != 5]
    assert len(ds.take([5], columns=["image"])["image"]) == 1


def test_deep_verification_decodes_every_image_of_a_sample(broken):
    first, second = (shardctl.verify(shard, "deep").findings for shard in shards_in(broken))
    (finding,) = first
    assert (finding.kind, finding.row) == ("does-not-decode", 5)
    assert "the mask" in finding.message
    assert second == ()


def test_conditions_on_headers_of_each_image(several, cli):
    ds = shardctl.open(several)
    some = ds.filter("photo.height > 15 and photo.height < 18")
    assert [row["key"] for row in some] == ["k06", "k07"]
    whole = f"width == {WIDTH} and mask.height == {HEIGHT} and thumb.width == 8"
    assert (len(ds.filter(whole)), len(ds.filter("mask is None"))) == (20, 0)
    where = ("--where", "photo.height == 12 and width > 1", "--columns", "key")
    assert shown(cli, several, *where)["samples"] == [{"key": "k02"}]


def test_without_a_main_image_a_header_must_be_named(tmp_path):
    fields = pa.schema({"key": pa.string(), "left": ENCODED_IMAGE, "right": ENCODED_IMAGE})
    rows = [(key, (png(pixels_of(1)), "l"), (png(pixels_of(2, 5, 6)), "r")) for key in ("a", "b")]
    ds = shardctl.open(write(tmp_path / "out", rows, roles={}, fields=fields))
    with pytest.raises(UsageError, match=r"did you mean left.width or right"):
        ds.filter("width > 3")
    assert len(ds.filter("left.width == 24 and right.width == 6")) == 2
    assert ds[0]["right"].shape == (5, 6, 3)


def test_several_labels_have_their_own_names(several, out, cli):
    ds = shardctl.open(several)
    assert ds.classes == CLASSES
    assert ds.class_names == {"label": CLASSES, "colour": COLOURS}
    assert len(ds.filter("label == 'owl' and colour == 'white'")) == 3
    with pytest.raises(UsageError, match=r"no class 'whit'.*did you mean white"):
        ds.filter("colour == 'whit'")
    swapped = {**ROLES, "colour": Label(("white", "red")), "label": Label(("owl", "cat", "dog"))}
    mix = shardctl.mix([ds, shardctl.open(write(out, samples(), roles=swapped))], [1, 1])
    assert mix.classes == CLASSES
    pairs = [
        pair
        for batch in mix.loader(4, columns=["label", "colour"])
        for pair in zip(batch["label"].tolist(), batch["colour"].tolist(), strict=True)
    ]
    renamed = {((2, 0, 1)[n % 3], (1, 2)[n % 2]) for n in range(6)}
    assert set(pairs) == {(n % 3, n % 2) for n in range(6)} | renamed
    (head,) = shown(cli, several, "--head", 1, "--columns", "colour,label")["samples"]
    assert [*head] == ["colour", "colour_name", "label", "label_name"]
    assert [*head.values()] == [0, "black", 0, "cat"]


def test_labels_without_a_number_of_a_class_are_found_in_every_field(out):
    write(out, [(*each[:-1], 2 if number == 3 else 0) for number, each in enumerate(samples(5))])
    (finding,) = shardctl.verify(out).findings
    assert (finding.kind, finding.row) == ("no-such-class", 3)
    assert "its colour is 2" in finding.message


def test_all_images_are_drawn_saved_and_counted(several, tmp_path, cli):
    drawn = shown(cli, several, "--head", 3, "--images", tmp_path / "sheet.png")
    assert drawn["images"] == 12
    saved = shown(cli, several, "--head", 1, "--save", tmp_path / "saved")["files"]
    names = ["png", "mask.png", "thumb.png", "photo.png", "json"]
    assert [Path(path).name for path in saved] == [f"k00.{name}" for name in names]
    assert Path(saved[1]).read_bytes() == sample(0)[2][0]
    assert "photo" in cli("inspect", shards_in(several)[0]).out
    statistics = statistics_of(place_of(several))
    whats = {spread.what for spread in statistics.distributions}
    assert {"image width", "mask width", "photo height", "photo, bytes"} <= whats
    assert statistics.formats == {"PNG": 60}


def test_raw_masks_of_any_integer_type(tmp_path, cli):
    types = {
        "image": image_tensor((HEIGHT, WIDTH, 3)),
        "classes": image_tensor((HEIGHT, WIDTH)),
        "depth": pa.fixed_shape_tensor(pa.uint16(), [HEIGHT, WIDTH]),
    }
    rows = [
        (f"k{n}", image, image[:, :, 0], image[:, :, 0].astype(np.uint16) * 300)
        for n, image in enumerate(map(pixels_of, range(6)))
    ]
    masks = dict.fromkeys(("classes", "depth"), Mask("raw", (HEIGHT, WIDTH)))
    fields = pa.schema({"key": pa.string(), **types})
    root = write(tmp_path / "out", rows, roles=masks, fields=fields)
    for options in (
        {},
        {"crop": 8, "crop_from": "random", "flip": True},
        {"resize": (9, 7)},
    ):
        (batch,) = shardctl.open(root).loader(6, **options)
        assert batch["depth"].dtype == np.uint16
        assert np.array_equal(batch["depth"], batch["classes"].astype(np.uint16) * 300)
        assert batch["classes"].shape == batch["image"].shape[:3]
    saved = shown(cli, root, "--head", 1, "--save", tmp_path / "s")["files"]
    assert [Path(path).name for path in saved] == ["k0.png", "k0.classes.png", "k0.json"]
    assert np.array_equal(np.asarray(Pictures.open(saved[1])), rows[0][2])
    drawn = shown(cli, root, "--head", 2, "--images", tmp_path / "sheet.png")
    assert drawn["images"] == 6


def test_hugging_face_is_told_of_every_image_and_label():
    roles = {name: role for name, role in ROLES.items() if name != "thumb"}
    fields = pa.schema([FIELDS.field(name) for name in ("key", *roles)])
    found: Any = Layout("image", fields, Roles(roles)).huggingface_features()
    images = [name for name, feature in found.items() if feature["_type"] == "Image"]
    assert images == ["image", "mask", "photo"]
    assert found["colour"] == {"names": list(COLOURS), "_type": "ClassLabel"}
    assert Layout("image", FIELDS, Roles(ROLES)).huggingface_features() is None


def test_roles_come_back_from_json():
    objects = Objects(
        ("cat", "dog"), (1, 90), ("animal", "animal"), ("left", "right"), ((0, 1),), (1, 0)
    )
    more: dict[str, Role] = {
        "objects": objects,
        "marks": Objects(),
        "classes": Mask("png", None, ("sky",), 255, 16),
    }
    roles = Roles({**ROLES, "text": Plain("text"), "bare": Label(None), **more})
    assert Roles.from_json(json.loads(json.dumps(roles.to_json()))) == roles


@pytest.mark.parametrize(
    "said",
    [
        {"store": "raw", "shape": None},
        {"role": "image", "store": "raw"},
        {"role": "image", "store": "raw", "shape": [4, 4, 4]},
        {"role": "image", "store": "raw", "shape": [4, True, 3]},
        {"role": "mask", "store": "raw", "shape": [4, 4, 3]},
        {"role": "mask", "store": "png", "shape": None, "ignore": True},
        {"role": "mask", "store": "png", "shape": None, "bits": 12},
        {"role": "label", "names": "abc"},
        {"role": "objects"},
        {"role": "objects", "names": ["cat"], "ids": [1, 2]},
        {"role": "objects", "names": ["cat"], "keypoints": ["nose", "tail"], "flip": [0, 0]},
        {"role": "objects", "names": ["cat"], "keypoints": ["nose"], "skeleton": [[0, 1]]},
        {"role": "text", "names": None},
        {"role": "picture"},
    ],
)
def test_roles_from_a_file_are_checked(said):
    for record in ({"field": said}, []):
        with pytest.raises((ValueError, TypeError)):
            Roles.from_json(record)


def test_a_manifest_whose_roles_do_not_fit_is_refused(out):
    record = json.loads((write(out, [sample(0)]) / "manifest.json").read_text())
    raw = {"store": "raw", "shape": [6, 8]}
    for name, role, why in (
        ("gone", {"role": "text"}, "help format"),
        ("image", {"role": "picture"}, "help format"),
        ("key", {"role": "image", "store": "png", "shape": None}, "not those of the columns"),
        ("thumb", {"role": "mask", **raw}, "not those of the columns"),
        (
            "thumb",
            {"role": "image", "store": "raw", "shape": [9, 8, 3]},
            "not those of the columns",
        ),
    ):
        write_manifest(out, {**record, "fields": {name: role}})
        with pytest.raises(DatasetError, match=why):
            shardctl.open(out)[0]
