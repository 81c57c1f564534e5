"""The steps of a recipe while a dataset is read: what a conversion writes as variants, epoch by epoch."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import examples
from handmade import write_dataset
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import convert
from pictures import png, scene_pixels
from PIL import Image

import shardctl
from shardctl.errors import DatasetError, UsageError
from shardctl.format.layout import ENCODED_IMAGE, image_tensor
from shardctl.format.roles import Mask
from shardctl.loader import dataset
from shardctl.transforms.base import ImageTransform
from shardctl.transforms.table import TRANSFORMS, parse_step

SIZES = ((90, 60), (61, 75), (200, 161))

TO_SIZE = ("letterbox", "crop", "random_resized_crop", "five_crop", "ten_crop")

SETTINGS: dict[str, list[dict[str, Any]]] = {
    **{name: [{"size": "40x32"}] for name in TO_SIZE},
    "random_crop": [{"size": "40x32"}, {"size": 48, "padding": 7}],
    "resize": [{"size": 37}, {"size": "20x44"}],
    "pad": [{"margin": 9}],
    "rotate": [{"angle": 30}],
    "random_rotation": [{"degrees": 30}],
    "affine": [{"angle": 20, "scale": 0.8}],
    "random_affine": [{"degrees": 20, "shear": 10}],
    "shear": [{"x": 0.3}],
    "perspective": [{"corners": [0.05, 0.0, 1.0, 0.1, 0.9, 1.0, 0.0, 0.95]}],
    "adjust_brightness": [{"factor": 1.4}],
    "adjust_contrast": [{"factor": 1.4}],
    "adjust_saturation": [{"factor": 1.4}],
    "adjust_sharpness": [{"factor": 1.4}],
    "adjust_hue": [{"factor": 0.2}],
    "color_jitter": [{"brightness": 0.4, "hue": 0.1}],
    "posterize": [{"bits": 3}],
    "solarize": [{"threshold": 90}],
    "gaussian_blur": [{"kernel_size": 5}],
    "jpeg": [{"quality": 40}],
    "erase": [{"left": 0.2, "top": 0.3, "width": 0.4, "height": 0.5}],
    "random_erasing": [{"p": 0.8}],
    "choice": [{"steps": [{"name": "hflip", "p": 1}, {"name": "resize", "size": 20}]}],
    "maybe": [{"p": 0.5, "steps": [{"name": "rotate", "angle": 20}]}],
    "sequence": [{"steps": [{"name": "grayscale"}, {"name": "vflip", "p": 0.5}]}],
}


def of_images(name: str) -> bool:
    return issubclass(TRANSFORMS[name], ImageTransform)


EACH = [
    {"name": name, **settings}
    for name in TRANSFORMS
    if of_images(name)
    for settings in SETTINGS.get(name, [{}])
]


def source_of(folder: Path, marked: bool = True) -> list[Path]:
    """Make a folder of images of several sizes, with objects and masks; return both."""
    images, masks = folder / "in", folder / "masks"
    images.mkdir(parents=True)
    masks.mkdir()
    lines = []
    for number, (width, height) in enumerate(SIZES):
        name, pixels = f"{number}.jpg", scene_pixels(width, height)
        Image.fromarray(pixels).save(images / name, quality=92)
        Image.fromarray(pixels[:, :, 0] // 40).save(masks / f"{number}.png")
        box = [8.0, 6.0, 30.0, 24.0]
        outline = [10.0, 8.0, 30.0, 8.5, 20.25, 28.0]
        objects = {
            "bbox": [box, [40.5, 30.0, 12.0, 20.0]],
            "category": [0, 1],
            "segmentation": [[outline], []],
        }
        lines.append(json.dumps({"file_name": name, "objects": objects}))
    if marked:
        (images / "metadata.jsonl").write_text("\n".join(lines))
    return [images, masks]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: Any) -> tuple[list[Path], shardctl.Dataset]:
    folder = tmp_path_factory.mktemp("stored")
    images, masks = source_of(folder)
    convert(images, folder / "out", {"store": "source"}, labels=["auto", f"masks:{masks}"])
    return [images, masks], shardctl.open(folder / "out")


def epochs(ds: shardctl.Dataset, count: int, **options: Any) -> list[dict[str, Any]]:
    """Return the samples of some epochs, by (key, epoch)."""
    loader, found = ds.loader(2, shuffle=True, **options), []
    for epoch in range(count):
        for batch in loader:
            for place, key in enumerate(batch["key"]):
                sample = {name: values[place] for name, values in batch.items()}
                found.append({**sample, "key": key, "epoch": epoch})
    return found


def expect_variants(
    stored: Any, out: Path, steps: list[dict[str, Any]], count: int, seed: int
) -> None:
    """Expect that epoch e has the pixels, the masks and the objects of a conversion's variant e.

    What one of them refuses, the other does too: then without objects and masks.
    """
    (images, masks), ds = stored
    recipe = {"transform": steps, "seed": seed, "store": "png"}
    parts = [parse_step(step) for step in steps]
    if any(step.random for step in parts):
        recipe["variants"] = count
    count = max(count, *(step.samples for step in parts))
    read: dict[str, Any] = {"recipe": {"transform": steps}, "seed": seed}
    try:
        convert(images, out, recipe, labels=["auto", f"masks:{masks}"])
    except UsageError:
        with pytest.raises(UsageError, match="cannot move"):
            ds.loader(2, **read)
        convert(images, out, recipe, labels="none")
        read["columns"] = ["key", "image"]
    made = shardctl.open(out)
    variants = {(each["key"], each.get("variant", 0)): each for each in made}
    for sample in epochs(ds, count, **read):
        numbered = "variant" in made.schema.names
        expected = variants[sample["key"], sample["epoch"] if numbered else 0]
        for name in {"image", "mask"} & set(sample):
            assert np.array_equal(sample[name], expected[name]), name
        for name, value in sample.get("objects", {}).items():
            numbers, others = (
                np.array([*flat(each)]) for each in (value, expected["objects"][name])
            )
            assert numbers.shape == others.shape
            assert np.allclose(numbers, others, atol=1e-4), name


def flat(values: Any) -> Iterator[float]:
    if isinstance(values, list | np.ndarray):
        for each in values:
            yield from flat(each)
    else:
        yield float(values)


@pytest.mark.parametrize("step", EACH, ids=lambda step: "-".join(map(str, step.values())))
def test_an_epoch_has_what_a_conversion_writes_as_a_variant(stored, tmp_path, step):
    expect_variants(stored, tmp_path / "out", [step], 2, 3)


SINGLE = [step for step in EACH if step["name"] not in ("five_crop", "ten_crop")]


@examples(10)
@given(steps=st.lists(st.sampled_from(SINGLE), min_size=2, max_size=5), seed=st.integers(0, 99))
def test_so_it_has_of_several_steps(stored, tmp_path_factory, steps, seed):
    expect_variants(stored, tmp_path_factory.mktemp("several") / "out", steps, 2, seed)


MANY = [
    {"name": "random_resized_crop", "size": "40x32"},
    {"name": "hflip", "p": 0.5},
    {"name": "rand_augment"},
    {"name": "random_erasing", "p": 0.5},
]


def by_key(loader: Any) -> dict[str, Any]:
    return {
        key: {name: values[place] for name, values in batch.items()}
        for batch in loader
        for place, key in enumerate(batch["key"])
    }


def expect_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert set(one) == set(other)
    for key, sample in one.items():
        for name in ("image", "mask"):
            assert np.array_equal(sample[name], other[key][name])
        assert str(sample["objects"]) == str(other[key]["objects"])


def test_the_same_numbers_are_drawn_whoever_reads_when(stored):
    """Threads, processes, ranks, a resumed epoch, a mixture, a sample alone."""
    ds, how = stored[1], {"recipe": {"transform": MANY}, "seed": 5}
    first = ds.loader(1, **how)
    zero, one = by_key(first), by_key(first)
    assert any(not np.array_equal(zero[key]["image"], one[key]["image"]) for key in zero)
    expect_same(by_key(ds.loader(2, threads=3, shuffle=True, **how)), zero)
    expect_same(by_key(ds.loader(2, processes=1, **how)), zero)
    ranks = [ds.loader(1, rank=rank, world_size=3, **how) for rank in range(3)]
    expect_same({key: each for rank in ranks for key, each in by_key(rank).items()}, zero)
    begun, rest = ds.loader(1, **how), ds.loader(2, **how)
    start = next(iter(begun))
    rest.load_state_dict(begun.state_dict())
    expect_same({**by_key([start]), **by_key(rest)}, zero)
    expect_same(by_key(rest), one)
    expect_same(by_key(shardctl.mix([ds], [1]).loader(2, **how)), zero)
    places = list(range(len(ds)))
    expect_same(by_key([ds.take(places, recipe={"transform": MANY}, seed=5, epoch=1)]), one)


def test_a_state_is_refused_by_a_loader_with_other_steps(stored):
    _, ds = stored
    options: dict[str, Any] = {"crop": (24, 32), "flip": 0.4, "transform": same}
    loader = ds.loader(2, **options)
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    ds.loader(3, **options).load_state_dict(state)
    for other in ({**options, "flip": 0.5}, {"crop": (24, 32), "flip": 0.4}, {}):
        with pytest.raises(UsageError, match=r"steps \{.*'p': 0\.4"):
            ds.loader(2, **other).load_state_dict(state)
    with pytest.raises(UsageError, match="steps"):
        ds.loader(2, seed=1, **options).load_state_dict(state)


def test_a_recipe_without_steps_changes_nothing(stored):
    _, ds = stored
    for recipe in ({}, {"transform": []}, {"keep_objects": 0.5}):
        expect_same(by_key(ds.loader(2, recipe=recipe)), by_key(ds.loader(2)))


@pytest.mark.parametrize("store", ["source", "png", "raw"])
@pytest.mark.parametrize("options", [{}, {"cache": 10**7}], ids=str)
def test_short_forms_are_the_steps(tmp_path, store, options):
    for number in range(5):
        Image.fromarray(scene_pixels(90, 60)).save(tmp_path / f"{number}.jpg")
    size = [{"name": "resize", "size": "90x60"}] if store == "raw" else []
    source = sorted(tmp_path.glob("*.jpg"))
    convert(source, tmp_path / "out", {"store": store, "transform": size}, labels="none")
    ds = shardctl.open(tmp_path / "out")
    for short, steps in (
        ({"crop": (32, 40)}, ["crop size=40x32"]),
        ({"crop": 32, "crop_from": "random", "flip": True}, ["random_crop size=32", "hflip p=0.5"]),
        (
            {"resize": 50, "crop": 48, "flip": 0.2},
            ["resize size=50", "crop size=48", "hflip p=0.2"],
        ),
        ({"crop": 200}, ["crop size=200"]),
    ):
        # the second way takes the steps one by one, the first one all images at once
        one_by_one = ["vflip p=0", *steps]
        for ways in zip(
            ds.loader(2, **short, **options), ds.loader(2, step=one_by_one, **options), strict=True
        ):
            assert np.array_equal(*(way["image"] for way in ways))


def same(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def shaken(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
    sample["image"] = np.roll(sample["image"], rng.integers(1, 9), axis=1)
    return sample


def test_a_function_gets_the_numbers_that_it_gets_in_a_conversion(stored, tmp_path):
    (images, _), ds = stored
    recipe = {"transform": [*MANY[:2], {"name": "custom", "target": f"{__name__}:shaken"}]}
    keys = {"seed": 3, "store": "png", "variants": 2}
    convert(images, tmp_path / "out", {**recipe, **keys}, labels="none")
    made = shardctl.open(tmp_path / "out")
    variants = {(each["key"], each["variant"]): each["image"] for each in made}
    for own in (f"{__name__}:shaken", shaken):
        how = {"recipe": {"transform": MANY[:2]}, "transform": own, "seed": 3}
        for sample in epochs(ds, 2, columns=["key", "image"], **how):
            assert np.array_equal(sample["image"], variants[sample["key"], sample["epoch"]])


def test_a_function_changes_what_batches_have(stored):
    def changed(sample: dict[str, Any]) -> dict[str, Any]:
        objects = sample["objects"]
        stays = objects["bbox"][:, 0] < 20
        cut = {"image": sample["image"][:40, :40], "mask": sample["mask"][:40, :40]}
        members = {
            name: [each for each, stay in zip(values, stays, strict=True) if stay]
            for name, values in objects.items()
        }
        return {**sample, **cut, "objects": members, "mean": float(sample["image"].mean())}

    ds = stored[1]
    (batch,) = ds.loader(
        3, transform=changed, channels_first=True, pad={"objects": 0}, dtype={"mean": "float32"}
    )
    assert batch["image"].shape == (3, 3, 40, 40)
    assert batch["mask"].shape == (3, 40, 40)
    assert batch["mean"].dtype == np.float32
    assert batch["objects.bbox"].tolist() == [[[8, 6, 30, 24]]] * 3
    (whole,) = ds.loader(3, transform=[lambda sample: sample])
    assert [each.shape for each in whole["image"]] == [
        (height, width, 3) for width, height in SIZES
    ]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda s: None, "left it out"),
        (lambda s: [s, s], ""),
        (lambda s: 3, r"returned 3 \(int\)"),
        (lambda s: {**s, "image": None}, "removed the image"),
        (lambda s: {**s, "image": s["image"] / 2}, "type float64"),
        (
            lambda s: {**s, "image": s["image"][:10]},
            "changed the image from 90x60 to 90x10, and not objects",
        ),
        (lambda s: {**s, "objects": {**s["objects"], "bbox": []}}, "0 of bbox and 2 of category"),
        (lambda s: {**s, "objects": 5}, r"set objects to 5 \(int\)"),
        (lambda s: {name: s[name] for name in ("key", "image", "variant")}, ""),
        (lambda s: {**s, "key": "z"}, "changed the key"),
        (lambda s: 1 / 0, "raised ZeroDivisionError"),
    ],
    ids=itertools.count(),
)
def test_what_a_function_may_not_return_names_the_sample_and_the_function(stored, function, said):
    ds = stored[1]
    named = rf"<lambda> .*{said}" if said else "the functions (returned 2|made mask None)"
    with pytest.raises(DatasetError, match=rf"key '0.jpg': .*{named}"):
        ds.loader(2, transform=function)


def test_samples_that_a_function_fails_for_can_be_skipped(stored):
    def odd(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["key"] == "1.jpg":
            raise ValueError("odd")
        return sample

    loader = stored[1].loader(3, transform=odd, on_error="skip")
    assert sorted(by_key(loader)) == ["0.jpg", "2.jpg"]
    assert loader.stats().skipped == 1
    with pytest.raises(DatasetError, match=r"key '1.jpg': .*odd raised ValueError: odd"):
        list(stored[1].loader(3, transform=odd))


class Shaker:
    def __call__(self, samples: list[Any]) -> list[Any]:
        return samples


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"step": ["tokenize tokenizer=bytes"]}, "tokenize is for text and tables"),
        ({"step": ["filter_blur"]}, "filter_blur leaves samples out"),
        ({"step": ["flip"]}, "step 'flip' is not known"),
        ({"step": ["hflip p=3"]}, "hflip: p must be"),
        ({"step": "hflip"}, "step takes a list"),
        ({"recipe": {"store": "raw", "seed": 1}}, "store, seed make no sense"),
        ({"recipe": "@simclr"}, "@simclr: store, variants make no sense"),
        ({"recipe": {"kind": "text"}}, "kind makes no sense"),
        ({"recipe": 3}, "recipe is a file"),
        ({"step": ["hflip"], "columns": ["key"]}, "only for decoded images"),
        ({"step": ["hflip"], "decode": False}, "only for decoded images"),
        ({"transform": shaken, "columns": ["key"]}, "only for decoded images"),
        ({"transform": lambda sample: sample, "processes": 1}, "other processes cannot be sent it"),
        ({"transform": f"{__name__}:Shaker"}, "is a class"),
        ({"transform": 5}, "transform takes functions"),
        ({"transform": "no_module:f"}, "cannot import no_module"),
        ({"resize": "16384x16384"}, "more than 100,000,000 pixels"),
    ],
    ids=itertools.count(),
)
def test_what_makes_no_sense_while_reading_is_refused(stored, options, said):
    with pytest.raises(UsageError, match=said):
        stored[1].loader(2, **options)


def test_a_step_that_makes_too_many_pixels_is_named(stored):
    recipe = {"transform": [{"name": "pad", "margin": 60}], "max_pixels": 40_000}
    with pytest.raises(DatasetError, match=r"key '2.jpg': image: pad: .*40000"):
        by_key(stored[1].loader(1, recipe=recipe))
    loader = stored[1].loader(1, recipe=recipe, on_error="skip")
    assert sorted(by_key(loader)) == ["0.jpg", "1.jpg"]


CUT = """
store = "png"
[[transform]]
name = "resize"
size = "48x40"
[[reading]]
name = "random_crop"
size = 32
[[reading]]
name = "hflip"
"""


def test_a_recipe_says_what_is_done_once_and_what_in_each_epoch(stored, cli, tmp_path):
    (images, _), _ = stored
    (tmp_path / "cut.toml").write_text(CUT)
    said = cli("recipe", "check", tmp_path / "cut.toml").out
    assert "1. resize" in said.split("while reading")[0]
    assert "2. hflip" in said.split("while reading")[1]
    convert(images, tmp_path / "out", tmp_path / "cut.toml", labels="none")
    ds = shardctl.open(tmp_path / "out")
    assert ds[0]["image"].shape == (40, 48, 3)
    given = {"step": ["random_crop size=32", "hflip"], "seed": 4}
    expected = [batch["image"] for batch in ds.loader(3, **given)]
    for recipe in ("dataset", tmp_path / "cut.toml"):
        batches = [batch["image"] for batch in ds.loader(3, recipe=recipe, seed=4)]
        assert np.array_equal(batches, expected)
    shown = cli("recipe", "show", tmp_path / "out").out
    assert shown.count("[[reading]]") == 2
    (tmp_path / "shown.toml").write_text(shown)
    assert np.array_equal(
        [batch["image"] for batch in ds.loader(3, recipe=tmp_path / "shown.toml", seed=4)], expected
    )
    with pytest.raises(UsageError, match=r"has no \[\[reading\]\]"):
        stored[1].loader(2, recipe="dataset")


@pytest.mark.parametrize(
    ("reading", "said"),
    [
        ([{"name": "tokenize", "tokenizer": "bytes"}], "tokenize does not change images"),
        ([{"name": "filter_blur"}], "filter_blur does not change images"),
        ([{"name": "hflip", "p": 2}], "p must be"),
        ([{"name": "custom", "target": "no_module:f"}], "cannot import no_module"),
    ],
    ids=itertools.count(),
)
def test_a_conversion_checks_the_steps_of_the_loader_too(stored, tmp_path, reading, said):
    with pytest.raises(UsageError, match=said):
        convert(stored[0][0], tmp_path / "out", {"reading": reading}, labels="none")


def test_bench_measures_steps_and_functions_by_their_names(stored):
    found = shardctl.bench(
        stored[1].root,
        recipe="@randaugment",
        steps=["invert"],
        transforms=[f"{__name__}:same"],
        runs=1,
        epochs=2,
        progress=False,
    )
    assert {"step rand_augment", "step invert", "step functions"} <= set(found.time)


def test_what_a_loader_warns_of_is_a_line_of_the_command(tmp_path):
    rows = [{"image": scene_pixels(8, 8), "width": 8} for _ in range(4)]
    shardctl.write(tmp_path / "out", rows)
    command = "-m shardctl bench --step hflip --batch-size 2 --runs 1 --seconds 0.1".split()
    ran = subprocess.run(
        [sys.executable, *command, tmp_path / "out"], capture_output=True, text=True
    )
    assert ran.returncode == 0
    assert ran.stderr.startswith("warning: hflip moves")
    assert "UserWarning" not in ran.stderr


def test_preview_shows_what_a_loader_makes_of_a_dataset(stored, cli, tmp_path):
    ds = stored[1]
    options = ["--recipe", "@imagenet", "--seed", "3", "--key", "1.jpg", "--variants", "2"]
    shown = cli("preview", ds.root, *options, "--json", "--html", tmp_path / "p.html").json
    (tried,) = shown["inputs"]
    assert (tried["width"], tried["height"], tried["objects"]) == (61, 75, 2)
    for epoch, sample in enumerate(tried["samples"]):
        batch = ds.take([1], recipe="@imagenet", seed=3, epoch=epoch)
        assert sample["objects"] == len(batch["objects"][0]["bbox"])
        assert (sample["width"], sample["height"]) == (224, 224)
    assert tried["cut_off"] == 4 - sum(each["objects"] for each in tried["samples"])
    assert "While reading, seed 3" in (tmp_path / "p.html").read_text()
    for options, code, said in (
        (["--store", "raw", "--step", "hflip"], 2, "--store is for a conversion"),
        ([], 2, "has no [[reading]]"),
        (["--step", "hflip", "--key", "x"], 3, "no sample with the key x"),
    ):
        ended = cli("preview", ds.root, *options)
        assert (ended.code, said in ended.err) == (code, True)


def test_each_stored_variant_draws_numbers_of_its_own(stored, tmp_path):
    recipe = {"transform": MANY[:1], "variants": 3, "store": "png"}
    convert(stored[0][0], tmp_path / "out", recipe, labels="none")
    ds = shardctl.open(tmp_path / "out")

    def drawn(sample: dict[str, Any], rng: Any) -> dict[str, Any]:
        return {**sample, "drawn": rng.random()}

    how: dict[str, Any] = {"step": ["random_erasing p=1"], "dtype": {"variant": "float32"}}
    (batch,) = ds.loader(9, transform=drawn, **how)
    assert len(set(batch["drawn"].tolist())) == 9
    assert batch["variant"].tolist() == [0, 1, 2] * 3
    (one,) = ds.loader(9, variant="epoch", flip=True)
    assert len(one["image"]) == 3


def test_masks_of_which_some_are_missing_move_with_their_images(tmp_path):
    image = scene_pixels(20, 12)
    encoded, deep = (png(image[:, :, 0]), "x.png"), image[:, :, 0].astype(np.uint16)
    fields = {"key": pa.string(), "image": image_tensor((12, 20, 3))}
    for name, type_, masks in (
        ("png", ENCODED_IMAGE, [encoded, None, encoded]),
        ("raw", pa.fixed_shape_tensor(pa.uint16(), [12, 20]), [deep, None, deep]),
    ):
        rows = [(f"k{place}", image, mask) for place, mask in enumerate(masks)]
        role = Mask(name, (12, 20))
        write_dataset(
            tmp_path / name, pa.schema({**fields, "mask": type_}), rows, 3, roles={"mask": role}
        )
        ds = shardctl.open(tmp_path / name)
        for read in (
            ds.take([0, 1, 2], step=["hflip p=1"]),
            next(iter(ds.loader(3, flip=1.0, fill={"mask": 7}))),
            ds.take([0, 1, 2], step=["hflip p=1"], transform=same),
        ):
            assert np.array_equal(read["image"][0], image[:, ::-1])
            for place in (0, 2):
                assert np.array_equal(read["mask"][place], image[:, ::-1, 0])
            assert read["mask"][1] is None or (read["mask"][1] == 7).all()


def test_functions_get_the_members_and_the_samples_that_were_chosen(stored):
    def odd(sample: dict[str, Any]) -> dict[str, Any]:
        assert sample["key"] != "0.jpg"
        return {**sample, "seen": None if sample["key"] == "1.jpg" else 1.5}

    ds = stored[1].filter("key != '0.jpg'")
    (batch,) = ds.loader(
        3, transform=odd, columns=["image", "objects.bbox"], fill={"seen": -1}, step=["hflip p=1"]
    )
    assert sorted(batch["seen"].tolist()) == [-1, 1.5]
    assert list(batch["objects"][0]) == ["bbox"]
    with pytest.raises(DatasetError, match="is_late, and not to the first"):
        list(shardctl.mix([ds], [1], 99).loader(1, transform=late))


CALLS = itertools.count()


def late(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "is_late": 1} if next(CALLS) > 9 else sample


@pytest.mark.parametrize(
    "steps", [["five_crop size=20"], ["resize size=40", "random_crop size=32"]]
)
def test_a_cache_of_whole_images_gives_the_same_steps(tmp_path, steps):
    shardctl.write(
        tmp_path / "out", ({"image": scene_pixels(60, 70)} for _ in range(4)), store="png"
    )
    ds = shardctl.open(tmp_path / "out")
    plain, kept = (ds.loader(4, step=steps, cache=cache) for cache in (0, 10**7))
    for _ in range(3):
        (one,), (other,) = plain, kept
        assert np.array_equal(one["image"], other["image"])


def test_long_epochs_of_steps_in_python_have_processes_unless_that_is_not_asked(
    stored, monkeypatch
):
    ds = stored[1]
    monkeypatch.setattr(dataset, "usable_cores", lambda: 2)
    short = ds.loader(2, step=["rand_augment"])
    assert short.options.processes is None
    monkeypatch.setattr(dataset, "LONG_EPOCH", 0.0)
    every: list[tuple[dict[str, Any], int | None]] = [
        ({"step": ["rand_augment"]}, 2),
        ({"transform": f"{__name__}:same"}, 2),
        ({}, None),
        ({"crop": 20, "flip": True}, None),
        ({"step": ["rand_augment"], "processes": None}, None),
        ({"step": ["rand_augment"], "threads": 2}, None),
        ({"step": ["rand_augment"], "cache": 1000}, None),
        ({"transform": lambda sample: sample}, None),
    ]
    for options, count in every:
        assert ds.loader(2, **options).options.processes == count


def large(sample: dict[str, Any]) -> dict[str, Any] | None:
    return None if sample["image"].shape[0] < 64 else sample


def test_a_function_that_leaves_samples_out_fixes_no_size(tmp_path):
    for number, side in enumerate([64, 32] * 4 + [128, 128, 64, 32]):
        Image.fromarray(scene_pixels(side, side)).save(tmp_path / f"{number:02}.png")
    convert(sorted(tmp_path.glob("*.png")), tmp_path / "out", {}, labels="none")
    loader = shardctl.open(tmp_path / "out").loader(4, transform=large, on_error="skip", threads=1)
    read = by_key(loader)
    assert sorted(len(each["image"]) for each in read.values()) == [64] * 5 + [128] * 2
    assert loader.stats().skipped == 5
