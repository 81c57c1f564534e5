"""Damage a real dataset, expect the finding by name."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import CROP, without_privileges
from damage import DAMAGE, SHARD, edit_manifest, file_of, flip
from dataset_files import shard_in, shards_in, tables_in
from forged_datasets import read_table, replace_column, write_manifest, write_table
from in_this_process import convert, repair
from PIL import Image

import shardctl
from shardctl.errors import DatasetError, WorkerError
from shardctl.format.dataset_folder import dataset_in
from shardctl.inspection.verify.tables import check_manifest
from shardctl.system.folders import LocalFolder
from shardctl.system.processes.worker_state import FATAL_KILLS


@pytest.fixture
def in_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], object]:
    """Have the processes that check run a program first."""
    monkeypatch.syspath_prepend(tmp_path)
    return (tmp_path / "sitecustomize.py").write_text


def kinds(target: Path, level: str = "full") -> list[str]:
    return [finding.kind for finding in shardctl.verify(target, level).findings]


@pytest.mark.thorough(after=8)
@pytest.mark.parametrize(("level", "damage", "kind", "shard"), DAMAGE)
def test_damage_is_found_and_named(dataset, level, damage, kind, shard):
    assert shardctl.verify(dataset, level).ok
    damage(dataset)
    result = shardctl.verify(dataset, level)
    assert not result.ok
    assert (kind, shard) in {(finding.kind, finding.shard) for finding in result.findings}


def test_a_damaged_block_names_its_samples_and_their_source(dataset, photos):
    flip(shard_in(dataset, SHARD))
    (finding,) = shardctl.verify(dataset).findings
    first = shardctl.open(dataset).take([17], columns=["key"])["key"][0]
    assert (finding.row, finding.key, finding.source) == (0, first, f"{photos.resolve()}/{first}")
    assert f"it holds 8 samples, from {first} to " in finding.message
    assert "`shardctl repair` builds it again" in finding.message


def test_a_flipped_bit_that_changes_no_value_is_found_too(dataset):
    """The case of a hex digit in an escape is no value of the JSON, so the digest of the values
    still holds."""
    path = dataset / "manifest.json"
    write_manifest(dataset, {**json.loads(path.read_text()), "created": "\u00ea"})
    assert shardctl.verify(dataset, "quick").ok
    path.write_text(path.read_text().replace("\\u00ea", "\\u00eA"))
    assert shardctl.open(dataset).manifest.created == "\u00ea"
    assert kinds(dataset, "quick") == ["damaged-manifest"]


def test_every_single_flipped_bit_of_the_manifest_is_found(dataset):
    data = (dataset / "manifest.json").read_bytes()
    for place in range(0, len(data), 7):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        (dataset / "manifest.json").write_bytes(flipped)
        (finding,) = check_manifest(dataset_in(dataset))[1]
        assert finding.severity == "error", f"byte {place}"


def test_with_a_damaged_table_of_shards_the_shards_are_checked_all_the_same(dataset):
    flip(tables_in(dataset) / "shards.arrow")
    flip(shard_in(dataset, SHARD))
    result = shardctl.verify(dataset)
    assert SHARD in {finding.shard for finding in result.findings}
    assert result.shards == 7


def test_with_a_damaged_manifest_everything_else_is_checked_all_the_same(dataset):
    edit_manifest(dataset)
    flip(tables_in(dataset) / "plan.arrow")
    flip(shard_in(dataset, SHARD))
    (shard_in(dataset, "train-00004")).unlink()
    (dataset / "notes.txt").write_text("mine")
    result = shardctl.verify(dataset)
    assert [(finding.kind, finding.shard) for finding in result.findings] == [
        ("damaged-manifest", None),
        ("wrong-checksum", None),
        ("extra-file", None),
        ("wrong-checksum", SHARD),
        ("missing-shard", "train-00004"),
    ]
    assert result.shards == 7


def test_a_dataset_that_lost_its_manifest_is_damaged_and_not_absent(dataset):
    (dataset / "manifest.json").unlink()
    assert kinds(dataset) == ["missing-manifest"]


def test_a_dataset_without_its_manifest_and_the_copy_is_no_dataset(dataset):
    (dataset / "manifest.json").unlink()
    (tables_in(dataset) / "manifest.json").unlink()
    for check in (shardctl.verify, shardctl.repair):
        with pytest.raises(DatasetError, match=r"lacks manifest.json; its copy .* convert the sou"):
            check(dataset)


def test_a_dataset_that_was_being_put_in_place_is_unfinished_and_not_damaged(dataset):
    """Its files are there, the manifest is still in the staging folder: convert goes on from that,
    repair would not."""
    (dataset / "manifest.json").unlink()
    (dataset / ".shardctl" / "job").mkdir(parents=True)
    (dataset / ".shardctl" / "job" / "job.json").write_text("{}")
    for check in (shardctl.verify, shardctl.repair):
        with pytest.raises(DatasetError, match="an unfinished conversion; run the same"):
            check(dataset)


def test_a_key_that_stands_twice_is_found(dataset):
    table = read_table(tables_in(dataset) / "files.arrow")
    paths = table["path"].to_pylist()
    paths[5] = paths[40]
    write_table(tables_in(dataset) / "files.arrow", replace_column(table, "path", paths))
    found = {(finding.kind, finding.key) for finding in shardctl.verify(dataset).findings}
    assert ("duplicate-key", paths[40]) in found


@pytest.fixture
def undecodable(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """A dataset that is whole, and holds an image that does not decode: as a library that decodes
    less would find it."""
    shutil.copytree(photos, tmp_path / "in")
    victim = sorted((tmp_path / "in").rglob("*.jpg"))[20]
    victim.write_bytes(victim.read_bytes()[:700])
    monkeypatch.setattr("shardctl.images.codecs.image.check", lambda opened: None)
    convert(tmp_path / "in", tmp_path / "out")
    return tmp_path / "out", victim.relative_to(tmp_path / "in").as_posix()


def test_only_deep_decodes_every_sample(undecodable):
    out, key = undecodable
    assert shardctl.verify(out, "full").ok
    (finding,) = shardctl.verify(out, "deep").findings
    assert (finding.kind, finding.key, finding.source) == (
        "does-not-decode",
        key,
        str(out.parent / "in" / key),
    )
    assert finding.shard is not None
    (alone,) = shardctl.verify(shard_in(out, finding.shard), "deep").findings
    assert (alone.kind, alone.key) == ("does-not-decode", key)
    assert (alone.block, alone.row) == (finding.block, finding.row)


@pytest.mark.thorough
def test_what_crashes_the_reader_is_a_finding(dataset, in_workers):
    """The processes that check get a reader that aborts at one shard, as a fault in Arrow could
    make it."""
    in_workers(
        "import os, shardctl.inspection.verify.worker as s\n"
        "real = s.ShardReader\n"
        f"s.ShardReader = lambda folder, name: os.abort() if {SHARD!r} in name else real(folder, "
        "name)\n"
    )
    (finding,) = shardctl.verify(dataset).findings
    assert (finding.kind, finding.shard) == ("crashes-reader", SHARD)
    assert "was ended by SIGABRT" in finding.message


@pytest.mark.thorough
def test_a_plan_that_crashes_the_reader_is_a_finding_and_the_shards_are_checked(
    dataset, in_workers
):
    in_workers(
        "import os, shardctl.inspection.verify.tables as t\nt.DatasetTables.units = lambda *given: "
        "os.abort()\n"
    )
    flip(shard_in(dataset, SHARD))
    plan, shard = shardctl.verify(dataset).findings
    assert (plan.kind, shard.kind, shard.shard) == ("crashes-reader", "wrong-checksum", SHARD)
    assert "plan: the process that read it was ended by SIGABRT" in plan.message


@pytest.mark.thorough
def test_a_lone_shard_that_crashes_the_reader_is_a_finding(dataset, in_workers):
    in_workers(
        "import os, shardctl.inspection.verify.worker as s\ns.ShardReader = lambda folder, name: "
        "os.abort()\n"
    )
    (finding,) = shardctl.verify(shard_in(dataset, SHARD)).findings
    assert (finding.kind, finding.shard) == ("crashes-reader", shard_in(dataset, SHARD).name)


def test_an_image_that_crashes_its_decoder_is_a_finding(photos, out, in_workers):
    convert(photos, out)
    in_workers(
        "import os, shardctl.inspection.verify.shard_checks as s\n"
        "real = s._decode_fault\n"
        "s._decode_fault = lambda data, *more: os.abort() if len(data) % 7 == 3 else real(data, "
        "*more)\n"
    )
    fatal = {
        path.relative_to(photos).as_posix()
        for path in photos.rglob("*.*")
        if path.stat().st_size % 7 == 3
    }
    found = shardctl.verify(out, "deep").findings
    assert {finding.key for finding in found} == fatal
    assert all("its decoder crashes" in finding.message for finding in found)


def test_a_file_that_does_not_belong_is_a_warning(dataset):
    (dataset / "notes.txt").write_text("mine")
    result = shardctl.verify(dataset, "quick")
    assert result.ok
    assert [(finding.severity, finding.kind) for finding in result.findings] == [
        ("warning", "extra-file")
    ]


def test_a_shard_of_another_dataset_with_the_same_name_is_found(dataset, demo, tmp_path):
    convert(demo / "photos", tmp_path / "other", recipe={**CROP, "store": "png"})
    shutil.copy(shard_in(tmp_path / "other", SHARD), shard_in(dataset, SHARD))
    assert kinds(dataset, "quick") == ["wrong-size"]


@pytest.mark.parametrize("level", ["quick", "full"])
def test_two_swapped_shards_of_one_size_are_found(tmp_path, out, level):
    for name in ("1.png", "2.png"):
        (tmp_path / "in").mkdir(exist_ok=True)
        Image.new("RGB", (8, 8), int(name[0])).save(tmp_path / "in" / name)
    convert(tmp_path / "in", out, recipe=CROP, samples_per_shard=1)
    one, other = shards_in(out)
    assert one.stat().st_size == other.stat().st_size
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)
    found = {(finding.shard, finding.kind) for finding in shardctl.verify(out, level).findings}
    assert found == {("train-00000", "wrong-shard"), ("train-00001", "wrong-shard")}


def test_a_lone_shard_proves_itself(dataset, tmp_path):
    lone = tmp_path / "lone.arrow"
    shutil.copy(shard_in(dataset, SHARD), lone)
    assert shardctl.verify(lone).samples == 8
    assert shardctl.verify(lone).ok
    flip(lone)
    (finding,) = shardctl.verify(lone).findings
    assert (finding.kind, finding.shard, finding.block) == ("wrong-checksum", "lone.arrow", 0)
    lone.write_bytes(b"")
    assert kinds(lone) == ["unreadable-shard"]


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("level", ["quick", "full"])
def test_files_that_may_not_be_read_are_findings(dataset, level):
    for name in (SHARD, "plan.arrow", "SHA256SUMS"):
        file_of(dataset, name).chmod(0)
    ran = without_privileges("verify", dataset, "--level", level, "--json")
    assert (ran.returncode, ran.stderr) == (1, "")
    findings = json.loads(ran.stdout)["findings"]
    assert {finding["kind"] for finding in findings} == {"unreadable-file"}
    assert [finding["shard"] for finding in findings] == [None, None, SHARD]
    assert "plan.arrow cannot be read (Permission denied)" in findings[1]["message"]


@pytest.mark.thorough
def test_files_that_may_not_be_read_are_findings_without_a_manifest_too(dataset):
    for name in (SHARD, "plan.arrow", "manifest.json"):
        file_of(dataset, name).chmod(0)
    ran = without_privileges("verify", dataset, "--json")
    findings = json.loads(ran.stdout)["findings"]
    said = [finding["shard"] or finding["message"].partition(" ")[0] for finding in findings]
    assert said == ["manifest.json", "plan.arrow", SHARD]
    assert {finding["kind"] for finding in findings} == {"unreadable-file"}


UNREADABLE = f"""
import errno, os
from shardctl.system.folders import LocalFolder
real = LocalFolder.chunks
def fail(folder, name):
    if {SHARD!r} in name:
        raise OSError(errno.EIO, os.strerror(errno.EIO), name)
    return real(folder, name)
