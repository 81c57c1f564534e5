"""Running shard tasks: the task itself (task.py), the worker process (worker.py), the pool on this machine (local.py)."""
