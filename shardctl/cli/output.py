"""What the commands share: output options, tables, JSON, and sizes such as 128MiB."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardctl.system.text import printable

if TYPE_CHECKING:
    from shardctl.format.tables import Reject

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


@dataclass(frozen=True)
class Output:
    """What a command prints: `as_json` one JSON object, `quiet` nothing but the result, `verbose` more than usual."""

    as_json: bool
    quiet: bool
    verbose: bool

    @property
    def hides_progress(self) -> bool | None:
        """What tqdm wants as `disable`: True, or None for "unless stderr is a terminal"."""
        return True if self.quiet or self.as_json else None


def output_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --json, -q and -v to a command, which gets them as `output`."""

    @functools.wraps(function)
    def command(as_json: bool, quiet: bool, verbose: bool, **given: Any) -> Any:
        return function(output=Output(as_json, quiet, verbose), **given)

    for option in (
        click.option("-v", "--verbose", is_flag=True, help="Print more on stderr."),
        click.option("-q", "--quiet", is_flag=True, help="Print only the result and errors."),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else."),
    ):
        command = option(command)
    return command


def workers_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --workers to a command: `auto` or a number of processes."""
    return click.option(
        "--workers",
        callback=auto_or_number,
        default="auto",
        show_default=True,
        metavar="auto|N",
        help="Number of worker processes; 0 does the work in this process.",
    )(function)


def if_running_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --if-running to a command that writes a dataset."""
    return click.option(
        "--if-running",
        type=click.Choice(["wait", "fail"]),
        default="wait",
        show_default=True,
        help="What to do while another shardctl is writing DST.",
    )(function)


def waiting_line(owner: str, dst: str) -> str:
    """Return what a command says that waits for another writer of a dataset."""
    from shardctl.system.lease.file_lease import STALE_SECONDS
    from shardctl.system.stores import is_url

    # In a folder of this machine its lock tells: one that was killed has ended, one that was stopped has not.
    lost = f", or gives no sign of life for {STALE_SECONDS:.0f} seconds" if is_url(dst) else ""
    return f"another shardctl is writing it ({owner}); waiting until it ends{lost}"


def metrics_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --metrics to a command that takes long."""
    return click.option(
        "--metrics",
        multiple=True,
        metavar="FILE",
        help="Write figures every few seconds: FILE.jsonl (JSON lines), FILE.prom (Prometheus), http:PORT (Prometheus, on this"
        " machine) or tensorboard:FOLDER. May be given several times.",
    )(function)


@contextmanager
def printing_to_stderr() -> Iterator[None]:
    """Redirect to stderr what is printed inside the block: stdout is for results, and a user's function may print."""
    sys.stdout.flush()
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))
        with suppress(OSError, ValueError):  # no such file descriptors, as in a notebook
            kept = os.dup(1)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, 1)
            os.dup2(2, 1)  # for what is printed by compiled code and by programs that are started
        yield


@contextmanager
def counting(unit: str, output: Output) -> Iterator[Callable[[int, int], None]]:
    """Draw a progress bar on stderr; the function that is given is called with (done, total)."""
    from tqdm import tqdm

    with tqdm(unit=f" {unit}", disable=output.hides_progress, leave=False) as bar:

        def draw(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield draw


def print_json(record: Any) -> None:
    """Print a dataclass or plain data as one JSON object."""
    click.echo(json.dumps(asdict(record) if is_dataclass(record) and not isinstance(record, type) else record, default=str))


def print_table(rows: Iterable[Sequence[Any]], header: Sequence[str] | None = None) -> None:
    """Print rows in columns; a column of numbers is set to the right."""
    body = [[_cell(value) for value in row] for row in rows]
    numeric = [all(isinstance(v, int | float) for v in column) for column in zip(*rows, strict=True)] if body else []
    lines = [list(header), *body] if header else body
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))] if lines else []
    for line in lines:
        cells = [c.rjust(w) if n else c.ljust(w) for c, w, n in zip(line, widths, numeric, strict=True)]
        click.echo("  " + "  ".join(cells).rstrip())


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else printable(str(value))


def print_reasons(reasons: dict[str, int], examples: Iterable[Reject]) -> None:
    """Print how many inputs were rejected for which reason, each with an example."""
    for (reason, count), example in zip(reasons.items(), examples, strict=True):
        click.echo(f"  {count:,}  {reason}; for instance {printable(example.key)}: {printable(example.message)}")


def byte_size(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Read a size such as 128MiB, 64MB or 1000000 as a number of bytes."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", value.strip())
    if match is None or match[2].upper() not in _UNITS:
        raise click.BadParameter(f"{value!r} is not a size; write 128MiB, 64MB or a number of bytes", context, parameter)
    return int(float(match[1]) * _UNITS[match[2].upper()])


def auto_or_number(context: click.Context, parameter: click.Parameter, value: str) -> int | str:
    """Read `auto` or a whole number."""
    if value != "auto" and not value.isdecimal():
        raise click.BadParameter(f"{value!r} is neither auto nor a whole number", context, parameter)
    return value if value == "auto" else int(value)


def seconds_or_none(context: click.Context, parameter: click.Parameter, value: str) -> float | None:
    """Read a number of seconds, or `none`."""
    if value == "none":
        return None
    try:
        return float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is neither a number of seconds nor none", context, parameter) from None


TEXT_WIDTH = 100
"""Most characters of a value in a table."""


def shortened(value: Any, width: int = TEXT_WIDTH) -> str:
    """Return a value as text of at most `width` characters."""
    text = printable(str(value))
    return text if len(text) <= width else text[: width - 1] + "…"


_BARS = " ▁▂▃▄▅▆▇█"


def bars(counts: Sequence[int]) -> str:
    """Return a histogram as a line of bars, the highest for the largest number; only an empty bin has none."""
    most = max(1, max(counts, default=0))
    return "".join(_BARS[-(-8 * count // most)] for count in counts)


def check_outputs(given: dict[str, Any]) -> None:
    """Raise StorageError if another file is where a sheet or a page is to go."""
    if given["images"] is not None:
        from shardctl.images.codecs.sheet import SHEET

        SHEET.check(Path(given["images"]))
    if given["html"] is not None:
        from shardctl.inspection.pages.page import PAGE

        PAGE.check(Path(given["html"]))
