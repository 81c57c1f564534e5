"""The bytes of a dataset on disk: names, manifest, tables, shards, layout, roles; and its files when they lie on a store."""
