"""`shardctl inspect`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardctl.cli.output import Output, counted, counting, output_options, print_json, print_reasons, print_table
from shardctl.errors import UsageError
from shardctl.manifest import refuse_part_of_dataset
from shardctl.startup import keep_pandas_out_of_arrow
from shardctl.storage import format_bytes, is_file, printable

if TYPE_CHECKING:
    from shardctl.inspection.blocks import Record
    from shardctl.inspection.differences import Differences
    from shardctl.inspection.overview import Overview
    from shardctl.inspection.shards import ShardOverview
    from shardctl.inspection.statistics import Statistics

SHOWN_CLASSES = 12
SHOWN_MATCHES = 20
SHOWN_FIRST = 10

TEXT_WIDTH = 100
PICTURES = 64
ALL_BLOCKS = 1024
"""Blocks from which --stats takes lengths and sizes."""

_BARS = " ▁▂▃▄▅▆▇█"


@click.command()
@click.argument("target", metavar="DST|SHARD", type=click.Path())
@click.option("--split", metavar="NAME", help="Only this split, for instance val: alone, or with the options below.")
@click.option("--shard", metavar="NAME|N", help="One shard of the dataset, by its file name or its number.")
@click.option("--block", type=int, metavar="N", help="One block of the shard; blocks are counted from 0.")
@click.option("--row", type=int, metavar="N", help="One sample of the shard, or of its --block; rows are counted from 0.")
@click.option("--key", metavar="KEY", help="The sample with this key: the path of the input from which it was made.")
@click.option("--where", metavar="CONDITION", help="The samples that match a condition, as in 'label == 3 and width > 500'.")
@click.option("--head", type=click.IntRange(1), metavar="N", help="The first N samples; with --where the first N that match.")
@click.option("--columns", metavar="A,B", help="Show or save only these columns. Alone: of the first 10 samples.")
@click.option(
    "--stats",
    is_flag=True,
    help="Read all shards, not only a few blocks: exact bytes by column; with --shard, also check the checksums of its blocks.",
)
@click.option(
    "--save", type=click.Path(), metavar="DIR", help="Write the samples of --key, --row, --where or --head as ordinary files."
)
@click.option(
    "--images",
    type=click.Path(),
    metavar="FILE",
    help="Draw up to 64 of the chosen samples into one PNG file; if none are chosen, samples from all over the dataset.",
)
@click.option(
    "--html", type=click.Path(), metavar="FILE", help="Write an HTML page with charts, samples and rejects of the dataset."
)
@click.option(
    "--diff", type=click.Path(), metavar="DST", help="Compare with another dataset; exit code 1 where samples differ."
)
@output_options
def inspect(target: str, output: Output, **given: Any) -> int:
    """Show what is in a dataset, in a split, in a shard, in one block or in one sample.

    \b
      shardctl inspect out                                     sizes, splits, classes, lengths, rejects
      shardctl inspect out --split val                         the same of one split
      shardctl inspect out --key cat/001.jpg                   one sample, with its shard, block and source
      shardctl inspect out --shard 3 --block 0 --row 12        the same sample by its position
      shardctl inspect out/train-00003-of-00016.arrow          a single shard; the rest of the dataset is not needed
      shardctl inspect out --head 5 --columns key,label
      shardctl inspect out --where 'label == "cat" and width > 500' --save cats --images cats.png
      shardctl inspect out --html out.html                     a page to browse
      shardctl inspect out --diff out2                         compare two datasets

    A condition may use the columns, and width, height, image_bytes, split, shard, row and index; == != < <= > >= in, is None,
    and, or, not, + - * /, len(column), lower(column), contains(column, "part"), startswith, endswith. If no sample
    matches, a message says so, and the exit code is 0.
    """
    keep_pandas_out_of_arrow()
    path = Path(target)
    given["columns"] = given["columns"].split(",") if given["columns"] else None
    refuse_part_of_dataset(path)
    _check_options(target, given)
    if given["diff"] is not None:
        return _show_differences(path, Path(given["diff"]), output)
    if any(given[name] is not None for name in ("save", "images", "html")):
        _write_files(path, given, output.as_json)
    elif given["key"] is not None or given["row"] is not None:
        _print_records(list(_records(path, given)), given["columns"], output.as_json)
    elif any(given[name] is not None for name in ("where", "head", "columns")):
        _print_samples(_records(path, given), given, output.as_json)
    elif given["shard"] is not None or is_file(path):
        _show_shard(path, given, output.as_json)
    else:
        _show_dataset(path, given["split"], given["stats"], output.as_json)
    return 0


_CHOICES = ("key", "row", "where", "head")
"""The options that choose samples."""


def _check_options(target: str, given: dict[str, Any]) -> None:
    """Raise UsageError for options that would have no effect together with the others: no option is silently ignored."""
    lone = is_file(Path(target))
    whole = [f"--{name}" for name in ("shard", "key", "split", "html", "diff") if given[name] is not None]
    if lone and whole:
        raise UsageError(f"{printable(target)}: is one shard; {' and '.join(whole)} are for a whole dataset")
    if not lone and given["shard"] is None and (given["block"] is not None or given["row"] is not None):
        raise UsageError("--block and --row need --shard, or the file of a shard")
    if given["save"] is not None and all(given[name] is None for name in _CHOICES):
        raise UsageError("--save writes samples; say which: --key, --row, --where or --head")
    there = [name for name, value in given.items() if value is not None and value is not False]
    used = _used(lone, given)
    idle = [f"--{name}" for name in there if name not in used]
    if idle:
        beside = [f"--{name}" for name in there if name in used]
        raise UsageError(f"{' and '.join(beside + idle)} contradict each other; leave out {' and '.join(idle)}")


def _used(lone: bool, given: dict[str, Any]) -> set[str]:
    """Return the options that have an effect beside the others that are given."""
    choice = next((name for name in _CHOICES if given[name] is not None), None)
    place = "split" if given["shard"] is None else "shard"  # a shard is of one split
    if given["diff"] is not None:
        return {"diff"}
    if given["html"] is not None:
        return {"html", "images", "split"}
    if choice is not None:
        where = {"key": set[str](), "row": {"shard", "block"}, "where": {place, "head"}, "head": {place}}[choice]
        drawn = given["images"] is not None and given["save"] is None
        return {choice, "save", "images", *where} | (set() if drawn else {"columns"})
    if given["images"] is not None:
        return {"images", place}
    if given["columns"] is not None:
        return {"columns", place}
    return {"shard", "block", "stats"} if lone or given["shard"] is not None else {"split", "stats"}


def _shard_path(target: Path, given: dict[str, Any]) -> tuple[Path, Any]:
    """Return the file of the chosen shard, and its entry in the dataset's table (None for a shard on its own)."""
    from shardctl.inspection.shards import find_shard

    if is_file(target):
        return target, None
    entry = find_shard(target, given["shard"])
    return target / entry.path, entry


