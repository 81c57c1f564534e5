"""`shardctl inspect`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardctl.cli.command import PATH, command, option, path_argument
from shardctl.cli.output import (
    Output,
    check_outputs,
    note,
    open_option,
    open_page,
    progress_options,
    report_lines,
    shortened,
    write_page,
)
from shardctl.cli.show import SHOWN_TOKENS, differences_lines, sample_report, texts_report
from shardctl.errors import UsageError
from shardctl.system.machine import quick_imports
from shardctl.system.report import Section, table_lines
from shardctl.system.text import counted, printable

if TYPE_CHECKING:
    from shardctl.format.dataset_location import DatasetLocation
    from shardctl.format.tables import ShardEntry
    from shardctl.inspection.content.blocks import StoredSample
    from shardctl.inspection.content.tokens import Decoder

Given = dict[str, Any]
"""The options that were given, by their names."""

CHOICE = "What is shown"
CONTENT = "Numbers, history, differences"
FILES = "Files that are written"
OUTPUT = "What is printed"

choice_option = partial(option, heading=CHOICE)
content_option = partial(option, heading=CONTENT)
files_option = partial(option, heading=FILES)

SHOWN_MATCHES = 20
SHOWN_FIRST = 10

SHOWN_BLOCKS = 20
"""Blocks of tokens of one document that are printed."""

PICTURES = 64


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
    given = {
        name: value
        for name, value in given.items()
        if value is not None and value is not False and (name, value) != ("columns", "")
    }
    if "columns" in given:
        given["columns"] = given["columns"].split(",")
    if is_foreign(path):
        return _show_foreign(path, given, output)
    with open_location(target, "blocks", generation=given.get("generation")) as place:
        return _show(place, given, output)


def _show(place: DatasetLocation, given: Given, output: Output) -> int:
    """Show what is in a dataset or a shard."""
    from shardctl.format.dataset_location import open_location, refuse_part_of_dataset

    refuse_part_of_dataset(place)
    _check_options(place, given)
    if "diff" in given:
        with open_location(given["diff"], "blocks") as other:
            return _show_differences(place, other, output)
    if "files" in given:
        _show_files(place, given.get("split"), output)
    elif "history" in given:
        _show_history(place, output)
    elif _WRITTEN & given.keys():
        _write_files(place, given, output)
    elif {"key", "row"} & given.keys():
        _print_records(place, given, output)
    elif {"where", "head", "columns"} & given.keys():
        _print_samples(place, given, output)
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
    from shardctl.cli.show import foreign_lines, without_bytes
    from shardctl.interop.foreign_shards import look

    drawn = _DRAWN & given.keys()
    known = {*_DRAWN, "no_annotations"} if drawn else {"head"}
    if idle := [_option(name) for name in given if name not in known]:
        who = f"{' and '.join(idle)} {'needs' if len(idle) == 1 else 'need'}"
        raise UsageError(
            f"{printable(path)}: is of another tool; {who} a dataset of shardctl: convert it"
        )
    if drawn:
        _draw_foreign(path, given, output)
        return 0
    found = look(path, given.get("head", FIRST_OF_OTHERS))
    record = replace(found, first=[without_bytes(record) for record in found.first])
    output.show(record, foreign_lines(str(path), found))
    return 1 if found.faults else 0


def _draw_foreign(path: Path, given: Given, output: Output) -> None:
    """Draw some records from all over shards of another tool, as the dataset that a conversion
    makes of them."""
    from shardctl.format.dataset_folder import dataset_in
    from shardctl.format.dataset_location import DatasetLocation
    from shardctl.making.sampling import convert_some
    from shardctl.system.scratch import scratch_folder

    with scratch_folder() as scratch:
        root, records, made = convert_some(path, MOST_OF_OTHERS, scratch)
        origin = f"{made.samples:,} of the {counted(records, 'record')} of {path}"
        _write_files(DatasetLocation(dataset_in(root)), {**given, "origin": origin}, output)


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
            f"{place.shown}: is one shard; {' and '.join(whole)} are for a whole dataset"
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
        beside = [_option(name) for name in given if name in used]
        raise UsageError(
            f"{' and '.join(beside + idle)} contradict each other; leave out {' and '.join(idle)}"
        )


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


def _chosen_shard(place: DatasetLocation, given: Given) -> tuple[str, ShardEntry | None]:
    """Return the name of the chosen shard, and its entry in the dataset's table (None for a shard
    on its own)."""
    from shardctl.inspection.content.overview import find_shard

    if place.lone:
        return place.lone, None
    entry = find_shard(place.folder, given["shard"])
    return entry.path, entry


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
        own = [*manifest.files, *([UPDATE] if manifest.update else [])]
        copy = [MANIFEST] if manifest.places.tables else []
        names += [*sorted(own), *copy]
    paths = [manifest.places.of(name) for name in names] + [MANIFEST] * (split is None)
    output.show({"files": paths}, map(printable, paths))


def _show_history(place: DatasetLocation, output: Output) -> None:
    from shardctl.format.manifest import Manifest

    manifest = Manifest.load(place.folder)
    present, kept = manifest.generation, [each.number for each in manifest.kept]
    generations = manifest.history or (present,)
    there = [*kept, present.number]
    listed = [{**each.to_json(), "there": each.number in there} for each in generations]
    names = ("number", "created", "command", "added", "removed", "changed", "samples", "shards")
    places = {**dict.fromkeys(kept, "kept"), present.number: "present"}
    rows = [
        (*attrgetter(*names)(each), each.digest[:DIGITS], places.get(each.number, ""))
        for each in generations
    ]
    header = ("", "made", "by", *names[3:], "digest", "")
    output.show({"generations": listed}, table_lines(rows, header))


def _show_shard(place: DatasetLocation, given: Given, output: Output) -> None:
    from shardctl.inspection.content.overview import describe_shard, shard_report

    name, _ = _chosen_shard(place, given)
    found = describe_shard(place.folder, name, check=bool({"stats", "block"} & given.keys()))
    if "block" in given:
        block, count = given["block"], len(found.blocks)
        if not 0 <= block < count:
            raise UsageError(f"{name}: no block {block:,}; it has {counted(count, 'block')}")
        found = replace(found, blocks=(found.blocks[block],))
    output.show(found, report_lines(shard_report(found)))


def _write_files(place: DatasetLocation, given: Given, output: Output) -> None:
    """Write the requested outputs: samples as files, a contact sheet, a page. Samples are read one
    at a time."""
    from shardctl.inspection.content.images import save

    written: dict[str, Any] = {}
    said = []
    check_outputs(given.get("html"), given.get("images"))
    if "save" in given:
        decoder = _decoder(place, given, whole=True)
        records = decoder.decoded(_records(place, given))
        files = save(records, Path(given["save"]), given.get("columns"))
        written["files"] = [str(path) for path in files]
        what = f"{counted(len(files), 'file')} written to {printable(given['save'])}"
        said.append(what if files else _no_match(given))
        _say_why_numbers(decoder)
    if "images" in given:
        count = _draw(place, _records(place, given), given)
        written |= {"file": given["images"], "sheet": given["images"], "images": count}
        said.append(f"{counted(count, 'image')} drawn to {printable(given['images'])}")
    if {"html", "open"} & given.keys():
        from shardctl.inspection.pages.dataset import dataset_page

        marked = "no_annotations" not in given
        content = dataset_page(place, given.get("split"), marked, given.get("origin"))
        page = write_page(content, given.get("html"), "inspect")
        written |= {"file": page, "page": page}
        said.append(f"page written to {printable(page)}")
    output.show(written, said)
    if "open" in given:
        open_page(written["page"])


def _records(place: DatasetLocation, given: Given) -> Iterator[StoredSample]:
    from shardctl.inspection.content.blocks import some_samples
    from shardctl.inspection.content.samples import head, matching, sample_at, samples_of_key

    if "key" in given:
        return iter(samples_of_key(place.folder, given["key"]))
    if "row" in given:
        name, entry = _chosen_shard(place, given)
        return iter([sample_at(place.folder, name, given.get("block"), given["row"], entry)])
    within, split = place, given.get("split")
    if "shard" in given:
        within = place._replace(lone=_chosen_shard(place, given)[0])
    if "where" in given:
        return islice(matching(within, split, given["where"]), given.get("head"))
    if {"head", "columns"} & given.keys():
        return head(within, split, given.get("head", SHOWN_FIRST))
    return some_samples(within, split, PICTURES)


def _no_match(given: Given) -> str:
    """Return the message for the case that there is no sample."""
    where = given.get("where")
    return "there is no sample" if where is None else f"no sample matches {printable(where)}"


def _draw(place: DatasetLocation, records: Iterator[StoredSample], given: Given) -> int:
    """Draw records into a picture, and return how many images these are."""
    from shardctl.images.codecs.drawing import SHEET
    from shardctl.inspection.pages.pictures import picture_sheet, pictures_of

    shown, marked = list(islice(records, PICTURES)), "no_annotations" not in given
    if not shown:
        raise UsageError(f"{_no_match(given)}, and there is nothing to draw")
    if not shown[0].images:
        raise UsageError(
            f"{printable(given.get('origin') or place.shown)}: there are no images to draw"
        )
    pictures = [picture for record in shown for picture in pictures_of(record, marked)]
    SHEET.write(Path(given["images"]), picture_sheet(pictures))
    return len(pictures)


def _decoder(place: DatasetLocation, given: Given, whole: bool) -> Decoder:
    """Return what turns the tokens of the shown columns into text: all of it, or as much as is
    shown."""
    from shardctl.inspection.content.tokens import Decoder

    return Decoder(place.folder, None if whole else SHOWN_TOKENS, given.get("columns"))


def _say_why_numbers(decoder: Decoder) -> None:
    if decoder.why_not is not None:
        note(f"tokens are shown as numbers only: {printable(decoder.why_not)}")


def _print_records(place: DatasetLocation, given: Given, output: Output) -> None:
    from shardctl.inspection.content.samples import MOST_BLOCKS

    decoder = _decoder(place, given, output.as_json or output.verbose)
    records = list(decoder.decoded(_records(place, given)))
    shown = [_plain_record(record, given.get("columns")) for record in records]
    _say_why_numbers(decoder)
    sections: list[Section] = []
    for record, shown_record in list(zip(records, shown, strict=True))[:SHOWN_BLOCKS]:
        values = shown_record["values"]
        sections += sample_report(record, values, given.get("key"), output.verbose)
    if len(records) > SHOWN_BLOCKS:
        most = "at least " if len(records) >= MOST_BLOCKS else ""
        left_out = f"{most}{len(records) - SHOWN_BLOCKS:,}"
        sections.append(Section(f"and {left_out} more (--json has {len(records):,})"))
    output.show({**shown[0], "records": shown}, report_lines(sections))


def _plain_record(record: StoredSample, columns: list[str] | None) -> dict[str, Any]:
    """Return a record as plain data; the roles of its fields are those of the dataset, and say
    nothing of it."""
    known = {name: value for name, value in vars(record).items() if name not in ("roles", "texts")}
    from shardctl.inspection.content.samples import plain_values

    documents = [{**asdict(piece), "cut": piece.cut} for piece in record.documents]
    return {
        **known,
        "documents": documents,
        "images": record.images,
        "class_names": record.class_names,
        "label_name": record.label_name,
        "values": plain_values(record, columns),
    }


def _print_samples(place: DatasetLocation, given: Given, output: Output) -> None:
    """Print the first of some samples; with a condition, also how many match it, if all were
    checked."""
    from shardctl.inspection.content.samples import in_words, plain_values

    records = _records(place, given)
    decoder = _decoder(place, given, output.as_json or output.verbose)
    limit, conditional = given.get("head"), "where" in given
    most = limit or (SHOWN_MATCHES if conditional else SHOWN_FIRST)
    first = list(decoder.decoded(islice(records, most)))
    _say_why_numbers(decoder)
    shown = [plain_values(record, given.get("columns")) for record in first]
    complete = limit is None or len(shown) < limit
    count = len(shown) + sum(1 for _ in records)
    plain: dict[str, Any] = {"matches": count if complete else None} if conditional else {}

    def lines() -> Iterator[str]:
        if not shown:
            yield _no_match(given)
            return
        rows = [in_words(sample, record) for sample, record in zip(shown, first, strict=True)]
        cells = [[shortened(value, 40) for value in row.values()] for row in rows]
        yield from table_lines(cells, list(rows[0]))
        for record, sample in zip(first if output.verbose else (), shown, strict=False):
            if record.texts or record.documents:
                yield f"{printable(record.values.get('key'))}:"
                yield from report_lines(texts_report(record, sample, None, whole=True))
        if conditional and limit is None:
            matching = f"{counted(count, 'sample')} {'matches' if count == 1 else 'match'}"
            yield f"{matching}{f'; the first {most} are shown' if count > most else ''}"

    output.show({**plain, "samples": shown}, lines())


def _show_differences(a: DatasetLocation, b: DatasetLocation, output: Output) -> int:
    from shardctl.inspection.content.differences import differences
    from shardctl.system.progress import counting

    with counting(output.shows_progress, "samples", "comparing") as report:
        found = differences(a, b, report)
    record = {**asdict(found), "same_samples": found.same_samples}
    output.show(record, differences_lines(found, a.shown, b.shown))
    return 0 if found.same_samples else 1
