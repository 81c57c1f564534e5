"""Old import paths that the documents have named."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run_python(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True)


def test_an_old_path_leads_to_the_module_of_today_with_a_warning() -> None:
    code = (
        "from shardctl.exports.exporting import export; import shardctl.interop.exports.exporting as today;"
        " assert export is today.export; print('same')"
    )
    done = run_python(code, "-W", "always")
    assert (done.returncode, done.stdout) == (0, "same\n"), done.stderr
    assert "DeprecationWarning: shardctl.exports.exporting is shardctl.interop.exports.exporting now" in done.stderr


@pytest.mark.parametrize("name", ["shardctl.exports.nothing", "shardctl.nothing"])
def test_other_names_are_not_found(name: str) -> None:
    done = run_python(f"import {name}")
    assert f"ModuleNotFoundError: No module named '{name}'" in done.stderr
