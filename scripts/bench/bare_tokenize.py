"""The least that tokenizes JSON lines: two processes that read a half each, call an engine, and
keep the tokens as uint16.

    python scripts/bench/bare_tokenize.py tokenizers|gigatoken|map SOURCE.jsonl
    TOKENIZER.json [CACHE]

For bench_tokenize.py. Nothing is written, checked or rejected. `map` is Hugging Face datasets:
load_dataset and map with two processes, which write Arrow files into an empty CACHE.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"

TOGETHER = 1000
"""Texts that are encoded at once."""


def texts_of(source: str, half: int) -> list[str]:
    """Return the texts of a half of the lines."""
    import pyarrow as pa
    import pyarrow.json

    data = Path(source).read_bytes()
    middle = data.index(b"\n", len(data) // 2) + 1
    part = data[:middle] if half == 0 else data[middle:]
    table = pyarrow.json.read_json(pa.BufferReader(part))
    texts: list[str] = table.column("text").to_pylist()
    return texts


def encoder(engine: str, tokenizer: str) -> Any:
    """Return a function that makes an array of tokens for each text of a list."""
    import numpy as np

    if engine == "tokenizers":
        from tokenizers import Tokenizer

        own = Tokenizer.from_file(tokenizer)
        return lambda texts: [
            np.array(each.ids, np.uint16) for each in own.encode_batch_fast(texts)
        ]
    from gigatoken.gigatoken_rs import load_hf_json

    fast = load_hf_json(Path(tokenizer).read_bytes())
    return lambda texts: [fast.encode(text).astype(np.uint16) for text in texts]


def work(job: tuple[str, str, str, int]) -> int:
    """Encode a half, and return the number of its tokens."""
    engine, source, tokenizer, half = job
    texts = texts_of(source, half)
    encode = encoder(engine, tokenizer)
    kept = [encode(texts[first : first + TOGETHER]) for first in range(0, len(texts), TOGETHER)]
    return sum(len(ids) for group in kept for ids in group)


def map_with_datasets(source: str, tokenizer: str, cache: str) -> int:
    os.environ |= {"HF_HOME": cache, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    import datasets
    from tokenizers import Tokenizer

    datasets.disable_progress_bars()
    own = Tokenizer.from_file(tokenizer)
    loaded = datasets.load_dataset("json", data_files=source, split="train", cache_dir=cache)

    def tokens(batch: dict[str, list[str]]) -> dict[str, Any]:
        return {"tokens": [each.ids for each in own.encode_batch_fast(batch["text"])]}

    made = loaded.map(tokens, batched=True, num_proc=2, remove_columns=loaded.column_names)
    import pyarrow.compute as pc

    return int(pc.sum(pc.list_value_length(made.data.column("tokens"))).as_py())


def main() -> None:
    engine, source, tokenizer, *cache = sys.argv[1:]
    if engine == "map":
        print(map_with_datasets(source, tokenizer, cache[0]))
        return
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(
            sum(pool.map(work, [(engine, source, tokenizer, half) for half in (0, 1)], chunksize=1))
        )


if __name__ == "__main__":
    main()
