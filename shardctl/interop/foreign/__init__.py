"""Shards of other tools, as they are: what is in them, and whether they are whole. Nothing is
converted."""
