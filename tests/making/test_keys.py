"""Records that have keys of their own (--key-field): a key decides the split and the random
numbers, wherever its row lies."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import examples
from dataset_facts import rejects_of
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import convert, repair
from PIL import Image
from pyarrow import parquet

import shardctl
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


def write_lines(path: Path, of: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in of))


def write_csv(path: Path, of: list[dict[str, Any]]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "text"])
        writer.writeheader()
        writer.writerows(of)


def write_tar(path: Path, of: list[dict[str, Any]]) -> None:
    with tarfile.open(path, "w") as tar:
        for row in of:
            for name, data in (("txt", row["text"].encode()), ("cls", b"1")):
                member = tarfile.TarInfo(f"{row['id']}.{name}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))


FORMS = {
    "jsonl": write_lines,
    "csv": write_csv,
    "json": lambda path, of: path.write_text(json.dumps(of)),
    "jsonl.gz": lambda path, of: path.write_bytes(
        gzip.compress("".join(json.dumps(row) + "\n" for row in of).encode())
    ),
    "parquet": lambda path, of: parquet.write_table(
        pa.Table.from_pylist(of), path, row_group_size=30
    ),
    "tar": write_tar,
}


def split_of(out: Path) -> dict[str, str]:
    """The split of every key; of one that is there twice, both must be the same."""
    found: dict[str, str] = {}
    for name in ("train", "val"):
        for sample in shardctl.open(out, split=name):
            assert found.setdefault(sample["key"], name) == name, sample["key"]
    return found


def drawn(out: Path) -> dict[str, float]:
    return {sample["key"]: sample["drawn"] for sample in shardctl.open(out)}


@pytest.mark.parametrize("form", FORMS)
def test_the_key_decides_the_split_whatever_the_file_and_the_place_in_it(tmp_path, out, form):
    """It is that of `shardctl.write`, too, so that a split says the same of all datasets of a
    project."""
    (tmp_path / "in").mkdir()
    FORMS[form](tmp_path / "in" / f"a.{form}", rows(100))
    more = {"key_field": "__key__"} if form == "tar" else {}
    shardctl.convert(tmp_path / "in", out, recipe=recipe(**more), **KEYED)
    written = ({"key": row["id"], "text": row["text"]} for row in rows(100))
    shardctl.write(tmp_path / "written", written, split=SHARES)
    found = split_of(out)
    assert found == split_of(tmp_path / "written")
    assert 25 < list(found.values()).count("val") < 55


@given(data=st.data())
@examples(18)
def test_a_key_stays_in_its_split_and_keeps_its_random_numbers(data, tmp_path_factory):
    """Rows come, go and change their places and their files, and the dataset follows."""
    root = tmp_path_factory.mktemp("history")
    form = data.draw(st.sampled_from(("jsonl", "csv")))
    known: dict[str, tuple[str, float]] = {}
    of_file = st.lists(st.integers(0, 40), min_size=1, max_size=30, unique=True)
    (root / "in").mkdir()
    for generation in range(data.draw(st.integers(2, 3))):
        numbers = data.draw(st.lists(of_file, min_size=1, max_size=2))
        for path in (root / "in").iterdir():
            path.unlink()
        seen = set[int]()
        for place, several in enumerate(numbers):
            own = [rows(41)[number] for number in several if number not in seen]
            seen.update(several)
            if own:
                FORMS[form](root / "in" / f"{place}.{form}", own)
                os.utime(root / "in" / f"{place}.{form}", (0, generation + 1))
        result = shardctl.convert(
            root / "in", root / "out", recipe=recipe("draws"), update=True, **KEYED
        )
        assert not [warning for warning in result.warnings if "another split" in warning]
        splits, values = split_of(root / "out"), drawn(root / "out")
        assert sorted(splits) == sorted(f"k{number:02}" for number in seen)
        for key, split in splits.items():
            assert known.setdefault(key, (split, values[key])) == (split, values[key])


def test_pixels_of_random_steps_are_those_of_the_key(tmp_path):
    def photo(number: int) -> dict[str, Any]:
        stream = io.BytesIO()
        pixels = np.random.default_rng(number).integers(0, 256, (24, 24, 3), np.uint8)
        Image.fromarray(pixels).save(stream, "PNG")
        return {"id": f"k{number:02}", "image": {"bytes": stream.getvalue(), "path": None}}

    photos = [photo(number) for number in range(12)]
    made = []
    for name, several in (
        ("one", [photos]),
        ("other", [photos[:0:-2], photos[1::-2] + photos[-2::-2]]),
    ):
        (tmp_path / name).mkdir()
        for place, some in enumerate(several):
            parquet.write_table(pa.Table.from_pylist(some), tmp_path / name / f"{place}.parquet")
        steps = [{"name": "random_crop", "size": 8}, {"name": "hflip"}]
        settings = {
            "kind": "image",
            "image_field": "image",
            "key_field": "id",
            "store": "raw",
            "transform": steps,
        }
        shardctl.convert(tmp_path / name, tmp_path / f"{name}-out", recipe=settings, **KEYED)
        ds = shardctl.open(tmp_path / f"{name}-out")
        made.append({sample["key"]: sample["image"].tobytes() for sample in ds})
        assert len(set(made[-1].values())) == 12
    assert made[0] == {key: made[1][key] for key in made[0]}


def sums(out: Path) -> str:
    return (out / "SHA256SUMS").read_text()


def damaged(path: Path) -> Path:
    """Write lines of which some are no JSON, have no key, or a number for one."""
    lines = [json.dumps(row) for row in rows(60)]
    for number in range(0, 60, 5):
        lines[number] = '{"id": ' if number % 10 else '{"id": null, "text": "no key"}'
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("zipped", [False, True])
def test_a_record_without_a_key_is_a_reject_of_one_split_also_in_repair(tmp_path, out, zipped):
    source = damaged(tmp_path / "a.jsonl")
    if zipped:
        (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(source.read_bytes()))
        source = tmp_path / "a.jsonl.gz"
    result = shardctl.convert(source, out, recipe=recipe("draws"), **KEYED)
    assert (result.samples, result.rejected) == (48, 12)
    rejects = [reject.key for reject in rejects_of(out)]
    assert sorted(rejects) == sorted(f"{source.name}#{number + 1}" for number in range(0, 60, 5))
    assert shardctl.verify(out, "deep").findings == ()
    whole = sums(out)
    for names in (
        [*out.glob("*-0*.arrow")],
        [out / "plan.arrow", out / "val-00000.arrow"],
    ):
        for path in names:
            path.unlink()
        assert repair(out, [source], transforms=["keyed_steps:draws"]).status == "repaired"
        assert sums(out) == whole


def test_a_key_that_does_not_fit_the_schema_costs_its_record(tmp_path, out):
    lines = [{"id": number if number != 7 else "seven", "text": "a"} for number in range(30)]
    write_lines(tmp_path / "a.jsonl", lines)
    result = shardctl.convert(
        tmp_path / "a.jsonl",
        out,
        recipe=recipe(schema="id:int64,text:string"),
        **KEYED,
    )
    assert (result.samples, result.rejected) == (29, 1)
    assert [reject.key for reject in rejects_of(out)] == ["a.jsonl#8"]
    write_lines(tmp_path / "b.jsonl", [{**line, "id": str(line["id"])} for line in lines])
    shardctl.convert(tmp_path / "b.jsonl", tmp_path / "text", recipe=recipe(), **KEYED)
    assert split_of(out).items() <= split_of(tmp_path / "text").items(), "7 and '7' are one key"


def test_an_empty_key_that_comes_twice_is_named(tmp_path, out):
    write_lines(
        tmp_path / "a.jsonl",
        [{"id": "" if number < 2 else f"k{number}", "text": "a"} for number in range(9)],
    )
    result = shardctl.convert(tmp_path / "a.jsonl", out, recipe=recipe(), **KEYED)
    assert any(
        '1 sample has the key of another one, for instance "" (an empty text); ' in each
        for each in result.warnings
    )


@pytest.mark.thorough
def test_records_that_end_workers_are_rejects_of_one_split(tmp_path, out):
    write_lines(tmp_path / "a.jsonl", rows(40))
    result = shardctl.convert(
        tmp_path / "a.jsonl", out, recipe=recipe("leaves"), **{**KEYED, "workers": 1}
    )
    assert (result.samples, result.rejected) == (38, 2)
    rejects = rejects_of(out)
    assert {(reject.key, reject.stage, reject.error) for reject in rejects} == {
        (f"a.jsonl#{number}", "transform", "exited") for number in (8, 12)
    }
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
    from shardctl.sources.formats import jsonl

    (tmp_path / "deadly_parser.py").write_text(DEADLY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(jsonl, "_parse_fast", jsonl._parse_fast)  # this process imports it too
    (tmp_path / "in").mkdir()
    for name, of in (("a", rows(24)), ("b", [{**row, "id": f"b{row['id']}"} for row in rows(24)])):
        write_lines(tmp_path / "in" / f"{name}.jsonl", of)
    settings = recipe(schema="id:string,text:string")
    settings["transform"] = [{"name": "custom", "target": "deadly_parser:same"}]
    result = shardctl.convert(tmp_path / "in", out, recipe=settings, **{**KEYED, "workers": 1})
    assert (result.samples, result.rejected) == (47, 1)
    (reject,) = rejects_of(out)
    assert (reject.key, reject.stage, reject.error, reject.records) == (
        "a.jsonl#8",
        "read",
        "exited",
        1,
    )


def test_memory_that_runs_out_for_one_key_costs_its_record(tmp_path, out, monkeypatch):
    from shardctl.sources.formats import jsonl

    parse = jsonl._parse_fast

    def short_of_memory(data: bytes, *more: Any) -> Any:
        if b'"k07"' in data:
            raise MemoryError
        return parse(data, *more)

    write_lines(tmp_path / "a.jsonl", rows(40))
    settings = recipe(schema="id:string,text:string")
    monkeypatch.setattr(jsonl, "_parse_fast", short_of_memory)
    result = shardctl.convert(tmp_path / "a.jsonl", out, recipe=settings, **KEYED)
    assert (result.samples, result.rejected) == (39, 1)
    (reject,) = rejects_of(out)
    assert (reject.key, reject.error) == ("a.jsonl#8", "out-of-memory")


def grown(path: Path, of: list[dict[str, Any]], second: int) -> None:
    write_lines(path, of)
    os.utime(path, (0, second))


def warned(result: shardctl.making.convert.ConvertResult) -> list[str]:
    return [warning for warning in result.warnings if "another split" in warning]


def test_an_update_warns_of_records_whose_split_is_that_of_their_number(tmp_path, out, cli):
    """Of each file that has changed, and of no other one."""
    source = tmp_path / "in"
    source.mkdir()
    for name in "abc":
        grown(source / f"{name}.jsonl", rows(40), 1)
    options: dict[str, Any] = {"split": SHARES, "workers": 0, "update": True}
    assert warned(shardctl.convert(source, out, **options)) == []
    grown(source / "a.jsonl", rows(40)[1:], 3)
    grown(source / "b.jsonl", rows(41), 3)
    (warning,) = warned(shardctl.convert(source, out, **options, dry_run=True))
    assert "(2 changed, 0 gone, 0 new)" in warning
    assert "key_field keeps it" in warning
    ran = cli("convert", source, out, "--update", "--split", SHARES, "--workers", 0, "--json")
    assert (ran.code, warned_json(ran)) == (0, [warning.replace("key_field", "--key-field")])
    assert warned(shardctl.convert(source, out, **options)) == [], "nothing has changed since"


def warned_json(ran: Any) -> list[str]:
    return [warning for warning in ran.json["warnings"] if "another split" in warning]


RENAMED: dict[str, Any] = {"split": SHARES, "workers": 0, "update": True}


def test_an_update_says_that_files_went_and_others_came(tmp_path, out):
    """As logs that are rotated: the path is part of the key."""
    source = tmp_path / "in"
    source.mkdir()
    for number in range(3):
        FORMS["jsonl"](source / f"{number}.jsonl", rows(40))
    shardctl.convert(source, out, **RENAMED)
    for number in range(2):
        (source / f"{number}.jsonl").unlink()
        FORMS["jsonl.gz"](source / f"{number}.jsonl.gz", rows(40))
    (warning,) = warned(shardctl.convert(source, out, **RENAMED))
    assert "(0 changed, 2 gone, 2 new)" in warning
    (source / "2.jsonl").unlink()
    assert warned(shardctl.convert(source, out, **RENAMED)) == [], "nothing came"
    FORMS["jsonl"](source / "3.jsonl", rows(12))
    assert warned(shardctl.convert(source, out, **RENAMED)) == [], "nothing went"


def test_it_warns_also_where_all_shards_are_made_anew_and_where_it_was_stopped(
    tmp_path, out, monkeypatch
):
    source = tmp_path / "a.jsonl"
    options: dict[str, Any] = {
        "split": SHARES,
        "workers": 0,
        "update": True,
        "samples_per_shard": 10,
    }
    grown(source, rows(40), 1)
    shardctl.convert(source, out, **options)
    grown(source, [{**row, "more": 1} for row in rows(39)], 2)
    anew = shardctl.convert(source, out, **options)
    assert anew.changes is not None
    assert anew.changes.anew
    assert len(warned(anew)) == 1
    grown(source, [{**row, "more": 1} for row in rows(30)], 3)

    def stops(*_: Any) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped:
        stopped.setattr("shardctl.making.convert.run.build", stops)
        with pytest.raises(KeyboardInterrupt):
            shardctl.convert(source, out, **options)
    assert len(warned(shardctl.convert(source, out, **options))) == 1


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("ending", [".jsonl", ".jsonl.gz", ".csv", ".csv.gz", ".json", ".json.gz"])
def test_keys_that_do_not_fit_their_type_cost_their_records(tmp_path, ending):
    """The others are in the splits that they are in without these."""
    bad = (0, 1, 700, 701, 999)
    found: list[dict[str, list[int]]] = []
    for name in ("good", "bad"):
        of = [
            {"id": "x" if name == "bad" and number in bad else number, "n": number}
            for number in range(1000)
        ]
        if "csv" in ending:
            data = "id,n\n" + "".join(f"{row['id']},{row['n']}\n" for row in of)
        else:
            data = json.dumps(of) if ending.startswith(".json") and "jsonl" not in ending else ""
            data = data or "".join(json.dumps(row) + "\n" for row in of)
        source = tmp_path / f"{name}{ending}"
        source.write_bytes(
            gzip.compress(data.encode()) if ending.endswith(".gz") else data.encode()
        )
        settings = {"kind": "table", "key_field": "id", "schema": "id:int64,n:int64"}
        convert(source, tmp_path / f"out-{name}", settings, split=SHARES)
        splits = [
            shardctl.open(tmp_path / f"out-{name}", split=split) for split in ("train", "val")
        ]
        found.append(
            {ds.split: sorted(row["n"] for row in ds if row["n"] not in bad) for ds in splits}
        )
    assert found[0] == found[1]
    rejected = [reject.key.rpartition("#")[2] for reject in rejects_of(tmp_path / "out-bad")]
    assert sorted(map(int, rejected)) == [number + 1 for number in bad]


def test_one_key_that_does_not_fit_does_not_have_the_others_read_one_by_one(
    tmp_path, out, monkeypatch
):
    of = [{"id": "x" if number == 1000 else number, "text": "t"} for number in range(20_000)]
    source = tmp_path / "a.jsonl.gz"
    source.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in of).encode()))
    calls = 0
    parse = JsonLines.parse

    def counted(self: JsonLines, *given: Any) -> Parsed:
        nonlocal calls
        calls += 1
        return parse(self, *given)

    monkeypatch.setattr(JsonLines, "parse", counted)
    settings = {"kind": "table", "key_field": "id", "schema": "id:int64,text:string"}
    shards = {"split": SHARES, "samples_per_shard": 20_000}
    assert convert(source, out, settings, **shards).rejected == 1
    assert calls < 2000
