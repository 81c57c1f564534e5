"""Sources on an object store, fetched to this machine when a file is opened."""
