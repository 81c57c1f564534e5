"""Hugging Face's way from text and tables to Arrow files: load_dataset, map with a function if one is asked for, save_to_disk.

    FOLDER/bin/python scripts/bench/huggingface_text.py BUILDER SOURCE OUT CACHE PROCESSES [annotate]

For bench_text.py, in an environment of its own that has nothing of shardctl. SOURCE is a file or a folder of files.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    builder, source, out, cache, processes, *function = sys.argv[1:]
    os.environ |= {"HF_HOME": cache, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    import datasets

    datasets.disable_progress_bars()
    files = sorted(map(str, Path(source).iterdir())) if Path(source).is_dir() else [source]
    count = int(processes)
    loaded = datasets.load_dataset(
        builder, data_files=files, split="train", cache_dir=cache, num_proc=min(count, len(files)) if count > 1 else None
    )
    if function:
        from bare_text import annotate

        loaded = loaded.map(annotate, num_proc=count if count > 1 else None)
    loaded.save_to_disk(out, num_proc=count if count > 1 else None)
    print(len(loaded))


if __name__ == "__main__":
    main()
