"""The limit for a model in `shardctl convert`: one process that reads, decodes, resizes and calls a
small torch model.

    PYTHONPATH=. .venv/bin/python scripts/bench/bare_model.py FOLDER BATCH

Images are decoded as `scripts/bench/bare_loop.py` does. The class is the one that
scripts/bench/bench_convert.py --model names.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

import numpy as np
import torch
from PIL import Image

SIZE = 224


class Encoder:
    """Four convolutions, random weights: a few milliseconds for an image."""

    version = "seed 0"

    def __init__(self) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        layers: list[torch.nn.Module] = []
        for before, after in ((3, 16), (16, 32), (32, 64), (64, 128)):
            layers += [torch.nn.Conv2d(before, after, 3, stride=2), torch.nn.ReLU()]
        self.net = torch.nn.Sequential(
            *layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
        ).eval()

    @torch.inference_mode()
    def features(self, images: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """Return a vector for each image, (images, 128) float32."""
        made: np.ndarray[Any, Any] = self.net(
            torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255
        ).numpy()
        return made

    def __call__(self, samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
        features = self.features([sample.pop("image") for sample in samples])
        return [
            {**sample, "features": vector} for sample, vector in zip(samples, features, strict=True)
        ]


def pixels(path: str) -> np.ndarray[Any, Any]:
    """Read, decode and resize an image."""
    with open(path, "rb") as file:
        image = Image.open(io.BytesIO(file.read()))
    image.draft("RGB", (2 * SIZE, 2 * SIZE))
    return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR))


def main() -> None:
    """Make the features of a folder."""
    folder, batch = sys.argv[1], int(sys.argv[2])
    paths = []
    for parent, _, names in os.walk(folder, followlinks=True):
        paths += [
            os.path.join(parent, name)
            for name in names
            if name.lower().endswith((".jpg", ".jpeg", ".png"))
        ]
    encoder, paths = Encoder(), sorted(paths)
    for first in range(0, len(paths), batch):
        encoder.features([pixels(path) for path in paths[first : first + batch]])


if __name__ == "__main__":
    main()