LocalFolder.chunks = fail
"""


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("level", ["quick", "full", "deep"])
def test_a_shard_on_a_failing_disk_is_not_called_damaged_block_by_block(dataset, in_workers, level):
    """Where the disk fails, a mapped file reads as zeros (shardctl/system/mmap.py), here a changed
    byte; other reads fail."""
    in_workers(UNREADABLE)
    flip(shard_in(dataset, SHARD), -5 if level == "quick" else None)
    for target, shard in (
        (dataset, SHARD),
        (shard_in(dataset, SHARD), shard_in(dataset, SHARD).name),
    ):
        (finding,) = shardctl.verify(target, level).findings
        assert (finding.kind, finding.shard, finding.block) == ("unreadable-file", shard, None)
        assert "cannot be read (Input/output error)" in finding.message


def test_a_shard_that_is_deleted_while_it_is_checked_is_missing(dataset, in_workers):
    in_workers(
        "import shardctl.inspection.verify.result as s\n"
        "real = s.is_regular_file\n"
        f"gone = lambda folder, name: {SHARD!r} not in name or folder.path(name).unlink() is None\n"
        "s.is_regular_file = lambda folder, name: real(folder, name) and gone(folder, name)\n"
    )
    (finding,) = shardctl.verify(dataset).findings
    assert (finding.kind, finding.shard) == ("missing-shard", SHARD)


KILLED = """
import os, signal, shardctl.inspection.verify.{module} as s
real = s.{name}
def {name}(*given):
    if {where} and len(os.listdir({log!r})) < {times}:
        open(os.path.join({log!r}, str(os.getpid())), "w").close()
        os.kill(os.getpid(), signal.{signal})
    return real(*given)
