"""What pyproject.toml cannot say: the pages and man pages that a wheel brings along. They lie
beside the package."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

DOCUMENTS = ("**/*.md", "*.schema.json", "words.json", "recipes/*.toml")
"""What `shardctl help` and `--recipe @NAME` show of docs/. MANIFEST.in has the same for an
sdist."""

FOR_DEVELOPERS = Path("docs", "dev")

SHARE = Path("share")
"""Man pages, and scripts for the Tab key: `make release` writes them, and a clone has none."""


class BuildWithDocuments(build_py):
    """Puts docs/ into the package as shardctl/docs: system/packages.py finds it there, or beside
    the package in a clone."""

    def run(self) -> None:
        """Build the package, and copy docs/ into it."""
        super().run()
        if self.editable_mode:
            return
        for file in (file for pattern in DOCUMENTS for file in sorted(Path("docs").glob(pattern))):
            if FOR_DEVELOPERS in file.parents:
                continue
            copy = Path(self.build_lib, "shardctl", file)
            copy.parent.mkdir(parents=True, exist_ok=True)
            self.copy_file(str(file), str(copy))


shared: dict[str, list[str]] = {}
for path in sorted(SHARE.rglob("*")):
    if path.is_file():
        shared.setdefault(str(path.parent), []).append(str(path))

setup(cmdclass={"build_py": BuildWithDocuments}, data_files=list(shared.items()))
