"""Who may write a dataset: a lease in its folder, or on an object store."""