def _show_dataset(root: Path, split: str | None, stats: bool, as_json: bool) -> None:
    from shardctl.inspection.overview import overview
    from shardctl.inspection.shards import column_bytes
    from shardctl.inspection.statistics import BLOCKS, statistics_of

    found = overview(root, split)
    statistics = statistics_of(root, ALL_BLOCKS if stats else BLOCKS, split)
    columns = column_bytes(root, split) if stats else None
    if as_json:
        more = {"column_bytes": columns} if columns else {}
        print_json({**found.record(), "statistics": statistics.record(), **more})
        return
    _print_overview(root, found, statistics)
    if columns:
        click.echo("bytes of each column in all shards, uncompressed:")
        print_table([(name, size) for name, size in columns.items()])


def _print_overview(root: Path, found: Overview, statistics: Statistics) -> None:
    m = found.manifest
    took = f" in {m.seconds:,.1f} s" if m.seconds is not None else ""
    of_split = f"split {found.split} of " if found.split else ""
    size = f"{counted(found.samples, f'{m.kind} sample')} in {counted(found.shards, 'shard')}, {format_bytes(found.bytes)}"
    click.echo(f"{of_split}{printable(str(root))}: {size}")
    click.echo(f"  made {m.created}{took} by shardctl {m.shardctl_version} from {', '.join(printable(s) for s in m.sources)}")
    low, median, high = (format_bytes(size) for size in found.shard_bytes)
    click.echo(f"  shards: {low} to {high}, {median} at the median; {found.compressed}")
    click.echo(f"  recipe: {_recipe_line(m.recipe)}")
    click.echo(f"  fingerprint: {m.fingerprint}")
    click.echo("splits:")
    print_table(
        [(s.name, s.samples, s.shards, format_bytes(s.bytes)) for s in found.splits], ("split", "samples", "shards", "size")
    )
    _print_statistics(statistics, m.fields)
    _print_classes(found)
    if m.rejected:
        everywhere = " (of all splits)" if found.split else ""
        click.echo(f"rejected: {m.rejected:,} of {counted(m.inputs, 'input')}{everywhere}, in rejects.jsonl")
        print_reasons(found.reasons, found.rejects)


