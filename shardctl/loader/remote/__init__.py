"""A dataset on an object store, as the reader sees it: blocks are fetched when they are needed, and
kept in a local cache."""
