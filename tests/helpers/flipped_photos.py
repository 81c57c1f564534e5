"""A photo, the same in grey, and a recipe that flips it."""

from __future__ import annotations

from typing import Any

import numpy as np
from pictures import png as png

PIXELS = np.arange(6 * 8 * 3, dtype=np.uint8).reshape(6, 8, 3)
FLIP: dict[str, Any] = {"kind": "image", "store": "png", "transform": [{"name": "hflip", "p": 1}]}


PHOTO, GREY = png(PIXELS), png(PIXELS[:, :, 0])
