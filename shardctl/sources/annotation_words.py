"""The words that a person may say of annotations. Nothing is imported: the command line lists
them."""

from __future__ import annotations

BOXES = ("keep", "clip", "drop")
"""What is done about boxes that reach outside of their image."""

FRAMES = ("auto", "stored", "upright")
"""Of which image annotations are: as it is stored, or as EXIF turns it."""

TASKS = ("detect", "segment", "pose", "obb")
"""What the lines of YOLO files are."""
