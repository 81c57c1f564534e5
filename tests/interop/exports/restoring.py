"""Plain readers of every form: with shardctl.json alone they give back the columns of the dataset,
type by type."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
from pyarrow import parquet

from shardctl.format.names import key_of_member
from shardctl.format.python_values import from_json
from shardctl.sources.export_description import Description, Field

Sample = dict[str, Any]
"""The columns of a sample by their names in the dataset, each as JSON or as the value that Arrow
takes."""


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
        columns[field.name] = (
            from_json(values, type_) if field.form == "json" else array_of(values, type_)
        )
    return pa.table(columns)


def array_of(values: list[Any], type_: pa.DataType) -> pa.Array:
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, pa.array(values, type_.storage_type))
    return pa.array(values, type_)


def read_parquet(folder: Path, description: Description, split: str) -> Iterator[Sample]:
    for name in description.splits[split].files:
        for row in parquet.read_table(folder / name).to_pylist():
            yield {
                field.name: json.loads(row[field.written])
                if field.form == "json"
                else row[field.written]
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
            names = {
                field.name: field.name for field in description.fields
            } | description.facts.get("images", {})
            yield {
                field.name: of_members(field, names[field.name], key, files, record)
                for field in description.fields
            }


def of_members(field: Field, name: str, key: str, files: dict[str, bytes], record: Sample) -> Any:
    kind = field.written.rpartition(".")[2]
    if field.written == "__key__":
        return key
    if field.written.startswith("json/"):
        return record[field.written.removeprefix("json/")]
    if field.form in ("image", "png"):
        stem = field.written.removesuffix("*")
        data = next((data for member, data in files.items() if is_picture(member, stem)), None)
        if name in record and record[name] is None:
            return None
        path = record[name]["path"] if name in record else key
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
            values = dict(
                zip(shard["column_names"], mds_values(shard, data[begin:end]), strict=True)
            )
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
    return {
        "bytes": data,
        "path": record.get(f"{field.name}.path", record["key"]) if field.form == "image" else None,
    }


def read_tfrecord(folder: Path, description: Description, split: str) -> Iterator[Sample]:
    types = {
        field.name: description.layout.columns.field(field.name).type
        for field in description.fields
    }
    for name in description.splits[split].files:
        data = (folder / name).read_bytes()
        for record in tfrecords(gzip.decompress(data) if name.endswith(".gz") else data):
            found = features_in(record)
            yield {
                field.name: of_example(field, types[field.name], found, description.key)
                for field in description.fields
            }


def read_array_record(folder: Path, description: Description, split: str) -> Iterator[Sample]:
    from array_record.python.array_record_module import ArrayRecordReader

    types = {
        field.name: description.layout.columns.field(field.name).type
        for field in description.fields
    }
    for name in description.splits[split].files:
        reader = ArrayRecordReader(str(folder / name), "readahead_buffer_size:0,max_parallelism:0")
        for record in reader.read_all():
            found = features_in(record)
            yield {
                field.name: of_example(field, types[field.name], found, description.key)
                for field in description.fields
            }
        reader.close()


def tfrecords(data: bytes) -> Iterator[bytes]:
    place = 0
    while place < len(data):
        size, checksum = struct.unpack_from("<QI", data, place)
        record, end = data[place + 12 : place + 12 + size], place + 12 + size
        assert (checksum, data[end : end + 4]) == (
            masked(data[place : place + 8]),
            masked(record).to_bytes(4, "little"),
        )
        yield record
        place = end + 4


def masked(data: bytes) -> int:
    checksum = google_crc32c.value(data)
    return int(((checksum >> 15 | checksum << 17) + 0xA282EAD8) % 2**32)


def features_in(example: bytes) -> dict[str, list[Any]]:
    """Return the features of a tf.train.Example: {1: features}, {1: [{1: name, 2: {1, 2 or 3: {1:
    values}}}]}."""
    [(_, features)] = parts_of(example)
    found = {}
    for _, entry in parts_of(features):
        [(_, name), (_, feature)] = parts_of(entry)
        [(kind, values)] = parts_of(feature)
        assert name.decode() not in found
        found[name.decode()] = LISTS[kind]([value for _, value in parts_of(values)])
    assert list(found) == sorted(found, key=str.encode)
    return found


def parts_of(message: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place < len(message):
        (tag, size), place = varints(message, place, 2)
        assert tag % 8 == 2  # of a length that is told
        yield tag // 8, message[place : place + size]
        place += size


def varints(data: bytes, place: int, count: int) -> tuple[list[int], int]:
    numbers: list[int] = []
    while len(numbers) < count:
        number, shift = 0, 0
        while data[place] >= 128:
            number, shift, place = number | (data[place] - 128) << shift, shift + 7, place + 1
        numbers.append(number | data[place] << shift)
        place += 1
    return numbers, place


def int64s(packed: list[bytes]) -> list[int]:
    data = b"".join(packed)
    numbers, _ = varints(data, 0, sum(byte < 128 for byte in data))
    return [number - 2**64 if number >= 2**63 else number for number in numbers]


LISTS: dict[int, Callable[[list[bytes]], list[Any]]] = {
    1: list,
    2: lambda packed: np.frombuffer(b"".join(packed), "<f4").tolist(),
    3: int64s,
}


def of_example(
    field: Field, type_: pa.DataType, found: dict[str, list[Any]], key: str | None
) -> Any:
    values = found.get(field.written)
    if field.form == "json":
        return json.loads(values[0]) if values else None
    if field.form == "struct":
        parts = {part.name: found.get(f"{field.written}/{part.name}") for part in type_}
        whole = any(part is not None for part in parts.values())
        return (
            {part.name: of_values(part.type, parts[part.name] or []) for part in type_}
            if whole
            else None
        )
    if field.form != "value":
        paths = {"image": key, "image+path": f"{field.written}/path"}
        path = found.get(paths.get(field.form) or "", [None])[0]
        image = {"bytes": values[0] if values else None, "path": path.decode() if path else None}
        return None if values is None and (path is None or field.form == "image") else image
    return None if values is None else of_values(type_, values)


def of_values(type_: pa.DataType, values: list[Any]) -> Any:
    is_list = isinstance(type_, pa.BaseExtensionType) or pa.types.is_nested(type_)
    leaf = type_.value_type if is_list else type_
    if pa.types.is_string(leaf) or pa.types.is_large_string(leaf):
        values = [value.decode() for value in values]
    if pa.types.is_boolean(leaf):
        values = list(map(bool, values))
    if is_list and pa.types.is_fixed_size_list(leaf):
        return [values[at : at + leaf.list_size] for at in range(0, len(values), leaf.list_size)]
    return values if is_list else values[0]


READERS: dict[str, Callable[[Path, Description, str], Iterator[Sample]]] = {
    "parquet": read_parquet,
    "webdataset": read_webdataset,
    "tfrecord": read_tfrecord,
    "tfds": read_tfrecord,
    "mds": read_mds,
    "array-record": read_array_record,
    "files": read_files,
}
