"""HDF5: data sets of equal length come out exactly, nothing outside of the file is opened, and
damage is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from in_this_process import convert
from reading import damaged_reads, read, read_apart

from shardctl.errors import Rejection
from shardctl.sources.formats import Reading, Unit, ending_of, find_format

h5py = pytest.importorskip("h5py")

HDF5 = find_format(".h5", Reading())


def rows_of(folder: Path, **sets: Any) -> list[dict[str, Any]]:
    with h5py.File(folder / "a.h5", "w") as file:
        for name, values in sets.items():
            file[name] = values
    return read(HDF5, folder / "a.h5").rows


@pytest.mark.parametrize("dtype", ["?", "i1", ">i2", "<u4", ">i8", "f2", "f4", ">f8"])
def test_numbers_of_every_type_come_out(dtype, tmp_path):
    array = np.array([[0, 1], [1, 100]], dtype)
    assert rows_of(tmp_path, x=array) == [{"x": row} for row in array.tolist()]


def test_texts_bytes_and_structures_come_out(tmp_path):
    texts = np.array([["né", "日本"], ["", "x"]], object)
    mixed = np.array([(1, [1, 2]), (2, [3, 4])], [("n", "i2"), ("box", "f4", (2,))])
    fixed = np.array(["né".encode(), b"a"], h5py.string_dtype("utf-8", 4))
    found = rows_of(
        tmp_path,
        text=texts.astype(h5py.string_dtype()),
        raw=np.array([b"\xff", b"ab"]),
        mixed=mixed,
        fixed=fixed,
    )
    assert found == [
        {"fixed": "né", "mixed": {"n": 1, "box": [1, 2]}, "raw": b"\xff", "text": ["né", "日本"]},
        {"fixed": "a", "mixed": {"n": 2, "box": [3, 4]}, "raw": b"ab", "text": ["", "x"]},
    ]


def test_an_enumeration_is_its_numbers(tmp_path):
    kind = h5py.enum_dtype({"cat": 1, "dog": 2}, "i1")
    assert rows_of(tmp_path, x=np.array([1, 2], kind)) == [{"x": 1}, {"x": 2}]
    said = convert(tmp_path / "a.h5", tmp_path / "out").notices
    assert said == ("left out: the names of the classes of x.enum (2)",)


def test_data_sets_may_be_in_one_group(tmp_path):
    assert rows_of(tmp_path, **{"train/x": [1, 2], "train/y": [3, 4]}) == [
        {"x": 1, "y": 3},
        {"x": 2, "y": 4},
    ]


def test_units_are_read_apart(tmp_path):
    array = np.random.default_rng(0).normal(size=(30_000, 10))
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=array, chunks=(700, 10), compression="gzip", shuffle=True)
    whole = read_apart(HDF5, path).table
    assert whole["x"].combine_chunks().flatten().to_numpy().tobytes() == array.tobytes()
    assert whole.schema.field("x").type == pa.list_(pa.float64(), 10)
    part = read(HDF5, path, units=[Unit(0, 0, 5, 20_006, 9)])
    assert part.table["x"].to_pylist() == array[20_005:20_014].tolist()


def virtual(file: Any) -> None:
    layout = h5py.VirtualLayout((3,), "u1")
    layout[:] = h5py.VirtualSource("other.h5", "x", (3,))
    file.create_virtual_dataset("x", layout)


ZEROS = np.zeros(3)
ODD: dict[str, tuple[str, Callable[[Any], object]]] = {
    "lengths": ("several-lengths", lambda file: file.update(x=ZEROS, y=np.zeros(4))),
    "external link": ("link", lambda file: file.update(x=h5py.ExternalLink("other.h5", "/x"))),
    "soft link": ("link", lambda file: file.update(x=ZEROS, y=h5py.SoftLink("/x"))),
    "external data": (
        "elsewhere",
        lambda file: file.create_dataset("x", (3,), "u1", external=[("/etc/passwd", 0, 3)]),
    ),
    "virtual": ("elsewhere", virtual),
    "references": (
        "unknown-type",
        lambda file: file.update(x=np.array([file.ref], h5py.ref_dtype)),
    ),
    "lists": ("unknown-type", lambda file: file.create_dataset("x", (2,), h5py.vlen_dtype("i4"))),
    "scalar": ("no-rows", lambda file: file.update(x=1.0)),
    "huge": (
        "truncated",
        lambda file: file.create_dataset("x", (2**40, 2**20), "f8", chunks=(1, 1024)),
    ),
    "not written": ("truncated", lambda file: file.create_dataset("x", (100,), "f8")),
    "complex": ("unknown-type", lambda file: file.update(x=np.zeros(3, "c8"))),
    "groups": ("several-groups", lambda file: file.update({"a/x": ZEROS, "b/x": ZEROS})),
    "nothing": ("empty", lambda file: None),
}


@pytest.mark.parametrize("what", ODD)
def test_what_is_no_column_is_refused(what, tmp_path):
    error, make = ODD[what]
    (tmp_path / "other.h5").write_bytes(b"")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        make(file)
    with pytest.raises(Rejection) as raised:
        read(HDF5, tmp_path / "a.h5")
    assert raised.value.error == error


def test_files_that_are_cut_are_refused(tmp_path):
    rows_of(tmp_path, x=np.arange(100), y=np.arange(100.0))
    data = (tmp_path / "a.h5").read_bytes()
    for size in [*range(0, len(data), 61), len(data) - 1]:
        (tmp_path / "a.h5").write_bytes(data[:size])
        with pytest.raises(Rejection, match=r"not an HDF5 file|cannot be read|outside of|is cut"):
            read(HDF5, tmp_path / "a.h5")


def test_damage_to_compressed_data_is_rejected(tmp_path):
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "x", data=np.arange(1000), chunks=(100,), compression="gzip", fletcher32=True
        )
        chunk = file["x"].id.get_chunk_info(3)
    places = range(chunk.byte_offset, chunk.byte_offset + chunk.size, 9)
    assert damaged_reads(HDF5, path, places) == 2 * len(places)


def test_a_file_is_known_by_content(tmp_path):
    rows_of(tmp_path, x=[1])
    assert ending_of("a", str(tmp_path / "a.h5")) == ".h5"
