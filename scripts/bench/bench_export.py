"""Measure `shardctl.export` on tokens that are made here: ragged documents, and the same packed
with cuts (concat, bfd).

    python scripts/bench/bench_export.py FOLDER [MB]

Beside it: `cp` of a file of as many bytes, with fsync. FOLDER is emptied of what this makes.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

import shardctl
from shardctl.build.write.writer import finish
from shardctl.format.layout import Layout
from shardctl.format.names import shard_name
from shardctl.format.roles import Roles, Tokens
from shardctl.format.shard import Compression, ShardFacts, ShardWriter, shard_schema
from shardctl.format.tables import MADE_BY, ShardEntry
from shardctl.system.files import StreamedFile

LENGTH = 2048
DOCUMENTS = 20_000
"""Documents of a shard: 500 tokens in the middle, 1,100 on the average."""


def documents(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.clip(rng.lognormal(6.2, 1.25, DOCUMENTS), 1, 200_000).astype(np.int64)
    tokens = (rng.zipf(1.3, int(lengths.sum())) % 49_999 + 1).astype(np.uint16)
    tokens[np.cumsum(lengths) - 1] = 0
    return tokens, lengths


def ragged(tokens: np.ndarray, lengths: np.ndarray) -> pa.RecordBatch:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    keys = [f"file.jsonl#{number}" for number in range(len(lengths))]
    return pa.record_batch(
        {"key": keys, "tokens": pa.ListArray.from_arrays(offsets, pa.array(tokens))}
    )


def packed(tokens: np.ndarray, lengths: np.ndarray, whole: bool) -> pa.RecordBatch:
    """Pack documents one behind the other; or, `whole`, cut into pieces of LENGTH and placed in
    mixed order by next fit."""
    document, start, length = [], [], []
    begins = np.cumsum(lengths) - lengths
    if whole:
        pieces = [
            (d, s, min(LENGTH, n - s))
            for d, n in enumerate(lengths.tolist())
            for s in range(0, n, LENGTH)
        ]
        pieces.sort(key=lambda piece: -piece[2])
    else:
        place, pieces = 0, []
        for d, n in enumerate(lengths.tolist()):
            s = 0
            while s < n:
                part = min(n - s, LENGTH - place % LENGTH)
                pieces.append((d, s, part))
                s, place = s + part, place + part
    rows, counts, room = [], [], 0
    for d, s, n in pieces:
        if n > room:
            rows.append(np.full(LENGTH, 65_535, np.uint16))
            counts.append(0)
            room = LENGTH
        rows[-1][LENGTH - room : LENGTH - room + n] = tokens[begins[d] + s : begins[d] + s + n]
        counts[-1] += 1
        room -= n
        document.append(f"file.jsonl#{d}")
        start.append(s)
        length.append(n)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(np.concatenate(rows)), LENGTH)
    lists = {"document_keys": pa.array(document), "document_lengths": pa.array(length, pa.int32())}
    lists["document_starts"] = pa.array(start, pa.int32())
    key = [f"{number}" for number in range(len(rows))]
    made = {name: pa.ListArray.from_arrays(offsets, values) for name, values in lists.items()}
    return pa.record_batch({"key": key, "tokens": column, **made})


def write(
    folder: Path, batches: Iterator[pa.RecordBatch], compression: Compression, is_packed: bool
) -> int:
    folder.mkdir(parents=True)
    role = Tokens(50_000, 0, None, None, is_packed)
    entries, layout, total = [], None, 0
    for number, batch in enumerate(batches):
        layout = Layout("text", batch.schema, Roles({"tokens": role}))
        sink = StreamedFile(folder / shard_name("train", number))
        writer = ShardWriter(sink, shard_schema(layout, "train", number), compression)
        writer.add_batch(batch)
        blocks = writer.finish()
        sink.sync()
        sink.close()
        facts = ShardFacts(sum(blocks), sink.tell(), writer.raw_bytes, sink.sha256, blocks)
        entries.append(ShardEntry.of_written("train", shard_name("train", number), facts))
        total += writer.raw_bytes
    assert layout is not None
    settings = {"made_by": MADE_BY}
    finish(folder, layout, entries, compression, settings, None)
    return total


def main(root: Path, megabytes: int) -> None:
    forms = {
        "ragged": lambda tokens, lengths: ragged(tokens, lengths),
        "concat": lambda tokens, lengths: packed(tokens, lengths, False),
        "bfd": lambda tokens, lengths: packed(tokens, lengths, True),
    }
    for form, make in forms.items():
        for compression in ("none", "zstd:3"):
            folder = root / f"{form}-{compression.replace(':', '')}"
            if not folder.exists():
                shards = max(1, megabytes * 1_000_000 // (DOCUMENTS * 2_200))
                batches = (
                    make(*documents(np.random.default_rng(number))) for number in range(shards)
                )
                write(folder, batches, Compression.parse(compression), form != "ragged")
            for to in ("megatron", "nanogpt"):
                rates, size = [], 0
                for _ in range(3):
                    result = shardctl.export(folder, root / "out", to, overwrite=True)
                    size = result.bytes
                    rates.append(result.bytes / 1e6 / result.seconds)
                copied = copy_rate(root / "out" / "train.bin", root / "copy")
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
                print(
                    f"{form:7} {compression:7} {to:9} {size / 1e6:6.0f} MB  "
                    f"{sorted(rates)[1]:6.0f} MB/s  (cp with fsync"
                    f" {copied:6.0f} MB/s)  peak {peak} MiB",
                    flush=True,
                )
            shutil.rmtree(root / "out")


def copy_rate(source: Path, target: Path) -> float:
    began = time.monotonic()
    shutil.copyfile(source, target)
    with open(target, "rb") as file:
        os.fsync(file.fileno())
    rate = source.stat().st_size / 1e6 / (time.monotonic() - began)
    target.unlink()
    return rate


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 200)
