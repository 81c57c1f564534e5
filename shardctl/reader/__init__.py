"""Random access to the samples of a dataset: sample numbers in, columns of a batch out. docs/loader.md."""

from shardctl.format.exact_values import python_values
from shardctl.reader.column import Column
from shardctl.reader.gatherer import Gatherer, columns_of
from shardctl.reader.headers import HEADER_FIELDS, askable_headers, headers_of
from shardctl.reader.memory import Batch, BatchMemory, without_views
from shardctl.reader.shards import Indices, Shards, identity
from shardctl.reader.sources import GatherOptions, in_place
from shardctl.reader.specs import Spec
from shardctl.reader.transforms import Normalization, Transforms, zeros
from shardctl.reader.unmoved import refuse_unmoved

__all__ = [
    "HEADER_FIELDS",
    "Batch",
    "BatchMemory",
    "Column",
    "GatherOptions",
    "Gatherer",
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
    "python_values",
    "refuse_unmoved",
    "without_views",
    "zeros",
]
