"""`shardctl prune`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from shardctl.cli.command import DST, PATH, command, option
from shardctl.cli.options import option_of
from shardctl.cli.output import Output, good, progress_options, warn
from shardctl.errors import InputError
from shardctl.making.options import IF_RUNNING
from shardctl.system.files import near_path, read_named
from shardctl.system.machine import quick_imports
from shardctl.system.text import counted, printable

if TYPE_CHECKING:
    from shardctl.making.rewrite.prune import PruneResult

SHOWN = 5
"""Keys of no sample that are printed; --json has them all."""


@command(
    examples=(
        "shardctl prune out --key cat/001.jpg",
        "shardctl prune out --keys takedown.txt",
        "shardctl prune out --where 'user == \"u17\"' --dry-run",
    ),
)
@DST
@option(
    "--where",
    "The samples that match a condition, as of `inspect --where`. Not together with keys.",
    metavar="CONDITION",
)
@option(
    "--keys", "The samples with the keys in this file, one on each line.", metavar="FILE", type=PATH
)
@option(
    "--key",
    "The samples with this key. May be given several times.",
    name="single",
    multiple=True,
    metavar="KEY",
)
@option("--dry-run", "Print how many samples would be removed, and change nothing.")
@option_of("if_running", IF_RUNNING)
@progress_options
def prune(
    dst: str,
    where: str | None,
    keys: str | None,
    single: tuple[str, ...],
    dry_run: bool,
    if_running: str,
    output: Output,
) -> None:
    """Remove samples from a dataset for good, for instance after a takedown request.

    No byte of these samples stays in any file of the dataset. Kept earlier generations are deleted,
    because they have the samples too. rejects.jsonl lists the records, and a later --update
    does not bring samples with these keys back. The sources are not touched.
    """
    with quick_imports():
        from shardctl.making.rewrite.prune import prune as prune_dataset

    wanted = (
        [*single, *(_read_keys(Path(keys)) if keys is not None else ())]
        if single or keys is not None
        else None
    )
    result = prune_dataset(
        dst, where, wanted, dry_run=dry_run, if_running=if_running, progress=output.shows_progress
    )
    output.show(result, _lines(result, dst, dry_run))


def _read_keys(path: Path) -> list[str]:
    """Return the keys in a file, one in a line. Raises InputError."""
    try:
        keys = [line for line in read_named(path).decode("utf-8-sig").splitlines() if line]
        if not keys:
            raise InputError(f"{printable(path)}: has no keys; write one a line")
        return keys
    except FileNotFoundError:
        raise InputError(
            f"{printable(path)}: no such file of keys{near_path(path)}; --key KEY names one"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputError(
            f"{printable(path)}: cannot be read as a list of keys ({reason})"
        ) from error


def _lines(result: PruneResult, dst: str, dry_run: bool) -> Iterator[str]:
    would = "would remove" if dry_run else good("removed")
    what = f"{counted(result.removed, 'sample')} from {printable(dst)}"
    of_shards = f"{result.shards_rewritten:,} of {counted(result.shards, 'shard')}"
    yield f"{would} {what}, in {of_shards}; {result.samples:,} are left"
    if result.generations:
        numbers = ", ".join(map(str, result.generations))
        yield (
            f"{'would delete' if dry_run else 'deleted'} the earlier generations that were kept: "
            f"{numbers}"
        )
    if result.missing:
        shown = ", ".join(map(printable, result.missing[:SHOWN]))
        more = f" and {len(result.missing) - SHOWN:,} more" if len(result.missing) > SHOWN else ""
        warn(f"no sample has the key {shown}{more}")
