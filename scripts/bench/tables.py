"""The tables of docs/performance.md, measured on this machine: `make bench`.

    .venv/bin/python scripts/bench/tables.py [CORPUS] [--only NAME …] [--quick]

It runs the other scripts of this folder, with sizes for about half an hour on 2 cores, and prints
one Markdown table each:

    loader-images     the loader on raw pixels and JPEG, beside bare loops and other loaders
    loader-text       the loader on lines and blocks of tokens, beside the same
    convert-photos    convert beside a bare loop, and the first epochs beside tf.data
    convert-text      convert of text, tables and tokens, beside bare loops and Hugging Face datasets
    gpu               training steps and batches per second on a GPU
    commands          start-up, help, inspect, verify and update, and memory as the data grows

It installs nothing. Other loaders are found in peers/, where bench_peers.py installs them, or in
the Python that runs this script; tf.data's snapshot in the environment of `make interop`. Those
that are missing are named below the table. What the scripts print goes to stderr. CORPUS is a
folder with photos/ and small/cifar10/ (default: $SHARDCTL_CORPUS; without it, images that `shardctl
demo` draws). A whole run needs some 10 GB of disk. --quick only tries whether the scripts run: its
inputs are tiny, most contenders are left out, and its figures mean nothing.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness import HERE, ROOT, SHARDCTL, done, medians_of
from PIL import Image
from processes import as_installed

from shardctl.benchmark.measure.meters import environment

WITH_GPU = "import sys, torch, torchvision, webdataset; sys.exit(not torch.cuda.is_available())"


@dataclass
class Table:
    """A table in the making: its rows, contenders that were left out with the reason, and scripts
    that failed."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def rates(self, case: str, rates: dict[str, float]) -> None:
        """Add rows of rates, and how many times as fast ours is."""
        for name, rate in rates.items():
            ratio = rates.get("shardctl", 0) / rate
            self.rows.append((case, name, f"{rate:,.0f}/s", times_as(ratio, name)))

    def times(self, case: str, seconds: dict[str, float], ours: str = "shardctl") -> None:
        """Add rows of seconds, and how many times as fast ours is."""
        for name, one in seconds.items():
            ratio = one / seconds[ours] if ours in seconds and name != ours else 0
            self.rows.append((case, name, f"{one:.2f} s", times_as(ratio, name)))

    def markdown(self) -> str:
        """Return the table, and sentences about what is missing."""
        lines = [f"## {self.title}"]
        if self.rows:
            rule = ["---"] * 2 + ["---:"] * (len(self.columns) - 2)
            lines += ["", *(f"| {' | '.join(row)} |" for row in (self.columns, rule, *self.rows))]
        for reason in dict.fromkeys(self.left_out.values()):
            said = re.sub(r"^(\w+: )?No module named '([\w.]+)'", r"\2 is not installed", reason)
            names = ", ".join(name for name, why in self.left_out.items() if why == reason)
            lines += ["", f"Not measured: {names} ({said.removeprefix('NotImplementedError: ')})."]
        return "\n".join([*lines, *(f"\n{failure}" for failure in self.failures), ""])


def times_as(ratio: float, name: str) -> str:
    return f"{ratio:.2f}" if ratio and name != "shardctl" else ""


@dataclass(frozen=True)
class Machine:
    """Where the scripts find their inputs and write, and whether they only try whether they run."""

    corpus: Path
    scratch: Path
    quick: bool

    def script(self, table: Table, name: str, *arguments: object) -> Any:
        """Run a script, and return its JSON; None if it fails, with a sentence in the table."""
        result = self.scratch / "result.json"
        result.unlink(missing_ok=True)
        command = [sys.executable, str(HERE / name), *map(str, arguments), "--json", str(result)]
        print("$", " ".join(command), file=sys.stderr, flush=True)
        ran = subprocess.run(
            command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, env=as_installed()
        )
        if ran.returncode or not result.exists():
            sys.stderr.write(ran.stderr)
            reason = (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]
            table.failures.append(f"`{name}` failed: {reason}")
            return None
        return json.loads(result.read_text())["results"]

    def runs(self, whole: int) -> list[object]:
        return ["--runs", 1 if self.quick else whole]

    def size(self, whole: float, quick: float) -> float:
        return quick if self.quick else whole


# --- the tables


def loader_images(machine: Machine) -> Table:
    table = Table(
        "The loader on images", ("samples", "reader", "samples/s", "shardctl: times as fast")
    )
    cases = ["raw, random"] if machine.quick else ["raw, random", "raw zstd, shuffled"]
    given = (*machine.runs(5), "--only", *cases)
    for one in machine.script(table, "bench_loader.py", machine.corpus, *given) or []:
        table.rates(one["case"], one["samples_per_s"])
    rounds = ("--rounds", machine.size(5, 1))
    found = machine.script(table, "bench_jpeg.py", machine.corpus, *rounds) or {}
    for case, one in found.items():
        rates = {"bare loop": 1e6 / one["bare"][0], "shardctl": 1e6 / one["shardctl"][0]}
        table.rates(f"JPEG, {case}", rates)
    peers(machine, table, *(["jpeg"] if machine.quick else ["raw", "jpeg"]))
    return table


