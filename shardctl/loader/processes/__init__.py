"""Batches that are made in other processes, and handed over in shared memory.

How processes start, talk and end is in system/processes/. The pool, the messages with descriptors of memory (channel.py) and
the memory itself are the loader's own: a batch takes a few hundred microseconds, so that nothing may be copied or waited for.
"""
