"""`shardctl inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardctl.cli.output import Output, output_options, print_json, print_reasons, print_table
from shardctl.errors import UsageError
from shardctl.storage import format_bytes, printable

if TYPE_CHECKING:
    from shardctl.inspection import Overview, Record, ShardOverview

SHOWN_CLASSES = 12
TEXT_WIDTH = 100


@click.command()
@click.argument("target", metavar="DST|SHARD", type=click.Path())
@click.option("--split", metavar="NAME", help="With --head: samples of this split.")
@click.option("--shard", metavar="NAME|N", help="One shard of the dataset, by file name or number.")
@click.option("--block", type=int, metavar="N", help="One block of the shard.")
@click.option("--row", type=int, metavar="N", help="One sample, counted from the start of the block or of the shard.")
@click.option("--key", metavar="KEY", help="The sample made of this input.")
@click.option("--head", type=click.IntRange(1), metavar="N", help="The first N samples.")
@click.option("--columns", metavar="A,B", help="With --head, --row and --key: only these columns.")
@click.option("--stats", is_flag=True, help="Read every shard: sizes by column, checksums of a shard's blocks.")
@output_options
def inspect(target: str, output: Output, **given: Any) -> None:
    """Show what is in a dataset, a shard, a block, a row, or what became of an input.

    \b
      shardctl inspect out                                     the whole: sizes, splits, classes, rejects
      shardctl inspect out --key cat/001.jpg                   one sample, with its shard, block and source
      shardctl inspect out --shard 3 --block 0 --row 12        the same from the other end
      shardctl inspect out/train-00003-of-00016.arrow          a shard on its own, no manifest needed
      shardctl inspect out --head 5 --columns key,label
    """
    _check_options(target, given)
    columns = given["columns"].split(",") if given["columns"] else None
    if given["key"] is not None:
        _show_key(Path(target), given["key"], columns, output.as_json)
    elif given["row"] is not None:
        _show_row(Path(target), given, columns, output.as_json)
    elif given["head"] is not None:
        _show_head(Path(target), given, columns, output.as_json)
    elif given["shard"] is not None or Path(target).is_file():
        _show_shard(Path(target), given, output.as_json)
    else:
        _show_dataset(Path(target), given["stats"], output.as_json)


def _check_options(target: str, given: dict[str, Any]) -> None:
    lone = Path(target).is_file()
    if lone and (given["shard"] is not None or given["key"] is not None or given["split"] is not None):
        raise UsageError(f"{printable(target)}: is one shard; --shard, --key and --split are for a whole dataset")
    if not lone and given["shard"] is None and (given["block"] is not None or given["row"] is not None):
        raise UsageError("--block and --row need --shard, or the file of a shard")
    picks = [f"--{name}" for name in ("key", "row", "head") if given[name] is not None]
    if len(picks) > 1:
        raise UsageError(f"{' and '.join(picks)} contradict each other; give one of them")


def _shard_path(target: Path, given: dict[str, Any]) -> tuple[Path, Any]:
    """Return the file of the shard that is meant, and its entry in the dataset's table (None for a lone shard)."""
    from shardctl import inspection

    if target.is_file():
        return target, None
    entry = inspection.find_shard(target, given["shard"])
    return target / entry.path, entry


def _show_dataset(root: Path, stats: bool, as_json: bool) -> None:
    from shardctl import inspection

    found = inspection.overview(root)
    columns = inspection.column_bytes(root) if stats else None
    if as_json:
        print_json({**found.record(), **({"column_bytes": columns} if columns else {})})
        return
    _print_overview(root, found)
    if columns:
        click.echo("bytes by column, before compression:")
        print_table([(name, size) for name, size in columns.items()])


def _print_overview(root: Path, found: Overview) -> None:
    m = found.manifest
    click.echo(f"{printable(str(root))}: {m.samples:,} {m.kind} samples in {m.shards:,} shards, {format_bytes(m.bytes)}")
    click.echo(f"  made {m.created} by shardctl {m.shardctl_version} from {', '.join(printable(s) for s in m.sources)}")
    low, median, high = (format_bytes(size) for size in found.shard_bytes)
    compressed = "not compressed" if m.recipe["compression"] == "none" else f"compressed {found.ratio:.2f} to 1"
    click.echo(f"  shards: {low} to {high}, {median} at the median; {compressed}")
    click.echo(f"  recipe: {_recipe_line(m.recipe)}")
    click.echo(f"  fingerprint: {m.fingerprint}")
    click.echo("splits:")
    print_table(
        [(s.name, s.samples, s.shards, format_bytes(s.bytes)) for s in m.splits], ("split", "samples", "shards", "size")
    )
    click.echo("columns:")
    print_table([(name, _column_type(name, type_, m.fields)) for name, type_ in m.schema])
    if found.classes:
        counts = list(found.classes.items())
        click.echo(f"classes: {len(counts):,}, {min(found.classes.values()):,} to {max(found.classes.values()):,} samples each")
        print_table(sorted(counts, key=lambda item: -item[1])[:SHOWN_CLASSES])
        if len(counts) > SHOWN_CLASSES:
            click.echo(f"  and {len(counts) - SHOWN_CLASSES:,} more (--json has all)")
    if m.rejected:
        click.echo(f"rejected: {m.rejected:,} of {m.inputs:,} inputs, in rejects.jsonl")
        print_reasons(found.reasons, found.rejects)


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
    return f"{type_} ({len(about['names']):,} classes)" if "names" in about else type_


