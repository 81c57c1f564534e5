"""What shardctl depends on, and the pages that a wheel brings along. All else is in pyproject.toml.

It asks for Pillow, whatever is on the machine that builds it: a wheel is for any machine. Pillow-SIMD is faster and installs
the same folder, but has no wheels. No dependency can say "one of the two", so SHARDCTL_IMAGING names it (docs/install.md).
"""

import os
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

IMAGING = ("pillow", "pillow-simd")

imaging = os.environ.get("SHARDCTL_IMAGING") or "pillow"
if imaging not in IMAGING:
    raise SystemExit(f"SHARDCTL_IMAGING is {imaging!r}; it can be {' or '.join(IMAGING)}")

DOCUMENTS = ("*.md", "recipe.schema.json", "recipes/*.toml")
"""What `shardctl help` and `--recipe @NAME` show of docs/. MANIFEST.in has the same for an sdist."""


class BuildWithDocuments(build_py):
    """Puts docs/ into the package as shardctl/docs: system/documents.py finds it there, or beside the package in a clone."""

    def run(self) -> None:
        """Build the package, and copy docs/ into it."""
        super().run()
        if self.editable_mode:
            return
        for file in (file for pattern in DOCUMENTS for file in Path("docs").glob(pattern)):
            copy = Path(self.build_lib, "shardctl", file)
            copy.parent.mkdir(parents=True, exist_ok=True)
            self.copy_file(str(file), str(copy))


setup(
    cmdclass={"build_py": BuildWithDocuments},
    install_requires=[
        "click>=8.2",
        "numpy>=1.26",
        "pyarrow>=20",  # the loader gathers through binary views, which 18 cannot make
        "tqdm>=4.64",
        "xxhash>=3.4",
        "simplejpeg>=1.7",
        "zstandard>=0.22",
        "tomli>=2; python_version < '3.11'",
        f"{imaging}>=10.4",
    ],
)
