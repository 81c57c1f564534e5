"""The command line: one file per command, and one place that turns what went wrong into a sentence and an exit code."""

from __future__ import annotations

import json
import os
import signal
import sys

import click

from shardctl.cli.advise import advise
from shardctl.cli.bench import bench
from shardctl.cli.convert import convert
from shardctl.cli.demo import demo
from shardctl.cli.inspect import inspect
from shardctl.cli.repair import repair
from shardctl.cli.verify import verify
from shardctl.cli.version import version_text
from shardctl.errors import ShardctlError

INTERRUPTED = 130


def _show_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(version_text())
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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
      shardctl repair out                                 build what is damaged again
      shardctl inspect out                                what is in it?
      shardctl bench out --consumer-rate 2500             does it keep a GPU busy?

    Exit codes: 0 done, 1 the check found something (damage, a starved consumer, too many rejects), 2 wrong usage, 3 cannot
    do it (no such input, disk full, bad dataset), 130 interrupted.
    """


for command in (advise, convert, verify, repair, inspect, bench, demo):
    cli.add_command(command)


def main() -> None:
    """Run the command line, and exit with the code that the outcome has."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a batch system's "stop" is handled as Ctrl-C is
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    try:
        code = cli.main(arguments, prog_name="shardctl", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except ShardctlError as error:
        _complain(str(error), error.exit_code, arguments)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort) as stop:
        said = str(stop.__cause__ or stop)  # click puts its own exception in the place of a KeyboardInterrupt
        _complain(said or "interrupted; what was committed before is untouched", INTERRUPTED, arguments)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has closed it (`| head`): not our fault, and nothing more to say.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _complain(message: str, code: int, arguments: list[str]) -> None:
    if "--json" in arguments:
        click.echo(json.dumps({"error": message, "exit_code": code}))
    else:
        click.echo(f"shardctl: {message}", err=True)
