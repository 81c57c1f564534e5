"""The result of a check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardctl.inspection.verify.finding import Finding
from shardctl.system.html import (
    BAD,
    GOOD,
    WARNING,
    Html,
    in_notebook,
    marked,
    rows_in_notebook,
    text,
)
from shardctl.system.text import counted

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
