"""Everything that makes or remakes a committed dataset.

A plan, its shards and their commit; convert, update, write, repair, rewrite, snapshot, preview.
"""