def _show_shard(target: Path, given: dict[str, Any], as_json: bool) -> None:
    from shardctl import inspection

    path, _ = _shard_path(target, given)
    found = inspection.describe_shard(path, check=given["stats"] or given["block"] is not None)
    if given["block"] is not None:
        found = _only_block(found, given["block"])
    if as_json:
        print_json(found)
        return
    ratio = found.raw_bytes / max(1, found.bytes)
    click.echo(
        f"{found.name}: {found.samples:,} samples of split {found.split} in {len(found.blocks):,} blocks,"
        f" {format_bytes(found.bytes)}, compressed {ratio:.2f} to 1"
    )
    click.echo("columns:")
    print_table([(name, found.column_bytes.get(name, 0), type_) for name, type_ in found.columns], ("column", "bytes", "type"))
    click.echo("blocks:")
    rows = [
        (b.block, b.rows, b.raw_bytes, b.checksum, {None: "not checked", True: "holds", False: "DIFFERS"}[b.intact])
        for b in found.blocks
    ]
    print_table(rows, ("block", "rows", "bytes", "checksum", ""))


def _only_block(found: ShardOverview, block: int) -> ShardOverview:
    from dataclasses import replace

    if not 0 <= block < len(found.blocks):
        raise UsageError(f"{found.name}: no block {block}; it has {len(found.blocks)}")
    return replace(found, blocks=(found.blocks[block],))


def _show_row(target: Path, given: dict[str, Any], columns: list[str] | None, as_json: bool) -> None:
    from shardctl import inspection

    path, entry = _shard_path(target, given)
    _print_records([inspection.record_at(path, given["block"], given["row"], entry)], columns, as_json)


def _show_key(root: Path, key: str, columns: list[str] | None, as_json: bool) -> None:
    from shardctl import inspection

    _print_records(inspection.record_of_key(root, key), columns, as_json)


def _print_records(records: list[Record], columns: list[str] | None, as_json: bool) -> None:
    shown = [{**vars(record), "values": _plain_sample(record.values, columns)} for record in records]
    if as_json:
        print_json(shown[0] if len(shown) == 1 else {"records": shown})
        return
    for record in shown:
        click.echo(
            f"{record['shard']}, block {record['block']}, row {record['row']}"
            + (f", sample {record['index']} of the dataset" if record["index"] is not None else "")
        )
        click.echo(f"  checksum of the block: {'holds' if record['intact'] else 'DIFFERS'}")
        if record["source"]:
            click.echo(f"  source: {printable(record['source'])}")
        print_table([(name, _short(value)) for name, value in record["values"].items()])


def _show_head(target: Path, given: dict[str, Any], columns: list[str] | None, as_json: bool) -> None:
    from shardctl import inspection

    if target.is_file() or given["shard"] is not None:
        path, _ = _shard_path(target, given)
        samples = inspection.shard_head(path, given["head"], columns)
    else:
        samples = inspection.head(target, given["split"], given["head"], columns)
    plain = [_plain_sample(sample, None) for sample in samples]
    if as_json:
        print_json({"samples": plain})
    elif plain:
        print_table([[_short(value, 40) for value in sample.values()] for sample in plain], list(plain[0]))


def _plain_sample(values: dict[str, Any], columns: list[str] | None) -> dict[str, Any]:
    """Return a sample for the screen: images as what they are, not their bytes."""
    from shardctl.inspection import describe_value

    unknown = [name for name in columns or () if name not in values]
    if unknown:
        raise UsageError(f"no column {', '.join(unknown)}; there are {', '.join(values)}")
    return {name: describe_value(values[name]) for name in columns or values}


def _short(value: Any, width: int = TEXT_WIDTH) -> str:
    text = printable(str(value))
    return text if len(text) <= width else text[: width - 1] + "…"
