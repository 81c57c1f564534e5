"""The table of the checks of shards. A new check is one module beside this one, and one row here."""

from __future__ import annotations

from typing import NamedTuple

from shardctl.inspection.verify.check import CheckOf, by_block, without_blocks
from shardctl.inspection.verify.decoding import undecodable
from shardctl.inspection.verify.file_facts import OtherBytes, other_facts
from shardctl.inspection.verify.labels import LabelCheck
from shardctl.inspection.verify.objects import wrong_objects
from shardctl.inspection.verify.plain_jpegs import not_plain
from shardctl.inspection.verify.planned_keys import KeyCheck
from shardctl.inspection.verify.tokens import wrong_tokens


class ShardCheck(NamedTuple):
    """A row of the table: the lowest level that has the check, the name of what it looks at, and the check."""

    level: str
    name: str
    check: CheckOf


SHARD_CHECKS = (
    ShardCheck("quick", "record", without_blocks(other_facts)),
    ShardCheck("full", "SHA-256", OtherBytes),
    ShardCheck("full", "labels", LabelCheck),
    ShardCheck("full", "objects", by_block(wrong_objects)),
    ShardCheck("full", "keys", KeyCheck),
    ShardCheck("deep", "decoding", by_block(undecodable)),
    ShardCheck("deep", "plain JPEG", by_block(not_plain)),
    ShardCheck("deep", "tokens", by_block(wrong_tokens)),
)
"""All checks of a shard, in the order of their findings. A level is checked if those before it have found nothing.

At `quick` no block is read, so that its checks are shown none. A shard without its dataset has no table that tells how many
samples it should have: there every block is read, and `full` is the lowest level.
"""
