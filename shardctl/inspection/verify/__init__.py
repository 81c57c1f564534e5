"""Whether a dataset, or a shard on its own, is whole."""
