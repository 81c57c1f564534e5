"""Other forms of a dataset: each is one file, and one line in options.py. `shardctl.export` is in
exporting.py."""

WORKER = "shardctl.interop.exports.job"
"""The module that writes parts of exports in worker processes."""
