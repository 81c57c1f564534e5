"""What fuzzing of the readers of other formats begins with: small sound files, and ways to change
them."""

from __future__ import annotations

import io
import random
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import shardctl

INTEROP = Path(__file__).resolve().parents[2] / "tests" / "interop" / "samples"

INTERESTING = (
    0,
    1,
    2,
    7,
    8,
    127,
    128,
    255,
    256,
    511,
    512,
    65535,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
"""Numbers that lengths and offsets go wrong at."""

Files = dict[str, bytes]
"""Files by their names: the first one is read, the others lie beside it."""

Mend = Callable[[bytes, random.Random], bytes]


def as_it_is(data: bytes, _: random.Random) -> bytes:
    return data


@dataclass(frozen=True)
class Kind:
    """A format: `seeds` gives sound files, `mend` makes the checksums of a changed one right.

    A file that `packs` may be compressed as a whole. `may_end` says that the format's library may
    end the process, or never come back: HDF5 and LMDB follow numbers of the file to any place,
    pyarrow and Lance do not catch all of their own errors.
    """

    seeds: Callable[[], list[Files]]
    mend: Mend = as_it_is
    packs: bool = False
    may_end: bool = False


def changed(data: bytes, draw: random.Random) -> bytes:
    """Return a file with one to four changes."""
    found = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 4))):
        at = draw.randrange(len(found) + 1)
        kind = draw.randrange(6)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            width = draw.choice((1, 2, 4, 8))
            number = (draw.choice(INTERESTING) + draw.randrange(-2, 3)) % (1 << 8 * width)
            found[at : at + width] = number.to_bytes(width, draw.choice(("little", "big")))
        elif kind == 2:
            del found[at : at + draw.choice((1, 4, 8, 12, 16, 512, 1024))]
        elif kind == 3:
            del found[at:]
        elif kind == 4:
            start, length = draw.randrange(len(found) + 1), draw.choice((1, 8, 100, 512, 1024))
            found[at:at] = found[start : start + length]
        else:
            start, length = draw.randrange(len(found) + 1), draw.choice((1, 8, 100, 512))
            found[at : at + length] = found[start : start + length]
    return bytes(found)


def with_tar_checksums(data: bytes, _: random.Random) -> bytes:
    """Return a tar whose headers have right checksums, wherever something is in a block that looks
    like a header."""
    found = bytearray(data)
    for at in range(0, len(found) - 511, 512):
        if found[at + 257 : at + 262] == b"ustar":
            found[at + 148 : at + 156] = b" " * 8
            found[at + 148 : at + 156] = b"%06o\0 " % sum(found[at : at + 512])
    return bytes(found)


def with_crcs(data: bytes, draw: random.Random) -> bytes:
    """Return a TFRecord file whose records have right checksums, and changes within their data."""
    import google_crc32c

    from shardctl.sources.formats.tfrecord import masked

    records, at = [], 0
    while at + 16 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        if at + 16 + length > len(data):
            break
        record = data[at + 12 : at + 12 + length]
        records.append(changed(record, draw) if draw.randrange(2) else record)
        at += 16 + length
    made = b""
    for record in records:
        head = struct.pack("<Q", len(record))
        made += head + struct.pack("<I", masked(google_crc32c.value(head)))
        made += record + struct.pack("<I", masked(google_crc32c.value(record)))
    return made


# --- files to begin with ---


def stored(pattern: str, name: str, *beside: str) -> Callable[[], list[Files]]:
    """Return what gives the files of tests/interop/samples that fit a pattern, each called `name`,
    with what lies beside."""

    @cache
    def seeds() -> list[Files]:
        paths = sorted(INTEROP.glob(pattern))
        return [
            {
                name: path.read_bytes(),
                **{each: path.with_name(each).read_bytes() for each in beside},
            }
            for path in paths
        ]

    return seeds


def exported(to: str, name: str, suffixes: tuple[str, ...]) -> Callable[[], list[Files]]:
    """Return what gives the files of an export of a few samples, `name` with each of the suffixes."""

    @cache
    def seeds() -> list[Files]:
        with tempfile.TemporaryDirectory() as scratch:
            given, dataset, out = (Path(scratch, name) for name in ("a.txt", "in", "out"))
            given.write_text("".join(f"row {n}\n" for n in range(9)))
            shardctl.convert(given, dataset, tokenizer="bytes", workers=0, progress=False)
            shardctl.export(dataset, out, to, workers=0, progress=False)
            paths = [next(out.rglob(f"*{suffix}")) for suffix in suffixes]
            return [{name + path.suffix: path.read_bytes() for path in paths}]

    return seeds


ARRAYS: tuple[Any, ...] = (
    np.zeros((3, 4)),
    np.arange(5, dtype="<i2"),
    np.zeros((0, 2), "?"),
    np.array(3, np.float16),
    np.zeros(2, "U3"),
)


@cache
def npy_files() -> list[bytes]:
    found = []
    for array in ARRAYS:
        sink = io.BytesIO()
        np.lib.format.write_array(sink, array)
        found.append(sink.getvalue())
    return found


@cache
def arrays_in_tars() -> list[Files]:
    found = []
    for data in npy_files():
        sink = io.BytesIO()
        with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as tar:
            info = tarfile.TarInfo("a.npy")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        found.append({"a.tar": sink.getvalue()})
    return found


