"""What the machine gives: files that are complete or absent, leases, object stores, processes that
may die, memory.

It knows nothing of datasets.
"""
