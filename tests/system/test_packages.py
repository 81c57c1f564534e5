"""What a message says to install is right for how shardctl was installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import metadata, requires
from pathlib import Path

import pytest

from shardctl.system.packages import packages_of

ROOT = Path(__file__).parents[2]

METADATA = """Metadata-Version: 2.4
Name: shardctl
Version: 1
Provides-Extra: s3
Provides-Extra: all
Provides-Extra: old
Requires-Dist: click>=8
Requires-Dist: obstore>=0.11; extra == "s3"
Requires-Dist: boto3>=1.34; extra == "s3"
Requires-Dist: shardctl[old,s3]; extra == "all"
Requires-Dist: h5py; extra == "old"
Requires-Dist: never; (python_version < "3.10" and sys_platform != "none") and extra == "old"
Requires-Dist: always[fast]; (python_version >= "3.10" and sys_platform != "none") and extra == "old"
"""


def said(folder: Path, extra: str, environment: Path | None) -> str:
    """Return what another process says, where shardctl was installed into `environment`."""
    code = (
        f"import sys; sys.path[:0] = {[str(environment)] if environment else []!r};"
        f"from shardctl.system.packages import packages_to_install; print(packages_to_install({extra!r}))"
    )
    where = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": str(folder)}}
    # -S: without the packages of the tests
    python = [sys.executable, "-S", "-c", code]
    return subprocess.run(
        python, capture_output=True, text=True, check=True, **where
    ).stdout.strip()


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    information = tmp_path / "environment" / "shardctl-1.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(METADATA)
    return information.parent


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of shardctl without the files that lie beside it in a clone."""
    folder = tmp_path / "a copy"
    folder.mkdir()
    (folder / "shardctl").symlink_to(ROOT / "shardctl")
    return folder


def test_from_an_index_it_is_an_extra_of_shardctl(copy, environment):
    assert said(copy, "s3", environment) == "'shardctl[s3]'"


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(
    "record",
    [
        {"url": "file:///tmp/shardctl-1-py3-none-any.whl", "archive_info": {}},
        {"url": "file:///home/me/shardctl", "dir_info": {"editable": True}},
        {"url": "https://host/me/shardctl.git", "vcs_info": {"vcs": "git", "commit_id": "0" * 40}},
    ],
)
def test_from_elsewhere_it_is_the_packages_themselves(copy, environment, record):
    (environment / "shardctl-1.dist-info" / "direct_url.json").write_text(json.dumps(record))
    for extra, packages in (
        ("s3", "'obstore>=0.11' 'boto3>=1.34'"),
        ("all", "h5py 'always[fast]' 'obstore>=0.11' 'boto3>=1.34'"),
        ("newer", "'shardctl[newer]'"),
    ):
        assert said(copy, extra, environment) == packages


def test_in_a_clone_that_was_never_installed_it_is_the_clone(copy):
    (copy / "pyproject.toml").touch()
    assert said(copy, "s3", None) == f"'{copy}[s3]'"


def test_markers_of_the_real_metadata_are_of_the_kinds_that_are_understood():
    for line in requires("shardctl") or []:
        marker = line.partition(";")[2]
        known = re.sub(
            r"""(extra|python_version|sys_platform) *[=!<>]+ *(["'])[^"']*\2""", "", marker
        )
        assert set(known.replace("and", "").replace(" ", "")) <= {"(", ")"}, line


def test_every_extra_names_packages():
    listed = requires("shardctl") or []
    for extra in metadata("shardctl").get_all("Provides-Extra") or []:
        assert packages_of(extra, listed) or extra == "plot", extra
