"""The bytes of a dataset on disk: names, manifest, tables, shards, layout, roles; and its files
where they lie on a store."""
