"""What goes in comes out, whichever way it is stored and read; and what is done to it on the
way."""

from __future__ import annotations

import datetime
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import CROP, examples
from dataset_files import shards_in
from handmade import write_dataset
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import convert
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image
from programs import run_python
from pyarrow import feather
from written_samples import plain

import shardctl
from shardctl.errors import DatasetError, UsageError
from shardctl.images.codecs.image import decode, open_image, render
from shardctl.images.geometry import View

COLUMNS = pa.schema(
    {
        "key": pa.string(),
        "label": pa.int64(),
        "score": pa.float32(),
        "small": pa.uint8(),
        "yes": pa.bool_(),
        "blob": pa.binary(),
        "tokens": pa.list_(pa.uint16()),
        "maybe": pa.string(),
        "nested": pa.list_(pa.struct({"a": pa.int32()})),
        "block": pa.fixed_shape_tensor(pa.int16(), [3, 5]),
    }
)

sample = st.tuples(
    st.text(max_size=30) | st.sampled_from(["twelve bytes", "ünïcödé " * 5, "x" * 1000]),
    st.none() | st.integers(-(2**62), 2**62),
    st.floats(width=32, allow_nan=False),
    st.integers(0, 255),
    st.booleans(),
    st.binary(max_size=40),
    st.lists(st.integers(0, 2**16 - 1), max_size=12),
    st.none() | st.text(max_size=20),
    st.lists(st.fixed_dictionaries({"a": st.integers(-5, 5)}), max_size=3),
    st.integers(-1000, 1000).map(lambda n: np.arange(n, n + 15, dtype=np.int16).reshape(3, 5)),
)


def opened(root: Path, columns: pa.Schema, rows: Any, per_shard: int = 20, *how: Any) -> Any:
    """Write a dataset of few blocks in each shard, and open it."""
    write_dataset(root / "out", columns, rows, per_shard, *how, sample_bytes=400_000)
    return shardctl.open(root / "out")


def vectors(root: Path, values: Any) -> Any:
    """Open a dataset of these arrays, its column x, and of the keys k0, k1, …"""
    type_ = pa.fixed_shape_tensor(pa.from_numpy_dtype(values.dtype), values.shape[1:])
    columns = pa.schema({"key": pa.string(), "x": type_})
    return opened(root, columns, ((f"k{n}", value) for n, value in enumerate(values)), 4)


def as_plain(values: Any) -> list[Any]:
    return [
        value.tolist() if isinstance(value, np.ndarray | np.generic) else value for value in values
    ]


@examples(18)
@given(
    samples=st.lists(sample, min_size=1, max_size=40),
    compression=st.sampled_from(["none", "lz4", "zstd"]),
    per_shard=st.integers(1, 40),
    access=st.sampled_from([{}, {"mmap": False}, {"preload": True}, {"checksums": True}]),
    shuffle=st.sampled_from([False, True, "window"]),
    batch=st.integers(1, 50),
)
def test_any_columns_come_out_as_they_went_in(
    tmp_path_factory, samples, compression, per_shard, access, shuffle, batch
):
    keyed = [(f"{place}/{values[0]}", *values[1:]) for place, values in enumerate(samples)]
    ds = opened(tmp_path_factory.mktemp("any"), COLUMNS, keyed, per_shard, compression)
    expected = {
        key: as_plain([key, -7 if label is None else label, *rest]) for key, label, *rest in keyed
    }
    seen = {}
    for found in ds.loader(batch, shuffle=shuffle, threads=2, fill={"label": -7}, **access):
        columns = [as_plain(found[name]) for name in COLUMNS.names]
        seen |= {values[0]: list(values) for values in zip(*columns, strict=True)}
        assert found["label"].dtype == np.int64
        assert found["block"].shape == (len(found["key"]), 3, 5)
        assert found["block"].dtype == np.int16
        assert all(tokens.dtype == np.uint16 for tokens in found["tokens"])
    assert seen == expected
    chosen = [0, len(samples) - 1, 0]
    assert ds.take(chosen, columns=["key"])["key"] == [keyed[place][0] for place in chosen]