s.{name} = {name}
"""


@pytest.fixture
def killed(tmp_path: Path, in_workers: Callable[[str], object]) -> Callable[..., Path]:
    """Have the processes that check killed `times` times, as an operator or a system out of memory
    would do it."""

    def arrange(
        times: int,
        name: str = "ShardReader",
        where: str = f"{SHARD!r} in given[1]",
        signal: str = "SIGKILL",
    ) -> Path:
        log = tmp_path / "kills"
        log.mkdir()
        module = "worker" if name == "ShardReader" else "shard_checks"
        facts = {"module": module, "name": name, "where": where, "times": times, "signal": signal}
        in_workers(KILLED.format(log=str(log), **facts))
        return log

    return arrange


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("signal", ["SIGKILL", "SIGTERM"])
def test_a_shard_is_checked_again_if_its_process_is_killed_from_outside(dataset, killed, signal):
    log = killed(FATAL_KILLS - 1, signal=signal)
    assert shardctl.verify(dataset).findings == ()
    assert shardctl.verify(shard_in(dataset, SHARD)).ok
    assert len(list(log.iterdir())) == FATAL_KILLS - 1


@pytest.mark.thorough
def test_processes_that_are_killed_again_and_again_end_the_check(dataset, killed):
    killed(100)
    for target in (dataset, shard_in(dataset, SHARD)):
        with pytest.raises(
            WorkerError,
            match=rf"{SHARD}.* was ended by SIGKILL, 4 times, .* check again",
        ):
            shardctl.verify(target)


@pytest.mark.thorough
def test_processes_that_are_killed_at_one_image_after_the_other_end_the_check(photos, out, killed):
    convert(photos, out)
    log = killed(100, "_decode_fault", "True")
    with pytest.raises(WorkerError, match="was ended by SIGKILL, 16 times"):
        shardctl.verify(out, "deep")
    assert len(list(log.iterdir())) < 40


@pytest.mark.thorough
def test_an_image_is_decoded_again_if_its_process_is_killed_from_outside(photos, out, killed):
    convert(photos, out)
    size = min(path.stat().st_size for path in photos.rglob("*.jpg"))
    log = killed(FATAL_KILLS - 1, "_decode_fault", f"len(given[0]) == {size}")
    assert shardctl.verify(out, "deep").findings == ()
    assert len(list(log.iterdir())) == FATAL_KILLS - 1


@pytest.mark.thorough
def test_an_image_whose_process_is_killed_every_time_is_a_finding(photos, out, killed):
    convert(photos, out)
    smallest = min(photos.rglob("*.jpg"), key=lambda path: path.stat().st_size)
    killed(100, "_decode_fault", f"len(given[0]) == {smallest.stat().st_size}")
    (finding,) = shardctl.verify(out, "deep").findings
    assert (finding.kind, finding.key) == (
        "does-not-decode",
        smallest.relative_to(photos).as_posix(),
    )
    assert "does not decode: the process that decodes it is killed every time" in finding.message


@pytest.mark.thorough(after=2)
@pytest.mark.parametrize("name", [SHARD, "manifest.json", "plan.arrow", "rejects.jsonl"])
def test_a_pipe_in_the_place_of_a_file_is_a_finding_and_is_not_waited_for(dataset, photos, name):
    path = file_of(dataset, name)
    path.unlink()
    os.mkfifo(path)
    kind = {"manifest.json": "damaged-manifest", SHARD: "missing-shard"}.get(name, "missing-file")
    assert kinds(dataset) == [kind]
    assert repair(dataset, [photos]).ok
    assert shardctl.verify(dataset).findings == ()


@pytest.mark.parametrize("name", ["rejects.jsonl", "shards.arrow"])
def test_inspect_does_not_wait_for_a_pipe_in_the_place_of_a_file(dataset, cli, name):
    path = file_of(dataset, name)
    path.unlink()
    os.mkfifo(path)
    ran = cli("inspect", dataset)
    assert (ran.code, f"{name}: not an ordinary file; `shardctl repair`" in ran.err) == (3, True)


def test_a_manifest_that_the_system_does_not_give_is_not_called_missing_and_not_replaced(
    dataset, monkeypatch
):
    """As on a server whose handle of the file has become stale: nothing else has what is in it."""
    stat, read = Path.stat, LocalFolder.read

    def stale(path: Path, **options: Any) -> os.stat_result:
        if path == dataset / "manifest.json":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return stat(path, **options)

    before = (dataset / "manifest.json").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", stale)
        patched.setattr(
            LocalFolder,
            "read",
            lambda folder, name, *part: (stale(folder.path(name)), read(folder, name, *part))[1],
        )
        assert kinds(dataset) == ["unreadable-file"]
        with pytest.raises(DatasetError, match=r"cannot be read \(Stale file handle\)"):
            repair(dataset)
    assert (dataset / "manifest.json").read_bytes() == before
