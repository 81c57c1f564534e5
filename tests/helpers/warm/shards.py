"""See warm."""

import pyarrow.json  # noqa: F401

import shardctl.sources.formats.jsonl  # noqa: F401
from shardctl.making.shards.task import handle  # noqa: F401
