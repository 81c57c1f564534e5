"""`shardctl finish`."""

from __future__ import annotations

from shardctl.cli.command import DST, command, option
from shardctl.cli.options import option_of
from shardctl.cli.output import Output, progress_options, waiting_teller
from shardctl.making.options import IF_RUNNING
from shardctl.system.machine import quick_imports


@command(
    examples=(
        "shardctl convert photos out --part 1/2  # on one machine",
        "shardctl convert photos out --part 2/2  # on another one",
        "shardctl finish out  # on any of them",
    ),
)
@DST
@option(
    "--max-rejects",
    "Fail with exit code 1 if more inputs than this could not be converted.",
    metavar="N|P%",
)
@option_of("if_running", IF_RUNNING)
@progress_options
def finish(dst: str, max_rejects: str | None, if_running: str, output: Output) -> None:
    """Complete the dataset from the shards that `convert --part I/N` has built.

    The dataset appears at once. Until then, DST has no dataset, or still the old one. The sources
    are not needed. If shards are missing, the exit code is 1, and the message names their parts:
    run these parts again. A dataset that was finished before is up to date.
    """
    with quick_imports():
        from shardctl.cli.conversion import lines_of_result, print_notices, result_record
        from shardctl.making.convert.parts import finish as finish_parts

    result = finish_parts(
        dst, max_rejects, if_running, waiting_teller(dst, output), output.shows_progress
    )
    print_notices(result, output)
    output.show(result_record(result), lines_of_result(result, dst))
