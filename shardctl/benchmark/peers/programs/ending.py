"""The end of a process that nobody waits for any more.

It is what system/processes/fork.py has for processes of ours: nothing of shardctl can be imported
in a Python of others.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal

_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Have this process killed when its parent ends (prctl(2)): one that is paused would else stay
    for ever."""
    with contextlib.suppress(OSError, AttributeError):  # Linux only
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
