"""Sources on an object store, brought to this machine when a file is opened."""
