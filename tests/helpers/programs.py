"""Programs that tests run in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from in_this_process import command_line

_USUAL: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 120}


def run_python(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run code with these arguments to its end, and return what it has said."""
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], **(_USUAL | options))


def run_command(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run shardctl with these words to its end, and return what it has said."""
    return subprocess.run(command_line(*words), **(_USUAL | options))
