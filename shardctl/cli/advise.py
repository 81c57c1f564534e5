"""`shardctl advise`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardctl.benchmark.advice_options import BORROWED, HEADINGS, OUTPUT, AdviceOptions
from shardctl.cli.command import PATH, SRC, command, option
from shardctl.cli.options import options_of
from shardctl.cli.output import (
    Output,
    printing_to_stderr,
    progress_options,
)
from shardctl.system.files import OutputFileType
from shardctl.system.machine import quick_imports
from shardctl.system.options import declared_in
from shardctl.system.packages import look_in_current_folder
from shardctl.system.report import table_lines
from shardctl.system.text import counted, format_bytes, printable

if TYPE_CHECKING:
    from shardctl.benchmark.advice import Advice, Choice, Today
    from shardctl.benchmark.network import Network, OverNetwork
    from shardctl.benchmark.text_blocks import BlockAdvice

NONE_KEEPS_UP = 1

_MARK = b"# Written by shardctl advise, which replaces it while it is unchanged: "


def _marked(recipe: bytes) -> bytes:
    """Return a recipe with a line that tells, by its SHA-256, whether a person has changed it."""
    import hashlib

    return _MARK + hashlib.sha256(recipe).hexdigest()[:16].encode() + b"\n" + recipe


RECIPE = OutputFileType("recipe", lambda content: content == _marked(content.partition(b"\n")[2]))
"""A recipe, as a file."""


@command(
    examples=(
        "shardctl advise photos --resize 256 --crop 224 --consumer-rate 2500",
        "shardctl advise photos --crop 224 --consumer resnet50-a100 --write r.toml",
        "shardctl advise photos --consumer-rate 2500 --bandwidth 2Gbit --latency 30ms",
        "shardctl convert photos out --recipe r.toml  # what advise has written",
    ),
    headings=HEADINGS,
    takes_options_of_convert=True,
)
@SRC
@options_of(declared_in(AdviceOptions))
@options_of(BORROWED, hidden=True)
@option(
    "--write",
    "Write the recipe to this file, for `shardctl convert --recipe`.",
    heading=OUTPUT,
    brief="write the recipe to this file",
    type=PATH,
    metavar="FILE",
)
@progress_options
def advise(src: tuple[str, ...], output: Output, write: str | None, **given: Any) -> int:
    """Find the smallest way to store SRC that is fast enough to keep a GPU busy on this machine.

    The command converts a few hundred inputs in every way. Images: original bytes, jpeg, webp, png,
    and raw pixels with and without compression. Texts: several compressions. It reads each result
    with shardctl's loader, as in training. It checks the smallest one that is fast enough with a
    simulated GPU, and prints it as a recipe for `shardctl convert`. If none is fast enough, the
    exit code is 1. Shards of another tool are also read with their own reader, if it is installed.
    """
    with quick_imports():
        from shardctl.benchmark.advice import advise as find_advice
        from shardctl.transforms.recipe_files.reading import recipe_toml

    if write is not None:
        RECIPE.check(Path(write))
    look_in_current_folder()
    with printing_to_stderr():
        advice = find_advice(
            list(src), given.pop("recipe"), progress=output.shows_progress, **given
        )
    recipe = recipe_toml(advice.recipe)
    if write is not None:
        RECIPE.write(Path(write), _marked(recipe.encode()))
    record = {**asdict(advice), "keeps_up": advice.keeps_up, "recipe_toml": recipe}
    output.show(record, _lines(advice, recipe, write))
    return 0 if advice.keeps_up else NONE_KEEPS_UP


def _lines(advice: Advice, recipe: str, write: str | None) -> Iterator[str]:
    yield (
        f"{advice.tried:,} of {counted(advice.inputs, 'input')} tried; the consumer takes "
        f"{advice.rate:,.1f} samples/s"
    )
    if advice.rejected:
        yield f"  {advice.rejected:,} of them cannot be converted"
    for fault in advice.faults:
        yield f"  not read or converted: {printable(fault)}"
    texts = any(choice.decode_mb_per_s is not None for choice in advice.choices)
    last = ("ratio", "decompress") if texts else ("",)
    rows = [_row(choice, advice) for choice in advice.choices if choice.error is None]
    yield from table_lines(rows, (*_COLUMNS, *last))
    if advice.today is not None:
        yield from _today_lines(advice.today)
    for choice in advice.choices:
        if choice.error is not None:
            yield f"  {choice.name}: not possible, {printable(choice.error)}"
    if advice.network is not None:
        yield from _network_lines(advice, advice.network)
    else:
        verdict = (
            f"{advice.best.name} is the smallest that keeps the consumer busy"
            if advice.keeps_up
            else f"NONE keeps it busy on this machine; {advice.best.name} is the fastest"
        )
        yield f"{verdict}: {advice.proven:.1%} utilisation in a test"
    from shardctl.format.counts import jpeg_costs  # with numpy, which most commands do without

    for cost in jpeg_costs(advice.jpeg, advice.tried - advice.rejected):
        yield f"of those tried, {cost}"
    if advice.blocks is not None:
        yield from _blocks_lines(advice.blocks)
    if advice.placements:
        yield from _placements_lines(advice)
    memory = (
        "fits in this machine's memory"
        if advice.fits_in_memory
        else "does not fit in this machine's memory"
    )
    yield (
        f"all inputs will take about {format_bytes(advice.total_bytes)}, which {memory}; a disk "
        f"must give {advice.disk_mb_per_s:,.1f} MB/s"
    )
    yield f"recipe written to {printable(write)}" if write else f"recipe:\n\n{recipe}"


def _network_lines(advice: Advice, network: Network) -> Iterator[str]:
    """Yield what comes over the network, and what the recommended choice waits for."""
    cache = f"a cache of {format_bytes(network.cache_bytes)}" if network.cache_bytes else "no cache"
    way = f"{_rate(network.bytes_per_s)}, {network.latency_s * 1e3:g} ms, {cache}"
    yield f"computed for a store ({way}):"
    epochs = ("first epoch", "", "later epochs", "")
    found = [(choice, choice.network) for choice in advice.choices if choice.network is not None]
    rows = [_far_row(choice, far, advice) for choice, far in found]
    yield from table_lines(rows, ("", "store", "network", *epochs, "in cache", "all, once"))
    best, far = advice.best, advice.best.network
    assert far is not None, "each choice that is possible has it"
    verdict = f"{best.name} is the smallest that keeps the consumer busy over this network"
    if not advice.keeps_up:
        verdict = (
            f"{best.name} keeps the consumer busy after the first epoch, and is the fastest such "
            "one in it"
            if advice.keeps_up_later
            else f"NONE keeps it busy over this network; {best.name} is the fastest in the first "
            "epoch"
        )
    yield f"{verdict}: {advice.proven:.1%} utilisation in a test with local data"
    first, later = (_limit(epoch.limit, epoch.utilization, far) for epoch in (far.first, far.later))
    yield (
        f"  every epoch: {first}"
        if first == later
        else f"  first epoch: {first}\n  later epochs: {later}"
    )


def _limit(limit: str, utilization: float, far: OverNetwork) -> str:
    """Return in words which part is the slowest one."""
    share = f"the consumer is busy for {utilization:.0%} of the time"
    if limit == "consumer":
        return "the consumer is the slowest part"
    if limit == "decode":
        return f"the loader's own work (decode) is the slowest part, and {share}"
    return f"the network is the slowest part (its {far.waits_for}), and {share}"


def _rate(bytes_per_s: float) -> str:
    """Return a bandwidth for display, in decimal units as networks have them."""
    return f"{bytes_per_s / 1e6:,.1f} MB/s" if bytes_per_s >= 1e5 else f"{bytes_per_s:,.0f} B/s"


def _time(seconds: float) -> str:
    """Return a time for display: in hours where it is long."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.1f} s"


