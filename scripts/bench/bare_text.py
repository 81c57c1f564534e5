"""The limit for `shardctl convert` of text and tables: two processes that read a half each and
write blocks of Arrow.

    python scripts/bench/bare_text.py jsonl|csv|parquet|lines|zst|function SRC OUT [MIDDLE]

Every form is read by the fastest reader that pyarrow has for it, and written as record batches with
zstd:3 to one file per process. Nothing is checked, hashed, synced or named. `zst` reads a folder of
compressed JSON lines, each file by one process. `function` parses each line with json.loads and
calls `annotate` with it. MIDDLE: the offset in bytes at which a half of a CSV file begins.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

ROWS = 1024
"""Samples that a block has after a function of Python."""


def annotate(sample: dict[str, Any]) -> dict[str, Any]:
    """The function that a person might have: it adds a field, and changes the text."""
    text = sample["text"].strip()
    sample["words"] = text.count(" ") + 1
    sample["text"] = text.replace("\t", " ").lower()
    return sample


def half(path: Path, part: int, middle: int | None = None) -> bytes:
    """Read the first or the second half of a file of lines; the line across the middle belongs to
    the first."""
    with open(path, "rb") as file:
        if middle is None:
            file.seek(path.stat().st_size // 2)
            file.readline()
            middle = file.tell()
        file.seek(0 if part == 0 else middle)
        return file.read(middle) if part == 0 else file.read()


def jsonl(path: Path, part: int) -> Iterable[pa.RecordBatch]:
    import pyarrow.json as pj

    return pj.open_json(
        pa.BufferReader(half(path, part)), read_options=pj.ReadOptions(use_threads=False)
    )


def table(path: Path, part: int, middle: int) -> Iterable[pa.RecordBatch]:
    import pyarrow.csv as pc

    with open(path, "rb") as file:
        names = file.readline().decode().strip().split(",")
    options = pc.ReadOptions(use_threads=False, column_names=names, skip_rows=1 if part == 0 else 0)
    return pc.open_csv(
        pa.BufferReader(half(path, part, middle)),
        options,
        parse_options=pc.ParseOptions(newlines_in_values=True),
    )


def lines(path: Path, part: int) -> Iterable[pa.RecordBatch]:
    import pyarrow.csv as pc

    whole = pc.ParseOptions(
        delimiter="\x01", quote_char=False, double_quote=False, ignore_empty_lines=False
    )
    strings = pc.ConvertOptions(column_types={"text": pa.string()})
    options = pc.ReadOptions(use_threads=False, column_names=["text"])
    return pc.open_csv(
        pa.BufferReader(half(path, part)), options, parse_options=whole, convert_options=strings
    )


def parquet(path: Path, part: int) -> Iterable[pa.RecordBatch]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path, pre_buffer=False)
    groups = range(file.num_row_groups)
    cut = (len(groups) + 1) // 2
    return file.iter_batches(
        4096, row_groups=list(groups[:cut] if part == 0 else groups[cut:]), use_threads=False
    )


def zst(folder: Path, part: int) -> Iterator[pa.RecordBatch]:
    """Every other file."""
    import pyarrow.json as pj

    for path in sorted(folder.iterdir())[part::2]:
        yield from pj.open_json(
            pa.input_stream(str(path)), read_options=pj.ReadOptions(use_threads=False)
        )


def function(path: Path, part: int) -> Iterator[pa.RecordBatch]:
    schema, samples = None, []
    for line in half(path, part).splitlines():
        samples.append(annotate(json.loads(line)))
        if len(samples) == ROWS:
            batch = pa.RecordBatch.from_pylist(samples, schema)
            schema, samples = batch.schema, []
            yield batch
    if samples:
        yield pa.RecordBatch.from_pylist(samples, schema)


READERS = {
    "jsonl": jsonl,
    "csv": table,
    "parquet": parquet,
    "lines": lines,
    "zst": zst,
    "function": function,
}


def write(form: str, source: Path, out: Path, part: int, middle: int | None) -> int:
    """Write what one process reads. Returns the rows."""
    read: Any = READERS[form]
    batches = iter(read(source, part, middle) if form == "csv" else read(source, part))
    first = next(batches, None)
    if first is None:  # one compressed file is work for one process
        return 0
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 3), use_threads=False)
    rows = first.num_rows
    with (
        pa.OSFile(str(out / f"part-{part}.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, first.schema, options=options) as file,
    ):
        file.write_batch(first)
        for batch in batches:
            file.write_batch(batch)
            rows += batch.num_rows
    return rows


def main() -> None:
    form, source, out, *rest = sys.argv[1:]
    middle = int(rest[0]) if rest else None
    Path(out).mkdir(parents=True)
    with multiprocessing.Pool(2) as pool:
        print(
            sum(
                pool.starmap(
                    write,
                    [(form, Path(source), Path(out), part, middle) for part in (0, 1)],
                    chunksize=1,
                )
            )
        )


if __name__ == "__main__":
    main()
