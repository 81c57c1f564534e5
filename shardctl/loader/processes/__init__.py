"""Batches that are made in other processes, and handed over in shared memory.

How processes start, talk and end is in system/processes/. The loader has a pool and messages of its
own (messages.py), because a batch is made in a few hundred microseconds: its arrays must not be
copied on their way.
"""
