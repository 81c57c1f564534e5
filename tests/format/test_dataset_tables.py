"""Files of many records on disk: which row is which record of which file, in every order that
conversions write."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from dataset_files import shard_in, tables_in
from forged_datasets import edit_unit, read_table, replace_column, sign, write_table
from guarded_memory import astray
from in_this_process import convert
from places import place_of

import shardctl
from shardctl.errors import DatasetError, InputError
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.dataset_tables import DatasetTables
from shardctl.format.shard import CHECKSUM_KEY, block_checksum
from shardctl.inspection.content.differences import differences
from shardctl.inspection.content.samples import samples_of_key
from shardctl.inspection.verify.check import ShardRecord
from shardctl.inspection.verify.shard_checks import first_wrong_key, number_at_end

FILES, LINES = 6, 40
BLANK, BROKEN = 5, 9
"""Lines of every file, counted from 1, that are no samples."""


def write_lines(folder: Path, files: int = FILES, lines: int = LINES) -> Path:
    """Write files of JSON lines, of which one is blank and one is broken."""
    folder.mkdir()
    for file in range(files):
        texts = [
            json.dumps({"text": f"{file} and {line} " * (1 + line % 7), "n": line})
            for line in range(1, lines + 1)
        ]
        texts[BLANK - 1], texts[BROKEN - 1] = "", "{"
        (folder / f"f{file}.jsonl").write_text("\n".join(texts) + "\n")
    return folder


WAYS: dict[str, dict[str, Any]] = {
    "in order": {"samples_per_shard": 90},
    "shuffled": {"samples_per_shard": 90, "shuffle": 3},
    "drawn": {"samples_per_shard": 60, "split": "train=0.6,val=0.4"},
    "drawn and shuffled": {"samples_per_shard": 60, "split": "train=0.6,val=0.4", "shuffle": 3},
    "one file in many shards": {"samples_per_shard": 7},
}


@pytest.fixture(params=WAYS, scope="module")
def lines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of JSON lines that tests only read, written in one of many ways.

    What is shuffled is in memory a few lines at a time, less than a file has.
    """
    root = tmp_path_factory.mktemp("lines")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardctl.making.shards.rows.SHUFFLED_BYTES", 5000)
        convert(write_lines(root / "in"), root / "out", **WAYS[request.param])
    return root / "out"


def test_every_key_is_found_where_it_stands_with_its_source(lines):
    ds = shardctl.open(lines)
    assert len(ds) == FILES * (LINES - 2)
    for index in range(0, len(ds), 11):
        key = ds[index]["key"]
        (record,) = samples_of_key(dataset_in(lines), key)
        assert (record.index, record.values["key"]) == (index, key)
        assert record.source == str(lines.parent / "in" / key.partition("#")[0])


def test_the_units_of_a_row_are_those_of_its_file(lines):
    stored = DatasetTables(dataset_in(lines))
    ds = shardctl.open(lines)
    for shard, entry in enumerate(stored.shards):
        units = stored.units(shard)
        for row in range(0, entry.rows, 5):
            key = ds[entry.first + row]["key"]
            path = key.partition("#")[0]
            files = [stored.file(units[place].file) for place in units.of_row(row).tolist()]
            assert path in {file.path for file in files}
            assert stored.file_of_row(shard, row, key).path == path


def test_lines_that_are_no_samples_tell_why(lines):
    folder = dataset_in(lines)
    with pytest.raises(DatasetError, match=r"f2\.jsonl#9: was rejected .*JSON"):
        samples_of_key(folder, f"f2.jsonl#{BROKEN}")
    for key, said in (
        (f"f2.jsonl#{BLANK}", "it is empty"),
        ("f2.jsonl#41", r"no key 'f2\.jsonl#41'; "),
        *((f"f2.jsonl{end}", "no key") for end in ("", "#0", "#03", "#-1")),
        ("", "no key"),
    ):
        with pytest.raises(InputError, match=said):
            samples_of_key(folder, key)


def test_what_was_written_is_whole(lines):
    assert shardctl.verify(lines, "deep").findings == ()


def exchange_keys(shard: Path) -> None:
    """Change the keys of a shard of one block, with the checksum that fits it."""
    table = read_table(shard)
    keys = table["key"].to_pylist()
    keys.insert(3, keys.pop(4))
    table = replace_column(table, "key", keys).combine_chunks()
    with pa.ipc.new_file(shard, table.schema) as writer:
        fresh = pa.ipc.read_record_batch(table.to_batches()[0].serialize(), table.schema)
        writer.write_batch(fresh, custom_metadata={CHECKSUM_KEY: block_checksum(fresh)})


@pytest.mark.parametrize(
    "wrong",
    [
        "f9.jsonl#1",
        "f0.jsonl#4000",
        "f0.jsonl",
        "{path}#0{number}",
        "{key}0000000000000000000",
        "",
        "{before}",
        None,
    ],
)
def test_a_key_that_the_plan_does_not_give_is_found(lines, wrong):
    stored = DatasetTables(dataset_in(lines))
    (block,) = read_table(lines / stored.shards.paths[0]).combine_chunks().to_batches()
    keys = block["key"].to_pylist()
    path, _, number = keys[-1].partition("#")
    changed = wrong and wrong.format(path=path, number=number, key=keys[-1], before=keys[-2])
    record = ShardRecord(stored, 0, use_plan=True)
    assert first_wrong_key(record, [block]) is None
    others = [*keys[:-1], changed]
    found = first_wrong_key(record, [pa.record_batch({"key": pa.array(others, pa.string())})])
    assert found is not None
    assert others[found] == changed


