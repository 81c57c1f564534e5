"""Other forms of a dataset: each is one file, and one line in table.py. `shardctl.export` is in
exporting.py."""

WORKER = "shardctl.interop.exports.worker"
"""The module that writes parts of exports in worker processes."""
