"""What becomes of the records of files that hold many: each one is a sample or a reject, once, in
its own split."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import examples
from dataset_facts import expect_whole, rejects_of, sums
from dataset_files import tables_in
from followed_sources import write, write_lines
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import convert

import shardctl
from shardctl.format import tables
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.manifest import Manifest
from shardctl.format.names import PLAN, SHARDS
from shardctl.format.tables import open_table
from shardctl.making.convert import Listener, discover
from shardctl.making.shards import builder, inputs, records, task
from shardctl.making.shards.engines import local
from shardctl.making.shards.engines.local import Engine, OnFound
from shardctl.making.shards.inputs import PrePlanTask, run_task
from shardctl.making.shards.marker import WorkDone
from shardctl.making.shards.records import read_unit
from shardctl.sources.formats.base import Reading, TextPart
from shardctl.sources.formats.csv import Delimited, DelimitedFile
from shardctl.sources.formats.jsonl import JsonLines
from shardctl.sources.formats.lines import LineFile
from shardctl.system.processes.worker_state import WorkerProgress

GOOD, BAD, BLANK = "good", "bad", "blank"


@dataclass(frozen=True)
class Content:
    """A file of records: its name, its bytes before compression, and what every record of it is (by
    number, from 1)."""

    name: str
    data: bytes
    records: tuple[str, ...]


@st.composite
def contents(draw: st.DrawFn, form: str, place: int) -> Content:
    kinds = draw(st.lists(st.sampled_from((GOOD, GOOD, GOOD, BAD, BLANK)), min_size=1, max_size=20))
    lines = []
    for number, kind in enumerate(kinds, 1):
        value = f"{place}-{number}"
        if kind == BLANK:
            lines.append(b"")
        elif form == "jsonl":
            lines.append(
                b'{"text": ' if kind == BAD else json.dumps({"text": value, "n": number}).encode()
            )
        elif form == "csv":
            lines.append(b"a,b,c,d" if kind == BAD else f"{value},{number}".encode())
        else:
            lines.append(b"a\xff" if kind == BAD else value.encode())
    data = b"\n".join(lines) + (b"\n" if draw(st.booleans()) or kinds[-1] == BLANK else b"")
    if form == "csv":
        data = b"text,n\n" + data
    packed = draw(st.booleans())
    suffix = {"jsonl": ".jsonl", "csv": ".csv", "lines": ".txt"}[form] + (".gz" if packed else "")
    return Content(f"{place}{suffix}", data, tuple(kinds))


@st.composite
def sources(draw: st.DrawFn) -> tuple[str, list[Content]]:
    form = draw(st.sampled_from(("jsonl", "csv", "lines")))
    count = draw(st.integers(1, 3))
    return form, [draw(contents(form, place)) for place in range(count)]


def settings_of(form: str) -> dict[str, Any]:
    return {
        "jsonl": {"kind": "text"},
        "csv": {"kind": "table"},
        "lines": {"kind": "text", "record": "line"},
    }[form]


def splits_of(dataset: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return of every sample, and of every rejected record, its split by its key, having checked
    all sums."""
    folder = dataset_in(dataset)
    manifest = Manifest.load(folder)
    plan, shards = (open_table(folder, name).to_pylist() for name in (PLAN, SHARDS))
    rejects = rejects_of(dataset)
    samples: list[tuple[str, str]] = []
    rejected: list[tuple[str, str]] = []
    left = iter(rejects)
    for number, shard in enumerate(shards):
        own = [row for row in plan if row["shard"] == number]
        keys = pa.ipc.open_file(dataset / shard["path"]).read_all()["key"].to_pylist()
        samples += [(key, shard["split"]) for key in keys]
        assert len(keys) == shard["rows"] == sum(row["samples"] for row in own)
        assert shard["rejected"] == sum(row["rejected"] for row in own)
        assert shard["inputs"] == shard["rows"] + shard["rejected"]
        count = shard["rejected"]
        while count:
            reject = next(left)
            rejected.append((reject.key, shard["split"]))  # of several records, the first one
            count -= reject.records
    assert next(left, None) is None
    totals = [sum(shard[name] for shard in shards) for name in ("inputs", "rows", "rejected")]
    assert [manifest.inputs, manifest.samples, manifest.rejected] == totals
    assert sum(reject.records for reject in rejects) == manifest.rejected
    assert max(Counter(key for key, _ in (*samples, *rejected)).values()) == 1
    return dict(samples), dict(rejected)


