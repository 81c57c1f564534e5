from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_imports_run_downward_only():
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
