"""How fast `shardctl convert --tokenizer` is, beside bare pools of two processes that only call an
engine, and Hugging Face.

    python scripts/bench/bench_tokenize.py [--size 50] [--runs 5] [--vocab-size 16384] [--contenders
    NAME …] [--other TREE]
        [--json FILE]

The documents are made up, of 2 million different words as often as words are in a language (Zipf);
resampled lines would flatter every cache. The tokenizer is byte-level BPE, made of them by
`shardctl tokenizer train`. Every round runs each contender once, every other round in reverse
order, as whole processes: start-up counts. MB/s: of the texts as UTF-8.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from harness import options_of, save
from processes import run

HERE = Path(__file__).resolve().parent
WORDS = 2_000_000
OTHER = "shardctl, other tree"
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
    parser = options_of(__doc__, runs=5)
    parser.add_argument("--size", type=float, default=50, help="MB of text")
    parser.add_argument("--vocab-size", type=int, default=16_384)
    parser.add_argument(
        "--contenders", nargs="*", metavar="NAME", help="only these; with 400 MB some take minutes"
    )
    parser.add_argument(
        "--other", type=Path, help="the tree of another version of shardctl, for its fastest engine"
    )
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-tokenize-"))
    try:
        source, tokenizer, out, cache = (
            folder / name for name in ("in.jsonl", "tokenizer.json", "out", "cache")
        )
        text_bytes = make_documents(source, int(given.size * 1e6))
        shardctl = [sys.executable, "-m", "shardctl"]
        size = ["--vocab-size", str(given.vocab_size), "--max-bytes", "20MB"]
        subprocess.run(
            [*shardctl, "tokenizer", "train", str(source), str(tokenizer), *size], check=True
        )
        bare = [sys.executable, str(HERE / "bare_tokenize.py")]
        convert = [*shardctl, "convert", str(source), str(out), "--workers", "2", "--json"]

        def with_engine(name: str) -> list[str]:
            return [*convert, "--step", f'tokenize tokenizer="{tokenizer}" engine="{name}"']

        contenders = {
            "shardctl, tokenizers": with_engine("tokenizers"),
            "bare pool, tokenizers": [*bare, "tokenizers", str(source), str(tokenizer)],
            "shardctl, auto": with_engine("auto"),
            "bare pool, gigatoken": [*bare, "gigatoken", str(source), str(tokenizer)],
            "bare pool, tiktoken": [*bare, "tiktoken", str(source), str(tokenizer)],
            "Hugging Face map": [*bare, "map", str(source), str(tokenizer), str(cache)],
        }
        contenders = {
            name: command
            for name, command in contenders.items()
            if name in (given.contenders or contenders)
        }
        if given.other:
            contenders[OTHER] = with_engine("auto")
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        memory: dict[str, int] = dict.fromkeys(contenders, 0)
        tokens: dict[str, int] = {}
        for number in range(given.runs):
            names = list(contenders)[:: -1 if number % 2 else 1]
            for name in names:
                for place in (out, cache):
                    shutil.rmtree(place, ignore_errors=True)
                ran = run(
                    contenders[name],
                    {"PYTHONPATH": str(given.other.resolve())} if name == OTHER else None,
                )
                if ran.failure:
                    print(f"{name}: {ran.failure}")
                    continue
                seconds[name].append(ran.seconds)
                memory[name] = max(memory[name], ran.worker)
                said = ran.output.strip().splitlines()[-1]
                tokens[name] = (
                    json.loads(said)["steps"][0]["tokens"]
                    if name.startswith("shardctl")
                    else int(said)
                )
        assert len(set(tokens.values())) == 1, tokens
        results = {
            name: {
                "seconds": round(statistics.median(each), 2),
                "mb_per_s": round(text_bytes / 1e6 / statistics.median(each), 2),
                "all": [round(one, 2) for one in each],
                "worker_mb": round(memory[name] / 1e6),
            }
            for name, each in seconds.items()
            if each
        }
        for name, result in results.items():
            print(
                f"{name:24} {result['mb_per_s']:8} MB/s {result['seconds']:8} s   largest worker "
                f"{result['worker_mb']} MB"
            )
        time = {name: float(result["seconds"]) for name, result in results.items()}
        for ours, theirs in (
            ("shardctl, tokenizers", "bare pool, tokenizers"),
            ("shardctl, auto", "bare pool, gigatoken"),
            ("shardctl, auto", "Hugging Face map"),
        ):
            if ours in time and theirs in time:
                print(f"{ours} / {theirs}: {time[theirs] / time[ours]:.2f}")
        save(given.json, {"bytes": text_bytes, "results": results})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
