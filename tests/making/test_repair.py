"""Damage a real dataset in every way; repair brings back the same bytes, or says exactly what is
lost."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import CROP, without_privileges
from damage import file_of, flip
from dataset_facts import expect_whole, rejects_of, sums, tree
from dataset_files import shard_in, shards_in, tables_in
from followed_sources import digests_of, files_of, update, write, write_lines
from forged_datasets import write_manifest
from format_2 import as_format_2
from image_files import images
from in_this_process import convert, repair
from PIL import ImageOps
from stopping import stopped_at, stops

import shardctl
from shardctl.errors import DatasetError, UsageError
from shardctl.images.codecs import image
from shardctl.making.commit.target import Target
from shardctl.making.repair import Listener, recorded
from shardctl.making.repair.repairing import Repair
from shardctl.system.folders import LocalFolder

SHARD, OTHER = "train-00002", "train-00005"


def zero(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:200] + bytes(300) + data[500:])


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def swap(one: Path, other: Path) -> None:
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)


@pytest.fixture(scope="module")
def made(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """in/ with 60 photos and two files that are no images, and out/, its dataset."""
    root = tmp_path_factory.mktemp("repair")
    shutil.copytree(demo / "photos", root / "in")
    for name in ("coast/bad.jpg", "forest/bad.jpg"):
        write(root / "in" / name, "bad")
    convert(root / "in", root / "out", recipe=CROP, shuffle=4)
    return root


@pytest.fixture
def origin(made: Path) -> Path:
    return made / "in"


@pytest.fixture
def whole(made: Path) -> Path:
    return made / "out"


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    """The dataset, in which a test may do damage; its sources are where its manifest says: in the
    original."""
    return Path(shutil.copytree(whole, tmp_path / "copy"))


@pytest.fixture
def source(origin: Path, tmp_path: Path) -> Path:
    """The sources, which a test may change."""
    return Path(shutil.copytree(origin, tmp_path / "in"))


def manifests_of(out: Path) -> list[Path]:
    """Return the manifest and its copy, of which each brings back the other one."""
    return [out / "manifest.json", tables_in(out) / "manifest.json"]


def one_file(how: Callable[[Path], object], name: str, out: Path) -> None:
    how(file_of(out, name))


Damage = Callable[[Path], object]
DAMAGE: dict[str, Damage] = {
    **{f"{how.__name__} {name}": partial(one_file, how, name)
       for how in (flip, zero, cut, Path.unlink)
       for name in ("manifest.json", "plan.arrow", "shards.arrow", "SHA256SUMS", SHARD)},
    "flip rejects.jsonl": lambda out: flip(tables_in(out) / "rejects.jsonl"),
    "unlink rejects.jsonl": lambda out: (tables_in(out) / "rejects.jsonl").unlink(),
    "manifest and tables": lambda out: [flip(out / "manifest.json"), *map(flip, tables_in(out).glob("*.arrow"))],
    "empty manifest": lambda out: (out / "manifest.json").write_bytes(b""),
    "grown shard": lambda out: shard_in(out, SHARD).write_bytes(shard_in(out, SHARD).read_bytes() + b"more"),
    "swapped shards": lambda out: swap(shard_in(out, SHARD), shard_in(out, OTHER)),
    "swapped plan and shards": lambda out: swap(tables_in(out) / "plan.arrow", tables_in(out) / "shards.arrow"),
    "many shards": lambda out: [path.unlink() for path in shards_in(out)],
    "shard and checksums": lambda out: [flip(shard_in(out, SHARD)), flip(tables_in(out) / "SHA256SUMS")],
    "shard and table": lambda out: [flip(shard_in(out, SHARD)), flip(tables_in(out) / "shards.arrow")],
    "both lists of shards": lambda out: [flip(tables_in(out) / "SHA256SUMS"), flip(tables_in(out) / "shards.arrow")],
    "shard and plan": lambda out: [shard_in(out, SHARD).unlink(), flip(tables_in(out) / "plan.arrow")],
    "all "
    "tables": lambda out: [flip(tables_in(out) / n) for n in ("SHA256SUMS", "shards.arrow", "plan.arrow", "rejects.jsonl")],
}  # fmt: skip


@pytest.mark.thorough(after=8)
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_repair_brings_back_the_same_bytes(copy, whole, damage):
    damage(copy)
    result = repair(copy)
    assert (result.status, result.unrepaired, result.lost) == ("repaired", (), ())
    assert sums(copy) == sums(whole)
    assert tree(copy).keys() == tree(whole).keys()
    assert shardctl.repair(copy).status == "whole"


@pytest.mark.parametrize("source", ["../in", "in", "/data/../etc"])
def test_a_source_as_no_conversion_records_it_is_not_read(copy, made, source, monkeypatch):
    """Also where somebody has altered the manifest with its digest. What is read otherwise is told
    before."""
    monkeypatch.chdir(made)  # where `in` would be found
    record = json.loads((copy / "manifest.json").read_text())
    write_manifest(copy, {**record, "sources": [source]})
    shard_in(copy, SHARD).unlink()
    message = repair(copy).unrepaired[0].message
    assert "the manifest has impossible sources" in message
    write_manifest(copy, record)
    told: list[tuple[str, ...]] = []
    assert repair(copy, listener=Listener(reading=told.append)).status == "repaired"
    assert told == [(str(made / "in"),)]


def test_what_a_damaged_manifest_says_of_its_sources_is_not_believed(copy, origin, whole):
    path = copy / "manifest.json"
    path.write_text(path.read_text().replace(str(origin), "s3://somebody/else"))
    shard_in(copy, SHARD).unlink()
    told: list[tuple[str, ...]] = []
    assert repair(copy, listener=Listener(reading=told.append)).status == "repaired"
    assert told == [(str(origin),)]
    assert path.read_text() == (whole / "manifest.json").read_text()
    assert convert(origin, copy, recipe=CROP, shuffle=4).status == "up-to-date"


TOO_MUCH: dict[str, tuple[Damage, str]] = {
    "both damaged": (
        lambda out: [path.write_bytes(path.read_bytes()[:-9]) for path in manifests_of(out)],
        "damaged-manifest",
    ),
    "lost, and the copy is damaged": (
        lambda out: [flip(tables_in(out) / "manifest.json"), (out / "manifest.json").unlink()],
        "missing-manifest",
    ),
    "damaged, and the copy is lost": (
        lambda out: [(tables_in(out) / "manifest.json").unlink(), flip(out / "manifest.json")],
        "damaged-manifest",
    ),
    "both lost": (lambda out: [path.unlink() for path in manifests_of(out)], ""),
}


@pytest.mark.parametrize(("damage", "kind"), TOO_MUCH.values(), ids=TOO_MUCH.keys())
def test_without_the_manifest_and_its_copy_the_sources_are_to_be_converted_again(
    copy, cli, damage, kind
):
    damage(copy)
    before, tables = tree(copy), tables_in(copy).name
    ran = cli("repair", copy)
    assert ran.code == 3
    advice = (
        f"its copy in generations/{tables}/ cannot be used either; convert the sources again, "
        "into another folder"
    )
    assert f"{copy}: " in ran.err
    assert advice in ran.err
    if kind:
        (finding,) = shardctl.verify(copy).findings
        assert finding.kind == kind
        assert finding.message.endswith(advice)
    else:
        for call in (shardctl.verify, shardctl.open):
            with pytest.raises(
                DatasetError, match=rf"lacks manifest.json; its copy in .*/{tables}"
            ):
                call(copy)
    assert tree(copy) == before


@pytest.mark.parametrize("damage", [Path.unlink, flip])
def test_a_manifest_of_format_2_is_not_rebuilt(whole, cli, tmp_path, damage):
    """It has no copy."""
    out = as_format_2(whole, tmp_path / "old")
    damage(out / "manifest.json")
    before = tree(out)
    ran = cli("repair", out)
    assert ran.code == 3
    advice = "is of format 2; shardctl 1.0.0rc1 can rebuild its manifest (`shardctl repair`)"
    assert advice in ran.err
    ran = cli("verify", out)
    assert (ran.code, advice in ran.out + ran.err) == (3 if damage is Path.unlink else 1, True)
    assert tree(out) == before


def test_only_what_is_damaged_is_touched(copy):
    def times() -> dict[str, int]:
        files = (path for path in copy.rglob("*") if path.is_file() and path != shard)
        return {path.name: path.stat().st_mtime_ns for path in files}

    shard = shard_in(copy, SHARD)
    shard.unlink()
    before = times()
    assert shardctl.repair(copy, workers=1).repaired == (SHARD,)
    assert times() == before


@pytest.fixture
def with_lost(source: Path, out: Path) -> list[str]:
    """The keys of two samples in a damaged shard of `out`: one of their sources is gone and one has
    changed."""
    convert(source, out, recipe=CROP, shuffle=4)
    keys = shardctl.open(out).take(range(18, 24), columns=["key"])["key"]
    flip(shard_in(out, SHARD))
    (source / keys[1]).unlink()
    shutil.copyfile(source / keys[0], source / keys[3])
    return [keys[1], keys[3]]


def test_what_cannot_be_repaired_is_said_exactly(with_lost, out):
    flip(shard_in(out, OTHER))
    before = shard_in(out, SHARD).read_bytes()
    result = repair(out)
    assert result.status == "damaged"
    assert result.repaired == (OTHER,), "what can be mended is, all the same"
    (unrepaired,) = result.unrepaired
    assert unrepaired.file == SHARD
    said = f"2 of its samples cannot be made again, for instance {with_lost[0]}: its source is gone"
    assert unrepaired.message.startswith(said)
    reasons = [(lost.key, lost.reason.partition(" (")[0]) for lost in result.lost]
    said = ("its source is gone", "its source has changed")
    assert reasons == list(zip(with_lost, said, strict=True))
    assert shard_in(out, SHARD).read_bytes() == before


def test_lost_samples_are_dropped_on_request_and_recorded(with_lost, out):
    result = repair(out, drop_lost=True)
    assert (result.status, result.ok) == ("dropped", True)
    expect_whole(out, "deep")
    ds = shardctl.open(out)
    assert (len(ds), ds.manifest.rejected, ds.manifest.dropped) == (58, 4, 2)
    assert not set(with_lost) & set(ds.take(range(58), columns=["key"])["key"])
    rejects = {reject.key: (reject.stage, reject.error) for reject in rejects_of(out)}
    assert [rejects[key] for key in with_lost] == [("read", "lost")] * 2
    # earlier rejects keep their reasons
    assert rejects["coast/bad.jpg"] == ("decode", "not-an-image")
    assert repair(out).status == "whole"
    shard_in(out, SHARD).unlink()
    # a dataset that lost samples can be repaired again
    assert repair(out).status == "repaired"


@pytest.fixture
def dropping(tmp_path: Path) -> Path:
    """damaged/ has lost a sample, and has a file that is not part of it; dropped/ is what it should
    become."""
    images(tmp_path / "in", *(f"{n}.png" for n in range(4)))
    convert(tmp_path / "in", tmp_path / "damaged", samples_per_shard=2)
    flip(shard_in(tmp_path / "damaged", "train-00000"))
    (tmp_path / "in" / "1.png").unlink()
    (tmp_path / "damaged" / "mine.txt").write_text("not part of it")
    shutil.copytree(tmp_path / "damaged", tmp_path / "dropped")
    assert drop(tmp_path / "dropped").status == "dropped"
    return tmp_path


def drop(out: Path) -> Any:
    return repair(out, drop_lost=True)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["kill", "interrupt"])
def test_dropping_can_be_stopped_at_any_change(dropping, monkeypatch, how):
    """What is there is the old dataset or the new one, and the next repair leaves nothing else."""
    damaged, changes = dropping / "damaged", range(1000)
    before, after = digests_of(damaged), digests_of(dropping / "dropped")
    seen = set()
    for out in stops(changes, how, Repair, "_drop", damaged, drop, monkeypatch):
        found = digests_of(out)
        status = repair(out).status
        seen.add(status)
        assert found == digests_of(out) == (before if status == "damaged" else after)
        assert (out / "mine.txt").exists()
        count = len(list(out.glob("generations/*"))), len(list(out.glob("data/*")))
        assert count == ((1, 2) if status == "damaged" else (2, 3))
        if status == "damaged":
            drop(out)
    assert seen == {"damaged", "whole"}


def test_a_broken_off_conversion_survives_a_repair(dropping, monkeypatch):
    """A conversion with --overwrite was stopped when it had finished its shards; repair then
    replaces the folder."""
    damaged = dropping / "damaged"
    again = partial(convert, dropping / "in", damaged, samples_per_shard=1, overwrite=True)
    assert stopped_at(0, "kill", Target, "put", again, monkeypatch)
    assert drop(damaged).status == "dropped"
    assert digests_of(damaged) == digests_of(dropping / "dropped")
    assert again().status == "resumed"


def test_a_dataset_without_its_manifest_keeps_its_shards_when_its_repair_is_killed(
    dropping, monkeypatch
):
    out = dropping / "dropped"
    before = digests_of(out)
    shutil.rmtree(dropping / "in")
    (out / "manifest.json").unlink()
    mend = partial(repair, out)
    assert stopped_at(0, "kill", Repair, "_write_manifest", mend, monkeypatch)
    assert mend().ok
    assert digests_of(out) == before


def test_a_table_and_the_list_of_a_dataset_that_keeps_a_generation(dropping):
    out = dropping / "dropped"
    images(dropping / "in", "3.png", "9.png", "2.png", "0.png")
    convert(dropping / "in", out, samples_per_shard=2, update=True)
    assert shardctl.open(out).manifest.kept
    before = digests_of(out)
    for name in ("shards.arrow", "SHA256SUMS"):
        flip(tables_in(out) / name, 10)
    assert repair(out).ok
    assert digests_of(out) == before


def test_of_a_table_that_is_damaged_no_shard_is_taken_to_be_left_over(source, out):
    convert(source, out, recipe=CROP, shuffle=4)
    shutil.rmtree(source)
    table, shard = tables_in(out) / "shards.arrow", shard_in(out, SHARD)
    named = shard.name.encode()
    assert named in table.read_bytes()
    other = named.replace(b".arrow", b"")[:-1] + (b"0" if named[-7:-6] != b"0" else b"1")
    table.write_bytes(table.read_bytes().replace(named, other + b".arrow"))
    (tables_in(out) / "plan.arrow").unlink()
    assert not repair(out).ok
    assert shard.exists()


def test_a_worker_that_outlives_its_killed_repair_does_no_harm(dropping, monkeypatch):
    """It writes files into the folder of that repair, while the next one takes it away."""
    out = dropping / "damaged"
    assert stopped_at(0, "kill", Target, "put", partial(drop, out), monkeypatch)
    (left,) = (path for path in (out / ".shardctl").iterdir() if path.is_dir())
    real = os.rmdir

    def write_late(path: Any, *, dir_fd: int | None = None) -> None:
        if left.exists():
            (left / "late.partial").write_bytes(b"late")
        real(path, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", write_late)
        assert drop(out).status == "dropped"
    assert digests_of(out) == digests_of(dropping / "dropped")
    assert not (out / ".shardctl").exists()


def test_a_shard_that_is_called_as_the_manifest_is_not_written_over(copy):
    """It may be the only copy of its samples."""
    swap(shard_in(copy, SHARD), copy / "manifest.json")
    before = (copy / "manifest.json").read_bytes()
    with pytest.raises(DatasetError, match="an Arrow file, not a manifest; rename it"):
        repair(copy)
    assert (copy / "manifest.json").read_bytes() == before


def test_a_manifest_of_other_files_is_refused_and_no_other_file_is_taken_for_one(
    source, out, tmp_path
):
    """A copy of an earlier manifest is no substitute for one that is lost."""
    manifest, earlier = out / "manifest.json", out / "earlier.json"
    convert(source, out, recipe=CROP)
    shutil.copyfile(manifest, tmp_path / "earlier.json")
    files_of(source)[5].unlink()
    convert(source, out, recipe=CROP, overwrite=True, keep_generations=0)
    after, listed = sums(out), tables_in(out) / "SHA256SUMS"
    (tmp_path / "earlier.json").rename(earlier)
    manifest.unlink()
    assert repair(out).repaired == ("manifest.json",)
    assert (sums(out), shardctl.open(out).manifest.samples) == (after, 59)
    shutil.copyfile(earlier, manifest)
    with pytest.raises(DatasetError, match="belongs to another dataset than shards"):
        repair(out)
    assert listed.read_bytes() == after


def test_splits_that_an_export_has_given_names_are_no_classes(photos, tmp_path, out):
    convert(photos, tmp_path / "first", labels="none", split="aa=0.5,bb=0.5")
    shardctl.export(tmp_path / "first", tmp_path / "mds", "mds")
    convert(tmp_path / "mds", out)
    before = sums(out)
    flip(tables_in(out) / "files.arrow")
    assert repair(out).status == "repaired"
    assert sums(out) == before


def test_changed_sources_are_no_reason_to_lose_an_intact_shard(copy, source):
    """The plan is damaged, and cannot be made again: everything else stays, and loads."""
    files_of(source)[5].unlink()
    flip(tables_in(copy) / "plan.arrow")
    (unrepaired,) = repair(copy, sources=[source]).unrepaired
    assert unrepaired.file == "plan.arrow"
    assert "have 61 inputs now, and had 62" in unrepaired.message
    assert len(shardctl.open(copy).take(range(60))["image"]) == 60


def test_no_code_is_run_that_only_the_dataset_names(origin, out, tmp_path, monkeypatch):
    step = write(
        tmp_path / "dim_steps.py",
        "from pathlib import Path\n"
        "Path(__file__).with_name('imported').touch()\n"
        "def dim(sample):\n    sample['image'] = sample['image'] // 2\n    return sample\n",
    )
    imported = step.with_name("imported")
    monkeypatch.syspath_prepend(tmp_path)
    own = [{"name": "custom", "target": "dim_steps:dim"}]
    convert(origin, out, recipe={"store": "jpeg", "transform": own})
    good = sums(out)
    imported.unlink()
    sys.modules.pop("dim_steps")
    flip(shard_in(out, SHARD))
    said = r"was made with user functions, .*transforms=\['dim_steps:dim'\]"
    with pytest.raises(UsageError, match=said):
        shardctl.repair(out, workers=1)
    assert not imported.exists()
    assert shardctl.repair(out, transforms=["dim_steps:dim"], workers=1).status == "repaired"
    assert sums(out) == good


def test_what_other_versions_make_differently_is_not_taken_for_the_original(copy, monkeypatch):
    flip(shard_in(copy, SHARD))
    before = shard_in(copy, SHARD).read_bytes()
    real = image.to_rgb
    monkeypatch.setattr(image, "to_rgb", lambda picture, *_: ImageOps.invert(real(picture)))
    message = repair(copy).unrepaired[0].message
    assert message.startswith("the rebuilt file differs from the recorded one: its sources are")
    assert shard_in(copy, SHARD).read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": {"kind": "image", "transform": [7]}},
        {"recipe": {"transform": {"name": "custom"}}},
        {"settings": {}},
        {"settings": {"labels": "none", "lenient_labels": 3, "split": 5, "shuffle": "x"}},
    ],
)
def test_a_manifest_that_says_nonsense_of_its_making_is_refused(copy, change):
    record = json.loads((copy / "manifest.json").read_text())
    write_manifest(copy, {**record, **change})
    (tables_in(copy) / "plan.arrow").unlink()
    (unrepaired,) = repair(copy).unrepaired
    assert unrepaired.file == "plan.arrow"
    assert unrepaired.message.startswith("its record of how it was made cannot be used")


def test_what_cannot_be_repaired_at_all_is_said(copy, tmp_path):
    with pytest.raises(DatasetError, match="no such dataset"):
        repair(tmp_path / "absent")
    flip(tables_in(copy) / "shards.arrow")
    for path in manifests_of(copy):
        path.unlink()
    with pytest.raises(DatasetError, match=r"lacks manifest.json; .*; convert the sources again"):
        repair(copy)


def test_sources_that_are_gone_are_named_and_found_where_the_caller_says(source, out, whole):
    convert(source, out, recipe=CROP, shuffle=4)
    flip(shard_in(out, SHARD))
    moved = source.rename(source.with_name("moved"))
    result = repair(out)
    assert len(result.lost) == 8
    assert "--source says where sources are now" in result.unrepaired[0].message
    flip(tables_in(out) / "plan.arrow")
    assert repair(out, sources=[moved]).status == "repaired"
    assert sums(out) == sums(whole)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "names",
    [("plan.arrow", SHARD), ("shards.arrow", "rejects.jsonl"), ("SHA256SUMS", "notes.txt")],
)
def test_files_that_may_not_be_read_are_replaced(copy, origin, whole, names):
    notes = write(copy / "notes.txt", "mine")
    for path in [file_of(copy, name) for name in names if name != notes.name]:
        path.chmod(0)
    notes.chmod(0)
    ran = without_privileges("repair", copy, "--json")
    read = f"the manifest names these sources, which are read: {origin}\n"
    assert (ran.returncode, ran.stderr) == (0, "" if "SHA256SUMS" in names else read)
    told = json.loads(ran.stdout)
    assert (told["status"], set(told["repaired"])) == ("repaired", set(names) - {"notes.txt"})
    assert notes.read_text() == "mine"
    notes.unlink()
    assert sums(copy) == sums(whole)
    expect_whole(copy)
    if SHARD in names:
        assert any(f"{SHARD} cannot be read" in notice for notice in told["notices"])


def test_a_manifest_that_may_not_be_read_is_not_replaced(copy):
    """It may be whole, and nothing else has the fingerprint and the sources."""
    before = (copy / "manifest.json").read_bytes()
    (copy / "manifest.json").chmod(0)
    ran = without_privileges("repair", copy)
    assert ran.returncode == 3
    assert "manifest.json cannot be read (Permission denied); check its permissions" in ran.stderr
    assert (copy / "manifest.json").read_bytes() == before


def test_samples_in_a_shard_that_cannot_be_read_are_not_dropped(copy, whole):
    """They may all be there once its disk is back, or for a user with the permission. `drop_lost`
    cannot be undone."""
    shard_in(copy, SHARD).chmod(0)
    shard_in(copy, OTHER).unlink()
    before = set(copy.rglob("*"))
    ran = without_privileges("repair", copy, "--drop-lost")
    assert ran.returncode == 3
    assert f"{shard_in(copy, SHARD)}: cannot be read (Permission denied)" in ran.stderr
    assert set(copy.rglob("*")) - {copy / ".shardctl", copy / ".shardctl" / "lease"} == before
    shard_in(copy, SHARD).chmod(0o644)
    assert drop(copy).repaired == (OTHER,)
    assert sums(copy) == sums(whole)


def test_a_file_that_is_deleted_while_repair_reads_is_built_again(copy, whole, monkeypatch):
    real, shard = recorded.hash_file, shard_in(copy, SHARD)

    def deleted_first(folder: LocalFolder, name: str) -> str:
        if folder.path(name) == shard:
            shard.unlink()
        return real(folder, name)

    monkeypatch.setattr(recorded, "hash_file", deleted_first)
    result = repair(copy)
    assert (result.status, result.repaired, result.notices) == ("repaired", (SHARD,), ())
    assert sums(copy) == sums(whole)


@pytest.mark.parametrize("name", ["manifest.json", "plan.arrow", SHARD])
def test_a_folder_in_the_place_of_a_file_is_refused_before_anything_is_done(
    cli, copy, origin, name
):
    path, other = file_of(copy, name), shard_in(copy, OTHER)
    path.unlink()
    path.mkdir()
    other.unlink()
    ran = cli("repair", copy)
    assert ran.code == 3
    assert name in ran.err
    assert "move it away" in ran.err
    assert not other.exists()
    path.rmdir()
    assert repair(copy, [origin]).ok


# --- files of many records ---


LINES = {"samples_per_shard": 300, "workers": 0}


def lines_of(path: Path, count: int = 1000, bad: tuple[int, ...] = (10, 11, 700)) -> Path:
    """Write lines of JSON, some of them bad (numbered from 1)."""

    def line(number: int) -> Any:
        good = {"text": f"line {number} of {path.name}", "n": number, "label": "ab"[number % 2]}
        return "not json" if number in bad else good

    return write_lines(path, map(line, range(1, count + 1)))


@pytest.fixture(
    scope="module",
    params=[{}, {"shuffle": 3}, {"split": "train=0.8,val=0.2"}],
    ids=["plain", "shuffle", "shares"],
)
def lines_made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """in/ with two files of lines, and out/, its dataset."""
    root = tmp_path_factory.mktemp("lines")
    for name in ("a.jsonl", "b.jsonl"):
        lines_of(root / "in" / name)
    result = shardctl.convert(root / "in", root / "out", **LINES, **request.param)
    assert (result.samples, result.rejected) == (1994, 6)
    return root


TABLES_OF_LINES = tuple(
    "manifest.json files.arrow plan.arrow rejects.jsonl shards.arrow SHA256SUMS".split()
)
LOST_OF_LINES = [(name,) for name in (*TABLES_OF_LINES, "train-00001")] + [
    TABLES_OF_LINES[1:],
    ("plan.arrow", "rejects.jsonl", "train-00000"),
    ("shards.arrow", "train-00002"),
    ("plan.arrow", "SHA256SUMS"),
]


@pytest.mark.thorough
@pytest.mark.parametrize("names", LOST_OF_LINES, ids=" ".join)
def test_a_dataset_of_lines_comes_back_with_the_same_bytes(lines_made, out, names):
    shutil.copytree(lines_made / "out", out)
    for path in [file_of(out, name) for name in names]:
        path.unlink()
    result = repair(out, [lines_made / "in"])
    assert (result.status, set(result.repaired)) == ("repaired", set(names))
    assert sums(out) == sums(lines_made / "out")
    expect_whole(out)


@pytest.mark.thorough(after=1)
def test_a_unit_whose_file_changed_is_lost_as_a_whole_and_counted(lines_made, tmp_path):
    shutil.copytree(lines_made, tmp_path / "copy")
    source, out = tmp_path / "copy" / "in", tmp_path / "copy" / "out"
    before = {sample["key"]: sample["n"] for sample in shardctl.open(out)}
    lines_of(source / "b.jsonl", bad=(10, 12, 700))
    for path in shards_in(out):
        path.unlink()
    result = repair(out, [source])
    assert result.status == "damaged"
    assert (result.lost_samples, {lost.source for lost in result.lost}) == (997, {"b.jsonl"})
    assert all(lost.reason.startswith("its source has changed") for lost in result.lost)
    dropped = repair(out, [source], drop_lost=True)
    assert (dropped.status, dropped.lost_samples) == ("dropped", 997)
    expect_whole(out, "deep")
    ds = shardctl.open(out)
    left = {key: n for key, n in before.items() if key.startswith("a.jsonl#")}
    assert {sample["key"]: sample["n"] for sample in ds} == left
    assert (ds.manifest.rejected, ds.manifest.dropped, ds.manifest.inputs) == (1003, 997, 2000)
    records: Counter[str] = Counter()
    for reject in rejects_of(out):
        records[reject.error] += reject.records
    assert records == {"lost": 997, "not-json": 6}
    whole = sums(out)
    (shard_in(out, "train-00000")).unlink()
    # a dataset that lost samples can be repaired again
    assert repair(out, [source]).status == "repaired"
    assert sums(out) == whole


FATAL_STEP = """
import os

