"""Formats of files that hold many records: small siblings behind one protocol."""
