"""How fast `shardctl convert` is on text and tables, beside bare loops with pyarrow's own readers
and Hugging Face datasets.

    python scripts/bench/bench_text.py [--size 500] [--runs 5] [--cases jsonl csv …] [--json FILE]
    python scripts/bench/bench_text.py --lines 100M

The first form measures conversions of --size MB of made-up documents (id, title, text of about 300
bytes, score) in every format. Every round runs each contender once, every other round in reverse
order, as whole processes: start-up counts, as it does for a user. The bare loops (bare_text.py) are
two processes that read a half each and write blocks with zstd:3, and check nothing. Hugging Face
runs with one and with two processes, each time with an empty cache, in an environment of its own
that is made with pip in --environment; the faster one counts. It writes Arrow files without
compression, and in a run of its own with zstd:3.

The second form converts one file of many short lines, once.

Every file is read once before it is converted, so that all find it in the page cache. MB/s: of the
documents as the plain file of that format, Parquet and zstd as JSON lines. CPU s: seconds of both
processors, which other work on the machine disturbs less. Memory is resident: the largest sum over
all processes at one moment, and the largest parent and worker. A command that fails is reported
with its last line, and the others go on.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from harness import HERE, SHARDCTL, in_turn, options_of, save, warm
from processes import Ran, run
from text_inputs import make_short_lines, make_text_inputs

MB = 1e6
HUGGING_FACE = "Hugging Face"
FACTS = ("seconds", "processor", "together", "parent", "worker")
"""What is kept of each run."""


class Case(NamedTuple):
    """A format: its file, the plain one whose bytes count for MB/s, how the bare loop and Hugging
    Face read it, and options of convert."""

    source: str
    plain: str
    bare: str
    builder: str
    options: tuple[str, ...] = ()


CASES = {
    "jsonl": Case("docs.jsonl", "docs.jsonl", "jsonl", "json"),
    "csv": Case("docs.csv", "docs.csv", "csv", "csv"),
    "parquet": Case("docs.parquet", "docs.jsonl", "parquet", "parquet"),
    "lines": Case("docs.txt", "docs.txt", "lines", "text", ("--kind", "text", "--record", "line")),
    "jsonl.zst, 8 files": Case("parts", "docs.jsonl", "zst", "json"),
    "jsonl, a function": Case(
        "docs.jsonl", "docs.jsonl", "function", "json", ("--transform", "bare_text:annotate")
    ),
}


def main() -> None:
    parser = options_of(__doc__, size=500.0, runs=5)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=CASES, metavar="CASE")
    temporary = Path(tempfile.gettempdir())
    parser.add_argument("--folder", type=Path, default=temporary / "bench-text")
    parser.add_argument("--environment", type=Path, default=temporary / "bench-hf")
    parser.add_argument("--without-hugging-face", action="store_true")
    parser.add_argument("--lines", help="number of short lines, for instance 100M")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        if options.lines:
            count = int(options.lines.replace("k", "000").replace("M", "000000"))
            results: Any = many_lines(options.folder, count, Path(scratch))
        else:
            results = compare_formats(options, Path(scratch))
    save(options.json, results)


def compare_formats(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    inputs = options.folder / f"{options.size:g}MB"
    facts = make_text_inputs(inputs, int(options.size * MB))
    python = None if options.without_hugging_face else environment(options.environment)
    if isinstance(python, str):
        print(f"{HUGGING_FACE} not measured: {python}")
    results = {}
    for name in options.cases:
        case = CASES[name]
        commands = contenders(case, inputs, facts, scratch, python)
        source = inputs / case.source
        calls = {
            who: lambda command=command, source=source: fresh(command, source, scratch)
            for who, command in commands.items()
        }
        size, count = facts["bytes"][case.plain], facts["documents"]
        print(f"{name}: {count:,} documents, {size / MB:,.0f} MB; load {os.getloadavg()[0]:.1f}")
        found = in_turn(calls, options.runs)
        results[name] = {who: told(who, runs) for who, runs in found.items()}
        ours = results[name]["shardctl"].get("seconds")
        for who, one in results[name].items():
            if "seconds" in one and ours:
                rate, ratio = size / MB / one["seconds"], one["seconds"] / ours
                print(f"  {who:31} {rate:7.0f} MB/s   time / time of shardctl {ratio:.2f}")
    return {"documents": facts["documents"], "cases": results}


def told(name: str, runs: list[Ran]) -> dict[str, Any]:
    """Print what the runs of a contender took, and return it."""
    well = [ran for ran in runs if not ran.failure]
    if len(well) < len(runs):
        print(f"  {name:31} failed: {next(ran.failure for ran in runs if ran.failure)}", flush=True)
    found: dict[str, Any] = {"runs": [{fact: asdict(ran)[fact] for fact in FACTS} for ran in well]}
    if well:
        found["seconds"] = statistics.median(ran.seconds for ran in well)
        processor = statistics.median(ran.processor for ran in well)
        most = (f"{who} {max(getattr(r, who) for r in well) / MB:.0f} MB" for who in FACTS[2:])
        print(
            f"  {name:31} {found['seconds']:.2f} s, {processor:.2f} s of processors; memory:"
            f" {', '.join(most)}",
            flush=True,
        )
    return found


def environment(root: Path) -> Path | str:
    """Return the Python of an environment with datasets, made where it is not there, or the reason
    why it cannot be."""
    python = root / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", root], check=True)
        ran = run([python, "-m", "pip", "-q", "install", "datasets", "zstandard"])
        if ran.failure:
            shutil.rmtree(root)
            return f"cannot be installed: {ran.failure}"
    return python


def contenders(
    case: Case, inputs: Path, facts: dict[str, Any], scratch: Path, python: Path | str | None
) -> dict[str, list[str | Path]]:
    """Return the command of each contender; all write to scratch/out, and Hugging Face caches in
    scratch/cache."""
    source, out = inputs / case.source, scratch / "out"
    bare = [sys.executable, HERE / "bare_text.py", case.bare, source, out]
    commands: dict[str, list[str | Path]] = {
        "shardctl": convert(source, out, *case.options),
        "bare loop": [*bare, str(facts["csv_middle"])] if case.bare == "csv" else bare,
    }
    if isinstance(python, Path):
        function = ["annotate"] if case.bare == "function" else []
        for processes in "12":
            words = [python, HERE / "huggingface_text.py", case.builder, source, out]
            words += [scratch / "cache", processes, *function]
            commands[f"{HUGGING_FACE}, {processes} at once"] = words
            commands[f"{HUGGING_FACE} zstd, {processes} at once"] = [*words, "zstd"]
    return commands


def convert(source: Path, out: Path, *options: str) -> list[str | Path]:
    return [*SHARDCTL, "convert", source, out, "--workers", "2", *options, "-q"]


def fresh(command: list[str | Path], source: Path, scratch: Path, limit: float = 1800) -> Ran:
    """Run a command that finds its source in the page cache, and nothing of the command before."""
    for rest in ("out", "cache"):
        shutil.rmtree(scratch / rest, ignore_errors=True)
    os.sync()
    warm(source)
    # The scripts come last in Python's path: the function of a person is found there.
    path = [*filter(None, [os.environ.get("PYTHONPATH")]), str(HERE)]
    return run(command, {"PYTHONPATH": os.pathsep.join(path)}, scratch, limit)


def many_lines(folder: Path, count: int, scratch: Path) -> dict[str, Any]:
    """Make the file, convert it once, and print what that took."""
    path = folder / f"short-{count}.txt"
    if not path.exists():
        make_short_lines(path, count)
    size, case = path.stat().st_size, CASES["lines"]
    print(f"{count:,} lines, {size / 1e9:.2f} GB, load {os.getloadavg()[0]:.1f}", flush=True)
    ran = fresh(convert(path, scratch / "out", *case.options), path, scratch, 4 * 3600)
    return {"lines": count, "bytes": size, **told("convert", [ran])}


if __name__ == "__main__":
    main()
