"""Make a release below dist/: the source package and the wheel, checked and installed, with a
checklist. Nothing is uploaded.

    make release                                  in a clean clone, at the tag of the version
    python scripts/release.py --any-tree          anywhere: for a try, and for CI

With SHARDCTL_SIGNING_KEY the sums are signed: by gpg, or by ssh where it is the path of a key.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]

READS = """
import shardctl
batch = next(iter(shardctl.open("out").loader(batch_size=4)))
assert batch["image"].shape == (4, 64, 64, 3), batch["image"].shape
"""

WRITES = """
import runpy, sys
sys.argv[:] = sys.argv[1:]
sys.path[:0] = [".", sys.argv[0].rpartition("/")[0]]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script on the code of this folder, whatever is installed."""

LEFT = """
- [ ] The tests passed on this commit (`make lint`, `make test`)
- [ ] They pass on clean systems, and docs/install.md says which: `sh scripts/try_on_debian.sh trixie testing`
- [ ] `git push --tags`
- [ ] Upload the files: `twine upload dist/shardctl-{version}-py3-none-any.whl dist/shardctl-{version}.tar.gz`
- [ ] Publish the image of `Dockerfile` and the site
- [ ] Give the recipe in `conda/` the address and the sum of the source package
"""


class NotReadyError(Exception):
    """What keeps a release from being made, in a sentence."""


def version_of(root: Path) -> str:
    """Return the version, which all files that name it must agree on."""
    found = re.search(r'__version__ = "(.+)"', (root / "shardctl" / "version.py").read_text())
    assert found
    version = found[1]
    patterns = {
        "CHANGELOG.md": r"^## \[(?!Unreleased)([^]]+)\] - \d{4}-\d\d-\d\d$",
        "CITATION.cff": r"^version: (.+)$",
        "conda/meta.yaml": r'set version = "(.+)"',
    }
    for name, pattern in patterns.items():
        said = re.search(pattern, (root / name).read_text(), re.MULTILINE)
        if not said or said[1] != version:
            raise NotReadyError(
                f"{name} names version {said[1] if said else 'none'}, and shardctl/version.py "
                f"{version}"
            )
    return version


def check_tree(root: Path, version: str) -> None:
    """Check that the clone has no changes, and is at the tag of the version."""
    if changed := _output(["git", "status", "--porcelain"], root):
        raise NotReadyError(
            f"there are changes that are not committed: {changed.splitlines()[0].strip()}"
        )
    if f"v{version}" not in _output(["git", "tag", "--points-at", "HEAD"], root).split():
        raise NotReadyError(f"HEAD has not the tag of the version: git tag v{version}")


def build(root: Path, dist: Path, version: str) -> list[Path]:
    """Build the source package, and the wheel from it, each in an environment of its own."""
    if find_spec("build") is None:
        raise NotReadyError("the package build is missing: make setup")
    shutil.rmtree(root / "share", ignore_errors=True)  # pages of commands that are gone
    _run(
        [
            sys.executable,
            "-c",
            WRITES,
            root / "scripts" / "docs" / "write_man_pages.py",
            root / "share",
        ],
        root,
    )
    files = [dist / f"shardctl-{version}-py3-none-any.whl", dist / f"shardctl-{version}.tar.gz"]
    for path in files:
        path.unlink(missing_ok=True)
    _run([sys.executable, "-m", "build", "--outdir", dist, root], root)
    if missing := [path.name for path in files if not path.is_file()]:
        raise NotReadyError(f"the packages have other names: {', '.join(missing)} not made")
    return files


def check_contents(files: list[Path], root: Path, version: str) -> None:
    """Check what is in the wheel and in the source package."""
    with zipfile.ZipFile(files[0]) as wheel:
        inside = set(wheel.namelist())
        metadata = wheel.read(f"shardctl-{version}.dist-info/METADATA").decode()
    with tarfile.open(files[1]) as source:
        packed = {name.partition("/")[2] for name in source.getnames()}
    if (
        "Requires-Dist: pillow>=" not in metadata
        or "pillow-simd" in metadata.lower().partition("\n\n")[0]
    ):
        raise NotReadyError("the wheel does not require Pillow alone")
    docs = root / "docs"
    pages = [
        path.relative_to(root) for path in docs.rglob("*.md") if docs / "dev" not in path.parents
    ]
    pages += [
        path.relative_to(root)
        for path in (*docs.glob("*.schema.json"), *docs.glob("recipes/*.toml"))
    ]
    data = f"shardctl-{version}.data/data/share/man/man1/shardctl.1"
    wanted = {f"shardctl/{page}" for page in pages} | {"shardctl/py.typed", data}
    if missing := sorted(wanted - inside):
        raise NotReadyError(f"the wheel lacks {missing[0]}")
    wanted = {*map(str, pages), "CHANGELOG.md", "LICENSE", "share/man/man1/shardctl.1"}
    if missing := sorted(wanted - packed):
        raise NotReadyError(f"the source package lacks {missing[0]}")


def check_metadata(files: list[Path], root: Path) -> str:
    """Have twine check the metadata, where it is installed; return what was done."""
    if find_spec("twine") is None:
        return "twine is not installed: the metadata were not checked by it"
    _run([sys.executable, "-m", "twine", "check", "--strict", *files], root)
    return "twine check --strict passed"


def check_installed(wheel: Path) -> str:
    """Install the wheel into a new environment, run the demo there, and return what `shardctl
    --version` says."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder, "environment")
        venv.create(environment, with_pip=True)
        python, shardctl = environment / "bin" / "python", environment / "bin" / "shardctl"
        place = Path(folder)
        _run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel], place
        )
        _run([python, "-m", "pip", "check"], place)
        _run([shardctl, "demo", "demo", "--images", "20"], place)
        _run(
            [
                shardctl,
                "convert",
                "demo/photos",
                "out",
                "--resize",
                "72",
                "--crop",
                "64",
                "--store",
                "raw",
            ],
            place,
        )
        for arguments in (
            ["verify", "out"],
            ["inspect", "out"],
            ["help", "inputs"],
            ["recipe", "show", "@imagenet"],
            ["completion", "bash"],
        ):
            _run([shardctl, *arguments], place)
        _run([python, "-c", READS], place)
        return _output([shardctl, "--version"], place)


