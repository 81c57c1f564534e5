"""The readers of other tools, measured on shards of theirs: in processes of their own, in the
Python that has them."""