@given(
    sources(),
    st.sampled_from(("none", "a=0.5,b=0.3,c=0.2")),
    st.sampled_from((None, 3, 7)),
    st.sampled_from((None, 7)),
)
@examples(8)
def test_every_record_is_one_sample_or_one_reject_in_its_split(
    given_files, split, samples_per_shard, shuffle
):
    form, files = given_files
    good, bad = (
        {
            f"{file.name}#{n}"
            for file in files
            for n, kind in enumerate(file.records, 1)
            if kind == of
        }
        for of in (GOOD, BAD)
    )
    if not good:
        return
    with tempfile.TemporaryDirectory() as scratch:
        for file in files:
            write(Path(scratch) / "in" / file.name, file.data)
        found = []
        for number, per_shard in enumerate((samples_per_shard, None)):
            out = Path(scratch) / f"out{number}"
            options = {"samples_per_shard": per_shard, "shuffle": shuffle, "split": split}
            recipe = settings_of(form)
            convert(Path(scratch) / "in", out, recipe, max_rejects="100%", **options)
            assert number or shardctl.verify(out).findings == ()
            samples, rejected = splits_of(out)
            assert (samples.keys(), rejected.keys()) == (good, bad)
            found.append({**samples, **rejected})
        assert found[0] == found[1]


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_records_that_do_not_fit_a_given_schema_are_rejected_and_no_others(tmp_path, form):
    """Wherever they are in their unit, and however many shards share it."""
    wrong = [5, 700, 701, 1500]
    values: list[Any] = ["word" if number in wrong else number for number in range(1, 1601)]
    source = tmp_path / f"in.{form}"
    if form == "csv":
        write(source, "a,b\n" + "".join(f"{value},x\n" for value in values))
    elif form == "jsonl":
        write_lines(source, ({"a": value, "b": "x"} for value in values))
    else:
        numbers = [1.5 if value == "word" else float(value) for value in values]
        pq.write_table(pa.table({"a": numbers, "b": ["x"] * len(numbers)}), source)
    for options in ({}, {"samples_per_shard": 100}):
        out = tmp_path / f"out{len(options)}"
        convert(source, out, {"kind": "table", "schema": "a:int64,b:string"}, **options)
        samples, rejected = splits_of(out)
        assert sorted(int(key.rpartition("#")[2]) for key in rejected) == wrong
        assert len(samples) == 1596


def test_a_column_of_text_where_a_schema_has_numbers_is_one_reject(tmp_path, out):
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"a": ["x"] * 5000}), tmp_path / "in/bad.parquet")
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "in/good.parquet")
    recipe = {"kind": "table", "schema": "a:int64"}
    convert(tmp_path / "in", out, recipe, samples_per_shard=10_000, max_rejects="100%")
    (reject,) = rejects_of(out)
    assert (reject.source, reject.error, reject.records) == ("bad.parquet", "other-type", 5000)
    assert "values of type string do not fit int64" in reject.message


def with_a_word(path: Path) -> Path:
    """Write 400 long records, of which number 381 has a word in the place of a number."""
    return write_lines(
        path, ({"n": "word" if n == 380 else n, "t": "x" * 7500} for n in range(400))
    )


