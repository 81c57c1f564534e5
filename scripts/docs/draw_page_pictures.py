"""Draw the two pictures of README.md: the pages of `preview` and `bench`, in a real browser, as a
telephone shows them.

Run by hand on a quiet machine. The photos are two of scikit-image, in the public domain (CC0): `pip
install --no-deps scikit-image`.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parents[2] / "docs" / "images" / "pages"
WIDTH, HEIGHT, SCALE = 390, 540, 2
"""The size of a picture as it is shown; it has SCALE times as many pixels."""

STEPS = (
    *("--step", "random_resized_crop size=224 scale=[0.3,1]", "--flip", "0.5"),
    *("--step", "color_jitter brightness=0.3 hue=0.05"),
)

PICTURES = {"preview": ".input", "bench": "p"}
"""The pages, and where the picture of each begins: below the title, which names a folder."""


def main() -> None:
    found = find_spec("skimage")
    if found is None or found.origin is None:
        raise SystemExit("scikit-image is missing: pip install --no-deps scikit-image")
    photos = Path(found.origin).parent / "data"
    with tempfile.TemporaryDirectory(prefix="shardctl-") as made:
        folder = Path(made)
        for name in ("chelsea", "coffee"):
            (folder / "photos" / name).mkdir(parents=True)
            shutil.copy(photos / f"{name}.png", folder / "photos" / name)
        shardctl(folder, "preview", "photos", *STEPS, "--html", "preview.html")
        shardctl(folder, "demo", "demo", "--images", "2000")
        to_raw = ("--resize", "256", "--crop", "224", "--store", "raw")
        shardctl(folder, "convert", "demo/photos", "out", *to_raw)
        shardctl(folder, "bench", "out", "--consumer-rate", "2500", "--html", "bench.html")
        draw(folder)


def draw(folder: Path) -> None:
    """Draw the pages that are in a folder."""
    with sync_playwright() as tools:
        browser = tools.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(
            viewport={"width": WIDTH, "height": HEIGHT}, device_scale_factor=SCALE
        )
        for name, first in PICTURES.items():
            page.goto((folder / f"{name}.html").as_uri())
            page.locator(first).first.evaluate("element => element.scrollIntoView()")
            shot = Image.open(io.BytesIO(page.screenshot()))
            shot.save(IMAGES / f"{name}.webp", quality=80, method=6)
        browser.close()


def shardctl(folder: Path, *arguments: str) -> None:
    """Run a command in a folder."""
    command = [sys.executable, "-m", "shardctl", *arguments]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"shardctl {' '.join(arguments)} ends with {done.returncode}")


if __name__ == "__main__":
    main()