def sign(files: list[Path], dist: Path, key: str) -> list[Path]:
    """Write SHA256SUMS, and sign it where a key is named; return the files that were written."""
    for old in dist.glob("SHA256SUMS*"):
        old.unlink()
    sums = dist / "SHA256SUMS"
    sums.write_text("".join(f"{sha256(path)}  {path.name}\n" for path in files))
    if not key:
        return [sums]
    if Path(key).is_file():
        _run(["ssh-keygen", "-Y", "sign", "-f", Path(key).resolve(), "-n", "file", sums], dist)
        return [sums, dist / "SHA256SUMS.sig"]
    _run(["gpg", "--batch", "--yes", "--local-user", key, "--armor", "--detach-sign", sums], dist)
    return [sums, dist / "SHA256SUMS.asc"]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _output(command: list[object], folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if ran.returncode:
        print(ran.stdout, ran.stderr, file=sys.stderr)
        raise NotReadyError(f"this command failed: {' '.join(map(str, command))}")
    return ran.stdout.strip()


def _run(command: list[object], folder: Path) -> None:
    print("$", *command, flush=True)
    _output(command, folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--any-tree", action="store_true", help="do not ask for a clean clone and the tag"
    )
    arguments = parser.parse_args()
    dist = ROOT / "dist"
    dist.mkdir(exist_ok=True)
    version = version_of(ROOT)
    if not arguments.any_tree:
        check_tree(ROOT, version)
    files = build(ROOT, dist, version)
    check_contents(files, ROOT, version)
    checked = check_metadata(files, ROOT)
    installed = check_installed(files[0])
    written = sign(files, dist, os.environ.get("SHARDCTL_SIGNING_KEY", ""))
    lines = [f"# shardctl {version}", "", "| file | bytes | SHA-256 |", "| --- | --- | --- |"]
    lines += [f"| `{path.name}` | {path.stat().st_size:,} | `{sha256(path)}` |" for path in files]
    done = [
        "- [x] All files name this version",
        "- [x] The packages have the pages, recipes, types and man pages",
    ]
    done += [f"- [x] {checked}" if "passed" in checked else f"- [ ] {checked}"]
    done += ["- [x] The wheel was installed into a new environment, and the demo ran there"]
    done += [
        "- [x] The clone is clean, and at the tag"
        if not arguments.any_tree
        else "- [ ] The clone is clean, and at the tag"
    ]
    done += [f"- [x] `{path.name}` was written" for path in written]
    if not re.search(
        r"^\[project\.urls\]\n\w", (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    ):
        done += ["- [ ] The project has an address: `[project.urls]` in pyproject.toml is empty"]
    text = (
        "\n".join([*lines, "", *done])
        + LEFT.format(version=version)
        + f"\n```text\n{installed}\n```\n"
    )
    (dist / "CHECKLIST.md").write_text(text)
    print(text)


if __name__ == "__main__":
    try:
        main()
    except NotReadyError as error:
        sys.exit(f"release: {error}")
