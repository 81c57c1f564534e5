"""How much two inputs may differ that count as the same. Nothing is imported: the command line
shows these numbers."""

from __future__ import annotations

DISTANCE, MOST_DISTANCE = 7, 16
"""How many of 64 bits may differ in the hashes of images that are alike: by default, and at
most."""

SIMILARITY, LEAST_SIMILARITY = 0.8, 0.3
"""Which share of the word sequences of two texts is the same where they are nearly alike: by
default, and at least."""
