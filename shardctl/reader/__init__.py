"""Random access to the samples of a dataset: sample numbers in, columns of a batch out. docs/loader.md."""

from shardctl.reader.column import Column
from shardctl.reader.finish import LABEL, Finish, Normalization, zeros
from shardctl.reader.gatherer import Gatherer, GatherOptions, Spec, columns_of, in_place
from shardctl.reader.memory import Batch, BatchMemory, without_views
from shardctl.reader.shards import Indices, Shards, identity

__all__ = [
    "LABEL",
    "Batch",
    "BatchMemory",
    "Column",
    "Finish",
    "GatherOptions",
    "Gatherer",
    "Indices",
    "Normalization",
    "Shards",
    "Spec",
    "columns_of",
    "identity",
    "in_place",
    "without_views",
    "zeros",
]
