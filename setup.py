"""What shardctl depends on: the imaging package is chosen where it is installed. All else is in pyproject.toml.

Pillow and Pillow-SIMD install the same folder, and no dependency can say "one of the two". Pillow-SIMD is faster, but it has
no wheels: it needs a compiler and headers. docs/install.md has what is chosen when.
"""

import os
import platform
import shlex
import site
import subprocess
import sys
import sysconfig
from importlib.metadata import Distribution
from pathlib import Path

from setuptools import setup

DEPENDENCIES = [
    "click>=8.1",
    "numpy>=1.26",
    "pyarrow>=20",  # the loader gathers through binary views, which 18 cannot make
    "tqdm>=4.64",
    "xxhash>=3.4",
    "simplejpeg>=1.7",
    "zstandard>=0.22",
    "tomli>=2; python_version < '3.11'",
]
OLDEST = {"pillow": "pillow>=10.4", "pillow-simd": "pillow-simd>=10.4"}
HEADERS = "#include <Python.h>\n#include <stdio.h>\n#include <zlib.h>\n#include <jpeglib.h>\n"


def imaging() -> str:
    """Return the requirement: what SHARDCTL_IMAGING names, else what is installed, else Pillow-SIMD if it can be built."""
    wanted = os.environ.get("SHARDCTL_IMAGING")
    if wanted:
        if wanted not in OLDEST:
            raise SystemExit(f"SHARDCTL_IMAGING is {wanted!r}; it can be {' or '.join(OLDEST)}")
        return OLDEST[wanted]
    places = site_packages()
    for name, requirement in OLDEST.items():
        if any(Distribution.discover(name=name, path=places)):
            return requirement
    return OLDEST["pillow-simd" if can_build() else "pillow"]


def site_packages() -> list[str]:
    """Return where packages of this Python lie. pip hides them from what it builds, so sys.path has none of them."""
    bases = [{}]
    config = Path(sys.prefix, "pyvenv.cfg")
    if config.exists() and "include-system-site-packages = true" in config.read_text():
        bases.append({"base": sys.base_prefix, "platbase": sys.base_prefix})
    found = [sysconfig.get_path(kind, vars=base) for base in bases for kind in ("purelib", "platlib")]
    return [*found, site.getusersitepackages(), *sys.path]


def can_build() -> bool:
    """Tell whether this is a machine for Pillow-SIMD, with a compiler and the headers that it cannot do without."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    folders = [f"-I{sysconfig.get_path('include')}", f"-I{Path(sys.prefix, 'include')}"]
    try:
        ran = subprocess.run([*compiler, *folders, "-E", "-x", "c", "-"], input=HEADERS.encode(), capture_output=True)
    except OSError:
        return False
    return ran.returncode == 0


setup(install_requires=[*DEPENDENCIES, imaging()])
