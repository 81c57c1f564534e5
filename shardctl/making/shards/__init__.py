"""Building shards: the job (job.py), what a worker does for one shard (task.py), its parts
(builder.py)."""

WORKER = "shardctl.making.shards.task"
"""The module that builds shards in worker processes."""
