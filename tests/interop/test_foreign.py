"""Shards of other tools are shown and checked as they are."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest
from damage import flip
from dataset_files import shards_in, tables_in
from in_this_process import command_line, export
from PIL import Image
from pyarrow import parquet
from tars import write_numbered_tar

import shardctl
from shardctl.interop.foreign import is_foreign
from shardctl.interop.foreign_shards import check, look


@pytest.fixture
def tars(tmp_path: Path) -> Path:
    folder = tmp_path / "tars"
    folder.mkdir()
    write_numbered_tar(folder / "train-00000.tar", 40)
    write_numbered_tar(folder / "train-00001.tar", 2)
    return folder


def test_an_overview_has_the_files_the_fields_and_the_first_records(tars):
    found = look(tars, first=2, workers=0)
    assert (found.formats, found.files) == ({"webdataset": 2}, 2)
    assert (found.records, found.faults) == (42, {})
    assert found.schema == [("__key__", "string"), ("cls", "int64"), ("txt", "string")]
    assert found.first == [
        {"key": "train-00000.tar#1", "__key__": "0000", "cls": 0, "txt": "text 0"},
        {"key": "train-00000.tar#2", "__key__": "0001", "cls": 1, "txt": "text 1"},
    ]


def test_whole_shards_have_no_findings(tars):
    told: list[tuple[int, int]] = []
    result = check(tars, 0, lambda done, total: told.append((done, total)))
    assert (result.ok, result.shards, result.samples, result.findings) == (True, 2, 42, ())
    assert told[-1] == (42, 42)


def test_a_tar_without_its_end_is_told_and_is_no_damage(tars, cli):
    cut = tars / "train-00001.tar"
    cut.write_bytes(cut.read_bytes()[: 3 * 1024])  # the second sample lacks its second member
    result = check(tars, 0)
    (finding,) = result.findings
    assert (result.ok, result.samples) == (True, 42)
    assert (finding.severity, finding.kind) == ("warning", "no-end")
    ran = cli("verify", tars)
    assert ran.code == 0
    assert "warning: train-00001.tar: no-end: it has no end marker" in ran.out


def test_damage_is_found_with_the_file_and_the_record(tars):
    damaged = tars / "train-00000.tar"
    data = bytearray(damaged.read_bytes())
    at = data.index(b"text 7")
    data[at : at + 6] = b"\xff" * 6  # the member is no longer UTF-8
    damaged.write_bytes(data)
    (tars / "train-00001.tar").write_bytes((tars / "train-00001.tar").read_bytes()[: 3 * 512 + 3])
    for workers in (0, 2):
        result = check(tars, workers)
        found = {(finding.shard, finding.key, finding.kind) for finding in result.findings}
        assert found == {
            ("train-00000.tar", "train-00000.tar#8", "not-utf8"),
            ("train-00001.tar", None, "truncated"),  # nothing of it can be read
        }
        assert (result.ok, result.samples) == (False, 39)


def test_a_parquet_file_with_a_damaged_page_is_found(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(
        pa.table({"text": [f"some text {n}" for n in range(1000)]}), path, write_page_checksum=True
    )
    assert check(path, 0).ok
    flip(path, path.stat().st_size // 3)
    (finding,) = check(path, 0).findings
    assert finding.kind == "damaged"


def test_the_hashes_of_an_index_are_compared(dataset, tmp_path):
    shardctl.write(tmp_path / "texts", [{"text": f"text {n}"} for n in range(9)])
    export(tmp_path / "texts", tmp_path / "mds", "mds")
    (tmp_path / "mds" / "shardctl.json").unlink()  # it has checksums of its own
    assert check(tmp_path / "mds", 0).ok
    shard = tmp_path / "mds" / "train" / "shard.00000.mds"
    data = shard.read_bytes()
    shard.write_bytes(data.replace(b"text 3", b"text 4"))
    (finding,) = check(tmp_path / "mds", 0).findings
    assert (finding.kind, finding.shard) == ("wrong-hash", "train/shard.00000.mds")


def test_a_dataset_and_what_is_left_of_one_are_not_foreign(dataset, tars):
    assert is_foreign(tars)
    assert is_foreign(tars / "train-00000.tar")
    assert not is_foreign(dataset)
    assert not is_foreign(next(iter(shards_in(dataset))))
    (dataset / "manifest.json").unlink()
    assert not is_foreign(dataset)
    assert not is_foreign(tars / "missing.tar")


def test_the_commands_take_them(tars, cli):
    assert cli("verify", tars, "--json").json["samples"] == 42
    shown = cli("inspect", tars, "--head", 1).out
    assert "42 records in 2 files (2 webdataset)" in shown
    assert "train-00000.tar#1" in shown
    refused = cli("inspect", tars, "--stats")
    assert (refused.code, "--stats needs a dataset of shardctl" in refused.err) == (2, True)


@pytest.mark.thorough
def test_a_sheet_and_a_page_show_records_from_all_over_by_their_place(photos, tmp_path, cli):
    shardctl.convert(photos, tmp_path / "in", recipe={"store": "jpeg:90"}, workers=0)
    export(tmp_path / "in", tmp_path / "tars", "webdataset")
    (tmp_path / "tars" / "shardctl.json").unlink()
    (tables_in(tmp_path / "tars") / "SHA256SUMS").unlink()
    pages = ("--images", tmp_path / "sheet.png", "--html", tmp_path / "page.html")
    drawn = cli("inspect", tmp_path / "tars", *pages)
    assert (drawn.code, "60 images drawn to" in drawn.out) == (0, True)
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 1000
    page = (tmp_path / "page.html").read_text()
    assert f"60 of the 60 records of {tmp_path / 'tars'}, as shardctl converts them" in page
    assert "train-00000.tar#1<" in page
    assert "shardctl-scratch" not in page


ENDS_PYARROW = base64.b64decode(
    "UEFSMRUAFSgVKCwVBBUAFQYVBhwYBAIAAAAYBAEAAAAWACgEAgAAABgEAQAAABERAAAAAgAAAAQAAgAAAAQDAQAAAAIAAAAVBBlMNQAYBnNjaGVtYRUCADUC"
    "GAF4FQIVBkw8AAAANQQYBGxpc3QVAgAVAiUCGAdlbGVtZW50JR5MrBMIEQAAABYEGRwZHCYAHBUCGSUGABk4AXgEbGlzdAdlbGVtZW50FQAWBBaGARaGASYI"
    "PBgEAgAAABgEAQAAABYAKAQCAAAAGAQBAAAAEREAGRwVABUAFQIAPCkmBAAZGQAAAAQAAAAWhgEWBCYIFoYBACggcGFycXVldC1jcHAtYXJyb3cgdmVyc2lv"
    "biAyNi4wLjEZHBwAAADVAAAAUEFSMQ=="
)
"""A Parquet file with one wrong byte in its footer: pyarrow 26 ends the process that asks it for
the sizes of its columns."""


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(
    "command",
    [
        "verify a.parquet",
        "inspect a.parquet",
        "inspect a.parquet --images out.png",
        "advise a.parquet --consumer-rate 100",
        "convert a.parquet out",
    ],
)
def test_a_file_that_ends_its_library_ends_no_command(command, tmp_path):
    (tmp_path / "a.parquet").write_bytes(ENDS_PYARROW)
    words = command_line(*command.split())
    ran = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert 1 <= ran.returncode <= 9, ran
    assert "a.parquet" in ran.stdout + ran.stderr
    assert "damaged" in ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.thorough
@pytest.mark.usefixtures("short_rounds")
def test_advice_names_what_cannot_be_read(tmp_path, cli):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.parquet").write_bytes(ENDS_PYARROW)
    parquet.write_table(
        pa.table({"text": ["one", "two", "three"] * 20}), tmp_path / "in" / "b.parquet"
    )
    ran = cli("advise", tmp_path / "in", "--consumer-rate", "1000")
    assert ran.code == 0, ran.err
    assert "not read or converted: a.parquet: the process that looked at it was ended" in ran.out
