"""What a record is: small siblings behind one protocol, one per kind of sample."""

from __future__ import annotations

from shardctl.sources.kinds.base import Form, SampleKind
from shardctl.sources.kinds.image import ImageKind
from shardctl.sources.kinds.table import TableKind
from shardctl.sources.kinds.text import TextKind

KINDS: dict[str, SampleKind] = {kind.name: kind for kind in (ImageKind(), TextKind(), TableKind())}
"""The kinds that `--kind` may name, in the order in which they are looked for."""

__all__ = ["KINDS", "Form", "SampleKind"]
