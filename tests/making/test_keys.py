"""Records that have keys of their own (--key-field): a key decides the split and the random
numbers, wherever its row lies."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from annotated import png
from conftest import examples
from dataset_facts import expect_whole, rejects_of, sums
from dataset_files import shard_in, shards_in, tables_in
from followed_sources import write, write_lines
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import convert, repair
from pyarrow import parquet
from tars import write_tar
from written_samples import pixels

import shardctl
from shardctl.sources.formats import jsonl
from shardctl.sources.formats.base import Parsed
from shardctl.sources.formats.jsonl import JsonLines

SHARES = "train=0.6,val=0.4"
KEYED: dict[str, Any] = {"split": SHARES, "workers": 0, "samples_per_shard": 20}
STEPS = """
import os

def draws(sample, rng):
    sample["drawn"] = float(rng.random())
    return sample

def leaves(sample):
    if sample["key"] in ("k07", "k11"):
        os._exit(3)
    return sample
"""


@pytest.fixture(autouse=True)
def steps(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("steps")
    (folder / "keyed_steps.py").write_text(STEPS)
    monkeypatch.syspath_prepend(folder)


def recipe(*functions: str, **settings: Any) -> dict[str, Any]:
    own = [{"name": "custom", "target": f"keyed_steps:{name}"} for name in functions]
    return {"kind": "table", "key_field": "id", "transform": own, **settings}


def rows(count: int) -> list[dict[str, Any]]:
    return [{"id": f"k{number:02}", "text": f"text {number}"} for number in range(count)]


def write_csv(path: Path, of: list[dict[str, Any]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "text"])
        writer.writeheader()
        writer.writerows(of)


FORMS: dict[str, Callable[[Path, list[dict[str, Any]]], object]] = {
    "jsonl": write_lines,
    "csv": write_csv,
    "json": lambda path, of: write(path, json.dumps(of)),
    "jsonl.gz": write_lines,
    "parquet": lambda path, of: parquet.write_table(
        pa.Table.from_pylist(of), path, row_group_size=30
    ),
    "tar": lambda path, of: write_tar(path, {each["id"]: members(each) for each in of}),
}


def members(row: dict[str, Any]) -> dict[str, bytes]:
    return {"txt": row["text"].encode(), "cls": b"1"}


def split_of(out: Path) -> dict[str, str]:
    """The split of every key; of one that is there twice, both must be the same."""
    found: dict[str, str] = {}
    for name in ("train", "val"):
        for sample in shardctl.open(out, split=name):
            assert found.setdefault(sample["key"], name) == name, sample["key"]
    return found


def drawn(out: Path) -> dict[str, float]:
    return {sample["key"]: sample["drawn"] for sample in shardctl.open(out)}


@pytest.mark.parametrize("options", [{"key_field": "label"}, {"fields": "text,key=label"}])
def test_a_label_that_is_the_key_is_no_label(options, tmp_path, out):
    write_lines(tmp_path / "in.jsonl", [{"label": f"k{n}", "text": "t", "": n} for n in range(3)])
    convert(tmp_path / "in.jsonl", out, **options)
    sample = shardctl.open(out)[0]
    assert sample["key"] == "k0"
    assert "label" not in sample


@pytest.mark.parametrize("form", FORMS)
def test_the_key_decides_the_split_whatever_the_file_and_the_place_in_it(tmp_path, out, form):
    """It is that of `shardctl.write`, too, so that a split says the same of all datasets of a
    project."""
    FORMS[form](tmp_path / f"a.{form}", rows(100))
    more = {"key_field": "__key__"} if form == "tar" else {}
    shardctl.convert(tmp_path / f"a.{form}", out, recipe=recipe(**more), **KEYED)
    written = ({"key": row["id"], "text": row["text"]} for row in rows(100))
    shardctl.write(tmp_path / "written", written, split=SHARES)
    found = split_of(out)
    assert found == split_of(tmp_path / "written")
    assert 25 < list(found.values()).count("val") < 55


@given(data=st.data())
@examples(15)
def test_a_key_stays_in_its_split_and_keeps_its_random_numbers(data, tmp_path_factory):
    """Rows come, go and change their places and their files, and the dataset follows."""
    root = tmp_path_factory.mktemp("history")
    source, out = root / "in", root / "out"
    source.mkdir()
    form = data.draw(st.sampled_from(("jsonl", "csv")))
    known: dict[str, tuple[str, float]] = {}
    of_file = st.lists(st.integers(0, 40), min_size=1, max_size=30, unique=True)
    for generation in range(data.draw(st.integers(2, 3))):
        numbers = data.draw(st.lists(of_file, min_size=1, max_size=2))
        for path in source.iterdir():
            path.unlink()
        seen = set[int]()
        for place, several in enumerate(numbers):
            own = [rows(41)[number] for number in several if number not in seen]
            seen.update(several)
            if own:
                FORMS[form](source / f"{place}.{form}", own)
                os.utime(source / f"{place}.{form}", (0, generation + 1))
        result = shardctl.convert(source, out, recipe=recipe("draws"), update=True, **KEYED)
        assert warned(result) == []
        splits, values = split_of(out), drawn(out)
        assert sorted(splits) == sorted(f"k{number:02}" for number in seen)
        for key, split in splits.items():
            assert known.setdefault(key, (split, values[key])) == (split, values[key])


def test_pixels_of_random_steps_are_those_of_the_key(tmp_path):
    photos = [
        {"id": f"k{number:02}", "image": {"bytes": png(pixels(number, 24)), "path": None}}
        for number in range(12)
    ]
    made = []
    for name, several in (
        ("one", [photos]),
        ("other", [photos[:0:-2], photos[1::-2] + photos[-2::-2]]),
    ):
        (tmp_path / name).mkdir()
        for place, some in enumerate(several):
            parquet.write_table(pa.Table.from_pylist(some), tmp_path / name / f"{place}.parquet")
        steps = [{"name": "random_crop", "size": 8}, {"name": "hflip"}]
        settings = recipe(kind="image", image_field="image", store="raw", transform=steps)
        shardctl.convert(tmp_path / name, tmp_path / f"{name}-out", recipe=settings, **KEYED)
        ds = shardctl.open(tmp_path / f"{name}-out")
        made.append({sample["key"]: sample["image"].tobytes() for sample in ds})
        assert len(set(made[-1].values())) == 12
    assert made[0] == made[1]


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz"])
def test_a_record_without_a_key_is_a_reject_of_one_split_also_in_repair(tmp_path, out, form):
    """Some lines are no JSON, have no key, or a number for one."""
    lines: list[Any] = rows(60)
    for number in range(0, 60, 5):
        lines[number] = '{"id": ' if number % 10 else {"id": None, "text": "no key"}
    source = write_lines(tmp_path / f"a.{form}", lines)
    result = shardctl.convert(source, out, recipe=recipe("draws"), **KEYED)
    assert (result.samples, result.rejected) == (48, 12)
    rejects = [reject.key for reject in rejects_of(out)]
    assert sorted(rejects) == sorted(f"{source.name}#{number + 1}" for number in range(0, 60, 5))
    expect_whole(out, "deep")
    whole = sums(out)
    for names in ([*shards_in(out)], [tables_in(out) / "plan.arrow", shard_in(out, "val-00000")]):
        for path in names:
            path.unlink()
        assert repair(out, [source], transforms=["keyed_steps:draws"]).status == "repaired"
        assert sums(out) == whole


def test_an_empty_key_that_comes_twice_is_named(tmp_path, out):
    lines = ({"id": "" if n < 2 else f"k{n}", "text": "a"} for n in range(9))
    source = write_lines(tmp_path / "a.jsonl", lines)
    result = shardctl.convert(source, out, recipe=recipe(), **KEYED)
    said = '1 sample has the key of another one, for instance "" (an empty text); '
    assert any(said in each for each in result.warnings)


@pytest.mark.thorough
def test_records_that_end_workers_are_rejects_of_one_split(tmp_path, out):
    source = write_lines(tmp_path / "a.jsonl", rows(40))
    given = {**KEYED, "workers": 1}
    result = shardctl.convert(source, out, recipe=recipe("leaves"), **given)
    assert (result.samples, result.rejected) == (38, 2)
    found = {(reject.key, reject.stage, reject.error) for reject in rejects_of(out)}
    assert found == {(f"a.jsonl#{number}", "transform", "exited") for number in (8, 12)}
    assert len(split_of(out)) == 38


DEADLY = """
import os
from shardctl.sources.formats import jsonl