def fatal(sample):
    with open(os.environ["FATAL_LOG"], "a") as log:
        log.write(sample["key"] + "\\n")
    if sample["n"] in (7, 400):
        os._exit(3)
    return sample
"""


@pytest.mark.thorough
def test_a_record_that_a_worker_died_of_is_not_tried_again(tmp_path, out, monkeypatch):
    write(tmp_path / "fatal_step.py", FATAL_STEP)
    log = tmp_path / "log"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FATAL_LOG", str(log))
    source = lines_of(tmp_path / "in" / "a.jsonl", 500)
    recipe = {"kind": "text", "transform": [{"name": "custom", "target": "fatal_step:fatal"}]}
    result = shardctl.convert(source, out, recipe=recipe, workers=1, samples_per_shard=500)
    assert (result.samples, result.rejected) == (496, 4)
    made = sums(out)
    for lost in (("train-00000",), ("plan.arrow", "train-00000")):
        for path in [file_of(out, name) for name in lost]:
            path.unlink()
        log.unlink()
        assert shardctl.repair(out, transforms=["fatal_step:fatal"], workers=1).status == "repaired"
        assert sums(out) == made
        tried = log.read_text().split()
        assert len(tried) == 496
        assert not {"a.jsonl#7", "a.jsonl#400"} & set(tried)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def exchange_for_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.thorough(after=2)
@pytest.mark.parametrize("damage", [Path.unlink, cut, exchange_for_a_pipe])
@pytest.mark.parametrize("name", ["train-00001", "plan.arrow", "shards.arrow", "SHA256SUMS"])
def test_a_dataset_of_which_files_are_lost_is_not_up_to_date(tmp_path, out, cli, name, damage):
    """One look at the folder tells; what a file has in it, `verify` tells."""
    source = write_lines(tmp_path / "in.jsonl", ({"text": f"number {n}"} for n in range(30)))
    convert = ("convert", source, out, "--workers", "0", "--samples-per-shard", "10")
    assert cli(*convert).code == 0
    second = shard_in(out, "train-00002")
    damage(file_of(out, name))
    for command in (convert, (*convert, "--dry-run"), ("compact", out)):
        result = cli(*command)
        assert result.code == 3, command
        assert name in result.err
        assert "repair" in result.err
    second.unlink()
    assert ("(2 files in all)" in cli(*convert).err) == (name != "shards.arrow")
    assert cli("repair", out, "--workers", "0").code == 0
    assert "up to date" in cli(*convert).out
    second.unlink()
    assert cli(*convert, "--overwrite").code == 0
    shard = shard_in(out, "train-00000")
    shard.symlink_to(shard.rename(tmp_path / "kept"))
    assert "up to date" in cli(*convert).out, "a link is as good"


def test_a_kept_generation_is_not_repaired_by_itself(source, out):
    generations(source, out, 2)
    kept = next((out / "generations").glob("00001-*"))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for place in (kept, Path(os.path.relpath(kept))):
        with pytest.raises(DatasetError, match="a kept generation never changes"):
            repair(place)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def generations(source: Path, out: Path, count: int) -> list[int]:
    """Make generations of which each has a photo less, and return how many samples they have."""
    counts = []
    for _ in range(count):
        update(source, out, keep_generations=3)
        counts.append(len(shardctl.open(out)))
        next(source.rglob("*[0-9].jpg")).unlink()
    return counts


def test_a_lost_plan_that_an_update_has_ordered_is_not_said_to_be_repaired(source, out):
    """Shards keep their units, and a conversion would divide them otherwise."""
    generations(source, out, 2)
    (tables_in(out) / "plan.arrow").unlink()
    (finding,) = shardctl.verify(out).findings
    assert finding.message == "plan.arrow is missing; `shardctl repair` repairs it if possible"
    (unrepaired,) = repair(out).unrepaired
    assert "convert again with --overwrite" in unrepaired.message


def test_a_manifest_is_brought_back_by_its_copy_and_keeps_the_generations(source, out):
    generations(source, out, 2)
    before = (out / "manifest.json").read_bytes()
    for path in (out / "manifest.json", *out.glob("generations/00001-*/manifest.json")):
        path.write_text("{")
    assert repair(out).repaired == ("manifest.json",)
    assert (out / "manifest.json").read_bytes() == before
    assert shardctl.open(out).generation.number == 2