def test_means_of_pixels_from_0_to_1_are_a_warning(raw_dataset):
    ds = shardctl.open(raw_dataset)
    with pytest.warns(UserWarning, match="multiply both by 255"):
        ds.loader(4, normalize={"image": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))})
    for mean_and_std in (((123.7, 116.3, 103.5), (58.4, 57.1, 57.4)), (0, 255)):
        ds.loader(4, normalize={"image": mean_and_std})


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tokens") / "out"
    columns = pa.schema(
        {
            "key": pa.string(),
            "tokens": pa.list_(pa.int32()),
            "x": pa.fixed_shape_tensor(pa.uint8(), [4]),
        }
    )
    rows = ((f"k{n}", list(range(1, n % 9 + 1)), np.full(4, n % 250, np.uint8)) for n in range(100))
    write_dataset(root, columns, rows, 30)
    return root


def test_ragged_columns_are_padded_to_the_longest_of_the_batch(tokens):
    for batch in shardctl.open(tokens).loader(16, pad={"tokens": -7}, dtype={"tokens": "int64"}):
        padded, lengths = batch["tokens"], batch["tokens_length"]
        assert padded.dtype == np.int64
        assert padded.shape == (len(batch["key"]), lengths.max())
        for row, length in zip(padded, lengths, strict=True):
            assert row.tolist() == list(range(1, length + 1)) + [-7] * (len(row) - length)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_buckets_hold_samples_of_about_the_same_length(tmp_path, compression):
    columns = pa.schema({"key": pa.string(), "tokens": pa.list_(pa.int32())})
    lengths = np.random.default_rng(0).integers(0, 200, 1000)
    rows = ((f"k{n}", list(range(length))) for n, length in enumerate(lengths.tolist()))
    ds = opened(tmp_path, columns, rows, 300, compression)
    options = {"shuffle": True, "pad": {"tokens": 0}}
    plain, bucketed, again = (
        list(ds.loader(20, **options, **more))
        for more in ({}, {"bucket": {"tokens": 10}}, {"bucket": {"tokens": 10}, "threads": 1})
    )
    for first in range(0, 50, 10):  # every sample stays in its stretch
        stretches = [
            sorted(key for batch in batches[first : first + 10] for key in batch["key"])
            for batches in (plain, bucketed)
        ]
        assert stretches[0] == stretches[1]
    assert sum(b["tokens"].size for b in bucketed) < 0.62 * sum(b["tokens"].size for b in plain)
    assert [batch["key"] for batch in again] == [batch["key"] for batch in bucketed]
    state = ds.loader(20, bucket={"tokens": 10}).state_dict()
    with pytest.raises(UsageError, match=r"global_batch 20 \(here 30\)"):
        ds.loader(30, bucket={"tokens": 10}).load_state_dict(state)


def test_batches_are_aligned_and_in_one_piece(tokens, jpegs, raw_dataset):
    for dtype in ({}, {"x": "float32"}):
        for batch in shardctl.open(tokens).loader(16, shuffle=True, dtype=dtype):
            assert batch["x"].flags.c_contiguous
            assert batch["x"].flags.aligned
    for root in (jpegs, raw_dataset):
        for batch in shardctl.open(root).loader(16, shuffle=True, prefetch=1):
            assert batch["image"].flags.c_contiguous
            assert batch["image"].ctypes.data % 64 == 0


def test_a_batch_within_one_block_is_a_view_of_the_file(raw_dataset):
    ds = shardctl.open(raw_dataset)
    first = next(iter(ds.loader(4, columns=["image"])))["image"]
    assert not first.flags.writeable
    again = next(iter(ds.loader(4, columns=["image"])))["image"]
    assert first.ctypes.data == again.ctypes.data, "the same memory twice"
    shuffled = next(iter(ds.loader(4, columns=["image"], shuffle=True)))["image"]
    assert shuffled.flags.writeable


