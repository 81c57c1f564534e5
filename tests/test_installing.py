"""Installed for real, beside other packages that ask for Pillow. Slow, so only where
SHARDCTL_INSTALLS=yes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(
    os.environ.get("SHARDCTL_INSTALLS") != "yes", reason="SHARDCTL_INSTALLS is not yes"
)

ROOT = Path(__file__).parents[1]
SHARED = ("click", "numpy", "pyarrow", "tqdm", "xxhash", "simplejpeg", "zstandard", "tomli")
"""What shardctl depends on beside the imaging package: taken from the environment of the tests, to
save minutes."""

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

    def run(
        self, *arguments: object, compiler: bool = True, imaging: str = "", fails: bool = False
    ) -> str:
        # of these setup.sh would install more
        others = ("PYTHONPATH", "SHARDCTL_FRAMEWORKS", "SHARDCTL_BROWSER")
        environment = {name: value for name, value in os.environ.items() if name not in others}
        environment["SHARDCTL_IMAGING"] = imaging  # setup.sh alone knows it
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
        assert (ran.returncode != 0) == fails, ran.stdout
        return ran.stdout

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def pip(self, *arguments: object, compiler: bool = True) -> None:
        self.run(
            sys.executable, "-m", "pip", "--python", self.python, *arguments, compiler=compiler
        )

    def install_shardctl(self, compiler: bool = True) -> None:
        shutil.rmtree(self.project / "build", ignore_errors=True)
        self.pip("install", self.project, compiler=compiler)

    def packages(self) -> set[str]:
        """Which of the two imaging packages pip has on its list."""
        pip = ("-m", "pip", "--python", self.python, "list", "--format", "freeze")
        listed = self.run(sys.executable, *pip).lower().splitlines()
        return {line.partition("==")[0] for line in listed} & {"pillow", "pillow-simd"}

    def check(self) -> str:
        """Convert and load some images, let pip check all requirements, and return the name of the
        imaging package."""
        for name in ("demo", "out"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        self.pip("check")
        self.shardctl("demo demo --images 6 --texts 1")
        self.shardctl("convert demo/photos out --workers 0 --crop 16 --store jpeg:90")
        self.run(self.python, "-c", READS)
        lines = self.shardctl("--version").splitlines()
        return next(line for line in lines if line.startswith("imaging: ")).split()[1]

    def shardctl(self, arguments: str) -> str:
        return self.run(self.folder / "bin" / "shardctl", *arguments.split())


@pytest.fixture
def fresh(tmp_path: Path) -> Environment:
    folder, project, shared = tmp_path / "environment", tmp_path / "project", tmp_path / "shared"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    shared.mkdir()
    for name in SHARED:
        link_distribution(name, shared)
    (next(folder.glob("lib/python*/site-packages")) / "shared.pth").write_text(f"{shared}\n")
    project.mkdir()
    for name in "pyproject.toml setup.py MANIFEST.in README.md CHANGELOG.md LICENSE".split():
        shutil.copy(ROOT / name, project)
    shutil.copytree(
        ROOT / "shardctl", project / "shardctl", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copytree(ROOT / "docs", project / "docs")
    return Environment(folder, project)


def interpreter_of(version: str) -> str | None:
    """Return the interpreter of a version of Python that is on the path or is one of pyenv's, or
    None."""
    of_pyenv = sorted(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python"))
    return next(iter(map(str, of_pyenv)), None) or shutil.which(f"python{version}")


@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13"])
def test_with_another_version_of_python(fresh, version):
    """The oldest, and those after that of the tests: each has its own rules for classes and
    modules."""
    interpreter = interpreter_of(version)
    if interpreter is None:
        pytest.skip(f"Python {version} is not here")
    subprocess.run(
        [interpreter, "-m", "venv", "--clear", "--without-pip", fresh.folder], check=True
    )
    fresh.install_shardctl(compiler=False)
    assert fresh.check() == "Pillow"
    for options in ("--resize 32 --crop 24 --store raw", "--store source"):
        fresh.shardctl(f"convert demo/photos other {options} --workers 2 --overwrite")
        fresh.shardctl("verify other --level deep")
    fresh.shardctl("convert demo/texts texts --split train=0.8,val=0.2")
    fresh.shardctl("verify texts")
    fresh.shardctl("recipe steps")


def link_distribution(name: str, target: Path) -> None:
    """Link the files of an installed package; tomli is there on Python 3.10 only."""
    if name == "tomli" and sys.version_info >= (3, 11):
        return
    found = distribution(name)
    tops = {
        file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")
    }
    for top in tops:
        (target / top).symlink_to(found.locate_file(top))


@pytest.fixture
def wants_pillow(tmp_path: Path) -> Path:
    """A package that asks for Pillow, as torchvision does."""
    folder = tmp_path / "wants-pillow"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "wants-pillow"\nversion = "1"\ndependencies = '
        '["pillow"]\n[tool.setuptools]\npy-modules = []\n'
    )
    return folder


def test_after_a_package_that_brings_pillow_even_without_a_compiler(fresh, wants_pillow):
    fresh.pip("install", wants_pillow)
    fresh.install_shardctl(compiler=False)
    assert fresh.packages() == {"pillow"}
    assert fresh.check() == "Pillow"


def test_a_wheel_built_in_isolation_leaves_pillow_as_it_is(fresh, wants_pillow):
    """Also on a machine with a compiler and headers: a wheel is for other machines too."""
    fresh.pip("wheel", "--no-deps", "--wheel-dir", fresh.folder, fresh.project)
    fresh.pip("install", wants_pillow)
    before = files_of_pillow(fresh)
    assert before
    (wheel,) = fresh.folder.glob("shardctl-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = files.read(name).decode()
    assert re.findall(r"Requires-Dist:.*pillow.*", metadata, re.IGNORECASE) == [
        "Requires-Dist: pillow>=10.4"
    ]
    fresh.pip("install", wheel, compiler=False)
    assert fresh.packages() == {"pillow"}
    assert files_of_pillow(fresh) == before
    assert fresh.check() == "Pillow"


def files_of_pillow(fresh: Environment) -> dict[str, tuple[int, int]]:
    """Return the size and the time of each file of the folder PIL."""
    folder = next(fresh.folder.glob("lib/python*/site-packages"))
    found = [
        path for path in (folder / "PIL").rglob("*") if path.is_file() and path.suffix != ".pyc"
    ]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


def test_before_a_package_that_brings_pillow(fresh, wants_pillow):
    """Pillow-SIMD takes the place of Pillow. Pillow may come over it again; all requirements hold,
    and either is used."""
    try:
        fresh.pip("wheel", "--no-deps", "--wheel-dir", fresh.folder, "pillow-simd")
    except AssertionError as error:
        pytest.skip(f"Pillow-SIMD cannot be built here: {str(error)[-200:]}")
    fresh.install_shardctl()
    assert fresh.packages() == {"pillow"}
    fresh.pip("install", "--force-reinstall", "--no-deps", "pillow-simd")
    assert fresh.check() == "Pillow-SIMD"
    fresh.pip("install", "--force-reinstall", wants_pillow)
    assert fresh.packages() == {"pillow", "pillow-simd"}
    assert fresh.check() == "Pillow"
    fresh.pip("install", "--force-reinstall", "--no-deps", "pillow-simd")
    assert fresh.check() == "Pillow-SIMD"


def test_the_environment_of_developers_has_one_of_the_two_however_often_it_is_made(fresh, tmp_path):
    """`make setup`, without the other packages that tests need: Pillow never comes over
    Pillow-SIMD."""
    project = fresh.project
    developers = Environment(project / ".venv", project)
    subprocess.run([sys.executable, "-m", "venv", developers.folder], check=True)
    (next(developers.folder.glob("lib/python*/site-packages")) / "shared.pth").write_text(
        f"{tmp_path / 'shared'}\n"
    )
    (project / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "setup.sh", project / "scripts")
    settings = (project / "pyproject.toml").read_text()
    begin = settings.index("\ndev = [") + len("\ndev = [")
    (project / "pyproject.toml").write_text(
        settings[:begin] + settings[settings.index("\n]", begin) :]
    )

    def set_up(imaging: str = "") -> set[str]:
        developers.run("sh", project / "scripts" / "setup.sh", imaging=imaging)
        packages = developers.packages()
        if "pillow" in packages:
            developers.pip("check")
        return packages

    chosen = set_up()
    assert len(chosen) == 1
    before = files_of_pillow(developers)
    assert set_up() == chosen
    assert files_of_pillow(developers) == before, "nothing was installed again"
    assert set_up("pillow") == {"pillow"}
    assert set_up() == {"pillow"}
    assert developers.check() == "Pillow"
    assert "it can be pillow or pillow-simd" in developers.run(
        "sh", project / "scripts" / "setup.sh", imaging="wand", fails=True
    )


def test_alone_without_a_compiler(fresh):
    fresh.install_shardctl(compiler=False)
    assert fresh.packages() == {"pillow"}
    assert fresh.check() == "Pillow"


SDIST = (
    "import os, sys; from setuptools import build_meta; os.chdir(sys.argv[1]); "
    "build_meta.build_sdist(sys.argv[2])"
)


@pytest.mark.parametrize("first_an_sdist", [False, True])
def test_a_wheel_shows_the_pages_and_the_ready_recipes_of_the_source_tree(fresh, first_an_sdist):
    source = fresh.project
    if first_an_sdist:
        fresh.run(sys.executable, "-c", SDIST, fresh.project, fresh.folder)
        (packed,) = fresh.folder.glob("shardctl-*.tar.gz")
        with tarfile.open(packed) as files:
            files.extractall(fresh.folder / "unpacked", filter="data")
        (source,) = (fresh.folder / "unpacked").iterdir()
    fresh.pip("wheel", "--no-deps", "--wheel-dir", fresh.folder, source)
    (wheel,) = fresh.folder.glob("shardctl-*.whl")
    docs = ROOT / "docs"
    shown = [path for path in docs.rglob("*.md") if docs / "dev" not in path.parents]
    shown += [*docs.glob("*.schema.json"), *docs.glob("recipes/*.toml"), docs / "words.json"]
    with zipfile.ZipFile(wheel) as files:
        brought = {
            name.removeprefix("shardctl/docs/"): files.read(name)
            for name in files.namelist()
            if "/docs/" in name
        }
        assert "shardctl/py.typed" in files.namelist()
    assert brought == {str(path.relative_to(docs)): path.read_bytes() for path in shown}
    fresh.pip("install", "--no-deps", wheel)
    for arguments in ("help", "help inputs", "recipe list", "recipe show @imagenet"):
        command = [sys.executable, "-m", "shardctl", *arguments.split()]
        here = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert fresh.shardctl(arguments) == here


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of uv and pipx."""
    folder = tmp_path_factory.mktemp("tools")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    if subprocess.run([folder / "bin" / "pip", "install", "-q", "uv", "pipx"]).returncode:
        pytest.skip("uv and pipx cannot be had")
    return folder / "bin"


INSTALLS = {
    "pip install .": ("python3 -m venv .venv", ".venv"),
    "uv pip install .": ("uv venv", ".venv"),
    "uv sync": ("true", ".venv"),
    "uv tool install .": ("true", ".local"),
    "pipx install .": ("true", ".local"),
}
"""Lines of docs/install.md: what comes before them, and where they put shardctl."""


@pytest.mark.parametrize("line", INSTALLS)
def test_a_line_of_the_page_installs_and_a_message_has_the_line_for_a_missing_package(
    line, tools, fresh
):
    assert line in (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    before, place = INSTALLS[line]
    path = f"PATH='{fresh.project}/{place}/bin:{tools}':$PATH"

    def run(command: str, fails: bool = False) -> str:
        shell = f"cd '{fresh.project}' && export HOME=$PWD {path} && {command}"
        return fresh.run("bash", "-c", shell, fails=fails)

    run(f"{before} && {line} && shardctl demo demo --images 1 --texts 2")
    convert = "shardctl convert demo/texts words --segment zh --json"
    added = json.loads(run(convert, fails=True))["error"].rpartition("; ")[2]
    run(f"{added} && {convert}")