def _far_row(choice: Choice, far: OverNetwork, advice: Advice) -> tuple[str, ...]:
    epochs = (
        (
            f"{epoch.samples_per_s:,.0f}/s",
            "keeps up" if epoch.keeps_up else f"starves it ({epoch.limit})",
        )
        for epoch in (far.first, far.later)
    )
    return (
        "*" if choice == advice.best else "",
        choice.name,
        f"{far.samples_per_s:,.0f}/s",
        *chain.from_iterable(epochs),
        f"{far.cached_share:.0%}",
        _time(far.read_once_s),
    )


def _today_lines(found: Today) -> Iterator[str]:
    """Yield how fast the inputs are read as they are."""
    if found.why_not is not None:
        yield f"  as they are: not measured, {printable(found.why_not)}"
        return
    rate = f"{found.samples_per_s:,.0f} samples/s, {found.utilization:.0%} utilisation"
    yield (
        f"  as they are: {rate}, by {printable(found.library)} in {found.how}, with no transform"
    )


def _placements_lines(advice: Advice) -> Iterator[str]:
    """Yield where the random steps can be done, and where they are best."""
    yield "the random steps can be done once, or in each epoch (a loader with one thread):"
    best = next((each for each in reversed(advice.placements) if each.keeps_up), None)
    rows = [
        (
            "*" if each is best else "",
            _WHERE[each.where],
            each.store,
            f"{each.samples_per_s:,.0f}/s",
            f"{each.cores:.2g} cores",
            format_bytes(each.input_bytes * advice.inputs),
            "a new one in each epoch" if each.views is None else f"{each.views:,}",
        )
        for each in advice.placements
        if each.error is None
    ]
    yield from table_lines(
        rows, ("", "where", "store", "samples/s", "needed", "all inputs", "views of an input")
    )
    for each in advice.placements:
        if each.error is not None:
            yield f"  {_WHERE[each.where]}: not possible, {printable(each.error)}"


