"""A source with one image, its objects and its mask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pictures import rectangle
from PIL import Image

WIDTH, HEIGHT = 60, 40


def source_with(
    folder: Path, objects: dict[str, Any] | None, mask: Image.Image | None = None
) -> Path:
    """Make a folder with one image, its metadata.jsonl, and in `masks` its mask."""
    source = folder / "in"
    source.mkdir(parents=True)
    rectangle((WIDTH, HEIGHT), (20, 15, 10, 8)).save(source / "a.png")
    if objects is not None:
        (source / "metadata.jsonl").write_text(
            json.dumps({"file_name": "a.png", "objects": objects}) + "\n"
        )
    if mask is not None:
        (folder / "masks").mkdir()
        mask.save(folder / "masks" / "a.png")
    return source