@pytest.fixture(scope="module")
def jpegs(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("jpegs") / "out"
    recipe = {
        "store": "jpeg:90",
        "transform": [{"name": "resize", "size": 48}, {"name": "crop", "size": 40}],
    }
    convert(photos, root, recipe=recipe)
    return root


def test_images_are_decoded_to_the_pixels_that_pillow_gives(jpegs):
    ds = shardctl.open(jpegs)
    stored, pixels = (ds.take(range(60), decode=decoded)["image"] for decoded in (False, True))
    assert pixels.shape == (60, 40, 40, 3)
    assert np.array_equal(pixels, list(map(decode, stored)))


@pytest.mark.parametrize(("root", "side"), [("jpegs", 40), ("raw_dataset", 32)])
def test_crops_come_from_the_middle_or_by_the_seed_from_anywhere(root, side, request):
    ds = shardctl.open(request.getfixturevalue(root))

    def views(**options: Any) -> Any:
        return np.concatenate([b["image"] for b in ds.loader(7, shuffle=True, **options)])

    whole, middle = views(), views(crop=(20, 24))
    top, left = (side - 20) // 2, (side - 24) // 2
    assert np.array_equal(middle, whole[:, top : top + 20, left : left + 24])
    random = {"crop": (20, 24), "crop_from": "random", "flip": True}
    drawn, again = views(threads=3, **random), views(threads=1, **random)
    assert np.array_equal(drawn, again)
    places = set()
    for image, cut in zip(whole, drawn, strict=True):
        parts = np.moveaxis(sliding_window_view(image, (20, 24), (0, 1)), 2, -1)
        found = {
            (flipped, *place)
            for flipped in (False, True)
            for place in np.argwhere(
                (parts == (cut[:, ::-1] if flipped else cut)).all((2, 3, 4))
            ).tolist()
        }
        assert found
        places |= found
    assert {flipped for flipped, *_ in places} == {False, True}
    assert len({top for _, top, _ in places}) > 8


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_normalised_views_are_the_formula_of_the_plain_ones(jpegs, raw_dataset, dtype):
    options = {"crop": (16, 20), "crop_from": "random", "flip": True, "columns": ["image"]}
    for root in (jpegs, raw_dataset):
        ds = shardctl.open(root)
        (pixels,) = ds.loader(60, **options)
        for mean, std in (([10, 20, 30], [2, 4, 8]), (5, [2, 4, 8]), ([7], 3)):
            given = {"normalize": {"image": (mean, std)}, "dtype": {"image": dtype}}
            (normal,) = ds.loader(60, **given, **options)
            assert normal["image"].dtype == dtype
            formula = (pixels["image"].astype(float) - mean) / std
            near = 2e-3 if dtype == "float16" else 1e-5
            assert np.allclose(normal["image"], formula, rtol=near, atol=1e-4)


@pytest.mark.thorough(after=10)
@pytest.mark.parametrize("shape", [(1, 3), (1666, 3), (100_000, 3), (5,), (40_000,)])
@pytest.mark.parametrize("stored", ["uint8", "float64", "int16", "int32", "int64", "float32"])
def test_columns_of_any_width_are_converted_and_normalised(tmp_path, stored, shape):
    """Every number of the last axis may have its own mean."""
    values = np.random.default_rng(0).integers(0, 100, (9, *shape)).astype(stored)
    ds = vectors(tmp_path, values)
    for dtype in ("float64" if stored.startswith("float") else "int64", "float16"):
        (wide,) = ds.loader(9, dtype={"x": dtype})
        assert wide["x"].dtype == dtype
        assert np.array_equal(wide["x"], values.astype(dtype))
    mean, std = np.linspace(0, 9, shape[-1]), np.linspace(1, 2, shape[-1])
    (normal,) = ds.loader(9, shuffle=True, normalize={"x": (mean, std)})
    taken = values[[int(key[1:]) for key in normal["key"]]]
    assert normal["x"].dtype == np.float32
    assert np.allclose(normal["x"], (taken - mean) / std, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    "options",
    [{}, {"crop": 20}, {"crop": 20, "normalize": {"image": (1, 2)}}, {"dtype": {"image": "int16"}}],
)
def test_memory_is_used_again_only_when_the_next_batch_is_asked_for(
    jpegs, raw_dataset, options, threads
):
    for root in (jpegs, raw_dataset):
        ds = shardctl.open(root)
        given = {"shuffle": True, "repeat": 4, **options}
        expected = list(ds.loader(4, **given))
        reusing = ds.loader(4, prefetch=2, threads=threads, reuse=True, **given)
        places = []
        for batch, kept in zip(reusing, expected, strict=True):
            ds.take(range(30))  # threads go on meanwhile
            assert batch["key"] == kept["key"]
            assert np.array_equal(batch["image"], kept["image"])
            places.append(batch["image"].ctypes.data)
        # images of 40 pixels that are not changed are copied by Arrow, into memory of its own
        assert not options or len(set(places)) <= 12, "60 batches"


def test_padded_batches_of_any_width_fit_into_reused_memory(tokens):
    plain, reusing = (
        shardctl.open(tokens).loader(7, shuffle=True, pad={"tokens": -1}, repeat=3, reuse=reuse)
        for reuse in (False, True)
    )
    for fresh, reused in zip(plain, reusing, strict=True):
        assert np.array_equal(fresh["tokens"], reused["tokens"])


def test_images_of_many_shapes_are_lists_unless_cropped_to_one(out):
    shapes = [(40, 30 + number, 3) for number in range(5)]
    images = (np.full(shape, number, np.uint8) for number, shape in enumerate(shapes))
    shardctl.write(out, ({"image": image} for image in images), store="png")
    ds = shardctl.open(out)
    (batch,) = ds.loader(5)
    assert [image.shape for image in batch["image"]] == shapes
    assert next(iter(ds.loader(5, crop=30)))["image"].shape == (5, 30, 30, 3)
    (normal,) = ds.loader(5, normalize={"image": (1, 2)}, dtype={"image": "float64"})
    for image, pixels in zip(normal["image"], batch["image"], strict=True):
        assert np.array_equal(image, (pixels - 1.0) / 2)
    # one that is smaller is enlarged first, as by the step
    assert next(iter(ds.loader(5, crop=(36, 35))))["image"].shape == (5, 36, 35, 3)


def test_decoded_images_are_kept_within_their_bound(jpegs):
    ds = shardctl.open(jpegs)
    expected = [b["image"].tolist() for b in ds.loader(10)]
    loader = ds.loader(10, cache=20 * 40 * 40 * 3)
    for _ in range(3):
        assert [b["image"].tolist() for b in loader] == expected
    assert (loader.stats().image_hits, loader.stats().image_misses) == (40, 140)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_preloaded_dataset_needs_its_files_no_more(photos, out, compression):
    convert(photos, out, recipe={**CROP, "compression": compression})
    loader = shardctl.open(out).loader(8, preload=True, shuffle=True)
    expected = {key for batch in loader for key in batch["key"]}
    for shard in shards_in(out):
        shard.unlink()
    for _ in range(3):
        assert {key for batch in loader for key in batch["key"]} == expected


def test_statistics_count_what_was_given(jpegs):
    loader, automatic = (
        shardctl.open(jpegs).loader(16, **options) for options in ({"threads": 2}, {"repeat": 20})
    )
    assert len([*loader, *automatic]) == 4 + 80
    stats = loader.stats()
    assert (stats.threads, stats.batches, stats.samples, stats.skipped) == (2, 4, 60, 0)
    assert stats.samples_per_s == pytest.approx(60 / stats.seconds, rel=0.01)
    assert stats.making_s > 0
    assert 1 <= automatic.stats().threads <= 32


def read_in_another_process(ds: Any, queue: Any) -> None:
    queue.put([batch["key"] for batch in ds.loader(8, shuffle=True, seed=3)])


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_the_same_batches_in_a_process_forked_or_spawned_while_threads_read(jpegs, method):
    ds = shardctl.open(jpegs).limit(50)
    assert repr(pickle.loads(pickle.dumps(ds))) == repr(ds)
    running = iter(ds.loader(4, threads=2))
    next(running)
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=read_in_another_process, args=(ds, queue))
    process.start()
    theirs = queue.get(timeout=60)
    read_in_another_process(ds, queue)
    assert queue.get(timeout=60) == theirs
    process.join()
    running.close()


