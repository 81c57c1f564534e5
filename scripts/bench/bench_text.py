"""How fast `shardctl convert` is on text and tables, beside bare loops with pyarrow's own readers
and Hugging Face datasets.

    python scripts/bench/bench_text.py [--size 500] [--runs 5] [--cases jsonl csv …] [--other TREE]
    [--json FILE]
    python scripts/bench/bench_text.py --lines 100M [--form text|jsonl]

The first form measures conversions of --size MB of made-up documents (id, title, text of about 300
bytes, score) in every format. Every round runs each contender once, every other round in reverse
order, as whole processes: start-up counts, as it does for a user. The bare loops (bare_text.py) are
two processes that read a half each and write blocks with zstd:3, and check nothing; `whole halves`
is the one that most people would write, with pyarrow.json.read_json. Hugging Face runs with one and
with two processes, each time with an empty cache, in an environment of its own that is made with
pip in --environment; the faster one counts. It writes Arrow files without compression, and in a run
of its own with zstd:3.

--other names the tree of another version (made by `git archive COMMIT | tar -x -C TREE`). The second
form converts one file of many short lines, once, after a dry run.

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
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness import options_of, save
from processes import Ran, run

sys.path.append(str(Path(__file__).resolve().parents[1] / "data"))
from text_inputs import make_short_lines, make_text_inputs

HERE = Path(__file__).resolve().parent
TREE = HERE.parent.parent
MB = 1e6
SHARDCTL, BARE, WHOLE, HUGGINGFACE = (
    "shardctl",
    "bare loop",
    "bare loop, whole halves",
    "Hugging Face",
)
OTHER = "shardctl, other tree"
HUGGINGFACE_ZSTD = "Hugging Face zstd"


@dataclass(frozen=True)
class Case:
    """A format: its file, how the bare loop and Hugging Face read it, options of convert, and what
    is asked for.

    `plain` is the file whose bytes count for MB/s; `bar` is the least (time of the bare loop / time
    of shardctl).
    """

    source: str
    plain: str
    bare: tuple[str, ...]
    builder: str
    options: tuple[str, ...] = ()
    bar: float = 0.9
    function: bool = False


CASES = {
    "jsonl": Case("docs.jsonl", "docs.jsonl", ("jsonl", "jsonl-whole"), "json"),
    "csv": Case("docs.csv", "docs.csv", ("csv",), "csv"),
    "parquet": Case("docs.parquet", "docs.jsonl", ("parquet",), "parquet"),
    "lines": Case(
        "docs.txt", "docs.txt", ("lines",), "text", ("--kind", "text", "--record", "line")
    ),
    "jsonl.zst, one frame": Case("one", "docs.jsonl", ("zst",), "json"),
    "jsonl.zst, 8 files": Case("parts", "docs.jsonl", ("zst",), "json"),
    "jsonl, a function": Case(
        "docs.jsonl",
        "docs.jsonl",
        ("function",),
        "json",
        ("--transform", "bare_text:annotate"),
        0.7,
        function=True,
    ),
}


def main() -> None:
    parser = options_of(__doc__, runs=5)
    parser.add_argument("--size", type=float, default=500, help="MB of documents as JSON lines")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=CASES, metavar="CASE")
    parser.add_argument(
        "--without",
        nargs="*",
        default=[],
        choices=[SHARDCTL, BARE, HUGGINGFACE],
        help="contenders to leave out",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()) / "bench-text",
        help="where inputs are kept",
    )
    parser.add_argument(
        "--environment", type=Path, default=Path(tempfile.gettempdir()) / "bench-hf"
    )
    parser.add_argument("--other", type=Path, help="the tree of another version of shardctl")
    parser.add_argument("--lines", type=count_of, help="number of short lines, for instance 100M")
    parser.add_argument(
        "--form", choices=["text", "jsonl"], default="text", help="what the short lines are"
    )
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.lines:
        results: Any = many_lines(options.folder, options.lines, options.form)
    else:
        results = compare_formats(options)
    save(options.json, results)


def count_of(text: str) -> int:
    units = {"k": 10**3, "M": 10**6, "G": 10**9}
    return int(float(text[:-1]) * units[text[-1]]) if text[-1:] in units else int(text)


# --- text and tables, beside others


def compare_formats(options: argparse.Namespace) -> dict[str, Any]:
    inputs = options.folder / f"{options.size:g}MB"
    facts = make_text_inputs(inputs, int(options.size * MB))
    python = None if HUGGINGFACE in options.without else environment(options.environment)
    results = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        for name in options.cases:
            commands = contenders(
                CASES[name], inputs, facts, Path(scratch), python, options.without
            )
            if options.other:
                commands[OTHER] = convert(
                    inputs / CASES[name].source, Path(scratch) / "out", *CASES[name].options
                )
            trees = {OTHER: options.other}
            results[name] = compare(
                commands, options.runs, inputs / CASES[name].source, Path(scratch), trees
            )
            show(name, CASES[name], facts, results[name])
            if isinstance(python, str):
                print(f"  {HUGGINGFACE:26} not measured: {python}")
    return {"documents": facts["documents"], "cases": results}


def environment(root: Path) -> Path | str:
    """Return the Python of an environment with datasets, made where it is not there, or the reason
    why it cannot be."""
    python = root / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", root], check=True)
        ran = subprocess.run(
            [python, "-m", "pip", "-q", "install", "datasets", "zstandard"],
            capture_output=True,
            text=True,
        )
        if ran.returncode:
            shutil.rmtree(root)
            return f"cannot be installed: {(ran.stderr.strip().splitlines() or ['?'])[-1]}"
    return python


def contenders(
    case: Case,
    inputs: Path,
    facts: dict[str, Any],
    scratch: Path,
    python: Path | str | None,
    without: list[str],
) -> dict[str, list[str | Path]]:
    """Return the command of each contender; all write to scratch/out, and Hugging Face caches in
    scratch/cache."""
    source, out = inputs / case.source, scratch / "out"
    commands: dict[str, list[str | Path]] = {}
    if SHARDCTL not in without:
        commands[SHARDCTL] = convert(source, out, *case.options)
    if BARE not in without:
        for form, name in zip(case.bare, (BARE, WHOLE), strict=False):
            middle = [str(facts["csv_middle"])] if form == "csv" else []
            commands[name] = [sys.executable, HERE / "bare_text.py", form, source, out, *middle]
    if isinstance(python, Path):
        for processes in ("1", "2"):
            function = ["annotate"] if case.function else []
            name = f"{processes} process{'es' if processes > '1' else ''}"
            for who, compressed in ((HUGGINGFACE, []), (HUGGINGFACE_ZSTD, ["zstd"])):
                commands[f"{who}, {name}"] = [
                    python, HERE / "huggingface_text.py", case.builder, source, out, scratch / "cache", processes,
                    *function, *compressed
                ]  # fmt: skip
    return commands


def convert(source: Path, out: Path, *options: str) -> list[str | Path]:
    return [
        sys.executable,
        "-m",
        "shardctl",
        "convert",
        source,
        out,
        "--workers",
        "2",
        *options,
        "-q",
    ]


def compare(
    commands: dict[str, list[str | Path]],
    runs: int,
    source: Path,
    scratch: Path,
    trees: dict[str, Path] | None = None,
) -> dict[str, Any]:
    """Run the commands in turn, several times. Returns for each what its runs took, and what it
    wrote or why it failed."""
    found: dict[str, Any] = {name: {"runs": [], "written": {}} for name in commands}
    for turn in range(runs):
        for name, command in list(commands.items())[:: 1 if turn % 2 == 0 else -1]:
            if "failure" in found[name]:
                continue
            for rest in ("out", "cache"):
                shutil.rmtree(scratch / rest, ignore_errors=True)
            os.sync()
            warm(source)
            ran = run(command, paths((trees or {}).get(name, TREE)), scratch)
            if ran.failure:
                found[name]["failure"] = ran.failure
                continue
            found[name]["runs"].append(
                {
                    key: value
                    for key, value in asdict(ran).items()
                    if key not in ("code", "output", "errors", "failure")
                }
            )
            found[name]["written"] = sizes(scratch / "out")
    shutil.rmtree(scratch / "out", ignore_errors=True)
    shutil.rmtree(scratch / "cache", ignore_errors=True)
    for one in found.values():
        if one["runs"]:
            one["seconds"] = statistics.median(each["seconds"] for each in one["runs"])
    return found


def paths(tree: Path) -> dict[str, str]:
    """The scripts come last in Python's path: the function of a person is found there, and nothing
    of shardctl."""
    return {"PYTHONPATH": f"{tree.resolve()}{os.pathsep}{HERE}"}


def warm(source: Path) -> None:
    """Read every file once: a machine that takes its page cache away between runs would favour one
    contender at random."""
    names = (
        [source]
        if source.is_file()
        else [Path(parent) / name for parent, _, names in os.walk(source) for name in names]
    )
    for name in names:
        with open(name, "rb", buffering=0) as file:
            while file.read(1 << 24):
                pass


def sizes(out: Path) -> dict[str, int]:
    """Return the bytes of a dataset's tables, and of everything else in it."""
    tables = {
        name: (out / name).stat().st_size
        for name in ("plan.arrow", "files.arrow", "shards.arrow")
        if (out / name).exists()
    }
    whole = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return {**tables, "other files": whole - sum(tables.values())}