@cache
def npz_files() -> list[Files]:
    found = []
    for compression in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        sink = io.BytesIO()
        with zipfile.ZipFile(sink, "w", compression) as made:
            for number, array in enumerate(
                (np.arange(6).reshape(3, 2), np.ones(3, "f4"), np.zeros((3, 1), "S2"))
            ):
                member = io.BytesIO()
                np.lib.format.write_array(member, array)
                made.writestr(f"x{number}.npy", member.getvalue())
        found.append({"a.npz": sink.getvalue()})
    return found


@cache
def table() -> pa.Table:
    """Return a table with columns of all kinds."""
    return pa.table(
        {
            "image": pa.array(
                [{"bytes": b"\xff\xd8abc", "path": "a.jpg"}, None, {"bytes": b"", "path": None}] * 3
            ),
            "label": pa.array(["cat", "dog", None] * 3).dictionary_encode(),
            "text": ["né", "", "日本"] * 3,
            "boxes": pa.array([[[0.5, 1.0], []], [], None] * 3, pa.list_(pa.list_(pa.float32()))),
            "pair": pa.array([[1, 2], [3, 4], None] * 3, pa.list_(pa.int16(), 2)),
            "day": pa.array([0, 1, None] * 3, pa.timestamp("us", "UTC")),
            "yes": [True, False, None] * 3,
            "none": pa.nulls(9),
        }
    )


@cache
def parquet_files() -> list[Files]:
    from pyarrow import parquet

    found = []
    for settings in (
        {},
        {"compression": "zstd", "write_page_checksum": True},
        {"compression": "none", "use_dictionary": False},
    ):
        sink = io.BytesIO()
        parquet.write_table(table(), sink, row_group_size=4, **settings)
        found.append({"a.parquet": sink.getvalue()})
    return found


@cache
def arrow_files() -> list[Files]:
    found = []
    for name, writer in (("a.arrow", pa.ipc.new_file), ("a.arrows", pa.ipc.new_stream)):
        for codec in (None, "lz4", "zstd"):
            sink = io.BytesIO()
            with writer(
                sink, table().schema, options=pa.ipc.IpcWriteOptions(compression=codec)
            ) as made:
                made.write_table(table(), max_chunksize=4)
            found.append({name: sink.getvalue()})
    return found


@cache
def hdf5_files() -> list[Files]:
    import h5py

    found = []
    for settings in (
        {},
        {"chunks": True, "compression": "gzip", "shuffle": True, "fletcher32": True},
    ):
        sink = io.BytesIO()
        with h5py.File(sink, "w") as file:
            file.create_dataset("x", data=np.arange(40).reshape(10, 4), **settings)
            file.create_dataset(
                "pair", data=np.zeros(10, [("n", "i2"), ("box", "f4", (2,))]), **settings
            )
            file.create_dataset(
                "text", data=np.array(["né"] * 10, object), dtype=h5py.string_dtype()
            )
            file["x"].attrs["unit"] = "m"
        found.append({"a.h5": sink.getvalue()})
    return found


@cache
def lmdb_files() -> list[Files]:
    import lmdb

    found = []
    for entries in (
        {b"%05d" % n: bytes([n]) * 300 for n in range(60)},
        {b"a": b"x" * 10_000, b"b": b""},
    ):
        with tempfile.TemporaryDirectory() as scratch:
            path = Path(scratch, "a.mdb")
            with (
                lmdb.open(str(path), map_size=1 << 20, subdir=False) as environment,
                environment.begin(write=True) as writing,
            ):
                for key, value in entries.items():
                    writing.put(key, value)
            found.append({path.name: path.read_bytes()})
    return found


@cache
def lance_folders() -> list[Files]:
    import lance

    found = []
    for version in ("2.0", "2.1"):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch, "a.lance")
            lance.write_dataset(
                table().drop_columns(["none", "image"]), str(folder), data_storage_version=version
            )
            paths = sorted(
                (path for path in folder.rglob("*") if path.is_file()),
                key=lambda path: path.suffix != ".manifest",
            )
            found.append(
                {path.relative_to(scratch).as_posix(): path.read_bytes() for path in paths}
            )
    return found


FORMATS: dict[str, Kind] = {
    "webdataset": Kind(stored("webdataset/*.tar", "a.tar"), with_tar_checksums, packs=True),
    "npy": Kind(arrays_in_tars, with_tar_checksums),
    "npz": Kind(npz_files),
    "tfrecord": Kind(stored("tfrecord/*.tfrecord", "a.tfrecord"), with_crcs, packs=True),
    "tfds": Kind(
        stored(
            "tfds/*-of-*", "toy-train.tfrecord-00000-of-00001", "features.json", "label.labels.txt"
        ),
        with_crcs,
        packs=True,
    ),
    "mds": Kind(stored("mds/plain/*.mds", "shard.00000.mds", "index.json"), packs=True),
    "recordio": Kind(stored("recordio/*.rec", "a.rec"), packs=True),
    "parquet": Kind(parquet_files, may_end=True),
    "arrow": Kind(arrow_files),
    "array_record": Kind(exported("array-record", "a", (".array_record",))),
    "megatron": Kind(exported("megatron", "a", (".idx", ".bin"))),
    "hdf5": Kind(hdf5_files, may_end=True),
    "lmdb": Kind(lmdb_files, may_end=True),
    "lance": Kind(lance_folders, may_end=True),
}
