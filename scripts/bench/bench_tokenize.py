"""How fast `shardctl convert --tokenizer` is, beside bare pools of two processes that only call an
engine, and Hugging Face.

    python scripts/bench/bench_tokenize.py [--size 50] [--runs 5] [--vocab-size 16384] [--json FILE]

The documents are made up, of 2 million different words as often as words are in a language (Zipf);
resampled lines would flatter every cache. The tokenizer is byte-level BPE, made of them by
`shardctl tokenizer train`. Every round runs each contender once, every other round in reverse
order, as whole processes: start-up counts. MB/s: of the texts as UTF-8.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
from pathlib import Path

import numpy as np
from harness import HERE, SHARDCTL, done, in_turn, options_of, save, scratch
from processes import Ran, run

WORDS = 2_000_000
LETTERS = np.frombuffer(b"etaoinshrdlucmfwypvbgkjqxz", np.uint8)


def make_documents(path: Path, size: int) -> int:
    """Write JSON lines with about `size` bytes of text, and return the bytes of the texts."""
    rng = np.random.default_rng(0)
    weights = np.arange(1, 27)[::-1].astype(float)
    lengths = rng.integers(2, 11, WORDS)
    letters = rng.choice(LETTERS, int(lengths.sum()), p=weights / weights.sum())
    ends = np.cumsum(lengths)
    data = letters.tobytes().decode()
    words = [
        data[end - length : end]
        for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)
    ]
    written = number = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            count = int(rng.integers(50, 600))
            # The rank of a word by inverting the distribution 1 / rank: many are drawn once in 50
            # MB.
            picks = (np.exp(rng.random(count) * np.log(WORDS)) - 1).astype(np.int64).tolist()
            text = " ".join(words[pick] for pick in picks).capitalize() + ".\n"
            file.write(json.dumps({"id": number, "text": text}) + "\n")
            written += len(text.encode())
            number += 1
    return written


def main() -> None:
    given = options_of(__doc__, size=50.0, runs=5, vocab_size=16_384).parse_args()
    with scratch() as folder:
        source, tokenizer, out, cache = (
            folder / name for name in ("in.jsonl", "tokenizer.json", "out", "cache")
        )
        text_bytes = make_documents(source, int(given.size * 1e6))
        size = ("--vocab-size", given.vocab_size, "--max-bytes", "20MB")
        done(*SHARDCTL, "tokenizer", "train", source, tokenizer, *size)

        def ours(engine: str) -> list[str | Path]:
            step = f'tokenize tokenizer="{tokenizer}" engine="{engine}"'
            return [*SHARDCTL, "convert", source, out, "--workers", "2", "--json", "--step", step]

        def bare(engine: str) -> list[str | Path]:
            return [sys.executable, HERE / "bare_tokenize.py", engine, source, tokenizer, cache]

        commands = {
            "shardctl, tokenizers": ours("tokenizers"),
            "bare pool, tokenizers": bare("tokenizers"),
            "shardctl, auto": ours("auto"),
            "bare pool, gigatoken": bare("gigatoken"),
            "Hugging Face map": bare("map"),
        }

        def ran(command: list[str | Path]) -> Ran:
            for place in (out, cache):
                shutil.rmtree(place, ignore_errors=True)
            return run(command)

        found = in_turn(
            {name: lambda command=command: ran(command) for name, command in commands.items()},
            given.runs,
        )
    results, tokens = {}, set()
    for name, runs in found.items():
        well = [ran for ran in runs if not ran.failure]
        if not well:
            print(f"{name}: {runs[0].failure}")
            continue
        said = well[0].output.strip().splitlines()[-1]
        tokens.add(
            json.loads(said)["steps"][0]["tokens"] if name.startswith("shardctl") else int(said)
        )
        middle = statistics.median(ran.seconds for ran in well)
        worker = max(ran.worker for ran in well)
        results[name] = {"seconds": middle, "all": [ran.seconds for ran in well], "worker": worker}
        rate = text_bytes / 1e6 / middle
        print(f"{name:24} {rate:8.2f} MB/s {middle:8.2f} s   worker {worker / 1e6:.0f} MB")
    assert len(tokens) == 1, tokens
    save(given.json, {"bytes": text_bytes, "results": results})


if __name__ == "__main__":
    main()
