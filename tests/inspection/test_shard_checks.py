"""The table of the checks of shards: a row more is a check more, of a dataset and of a shard
without its dataset."""

from __future__ import annotations

import pytest
from damage import SHARD
from dataset_files import shard_in
from places import file_at

import shardctl
from shardctl.format.shard import ShardReader
from shardctl.inspection.verify.result import LEVELS
from shardctl.inspection.verify.shard_checks import SHARD_CHECKS

MADE_UP = """
import shardctl.inspection.verify.worker as shards
from shardctl.inspection.verify.result import error
from shardctl.inspection.verify.shard_checks import ShardCheck

def last_of_block(shard, block):
    if {shard!r} in shard.reader.name:
        yield block.fault(block.data.num_rows - 1, "made-up", "it is the last of its block")

def of_the_whole(shard):
    if {shard!r} in shard.reader.name:
        yield error("made-up", "it is this shard")

check = dict(in_shard=of_the_whole) if {level!r} == "quick" else dict(in_block=last_of_block)
shards.SHARD_CHECKS = (*shards.SHARD_CHECKS, ShardCheck({level!r}, "made up", **check))
"""


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("own", LEVELS)
def test_a_row_of_the_table_is_checked_from_its_level_on(dataset, tmp_path, monkeypatch, own):
    """The processes that check get the table with one row more."""
    (tmp_path / "sitecustomize.py").write_text(MADE_UP.format(shard=SHARD, level=own))
    monkeypatch.syspath_prepend(tmp_path)
    # the shard is one block of 8 samples
    path = shard_in(dataset, SHARD)
    last = ShardReader(*file_at(path)).block(0)["key"][7].as_py()
    where = (None, None, None) if own == "quick" else (0, 7, last)
    for level in LEVELS:
        # Of a shard without its dataset every block is read, at `quick` too.
        alone = "quick" if own == "full" else own
        for target, first, name in ((dataset, own, SHARD), (path, alone, path.name)):
            found = [
                (each.kind, each.shard, each.block, each.row, each.key)
                for each in shardctl.verify(target, level).findings
            ]
            assert found == [("made-up", name, *where)] * (
                LEVELS.index(level) >= LEVELS.index(first)
            )


def test_the_table_has_known_levels_in_their_order_and_each_name_once():
    levels = [LEVELS.index(row.level) for row in SHARD_CHECKS]
    assert levels == sorted(levels)
    assert len({row.name for row in SHARD_CHECKS}) == len(SHARD_CHECKS)
