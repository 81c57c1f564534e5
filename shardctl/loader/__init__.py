"""Reading a dataset for training: open, blocks, cache, order, batches, mixtures, metrics."""