def loader_text(machine: Machine) -> Table:
    table = Table(
        "The loader on text and tokens",
        ("samples", "reader", "samples/s", "shardctl: times as fast"),
    )
    peers(machine, table, "lines")
    found = machine.script(
        table, "bench_tokens.py", "--blocks", machine.size(50_000, 640), *machine.runs(5)
    )
    if found:
        table.rates("blocks of 2,048 tokens", found["blocks_per_s"])
        table.left_out |= found["missing"]
    return table


def peers(machine: Machine, table: Table, *cases: str) -> None:
    """Add other loaders."""
    places = [
        "--folder",
        machine.scratch / "peers",
        "--environments",
        ROOT / "peers",
        "--installed",
    ]
    sizes = [
        "--lines",
        machine.size(1_000_000, 2000),
        "--seconds",
        machine.size(2, 0.1),
        *machine.runs(3),
    ]
    few = ["--only", "shardctl", "Hugging Face datasets"] if machine.quick else []
    found = machine.script(
        table, "bench_peers.py", machine.corpus, *places, *sizes, *few, "--cases", *cases
    )
    for case, one in (found or {}).items():
        table.rates(f"{case}, beside other loaders", one["median"])
        table.left_out |= {f"{name} on {case}": reason for name, reason in one["failures"].items()}


def convert_photos(machine: Machine) -> Table:
    table = Table(
        "convert on photos", ("inputs", "contender", "inputs/s", "shardctl: times as fast")
    )
    few = ["--few"] if machine.quick else []
    for one in (
        machine.script(table, "bench_convert.py", machine.corpus, *machine.runs(3), *few) or []
    ):
        table.rates(f"{one['case']} ({one['inputs']:,})", one["rates"])
    sizes = ["--times", machine.size(8, 1), *machine.runs(3)]
    found = machine.script(table, "bench_snapshot.py", machine.corpus, *sizes)
    if found:
        rates = medians_of(found)
        first = {
            "first, wait=False": "shardctl",
            "raw epoch": "bare loop, keeps nothing",
            "tf.data first": "tf.data snapshot",
        }
        second = {"second": "shardctl", "tf.data second": "tf.data snapshot"}
        for case, names in (
            ("the first epoch, from photos", first),
            ("the second epoch, from the snapshot", second),
        ):
            table.rates(
                case, {shown: rates[name] for name, shown in names.items() if name in rates}
            )
        if "tf.data first" not in rates:
            table.left_out["tf.data"] = "`make interop` installs it"
    return table


def convert_text(machine: Machine) -> Table:
    table = Table(
        "convert on text, tables and tokens",
        ("inputs", "contender", "time", "shardctl: times as fast"),
    )
    hugging_face = ["--environment", sys.prefix]
    if not find_spec("datasets"):
        hugging_face = ["--without-hugging-face"]
        table.left_out["Hugging Face datasets"] = "not installed"
    cases = ["--cases", *(["jsonl"] if machine.quick else ["jsonl", "csv", "parquet", "lines"])]
    sizes = ["--size", machine.size(500, 1), *machine.runs(3), "--folder", machine.scratch / "text"]
    found = machine.script(table, "bench_text.py", *sizes, *hugging_face, *cases)
    for case, contenders in (found or {"cases": {}})["cases"].items():
        table.times(
            case, {name: one["seconds"] for name, one in contenders.items() if "seconds" in one}
        )
    sizes = [
        "--size",
        machine.size(50, 0.5),
        *machine.runs(3),
        "--vocab-size",
        machine.size(16_384, 500),
    ]
    found = machine.script(table, "bench_tokenize.py", *sizes)
    if found:
        seconds = {name: one["seconds"] for name, one in found["results"].items()}
        beside = {
            ", tokenizers": ("bare pool, tokenizers", "Hugging Face map"),
            ", auto": ("bare pool, gigatoken", "Hugging Face map"),
        }
        for engine, others in beside.items():
            ours = f"shardctl{engine}"
            case = f"tokens of {found['bytes'] / 1e6:,.1f} MB"
            table.times(
                case, {name: seconds[name] for name in (ours, *others) if name in seconds}, ours
            )
    return table


