"""Random access to the samples of a dataset: sample numbers in, columns of a batch out. docs/loader.md."""

from shardctl.format.exact_values import python_values
from shardctl.loader.blocks.batch import BatchReader, columns_of
from shardctl.loader.blocks.block_sources import GatherOptions, in_place
from shardctl.loader.blocks.column import Column
from shardctl.loader.blocks.headers import HEADER_FIELDS, askable_headers, headers_of
from shardctl.loader.blocks.memory import Batch, BatchMemory, lend_free_memory, rounded, without_views
from shardctl.loader.blocks.pictures import most_pixels
from shardctl.loader.blocks.shards import Indices, Shards, identity
from shardctl.loader.blocks.specs import Spec
from shardctl.loader.blocks.transforms import Normalization, Transforms, zeros
from shardctl.loader.blocks.unmoved import refuse_unmoved

__all__ = [
    "HEADER_FIELDS",
    "Batch",
    "BatchMemory",
    "BatchReader",
    "Column",
    "GatherOptions",
    "Indices",
    "Normalization",
    "Shards",
    "Spec",
    "Transforms",
    "askable_headers",
    "columns_of",
    "headers_of",
    "identity",
    "in_place",
    "lend_free_memory",
    "most_pixels",
    "python_values",
    "refuse_unmoved",
    "rounded",
    "without_views",
    "zeros",
]
