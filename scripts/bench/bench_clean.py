"""How fast `shardctl convert` cleans, filters and de-duplicates text, beside the same rules in two
plain processes.

    python scripts/bench/bench_clean.py [--size 500] [--runs 3] [--json FILE]
    python scripts/bench/bench_clean.py --rules keep exact line near [--documents 1000000]

The documents are made up: JSON lines of paragraphs, of which one of ten repeats another one. The
rules: NFC, no control characters, tidy white space, no exact duplicates, and Gopher's rules of
quality (bare_clean.py). Every round runs both once, every other round in reverse order, as whole
processes: start-up counts. Both must keep as many texts.

With --rules, what it takes to find duplicates in each way: `keep` is the conversion without
de-duplication, the difference is what it costs. The documents have a median of 60 words, of two
million different ones, in lines of 12. One in ten is the copy of another one, and one in ten has a
few words changed; one line in ten is one of a hundred.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from string import ascii_lowercase

import numpy as np
from harness import HERE, SHARDCTL, in_turn, options_of, save, scratch, tell
from processes import Ran, run
from text_inputs import Vocabulary

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


def make_documents(path: Path, size: float) -> None:
    """Write JSON lines with about `size` bytes of text."""
    draw, held = random.Random(0), list[str]()
    with path.open("w", encoding="utf-8") as file:
        for text in english(int(size)):
            if len(held) < 1000:
                held.append(text)
            for each in (text, draw.choice(held)) if draw.random() < 0.1 else (text,):
                file.write(json.dumps({"text": each}) + "\n")


def small_documents(path: Path, count: int) -> None:
    """Write JSON lines with documents of which some are alike."""
    draw, rng = random.Random(1), np.random.default_rng(1)
    words = [
        "".join(draw.choices(ascii_lowercase, k=draw.randint(3, 10))) for _ in range(2_000_000)
    ]
    common = [" ".join(draw.choices(words, k=12)) for _ in range(100)]
    kept: list[list[str]] = []

    def changed(line: str) -> str:
        return " ".join(
            draw.choice(words) if draw.random() < 0.01 else word for word in line.split()
        )

    with path.open("w", encoding="utf-8") as file:
        for _ in range(count):
            kind = draw.random()
            if kept and kind < 0.2:
                lines = draw.choice(kept)
                lines = list(map(changed, lines)) if kind < 0.1 else lines
            else:
                length = int(np.clip(rng.lognormal(np.log(60), 0.7), 5, 2000))
                chosen = [words[place] for place in rng.integers(0, len(words), length)]
                lines = [" ".join(chosen[start : start + 12]) for start in range(0, length, 12)]
                lines = [draw.choice(common) if draw.random() < 0.1 else line for line in lines]
            if len(kept) < 100_000:
                kept.append(lines)
            file.write(json.dumps({"text": "\n".join(lines)}) + "\n")


def main() -> None:
    parser = options_of(__doc__, size=500.0, runs=3, documents=1_000_000)
    parser.add_argument("--rules", nargs="+")
    given = parser.parse_args()
    with scratch() as folder:
        source, out = folder / "in.jsonl", folder / "out"
        convert = [*SHARDCTL, "convert", source, out, "--workers", "2", "--json"]
        if given.rules:
            small_documents(source, given.documents)
            commands = {rule: [*convert, "--duplicates", rule] for rule in given.rules}
        else:
            make_documents(source, given.size * 1e6)
            commands = {
                "shardctl": [*convert, *OPTIONS, *QUALITY],
                "plain": [sys.executable, HERE / "bare_clean.py", source, out],
            }

        def ran(command: list[str | Path]) -> Ran:
            shutil.rmtree(out, ignore_errors=True)
            done = run(command)
            if done.failure:
                raise SystemExit(f"{done.failure}\n{done.errors}")
            return done

        calls = {name: lambda command=command: ran(command) for name, command in commands.items()}
        found = in_turn(calls, given.runs)
    times = {name: [each.seconds for each in runs] for name, runs in found.items()}
    tell(times)
    for name, runs in found.items():
        peaks = [max(getattr(each, who) for each in runs) / 1e6 for who in ("parent", "worker")]
        print(f"{name}: parent {peaks[0]:.0f} MB, worker {peaks[1]:.0f} MB")
    if not given.rules:
        pairs = zip(found["shardctl"], found["plain"], strict=True)
        kept = {(json.loads(ours.output)["samples"], int(bare.output)) for ours, bare in pairs}
        if any(ours != bare for ours, bare in kept):
            raise SystemExit(f"they do not keep the same texts: {kept}")
    save(given.json, times)


if __name__ == "__main__":
    main()
