"""How fast `shardctl convert` is, beside a bare loop that does only read + decode + resize with the same library.

    .venv/bin/python scripts/bench_convert.py [CORPUS] [--runs 7] [--json FILE]

CORPUS is a folder with photos/ and small/cifar10/ (default: $SHARDCTL_CORPUS, else ../shared/data; without either, images
that `shardctl demo` draws). Every round runs each contender once, in turn, as a process of its own: start-up counts, as
it does for a user. The long case repeats the photos through links, so that start-up weighs as little as in real work.
Medians over the rounds; the ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPEATS = 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="?", default=os.environ.get("SHARDCTL_CORPUS", HERE.parent.parent / "shared" / "data"))
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=HERE.parent) as folder:
        results = [measure(case, options.runs, Path(folder)) for case in cases(Path(options.corpus), Path(folder))]
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


def cases(corpus: Path, scratch: Path) -> list[tuple[str, Path, int, list[str]]]:
    """Return (name, source, number of inputs, options of convert) of each case."""
    if not (corpus / "photos").is_dir():
        print(f"{corpus}: no corpus there, using drawn images")
        subprocess.run([sys.executable, "-m", "shardctl", "demo", scratch / "demo", "--images", "600", "-q"], check=True)
        photos = tiny = scratch / "demo" / "photos"
    else:
        photos, tiny = corpus / "photos", corpus / "small" / "cifar10"
    many = scratch / "many"
    many.mkdir()
    for repeat in range(REPEATS):
        (many / f"again{repeat:02d}").symlink_to(photos.resolve())
    crop = ["--resize", "256", "--crop", "224", "--store", "raw"]
    small = ["--resize", "32x32", "--store", "raw"]
    lots = scratch / "lots"
    lots.mkdir()
    for repeat in range(5):
        (lots / f"again{repeat}").symlink_to(tiny.resolve())
    found = [
        ("photos", photos, crop),
        (f"photos x {REPEATS}", many, crop),
        ("tiny files", tiny, small),
        ("tiny files x 5", lots, small),
    ]
    return [(name, source, len(images(source)), options) for name, source, options in found]


def images(folder: Path) -> list[str]:
    names = (os.path.join(parent, name) for parent, _, found in os.walk(folder, followlinks=True) for name in found)
    return sorted(name for name in names if name.lower().endswith((".jpg", ".jpeg", ".png")))


def measure(case: tuple[str, Path, int, list[str]], runs: int, scratch: Path) -> dict[str, object]:
    name, source, count, options = case
    size = "32" if "32x32" in options else "224"
    bare = [sys.executable, str(HERE / "bare_loop.py"), str(source), size]
    out = scratch / "out"
    convert = [sys.executable, "-m", "shardctl", "convert", str(source), str(out), *options, "--workers", "2", "-q", "--json"]
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
    print(f"{name}: {count:,} inputs, medians of {runs} interleaved runs, 2 processes, start-up included")
    for who, times in seconds.items():
        print(f"  {who:10} {rates[who]:9,.0f}/s   ({count / max(times):,.0f} to {count / min(times):,.0f})")
    print(f"  ratio      {ratio:9.2f}", flush=True)
    return {"case": name, "inputs": count, "rates": rates, "seconds": seconds, "ratio": ratio}


def warm(folder: Path) -> None:
    """Read every file once: a machine that takes its page cache away between runs would favour one contender at random."""
    for path in images(folder):
        with open(path, "rb", buffering=0) as file:
            file.read()


def timed(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
