"""Datasets whose shards are written again from their own rows, without their sources: `prune` and
`compact`."""
