"""Draw the two pictures of README.md: the pages of `preview` and `bench`, in a real browser. Run by
hand on a quiet machine."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parents[2] / "docs" / "images" / "pages"
WIDTH, HEIGHT = 900, 640
STEPS = ("--resize", "256", "--random-crop", "224", "--step", "color_jitter brightness=0.4 hue=0.1")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="shardctl-") as folder, sync_playwright() as tools:
        shardctl("demo", "demo", folder=folder)
        shardctl(
            "convert",
            "demo/photos",
            "out",
            "--resize",
            "256",
            "--crop",
            "224",
            "--store",
            "jpeg:90",
            folder=folder,
        )
        shardctl(
            "preview",
            "demo/photos",
            *STEPS,
            "--inputs",
            "4",
            "--html",
            "preview.html",
            folder=folder,
        )
        shardctl(
            "bench",
            "out",
            "--consumer-rate",
            "1500",
            "--batch-size",
            "32",
            "--html",
            "bench.html",
            folder=folder,
        )
        browser = tools.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        for name, first in (("preview", ".input"), ("bench", "h1")):
            page.goto(Path(folder, f"{name}.html").as_uri())
            page.eval_on_selector(first, "element => element.scrollIntoView()")
            shot = Image.open(io.BytesIO(page.screenshot()))
            shot.save(IMAGES / f"{name}.webp", quality=80, method=6)
        browser.close()


def shardctl(*arguments: str, folder: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shardctl", *arguments], cwd=folder, stdout=subprocess.DEVNULL
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"shardctl {' '.join(arguments)} ends with {done.returncode}")


if __name__ == "__main__":
    main()
