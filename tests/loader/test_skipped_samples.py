"""What `on_error="skip"` leaves out: samples whose own bytes are damaged, and only a few of
them."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from annotated import png
from dataset_files import shard_in
from handmade import write_dataset
from programs import run_python

import shardctl
from shardctl.errors import DatasetError
from shardctl.format.layout import ENCODED_IMAGE

PHOTOS = pa.schema({"key": pa.string(), "image": ENCODED_IMAGE})
PHOTO = png(np.zeros((4, 4, 3), np.uint8))

ENDS: dict[str, Callable[[Path], Any]] = {
    "moved": lambda root: root.rename(root.with_name("elsewhere")),
    "a shard is gone": lambda root: shard_in(root, "train-00001").unlink(),
    "a shard is cut short": lambda root: os.truncate(shard_in(root, "train-00001"), 1000),
    # twice: one earlier generation is kept
    "replaced": lambda root: [shardctl.write(root, [{"n": 1}], overwrite=True) for _ in "12"],
}


def photos(root: Path, samples: int, damaged: Any, compression: str = "none") -> Path:
    """Write a dataset in which the images with these numbers do not decode."""
    rows = (
        (f"k{n:05d}", (b"no image" if n in damaged else PHOTO, f"{n}.png")) for n in range(samples)
    )
    write_dataset(root, PHOTOS, rows, max(1, samples // 4), compression)
    return root


def opened(root: Path, samples: int, damaged: Any) -> Any:
    return shardctl.open(photos(root / f"{samples} {damaged}"[:40], samples, damaged))


def keys_of(loader: Any) -> list[str]:
    return [key for batch in loader for key in batch["key"]]


@pytest.mark.thorough(after=4)
@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("end", ENDS)
def test_what_happens_to_a_whole_dataset_is_never_skipped(out, end, compression):
    loader = shardctl.open(photos(out, 800, (), compression)).loader(
        1, on_error="skip", threads=1, prefetch=1
    )
    batches = iter(loader)
    next(batches)
    ENDS[end](out)
    said = {"moved": "moved, renamed or removed", "replaced": "out.*was swept"}
    with pytest.raises(DatasetError, match=said.get(end, "out")):
        list(batches)
    assert loader.stats().skipped == 0


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("options", [{"mmap": False}, {}, {"preload": True}])
def test_a_program_without_a_free_descriptor_is_told_so(tmp_path, options):
    root = photos(tmp_path / "out", 400, (), "zstd" if options else "none")
    code = """
import gc, json, os, resource, sys
import shardctl
shardctl.open(sys.argv[1])[0]
options = json.loads(sys.argv[2])
loader = shardctl.open(sys.argv[1]).loader(8, on_error='skip', threads=1, **options)
batches = iter(loader.map(lambda batch: batch['key']))
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
gc.collect()
held = []
while True:
    try:
        held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        break
try:
    print(sum(map(len, batches)), 'samples')
except shardctl.errors.DatasetError as error:
    print(error, loader.stats().skipped)
