"""A dataset on a store, behind a cache on this machine: its files are fetched when they are
read."""
