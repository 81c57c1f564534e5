"""Hugging Face's way from text and tables to Arrow files: load_dataset, map with a function if one
is asked for, save_to_disk.

    FOLDER/bin/python scripts/bench/huggingface_text.py BUILDER SOURCE OUT CACHE PROCESSES
    [annotate] [zstd]

For bench_text.py, in an environment that has nothing of shardctl. SOURCE is a file or a folder of
files. save_to_disk cannot compress, and to_parquet of datasets 5.2 takes no `compression`: with
`zstd`, each process writes the batches of its part into an Arrow file with zstd:3 instead.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    builder, source, out, cache, processes, *more = sys.argv[1:]
    os.environ |= {"HF_HOME": cache, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    import datasets

    datasets.disable_progress_bars()
    files = sorted(map(str, Path(source).iterdir())) if Path(source).is_dir() else [source]
    count = int(processes)
    loaded = datasets.load_dataset(
        builder,
        data_files=files,
        split="train",
        cache_dir=cache,
        num_proc=min(count, len(files)) if count > 1 else None,
    )
    if "annotate" in more:
        from bare_text import annotate

        loaded = loaded.map(annotate, num_proc=count if count > 1 else None)
    if "zstd" in more:
        Path(out).mkdir(parents=True)
        write = [
            multiprocessing.Process(target=write_arrow, args=(loaded, out, part, count))
            for part in range(count)
        ]
        for process in write:
            process.start()
        for process in write:
            process.join()
            assert process.exitcode == 0, "a part was not written"
    else:
        loaded.save_to_disk(out, num_proc=count if count > 1 else None)
    print(len(loaded))


def write_arrow(loaded: Any, out: str, part: int, parts: int) -> None:
    """Write a part of the samples, compressed as shardctl does."""
    import pyarrow as pa

    own = loaded.shard(parts, part, contiguous=True).data
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 3), use_threads=False)
    with pa.ipc.new_file(f"{out}/part-{part}.arrow", own.schema, options=options) as file:
        for batch in own.to_batches():
            file.write_batch(batch)


if __name__ == "__main__":
    main()
