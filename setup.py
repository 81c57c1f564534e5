"""What shardctl depends on. All else is in pyproject.toml.

It asks for Pillow, whatever is on the machine that builds it: a wheel is for any machine. Pillow-SIMD is faster and installs
the same folder, but has no wheels. No dependency can say "one of the two", so SHARDCTL_IMAGING names it (docs/install.md).
"""

import os

from setuptools import setup

IMAGING = ("pillow", "pillow-simd")

imaging = os.environ.get("SHARDCTL_IMAGING") or "pillow"
if imaging not in IMAGING:
    raise SystemExit(f"SHARDCTL_IMAGING is {imaging!r}; it can be {' or '.join(IMAGING)}")

setup(
    install_requires=[
        "click>=8.1",
        "numpy>=1.26",
        "pyarrow>=20",  # the loader gathers through binary views, which 18 cannot make
        "tqdm>=4.64",
        "xxhash>=3.4",
        "simplejpeg>=1.7",
        "zstandard>=0.22",
        "tomli>=2; python_version < '3.11'",
        f"{imaging}>=10.4",
    ]
)
