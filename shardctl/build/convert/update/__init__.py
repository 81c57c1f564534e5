"""What makes a dataset follow its sources: what has changed in them, and the plan that rebuilds the
shards of that alone."""
