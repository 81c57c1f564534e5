"""How fast `shardctl convert` cleans, filters and de-duplicates text, beside the same rules in two
plain processes.

    python scripts/bench/bench_clean.py [--size 500] [--runs 3] [--json FILE]

The documents are made up: JSON lines of paragraphs, of which one of ten repeats another one. The
rules: NFC, no control characters, tidy white space, no exact duplicates, and Gopher's rules of
quality (bare_clean.py). Every round runs both once, every other round in reverse order, as whole
processes: start-up counts. Both must keep as many texts.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from harness import options_of, save
from processes import run

sys.path.append(str(Path(__file__).resolve().parents[1] / "data"))
from text_inputs import Vocabulary

HERE = Path(__file__).resolve().parent
OPTIONS = ("--unicode", "NFC", "--strip-control-chars", "--whitespace", "--duplicates", "exact")
QUALITY = ("--step", "filter_gopher")


def english(size: int, seed: int = 0) -> Iterator[str]:
    """Yield documents of paragraphs and lines, until there are so many bytes."""
    vocabulary, rng, made = Vocabulary(seed), np.random.default_rng(seed), 0
    common = ("the", "of", "and", "to", "with", "that")
    while made < size:
        parts = []
        for sentence in vocabulary.sentences(rng.integers(5, 25, 35)):
            ends = ". " if rng.random() < 0.6 else ".\n" if rng.random() < 0.8 else "!\n\n"
            first, second = (common[int(each)] for each in rng.integers(6, size=2))
            parts.append(f"{sentence.capitalize()} {first} {second} it{ends}")
        yield (text := "".join(parts))
        made += len(text.encode())


def make_documents(path: Path, size: float) -> int:
    """Write JSON lines with about `size` bytes of text, and return the bytes of the texts."""
    draw, held, written = random.Random(0), list[str](), 0
    with path.open("w", encoding="utf-8") as file:
        number = 0
        for text in english(int(size)):
            if len(held) < 1000:
                held.append(text)
            for each in (text, draw.choice(held)) if draw.random() < 0.1 else (text,):
                file.write(json.dumps({"id": number, "text": each}) + "\n")
                written += len(each.encode())
                number += 1
            if written >= size:
                break
    return written


def main() -> None:
    parser = options_of(__doc__, runs=3)
    parser.add_argument("--size", type=float, default=500, help="MB of text")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-clean-"))
    try:
        source, out = folder / "in.jsonl", folder / "out"
        size = make_documents(source, given.size * 1e6)
        convert = [
            sys.executable,
            "-m",
            "shardctl",
            "convert",
            source,
            out,
            *OPTIONS,
            *QUALITY,
            "--workers",
            2,
            "--json",
        ]
        commands = {
            "shardctl": convert,
            "plain": [sys.executable, HERE / "bare_clean.py", source, out],
        }
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        memory: dict[str, list[float]] = {name: [] for name in commands}
        for turn in range(given.runs):
            kept = {}
            for name in list(commands) if turn % 2 == 0 else list(reversed(commands)):
                shutil.rmtree(out, ignore_errors=True)
                ran = run(commands[name], folder=HERE)
                if ran.failure:
                    raise SystemExit(f"{name}: {ran.failure}\n{ran.errors}")
                kept[name] = (
                    json.loads(ran.output)["samples"] if name == "shardctl" else int(ran.output)
                )
                seconds[name].append(ran.seconds)
                memory[name].append(ran.together / 1e6)
                print(
                    f"{name}: {ran.seconds:.2f} s, {size / ran.seconds / 1e6:.1f} MB/s, "
                    f"{memory[name][-1]:.0f} MB",
                    flush=True,
                )
            if len(set(kept.values())) > 1:
                raise SystemExit(f"they do not keep the same texts: {kept}")
        medians = {name: statistics.median(times) for name, times in seconds.items()}
        ratio = statistics.median(
            b / a for a, b in zip(seconds["shardctl"], seconds["plain"], strict=True)
        )
        print(f"{size / 1e6:.0f} MB: {medians}; plain / shardctl {ratio:.2f}, the bar is 0.6")
        save(given.json, {"bytes": size, "seconds": seconds, "memory_mb": memory, "ratio": ratio})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
