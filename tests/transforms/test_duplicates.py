"""Duplicates across a whole dataset: which image is kept is a rule, and the others are rejects that
name it."""

from __future__ import annotations

import errno
import io
import pickle
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import examples
from dataset_facts import dropped, keys, sums
from dataset_files import files_called
from hypothesis import given
from hypothesis import strategies as st
from image_files import saved
from in_this_process import convert
from pictures import oriented, soft_shapes
from PIL import Image

import shardctl
from shardctl.errors import (
    DatasetError,
    Rejection,
    SourceGoneError,
    TooManyRejectsError,
    UsageError,
)
from shardctl.making.shards import hashes as image_hashes
from shardctl.making.shards.hashes import hash_image
from shardctl.making.shards.inputs import PrePlanTask, ReadRequest, run_task
from shardctl.system.processes.worker_state import WorkerProgress
from shardctl.transforms.duplicates.pictures import (
    Places,
    distances,
    first_of_equal,
    first_of_similar,
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight scenes, copies of two of them, other versions of three, and two damaged files of the
    same bytes."""
    root = tmp_path_factory.mktemp("duplicates") / "in"
    for number in range(8):
        saved(soft_shapes(number), root / f"b/{number}.png")
    for name in ("a/copy_of_3.png", "c/copy_of_3.png"):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(root / "b/3.png", root / name)
    shutil.copy(root / "b/5.png", root / "c/copy_of_5.png")
    saved(soft_shapes(0).resize((48, 36)), root / "c/small.png")
    saved(soft_shapes(1), root / "c/worse.jpg", quality=20)
    saved(soft_shapes(2).resize((60, 90)), root / "c/squashed.png")
    for name in ("c/broken.jpg", "c/broken_too.jpg"):
        (root / name).write_bytes(b"\xff\xd8\xff and no picture")
    return root


OF_BYTES = {"duplicates": "exact"}
EXACT = {
    "b/3.png": "has the same bytes as a/copy_of_3.png, which is kept",
    "c/copy_of_3.png": "has the same bytes as a/copy_of_3.png, which is kept",
    "c/copy_of_5.png": "has the same bytes as b/5.png, which is kept",
}


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("workers", [0, 2])
def test_of_files_with_the_same_bytes_the_first_in_the_listing_is_kept(source, out, workers):
    result = shardctl.convert(source, out, recipe=OF_BYTES, workers=workers)
    assert dropped(out) == EXACT
    assert result.reasons == {"plan: duplicate": 3, "decode: damaged": 2}
    assert result.notices[-1].startswith("3 of 16 inputs are duplicates of others, and rejected")
    assert not set(EXACT) & set(keys(out))


def test_images_that_look_alike_are_found_in_another_size_encoding_and_shape(source, tmp_path):
    made = []
    for workers in (0, 2):
        out = tmp_path / f"out{workers}"
        shardctl.convert(
            source, out, recipe={"duplicates": "similar"}, workers=workers, samples_per_shard=3
        )
        made.append(sums(out))
    assert made[0] == made[1]
    found = dropped(tmp_path / "out0")
    assert {key: message.split(",")[0] for key, message in found.items()} == {
        "b/3.png": "looks like a/copy_of_3.png",
        "c/copy_of_3.png": "looks like a/copy_of_3.png",
        "c/copy_of_5.png": "looks like b/5.png",
        "c/small.png": "looks like b/0.png",
        "c/worse.jpg": "looks like b/1.png",
        "c/squashed.png": "looks like b/2.png",
    }
    assert "0 of 64 bits" in found["c/copy_of_5.png"]


def test_the_upright_image_is_compared(tmp_path, out):
    saved(soft_shapes(1), tmp_path / "in/a.png")
    turned = soft_shapes(1).transpose(Image.Transpose.ROTATE_90)
    saved(turned, tmp_path / "in/b.jpg", exif=oriented(6), quality=95)
    saved(turned, tmp_path / "in/c.png")
    convert(tmp_path / "in", out, recipe={"duplicates": "similar"})
    assert list(dropped(out)) == ["b.jpg"]


def test_images_without_contrast_are_all_kept_as_similar(tmp_path):
    for number, colour in enumerate(("white", "black", "#808080")):
        saved(Image.new("RGB", (64, 64), colour), tmp_path / f"in/{number}.png")
    result = convert(tmp_path / "in", tmp_path / "out", recipe={"duplicates": "similar:16"})
    assert (result.samples, result.rejected) == (3, 0)


def test_keep_is_the_default_and_another_choice_is_another_dataset(source, out, cli):
    first = convert(source, out)
    again = convert(source, out, recipe={"duplicates": "keep"})
    assert (again.status, again.fingerprint) == ("up-to-date", first.fingerprint)
    with pytest.raises(DatasetError, match="differs in its recipe"):
        convert(source, out, recipe=OF_BYTES)
    given_ones = ("convert", source, out, *"--duplicates similar:3 --workers 0".split())
    ran = cli(*given_ones, "--overwrite", "--json")
    assert ran.json["reject_reasons"]["plan: duplicate"] == len(dropped(out)) >= 3
    assert shardctl.open(out).manifest.recipe["duplicates"] == "similar:3"
    assert cli(*given_ones).out.startswith(f"{out} is up to date")


def test_a_dry_run_counts_what_will_be_kept(source, out):
    result = convert(source, out, recipe=OF_BYTES, dry_run=True)
    assert result.estimate is not None
    assert (result.samples, result.estimate.inputs) == (13, 16)
    (notice,) = result.estimate.notices
    assert notice.startswith("3 of 16 inputs are duplicates of others, and rejected")
    assert not out.exists()


def test_the_inputs_that_are_tried_beforehand_are_no_duplicates(tmp_path):
    """Of 101 files two are kept: tried were up to 32 files from all over them, and none came
    through a function."""
    saved(soft_shapes(0), tmp_path / "in/000.png")
    for number in range(1, 101):
        shutil.copy(tmp_path / "in/000.png", tmp_path / f"in/{number:03d}.png")
    saved(soft_shapes(1), tmp_path / "in/050.png")
    result = convert(tmp_path / "in", tmp_path / "out", recipe=OF_BYTES, dry_run=True)
    assert result.estimate is not None
    assert (result.samples, result.shards, result.estimate.probe_rejects) == (2, 1, 0)


def test_rejected_duplicates_count_for_max_rejects(source, out):
    with pytest.raises(TooManyRejectsError, match="5 inputs of 16 rejected so far"):
        convert(source, out, recipe=OF_BYTES, max_rejects=4)
    assert convert(source, out, recipe=OF_BYTES, max_rejects=5).rejected == 5


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(
    "names", [("train-*",), ("train-*", "plan.arrow"), ("train-*", "plan.arrow", "rejects.jsonl")]
)
def test_repair_brings_back_the_same_samples_and_rejects(source, out, names):
    convert(source, out, recipe={"duplicates": "similar"}, samples_per_shard=4)
    before = sums(out)
    for path in [path for name in names for path in files_called(out, name)]:
        path.unlink()
    shardctl.repair(out)
    assert sums(out) == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"duplicates": "same"}, "duplicates must be keep, exact, similar"),
        ({"duplicates": "similar:17"}, "'similar:17'"),
        ({"duplicates": "near", "kind": "image"}, "use exact or similar"),
        ({"duplicates": "exact", "image_field": "photo"}, "image files"),
    ],
)
def test_what_cannot_be_meant_is_refused(source, tmp_path, settings, message):
    with pytest.raises(UsageError, match=message):
        convert(source, tmp_path / "out", recipe=settings)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("silent", "refused"), [(3, False), (4, True)])
def test_a_source_that_does_not_answer_is_not_taken_for_one_without_duplicates(
    tmp_path, out, monkeypatch, silent, refused
):
    for number in range(6):
        saved(soft_shapes(1), tmp_path / f"in/{number}.png")
    read = image_hashes.read_listed

    def failing(path: str, *listed: int) -> object:
        if int(Path(path).stem) < silent:
            raise OSError(errno.EIO, "Input/output error")
        return read(path, *listed)

    monkeypatch.setattr(image_hashes, "read_listed", failing)
    if refused:
        with pytest.raises(SourceGoneError, match=r"4 files cannot be read, among them 0\.png"):
            convert(tmp_path / "in", out, recipe=OF_BYTES)
    else:
        convert(tmp_path / "in", out, recipe=OF_BYTES)
        assert dropped(out) == dict.fromkeys(
            ("4.png", "5.png"), "has the same bytes as 3.png, which is kept"
        )


def test_a_file_that_changed_or_ends_its_process_is_not_compared(tmp_path):
    path = saved(soft_shapes(1), tmp_path / "a.png")
    state = path.stat()
    listed = ReadRequest(str(path), state.st_size, state.st_mtime_ns, True)
    look = partial(hash_image, what="picture", max_pixels=10**6, keep_truncated=False)
    work = PrePlanTask((listed, listed, listed._replace(version=1)), look)
    again = pickle.loads(pickle.dumps(work))
    found = run_task(
        again, WorkerProgress(), {0: Rejection("decode", "crashed", "it crashed every time")}
    )
    assert found[0] == {"fault": ["decode", "crashed", "it crashed every time"]}
    assert isinstance(found[1]["hash"], int)
    assert found[2]["fault"][1] == "changed"


def plainly(hashes: list[int], distance: int) -> list[int]:
    """Do what first_of_similar does, one by one."""
    first: list[int] = []
    for place, value in enumerate(hashes):
        near = (
            other
            for other in range(place)
            if first[other] == other and (hashes[other] ^ value).bit_count() <= distance
        )
        first.append(next(near, place))
    return first


@st.composite
def near_hashes(draw: st.DrawFn) -> list[int]:
    """Draw hashes of which many are near each other: a few numbers, with some bits changed."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    base = rng.integers(0, 2**64, draw(st.integers(1, 40)), np.uint64)
    hashes = base[rng.integers(0, len(base), draw(st.integers(1, 700)))]
    for _ in range(draw(st.integers(0, 8))):
        hashes = hashes ^ (np.uint64(1) << rng.integers(0, 64, len(hashes), np.uint64))
    return [int(value) for value in hashes]


@examples(15)
@given(near_hashes(), st.integers(0, 16), st.booleans())
def test_similar_hashes_are_found_as_by_comparing_each_with_each(hashes, distance, lookup):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardctl.transforms.duplicates.pictures.LEAF", 16)
        patch.setattr(
            "shardctl.transforms.duplicates.pictures.SETUP", -(2**60) if lookup else 2**60
        )
        found = first_of_similar(np.array(hashes, np.uint64), distance)
    assert found.tolist() == plainly(hashes, distance)


@examples(20)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2))))
def test_equal_digests_are_found_wherever_they_are(pairs):
    found: Places = first_of_equal(np.array(pairs, np.uint64).reshape(-1, 2))
    assert found.tolist() == [pairs.index(pair) for pair in pairs]


