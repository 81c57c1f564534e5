"""The result of a check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from shardctl.system.folders import Folder, is_regular_file
from shardctl.system.report import (
    BAD,
    GOOD,
    WARNING,
    Html,
    in_notebook,
    marked,
    rows_in_notebook,
    text,
)
from shardctl.system.text import counted, printable

MISSING = "missing-file"
"""The kind of the finding that a file beside the shards is missing, or that something else has its
name: a link, a pipe."""

MISSING_SHARD = "missing-shard"
"""The same of a shard."""

UNREADABLE = "unreadable-file"
"""The kind of the finding that the system cannot read a file, whatever is in it."""

REBUILD = "`shardctl repair` builds it again from the sources"
MEND = "`shardctl repair` repairs it"
CONVERT_AGAIN = "convert the sources again with --overwrite"


@dataclass(frozen=True)
class Finding:
    """One finding of a check. `kind` is a short stable name, `message` says what is wrong and what
    to do.

    If a whole block is affected, `row`, `key` and `source` are those of its first sample.
    """

    severity: str
    shard: str | None
    block: int | None
    row: int | None
    key: str | None
    kind: str
    message: str
    source: str | None = None

    @property
    def where(self) -> str:
        """What is affected, in words: the shard, the block, the row, the key of the sample, its
        source."""
        parts = {"block": self.block, "row": self.row, "key": self.key, "from": self.source}
        within = (f"{name} {printable(part)}" for name, part in parts.items() if part is not None)
        return ", ".join([printable(self.shard or "dataset"), *within])


def error(
    kind: str,
    message: str,
    shard: str | None = None,
    block: int | None = None,
    row: int | None = None,
    key: str | None = None,
) -> Finding:
    """Return a finding of severity `error`: the dataset is damaged."""
    return Finding("error", shard, block, row, key, kind, message)


def warning(kind: str, message: str) -> Finding:
    """Return a finding of severity `warning`."""
    return Finding("warning", None, None, None, None, kind, message)


def unreadable(name: str, fault: OSError, remedy: str, shard: str | None = None) -> Finding:
    """Return the finding that a file is there and the system cannot read it. `remedy` says what
    else can be done."""
    what = f"{printable(name)} cannot be read ({fault.strerror or fault})"
    return error(
        UNREADABLE,
        f"{what}; check its permissions and its disk or server; {remedy}",
        shard,
    )


def reading(
    folder: Folder,
    name: str,
    remedy: str,
    check: Callable[[], Iterable[Finding]],
    shard: str | None = None,
    called: str = "",
) -> list[Finding]:
    """Return the findings of a check that reads the file `name`, that of a `shard` or beside the
    shards; messages may call it otherwise. One that cannot be read, or is missing, is a finding."""
    called = called or name
    kind = MISSING if shard is None else MISSING_SHARD
    missing = error(kind, f"{called} is missing; {remedy}", shard)
    try:
        return list(check()) if is_regular_file(folder, name) else [missing]
    except FileNotFoundError:
        return [missing]
    except OSError as fault:
        return [unreadable(called, fault, remedy, shard)]


LEVELS = ("quick", "full", "deep")
"""`quick` reads the manifest, the tables, the sizes and every shard's footer; `full` every byte;
`deep` decodes too."""


@dataclass(frozen=True)
class VerifyResult:
    """The result of a check. `ok` is true if there is no finding of severity `error`."""

    ok: bool
    level: str
    shards: int
    samples: int
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> str:
        """Whether it is undamaged, in a word."""
        return "whole" if self.ok else "DAMAGED"

    @property
    def total(self) -> str:
        """The numbers of errors and warnings, in words. Only errors mean that a dataset is
        damaged."""
        errors = sum(finding.severity == "error" for finding in self.findings)
        counts = ((errors, "error"), (len(self.findings) - errors, "warning"))
        return ", ".join(counted(count, noun) for count, noun in counts if count) or "no findings"

    def __repr__(self) -> str:
        """Return the verdict and the numbers, for display."""
        return f"<shardctl.VerifyResult: {self._line}>"

    def _repr_html_(self) -> str:
        """Return the verdict, and the findings as a table, for a notebook."""
        colours = {"error": BAD, "warning": WARNING}
        rows = [
            (marked(each.severity, colours[each.severity]), each.where, each.kind, each.message)
            for each in self.findings
        ]
        verdict = marked(self.verdict, GOOD if self.ok else BAD)
        return in_notebook(
            Html(f"{verdict.text} {text(self._line.removeprefix(self.verdict))}"),
            rows_in_notebook("", rows, ("", "where", "kind", "what is wrong, and what to do")),
        )

    @property
    def _line(self) -> str:
        what = f"{counted(self.shards, 'shard')}, {counted(self.samples, 'sample')}"
        return f"{self.verdict} (level {self.level}): {what}; {self.total}"


def result_of(level: str, shards: int, samples: int, findings: Sequence[Finding]) -> VerifyResult:
    """Return the result of a check with these findings."""
    ok = not any(finding.severity == "error" for finding in findings)
    return VerifyResult(ok, level, shards, samples, tuple(findings))