def _print_statistics(statistics: Statistics, fields: dict[str, Any]) -> None:
    if statistics.faults:
        click.echo(f"DAMAGED: {len(statistics.faults)} of the blocks looked at; run shardctl verify. {statistics.faults[0]}")
    if not statistics.columns:
        return
    click.echo(f"columns, average bytes in a sample (of {statistics.samples:,} samples):")
    rows = [
        (c.name, f"{c.raw_bytes:,.1f}", f"{c.stored_bytes:,.1f}", _column_type(c.name, c.type, fields))
        for c in statistics.columns
    ]
    print_table(rows, ("column", "uncompressed", "stored", "type"))
    for spread in statistics.distributions:
        if spread.low == spread.high:
            continue
        histogram = "".join(_BARS[-(-8 * count // max(spread.counts))] for count in spread.counts)
        click.echo(f"  {spread.what}: {spread.low:,.0f} to {spread.high:,.0f}, {spread.median:,.0f} at the median  {histogram}")
    if statistics.formats:
        formats = ", ".join(f"{name} {count:,}" for name, count in statistics.formats.items())
        click.echo(f"  image formats (of {sum(statistics.formats.values()):,} images): {formats}")


def _print_classes(found: Overview) -> None:
    totals = found.class_totals
    if not totals or found.classes is None:
        return
    click.echo(f"classes: {len(totals):,}, {min(totals.values()):,} to {max(totals.values()):,} samples each")
    splits = list(found.classes) if len(found.classes) > 1 else []
    rows = [
        (name, count, *(found.classes[split].get(name, 0) for split in splits))
        for name, count in sorted(totals.items(), key=lambda item: -item[1])[:SHOWN_CLASSES]
    ]
    print_table(rows, ("class", "samples", *splits))
    if len(totals) > SHOWN_CLASSES:
        click.echo(f"  and {len(totals) - SHOWN_CLASSES:,} more (--json has all)")


def _recipe_line(recipe: dict[str, Any]) -> str:
    steps = []
    for step in recipe["transform"]:
        settings = ", ".join(f"{name} {value}" for name, value in step.items() if name != "name")
        steps.append(f"{step['name']} ({settings})")
    store = [f"store {recipe['store']}"] if recipe["store"] else []
    return ", ".join([*steps, *store, f"compression {recipe['compression']}"])


def _column_type(name: str, type_: str, fields: dict[str, Any]) -> str:
    about = fields.get(name, {})
    if name == "image" and about:
        shape = "x".join(str(side) for side in about["shape"]) if about["shape"] else "of different sizes"
        return f"{about['store']} image, {shape}"
    return f"{type_} ({counted(len(about['names']), 'class', 'classes')})" if "names" in about else type_


def _show_shard(target: Path, given: dict[str, Any], as_json: bool) -> None:
    from shardctl.inspection.shards import describe_shard

    path, _ = _shard_path(target, given)
    found = describe_shard(path, check=given["stats"] or given["block"] is not None)
    if given["block"] is not None:
        found = _only_block(found, given["block"])
    if as_json:
        print_json(found)
        return
    click.echo(
        f"{found.name}: {counted(found.samples, 'sample')} of split {found.split} in {counted(len(found.blocks), 'block')},"
        f" {format_bytes(found.bytes)}, {format_bytes(found.raw_bytes)} uncompressed"
    )
    click.echo("columns:")
    print_table(
        [(name, found.column_bytes.get(name, 0), type_) for name, type_ in found.columns],
        ("column", "uncompressed bytes", "type"),
    )
    click.echo("blocks:")
    rows = [
        (b.block, b.rows, b.raw_bytes, b.checksum, {None: "not checked", True: "holds", False: "DIFFERS"}[b.intact])
        for b in found.blocks
    ]
    print_table(rows, ("block", "rows", "uncompressed bytes", "checksum", ""))


def _only_block(found: ShardOverview, block: int) -> ShardOverview:
    if not 0 <= block < len(found.blocks):
        raise UsageError(f"{found.name}: no block {block}; it has {len(found.blocks)}")
    return replace(found, blocks=(found.blocks[block],))


def _write_files(target: Path, given: dict[str, Any], as_json: bool) -> None:
    """Write the requested outputs: samples as files, a contact sheet, a page. Samples are read one at a time."""
    written: dict[str, Any] = {}
    if given["html"] is not None:
        from shardctl.report.charts import require_plotly

        require_plotly()  # before the other files are written
    if given["save"] is not None:
        written |= _save(_records(target, given), given, as_json)
    if given["images"] is not None:
        written |= _draw(target, _records(target, given), given, as_json)
    if given["html"] is not None:
        written |= _write_page(target, given, as_json)
    if as_json:
        print_json(written)


def _records(target: Path, given: dict[str, Any]) -> Iterator[Record]:
    from shardctl.inspection.blocks import some_records
    from shardctl.inspection.records import head, matching, record_at, record_of_key

    if given["key"] is not None:
        return iter(record_of_key(target, given["key"]))
    if given["row"] is not None:
        path, entry = _shard_path(target, given)
        return iter([record_at(path, given["block"], given["row"], entry)])
    within = _shard_path(target, given)[0] if given["shard"] is not None else target
    if given["where"] is not None:
        return islice(matching(within, given["split"], given["where"]), given["head"])
    if given["head"] is not None or given["columns"] is not None:
        return head(within, given["split"], given["head"] or SHOWN_FIRST)
    return some_records(within, given["split"], PICTURES)


def _save(records: Iterator[Record], given: dict[str, Any], as_json: bool) -> dict[str, Any]:
    from shardctl.inspection.saving import save

    written = save(records, Path(given["save"]), given["columns"])
    if not as_json:
        said = f"{counted(len(written), 'file')} written to {printable(given['save'])}" if written else _no_match(given)
        click.echo(said)
    return {"files": [str(path) for path in written]}


def _no_match(given: dict[str, Any]) -> str:
    """Return the message for the case that there is no sample."""
    return "there is no sample" if given["where"] is None else f"no sample matches {printable(given['where'])}"


def _draw(target: Path, records: Iterator[Record], given: dict[str, Any], as_json: bool) -> dict[str, Any]:
    from shardctl.report.dataset import picture_sheet
    from shardctl.report.page import write_file
    from shardctl.shard import ShardReader

    path, shown = Path(given["images"]), list(islice(records, PICTURES))
    if not shown:
        raise UsageError(f"{_no_match(given)}, and there is nothing to draw")
    where = target if target.is_file() else target / shown[0].shard
    if "image" not in shown[0].values:
        raise UsageError(f"{printable(str(target))}: its samples have no images to draw")
    classes = ShardReader(where).layout.classes
    write_file(path, picture_sheet(iter(shown), list(classes) if classes else None))
    if not as_json:
        click.echo(f"{counted(len(shown), 'image')} drawn to {printable(str(path))}")
    return {"file": str(path), "sheet": str(path), "images": len(shown)}


def _print_records(records: list[Record], columns: list[str] | None, as_json: bool) -> None:
    shown = [{**vars(record), "values": _plain_sample(record, columns)} for record in records]
    if as_json:
        print_json({**shown[0], "records": shown})
        return
    for record in shown:
        click.echo(
            f"{record['shard']}, block {record['block']}, row {record['row']}"
            + (f", sample {record['index']} of the dataset" if record["index"] is not None else "")
        )
        click.echo(f"  checksum of the block: {record['checksum']} {'holds' if record['intact'] else 'DIFFERS'}")
        if record["source"]:
            click.echo(f"  source: {printable(record['source'])}")
        print_table([(name, _short(value)) for name, value in _for_people(record["values"]).items()])


def _print_samples(records: Iterator[Record], given: dict[str, Any], as_json: bool) -> None:
    """Print the first of some samples; with a condition, also how many match it, if all were checked."""
    limit, conditional = given["head"], given["where"] is not None
    most = limit or (SHOWN_MATCHES if conditional else SHOWN_FIRST)
    shown = [_plain_sample(record, given["columns"]) for record in islice(records, most)]
    complete = limit is None or len(shown) < limit
    count = len(shown) + sum(1 for _ in records)
    if as_json:
        print_json({**({"matches": count if complete else None} if conditional else {}), "samples": shown})
        return
    if not shown:
        click.echo(_no_match(given))
        return
    rows = [_for_people(sample) for sample in shown]
    print_table([[_short(value, 40) for value in row.values()] for row in rows], list(rows[0]))
    if conditional and limit is None:
        matching = f"{counted(count, 'sample')} {'matches' if count == 1 else 'match'}"
        click.echo(f"{matching}{f'; the first {most} are shown' if count > most else ''}")


def _plain_sample(record: Record, columns: list[str] | None) -> dict[str, Any]:
    """Return a sample as plain data: for an image its format and size, not its bytes; after a label its name."""
    from shardctl.inspection.records import describe_value

    return {name: describe_value(value) for name, value in record.chosen_values(columns).items()}


def _for_people(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a sample for display: images in a few words, the name of the label in brackets after its number."""
    if "label" not in sample or "label_name" not in sample:
        return {name: _image_text(value) for name, value in sample.items()}
    rest = {name: _image_text(value) for name, value in sample.items() if name != "label_name"}
    return rest if sample["label_name"] is None else {**rest, "label": f"{sample['label']} ({sample['label_name']})"}


def _image_text(value: Any) -> Any:
    """Return the result of describe_value for an image in a few words; other values unchanged."""
    if not isinstance(value, dict):
        return value
    if set(value) == {"shape", "dtype", "mean"}:
        return f"{'x'.join(str(side) for side in value['shape'])} {value['dtype']}, mean {value['mean']}"
    if {"bytes", "path", "format", "size", "mode"} == set(value):
        return f"{value['format']} {value['size']} {value['mode']}, {value['bytes']:,} bytes"
    return value


def _short(value: Any, width: int = TEXT_WIDTH) -> str:
    text = printable(str(value))
    return text if len(text) <= width else text[: width - 1] + "…"


def _write_page(root: Path, given: dict[str, Any], as_json: bool) -> dict[str, Any]:
    from shardctl.report import dataset_page
    from shardctl.report.page import write_page

    write_page(Path(given["html"]), dataset_page(root, given["split"]))
    if not as_json:
        click.echo(f"page written to {printable(given['html'])}")
    return {"file": given["html"], "page": given["html"]}


def _show_differences(a: Path, b: Path, output: Output) -> int:
    from shardctl.inspection.differences import differences

    with counting("samples", output) as report:
        found = differences(a, b, report)
    if output.as_json:
        print_json({**asdict(found), "same_samples": found.same_samples})
    else:
        _print_differences(found, printable(str(a)), printable(str(b)))
    return 0 if found.same_samples else 1


def _print_differences(found: Differences, a: str, b: str) -> None:
    if found.settings:
        click.echo("settings:")
        print_table([(pair.name, *_apart(pair.a, pair.b)) for pair in found.settings], ("", a, b))
    if found.fields:
        click.echo("fields:")
        print_table([(pair.name, pair.a or "-", pair.b or "-") for pair in found.fields], ("", a, b))
    click.echo(f"samples: {found.samples.a:,} in {a}, {found.samples.b:,} in {b}, {found.in_both:,} in both")
    only = ((a, found.only_in_a, found.only_in_a_examples), (b, found.only_in_b, found.only_in_b_examples))
    for where, count, examples in only:
        if count:
            click.echo(f"  {count:,} only in {where}: {_some(examples, count)}")
    if found.changed:
        fields = ", ".join(f"{name} ({count:,})" for name, count in found.changed_fields.items())
        click.echo(f"  {found.changed:,} differ, in {fields}: {_some([c.key for c in found.changed_examples], found.changed)}")
    if found.same_samples:
        click.echo("the same samples, with the same values")


def _apart(a: Any, b: Any, width: int = 40) -> tuple[str, str]:
    """Return two different values; long ones are cut to the part that starts shortly before the first difference."""
    texts = _setting(a), _setting(b)
    if max(map(len, texts)) <= width:
        return texts
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
    start = max(0, same - width // 4)
    first, second = ("…" * (start > 0) + _short(text[start:], width) for text in texts)
    return first, second


def _setting(value: Any) -> str:
    """Return a setting as text: a list as its names one after the other, "-" for a missing one."""
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return printable(", ".join(value))
    return "-" if value is None else printable(str(value))


def _some(keys: Any, count: int) -> str:
    shown = ", ".join(printable(key) for key in keys)
    return f"{shown}, …" if count > len(keys) else shown
