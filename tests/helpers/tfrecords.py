"""TFRecord files of examples."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import google_crc32c

from shardctl.sources.formats.tfrecord import masked, messages


def framed(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    crcs = [struct.pack("<I", masked(google_crc32c.value(part))) for part in (length, data)]
    return length + crcs[0] + data + crcs[1]


def example(features: dict[str, list[Any] | None]) -> bytes:
    made = messages()()
    for name, values in features.items():
        feature = made.features.feature.add(key=name).value
        if values is None:
            feature.SetInParent()
        elif values and isinstance(values[0], bytes):
            feature.bytes_list.value.extend(values)
        elif values and isinstance(values[0], float):
            feature.float_list.value.extend(values)
        else:
            feature.int64_list.value.extend(values)
            feature.int64_list.SetInParent()
    data: bytes = made.SerializeToString()
    return data


def write_examples(path: Path, records: Iterable[dict[str, list[Any] | None]]) -> Path:
    path.write_bytes(b"".join(framed(example(record)) for record in records))
    return path
