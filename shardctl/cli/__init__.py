"""The command line: one file per command, and one place that turns errors into a sentence and an exit code."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn, TextIO

import click

from shardctl.errors import ShardctlError

INTERRUPTED = 130
FLUSH_FAILED = 120
"""The exit code of Python itself if its output cannot be written."""

OUTPUT_REFUSED = 3
"""The exit code if stdout or stderr cannot be written: the same as for any other full disk."""

COMMANDS = (
    "advise",
    "bench",
    "cache",
    "compact",
    "convert",
    "demo",
    "export",
    "inspect",
    "merge",
    "preview",
    "prune",
    "recipe",
    "repair",
    "tokenizer",
    "verify",
)


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
      shardctl preview demo/photos --random-crop 224 --flip 0.5 --html p.html
                                                          what will a recipe do to the images?
      shardctl convert demo/photos out --resize 256 --crop 224 --store raw
      shardctl recipe check recipe.toml                   what does a recipe do, and what is wrong with it?
      shardctl tokenizer train demo/texts tokenizer.json  make a tokenizer of texts
      shardctl verify out                                 is it whole?
      shardctl merge out                                  make a dataset of what `convert --part I/N` built
      shardctl repair out                                 rebuild damaged files from the sources
      shardctl compact out                                put the shards in order after many updates
      shardctl prune out --key cat/001.jpg                take samples out for good
      shardctl inspect out                                what is in it?
      shardctl bench out --consumer-rate 2500             does it keep a GPU busy?
      shardctl cache ls                                   what is kept here of datasets on object stores?
      shardctl export out files --to megatron             write it in the form of another trainer

    Exit codes: 0 done, 1 the check found something (damage, a starved consumer, too many rejects), 2 wrong usage, 3 cannot
    do it (no such input, disk full, bad dataset), 130 interrupted.
    """


INTERRUPTION = "interrupted"


def main() -> None:
    """Run the command line, and exit with the exit code of the result."""
    sys.stdout, sys.stderr = _StandardStream(sys.stdout), _StandardStream(sys.stderr)
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
        with contextlib.suppress(OutputRefusedError):
            _complain(INTERRUPTION, INTERRUPTED, sys.argv[1:])
        code = INTERRUPTED
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End the process as the interpreter does, but without tearing down every module first: that takes 30 to 60 ms.

    Threads that a user's function left running are joined, atexit functions are called, and output is flushed. Files,
    processes and locks are already closed by the blocks that opened them.
    """
    if pools := sys.modules.get("concurrent.futures.thread"):
        pools._python_exit()  # as threading does it before it joins them: idle threads of pools would wait for ever
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join()
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except OutputRefusedError:
        code = code or FLUSH_FAILED
    os._exit(code)


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except OutputRefusedError as error:
        with contextlib.suppress(OutputRefusedError):  # stderr may be on the same full disk
            click.echo(f"shardctl: the output cannot be written ({error.strerror}); write it somewhere else", err=True)
        return OUTPUT_REFUSED


class OutputRefusedError(OSError):
    """What was printed cannot be written: the disk is full, for instance. A class of its own, to tell it from other files."""


class _StandardStream(io.TextIOWrapper):
    """stdout or stderr of the command.

    That the reader of a pipe has closed it (`| head`) is no error: the rest of the output is discarded, and the command
    goes on to its own exit code. Any other failure raises OutputRefusedError.
    """

    def __init__(self, stream: TextIO) -> None:
        assert isinstance(stream, io.TextIOWrapper), "as Python opens the streams at its start"
        super().__init__(
            stream.buffer,
            stream.encoding,
            stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        self._original = stream  # it would close the buffer when it is deleted

    def write(self, text: str) -> int:
        """Write a text, and return its length."""
        with self._dealing_with_faults():
            super().write(text)
        return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        with self._dealing_with_faults():
            super().flush()

    @contextlib.contextmanager
    def _dealing_with_faults(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, self.fileno())
            os.close(nothing)
        except OSError as error:
            raise OutputRefusedError(error.errno, error.strerror) from error


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
