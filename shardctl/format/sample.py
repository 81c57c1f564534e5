"""The sample, on its way from a source through the transforms into a shard."""

from __future__ import annotations

from typing import Any

Sample = dict[str, Any]
"""One training example: field name to value. Always has `key`; see docs/format.md for the other
names."""

RESERVED_FIELDS = ("key", "image", "variant")
"""Names that shardctl gives to fields itself, so that a labels file or a JSONL line may not use
them."""
