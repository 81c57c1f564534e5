"""Installed for real, beside other packages that ask for Pillow. Slow, so only where SHARDCTL_INSTALLS=yes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.environ.get("SHARDCTL_INSTALLS") != "yes", reason="SHARDCTL_INSTALLS is not yes")

ROOT = Path(__file__).parents[1]
SHARED = ("click", "numpy", "pyarrow", "tqdm", "xxhash", "simplejpeg", "zstandard", "tomli")
"""What shardctl depends on beside the imaging package: taken from the environment of the tests, to save minutes."""

READS = """
import shardctl
batch = next(iter(shardctl.open("out").loader(batch_size=2, threads=1)))
assert batch["image"].shape == (2, 16, 16, 3)
"""


@dataclass(frozen=True)
class Environment:
    """A fresh environment, and a copy of the project to install into it."""

    folder: Path
    project: Path

    def run(self, *arguments: object, compiler: bool = True) -> str:
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "SHARDCTL_IMAGING")}
        if not compiler:
            environment |= {"CC": "/no/compiler", "PATH": str(self.folder / "bin")}
        ran = subprocess.run(
            [str(argument) for argument in arguments],
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout
        return ran.stdout

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def pip(self, *arguments: object, compiler: bool = True) -> None:
        self.run(sys.executable, "-m", "pip", "--python", self.python, *arguments, compiler=compiler)

    def install_shardctl(self, compiler: bool = True) -> None:
        shutil.rmtree(self.project / "build", ignore_errors=True)
        self.pip("install", self.project, compiler=compiler)

    def packages(self) -> set[str]:
        """Which of the two imaging packages pip has on its list."""
        listed = self.run(sys.executable, "-m", "pip", "--python", self.python, "list", "--format", "freeze").lower()
        return {name for name in ("pillow", "pillow-simd") if f"\n{name}==" in f"\n{listed}"}

    def check(self) -> str:
        """Convert and load some images, let pip check all requirements, and return the name of the imaging package."""
        shutil.rmtree(self.folder / "demo", ignore_errors=True)
        shutil.rmtree(self.folder / "out", ignore_errors=True)
        self.pip("check")
        shardctl = self.folder / "bin" / "shardctl"
        self.run(shardctl, "demo", "demo", "--images", "6", "--texts", "1")
        self.run(shardctl, "convert", "demo/photos", "out", "--workers", "0", "--crop", "16", "--store", "jpeg:90")
        self.run(self.python, "-c", READS)
        lines = self.run(shardctl, "--version").splitlines()
        return next(line for line in lines if line.startswith("imaging: ")).split()[1]


@pytest.fixture
def fresh(tmp_path: Path) -> Environment:
    folder, project, shared = tmp_path / "environment", tmp_path / "project", tmp_path / "shared"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    shared.mkdir()
    for name in SHARED:
        link_distribution(name, shared)
    (next(folder.glob("lib/python*/site-packages")) / "shared.pth").write_text(f"{shared}\n")
    project.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, project)
    shutil.copytree(ROOT / "shardctl", project / "shardctl", ignore=shutil.ignore_patterns("__pycache__"))
    return Environment(folder, project)


def link_distribution(name: str, target: Path) -> None:
    """Link the files of an installed package; tomli is there on Python 3.10 only."""
    if name == "tomli" and sys.version_info >= (3, 11):
        return
    found = distribution(name)
    tops = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
    for top in tops:
        (target / top).symlink_to(found.locate_file(top))


@pytest.fixture
def wants_pillow(tmp_path: Path) -> Path:
    """A package that asks for Pillow, as torchvision does."""
    folder = tmp_path / "wants-pillow"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "wants-pillow"\nversion = "1"\ndependencies = ["pillow"]\n[tool.setuptools]\npy-modules = []\n'
    )
    return folder


def test_after_a_package_that_brings_pillow_even_without_a_compiler(fresh: Environment, wants_pillow: Path) -> None:
    fresh.pip("install", wants_pillow)
    fresh.install_shardctl(compiler=False)
    assert fresh.packages() == {"pillow"}
    assert fresh.check() == "Pillow"


def test_before_a_package_that_brings_pillow(fresh: Environment, wants_pillow: Path) -> None:
    """With a compiler Pillow-SIMD is built. Pillow then overwrites it; it can be put back, and all requirements still hold."""
    fresh.install_shardctl()
    (chosen,) = fresh.packages()
    if chosen == "pillow":
        pytest.skip("Pillow-SIMD cannot be built here")
    assert fresh.check() == "Pillow-SIMD"
    fresh.pip("install", wants_pillow)
    assert fresh.packages() == {"pillow", "pillow-simd"}
    assert fresh.check() == "Pillow"
    fresh.pip("install", "--force-reinstall", "--no-deps", "pillow-simd")
    assert fresh.check() == "Pillow-SIMD"


def test_alone_without_a_compiler(fresh: Environment) -> None:
    fresh.install_shardctl(compiler=False)
    assert fresh.packages() == {"pillow"}
    assert fresh.check() == "Pillow"
