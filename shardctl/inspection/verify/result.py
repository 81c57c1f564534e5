"""The result of a check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardctl.inspection.verify.finding import Finding

LEVELS = ("quick", "full", "deep")
"""`quick` reads the manifest, the tables, the sizes and every shard's footer; `full` every byte; `deep` decodes too."""


@dataclass(frozen=True)
class VerifyResult:
    """The result of a check. `ok` is true if there is no finding of severity `error`."""

    ok: bool
    level: str
    shards: int
    samples: int
    findings: tuple[Finding, ...]


def result_of(level: str, shards: int, samples: int, findings: Sequence[Finding]) -> VerifyResult:
    """Return the result of a check with these findings."""
    ok = not any(finding.severity == "error" for finding in findings)
    return VerifyResult(ok, level, shards, samples, tuple(findings))
