"""Tokenizers: small siblings behind one protocol (base.py), and the table of their names
(table.py)."""
