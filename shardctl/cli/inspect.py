"""`shardctl inspect`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from itertools import takewhile
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardctl.cli.command import PATH, command, option, path_argument
from shardctl.cli.output import (
    Output,
    note,
    open_option,
    progress_options,
    report_lines,
    shortened,
)
from shardctl.errors import UsageError
from shardctl.system.machine import quick_imports
from shardctl.system.report import table_lines
from shardctl.system.text import counted, format_bytes, printable

if TYPE_CHECKING:
    from shardctl.format.dataset_location import DatasetLocation
    from shardctl.inspection.content.differences import Differences
    from shardctl.interop.foreign_shards import ForeignOverview

Given = dict[str, Any]
"""The options that were given, by their names."""

CHOICE = "What is shown"
CONTENT = "Numbers, history, differences"
FILES = "Files that are written"
OUTPUT = "What is printed"

choice_option = partial(option, heading=CHOICE)
content_option = partial(option, heading=CONTENT)
files_option = partial(option, heading=FILES)


@command(
    examples=(
        "shardctl inspect out  # sizes, splits, classes, rejects",
        "shardctl inspect out --html out.html  # a page to browse",
        "shardctl inspect out --key cat/001.jpg  # one sample, and where it is",
        "shardctl inspect out --head 5 --columns key,label",
        "shardctl inspect out --split val  # one split",
        "shardctl inspect out --shard 3 --block 0 --row 12  # a sample by its position",
        "shardctl inspect out --files --split train  # paths, for other tools",
        "shardctl inspect out --where 'width > 500' --save big  # samples as ordinary files",
        "shardctl inspect out --diff out2  # compare two datasets",
        "shardctl inspect out --history  # what each update changed",
        "shardctl inspect s3://bucket/out --head 3  # a dataset on a store",
        "shardctl inspect train-00000.tar --head 5  # shards of another tool",
    ),
    headings=(CHOICE, CONTENT, FILES, OUTPUT),
)
@path_argument("target", "DST|SHARD")
@choice_option(
    "--split",
    "Only this split, for instance val: alone, or with options below.",
    brief="only this split",
    metavar="NAME",
)
@choice_option(
    "--shard", "One shard of the dataset, such as train-00003, or by its number.", metavar="NAME|N"
)
@choice_option("--block", "One block of the shard, counted from 0.", type=click.INT, metavar="N")
@choice_option(
    "--row",
    "One sample of the shard, or of its --block, counted from 0.",
    type=click.INT,
    metavar="N",
)
@choice_option(
    "--key",
    "The sample with this key: the path of its input.",
    brief="one sample, by its key",
    metavar="KEY",
)
@choice_option(
    "--where",
    "The samples that match a condition, as in 'label == 3 and width > 500'.",
    brief="samples that match a condition",
    metavar="CONDITION",
)
@choice_option(
    "--head",
    "The first N samples; with --where the first N that match.",
    brief="the first N samples",
    type=click.IntRange(min=1),
    metavar="N",
)
@choice_option(
    "--columns",
    "Show or save only these columns. Alone: of the first 10 samples.",
    brief="only these columns",
    metavar="A,B",
)
@content_option(
    "--stats",
    "Read all shards, for exact numbers of bytes by column, objects, pixels of masks, tokens. With --shard, check its blocks.",
    brief="exact numbers: reads all shards",
)
@files_option(
    "--save",
    "Write the samples of --key, --row, --where or --head as ordinary files.",
    brief="samples as ordinary files",
    type=PATH,
    metavar="DIR",
)
@files_option(
    "--images",
    "Draw up to 64 of the chosen samples, or of all, into one PNG file.",
    brief="up to 64 samples as one picture",
    type=PATH,
    metavar="FILE",
)
@files_option(
    "--html",
    "Write an HTML page with charts, samples and rejects of the dataset.",
    brief="a page with charts and samples",
    type=PATH,
    metavar="FILE",
)
@open_option(FILES)
@files_option("--no-annotations", "With --images and --html: draw no annotations onto the images.")
@content_option(
    "--history", "The generations of the dataset: when each was made, what changed, and its digest."
)
@choice_option(
    "--generation",
    "An earlier generation that was kept, by its number.",
    brief="an earlier generation",
    type=click.IntRange(min=1),
    metavar="N",
)
@content_option(
    "--files",
    "The paths of all files, one on a line, manifest.json last. With --split, of its shards.",
    brief="the paths of its files",
)
@content_option(
    "--diff",
    "Compare with another dataset; exit code 1 if samples differ.",
    type=PATH,
    metavar="DST",
)
@progress_options
def inspect(target: str, output: Output, **given: Any) -> int:
    """Show the content of a dataset, a split, a shard, one block or one sample.

    Tokens are shown with the beginning of their text (-v: all of it). If blocks have tokens of
    several documents, --key DOCUMENT shows the blocks with this document. Each block lists its
    documents.

    A condition may use the columns, and width, height, image_bytes, split, shard, row and index.
    With several fields of images, write NAME.width. Operators: == != < <= > >= in, is None, and,
    or, not, + - * /. Functions: len(column), lower(column), contains(column, "part"), startswith,
    endswith. If no sample matches, a message says so, and the exit code is 0.
    """
    with quick_imports():
        from shardctl.format.dataset_location import open_location
        from shardctl.interop.foreign import is_foreign, refuse_export, refuse_text

    path = Path(target)
    refuse_text(path)
    refuse_export(path)
    given = {name: each for name, each in given.items() if each is not None and each is not False}
    if "columns" in given:
        given["columns"] = given["columns"].split(",")
    if is_foreign(path):
        return _show_foreign(path, given, output)
    with open_location(target, "blocks", generation=given.get("generation")) as place:
        return _show(place, given, output)


def _show(place: DatasetLocation, given: Given, output: Output) -> int:
    """Show what is in a dataset or a shard."""
    from shardctl.format.dataset_location import open_location, refuse_part_of_dataset
    from shardctl.format.manifest import Manifest

    refuse_part_of_dataset(place)
    _check_options(place, given)
    if not place.lone:
        Manifest.load(place.folder)  # says why, if there is no dataset
    if "diff" in given:
        with open_location(given["diff"], "blocks") as other:
            return _show_differences(place, other, output)
    if "files" in given:
        _show_files(place, given.get("split"), output)
    elif "history" in given:
        _show_history(place, output)
    elif {*_WRITTEN, *_CHOICES, "columns"} & given.keys():
        from shardctl.cli.show import show_samples

        show_samples(place, given, output)
    elif "shard" in given or place.lone:
        _show_shard(place, given, output)
    else:
        from shardctl.inspection.content.inspection import dataset_report, inspect_dataset

        found = inspect_dataset(place, given.get("split"), "stats" in given)
        output.show(found.record(), report_lines(dataset_report(found)))
    return 0


def _show_foreign(path: Path, given: Given, output: Output) -> int:
    """Show what is in shards of another tool: their first records, or a sheet or page of some from
    all over them.

    Raises UsageError for options that are for datasets.
    """
    from shardctl.interop.foreign_shards import look

    drawn = _DRAWN & given.keys()
    known = {*_DRAWN, "no_annotations"} if drawn else {"head"}
    if idle := [_option(name) for name in given if name not in known]:
        who = f"{' and '.join(idle)} {'needs' if len(idle) == 1 else 'need'}"
        raise UsageError(
            f"{printable(path)}: is of another tool; {who} a dataset of shardctl: convert it"
        )
    if drawn:
        from shardctl.cli.show import show_samples
        from shardctl.format.dataset_folder import dataset_in
        from shardctl.format.dataset_location import DatasetLocation
        from shardctl.making.sampling import convert_some
        from shardctl.system.scratch import scratch_folder

        with scratch_folder() as scratch:  # as the dataset that a conversion makes of them
            root, records, made = convert_some(path, MOST_OF_OTHERS, scratch)
            origin = f"{made.samples:,} of the {counted(records, 'record')} of {path}"
            show_samples(DatasetLocation(dataset_in(root)), {**given, "origin": origin}, output)
        return 0
    found = look(path, given.get("head", FIRST_OF_OTHERS))
    record = replace(found, first=[without_bytes(record) for record in found.first])
    output.show(record, foreign_lines(str(path), found))
    return 1 if found.faults else 0


MOST_OF_OTHERS = 500
"""Records of shards of other tools that a sheet and a page are made of."""

FIRST_OF_OTHERS = 3
"""Records of shards of other tools that are shown."""

_CHOICES = {"key", "row", "where", "head"}
"""The options that choose samples."""

_DRAWN = {"images", "html", "open"}
_WRITTEN = {"save", *_DRAWN}
"""The options with which files are written."""


def _check_options(place: DatasetLocation, given: Given) -> None:
    """Raise UsageError for options that would have no effect together with the others: no option is
    silently ignored."""
    whole = [_option(name) for name in _OF_DATASETS if name in given]
    if place.lone and whole:
        raise UsageError(
            f"{place.shown}: is one shard, and no dataset; leave out {' and '.join(whole)}"
        )
    if not place.lone and "shard" not in given and {"block", "row"} & given.keys():
        raise UsageError("--block and --row need --shard, or the file of a shard")
    if "save" in given and not _CHOICES & given.keys():
        raise UsageError("--save writes samples; say which: --key, --row, --where or --head")
    chosen = next((name for name in _BESIDE if name in given), "lone" if place.lone else "whole")
    used = {chosen, "generation", *_BESIDE[chosen].split()}
    if "shard" in given:  # it is of one split
        used.discard("split")
    if "images" in given and "save" not in given:
        used.discard("columns")
    if _DRAWN & given.keys():
        used.add("no_annotations")
    if idle := [_option(name) for name in given if name not in used]:
        beside = " and ".join(_option(name) for name in given if name in used)
        why = f" beside {beside}" if beside else " alone"
        raise UsageError(f"leave out {' and '.join(idle)}, without effect{why}")


_OF_DATASETS = ("shard", "key", "split", "html", "open", "diff", "history", "files", "generation")

_BESIDE = {
    "diff": "",
    "history": "",
    "files": "split",
    "html": "open images split",
    "open": "html images split",
    "key": "save images columns",
    "row": "save images columns shard block",
    "where": "save images columns split shard head",
    "head": "save images columns split shard",
    "images": "split shard",
    "columns": "split shard",
    "shard": "block stats",
    "lone": "block stats",
    "whole": "split stats",
}
"""What else has an effect beside each option that decides what is shown; the first one that is
given does. The last two: a shard on its own, and a dataset."""


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


DIGITS = 12
"""Digits of a digest that are printed."""


def _show_files(place: DatasetLocation, split: str | None, output: Output) -> None:
    from shardctl.format.manifest import Manifest
    from shardctl.format.names import MANIFEST, UPDATE
    from shardctl.format.tables import ShardTable

    manifest, table = Manifest.load(place.folder), ShardTable(place.folder)
    numbers = manifest.shards_of(split, place.shown)
    names = list(table.paths[numbers.start : numbers.stop])
    if split is None:
        names += sorted([*manifest.files, *([UPDATE] if manifest.update else [])])
        names += [MANIFEST] if manifest.places.tables else []
    paths = [manifest.places.of(name) for name in names] + [MANIFEST] * (split is None)
    output.show({"files": paths}, map(printable, paths))


def _show_history(place: DatasetLocation, output: Output) -> None:
    from shardctl.format.manifest import Manifest

    manifest = Manifest.load(place.folder)
    present, kept = manifest.generation, [each.number for each in manifest.kept]
    generations = manifest.history or (present,)
    places = {**dict.fromkeys(kept, "kept"), present.number: "present"}
    listed = [{**each.to_json(), "there": each.number in places} for each in generations]
    names = ("number", "created", "command", "added", "removed", "changed", "samples", "shards")
    rows = [
        (*attrgetter(*names)(each), each.digest[:DIGITS], places.get(each.number, ""))
        for each in generations
    ]
    header = ("", "made", "by", *names[3:], "digest", "")
    output.show({"generations": listed}, table_lines(rows, header))


def _show_shard(place: DatasetLocation, given: Given, output: Output) -> None:
    from shardctl.inspection.content.overview import describe_shard, find_shard, shard_report

    name = place.lone or find_shard(place.folder, given["shard"]).path
    found = describe_shard(place.folder, name, check=bool({"stats", "block"} & given.keys()))
    if "block" in given:
        block, count = given["block"], len(found.blocks)
        if not 0 <= block < count:
            raise UsageError(f"{name}: no block {block:,}; it has {counted(count, 'block')}")
        found = replace(found, blocks=(found.blocks[block],))
    output.show(found, report_lines(shard_report(found)))


def _show_differences(a: DatasetLocation, b: DatasetLocation, output: Output) -> int:
    from shardctl.inspection.content.differences import differences
    from shardctl.system.progress import counting

    with counting(output.shows_progress, "samples", "comparing") as report:
        found = differences(a, b, report)
    record = {**asdict(found), "same_samples": found.same_samples}
    output.show(record, differences_lines(found, a.shown, b.shown))
    return 0 if found.same_samples else 1


def differences_lines(found: Differences, a: str, b: str) -> Iterator[str]:
    """Yield what differs between two datasets, named `a` and `b`."""
    names = ("", a, b)
    if found.settings:
        yield "settings:"
        rows = ((pair.name, *_apart(pair.a, pair.b)) for pair in found.settings)
        yield from table_lines(rows, names)
    if found.fields:
        yield "fields:"
        rows = ((pair.name, pair.a or "-", pair.b or "-") for pair in found.fields)
        yield from table_lines(rows, names)
    of_each = f"{found.samples.a:,} in {a}, {found.samples.b:,} in {b}"
    yield f"samples: {of_each}, {found.in_both:,} in both"
    for where, count, examples in (
        (a, found.only_in_a, found.only_in_a_examples),
        (b, found.only_in_b, found.only_in_b_examples),
    ):
        if count:
            yield f"  {count:,} only in {where}: {_some(examples, count)}"
    if found.changed:
        fields = ", ".join(f"{name} ({count:,})" for name, count in found.changed_fields.items())
        some = _some([c.key for c in found.changed_examples], found.changed)
        yield f"  {found.changed:,} differ, in {fields}: {some}"
    if found.same_samples:
        yield "the same samples, with the same values"


_WIDTH = 40
"""Characters that a value may have in a table of differences."""


def _apart(a: Any, b: Any) -> tuple[str, str]:
    """Return two different values; long ones are cut to the part that starts shortly before the
    first difference."""
    texts = _setting(a), _setting(b)
    if max(map(len, texts)) <= _WIDTH:
        return texts
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
    start = max(0, same - _WIDTH // 4)
    first, second = ("…" * (start > 0) + shortened(text[start:], _WIDTH) for text in texts)
    return first, second


def _setting(value: Any) -> str:
    """Return a setting as text: a list as its names one after the other, "-" for a missing one."""
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return printable(", ".join(value))
    return "-" if value is None else printable(value)


def _some(keys: Any, count: int) -> str:
    shown = ", ".join(printable(key) for key in keys)
    return f"{shown}, …" if count > len(keys) else shown


SHOWN_FAULTS = 10


def foreign_lines(path: str, found: ForeignOverview) -> Iterator[str]:
    """Yield what is in them."""
    formats = ", ".join(f"{count:,} {name}" for name, count in found.formats.items())
    records = f"{counted(found.records, 'record')} in {counted(found.files, 'file')} ({formats})"
    yield f"{printable(path)}: {records}, {format_bytes(found.bytes)}"
    for notice in found.notices:
        note(notice)
    rows = [
        (printable(name), type_, _classes(found.classes.get(name))) for name, type_ in found.schema
    ]
    if rows:
        yield "fields:"
        yield from table_lines(rows, ("field", "type", ""))
    if found.first:
        yield "first records:"
        names = list(dict.fromkeys(name for record in found.first for name in record))
        cells = ([_shown(record.get(name)) for name in names] for record in found.first)
        yield from table_lines(cells, list(map(printable, names)))
    for place, message in list(found.faults.items())[:SHOWN_FAULTS]:
        yield f"error: {printable(place)}: {printable(message)}"
    if len(found.faults) > SHOWN_FAULTS:
        more = f"{len(found.faults) - SHOWN_FAULTS:,} more errors"
        yield f"{more}; `shardctl verify` names all of them"


def without_bytes(value: Any) -> Any:
    """Return a value for JSON: how many bytes there are, in the place of bytes."""
    if isinstance(value, dict):
        return {name: without_bytes(part) for name, part in value.items()}
    if isinstance(value, list):
        return [without_bytes(part) for part in value]
    return {"bytes": len(value)} if isinstance(value, bytes) else value


def _classes(names: list[str] | None) -> str:
    return (
        f"{counted(len(names), 'class', 'classes')}: {shortened(', '.join(names))}" if names else ""
    )


def _shown(value: Any) -> str:
    return (
        f"{format_bytes(len(value))} of bytes"
        if isinstance(value, bytes)
        else shortened(str(value))
    )