def test_records_in_another_order_are_found_where_order_is_promised(tmp_path, out):
    convert(write_lines(tmp_path / "in"), out)
    exchange_keys(shard_in(out, "train-00000"))
    sign(out)
    (finding,) = shardctl.verify(out).findings
    assert (finding.kind, finding.row) == ("keys-differ", 4)


def test_units_that_share_records_are_found(tmp_path, out):
    convert(write_lines(tmp_path / "in"), out, samples_per_shard=30)
    firsts = read_table(tables_in(out) / "plan.arrow")["first"].to_pylist()
    edit_unit(out, next(unit for unit, first in enumerate(firsts) if first > 1), first=2)
    sign(out)
    found = {(finding.kind, finding.key) for finding in shardctl.verify(out).findings}
    assert ("duplicate-key", "f0.jsonl#2") in found


def test_a_damaged_block_names_the_file_and_its_records_where_none_was_left_out(tmp_path, out):
    source = tmp_path / "a.jsonl"
    source.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(30)))
    convert(source, out, recipe={"compression": "none"}, samples_per_shard=30)
    shard = shard_in(out, "train-00000")
    data = bytearray(shard.read_bytes())
    data[data.index(b"a.jsonl#17")] ^= 1
    shard.write_bytes(data)
    (finding,) = shardctl.verify(out).findings
    assert (finding.kind, finding.block, finding.key) == ("wrong-checksum", 0, "a.jsonl#1")
    assert finding.source == str(source)
    assert "30 samples, from a.jsonl#1 to a.jsonl#30" in finding.message


def test_a_diff_of_lines_in_another_order_finds_the_line_that_changed(tmp_path):
    source = write_lines(tmp_path / "in")

    def compared(name: str, shuffle: int | None) -> Any:
        convert(source, tmp_path / name, samples_per_shard=50, shuffle=shuffle)
        return differences(place_of(tmp_path / "a"), place_of(tmp_path / name))

    compared("a", None)
    found = compared("same", 5)
    assert (found.same_samples, found.in_both) == (True, FILES * (LINES - 2))
    changed = (source / "f3.jsonl").read_text().replace("3 and 20 ", "3 and XX ")
    (source / "f3.jsonl").write_text(changed.replace('"n": 40', '"n": 41'))
    for name, shuffle in (("b", None), ("c", 5)):
        found = compared(name, shuffle)
        assert (found.only_in_a, found.only_in_b, found.changed) == (0, 0, 2)
        assert found.changed_fields == {"text": 1, "n": 1}
        keys = {example.key for example in found.changed_examples}
        assert keys == {"f3.jsonl#20", "f3.jsonl#40"}


@pytest.mark.parametrize("name", ["file", "samples", "first_row", "shard", "size", "records"])
def test_a_plan_that_leads_astray_is_refused(lines, out, name):
    shutil.copytree(lines, out)
    shard = DatasetTables(dataset_in(out)).shard_of_unit(1)
    edit_unit(out, 1, **{name: {"size": -1, "file": 99, "shard": 7}.get(name, 2**62)})
    with pytest.raises(DatasetError, match=r"contradicts itself|values that cannot be"):
        DatasetTables(dataset_in(out)).units(shard)


def test_a_path_that_leads_out_of_the_source_is_not_followed(dataset):
    files = read_table(tables_in(dataset) / "files.arrow")
    paths = ["../../etc/passwd", *files["path"].to_pylist()[1:]]
    write_table(tables_in(dataset) / "files.arrow", replace_column(files, "path", paths))
    with pytest.raises(DatasetError, match="values that cannot be"):
        samples_of_key(dataset_in(dataset), "../../etc/passwd")


def test_what_labels_say_is_looked_at_before_it_is_compared(photos, tmp_path):
    """The process would end where an offset is followed that leads astray."""
    images = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.*"))
    for out in ("a", "b"):
        rows = [f"{name},what {out} has on {name}\n" for name in images]
        (tmp_path / f"{out}.csv").write_text("".join(["file,caption\n", *rows]))
        convert(photos, tmp_path / out, labels=tmp_path / f"{out}.csv")
    files = read_table(tables_in(tmp_path / "a") / "files.arrow").combine_chunks()
    said = files["columns"].chunk(0)
    place = files.schema.get_field_index("columns")
    wrong = pa.StructArray.from_arrays([astray(said.field("caption"), 3)], ["caption"])
    write_table(
        tables_in(tmp_path / "a") / "files.arrow", files.set_column(place, "columns", wrong)
    )
    with pytest.raises(DatasetError, match="holds values that cannot be"):
        differences(place_of(tmp_path / "a"), place_of(tmp_path / "b"))


def test_numbers_are_read_from_the_ends_of_keys():
    keys = ["a#1", "b", "c#12345678901234567", "", "d#0", "7", "e#99x", "f#", "é#20", "g#1#23"]
    expected = [1, 0, 12345678901234567, 0, 0, 7, 0, 0, 20, 23]
    for first in (0, 2):
        assert number_at_end(pa.array(keys).slice(first)).tolist() == expected[first:]
    assert number_at_end(pa.array([], pa.string())).dtype == np.int64


def test_a_dataset_that_has_no_files_is_searched_by_its_shards(out):
    shardctl.write(out, [{"key": f"sample-{number}", "n": number} for number in range(50)])
    (record,) = samples_of_key(dataset_in(out), "sample-7")
    assert (record.index, record.values["n"], record.source) == (7, 7, None)
    with pytest.raises(InputError, match=r"no key 'sample-77'; did you mean sample-7"):
        samples_of_key(dataset_in(out), "sample-77")
    assert shardctl.verify(out, "deep").findings == ()