_WHERE = {
    "conversion": "at the conversion",
    "variants": "in --variants",
    "reading": "under [[reading]]",
}


def _blocks_lines(found: BlockAdvice) -> Iterator[str]:
    """Yield what blocks of tokens would cost."""
    from shardctl.benchmark.text_blocks import DOCUMENTS
    from shardctl.format.packing import METHODS

    how = " (estimated: a quarter of the bytes of their text)" if found.estimated else ""
    yield (
        f"documents have {found.low:,} to {found.high:,} tokens, {found.median:,} at the "
        f"median{how}"
    )
    yield f"blocks of tokens, {DOCUMENTS:,} such documents in a shard: documents cut, and padding"
    lengths = list(dict.fromkeys(choice.length for choice in found.choices))
    shares = {
        (choice.length, choice.method): f"{choice.cut:.1%}, {choice.padding:.1%}"
        for choice in found.choices
    }
    rows = [(f"{length:,}", *(shares[length, method] for method in METHODS)) for length in lengths]
    yield from table_lines(rows, ("--block-length", *(f"--pack {method}" for method in METHODS)))


_COLUMNS = ("", "store", "per sample", "all inputs", "samples/s", "utilisation", "")


def _row(choice: Choice, advice: Advice) -> tuple[str, ...]:
    told: tuple[str, ...] = ("" if choice.lossless else "lossy",)
    if choice.store is None:
        speed = "" if choice.decode_mb_per_s is None else f"{choice.decode_mb_per_s:,.0f} MB/s"
        told = ("" if choice.ratio is None else f"{choice.ratio:.2f}", speed)
    return (
        "*" if choice == advice.best else "",
        choice.name,
        format_bytes(choice.sample_bytes),
        format_bytes(_of_all(choice, advice)),
        f"{choice.samples_per_s:,.0f}",
        f"{choice.utilization:.0%}",
        "keeps up" if choice.keeps_up else "starves it",
        *told,
    )


def _of_all(choice: Choice, advice: Advice) -> float:
    """Return the bytes of all inputs; of text, in proportion to those that are estimated for the
    recommended choice."""
    if choice.store is not None or not advice.best.sample_bytes:
        return choice.sample_bytes * advice.inputs
    return advice.total_bytes * choice.sample_bytes / advice.best.sample_bytes
