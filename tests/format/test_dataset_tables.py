"""Files of many records on disk: which row is which record of which file, in every order that
conversions write."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from forged_datasets import edit_unit, read_table, replace_column, sign, write_table
from guarded_memory import astray
from in_this_process import convert
from places import place_of

import shardctl
from shardctl.errors import DatasetError, InputError
from shardctl.format.dataset_tables import DatasetTables
from shardctl.format.shard import CHECKSUM_KEY, block_checksum
from shardctl.inspection.content.differences import differences
from shardctl.inspection.content.samples import samples_of_key
from shardctl.inspection.verify.check import Provenance
from shardctl.inspection.verify.shard_checks import first_wrong_key, number_at_end
from shardctl.system.folders import LocalFolder

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
        (record,) = samples_of_key(LocalFolder(lines), key)
        assert (record.index, record.values["key"]) == (index, key)
        assert record.source == str(lines.parent / "in" / key.partition("#")[0])


def test_the_units_of_a_row_are_those_of_its_file(lines):
    stored = DatasetTables(LocalFolder(lines))
    ds = shardctl.open(lines)
    for shard, entry in enumerate(stored.shards):
        units = stored.units(shard)
        for row in range(0, entry.rows, 5):
            path = ds[entry.first + row]["key"].partition("#")[0]
            assert path in {
                stored.file(units[place].file).path for place in units.of_row(row).tolist()
            }
            found = stored.file_of_row(shard, row, ds[entry.first + row]["key"])
            assert found is not None
            assert found.path == path


def test_lines_that_are_no_samples_tell_why(lines):
    with pytest.raises(
        DatasetError, match=r"f2\.jsonl#9: was rejected when the dataset was made \(.*JSON"
    ):
        samples_of_key(LocalFolder(lines), f"f2.jsonl#{BROKEN}")
    with pytest.raises(InputError, match=r"no sample was made of f2\.jsonl#5: it is empty"):
        samples_of_key(LocalFolder(lines), f"f2.jsonl#{BLANK}")
    with pytest.raises(InputError, match=r"no key 'f2\.jsonl#41'; "):
        samples_of_key(LocalFolder(lines), "f2.jsonl#41")
    for key in ("f2.jsonl", "f2.jsonl#0", "f2.jsonl#03", "f2.jsonl#-1", ""):
        with pytest.raises(InputError, match="no key"):
            samples_of_key(LocalFolder(lines), key)


def test_what_was_written_is_whole(lines):
    assert shardctl.verify(lines, "deep").findings == ()


def rewrite_keys(out: Path, name: str, change: Callable[[list[str]], object]) -> None:
    """Change the keys of a shard of one block, with the checksum that fits it."""
    table = read_table(out / name)
    keys = table["key"].to_pylist()
    change(keys)
    table = replace_column(table, "key", keys).combine_chunks()
    with pa.ipc.new_file(out / name, table.schema) as writer:
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
    stored = DatasetTables(LocalFolder(lines))
    (block,) = read_table(lines / stored.shards.names[0]).combine_chunks().to_batches()
    keys = block["key"].to_pylist()
    path, _, number = keys[-1].partition("#")
    changed = wrong and wrong.format(path=path, number=number, key=keys[-1], before=keys[-2])
    provenance = Provenance(stored, 0)
    assert first_wrong_key(provenance, [block]) is None
    others = [*keys[:-1], changed]
    found = first_wrong_key(provenance, [pa.record_batch({"key": pa.array(others, pa.string())})])
    assert found is not None
    assert others[found] == changed


def test_records_in_another_order_are_found_where_order_is_promised(tmp_path, out):
    convert(write_lines(tmp_path / "in"), out)
    rewrite_keys(out, "train-00000.arrow", lambda keys: keys.insert(3, keys.pop(4)))
    sign(out)
    (finding,) = shardctl.verify(out).findings
    assert (finding.kind, finding.row) == ("keys-differ", 4)


def test_units_that_share_records_are_found(tmp_path, out):
    convert(write_lines(tmp_path / "in"), out, samples_per_shard=30)
    second = next(
        unit
        for unit, first in enumerate(read_table(out / "plan.arrow")["first"].to_pylist())
        if first > 1
    )
    edit_unit(out, second, first=2)
    sign(out)
    found = {(finding.kind, finding.key) for finding in shardctl.verify(out).findings}
    assert ("duplicate-key", "f0.jsonl#2") in found


def test_a_damaged_block_names_the_file_and_its_records_where_none_was_left_out(
    tmp_path,
    out,
):
    (tmp_path / "in").mkdir()
    lines = "".join(json.dumps({"n": n}) + "\n" for n in range(30))
    (tmp_path / "in" / "a.jsonl").write_text(lines)
    options = {"recipe": {"compression": "none"}, "samples_per_shard": 30, "workers": 0}
    shardctl.convert(tmp_path / "in", out, **options)
    shard = out / "train-00000.arrow"
    data = bytearray(shard.read_bytes())
    data[data.index(b"a.jsonl#17")] ^= 1
    shard.write_bytes(data)
    (finding,) = shardctl.verify(out).findings
    assert (finding.kind, finding.block, finding.key) == ("wrong-checksum", 0, "a.jsonl#1")
    assert finding.source == str(tmp_path / "in" / "a.jsonl")
    assert "it holds 30 samples, from a.jsonl#1 to a.jsonl#30" in finding.message


def test_variants_of_lines_are_found_together(tmp_path, out, monkeypatch):
    (tmp_path / "noise.py").write_text(
        "def add(sample, rng):\n    return {**sample, 'r': float(rng.random())}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    convert(
        write_lines(tmp_path / "in"),
        out,
        recipe={"variants": 3, "transform": [{"name": "custom", "target": "noise:add"}]},
    )
    assert shardctl.verify(out).findings == ()
    found = samples_of_key(LocalFolder(out), "f1.jsonl#7")
    assert [record.values["variant"] for record in found] == [0, 1, 2]


def test_a_diff_of_lines_in_another_order_finds_the_line_that_changed(tmp_path):
    source = write_lines(tmp_path / "in")
    convert(source, tmp_path / "a", samples_per_shard=50)
    convert(source, tmp_path / "same", samples_per_shard=70, shuffle=5)
    found = differences(place_of(tmp_path / "a"), place_of(tmp_path / "same"))
    assert (found.same_samples, found.in_both) == (True, FILES * (LINES - 2))
    changed = (source / "f3.jsonl").read_text().replace("3 and 20 ", "3 and XX ")
    (source / "f3.jsonl").write_text(changed.replace('"n": 40', '"n": 41'))
    for name, shuffle in (("b", None), ("c", 5)):
        convert(source, tmp_path / name, samples_per_shard=50, shuffle=shuffle)
        found = differences(place_of(tmp_path / "a"), place_of(tmp_path / name))
        assert (found.only_in_a, found.only_in_b, found.changed) == (0, 0, 2)
        assert found.changed_fields == {"text": 1, "n": 1}
        assert sorted(example.key for example in found.changed_examples) == [
            "f3.jsonl#20",
            "f3.jsonl#40",
        ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("file", 99),
        ("samples", 2**61),
        ("first_row", 2**40),
        ("shard", 7),
        ("size", -1),
        ("records", 2**62),
    ],
)
def test_a_plan_that_leads_astray_is_refused(lines, out, name, value):
    shutil.copytree(lines, out)
    shard = DatasetTables(LocalFolder(out)).shard_of_unit(1)
    edit_unit(out, 1, **{name: value})
    with pytest.raises(DatasetError, match=r"contradicts itself|values that cannot be"):
        DatasetTables(LocalFolder(out)).units(shard)


def test_a_path_that_leads_out_of_the_source_is_not_followed(dataset):
    files = read_table(dataset / "files.arrow")
    paths = ["../../etc/passwd", *files["path"].to_pylist()[1:]]
    write_table(dataset / "files.arrow", replace_column(files, "path", paths))
    with pytest.raises(DatasetError, match="values that cannot be"):
        samples_of_key(LocalFolder(dataset), "../../etc/passwd")


def test_what_labels_say_is_looked_at_before_it_is_compared(photos, tmp_path):
    """The process would end where an offset is followed that leads astray."""
    images = sorted(path.relative_to(photos).as_posix() for path in photos.rglob("*.*"))
    for out in ("a", "b"):
        rows = [f"{name},what {out} has on {name}\n" for name in images]
        (tmp_path / f"{out}.csv").write_text("".join(["file,caption\n", *rows]))
        convert(photos, tmp_path / out, labels=tmp_path / f"{out}.csv")
    files = read_table(tmp_path / "a" / "files.arrow").combine_chunks()
    said = files["columns"].chunk(0)
    place = files.schema.get_field_index("columns")
    wrong = pa.StructArray.from_arrays([astray(said.field("caption"), 3)], ["caption"])
    write_table(tmp_path / "a" / "files.arrow", files.set_column(place, "columns", wrong))
    with pytest.raises(DatasetError, match="holds values that cannot be"):
        differences(place_of(tmp_path / "a"), place_of(tmp_path / "b"))


@pytest.mark.parametrize("first", [0, 2])
def test_numbers_are_read_from_the_ends_of_keys(first):
    keys = ["a#1", "b", "c#12345678901234567", "", "d#0", "7", "e#99x", "f#", "é#20", "g#1#23"]
    expected = [1, 0, 12345678901234567, 0, 0, 7, 0, 0, 20, 23]
    assert number_at_end(pa.array(keys).slice(first)).tolist() == expected[first:]
    assert number_at_end(pa.array([], pa.string())).dtype == np.int64


def test_a_dataset_that_has_no_files_is_searched_by_its_shards(out):
    shardctl.write(out, [{"key": f"sample-{number}", "n": number} for number in range(50)])
    (record,) = samples_of_key(LocalFolder(out), "sample-7")
    assert (record.index, record.values["n"], record.source) == (7, 7, None)
    with pytest.raises(InputError, match=r"no key 'sample-77'; did you mean sample-7"):
        samples_of_key(LocalFolder(out), "sample-77")
    assert shardctl.verify(out, "deep").findings == ()
