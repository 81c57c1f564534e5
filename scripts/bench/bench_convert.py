"""How fast `shardctl convert` is, beside a bare loop that does only read + decode + resize with the
same library (bare_images.py).

    .venv/bin/python scripts/bench/bench_convert.py [CORPUS] [--runs 7] [--json FILE]
    .venv/bin/python scripts/bench/bench_convert.py [CORPUS] --workers 1 2 4 8 16
    .venv/bin/python scripts/bench/bench_convert.py [CORPUS] --recipes

CORPUS is a folder with photos/ and small/cifar10/ (default: $SHARDCTL_CORPUS, else ../shared/data;
without either, images that `shardctl demo` draws). Every round runs each contender once, in turn,
as a process of its own: start-up counts, as it does for a user. The long case repeats the photos
through links, so that start-up weighs as little as in real work. Medians over the rounds; the ratio
is that of the medians.

With --workers, only the photos, some 4,000 of them through links, with so many workers and as many
processes of the bare loop. With --recipes, docs/recipes/randaugment.toml and simclr.toml on all
photos, beside a bare pool that does the same steps and encodes. With --few, only the photos.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from harness import (
    HERE,
    ROOT,
    SHARDCTL,
    done,
    folders,
    images,
    in_turn,
    medians_of,
    options_of,
    repeated,
    save,
    scratch,
    seconds,
    warm,
)

MANY = 4000
CROP = ["--resize", "256", "--crop", "224", "--store", "raw"]
SMALL = ["--resize", "32x32", "--store", "raw"]


class Case(NamedTuple):
    """What is converted, the options of convert, what the bare loop does, and how many work."""

    name: str
    source: Path
    options: list[str]
    bare: str | Path
    workers: int = 2


def main() -> None:
    parser = options_of(__doc__, corpus=True, runs=7)
    parser.add_argument("--few", action="store_true")
    parser.add_argument("--workers", type=int, nargs="+")
    parser.add_argument("--recipes", action="store_true")
    options = parser.parse_args()
    with scratch() as folder:
        results = []
        for case in cases(options, folder):
            results.append(measure(case, options.runs, folder / "out"))
            save(options.json, results)


def cases(options: argparse.Namespace, folder: Path) -> list[Case]:
    photos, tiny = folders(options.corpus, folder)
    if options.workers:
        many = repeated(photos, folder / "many", -(-MANY // len(images(photos))))
        return [Case(f"{n} workers", many, CROP, "224", n) for n in options.workers]
    if options.recipes:
        many = repeated(photos, folder / "many", 8)
        recipes = [ROOT / "docs" / "recipes" / f"{name}.toml" for name in ("randaugment", "simclr")]
        return [Case(each.stem, many, ["--recipe", str(each)], each) for each in recipes]
    found = [Case("photos", photos, CROP, "224")]
    if not options.few:
        for times in (4, 30):
            many = repeated(photos, folder / f"photos-{times}", times)
            found.append(Case(f"photos x {times}", many, CROP, "224"))
        found += [
            Case("tiny files", tiny, SMALL, "32"),
            Case("tiny files x 5", repeated(tiny, folder / "tiny", 5), SMALL, "32"),
        ]
    return found


def measure(case: Case, runs: int, out: Path) -> dict[str, object]:
    bare = (sys.executable, HERE / "bare_images.py", case.source, case.bare, case.workers)
    convert = (*SHARDCTL, "convert", case.source, out, *case.options, "--workers", case.workers)

    def timed(*command: object) -> float:
        shutil.rmtree(out, ignore_errors=True)
        os.sync()
        warm(case.source)
        return seconds(lambda: done(*command))

    contenders = {"bare loop": lambda: timed(*bare), "shardctl": lambda: timed(*convert, "-q")}
    found = in_turn(contenders, runs)
    count = len(images(case.source))
    rates = {who: count / middle for who, middle in medians_of(found).items()}
    ratio = rates["shardctl"] / rates["bare loop"]
    print(f"{case.name}: {count:,} inputs, medians of {runs} interleaved runs, start-up included")
    for who, times in found.items():
        least, most = count / max(times), count / min(times)
        print(f"  {who:10} {rates[who]:9,.0f}/s   ({least:,.0f} to {most:,.0f})")
    print(f"  ratio      {ratio:9.2f}", flush=True)
    return {"case": case.name, "inputs": count, "rates": rates, "seconds": found, "ratio": ratio}


if __name__ == "__main__":
    main()