@pytest.mark.parametrize("memory", [False, True])
def test_a_record_of_another_type_after_rows_were_written_costs_one_reject_and_few_reads(
    tmp_path, out, monkeypatch, memory
):
    """The shard is built again, with this unit read in parts. What was told of its progress before
    is taken back."""
    monkeypatch.setattr(task, "REPORT_SECONDS", 0.0)
    reads: list[Any] = []

    def read(*arguments: Any) -> Any:
        reads.append(arguments)
        if memory and len(reads) == 8:
            raise MemoryError
        return read_unit(*arguments)

    monkeypatch.setattr(builder, "read_unit", read)
    write(tmp_path / "in" / "a.jsonl", '{"n": 1}\n' * 9 + "{broken\n" * 3)
    with_a_word(tmp_path / "in" / "b.jsonl.gz")
    told: list[WorkDone] = []
    recipe, listener = (
        {"kind": "table", "schema": "n:int64,t:string"},
        Listener(progress=told.append),
    )
    result = convert(tmp_path / "in", out, recipe, listener, samples_per_shard=5000, max_rejects=4)
    assert (result.samples, result.rejected) == (408, 4)
    assert any(progress.samples < 0 for progress in told), "rows were written before"
    sums = [sum(getattr(each, name) for each in told) for name in ("samples", "rejected")]
    assert sums == [408, 4]
    assert memory or len(reads) < 40
    bad = [*(f"a.jsonl#{n}" for n in (10, 11, 12)), "b.jsonl.gz#381"]
    assert sorted(splits_of(out)[1]) == bad


def test_a_record_of_another_type_is_no_crash_where_records_are_tried_beforehand(tmp_path, out):
    source = with_a_word(tmp_path / "in.jsonl.gz")
    assert convert(source, out, {"schema": "n:int64,t:string"}, dry_run=True).status == "planned"


@pytest.mark.parametrize("sampled", [True, False])
def test_the_order_of_fields_is_that_of_the_first_records_then_by_name(
    tmp_path, out, monkeypatch, sampled
):
    """However many records their types are found in."""
    monkeypatch.setattr(discover, "FIRST_RECORDS", 10)
    monkeypatch.setattr(discover, "TYPED_RECORDS", 20)
    first = [{"c": n, "b": n} for n in range(30)] + [{"c": 1, "z": 1, "m": 2}]
    later: list[Any] = [{"c": n, "m": 1, "z": 2} for n in range(30)]
    later += [] if sampled else [{"c": "word"}]
    for name, rows in (("a", first), ("b", later)):
        write_lines(tmp_path / "in" / f"{name}.jsonl.gz", rows)
    convert(tmp_path / "in", out, {"kind": "table"})
    schema = dict(Manifest.load(dataset_in(out)).schema)
    assert list(schema) == ["key", "c", "b", "m", "z"]
    assert schema["c"] == ("int64" if sampled else "string")


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_class_that_is_met_when_records_are_tried_beforehand_is_found(
    tmp_path, out, dry_run, monkeypatch
):
    """The types are taken from one unit of three, and the records that are tried come from all of
    them."""
    monkeypatch.setattr(discover, "TYPED_UNITS", 1)
    for number, label in enumerate(("cat", "dog", "bird")):
        lines = ({"text": f"{record}", "label": label} for record in range(10))
        write_lines(tmp_path / "in" / f"{number}.jsonl", lines)
    notices = convert(tmp_path / "in", tmp_path / "whole", dry_run=True).notices
    result = convert(tmp_path / "in", out, dry_run=dry_run)
    assert (result.samples, result.notices) == (30, notices)
    if not dry_run:
        assert shardctl.open(out).classes == ("bird", "cat", "dog")


CELLS = ",1,-7,0.5,0.50,1.25,007,nan,inf,a,9007199254740993,99999999999999999999,1e-05".split(",")


VALUES = json.loads(
    '[null, 1, 0.5, 9007199254740993, 1180591620717411303424, "a", "1", true, [], [1], [0.5], '
    '[[]], {}, {"b": 1}, {"b": "c"}, {"d": null}]'
)


def files_of(values: Any) -> Any:
    return st.lists(
        st.lists(st.sampled_from(values), min_size=1, max_size=3), min_size=2, max_size=4
    )


