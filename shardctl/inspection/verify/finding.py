"""What a check finds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardctl.system.text import printable

MISSING = "missing-file"
"""The kind of the finding that a file beside the shards is missing, or that something else has its
name: a link, a pipe."""

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
        where = [printable(self.shard or "dataset")]
        where += [
            f"{name} {value}"
            for name, value in (("block", self.block), ("row", self.row))
            if value is not None
        ]
        where += [f"key {printable(self.key)}"] if self.key is not None else []
        where += [f"from {printable(self.source)}"] if self.source is not None else []
        return ", ".join(where)


def error(
    kind: str,
    message: str,
    shard: str | None = None,
    block: int | None = None,
    row: int | None = None,
    key: str | None = None,
    source: str | None = None,
) -> Finding:
    """Return a finding of severity `error`: the dataset is damaged."""
    return Finding("error", shard, block, row, key, kind, message, source)


def warning(kind: str, message: str) -> Finding:
    """Return a finding of severity `warning`."""
    return Finding("warning", None, None, None, None, kind, message)


def unreadable(name: str, fault: OSError, remedy: str, shard: str | None = None) -> Finding:
    """Return the finding that a file is there and the system cannot read it. `remedy` says what
    else can be done."""
    what = f"{printable(name)} cannot be read ({fault.strerror or fault})"
    return error(
        UNREADABLE,
        f"{what}; check its permissions and its disk or server, then verify again; {remedy}",
        shard,
    )


def reading(
    missing: Finding, name: str, remedy: str, findings: Iterator[Finding]
) -> Iterator[Finding]:
    """Pass on the findings of a check that reads the file `name`. One that cannot be read, or is
    gone by now, is a finding."""
    try:
        yield from findings
    except FileNotFoundError:
        yield missing
    except OSError as fault:
        yield unreadable(name, fault, remedy, missing.shard)