@pytest.mark.parametrize(
    ("option", "wrong", "said"),
    [
        *(("batch_size", wrong, "batch_size") for wrong in (0, 2.5, True)),
        *(("shuffle", wrong, "shuffle") for wrong in ("best", 42)),
        *(("columns", wrong, "list of names") for wrong in ("key", [1])),
        ("columns", ["colour"], "no column 'colour'; it has key"),
        ("rank", 2, "rank must be"),
        ("threads", 0, "threads"),
        ("lanes", 0, "lanes"),
        ("seed", None, "seed"),
        ("cache", -1, "cache"),
        ("prefetch", 0, "prefetch"),
        ("repeat", 0, "repeat"),
        ("on_error", "ignore", "on_error"),
        ("remainder", "some", "remainder"),
        ("bucket", {"label": 4}, "label is not a ragged"),
        ("bucket", {"image": 0}, "bucket must"),
        ("crop", 0, "crop: size must"),
        ("crop", (1, 2, 3), "height, width"),
        ("crop_from", "left", "'left'"),
        ("crop_from", "random", "needs a crop"),
        ("flip", 1.5, "from 0 to 1"),
        ("resize", 0, "resize"),
        ("pad", {"tokens": 0}, "no column 'tokens'"),
        ("pad", 0, "a dict"),
        ("dtype", {"key": "int8"}, "no numbers"),
        ("dtype", {"label": "text"}, "'text'"),
        ("normalize", {"image": ([0], [0])}, "std not 0"),
        ("normalize", {"image": ([1, 2], 1)}, "3 channels"),
        ("normalize", {"image": 5}, "mean, std"),
        ("normalize", {"image": (float("nan"), 1)}, "finite"),
        ("fill", {"label": 0.5}, "0.5 does not fit label"),
    ],
)
def test_impossible_options_are_refused_by_name(jpegs, option, wrong, said):
    with pytest.raises(UsageError, match=said):
        list(shardctl.open(jpegs).loader(**{"batch_size": 8, "world_size": 2, option: wrong}))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"remainder": "pad", "drop_last": True}, "contradict"),
        ({"flip": True, "columns": ["label"]}, "decoded images"),
        ({"resize": 30, "decode": False}, "decoded images"),
        ({"normalize": {"image": (0, 1)}, "dtype": {"image": "uint8"}}, "cut off the fractions"),
    ],
)
def test_options_that_contradict_each_other_are_refused(jpegs, options, said):
    with pytest.raises(UsageError, match=said):
        shardctl.open(jpegs).loader(8, **options)


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("batch", [1, 3, 40])
def test_missing_numbers_are_the_same_whatever_is_beside_them(tmp_path, compression, batch):
    columns = pa.schema(
        {
            "key": pa.string(),
            "x": pa.float32(),
            "n": pa.int16(),
            "yes": pa.bool_(),
            "scores": pa.list_(pa.float32()),
            "ids": pa.list_(pa.int32()),
            "box": pa.list_(pa.float32(), 2),
            "text": pa.string(),
        }
    )
    rows = [
        (f"k{n}", n / 2, n, n % 2 == 0, [n / 1, 1.5], [n] * (n % 3), [n / 1, 0.5], f"t{n}")
        for n in range(40)
    ]
    rows[7] = ("k7", None, None, None, [None, 1.5], [7, None], [None, 1.0], None)
    rows[8] = ("k8", 1.0, 2, True, None, None, None, "t8")
    ds = opened(tmp_path, columns, rows, 20, compression)
    assert [tuple(sample.values()) for sample in plain([ds[7], ds[8]])] == rows[7:9]
    wanted = rows.copy()
    wanted[7] = ("k7", np.nan, -1, False, [-5.0, 1.5], [7, -2], [0.0, 1.0], None)
    wanted[8] = ("k8", 1.0, 2, True, [], [], [0.0, 0.0], "t8")
    fill = {"n": -1, "yes": False, "scores": -5, "ids": -2, "box": 0}
    found: list[Any] = []
    for part in ds.loader(batch, fill=fill):
        types = [part[name].dtype.name for name in ("x", "n", "yes", "box")]
        assert types == ["float32", "int16", "bool", "float32"]
        assert all(ids.dtype == np.int32 for ids in part["ids"])
        found += zip(*(as_plain(part[name]) for name in columns.names), strict=True)
    assert str(found) == str(wanted)
    for name, key in (("n", "k7"), ("yes", "k7"), ("ids", "k8|k7"), ("scores", "k8")):
        kept = {other: value for other, value in fill.items() if other != name}
        with pytest.raises(UsageError, match=rf"key '({key})': {name} is missing; give fill="):
            list(ds.loader(batch, fill=kept, on_error="skip"))
    (floats,) = ds.loader(40, columns=["x", "box"])
    assert np.isnan([floats["x"][7], floats["box"][7, 0], *floats["box"][8]]).all()


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_numbers_that_do_not_fit_are_refused_with_their_sample(tmp_path, compression):
    columns = pa.schema(
        {
            "key": pa.string(),
            "label": pa.int64(),
            "x": pa.float64(),
            "ids": pa.list_(pa.int32()),
            "box": pa.fixed_shape_tensor(pa.int32(), [4]),
        }
    )
    rows = [(f"k{n}", n, float(n), [n, n], np.full(4, n, np.int32)) for n in range(50)]
    rows[33] = ("k33", 300, 1e300, [1, 70_000], np.array([1, 2, 3, -70_000], np.int32))
    ds = opened(tmp_path, columns, rows, 20, compression)
    narrow = {"label": "uint8", "x": "float32", "ids": "uint16", "box": "int16"}
    for name, dtype in (*narrow.items(), ("box", "float16")):
        with pytest.raises(UsageError, match=rf"key 'k33': {name}: \S+ does not fit {dtype}"):
            list(ds.loader(16, dtype={name: dtype}))
    (part,) = ds.limit(33).loader(33, dtype=narrow)
    types = [values.dtype for values in (part["label"], part["x"], part["ids"][0], part["box"])]
    assert types == list(narrow.values())
    assert part["label"].tolist() == list(range(33))
    for options in ({"dtype": {"x": "int64"}}, {"dtype": {"x": "uint8"}}):
        with pytest.raises(UsageError, match="of x would cut off the fractions"):
            ds.loader(16, **options)
    with pytest.raises(UsageError, match="pad: -1 does not fit ids"):
        ds.loader(16, dtype=narrow, pad={"ids": -1})