@examples(10)
@given(files_of(CELLS), st.booleans())
def test_types_of_some_cells_give_the_bytes_of_the_types_of_all(files, mixed):
    lines = [["c,d"] + [f"{cell},{cell if mixed else 'x'}" for cell in cells] for cells in files]
    assert_types_may_be_sampled("csv", lines)


@examples(10)
@given(files_of(VALUES), st.booleans())
def test_types_of_some_values_give_the_bytes_of_the_types_of_all(files, mixed):
    lines = [
        [json.dumps({"c": value, **({f"d{value}": 1} if mixed else {})}) for value in values]
        for values in files
    ]
    assert_types_may_be_sampled("jsonl", lines)


def assert_types_may_be_sampled(form: str, files: list[list[str]]) -> None:
    """Convert files with the types of all records, and with those of one file, whatever is in the
    others."""
    with tempfile.TemporaryDirectory() as scratch, pytest.MonkeyPatch.context() as patch:
        folder, sums = Path(scratch), []
        for number, lines in enumerate(files):
            write(folder / "in" / f"{number}.{form}", "\n".join(lines))
        for units in (1000, 1):
            patch.setattr(discover, "TYPED_UNITS", units)
            convert(folder / "in", folder / f"{units}", {"kind": "table"}, labels="none")
            sums.append((tables_in(folder / f"{units}") / "SHA256SUMS").read_text())
        assert sums[0] == sums[1]


def shorter(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def of_other_types(file: Path) -> None:
    file.write_bytes(b'{"n": "word", "more": 1}\n' * 100)


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("change", [Path.unlink, shorter, of_other_types])
@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "parquet"])
def test_a_file_that_changes_before_it_is_read_costs_its_own_records(tmp_path, out, form, change):
    """Its types and its units are known by then. Each split has the rejects that are its own."""
    rows = [{"n": number} for number in range(100)]
    for name in "ab":
        file = write_lines(tmp_path / "in" / f"{name}.{form}", rows)
        if form == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), file)
    options = {"split": "one=0.5,two=0.5", "samples_per_shard": 20}
    convert(tmp_path / "in", tmp_path / "whole", {"kind": "table"}, **options)
    splits, _ = splits_of(tmp_path / "whole")
    own, others = (
        {key: split for key, split in splits.items() if key.startswith(name)} for name in "ab"
    )
    listener = Listener(announce=lambda _: change(tmp_path / "in" / f"a.{form}"))
    result = convert(tmp_path / "in", out, {"kind": "table"}, listener=listener, **options)
    assert splits_of(out)[0] == others
    rejects = rejects_of(out)
    assert (result.samples, result.rejected) == (100, 100)
    assert {reject.error for reject in rejects} <= {"changed", "vanished"}
    lost = Counter(splits[reject.key] for reject in rejects for _ in range(reject.records))
    assert lost == Counter(own.values())
    expect_whole(out)


@pytest.mark.parametrize("form", ["jsonl", "txt"])
def test_small_files_that_are_read_together_give_the_bytes_of_each_by_itself(
    tmp_path, monkeypatch, form
):
    odd = '{"n": [null]}', "\n", '"\udcff"\n', '{"t": "a"}\r', '{"n":\n[4]}\n'
    for number in range(60):
        rows = [{"n": [row] * (row % 3), "t": f"{number}", "b": row % 2 > 0} for row in range(9)]
        text = "".join(f"{json.dumps(row)}\n" for row in rows)
        text += "" if number % 12 else odd[number // 12]
        write(tmp_path / "in" / f"{number:02d}.{form}", text.encode(errors="surrogateescape"))
    monkeypatch.setattr(records, "TOGETHER_BYTES", 3000)
    found, options = [], {"max_rejects": "50%", "samples_per_shard": 1000}
    recipe = {"record": "line"} if form == "txt" else {}
    for size in (0, 1 << 16):
        monkeypatch.setattr(records, "SMALL_BYTES", size)
        convert(tmp_path / "in", tmp_path / f"{size}", recipe, **options)
        found.append(sums(tmp_path / f"{size}"))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "values", [[1, None], [[1], [None]], [True, None], ["a", None], [[["a"]], [None]]]
)
def test_how_large_a_record_is_does_not_depend_on_other_files(values):
    """That decides where a block ends."""
    text, reading = JsonLines(), Reading()
    texts = [f"{json.dumps({'v': value})}\n".encode() * 9 for value in [values[0], *values] * 2]
    schema = text.types_of(TextPart(b"".join(texts)), reading).found()
    own = [text.parse(TextPart(each), reading, schema, None).batch for each in texts]
    found = [each.batch for each in LineFile(text).parse_together(texts, reading, schema)]
    assert found == own
    assert [batch.nbytes for batch in found] == [batch.nbytes for batch in own]