parse = jsonl._parse_fast

def deadly(data, *more):
    if b'"k07"' in data:
        os._exit(3)
    return parse(data, *more)

jsonl._parse_fast = deadly

def same(sample):
    return sample
"""


@pytest.mark.thorough
def test_a_worker_that_ends_while_it_reads_keys_costs_one_record(tmp_path, out, monkeypatch):
    """No parser is known to do so. The importing of a function is a way to put one into the
    workers."""
    write(tmp_path / "deadly_parser.py", DEADLY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(jsonl, "_parse_fast", jsonl._parse_fast)  # this process imports it too
    for name in ("", "b"):
        lines = ({**row, "id": name + row["id"]} for row in rows(24))
        write_lines(tmp_path / "in" / f"a{name}.jsonl", lines)
    own = [{"name": "custom", "target": "deadly_parser:same"}]
    settings = recipe(schema="id:string,text:string", transform=own)
    result = shardctl.convert(tmp_path / "in", out, recipe=settings, **{**KEYED, "workers": 1})
    assert (result.samples, result.rejected) == (47, 1)
    (reject,) = rejects_of(out)
    assert (reject.key, reject.stage, reject.error) == ("a.jsonl#8", "read", "exited")


def test_memory_that_runs_out_for_one_key_costs_its_record(tmp_path, out, monkeypatch):
    parse = jsonl._parse_fast

    def short_of_memory(data: bytes, *more: Any) -> Any:
        if b'"k07"' in data:
            raise MemoryError
        return parse(data, *more)

    source = write_lines(tmp_path / "a.jsonl", rows(40))
    monkeypatch.setattr(jsonl, "_parse_fast", short_of_memory)
    settings = recipe(schema="id:string,text:string")
    result = shardctl.convert(source, out, recipe=settings, **KEYED)
    assert (result.samples, result.rejected) == (39, 1)
    (reject,) = rejects_of(out)
    assert (reject.key, reject.error) == ("a.jsonl#8", "out-of-memory")


NUMBERED: dict[str, Any] = {"split": SHARES, "update": True}
"""The split of a record is that of its path and its number."""


def warned(result: Any) -> list[str]:
    return [warning for warning in result.warnings if "another split" in warning]


def test_an_update_warns_of_records_whose_split_is_that_of_their_number(tmp_path, out, cli):
    """Of each file that has changed, and of no other one."""
    source = tmp_path / "in"
    for name in "abc":
        write_lines(source / f"{name}.jsonl", rows(40))
    assert warned(convert(source, out, **NUMBERED)) == []
    write_lines(source / "a.jsonl", rows(40)[1:])
    write_lines(source / "b.jsonl", rows(41))
    (warning,) = warned(convert(source, out, **NUMBERED, dry_run=True))
    assert "(2 changed, 0 gone, 0 new)" in warning
    assert "key_field keeps it" in warning
    ran = cli("convert", source, out, "--update", "--split", SHARES, "--workers", 0, "--json")
    assert warning.replace("key_field", "--key-field") in ran.json["warnings"]
    assert warned(convert(source, out, **NUMBERED)) == [], "nothing has changed since"


def test_an_update_says_that_files_went_and_others_came(tmp_path, out):
    """As logs that are rotated: the path is part of the key."""
    source = tmp_path / "in"
    for number in range(3):
        write_lines(source / f"{number}.jsonl", rows(40))
    convert(source, out, **NUMBERED)
    for number in range(2):
        (source / f"{number}.jsonl").unlink()
        write_lines(source / f"{number}.jsonl.gz", rows(40))
    (warning,) = warned(convert(source, out, **NUMBERED))
    assert "(0 changed, 2 gone, 2 new)" in warning
    (source / "2.jsonl").unlink()
    assert warned(convert(source, out, **NUMBERED)) == [], "nothing came"
    write_lines(source / "3.jsonl", rows(12))
    assert warned(convert(source, out, **NUMBERED)) == [], "nothing went"


def test_it_warns_also_where_all_shards_are_made_anew_and_where_it_was_stopped(
    tmp_path, out, monkeypatch
):
    def followed(records: Iterable[Any]) -> Any:
        source = write_lines(tmp_path / "a.jsonl", records)
        return convert(source, out, samples_per_shard=10, **NUMBERED)

    followed(rows(40))
    more = [{**row, "more": 1} for row in rows(39)]
    anew = followed(more)
    assert anew.changes.anew
    assert len(warned(anew)) == 1
    with monkeypatch.context() as stopped:
        stopping = Mock(side_effect=KeyboardInterrupt)
        stopped.setattr("shardctl.making.convert.run.build_shards", stopping)
        with pytest.raises(KeyboardInterrupt):
            followed(more[:30])
    assert len(warned(followed(more[:30]))) == 1


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "csv", "csv.gz", "json", "json.gz"])
def test_keys_that_do_not_fit_their_type_cost_their_records(tmp_path, form):
    """The others are in the splits that they are in without these."""
    bad = (0, 1, 700, 701, 999)
    found: list[dict[str, list[int]]] = []
    for name in ("good", "bad"):
        ids = ["x" if name == "bad" and number in bad else number for number in range(1000)]
        source, out = tmp_path / f"{name}.{form}", tmp_path / name
        of = [{"id": key, "n": number} for number, key in enumerate(ids)]
        if form.startswith("csv"):
            write(source, "id,n\n" + "".join(f"{key},{n}\n" for n, key in enumerate(ids)))
        elif form.startswith("jsonl"):
            write_lines(source, of)
        else:
            write(source, json.dumps(of))
        convert(source, out, recipe(schema="id:int64,n:int64"), split=SHARES)
        splits = (shardctl.open(out, split=split) for split in ("train", "val"))
        found.append(
            {ds.split: sorted(row["n"] for row in ds if row["n"] not in bad) for ds in splits}
        )
    assert found[0] == found[1]
    rejected = [reject.key.rpartition("#")[2] for reject in rejects_of(tmp_path / "bad")]
    assert sorted(map(int, rejected)) == [number + 1 for number in bad]


def test_one_key_that_does_not_fit_does_not_have_the_others_read_one_by_one(
    tmp_path, out, monkeypatch
):
    of = ({"id": "x" if n == 1000 else n, "text": "t"} for n in range(20_000))
    source, calls = write_lines(tmp_path / "a.jsonl.gz", of), []
    parse = JsonLines.parse

    def counted(self: JsonLines, *given: Any) -> Parsed:
        calls.append(1)
        return parse(self, *given)

    monkeypatch.setattr(JsonLines, "parse", counted)
    settings = recipe(schema="id:int64,text:string")
    assert convert(source, out, settings, split=SHARES, samples_per_shard=20_000).rejected == 1
    assert len(calls) < 2000


def test_a_number_and_its_text_are_one_key(tmp_path):
    found = []
    for name, kind in (("numbers", int), ("texts", str)):
        lines = ({"id": kind(number), "text": "a"} for number in range(30))
        source = write_lines(tmp_path / f"{name}.jsonl", lines)
        shardctl.convert(source, tmp_path / name, recipe=recipe(), **KEYED)
        found.append(split_of(tmp_path / name))
    assert found[0] == found[1]
