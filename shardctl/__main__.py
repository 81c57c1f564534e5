"""`python -m shardctl`, and the command `shardctl`."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def main() -> None:
    """Run the command line, and exit with the exit code of the result."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)  # until shardctl.cli sets its own: to import click takes a tenth of a second
    from shardctl.cli import main as run

    run()


def _stop(_number: int, _frame: object) -> NoReturn:
    """End the process at once: nothing has begun."""
    if "--json" in sys.argv:
        os.write(1, b'{"error": "interrupted", "exit_code": 130}\n')
    else:
        os.write(2, b"shardctl: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
