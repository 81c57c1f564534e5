"""Exports to a file for each sample: the files are known by SHA256SUMS, and shardctl.json does not
grow with them."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from dataset_facts import tree
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import convert
from PIL import Image

import shardctl
from shardctl.errors import InputError, StorageError
from shardctl.format.names import CHECKSUMS
from shardctl.interop.exports.loose_files import NameSet
from shardctl.interop.exports.staging import Staging
from shardctl.sources.export_description import DESCRIPTION, Description

FORMS = {"files": "train/0007.jpg", "coco": "train/0007.jpg", "yolo": "labels/train/0007.txt"}
"""The forms, and one of the files that they write."""

SAMPLES = 200


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "JPEG")
    objects = {"category": [0], "bbox": [[1.0, 1.0, 4.0, 4.0]]}
    rows = [
        {"key": f"{number:04d}.jpg", "image": stream.getvalue(), "objects": objects}
        for number in range(SAMPLES)
    ]
    folder = tmp_path_factory.mktemp("marked") / "in"
    roles = {"objects": {"role": "objects", "names": ["cat"]}}
    shardctl.write(
        folder, {"train": rows[:150], "val": rows[150:]}, roles=roles, samples_per_shard=40
    )
    return folder


@pytest.fixture(scope="module", params=FORMS)
def whole(
    marked: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder: Path = tmp_path_factory.mktemp("whole") / request.param
    result = shardctl.export(marked, folder, request.param, workers=2)
    images = (2 if request.param == "yolo" else 1) * SAMPLES
    assert (result.loose_files, len(result.files) < 5) == (images, True)
    there = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert result.bytes == there - sum(
        (folder / name).stat().st_size for name in (DESCRIPTION, CHECKSUMS)
    )
    return folder


@pytest.fixture
def out(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / whole.name))


@pytest.mark.thorough(after=1)
def test_the_description_has_no_line_for_each_file_and_the_checksums_have(out):
    export = Description.load(out)
    assert export.loose is not None
    assert (out / DESCRIPTION).stat().st_size < 5000
    there = sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
    summed = [line.partition("  ")[2] for line in (out / CHECKSUMS).read_text().splitlines()]
    assert sorted([*summed, DESCRIPTION, CHECKSUMS]) == there
    assert export.loose.files == len(summed) - len(export.files)
    assert Description.from_json(json.loads(export.dumps())) == export


def test_a_class_that_is_called_as_a_split_is_none(tmp_path):
    folders = {"train": ("cat", "val"), "val": ("cat", "val")}
    for split, classes in folders.items():
        for name in classes:
            (tmp_path / "in" / split / name).mkdir(parents=True)
            (tmp_path / "in" / split / name / "a.txt").write_text(f"{split}\n{name}\n")
    convert(tmp_path / "in", tmp_path / "dataset")
    shardctl.export(tmp_path / "dataset", tmp_path / "out", "files", workers=0)
    recipe = {"kind": "text", "record": "line"}
    convert(tmp_path / "out", tmp_path / "back", recipe=recipe, labels="none")
    texts = {
        split: {row["text"] for row in shardctl.open(tmp_path / "back", split=split)}
        for split in folders
    }
    # metadata.jsonl has lines too
    assert texts == {"train": {"train", "cat", "val", None}, "val": {"val", "cat", None}}


def test_it_is_replaced_only_where_nothing_else_would_be_lost(marked, out):
    mine = (out / FORMS[out.name]).with_name("mine.jpg")
    mine.write_bytes(b"mine")
    with pytest.raises(StorageError, match=r"is not of an export \(.*mine\.jpg\)"):
        shardctl.export(marked, out, out.name, workers=0, overwrite=True)
    mine.unlink()
    # a list to which somebody has added a file does not make it one of the export
    with open(out / CHECKSUMS, "a") as sums:
        sums.write(f"{'0' * 64}  {mine.relative_to(out).as_posix()}\n")
    with pytest.raises(StorageError, match="SHA256SUMS is lost or changed"):
        shardctl.export(marked, out, out.name, workers=0, overwrite=True)
    assert mine.parent.exists()
    shutil.rmtree(out)
    shardctl.export(marked, out, out.name, workers=0)
    assert shardctl.export(marked, out, out.name, workers=0, overwrite=True).samples == SAMPLES


def test_folders_may_be_deeper_than_python_calls_itself(marked, tmp_path):
    subprocess.run(["mkdir", "-p", tmp_path / "out" / "/".join(["d"] * 1100)], check=True)
    try:
        with pytest.raises(StorageError, match=r"is not of an export \(d\)"):
            shardctl.export(marked, tmp_path / "out", "files", workers=0, overwrite=True)
    finally:
        subprocess.run(["rm", "-r", tmp_path / "out"], check=True)


def test_a_file_that_is_lost_or_cut_is_told(out, tmp_path):
    file = out / FORMS[out.name]
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(InputError, match="its files of one sample each have "):
        convert(out, tmp_path / "back", recipe={"kind": "image"})
    file.unlink()
    with pytest.raises(InputError, match=rf"lists .*{file.name}, which is not there; get it"):
        convert(out, tmp_path / "back", recipe={"kind": "image"})
    (out / CHECKSUMS).unlink()
    with pytest.raises(InputError, match="its SHA256SUMS is lost or changed"):
        convert(out, tmp_path / "back", recipe={"kind": "image"})


def test_names_that_lead_out_of_the_export_are_not_looked_up(out, tmp_path):
    (tmp_path / "secret").write_text("x")
    with open(out / CHECKSUMS, "a") as sums:
        sums.write(f"{'0' * 64}  train/../../secret\n")
    record = json.loads((out / DESCRIPTION).read_text())
    record["loose"]["sums"] = hashlib.sha256((out / CHECKSUMS).read_bytes()).hexdigest()
    (out / DESCRIPTION).write_text(json.dumps(record))
    with pytest.raises(InputError, match="its SHA256SUMS is lost or changed"):
        convert(out, tmp_path / "back", recipe={"kind": "image"})


KILLED = """
import os, pathlib, signal, sys
import shardctl
real = pathlib.Path.unlink
def unlink(path, missing_ok=False):
    real(path, missing_ok=missing_ok)
    if path.name == "SHA256SUMS":
        os.kill(os.getpid(), signal.SIGKILL)
