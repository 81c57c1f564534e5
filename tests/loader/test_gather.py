"""Values are gathered out of their buffers, and nothing beyond them is read: the page behind may
belong to nobody."""

from __future__ import annotations

import mmap
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from guarded_memory import run_checked
from hypothesis import given
from hypothesis import strategies as st

from shardctl.loader.blocks import gather as gathering
from shardctl.loader.blocks.gather import LEAST_ALONE, Located, gather, gather_fixed, gather_into

GUARDED = """
import ctypes, mmap
import numpy as np
import pyarrow as pa
from shardctl.loader.blocks.gather import Located, gather, gather_fixed

libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)

def at_the_end_of_a_page(data):
    page = libc.mmap(None, 2 * mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    libc.mprotect(ctypes.c_void_p(page + mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE), 0)
    place = page + mmap.PAGESIZE - len(data)
    ctypes.memmove(place, data, len(data))
    return pa.foreign_buffer(place, len(data))

def places(*numbers):
    return np.array(numbers, np.int64)

for count in (1, 2, 3, 7, 20, 100):
    for width in (1, 2, 4, 8, 12, 13, 16, 40):
        data = bytes(number % 251 for number in range(count * width))
        buffers = [at_the_end_of_a_page(data), at_the_end_of_a_page(data[:width])]
        rows = places(*range(count), 0, count - 1)
        which = places(*[0] * count, 1, 0)
        located = Located(buffers, which, rows * width, np.full(len(rows), width))
        expected = [data[row * width : (row + 1) * width] for row in rows.tolist()]
        assert [bytes(row) for row in gather_fixed(located, width)] == expected
        assert gather(located).to_pylist() == expected
        assert [bytes(row) for row in located.rows()] == expected
print("read")
"""


def test_nothing_behind_a_buffer_is_read():
    ended = run_checked(GUARDED)
    assert (ended.returncode, ended.stdout) == (0, "read\n"), ended.stderr


@pytest.mark.parametrize("stretch", [1 << 30, 16])
@given(
    st.lists(st.binary(max_size=60), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60), st.integers(0, 60)), max_size=8),
)
def test_gathered_values_are_those_of_the_buffers(stretch, contents, drawn):
    """With a stretch of 16 bytes, buffers and values are as large for it as those of more than 1
    GiB."""
    places = []
    for number, start, length in drawn:
        which = number % len(contents)
        size = len(contents[which])
        places.append((which, min(start, size), min(length, size - min(start, size))))
    which, start, length = np.array(places, np.int64).reshape(-1, 3).T
    located = Located([pa.py_buffer(content) for content in contents], which, start, length)
    expected = [contents[which][start : start + length] for which, start, length in places]
    with mock.patch.object(gathering, "_STRETCH", stretch):
        assert gather(located).to_pylist() == expected
        for width in {int(size) for size in length}:
            same = located.at(length == width)
            assert list(map(bytes, gather_fixed(same, width))) == list(map(bytes, same.rows()))
    assert list(map(bytes, located.rows())) == expected


@pytest.mark.parametrize("count", [0, 1, 2, 3, 40, 1100])
@pytest.mark.parametrize(
    "width",
    [1, 24, 4096, LEAST_ALONE - 8, LEAST_ALONE, LEAST_ALONE + 1, LEAST_ALONE + 8, 3 * LEAST_ALONE],
)
def test_values_are_copied_into_the_memory_of_the_caller_and_nothing_beside_it_is_written(
    width, count
):
    numbers = np.random.default_rng(width + count)
    sizes = np.array([width, width + 9, 3 * width + 5])
    buffers = [pa.py_buffer(numbers.integers(0, 256, size, np.uint8)) for size in sizes]
    which = numbers.integers(0, 3, count)
    start = numbers.integers(0, sizes[which] - width + 1)
    located = Located(buffers, which, start, np.full(count, width))
    memory = np.full(3 + (count + 2) * width, 7, np.uint8)
    rows = memory[3:].reshape(-1, width)  # at an odd address
    gather_into(located, width, rows[1:-1])
    assert all(map(np.array_equal, rows[1:-1], located.rows()))
    assert (memory[: 3 + width] == 7).all()
    assert (rows[-1] == 7).all()


PLACES = [0, (1 << 30) - 20, 1 << 30, (1 << 31) - 20, (1 << 31) + 5, (1 << 32) - 20, (1 << 32) + 5]


@pytest.fixture
def far(tmp_path: Path) -> pa.Buffer:
    """A buffer of more than 4 GiB: a file with holes."""
    with open(tmp_path / "far", "w+b") as file:
        file.truncate((1 << 32) + (1 << 20))
        for place in PLACES:
            file.seek(place)
            file.write(bytes(range(place % 200, place % 200 + 40)))
        file.flush()
        return pa.py_buffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))


@pytest.mark.parametrize("width", [4, 12, 13, 40])
def test_values_beyond_2_gib_of_a_buffer_are_found(far, width):
    near = pa.py_buffer(b"near" * 20)
    start = np.array([4, *PLACES], np.int64)
    which = np.minimum(np.arange(len(start)), 1)
    located = Located([near, far], which, start, np.full(len(start), width))
    expected = [bytes(range(place % 200, place % 200 + width)) for place in PLACES]
    expected.insert(0, (b"near" * 20)[4 : 4 + width])
    assert gather(located).to_pylist() == expected
    views = [view for _, view in located.views(list(range(len(start))))]
    for found in (gather_fixed(located, width), located.rows(), views):
        assert list(map(bytes, found)) == expected
