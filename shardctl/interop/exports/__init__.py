"""Other forms of a dataset: each is one file, and one line in table.py. `shardctl.export` is in exporting.py."""
