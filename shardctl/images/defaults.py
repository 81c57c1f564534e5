"""Limits for images where a recipe gives no others. Nothing is imported: the command line shows these numbers."""

from __future__ import annotations

MAX_PIXELS = 100_000_000
"""Largest image that is decoded, width x height. 100 million pixels need 300 MB as RGB."""

KEPT_SHARE = 0.1
"""The part of an object's area that must be visible for it to be kept, unless a recipe says otherwise."""
