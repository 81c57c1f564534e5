"""What runs shard tasks: this machine, or a cluster."""
