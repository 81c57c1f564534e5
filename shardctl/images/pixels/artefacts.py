"""What compression leaves in an image."""

from __future__ import annotations

import io

from PIL import Image


def jpeg(image: Image.Image, quality: int) -> Image.Image:
    """Encode as a JPEG (4:2:0) of this quality, 1 to 100, and decode it again."""
    data = io.BytesIO()
    image.save(data, "JPEG", quality=quality)
    with Image.open(data) as decoded:
        return decoded.convert("RGB")
