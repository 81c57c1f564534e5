"""A conversion of 40 images in a process of its own, which is held at an image until the file
`hold` has gone."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from custom_steps import HELD
from image_files import images
from in_this_process import command_line
from programs import run_command

WORDS = "--transform steps:held --store png --samples-per-shard 4 --workers 1".split()
RECIPE = {"transform": [{"name": "custom", "target": "steps:held"}], "store": "png"}


def make_held(root: Path) -> Path:
    """Make in/ with the images, the function steps:held, and whole/, the dataset of a conversion
    that nothing has held up."""
    images(root / "in", *(f"{n:02d}.png" for n in range(40)))
    (root / "steps.py").write_text(HELD)
    (root / "tmp").mkdir()
    run_held(root, "whole").check_returncode()
    return root


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_held(tmp_path_factory.mktemp("held"))


@pytest.fixture
def here(made: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of it all, which is also the current one and that of modules. What a test makes in
    it goes."""
    before = set(made.iterdir())
    monkeypatch.chdir(made)
    monkeypatch.syspath_prepend(made)
    yield made
    for left in set(made.iterdir()) - before:
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def run_held(here: Path, out: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the conversion to its end."""
    return run_command("convert", "in", out, *WORDS, *words, cwd=here)


def go_on(here: Path, out: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Let the images through, and run the same conversion."""
    (here / "hold").unlink(missing_ok=True)
    return run_held(here, out, *words)


@contextmanager
def started(here: Path, out: str, *words: str, **given: Any) -> Iterator[subprocess.Popen[str]]:
    """Start the conversion. Its temporary files are in tmp/."""
    piped: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **given}
    command = command_line("convert", "in", out, *WORDS, *words)
    environment = {**os.environ, "TMPDIR": "tmp"}
    with subprocess.Popen(command, cwd=here, env=environment, text=True, **piped) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def held(
    here: Path, image: int, is_far: Callable[[], object], out: str, *words: str, **given: Any
) -> Iterator[subprocess.Popen[str]]:
    """Start it, and give it when it is so far; it is held at the image of this number."""
    (here / "hold").write_text(str(image))
    with started(here, out, *words, **given) as process:
        while not is_far():
            assert process.poll() is None, process.communicate()
            select.select([], [], [], 0.005)
        yield process
