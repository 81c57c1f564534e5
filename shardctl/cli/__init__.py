"""The command line: one file per command, and one place that turns errors into a sentence and an exit code."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import signal
import sys
import threading
from typing import NoReturn, TextIO

import click

from shardctl.errors import ShardctlError

INTERRUPTED = 130
FLUSH_FAILED = 120
"""The exit code of Python itself if its output cannot be written."""

OUTPUT_REFUSED = 3
"""The exit code if stdout or stderr cannot be written: the same as for any other full disk."""

COMMANDS = ("advise", "bench", "convert", "demo", "inspect", "repair", "verify")


def _show_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        from shardctl.cli.version import version_text

        click.echo(version_text())
        context.exit()


class Commands(click.Group):
    """The commands. Each is imported only when it is called, or when all are listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, or None if there is none of this name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f"shardctl.cli.{cmd_name}"), cmd_name)
        return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Show versions and formats."
)
def cli() -> None:
    """Preprocess a dataset once, prove it whole, and measure whether it keeps the GPU busy.

    \b
      shardctl demo demo                                  make a small dataset to try things on
      shardctl advise demo/photos --resize 256 --crop 224 --consumer-rate 2500
                                                          how should it be stored?
      shardctl convert demo/photos out --resize 256 --crop 224 --store raw
      shardctl verify out                                 is it whole?
      shardctl repair out                                 rebuild damaged files from the sources
      shardctl inspect out                                what is in it?
      shardctl bench out --consumer-rate 2500             does it keep a GPU busy?

    Exit codes: 0 done, 1 the check found something (damage, a starved consumer, too many rejects), 2 wrong usage, 3 cannot
    do it (no such input, disk full, bad dataset), 130 interrupted.
    """


INTERRUPTION = "interrupted"


def main() -> None:
    """Run the command line, and exit with the exit code of the result."""
    stopped: list[int] = []

    def stop(number: int, _frame: object) -> None:
        stopped.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # ignored means that the process runs in the background
        signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)  # a batch system's "stop" is handled as Ctrl-C is
    try:
        code = run(sys.argv[1:])
    except Exception:
        if not stopped:
            raise
        # A compiled module that is interrupted while it is imported raises its own error instead of KeyboardInterrupt.
        _complain(INTERRUPTION, INTERRUPTED, sys.argv[1:])
        code = INTERRUPTED
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End the process as the interpreter does, but without tearing down every module first: that takes 30 to 60 ms.

    Threads that a user's function left running are joined, atexit functions are called, and output is flushed. Files,
    processes and locks are already closed by the blocks that opened them.
    """
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join()
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:  # it is None where the command was started with the stream closed
                stream.flush()
    except OSError:  # the reader of the pipe is gone, or the disk is full
        code = code or FLUSH_FAILED
    os._exit(code)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    try:
        code = _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of our output has closed the pipe (`| head`): that is no error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if not any(map(_is_refused, (sys.stdout, sys.stderr))):
            raise  # a bug: a file that is no output was not dealt with
        with contextlib.suppress(OSError):  # stderr may be on the same full disk
            click.echo(f"shardctl: the output cannot be written ({error.strerror}); write it somewhere else", err=True)
        return OUTPUT_REFUSED


def _is_refused(stream: TextIO | None) -> bool:
    """Return whether the system does not take what is written to a stream. The only way to know is to write something."""
    try:
        if stream is not None:
            stream.write("\n")
            stream.flush()
    except OSError:
        return True
    return False


def _run(arguments: list[str]) -> int:
    try:
        code = cli.main(arguments, prog_name="shardctl", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        if "--json" in arguments:
            _complain(error.format_message(), error.exit_code, arguments)
        else:
            error.show()
        return error.exit_code
    except ShardctlError as error:
        _complain(str(error), error.exit_code, arguments)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort) as stop:
        said = str(stop.__cause__ or stop)  # click replaces a KeyboardInterrupt by its own exception
        _complain(said or INTERRUPTION, INTERRUPTED, arguments)
        return INTERRUPTED


def _complain(message: str, code: int, arguments: list[str]) -> None:
    if "--json" in arguments:
        click.echo(json.dumps({"error": message, "exit_code": code}))
    else:
        click.echo(f"shardctl: {message}", err=True)
