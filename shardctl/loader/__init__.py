"""Reading a dataset for training: blocks, cache, order of samples, batches, mixtures, metrics."""
