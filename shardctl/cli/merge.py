"""`shardctl merge`."""

from __future__ import annotations

import click

from shardctl.build.shared_options import IF_RUNNING
from shardctl.cli.convert import print_result, result_record
from shardctl.cli.options import option_of
from shardctl.cli.output import Output, output_options, print_json, waiting_line


@click.command()
@click.argument("dst", metavar="DST", type=click.Path())
@click.option("--max-rejects", metavar="N|P%", help="Fail with exit code 1 if more inputs than this could not be converted.")
@option_of("if_running", IF_RUNNING)
@output_options
def merge(dst: str, max_rejects: str | None, if_running: str, output: Output) -> None:
    """Make a dataset of the shards that `convert --part I/N` has built.

    All at once: until then there is no dataset at DST, or the one of before. The sources are not needed. Exit code 1 if shards
    are missing; the message names their parts, which can be run again. A dataset that was merged before is up to date.

    \b
      shardctl convert photos out --part 1/2      on one machine
      shardctl convert photos out --part 2/2      on another one
      shardctl merge out                          on any of them
    """
    from shardctl.build.convert.merge import merge as merge_parts

    def waiting(owner: str) -> None:
        if not output.quiet:
            click.echo(waiting_line(owner, dst), err=True)

    result = merge_parts(dst, max_rejects, if_running, waiting)
    if not output.hides_progress:
        for notice in result.notices:
            click.echo(f"note: {notice}", err=True)
    for warning in result.warnings:
        click.echo(f"WARNING: {warning}", err=True)
    if output.as_json:
        print_json(result_record(result))
    else:
        print_result(result, dst)
