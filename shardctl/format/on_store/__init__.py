"""A dataset on a store, behind a cache on this machine: its files are brought when they are read."""
