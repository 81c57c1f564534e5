"""Plain readers of every form: with shardctl.json alone they give back the columns of the dataset, type by type."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from shardctl.exports.description import Description, Field
from shardctl.exports.json_form import from_json
from shardctl.exports.keys import key_of_member

Sample = dict[str, Any]
"""The columns of a sample by their names in the dataset, each as JSON or as the value that Arrow takes."""


def restored(folder: Path, split: str) -> pa.Table:
    """Return a split of an export as the dataset has it, but for raw images, which are PNG."""
    description = Description.load(folder)
    samples = list(READERS[description.to](folder, description, split))
    assert len(samples) == description.splits[split].samples
    columns = {}
    for field in description.fields:
        values = [sample[field.name] for sample in samples]
        type_ = description.layout.columns.field(field.name).type
        if field.form == "png":
            type_ = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        columns[field.name] = from_json(values, type_) if is_json(description.to, field) else pa.array(values, type_)
    return pa.table(columns)


def is_json(to: str, field: Field) -> bool:
    return field.form == "json"


def read_parquet(folder: Path, description: Description, split: str) -> Iterator[Sample]:
    for name in description.splits[split].files:
        for row in parquet.read_table(folder / name).to_pylist():
            yield {
                field.name: json.loads(row[field.written]) if field.form == "json" else row[field.written]
                for field in description.fields
            }


def read_webdataset(folder: Path, description: Description, split: str) -> Iterator[Sample]:
    for name in description.splits[split].files:
        members: dict[str, dict[str, bytes]] = {}
        with tarfile.open(folder / name) as tar:
            for member in tar:
                head, _, base = member.name.rpartition("/")
                stem, _, extension = base.partition(".")
                file = tar.extractfile(member)
                assert file is not None
                members.setdefault(f"{head}/{stem}" if head else stem, {})[extension] = file.read()
        for path, files in members.items():
            record = json.loads(files.get("json", b"{}"))
            key = key_of_member(path)
            yield {field.name: of_members(field, key, files, record) for field in description.fields}


def of_members(field: Field, key: str, files: dict[str, bytes], record: Sample) -> Any:
    kind = field.written.rpartition(".")[2]
    if field.written == "__key__":
        return key
    if field.written.startswith("json/"):
        return record[field.written.removeprefix("json/")]
    if field.form in ("image", "png"):
        stem = field.written.removesuffix("*")
        data = next((data for name, data in files.items() if is_picture(name, stem)), None)
        if field.name in record and record[field.name] is None:
            return None
        path = record[field.name]["path"] if field.name in record else key
        return {"bytes": data, "path": path if field.form == "image" else None}
    data = files[field.written]
    read: dict[str, Callable[[], Any]] = {
        "cls": lambda: int(data),
        "txt": data.decode,
        "bin": lambda: data,
        "npy": lambda: np.load(io.BytesIO(data)).reshape(-1).tolist(),
    }
    return read[kind]()


def is_picture(name: str, stem: str) -> bool:
    rest = name.removeprefix(stem)
    return name.startswith(stem) and "." not in rest and rest not in ("cls", "txt", "json")


def read_mds(folder: Path, description: Description, split: str) -> Iterator[Sample]:
    index = folder / split / "index.json"
    for shard in json.loads(index.read_bytes())["shards"] if index.exists() else ():
        data = (folder / split / shard["raw_data"]["basename"]).read_bytes()
        assert len(data) == shard["raw_data"]["bytes"]
        places = struct.unpack_from(f"<{shard['samples'] + 2}I", data)
        assert places[0] == shard["samples"]
        for begin, end in pairwise(places[1:]):
            values = dict(zip(shard["column_names"], mds_values(shard, data[begin:end]), strict=True))
            yield {field.name: of_mds(field, values) for field in description.fields}


def mds_values(shard: Sample, sample: bytes) -> Iterator[Any]:
    open_ended = shard["column_sizes"].count(None)
    sizes = list(struct.unpack_from(f"<{open_ended}I", sample))
    place = 4 * open_ended
    for encoding, size in zip(shard["column_encodings"], shard["column_sizes"], strict=True):
        size = sizes.pop(0) if size is None else size
        yield mds_value(encoding, sample[place : place + size])
        place += size
    assert place == len(sample)


def mds_value(encoding: str, data: bytes) -> Any:
    kind, *how = encoding.split(":")
    if kind == "str":
        return data.decode()
    if kind == "json":
        return json.loads(data)
    if kind in ("bytes", "jpeg", "png"):
        return data
    if kind == "ndarray":
        skipped = 0 if len(how) == 2 else 1 + (1 << data[0] % 4)
        return np.frombuffer(data[skipped:], how[0]).tolist()
    return np.frombuffer(data, "int64" if kind == "int" else kind)[0].item()


def of_mds(field: Field, values: Sample) -> Any:
    value = values[field.written]
    if field.form.startswith("image"):
        return {"bytes": value, "path": values.get(f"{field.written}.path", values["key"])}
    return {"bytes": value, "path": None} if field.form == "png" else value


def read_files(folder: Path, description: Description, split: str) -> Iterator[Sample]:
    metadata = folder / split / "metadata.jsonl"
    for line in metadata.read_text("utf-8").splitlines() if metadata.exists() else ():
        record = json.loads(line)
        yield {field.name: of_files(field, folder / split, record) for field in description.fields}


def of_files(field: Field, folder: Path, record: Sample) -> Any:
    if field.form == "json":
        return record[field.written]
    if record[field.written] is None:
        return None
    data = (folder / record[field.written]).read_bytes()
    if field.form == "text":
        return data.decode()
    return {"bytes": data, "path": record.get(f"{field.name}.path", record["key"]) if field.form == "image" else None}


READERS: dict[str, Callable[[Path, Description, str], Iterator[Sample]]] = {
    "parquet": read_parquet,
    "webdataset": read_webdataset,
    "mds": read_mds,
    "files": read_files,
}