def test_types_that_differ_while_several_workers_build_shards_are_found_again(tmp_path, out):
    """The other worker is in the middle of a shard then: what it answers is of the attempt that was
    given up."""
    odd = 40_011
    records = ({"n": n + 0.5 if n == odd else n, "text": f"{n:>500}"} for n in range(60_000))
    source = write_lines(tmp_path / "in.jsonl", records)
    shardctl.convert(source, out, workers=2, samples_per_shard=8000)
    dataset = shardctl.open(out)
    assert (len(dataset), dataset[odd]["n"], dataset[0]["n"]) == (60_000, odd + 0.5, 0.0)


def test_tables_do_not_depend_on_how_many_shards_are_held_in_memory(tmp_path, monkeypatch):
    lines = ({"text": f"{number}"} if number % 5 else "" for number in range(40))
    source, sums = write_lines(tmp_path / "in.jsonl", lines), []
    for shards in (1000, 2):
        monkeypatch.setattr(tables, "SPOOLED_ROWS", shards)
        monkeypatch.setattr("shardctl.making.plan.plan.JOINED_SHARDS", shards)
        out = tmp_path / f"{shards}"
        assert convert(source, out, samples_per_shard=3, labels="none").shards > 10
        sums.append((tables_in(out) / "SHA256SUMS").read_text())
    assert sums[0] == sums[1]


class LastFirst(Engine):
    """An engine whose answers come in another order than they were asked for, as those of several
    processes may."""

    def examine(self, tasks: Sequence[PrePlanTask], on_found: OnFound) -> None:
        for number in reversed(range(len(tasks))):
            on_found(number, run_task(tasks[number], WorkerProgress(), {}))


def test_units_and_types_do_not_depend_on_the_order_in_which_files_are_looked_at(
    tmp_path, out, monkeypatch
):
    """Files of several pieces, one that must be scanned as one piece, one that cannot be read, one
    without records."""
    for where in (discover, inputs):
        monkeypatch.setattr(where, "find_format", lambda *_: DelimitedFile(Delimited(), 8, 16))
    monkeypatch.setattr(discover, "MOST_RANGES", 2)
    rows = range(9)
    contents = ["b,a\n" + "".join(f"{row},x{row}{n}\n" for row in rows) for n in range(4)]
    contents += ['c,a\nx"y,"\n",",1\nab"c,2\n', "c,a\n", "d,a\n1,2\n", "\x1f\x8b\x08 not text"]
    for number, content in enumerate(contents):
        write(tmp_path / "in" / f"{number}.csv", content.encode("latin-1"))
    options = {"labels": "none", "max_rejects": "100%"}
    for place, engine in ((out, Engine()), (tmp_path / "other", LastFirst())):
        monkeypatch.setattr(local, "start", Mock(return_value=engine))
        convert(tmp_path / "in", place, {"kind": "table"}, **options)
    assert sums(out) == sums(tmp_path / "other")
    units = open_table(dataset_in(out), PLAN)["file"].to_pylist()
    assert units.count(0) > 2 > units.count(4)
    assert [reject.key for reject in rejects_of(out)] == ["4.csv#1", "7.csv"]
    assert shardctl.open(out).schema.names[:3] == ["key", "b", "a"]
