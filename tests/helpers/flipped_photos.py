"""A photo, the same in grey, and a recipe that flips it."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

PIXELS = np.arange(6 * 8 * 3, dtype=np.uint8).reshape(6, 8, 3)
FLIP: dict[str, Any] = {"kind": "image", "store": "png", "transform": [{"name": "hflip", "p": 1}]}


def png(values: Any) -> bytes:
    target = io.BytesIO()
    Image.fromarray(values).save(target, "PNG")
    return target.getvalue()


PHOTO, GREY = png(PIXELS), png(PIXELS[:, :, 0])
