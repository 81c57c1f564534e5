"""What is in a dataset: the whole, a shard, a block, a row, a key, what meets a condition. Plain data for others to draw."""