COLUMNS = (
    " " * 31 + "median   least    most  CPU s    MB/s     each/s    memory: all, parent, worker"
)


def listed(written: dict[str, int]) -> str:
    return ", ".join(f"{name} {size:,}" for name, size in written.items())


def show(title: str, case: Case, facts: dict[str, Any], found: dict[str, Any]) -> None:
    size, count = facts["bytes"][case.plain], facts["documents"]
    print(f"{title}: {count:,} documents, {size / MB:,.0f} MB; load {os.getloadavg()[0]:.1f}")
    print(COLUMNS)
    for name, one in found.items():
        row(name, one, count, size)
    table = found.get(SHARDCTL, {})
    if "seconds" in table:
        for other, bar in bars(case, found):
            ratio = found[other]["seconds"] / table["seconds"]
            print(
                f"  time of {other} / time of shardctl: {ratio:.2f} (bar {bar:g}: "
                f"{'reached' if ratio >= bar else 'missed'})"
            )
        print(f"  bytes written by shardctl: {listed(table['written'])}")
    sys.stdout.flush()


def bars(case: Case, found: dict[str, Any]) -> list[tuple[str, float]]:
    """Return each contender that was measured and has a bar, with the bar; of Hugging Face's the
    faster one."""
    others = [(name, case.bar) for name in (BARE, WHOLE) if "seconds" in found.get(name, {})]
    for who in (HUGGINGFACE, HUGGINGFACE_ZSTD):
        timed = [
            (one["seconds"], name)
            for name, one in found.items()
            if name.startswith(f"{who},") and "seconds" in one
        ]
        others += [(name, 2.0) for _, name in sorted(timed)[:1]]
    return others


