"""Running shard tasks: the task itself (task.py), what a worker does (worker.py), the pool on this machine (local.py)."""

WORKER = "shardctl.build.shards.worker"
"""The module that builds shards in worker processes."""
