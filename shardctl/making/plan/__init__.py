"""The plan of a dataset: files, labels, splits, units, and the shards that they go to."""
