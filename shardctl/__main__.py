"""`python -m shardctl`, and the command `shardctl`."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def main() -> None:
    """Run the command line, and exit with the exit code of the result."""
    _open_closed_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # until shardctl.cli sets its own: to import click takes a tenth of a second
        signal.signal(signal.SIGINT, _stop)
    # a shell asks for completions, by the protocol of click
    if os.environ.get("_SHARDCTL_COMPLETE"):
        from shardctl.cli.completion import complete as run
    else:
        from shardctl.cli import main as run
    run()


def _open_closed_streams() -> None:
    """Open /dev/null in place of each standard stream that is closed (`>&-`).

    Otherwise a shard or a log gets the descriptor 1 or 2, and what a library prints is written into
    it.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest descriptor that is free: this one
            os.set_inheritable(descriptor, True)
    if sys.stdin is None:
        sys.stdin = open(0)  # noqa: SIM115 - the standard streams stay open until the process ends
    if sys.stdout is None:
        sys.stdout = open(1, "w", errors="backslashreplace")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", errors="backslashreplace")  # noqa: SIM115


def _stop(_number: int, _frame: object) -> NoReturn:
    """End the process at once: nothing has begun."""
    if "--json" in sys.argv:
        os.write(1, b'{"error": "interrupted", "exit_code": 130}\n')
    else:
        os.write(2, b"shardctl: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