pathlib.Path.unlink = unlink
shardctl.export(sys.argv[1], sys.argv[2], sys.argv[3], workers=0, overwrite=True)
"""


@pytest.mark.thorough
def test_an_export_that_is_killed_while_the_old_one_is_removed_goes_on(marked, out):
    ran = subprocess.run([sys.executable, "-c", KILLED, marked, out, out.name])
    assert ran.returncode == -signal.SIGKILL
    assert (out.parent / f"{out.name}.partial" / "old").exists()
    shardctl.export(marked, out, out.name, workers=0, overwrite=True)
    assert not (out.parent / f"{out.name}.partial").exists()


def test_nothing_is_written_again_if_only_the_last_step_failed(
    marked, whole, tmp_path, monkeypatch
):
    def fails(*_: object) -> None:
        raise StorageError("the server is away")

    out = tmp_path / "again"
    with monkeypatch.context() as failing:
        failing.setattr(Staging, "publish", fails)
        with pytest.raises(StorageError, match=r"the server is away\. 6 of 6 parts are done"):
            shardctl.export(marked, out, whole.name, workers=0)
    [staging] = (tmp_path / "again.partial").glob("*/files")
    before = {path.name: path.stat().st_ino for path in staging.rglob("*.jpg")}
    shardctl.export(marked, out, whole.name, workers=0)
    assert {path.name: path.stat().st_ino for path in out.rglob("*.jpg")} == before
    assert tree(out) == tree(whole)


def test_verify_compares_the_checksums_of_all_files(out, cli):
    files = len((out / CHECKSUMS).read_text().splitlines())
    whole = cli("verify", out)
    assert f"is whole (level full): {files} files, {SAMPLES} samples" in whole.out
    file = out / FORMS[out.name]
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    changed = cli("verify", out)
    assert (changed.code, f"error: {FORMS[out.name]}: wrong-checksum" in changed.out) == (1, True)
    file.unlink()
    assert f"error: {FORMS[out.name]}: missing-file" in cli("verify", out).out
    (out / CHECKSUMS).unlink()
    lost = cli("verify", out, "--json")
    assert (lost.code, [each["kind"] for each in lost.json["findings"]]) == (1, ["lost-checksums"])
    shown = cli("inspect", out)
    assert (shown.code, f"is an export of shardctl to {out.name}" in shown.err) == (2, True)


def test_a_part_whose_files_are_gone_is_written_again(marked, whole, tmp_path):

    def stop(done: int, _samples: int) -> None:
        if done > 100:
            raise KeyboardInterrupt

    out = tmp_path / "again"
    with pytest.raises(KeyboardInterrupt):
        shardctl.export(marked, out, whole.name, workers=0, progress=stop)
    [staging] = (tmp_path / "again.partial").glob("*/files")
    [lost] = staging.rglob(Path(FORMS[whole.name]).name)
    lost.unlink()
    shardctl.export(marked, out, whole.name, workers=0)
    assert (out / CHECKSUMS).read_bytes() == (whole / CHECKSUMS).read_bytes()
    assert (out / DESCRIPTION).read_bytes() == (whole / DESCRIPTION).read_bytes()


@given(st.lists(st.text(max_size=3)), st.text(max_size=3))
def test_a_set_of_names_has_the_names_that_it_was_given(names, other):
    found = NameSet(names)
    assert all(name in found for name in names)
    assert (other in found) == (other in names)
    assert bool(found) == bool(names)
    times = Counter(names)
    several = NameSet(names, 2)
    assert [name for name in times if name in several] == [
        name for name, count in times.items() if count > 1
    ]
