"""Programs for the Python that has the reader of another tool. They import nothing of shardctl,
which need not be there."""