"""
    ran = run_python(code, root, json.dumps(options))
    assert "raise the limit of open files" in ran.stdout, ran.stderr
    assert ran.stdout.endswith(" 0\n")


def mixture(ds: Any) -> Any:
    return shardctl.mix([ds[::2], ds[1::2]], [1, 1])


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("of", [lambda ds: ds, mixture], ids=["dataset", "mixture"])
@pytest.mark.parametrize(
    "options", [{}, {"shuffle": True, "threads": 3}, {"processes": 2}], ids=str
)
def test_more_than_a_hundredth_of_an_epoch_is_too_many(tmp_path, of, options):
    few, many = (of(opened(tmp_path, 1500, range(0, 1500, every))) for every in (123, 51))
    loader = few.loader(10, on_error="skip", **options)
    read = len(keys_of(loader))
    assert 10 <= loader.stats().skipped == 1500 - read <= 15
    assert len(keys_of(loader)) in range(1485, 1491), "each epoch counts by itself"
    with pytest.raises(DatasetError, match=r"16 of 1,500 samples of epoch 0.*does not decode"):
        keys_of(many.loader(10, on_error="skip", **options))


def test_of_a_small_dataset_ten_may_be_damaged_and_never_all(tmp_path):
    for samples, damaged in ((40, 10), (5, 4)):
        loader = opened(tmp_path, samples, range(damaged)).loader(4, on_error="skip")
        assert len(keys_of(loader)) == samples - damaged
        assert loader.stats().skipped == damaged
    for samples, damaged in ((40, 11), (5, 5), (1, 1)):
        loader = opened(tmp_path, samples, range(damaged)).loader(4, on_error="skip")
        with pytest.raises(DatasetError, match=r"too many to skip; the first: .*key 'k00000'"):
            keys_of(loader)


def test_a_state_has_what_was_skipped_before_it(tmp_path):
    """Else a job that is stopped every now and then would skip any number."""
    ds = shardctl.open(photos(tmp_path / "out", 1000, range(0, 1000, 50)))
    state = ds.loader(10).state_dict()
    assert "skipped" not in state

    def read_on() -> dict[str, Any]:
        loader = ds.loader(10, on_error="skip")
        loader.load_state_dict(state)
        assert len(keys_of(itertools.islice(loader, 7))) in (68, 69)
        return loader.state_dict()

    for _ in range(7):
        state = read_on()
    assert (state["samples"], state["skipped"]) == (490, 10)
    with pytest.raises(DatasetError, match="11 of 1,000 samples of epoch 0"):
        read_on()


def test_each_rank_counts_its_own_part(tmp_path):
    few, many = (opened(tmp_path, 4000, range(0, 4000, every)) for every in (163, 81))
    ranks = [few.loader(10, on_error="skip", rank=rank, world_size=2) for rank in range(2)]
    assert sum(len(keys_of(each)) for each in ranks) == 4000 - 25
    assert sum(each.stats().skipped for each in ranks) == 25
    with pytest.raises(DatasetError, match=r"21 of 2,000 samples of epoch 0"):
        keys_of(many.loader(10, on_error="skip", rank=0, world_size=2))


@pytest.mark.parametrize(("rank", "ranks", "more"), [(0, 1, 20), (2, 4, 5)])
def test_a_state_of_one_rank_counts_for_another_number_of_them(tmp_path, rank, ranks, more):
    """A rank of two that has skipped half of what it may: so has each that goes on, of its own
    part."""
    for count, ends in (
        (more, nullcontext()),
        (more + 1, pytest.raises(DatasetError, match="too many to skip")),
    ):
        damaged = {*range(10), *range(2000, 2000 + count)}
        ds = shardctl.open(photos(tmp_path / str(count), 4000, damaged))
        before = ds.loader(10, on_error="skip", rank=0, world_size=2)
        keys_of(itertools.islice(before, 2))
        resumed = ds.loader(10, on_error="skip", rank=rank, world_size=ranks)
        resumed.load_state_dict(before.state_dict())
        with ends:
            keys_of(resumed)


def test_many_ranks_together_skip_no_more_than_one(tmp_path):
    """Each may skip its part of what one rank may, rounded up: one of 20 samples here, not ten."""
    ds = shardctl.open(photos(tmp_path / "out", 320, range(320)))
    for rank in range(16):
        with pytest.raises(DatasetError, match=r"2 of 20 samples of epoch 0"):
            keys_of(ds.loader(1, on_error="skip", rank=rank, world_size=16))


def test_a_dataset_of_torch_skips_as_few_and_its_state_counts(tmp_path):
    pytest.importorskip("torch")
    from shardctl.torch import IterableDataset, Loader

    few, many = (opened(tmp_path, 40, range(count)) for count in (10, 11))
    for made in (
        lambda ds: Loader(ds.loader(4, on_error="skip")),
        lambda ds: IterableDataset(ds, 4, on_error="skip"),
    ):
        assert len(keys_of(made(few))) == 30
        with pytest.raises(DatasetError, match="11 of 40 samples of epoch 0"):
            keys_of(made(many))
    ds = shardctl.open(photos(tmp_path / "out", 40, (*range(6), *range(30, 35))))
    before, after = (IterableDataset(ds, 4, on_error="skip") for _ in range(2))
    next(iter(before))
    after.load_state_dict(before.state_dict())
    with pytest.raises(DatasetError, match="11 of 40 samples"):
        keys_of(after)
