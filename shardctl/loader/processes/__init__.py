"""Batches that are made in other processes, and handed over in shared memory."""
