"""Arrays of numpy: rows come out exactly, in any units; nothing is unpickled, and headers that lie
are refused."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from numpy.lib import format as npy
from reading import cut, damaged_reads, read, read_apart, types_of, units_of

from shardctl.errors import Rejection
from shardctl.sources.formats.npy import npy_rows, npz_rows
from shardctl.sources.formats.numbered import Numbered

NPY, NPZ = Numbered(npy_rows), Numbered(npz_rows)


def save(folder: Path, array: Any, name: str = "a.npy") -> Path:
    path = folder / name
    np.save(path, array, allow_pickle=True)
    return path


def header(text: str, data: bytes = b"", version: int = 1) -> bytes:
    size = len(text).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + size + text.encode() + data


def lie(dtype: Any, shape: str, size: int = 0) -> bytes:
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}}}"
    return header(text, bytes(size))


SCALARS = "? i1 u1 <i2 >i2 <u2 <i4 >u4 <i8 >i8 <u8 <f2 <f4 >f4 <f8 >f8".split()


@pytest.mark.parametrize("dtype", SCALARS)
def test_numbers_of_every_type_and_order_of_bytes_come_out(dtype, tmp_path):
    array = np.array([0, 1, 100, 1], dtype)
    found = read(NPY, save(tmp_path, array))
    assert found.table["data"].to_pylist() == array.tolist()
    assert found.table.schema.field("data").type == pa.from_numpy_dtype(
        array.dtype.newbyteorder("=")
    )
    assert found.numbers == [1, 2, 3, 4]


TIMES = {"durations": ([1, "NaT"], "m8[us]"), "days": (["2026-11-21", "NaT"], "M8[D]")}
OTHERS: dict[str, Any] = {
    "texts": np.array(["a", "", "né\0x"]),
    "texts of the other order": np.array(["a", "日本"], ">U2"),
    "bytes": np.array([b"a", b"\xff\0b"]),
    "matrix": np.arange(12, dtype=">i4").reshape(3, 4),
    "Fortran": np.asfortranarray(np.arange(24.0).reshape(4, 3, 2)),
    "texts in lists": np.array([["a", "b"], ["c", ""]]),
    **{name: np.array(*given) for name, given in TIMES.items()},
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_values_come_out(name, tmp_path):
    array = OTHERS[name]
    assert read(NPY, save(tmp_path, array)).table["data"].to_pylist() == array.tolist()


def test_the_bits_of_numbers_do_not_change(tmp_path):
    array = (
        np.arange(1, 2**16, 7, dtype=np.uint16).view(np.float16).astype(np.float32).reshape(-1, 1)
    )
    array[3] = np.nan
    found = read(NPY, save(tmp_path, array)).table["data"].combine_chunks()
    assert found.type == pa.list_(pa.float32(), 1)
    assert found.flatten().to_numpy().tobytes() == array.tobytes()


def test_fields_of_a_structured_array_are_columns(tmp_path):
    inside = [("x", "i1"), ("y", "S2")]
    array = np.array(
        [(1, np.zeros((2, 2)), "a", (0, b"p")), (2, [[1, 2], [3, 4]], "b", (0, b"q"))],
        [("id", ">i8"), ("box", "f4", (2, 2)), ("name", "U3"), ("in", inside)],
    )
    found = read(NPY, save(tmp_path, array))
    box = [[1, 2], [3, 4]]
    assert found.rows[1] == {"id": 2, "box": box, "name": "b", "in": {"x": 0, "y": b"q"}}
    assert found.table.schema.field("box").type == pa.list_(pa.list_(pa.float32(), 2), 2)


def test_names_of_fields_may_be_any_unicode(tmp_path):
    with pytest.warns(UserWarning, match="format 3"):
        path = save(tmp_path, np.zeros(2, [("größe日", "i4")]))
    assert types_of(NPY, path).found().names == ["größe日"]


def test_lengths_as_python_2_wrote_them_are_read(tmp_path):
    text = "{'descr': '<i2', 'fortran_order': False, 'shape': (2L,)}"
    (tmp_path / "a.npy").write_bytes(header(text, b"\1\0\2\0"))
    assert read(NPY, tmp_path / "a.npy").table["data"].to_pylist() == [1, 2]


def test_a_text_that_is_no_unicode_is_a_reject_of_its_row_alone(tmp_path):
    path = save(tmp_path, np.array(["aa", "bb", "cc"]))
    data = path.read_bytes()
    path.write_bytes(data[:-8] + b"\x00\xd8\0\0" + data[-4:])
    found = read(NPY, path)
    assert [row["data"] for row in found.rows] == ["aa", "bb"]
    assert [reject[:2] for reject in found.rejects] == [(3, "not-utf8")]


@pytest.mark.parametrize("order", ["C", "F"])
def test_units_are_read_apart_and_in_any_order(order, tmp_path):
    array = np.arange(600_000).reshape(-1, 2)
    path = save(tmp_path, np.asarray(array, order=order))
    whole = read_apart(NPY, path).table["data"].combine_chunks()
    assert np.array_equal(whole.flatten(), array.reshape(-1))
    unit = units_of(cut(NPY, path))[2]
    part = unit._replace(skip=5, first=unit.first + 5, records=9)
    some = read(NPY, path, units=[part]).table["data"].to_pylist()
    assert some == array[part.first - 1 : part.first + 8].tolist()


def test_the_digest_is_that_of_the_bytes_of_the_rows(tmp_path):
    array = np.arange(1000)
    assert read(NPY, save(tmp_path, array)).digests == [xxhash.xxh3_64(array.tobytes()).hexdigest()]


def test_an_array_without_rows_has_no_units(tmp_path):
    assert cut(NPY, save(tmp_path, np.zeros((0, 3)))) == []


LIES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not-npy"),
    "magic": (b"\x92NUMPY\1\0\2\0{}", "not-npy"),
    "version": (header("{}", version=9), "bad-header"),
    "long header": (b"\x93NUMPY\2\0\xff\xff\xff\xff{", "bad-header"),
    "no literal": (header("__import__('os')"), "bad-header"),
    "deep literal": (header("(" * 9000), "bad-header"),
    "shape": (lie("<f4", "(-1,)"), "bad-header"),
    "shape of truth": (lie("<f4", "(True,)", 4), "bad-header"),
    "type": (lie("nonsense", "(1,)"), "bad-header"),
    "huge": (lie("<f4", "(4611686018427387904, 4096)", 64), "truncated"),
    "huge rows": (lie("<f4", "(1, 999999999)"), "too-large"),
    "many rows of nothing": (lie("<f4", "(9999999999, 0)"), "no-values"),
    "too short": (lie("<f4", "(3,)", 11), "truncated"),
    "too long": (lie("<f4", "(3,)", 13), "wrong-size"),
    "scalar": (lie("<f4", "()", 4), "no-rows"),
    "complex": (lie("<c8", "(1,)", 8), "unknown-type"),
    "objects": (lie("|O", "(1,)", 8), "pickle"),
    "objects inside": (lie([("a", "|O")], "(1,)", 8), "pickle"),
    "part of nothing": (lie([("a", "<f4", (0,)), ("b", "<f4")], "(1,)", 4), "no-values"),
}


@pytest.mark.parametrize("name", LIES)
def test_files_that_lie_are_rejected_and_nothing_is_allocated(name, tmp_path):
    data, error = LIES[name]
    (tmp_path / "a.npy").write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(Rejection) as raised:
            read(NPY, tmp_path / "a.npy")
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert raised.value.error == error


def test_pickles_are_not_read(tmp_path):
    with pytest.raises(Rejection, match="any code"):
        read(NPY, save(tmp_path, np.array([{}, 1], object)))


@pytest.mark.filterwarnings("error")
def test_damage_is_rejected(tmp_path):
    path = save(tmp_path, np.zeros(2, [("a", "i4"), ("b", "U2")]))
    size = path.stat().st_size
    assert damaged_reads(NPY, path, range(size)) >= size


# --- .npz ---

SAVE: dict[str, Callable[..., None]] = {"stored": np.savez, "deflated": np.savez_compressed}


@pytest.mark.parametrize("how", SAVE)
def test_arrays_of_an_archive_are_columns(how, tmp_path):
    images = np.random.default_rng(0).integers(0, 255, (1500, 40, 40), np.uint8)
    labels, names = (np.arange(1500) % 7).tolist(), [f"n{n}" for n in range(1500)]
    path = tmp_path / "a.npz"
    SAVE[how](path, image=images, label=labels, name=names)
    [first, *others] = units_of(cut(NPZ, path))
    assert len(others) == (2 if how == "stored" else 0)
    found = read(NPZ, path).table
    assert found["label"].to_pylist() == labels
    assert found["name"].to_pylist() == names
    assert found.schema.field("image").type == pa.list_(pa.list_(pa.uint8(), 40), 40)
    flat = found["image"].combine_chunks().flatten().flatten()
    assert flat.to_numpy().tobytes() == images.tobytes()
    parts = [first._replace(skip=skip, first=1 + skip, records=100) for skip in (300, 0, 100)]
    again = read(NPZ, path, units=parts)
    assert again.table["label"].to_pylist() == [*labels[300:400], *labels[:200]]


@pytest.mark.parametrize("how", SAVE)
def test_several_splits_in_one_archive_are_refused_with_what_to_do(how, tmp_path):
    names = ("x_train", "y_train", "x_test", "y_test")
    SAVE[how](tmp_path / "a.npz", **dict.fromkeys(names, np.zeros(3)))
    with pytest.raises(Rejection, match=r"several splits; save each split in a file of its own"):
        read(NPZ, tmp_path / "a.npz")


def test_arrays_of_several_lengths_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", a=np.zeros(3), b=np.ones(4))
    with pytest.raises(Rejection, match=r"the array a has 3 rows and the array b 4"):
        read(NPZ, tmp_path / "a.npz")


def test_what_inflates_to_more_than_its_header_says_is_refused(tmp_path):
    inside = io.BytesIO()
    npy.write_array(inside, np.zeros(10))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", inside.getvalue() + bytes(64 << 20))
    with pytest.raises(Rejection, match="to have 80 bytes by its header"):
        read(NPZ, tmp_path / "a.npz")


@pytest.mark.parametrize("how", SAVE)
def test_damage_to_archives_is_rejected(how, tmp_path):
    path = tmp_path / "a.npz"
    SAVE[how](path, a=np.arange(20), b=np.array(["x", "y"] * 10))
    assert damaged_reads(NPZ, path, np.linspace(0, path.stat().st_size - 1, 200, dtype=int)) > 250
    path.write_bytes(b"")
    with pytest.raises(Rejection, match="not a zip file"):
        read(NPZ, path)
