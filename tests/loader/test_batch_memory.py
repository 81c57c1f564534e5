"""The memory of large batches is used again when nobody has them any more: not earlier, and within
a bound."""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from programs import run_python

import shardctl

SAMPLES, SIDE, BATCH = 60, 200, 12
"""Batches of 1.4 MB: smaller ones are in Arrow's memory."""

VARIANTS: list[dict[str, Any]] = [{}, {"crop": 196}, {"normalize": {"image": (0, 1)}}]
"""Copied as they are, and changed on their way."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memory") / "data"
    rows = np.arange(SIDE, dtype=np.uint8).repeat(SIDE * 3).reshape(SIDE, SIDE, 3)
    shardctl.write(path, ({"key": f"{n:02d}", "image": rows + np.uint8(n)} for n in range(SAMPLES)))
    return path


def is_right(batch: dict[str, Any], images: Any) -> bool:
    """Tell whether images are those of their keys, from the first row to the last."""
    first, last = np.stack([[image[0, 0, 0], image[-1, -1, -1]] for image in images], axis=1)
    numbers = np.array(batch["key"], int)
    return bool(
        (last - first == np.uint8(len(images[0]) - 1)).all()
        and (first - first[0] == (numbers - numbers[0]).astype(np.uint8)).all()
    )


def copied(form: Any) -> Any:
    """Return a copy of the numbers that an array, a tensor or a buffer has."""
    return (form.numpy() if hasattr(form, "numpy") else np.asarray(form)).copy()


@pytest.mark.parametrize("options", VARIANTS)
def test_a_batch_that_is_kept_in_any_form_stays_as_it_is(root, options):
    torch = pytest.importorskip("torch")
    forms = [
        lambda array: array,
        lambda array: array[3:],
        lambda array: array.view(np.uint8)[-1],
        lambda array: memoryview(array),
        lambda array: pa.py_buffer(array),
        lambda array: torch.from_numpy(array),
        lambda array: torch.from_numpy(array)[1:, 2:, ::2],
        lambda array: np.from_dlpack(torch.from_numpy(array)),
    ]
    loader = shardctl.open(root).loader(
        BATCH, shuffle=True, columns=["image"], threads=2, repeat=4, **options
    )
    kept = []
    for number, batch in enumerate(loader):
        form = forms[number % len(forms)](batch["image"])
        kept.append((form, copied(form)))
    del batch
    for held in (kept, kept[::2]):
        for form, before in held:
            assert np.array_equal(copied(form), before)
        del held
        list(loader)  # what is free is used now


@pytest.mark.parametrize("options", VARIANTS)
def test_a_later_loader_uses_the_memory_of_an_earlier_one(root, options):
    def addresses() -> set[int]:
        given = {"columns": ["image", "key"], "threads": 1, "prefetch": 1, "drop_last": True}
        found = set()
        for batch in shardctl.open(root).loader(BATCH, shuffle=True, **given, **options):
            assert is_right(batch, batch["image"].astype(np.uint8))
            found.add(batch["image"].ctypes.data)
        return found

    first = addresses()
    assert len(first) < SAMPLES // BATCH
    assert addresses() <= first


def test_threads_that_take_and_leave_batches_never_have_the_same_memory(root):
    ds = shardctl.open(root)

    def train(seed: int) -> bool:
        held: list[Any] = []
        right = []
        options = {"columns": ["image", "key"], "threads": 2, "repeat": 6}
        for batch in ds.loader(BATCH, shuffle=True, seed=seed, **options):
            held.append(batch)
            if len(held) > seed % 4:
                old = held.pop(0)
                right.append(is_right(old, old["image"]))
        return all(right)

    with ThreadPoolExecutor(6) as threads:
        assert all(threads.map(train, range(6)))


def read_in_fork(loader: Any, held: Any, before: Any, go_on: Any, queue: Any) -> None:
    queue.put(all(is_right(batch, batch["image"]) for batch in loader))
    go_on.wait(60)
    queue.put(np.array_equal(held, before))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_and_its_parent_do_not_see_what_the_other_writes(root):
    options = {"columns": ["image", "key"], "threads": 2, "repeat": 3}
    loader = shardctl.open(root).loader(BATCH, shuffle=True, **options)
    batches = iter(loader)
    held = next(batches)["image"]
    before = held.copy()
    context = multiprocessing.get_context("fork")
    queue, go_on = context.Queue(), context.Event()
    child = context.Process(target=read_in_fork, args=(loader, held, before, go_on, queue))
    child.start()
    assert all(is_right(batch, batch["image"]) for batch in batches)
    assert queue.get(timeout=60), "the batches of the child"
    assert np.array_equal(held, before)
    del held
    assert all(is_right(batch, batch["image"]) for batch in loader)
    go_on.set()
    assert queue.get(timeout=60), "the batch that the child holds since the fork"
    child.join(60)


MANY = """
import re, sys
from shardctl.loader.blocks import memory
memory.MOST_KEPT = 8 << 20
import shardctl

def own():
    return int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024

loader = shardctl.open(sys.argv[1]).loader(12, shuffle=True, columns=["image"], repeat=20, drop_last=True)
list(loader.map(lambda batch: None))
before = own()
batches = list(loader)
held = own() - before
del batches
print(held, own() - before)
"""
"""Prints how many MiB 100 batches take, and how many are kept of them."""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_more_memory_is_kept_than_the_bound(root):
    ran = run_python(MANY, root, check=True)
    held, kept = map(int, ran.stdout.split())
    assert held > 120
    assert kept < 20, f"{kept} MiB"


def test_memory_that_the_system_does_not_give_is_a_memory_error():
    from shardctl.loader.blocks.memory import BatchMemory

    with pytest.raises(MemoryError, match="bytes of memory can be had for a batch"):
        BatchMemory().array("image", (1 << 56,), np.dtype(np.uint8))