def gpu(machine: Machine) -> Table:
    table = Table("On a GPU", ("work", "batches from", "samples/s", "of the limit"))
    if subprocess.run([sys.executable, "-c", WITH_GPU], capture_output=True).returncode:
        table.left_out["training steps"] = (
            "this needs an NVIDIA GPU, PyTorch, torchvision and webdataset"
        )
        return table
    sizes = [
        "--rounds",
        machine.size(3, 1),
        "--share",
        machine.size(1, 0.05),
        "--only",
        "resnet50",
        "vit_b16",
        "memory",
    ]
    for part, contenders in (
        machine.script(table, "bench_gpu.py", machine.corpus, *sizes) or {}
    ).items():
        rates = {name: statistics.median(one["samples_per_s"]) for name, one in contenders.items()}
        limit = next(iter(rates.values()))
        table.rows += [
            (part, name, f"{rate:,.0f}", f"{rate / limit:.1%}") for name, rate in rates.items()
        ]
    return table


def commands(machine: Machine) -> Table:
    table = Table("Commands, and memory", ("", "command", "median", "times as long"))
    found = machine.script(table, "bench_startup.py", machine.corpus, *machine.runs(15))
    if found:
        medians = medians_of(found)
        shortest = medians["python -c pass"]
        table.rows += [
            ("start-up", name, f"{1000 * one:,.0f} ms", f"{one / shortest:.1f} x `python -c pass`")
            for name, one in medians.items()
        ]
    found = machine.script(
        table,
        "bench_update.py",
        machine.corpus,
        "--files",
        machine.size(20_000, 200),
        *machine.runs(3),
    )
    if found:
        medians = medians_of(found)
        fresh = medians["fresh conversion"]
        table.rows += [
            ("update", name, f"{one:.2f} s", f"{one / fresh:.2f} x the conversion")
            for name, one in medians.items()
        ]
    times = [1] if machine.quick else [1, 30]
    for one in (
        machine.script(table, "bench_memory.py", machine.corpus / "photos", "--times", *times) or []
    ):
        for process in ("worker", "parent"):
            table.rows.append(
                (
                    "memory",
                    f"photos x {one['times']}, {process}",
                    f"{one[process] / 1e6:,.0f} MB",
                    "",
                )
            )
    return table


TABLES: dict[str, Callable[[Machine], Table]] = {
    "loader-images": loader_images,
    "loader-text": loader_text,
    "convert-photos": convert_photos,
    "convert-text": convert_text,
    "gpu": gpu,
    "commands": commands,
}


def drawn(folder: Path, count: int) -> Path:
    """Draw photos, and make tiny ones of them."""
    done(*SHARDCTL, "demo", folder / "demo", "--images", count, "-q")
    corpus = folder / "corpus"
    corpus.mkdir()
    photos = (folder / "demo" / "photos").rename(corpus / "photos")
    for path in photos.rglob("*.jpg"):
        tiny = corpus / "small" / "cifar10" / path.relative_to(photos)
        tiny.parent.mkdir(parents=True, exist_ok=True)
        Image.open(path).resize((32, 32)).save(tiny)
    return corpus


def about(corpus: Path, folder: Path, quick: bool) -> str:
    """Return the date, the commit, the machine and the inputs."""
    machine = environment(folder)
    git = ["git", "-C", str(ROOT)]
    commit = (
        subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        ).stdout.strip()
        or "unknown"
    )
    changed = subprocess.run(
        [*git, "status", "--porcelain", "-uno"], capture_output=True, text=True
    ).stdout.strip()
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    load = os.getloadavg()[0]
    lines = [
        "# Figures of this machine",
        "",
        f"- Date: {datetime.now(timezone.utc):%Y-%m-%d}; commit "
        f"{commit}{', with changes' if changed else ''}",
        f"- Machine: {machine['cores']} cores of {machine['cpu']}, "
        f"{machine['memory_bytes'] / (1 << 30):.0f} GiB,"
        f" {machine['file_system']}, {machine['system']}",
        f"- Python {machine['python']}, {versions}",
        f"- Images: {corpus if corpus.parent != folder else 'drawn by `shardctl demo`'}",
        f"- Load before: {load:.1f}"
        + (". Other programs are running: repeat this when they are not" if load > 0.5 else ""),
        *(["- A quick try with tiny inputs: these figures mean nothing"] if quick else []),
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", nargs="?", type=Path, default=os.environ.get("SHARDCTL_CORPUS"))
    parser.add_argument("--only", nargs="+", choices=TABLES, default=list(TABLES), metavar="NAME")
    parser.add_argument(
        "--quick", action="store_true", help="try whether everything runs, on tiny inputs"
    )
    options = parser.parse_args()
    failed = False
    compileall.compile_dir(ROOT / "shardctl", quiet=1)  # as it is where it is installed
    with tempfile.TemporaryDirectory(dir=ROOT) as folder:
        scratch = Path(folder).resolve()
        given = None if options.quick or options.corpus is None else Path(options.corpus).resolve()
        corpus = given or drawn(scratch, 24 if options.quick else 600)
        print(about(corpus, scratch, options.quick), flush=True)
        for name in options.only:
            table = TABLES[name](Machine(corpus, scratch, options.quick))
            failed = failed or bool(table.failures)
            print(table.markdown(), flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
