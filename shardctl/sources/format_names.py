"""The formats that a person may name. Nothing is imported: the command line lists them."""

from __future__ import annotations

FORMAT_NAMES: dict[str, tuple[str, ...]] = {
    "webdataset": (".tar",),
    "tfrecord": (".tfrecord",),
    "mds": (".mds",),
    "recordio": (".rec",),
    "parquet": (".parquet",),
    "arrow": (".arrow", ".arrows", ".ipc", ".feather"),
    "npy": (".npy", ".npz"),
    "megatron": (".megatron",),
    "array-record": (".array_record",),
    "hdf5": (".h5", ".hdf5"),
    "lmdb": (".mdb", ".lmdb"),
    "lance": (".lance",),
    "huggingface": (".parquet", ".arrow"),
}
"""The endings of the files of each format."""
