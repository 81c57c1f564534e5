"""How fast `shardctl convert` is, beside a bare loop that does only read + decode + resize with the
same library.

    .venv/bin/python scripts/bench/bench_convert.py [CORPUS] [--runs 7] [--json FILE]
    .venv/bin/python scripts/bench/bench_convert.py [CORPUS] --workers 1 2 4 8 16
    .venv/bin/python scripts/bench/bench_convert.py [CORPUS] --recipes

CORPUS is a folder with photos/ and small/cifar10/ (default: $SHARDCTL_CORPUS, else ../shared/data;
without either, images that `shardctl demo` draws). Every round runs each contender once, in turn,
as a process of its own: start-up counts, as it does for a user. The long case repeats the photos
through links, so that start-up weighs as little as in real work. Medians over the rounds; the ratio
is that of the medians.

With --workers, only the photos, some 4,000 of them through links, with so many workers and as many
processes of the bare loop.

With --recipes, docs/recipes/randaugment.toml and simclr.toml on all photos, beside a bare pool that
does the same steps and encodes (scripts/bench/bare_pool.py).
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import options_of, save
from processes import as_installed

HERE = Path(__file__).resolve().parent
FEW_REPEATS, REPEATS, HEAVY_REPEATS = 4, 30, 8
MANY = 4000


def main() -> None:
    parser = options_of(__doc__, corpus=True, runs=7)
    parser.add_argument(
        "--only", nargs="+", metavar="CASE", help="only these cases, such as photos"
    )
    parser.add_argument(
        "--workers", type=int, nargs="+", help="only the photos, with so many workers"
    )
    parser.add_argument("--recipes", action="store_true", help="only the heavy recipes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=HERE.parent.parent) as folder:
        if options.workers:
            found = scaled(Path(options.corpus), Path(folder), options.workers)
        else:
            found = (heavy if options.recipes else cases)(Path(options.corpus), Path(folder))
        results = []
        for case in (case for case in found if not options.only or case[0] in options.only):
            results.append(measure(case, options.runs, Path(folder)))
            save(options.json, results)


Case = tuple[str, Path, int, list[str], list[str]]
"""Name, source, number of inputs, options of convert, and the command of the bare loop without
Python."""

CROP = ["--resize", "256", "--crop", "224", "--store", "raw"]
TWO = ["--workers", "2"]
LOOP = str(HERE / "bare_loop.py")


def folders(corpus: Path, scratch: Path) -> tuple[Path, Path]:
    """Return the folders of photos and of tiny images."""
    if (corpus / "photos").is_dir():
        return corpus / "photos", corpus / "small" / "cifar10"
    print(f"{corpus}: no corpus there, using drawn images")
    subprocess.run(
        [sys.executable, "-m", "shardctl", "demo", scratch / "demo", "--images", "600", "-q"],
        check=True,
    )
    return scratch / "demo" / "photos", scratch / "demo" / "photos"


def repeated(folder: Path, to: Path, times: int) -> Path:
    """Return a new folder in which a folder is so many times."""
    to.mkdir()
    for repeat in range(times):
        (to / f"again{repeat:02d}").symlink_to(folder.resolve())
    return to


def heavy(corpus: Path, scratch: Path) -> list[Case]:
    """Return the cases of recipes that work hard, on photos repeated through links."""
    photos = repeated(folders(corpus, scratch)[0], scratch / "many", HEAVY_REPEATS)
    found = []
    for name in ("randaugment", "simclr"):
        recipe = str(HERE.parent.parent / "docs" / "recipes" / f"{name}.toml")
        bare = [str(HERE / "bare_pool.py"), str(photos), recipe]
        found.append((name, photos, len(images(photos)), ["--recipe", recipe, *TWO], bare))
    return found


def cases(corpus: Path, scratch: Path) -> list[Case]:
    """Return the cases of usual conversions."""
    photos, tiny = folders(corpus, scratch)
    some, many = (
        repeated(photos, scratch / "some", FEW_REPEATS),
        repeated(photos, scratch / "many", REPEATS),
    )
    crop, small = [*CROP, *TWO], ["--resize", "32x32", "--store", "raw", *TWO]
    lots = repeated(tiny, scratch / "lots", 5)
    found = [
        ("photos", photos, crop),
        (f"photos x {FEW_REPEATS}", some, crop),
        (f"photos x {REPEATS}", many, crop),
        ("tiny files", tiny, small),
        ("tiny files x 5", lots, small),
    ]
    return [
        (
            name,
            source,
            len(images(source)),
            options,
            [LOOP, str(source), "32" if options is small else "224"],
        )
        for name, source, options in found
    ]


def scaled(corpus: Path, scratch: Path, workers: list[int]) -> list[Case]:
    """Return the case of photos once for each number of workers."""
    photos, _ = folders(corpus, scratch)
    many = repeated(photos, scratch / "many", -(-MANY // len(images(photos))))
    count = len(images(many))
    return [
        (
            f"{n} workers",
            many,
            count,
            [*CROP, "--workers", str(n)],
            [LOOP, str(many), "224", str(n)],
        )
        for n in workers
    ]


def images(folder: Path) -> list[str]:
    names = (
        os.path.join(parent, name)
        for parent, _, found in os.walk(folder, followlinks=True)
        for name in found
    )
    return sorted(name for name in names if name.lower().endswith((".jpg", ".jpeg", ".png")))


def measure(case: Case, runs: int, scratch: Path) -> dict[str, object]:
    name, source, count, options, loop = case
    bare = [sys.executable, *loop]
    out = scratch / "out"
    convert = [
        sys.executable,
        "-m",
        "shardctl",
        "convert",
        str(source),
        str(out),
        *options,
        "-q",
        "--json",
    ]
    seconds: dict[str, list[float]] = {"bare loop": [], "shardctl": []}
    for _ in range(runs):
        warm(source)
        seconds["bare loop"].append(timed(bare))
        warm(source)
        seconds["shardctl"].append(timed(convert))
        shutil.rmtree(out)
        os.sync()
    rates = {who: count / statistics.median(times) for who, times in seconds.items()}
    ratio = rates["shardctl"] / rates["bare loop"]
    print(f"{name}: {count:,} inputs, medians of {runs} interleaved runs, start-up included")
    for who, times in seconds.items():
        print(
            f"  {who:10} {rates[who]:9,.0f}/s   ({count / max(times):,.0f} to "
            f"{count / min(times):,.0f})"
        )
    print(f"  ratio      {ratio:9.2f}", flush=True)
    return {"case": name, "inputs": count, "rates": rates, "seconds": seconds, "ratio": ratio}


def warm(folder: Path) -> None:
    """Read every file once: a machine that takes its page cache away between runs would favour one
    contender at random."""
    for path in images(folder):
        with open(path, "rb", buffering=0) as file:
            file.read()


def timed(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=as_installed())
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
