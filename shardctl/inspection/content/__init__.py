"""The content of a dataset: as a whole, by shard, block, row or key, or by a condition. Returned as
plain data."""
