"""The command line: one file per command, and one place that turns errors into a sentence and an
exit code."""

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
import warnings
from collections.abc import Iterator
from typing import NoReturn, TextIO

import click

from shardctl.cli.command import WIDTH, Group, telling
from shardctl.cli.output import as_typed, color_choice, complain, warn
from shardctl.errors import ShardctlError, UsageError
from shardctl.system.text import printable

INTERRUPTED = 130
FLUSH_FAILED = 120
"""The exit code of Python itself if its output cannot be written."""

OUTPUT_REFUSED = 3
"""The exit code if stdout or stderr cannot be written: the same as for any other full disk."""

COMMANDS = {
    "Make a dataset": {
        "demo": "make a small dataset to try things on",
        "preview": "show what a conversion would make of some images",
        "advise": "find the smallest way to store data that is fast enough",
        "convert": "turn raw inputs into a dataset",
        "finish": "complete a conversion that was built in parts",
    },
    "Look and check": {
        "inspect": "show the content of a dataset or a shard",
        "verify": "check that a dataset is undamaged",
        "repair": "rebuild damaged files from the sources",
        "bench": "measure whether a dataset keeps a GPU busy",
    },
    "Keep in order": {
        "compact": "put the shards in order after many updates",
        "prune": "remove samples for good",
        "cache": "show or clear the local cache of datasets on stores",
    },
    "Other tools": {
        "export": "write a dataset in the format of another tool",
        "recipe": "check, show and reuse recipe files",
        "tokenizer": "train and try tokenizers",
    },
    "Help": {
        "help": "explain a message, show a page, or find a word in it",
        "completion": "print the script for the Tab key of your shell",
    },
}
"""The commands in the order of use, under their headings, each with a line about it."""

ALL_COMMANDS = {name: line for commands in COMMANDS.values() for name, line in commands.items()}
"""The same without headings."""


def version_text() -> str:
    """Return the versions, the imaging backend and the formats that it can read."""
    import platform

    import shardctl
    from shardctl.errors import InstallError
    from shardctl.system.packages import installed_version

    packages = ", ".join(
        f"{name} {installed_version(name)}" for name in ("pyarrow", "numpy", "click")
    )
    lines = [
        f"shardctl {shardctl.__version__}",
        f"Python {platform.python_version()}, {packages}",
    ]
    try:
        from shardctl.images.codecs import backend

        name = backend.require_one()
    except InstallError as error:
        return "\n".join([*lines, f"imaging: {error}"])
    lines.append(f"imaging: {name} ({', '.join(backend.libraries())})")
    readable, missing = backend.readable_formats()
    lines.append(f"reads: {', '.join(readable)}")
    if missing:
        lines.append(
            f"cannot read in this build: {', '.join(missing)} (`shardctl help install` says how to "
            "add them)"
        )
    return "\n".join(lines)


class Commands(Group):
    """The commands. Each is imported only when it is called, or when all are listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of the help."""
        return list(ALL_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, or None if there is none of this name."""
        if cmd_name not in ALL_COMMANDS:
            return None
        command: click.Command = getattr(
            importlib.import_module(f"shardctl.cli.{cmd_name}"), cmd_name
        )
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their headings; none of them is imported."""
        for heading, commands in COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl(list(commands.items()))


@click.group(
    cls=Commands,
    examples=(
        "shardctl demo demo  # a small dataset to try things on",
        "shardctl convert demo/photos out --resize 256 --crop 224 --store raw",
        "shardctl inspect out  # show its content",
        "shardctl bench out --consumer-rate 2500  # does it keep a GPU busy?",
    ),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH},
    params=[telling(["--version"], lambda _: version_text(), "Show versions and formats.")],
)
def cli() -> None:
    """Preprocess a dataset once, check that it is complete, and measure whether it keeps the GPU
    busy.

    `shardctl COMMAND -h` shows the options that most people need, `shardctl COMMAND --help` shows
    all options.

    In Python: for batch in shardctl.open("out").loader(256): … (`shardctl help loader`)

    \b
    Exit codes:
      0    done
      1    the check found something: damage, a GPU that waits, too many rejects
      2    wrong usage
      3    it cannot be done: no such input, a full disk, a damaged dataset
      130  interrupted
    """


INTERRUPTION = "interrupted"


def main() -> None:
    """Run the command line, and exit with the exit code of the result."""
    sys.stdout, sys.stderr = _StandardStream(sys.stdout), _StandardStream(sys.stderr)
    # as commands say it, without a line of code
    warnings.showwarning = lambda message, *_where, **_named: warn(str(message))
    stopped: list[int] = []

    def stop(number: int, _frame: object) -> None:
        stopped.append(number)
        raise KeyboardInterrupt

    # ignored means that the process runs in the background
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)  # a batch system's "stop" is handled as Ctrl-C is
    try:
        code = run(sys.argv[1:])
    except Exception:
        if not stopped:
            raise
        # A compiled module that is interrupted while it is imported raises its own error instead of
        # KeyboardInterrupt.
        with contextlib.suppress(OutputRefusedError):
            _complain(INTERRUPTION, INTERRUPTED, sys.argv[1:])
        code = INTERRUPTED
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End the process as the interpreter does, but without tearing down every module first: that
    takes 30 to 60 ms.

    Threads that a user's function left running are joined, atexit functions are called, and output
    is flushed. Files, processes and locks are already closed by the blocks that opened them.
    """
    if pools := sys.modules.get("concurrent.futures.thread"):
        # as threading does it before it joins them: idle threads of pools would wait for ever
        pools._python_exit()
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
            complain(f"the output cannot be written ({error.strerror}); write elsewhere")
        return OUTPUT_REFUSED


class OutputRefusedError(OSError):
    """What was printed cannot be written: the disk is full, for instance. A class of its own, to
    tell it from other files."""


class _StandardStream(io.TextIOWrapper):
    """stdout or stderr of the command.

    That the reader of a pipe has closed it (`| head`) is no error: the rest of the output is
    discarded, and the command goes on to its own exit code. Any other failure raises
    OutputRefusedError.
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
        code = cli.main(
            arguments, prog_name="shardctl", standalone_mode=False, color=color_choice()
        )
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.exceptions.NoArgsIsHelpError as help_text:
        help_text.show()
        return help_text.exit_code
    except click.ClickException as error:
        from shardctl.cli.usage import sentence

        _complain(sentence(error, cli, arguments), error.exit_code, arguments)
        return error.exit_code
    except ShardctlError as error:
        _complain(str(error), error.exit_code, arguments)
        return error.exit_code
    except PermissionError as error:
        if error.filename is None:
            raise
        where = printable(str(error.filename))
        _complain(
            f"{where}: cannot be reached ({error.strerror})", ShardctlError.exit_code, arguments
        )
        return ShardctlError.exit_code
    except (KeyboardInterrupt, click.Abort) as stop:
        # click replaces a KeyboardInterrupt by its own exception
        said = str(stop.__cause__ or stop)
        _complain(said or INTERRUPTION, INTERRUPTED, arguments)
        return INTERRUPTED


def _complain(message: str, code: int, arguments: list[str]) -> None:
    message = as_typed(message, arguments)
    if code == UsageError.exit_code:
        from shardctl.cli.usage import of_keyboard

        message += of_keyboard(message, arguments)
    if "--json" in arguments:
        click.echo(json.dumps({"error": message, "exit_code": code}))
        return
    entry = None
    if sys.stderr.isatty() and code != INTERRUPTED and {"-q", "--quiet"}.isdisjoint(arguments):
        from shardctl.system.messages import entry_for

        entry = entry_for(message)
    complain(message, entry.name if entry else "")