def test_images_are_mirrored_with_the_probability_that_was_given(out):
    columns = pa.schema({"key": pa.string(), "image": pa.fixed_shape_tensor(pa.uint8(), [1, 2, 3])})
    image = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)
    write_dataset(out, columns, ((f"k{n}", image) for n in range(2000)), 2000, shape=(1, 2, 3))
    ds = shardctl.open(out)

    def mirrored(flip: Any) -> list[bool]:
        (batch,) = ds.loader(2000, flip=flip)
        return [bool(first) for first in batch["image"][:, 0, 0, 0]]

    for share in (0.1, 0.9):
        assert abs(sum(mirrored(share)) / 2000 - share) < 0.03
    assert mirrored(True) == mirrored(0.5)
    assert not any(mirrored(0))
    assert mirrored(False) == mirrored(0)
    assert all(mirrored(1.0))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"crop": 24, "crop_from": "random", "flip": True, "seed": 3},
        {"dtype": {"image": "float16"}},
        {"crop": 16, "flip": 0.7, "normalize": {"image": ([10, 20, 30], [2, 3, 4])}},
        {"resize": (30, 26), "crop": 20},
    ],
)
def test_channels_first_are_the_same_numbers_in_another_order(jpegs, raw_dataset, options):
    for root in (jpegs, raw_dataset):
        plain, planes = (
            shardctl.open(root).loader(25, shuffle=True, channels_first=first, **options)
            for first in (False, True)
        )
        for one, other in zip(plain, planes, strict=True):
            turned = other["image"]
            assert turned.flags.c_contiguous
            assert turned.flags.writeable
            assert turned.dtype == one["image"].dtype
            assert turned.shape[1] == 3
            assert np.allclose(turned.transpose(0, 2, 3, 1), one["image"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [(40, 40), (21, 30), (20, 20), (5, 4), (70, 50)])
def test_jpegs_of_one_size_are_resized_to_the_pixels_that_the_slow_way_gives(jpegs, size):
    """Pillow decodes an image of 40 pixels at a half of its size where 20 or less are wanted, and
    others decode it whole."""
    ds = shardctl.open(jpegs)
    encoded = ds.take(range(len(ds)), columns=["image"], decode=False)["image"]
    found = [pixels for batch in ds.loader(16, resize=size) for pixels in batch["image"]]
    for data, pixels in zip(encoded, found, strict=True):
        opened = open_image(data)
        assert np.array_equal(pixels, render(opened, View.whole(opened.size).scaled(size[::-1])))


@pytest.mark.thorough(after=3)
@pytest.mark.parametrize(
    ("size", "crop"), [(40, 24), ((24, 36), None), (30, None), (100, 24), ("30x44", 24)]
)
@pytest.mark.parametrize("store", ["source", "png", "jpeg:90"])
def test_resized_images_are_those_of_a_conversion(photos, tmp_path, size, crop, store):
    """In the loader a tuple is (height, width), as a crop is; text is WIDTHxHEIGHT, as on the
    command line."""
    convert(photos, tmp_path / "source", recipe={"store": store})
    images = tmp_path / "images"
    images.mkdir()
    stored = shardctl.open(tmp_path / "source")
    taken = stored.take(range(len(stored)), columns=["key", "image"], decode=False)
    for number, data in enumerate(taken["image"]):
        (images / f"{number:03}{'.jpg' if data[0] == 0xFF else '.png'}").write_bytes(data)
    steps: list[dict[str, Any]] = [
        {"name": "resize", "size": "36x24" if isinstance(size, tuple) else size},
        *([{"name": "crop", "size": crop}] if crop else []),
    ]
    convert(images, tmp_path / "cut", recipe={"store": "png", "transform": steps})
    expected = [sample["image"] for sample in shardctl.open(tmp_path / "cut")]
    loader = stored.loader(16, resize=size, crop=crop)
    found = [image for batch in loader for image in batch["image"]]
    assert len(found) == len(expected)
    assert all(map(np.array_equal, found, expected))


LIMITED = """
import io, resource, sys
import numpy as np
from PIL import Image
import shardctl

def png(width, height):
    data = io.BytesIO()
    Image.new("RGB", (width, height), (200, 100, 50)).save(data, "PNG")
    return data.getvalue()

out, photos = sys.argv[1:]
shardctl.write(out, [{"key": "a", "image": png(40, 30)}, {"key": "thin", "image": png(1, 20_000)}])
ds = shardctl.open(out)
ds[0], list(ds.loader(1, resize=8, crop=8, threads=1))
held = int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmSize"))) << 10
resource.setrlimit(resource.RLIMIT_AS, (held + (400 << 20),) * 2)
(batch,) = ds.loader(2, resize=512, crop=512, threads=1)
assert batch["image"].shape == (2, 512, 512, 3) and (batch["image"] == (200, 100, 50)).all()
(batch,) = ds.loader(2, resize=512, crop=512, crop_from="random", flip=True, threads=1)
assert batch["image"].shape == (2, 512, 512, 3)
skipping = ds.loader(2, resize=512, threads=1, on_error="skip")
(batch,) = skipping
assert batch["key"] == ["a"] and skipping.stats().skipped == 1
try:
    list(ds.loader(2, resize=512, threads=1))
except shardctl.errors.DatasetError as error:
    assert "key 'thin': image: resize: 512 x 10240000 pixels" in str(error), error
else:
    raise AssertionError("it was made")
shardctl.write(out, [{"key": "thin", "image": png(1, 20_000)}], overwrite=True)
thin = shardctl.open(out)
(batch,) = thin.loader(1, resize=512, crop=512, threads=1)
assert batch["image"].shape == (1, 512, 512, 3)
try:
    thin.loader(1, resize=512)
except shardctl.errors.UsageError as error:
    assert "resize makes images of more than 100,000,000 pixels" in str(error), error
else:
    raise AssertionError("it was made")
for steps, samples in (({"resize": 512}, 1), ({"resize": 512, "crop": 512}, 2)):
    done = shardctl.convert(photos, out, overwrite=True, max_rejects=1, workers=0, **steps)
    assert (done.samples, done.rejected) == (samples, 2 - samples), done
"""


@pytest.mark.thorough
def test_a_thin_image_takes_no_memory_that_no_pixel_of_a_batch_needs(tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for name, size in (("a", (40, 30)), ("thin", (1, 20_000))):
        Image.new("RGB", size).save(photos / f"{name}.png")
    ran = run_python(LIMITED, tmp_path / "out", photos)
    assert ran.returncode == 0, ran.stderr


NESTED = pa.schema(
    {
        "key": pa.string(),
        "boxes": pa.list_(pa.list_(pa.float64())),
        "points": pa.list_(pa.list_(pa.int32(), 2)),
        "deep": pa.list_(pa.list_(pa.list_(pa.int64()))),
        "vector": pa.list_(pa.float32(), 3),
        "matrix": pa.list_(pa.list_(pa.int16(), 3), 2),
    }
)


def nested(n: int) -> tuple[Any, ...]:
    boxes = [[float(n + row + column) for column in range(4)] for row in range(n % 3)]
    points = [[n, row] for row in range(n % 4)]
    deep = [[[n] * 2] * (n % 2)] * (n % 3)
    return f"k{n}", boxes, points, deep, [n, 1, 2], [[n, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_lists_of_lists_are_arrays_of_each_sample(tmp_path, compression):
    ds = opened(tmp_path, NESTED, map(nested, range(30)), 12, compression)
    dimensions = {"boxes": 2, "points": 2, "deep": 3, "vector": 1, "matrix": 2}
    for batch in ds.loader(7, shuffle=True, dtype={"boxes": "float32"}):
        assert (batch["vector"].dtype, batch["matrix"].dtype) == (np.float32, np.int16)
        assert batch["boxes"][0].dtype == np.float32
        assert batch["boxes"][0].flags.writeable
        for place, key in enumerate(batch["key"]):
            expected = dict(zip(NESTED.names, nested(int(key[1:])), strict=True))
            for name, count in dimensions.items():
                found = batch[name][place]
                assert found.ndim == count
                assert found.tolist() == expected[name] or found.size == 0
    assert ds[5]["points"].tolist() == [[5, 0]]
    assert ds[5]["boxes"].shape == (2, 4)
    assert ds.take([2, 3], columns=["matrix"])["matrix"].tolist() == [nested(2)[5], nested(3)[5]]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_lists_of_lists_are_padded_to_the_largest_of_the_batch(tmp_path, compression):
    columns = pa.schema({"key": pa.string(), "rows": pa.list_(pa.list_(pa.int32()))})
    values = [[[1, 2, 3], [4]], [], [[5]], [[], [6, 7]], [[8], [9], [10]]]
    rows = [(f"k{n}", value) for n, value in enumerate(values)]
    ds = opened(tmp_path, columns, rows, 3, compression)
    (batch,) = ds.loader(5, pad={"rows": -1}, dtype={"rows": "int64"})
    padded = np.full((5, 3, 3), -1)
    for n, value in enumerate(values):
        for m, row in enumerate(value):
            padded[n, m, : len(row)] = row
    assert batch["rows"].dtype == np.int64
    assert np.array_equal(batch["rows"], padded)
    assert batch["rows_length"].tolist() == [[2, 3], [0, 0], [1, 1], [2, 2], [3, 1]]
    (empty,) = ds[1:2].loader(1, pad={"rows": -1})
    assert empty["rows"].shape == (1, 0, 0)
    (loose,) = ds.loader(5)
    # lists of several lengths stay a list of arrays
    assert [part.tolist() for part in loose["rows"][0]] == values[0]
    assert loose["rows"][4].tolist() == values[4]
    mixed = next(iter(shardctl.mix([ds[:2], ds[2:]], [1, 1]).loader(5, pad={"rows": -1})))
    assert mixed["rows"].shape == (5, *mixed["rows_length"].max(axis=0))


def test_whatever_a_decoder_raises_names_the_sample_and_can_be_skipped(jpegs, monkeypatch):
    """What only the fast decoder does not bear is decoded all the same."""
    import simplejpeg

    from shardctl.images.codecs import image

    ds = shardctl.open(jpegs)
    victim = ds.take([5], decode=False)["image"][0]
    whole = image.decode

    def fast(*_: Any, **__: Any) -> None:
        raise KeyError(6)

    def slow(data: bytes, *limits: Any) -> Any:
        if data == victim:
            raise ZeroDivisionError("a fault of a decoder")
        return whole(data, *limits)

    monkeypatch.setattr(simplejpeg, "decode_jpeg", fast)
    monkeypatch.setattr(image, "decode", slow)
    with pytest.raises(DatasetError, match=r"row 5, key .*: image: .*a fault of a decoder"):
        list(ds.loader(20))
    loader = ds.loader(20, on_error="skip")
    assert sum(len(batch["key"]) for batch in loader) == 59
    assert loader.stats().skipped == 1


def test_times_that_python_cannot_hold_are_exact(tmp_path, out, cli):
    """Python's times end at microseconds and at the year 9999; what numpy's are taken for depends
    on the type alone, for ns."""
    number, late = 1_234_567_891, 10**12
    since, exact = datetime.datetime(1970, 1, 1), np.datetime64(number, "ns")
    span, least = (np.timedelta64(each, "ns") for each in (number, -1))
    columns: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
        "clock": (pa.time64("ns"), [number, None], [span, None]),
        "stamp": (pa.timestamp("ns"), [number, None], [exact, None]),
        "zoned": (pa.timestamp("ns", "Europe/Berlin"), [None, number], [None, exact]),
        "took": (pa.duration("ns"), [number, -1], [span, least]),
        "list": (pa.list_(pa.timestamp("ns")), [[number], None], [[exact], None]),
        "pair": (pa.struct({"at": pa.time64("ns")}), [{"at": number}, None], [{"at": span}, None]),
        "micro": (pa.timestamp("us"), [1, 0], [since + datetime.timedelta(microseconds=1), since]),
        "late": (pa.timestamp("ms"), [0, late * 1000], [since, np.datetime64(late * 1000, "ms")]),
        "day": (pa.date32(), [1, 10**7], [datetime.date(1970, 1, 2), np.datetime64(10**7, "D")]),
    }
    table = pa.table({name: pa.array(given, type_) for name, (type_, given, _) in columns.items()})
    feather.write_feather(table, str(tmp_path / "in.feather"))
    convert(tmp_path / "in.feather", out)
    ds = shardctl.open(out)
    (batch,) = ds.loader(batch_size=2)
    for name, (_, _, wanted) in columns.items():
        for found in (batch[name], [sample[name] for sample in ds]):
            assert found == wanted, name
            assert [type(value) for value in found] == [type(value) for value in wanted], name
    shown = cli("inspect", out, "--head", "1")
    assert (shown.code, "1234567891 nanoseconds" in shown.out) == (0, True), shown.err