def row(name: str, one: dict[str, Any], count: int, size: float | None) -> None:
    if "failure" in one:
        print(f"  {name:26} failed: {one['failure']}")
        return
    if not one["runs"]:
        print(f"  {name:26} not run")
        return
    times = [each["seconds"] for each in one["runs"]]
    rate = f"{size / MB / one['seconds']:7.0f}" if size else " " * 7
    memory = " ".join(
        f"{max(each[who] for each in one['runs']) / MB:6.0f} MB"
        for who in ("together", "parent", "worker")
    )
    seconds = f"{one['seconds']:6.2f} s {min(times):7.2f} {max(times):7.2f}"
    processor = statistics.median(each["processor"] for each in one["runs"])
    print(
        f"  {name:26} {seconds} {processor:6.2f} {rate} {count / one['seconds']:10,.0f} "
        f"{memory:>30}"
    )


# --- many short lines


def many_lines(folder: Path, count: int, form: str) -> dict[str, Any]:
    """Make the file, look at it with --dry-run, convert it once, and print what that took."""
    path = folder / f"short-{count}.{'txt' if form == 'text' else 'jsonl'}"
    if not path.exists():
        require(folder, count * 60, "the lines")
        make_short_lines(path, count, form)
    size = path.stat().st_size
    print(f"{count:,} lines, {size / 1e9:.2f} GB, load {os.getloadavg()[0]:.1f}", flush=True)
    # The shards are not larger than the lines with their keys; the old plan had a row of 100 bytes
    # for every line.
    require(folder, size + 120 * count, "the dataset, at the most")
    settings = ("--kind", "text", "--record", "line") if form == "text" else ()
    results: dict[str, Any] = {"lines": count, "bytes": size}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        out = Path(scratch) / "out"
        steps: dict[str, Callable[[], Ran]] = {
            "dry run": lambda: run(
                [*convert(path, out, *settings), "--dry-run"], paths(TREE), Path(scratch), 4 * 3600
            ),
            "convert": lambda: run(
                convert(path, out, *settings), paths(TREE), Path(scratch), 4 * 3600
            ),
            "again": lambda: run(
                convert(path, out, *settings), paths(TREE), Path(scratch), 4 * 3600
            ),
        }
        for name, step in steps.items():
            warm(path)
            ran = step()
            results[name] = asdict(ran)
            if ran.failure:
                print(f"  {name:10} failed after {ran.seconds:.1f} s: {ran.failure}")
                break
            memory = (
                f"all {ran.together / MB:.0f} MB, parent {ran.parent / MB:.0f} MB, worker "
                f"{ran.worker / MB:.0f} MB"
            )
            rates = f"{count / ran.seconds:12,.0f} lines/s {size / MB / ran.seconds:8.0f} MB/s"
            print(f"  {name:10} {ran.seconds:8.1f} s {rates}  memory: {memory}", flush=True)
        results["written"] = sizes(out) if out.exists() else {}
        print(f"  bytes written: {listed(results['written'])}")
    return results


def require(folder: Path, size: int, what: str) -> None:
    free = shutil.disk_usage(folder).free
    print(f"disk: {size / 1e9:.1f} GB needed for {what}, {free / 1e9:.1f} GB free at {folder}")
    if free < size + (1 << 30):
        raise SystemExit("not enough; --folder names another place")


if __name__ == "__main__":
    main()
