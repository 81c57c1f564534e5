"""Programs that tests run in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from typing import Any


def run_python(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run code with these arguments to its end, and return what it has said."""
    usual = {"capture_output": True, "text": True, "timeout": 100}
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], **(usual | options))
