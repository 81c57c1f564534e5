"""Random access to the samples of a dataset: sample numbers in, columns of a batch out. docs/loader.md."""

from shardctl.reader.column import Column
from shardctl.reader.finish import IMAGE, LABEL, Finish, Normalization, zeros
from shardctl.reader.gatherer import Gatherer, GatherOptions, Spec, columns_of, in_place
from shardctl.reader.headers import HEADER_FIELDS, header_fields
from shardctl.reader.memory import Batch, BatchMemory, without_views
from shardctl.reader.shards import Indices, Shards, identity

__all__ = [
    "HEADER_FIELDS",
    "IMAGE",
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
    "header_fields",
    "identity",
    "in_place",
    "without_views",
    "zeros",
]