@pytest.mark.parametrize("old_numpy", [False, True])
def test_bits_are_counted_with_either_numpy(monkeypatch, old_numpy):
    if old_numpy:
        monkeypatch.delattr(np, "bitwise_count", raising=False)
    some = np.random.default_rng(0).integers(0, 2**64, 50, np.uint64)
    others = np.concatenate([some[:1], ~some[1:2], some[::-1][2:]])
    assert distances(some, others).tolist() == [
        (int(a) ^ int(b)).bit_count() for a, b in zip(some, others, strict=True)
    ]


def test_a_larger_jpeg_is_decoded_at_a_smaller_scale_for_its_hash(tmp_path, out):
    data = io.BytesIO()
    soft_shapes(4, (1600, 1200)).save(data, "JPEG")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/large.jpg").write_bytes(data.getvalue())
    saved(soft_shapes(4, (400, 300)), tmp_path / "in/small.png")
    convert(tmp_path / "in", out, recipe={"duplicates": "similar:2"})
    assert list(dropped(out)) == ["small.png"]


@pytest.mark.parametrize("rule", ["exact", "similar"])
def test_an_image_with_wrong_annotations_is_none_that_others_are_dropped_for(tmp_path, out, rule):
    saved(soft_shapes(1), tmp_path / "in" / "a.png")
    shutil.copy(tmp_path / "in" / "a.png", tmp_path / "in" / "b.png")
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "a.txt").write_text("0 .5 .5 wide .1")
    (tmp_path / "labels" / "b.txt").write_text("0 .5 .5 .1 .1")
    labels = f"yolo:{tmp_path / 'labels'}"
    convert(tmp_path / "in", out, recipe={"duplicates": rule}, labels=labels)
    assert keys(out) == ["b.png"]
    assert dropped(out) == {}
