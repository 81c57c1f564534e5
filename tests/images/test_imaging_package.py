"""Pillow or Pillow-SIMD: whichever is there is used and named, and only what does not work is
refused."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import PIL
import pytest
from PIL import Image

import shardctl
from shardctl.errors import InstallError, Rejection
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.manifest import Manifest
from shardctl.images.codecs import backend

NAME = f"{'Pillow-SIMD' if '.post' in PIL.__version__ else 'Pillow'} {PIL.__version__}"


def test_the_package_in_effect_is_named_by_itself(dataset):
    """And not by the list of installed packages, on which both may stand."""
    assert backend.require_one() == NAME
    environment = Manifest.load(dataset_in(dataset)).environment
    assert environment is not None
    assert environment["imaging"] == NAME
    assert "libjpeg" in environment["libraries"]


def test_the_version_names_the_package_in_effect():
    from shardctl.cli import version_text

    assert f"imaging: {NAME} (" in version_text()


def test_wrong_pixels_are_refused(monkeypatch):
    monkeypatch.setattr(Image.Image, "resize", lambda self, size, *rest: Image.new("L", size))
    with pytest.raises(InstallError, match=r"wrong pixels.*pip install --force-reinstall"):
        backend.require_one.__wrapped__()


def test_what_a_wheel_asks_for_does_not_depend_on_the_machine(tmp_path):
    """The whole build, in isolation and installed, is in test_installing.py."""
    (tmp_path / "shardctl").mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "shardctl/version.py"):
        shutil.copy(Path(__file__).parents[2] / name, tmp_path / name)
    code = "from setuptools import build_meta; build_meta.prepare_metadata_for_build_wheel('.')"
    # older versions asked for what it named
    environment = {**os.environ, "SHARDCTL_IMAGING": "pillow-simd"}
    subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, check=True
    )
    (metadata,) = tmp_path.glob("*.dist-info/METADATA")
    lines = metadata.read_text().splitlines()
    assert [
        line for line in lines if "pillow" in line.lower() and line.startswith("Requires-Dist")
    ] == ["Requires-Dist: pillow>=10.4"]


def broken_pil(folder: Path, left: str) -> Path:
    """Make a PIL that is not whole: without its modules, or with the Python half of another
    version."""
    (folder / "PIL").mkdir(parents=True)
    if left == "other version":
        for path in Path(PIL.__file__).parent.iterdir():
            if path.name not in ("_version.py", "__pycache__"):
                (folder / "PIL" / path.name).symlink_to(path)
        (folder / "PIL" / "_version.py").write_text('__version__ = "1.0"\n')
    else:
        (folder / "PIL" / "__init__.py").write_text("")
    return folder


@pytest.mark.parametrize("left", ["other version", "no modules"])
def test_a_broken_package_is_refused_with_the_remedy(left, photos, tmp_path):
    paths = [str(broken_pil(tmp_path / "broken", left)), str(Path(shardctl.__file__).parents[1])]
    for arguments in (["convert", photos, tmp_path / "out"], ["demo", tmp_path / "demo"]):
        ran = subprocess.run(
            [sys.executable, "-m", "shardctl", *map(str, arguments)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 3
        assert len(ran.stderr.splitlines()) == 1
        assert "pip install --force-reinstall --no-deps --no-cache-dir pillow" in ran.stderr


@pytest.mark.parametrize("compression", ["tiff_lzw", "raw"])
def test_a_build_without_libtiff_says_so(compression, monkeypatch):
    """Such a build reads TIFF files without compression alone."""
    from shardctl.cli import version_text
    from shardctl.images.codecs.image import decode

    file = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(file, "TIFF", compression=compression)
    for name in ("libtiff_encoder", "libtiff_decoder"):
        monkeypatch.delattr(Image.core, name)
    (missing,) = [line for line in version_text().splitlines() if line.startswith("cannot read")]
    assert "TIFF" in missing
    if compression == "raw":
        assert decode(file.getvalue()).tolist() == [[[255, 0, 0]] * 8] * 8
    else:
        with pytest.raises(Rejection) as refused:
            decode(file.getvalue())
        assert refused.value.error == "format-not-built"
