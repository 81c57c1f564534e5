"""The limit for cleaning with `shardctl convert`: two processes with the same rules in
pyarrow.compute and plain Python.

    python scripts/bench/bare_clean.py SRC.jsonl OUT

Each process reads a half of the JSON lines, brings them into NFC, removes control characters,
tidies white space, hashes each text, judges it by Gopher's rules of quality, and writes blocks with
zstd:3. Texts that were there before are dropped: in the second process, those of the first one too,
whose hashes it waits for. Nothing is checked, synced or named.
"""

from __future__ import annotations

import multiprocessing
import sys
from pathlib import Path

import plain_text_steps as plain
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from bare_text import half

CONTROLS = "[\\x00-\\x08\\x0b-\\x1f\\x7f\\x80-\\x9f]"


def clean(
    source: Path, out: Path, part: int, hashes: multiprocessing.SimpleQueue[set[bytes]]
) -> None:
    import pyarrow.json as pj

    seen: set[bytes] = set()
    held = []
    data = pa.BufferReader(half(source, part))
    for batch in pj.open_json(data, read_options=pj.ReadOptions(use_threads=False)):
        texts = pc.utf8_normalize(batch.column("text"), "NFC")
        texts = pc.replace_substring_regex(pc.replace_substring(texts, "\r\n", "\n"), CONTROLS, "")
        rows, cleaned = [], []
        for row, text in enumerate(map(plain.whitespace, texts.to_pylist())):
            digest = xxhash.xxh3_128_digest(text.encode())
            if digest in seen:
                continue
            seen.add(digest)
            if plain.gopher(text) is None:
                rows.append(row)
                cleaned.append((digest, text))
        kept = batch.take(pa.array(rows, pa.int64()))
        held.append((kept.drop_columns(["text"]), cleaned))
    if part == 0:
        hashes.put(seen)
    else:
        others = hashes.get()
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 3), use_threads=False)
    writer = None
    with open(out / f"{part}.arrow", "wb") as sink:
        for kept, cleaned in held:
            rows = [
                row for row, (digest, _) in enumerate(cleaned) if part == 0 or digest not in others
            ]
            batch = kept.take(pa.array(rows, pa.int64())).append_column(
                "text", pa.array([cleaned[row][1] for row in rows])
            )
            writer = writer or pa.ipc.new_file(sink, batch.schema, options=options)
            writer.write_batch(batch)
        if writer is not None:
            writer.close()


def main() -> None:
    source, out = map(Path, sys.argv[1:])
    out.mkdir()
    context = multiprocessing.get_context("spawn")
    hashes = context.SimpleQueue()
    parts = [context.Process(target=clean, args=(source, out, part, hashes)) for part in range(2)]
    for process in parts:
        process.start()
    for process in parts:
        process.join()
    rows = sum(pa.ipc.open_file(out / f"{part}.arrow").read_all().num_rows for part in range(2))
    print(rows)


if __name__ == "__main__":
    main()
