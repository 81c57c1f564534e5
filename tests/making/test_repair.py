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
from damage import flip
from dataset_facts import rejects_of, sums
from forged_datasets import signed
from image_files import images
from in_this_process import convert, repair
from PIL import ImageOps
from stopping import stopped_at

import shardctl
from shardctl.errors import DatasetError, InputError, UsageError
from shardctl.images.codecs import image
from shardctl.making.commit import publish
from shardctl.making.repair import Listener, manifest
from shardctl.system.folders import LocalFolder

SHARD, OTHER = "train-00002.arrow", "train-00005.arrow"


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
        (root / "in" / name).parent.mkdir(exist_ok=True)
        (root / "in" / name).write_bytes(b"bad")
    convert(root / "in", root / "out", recipe=CROP, shuffle=4)
    return root


@pytest.fixture
def here(made: Path, tmp_path: Path) -> Path:
    """A copy of all that, in whose dataset a test may do damage; its sources are where its manifest
    says: in the original."""
    shutil.copytree(made / "out", tmp_path / "out")
    return tmp_path


def nibble(out: Path) -> None:
    """Damage the manifest so that it still is JSON: what it says of its sources can be tried."""
    path = out / "manifest.json"
    path.write_text(path.read_text().replace('"samples": 60', '"samples": 61'))


def one_file(how: Callable[[Path], object], name: str, out: Path) -> None:
    how(out / name)


Damage = Callable[[Path], object]
DAMAGE: dict[str, Damage] = {
    **{f"{how.__name__} {name}": partial(one_file, how, name)
       for how in (flip, zero, cut, Path.unlink)
       for name in ("manifest.json", "plan.arrow", "shards.arrow", "SHA256SUMS", SHARD)},
    "flip rejects.jsonl": lambda out: flip(out / "rejects.jsonl"),
    "unlink rejects.jsonl": lambda out: (out / "rejects.jsonl").unlink(),
    "empty manifest": lambda out: (out / "manifest.json").write_bytes(b""),
    "grown shard": lambda out: (out / SHARD).write_bytes((out / SHARD).read_bytes() + b"more"),
    "swapped shards": lambda out: swap(out / SHARD, out / OTHER),
    "swapped plan and shards": lambda out: swap(out / "plan.arrow", out / "shards.arrow"),
    "many shards": lambda out: [path.unlink() for path in out.glob("train-*")],
    "shard and checksums": lambda out: [flip(out / SHARD), flip(out / "SHA256SUMS")],
    "shard and table": lambda out: [flip(out / SHARD), flip(out / "shards.arrow")],
    "both lists of shards": lambda out: [flip(out / "SHA256SUMS"), flip(out / "shards.arrow")],
    "shard and plan": lambda out: [(out / SHARD).unlink(), flip(out / "plan.arrow")],
    "all "
    "tables": lambda out: [flip(out / n) for n in ("SHA256SUMS", "shards.arrow", "plan.arrow", "rejects.jsonl")],
}  # fmt: skip


@pytest.mark.thorough(after=8)
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_repair_brings_back_the_same_bytes(here, made, damage):
    damage(here / "out")
    result = repair(here / "out")
    assert (result.status, result.unrepaired, result.lost) == ("repaired", (), ())
    assert sums(here / "out") == sums(made / "out")
    assert sorted(os.listdir(here / "out")) == sorted(os.listdir(made / "out"))
    assert shardctl.repair(here / "out").status == "whole"


@pytest.mark.parametrize(
    "damage",
    [
        lambda out: [nibble(out), cut(out / "plan.arrow"), zero(out / SHARD)],
        lambda out: [nibble(out), (out / "rejects.jsonl").unlink()],
    ],
    ids=["plan and shard", "rejects"],
)
def test_where_a_damaged_manifest_says_that_the_sources_are_is_not_read_before_the_caller_says_so(
    here, made, damage
):
    damage(here / "out")
    told: list[tuple[str, ...]] = []
    result = repair(here / "out", listener=Listener(reading=told.append))
    assert result.status == "damaged"
    assert (
        f"wrong sources: {made / 'in'}; say where they are with --source SRC"
        in result.unrepaired[0].message
    )
    assert told == []
    assert repair(here / "out", sources=[made / "in"]).status == "repaired"
    assert sums(here / "out") == sums(made / "out")


@pytest.mark.parametrize("source", ["../secret", "secret", "/data/../etc"])
def test_a_source_as_no_conversion_records_it_is_not_read(here, made, source, monkeypatch):
    """Also where somebody has altered the manifest with its digest. What is read otherwise is told
    before."""
    monkeypatch.chdir(made)  # where `in` would be found
    record = json.loads((here / "out" / "manifest.json").read_text())
    (here / "out" / "manifest.json").write_text(
        signed({**record, "sources": [source.replace("secret", "in")]})
    )
    (here / "out" / SHARD).unlink()
    result = repair(here / "out")
    assert "the manifest has impossible sources" in result.unrepaired[0].message
    (here / "out" / "manifest.json").write_text(signed(record))
    told: list[tuple[str, ...]] = []
    assert repair(here / "out", listener=Listener(reading=told.append)).status == "repaired"
    assert told == [(str(made / "in"),)]


def test_a_url_that_a_damaged_manifest_names_is_neither_asked_for_nor_recorded(here, made):
    path = here / "out" / "manifest.json"
    path.write_text(path.read_text().replace(str(made / "in"), "s3://somebody/else"))
    (here / "out" / SHARD).unlink()
    result = repair(here / "out")
    assert "wrong sources: s3://somebody/else" in result.unrepaired[0].message
    assert shardctl.open(here / "out").manifest.sources == ()
    assert any("(it named s3://somebody/else)" in notice for notice in result.notices)


def test_a_repaired_manifest_is_the_old_one_where_enough_of_it_is_left(here, made):
    old = (made / "out" / "manifest.json").read_text()
    (here / "out" / "manifest.json").write_text(old.replace('"samples": 60', '"samples": 61'))
    result = shardctl.repair(here / "out")
    assert result.notices == ()
    assert (here / "out" / "manifest.json").read_text() == old
    assert (
        shardctl.convert(made / "in", here / "out", recipe=CROP, shuffle=4).status == "up-to-date"
    )


def test_a_manifest_made_anew_claims_nothing_that_is_not_known(here, made):
    (here / "out" / "manifest.json").unlink()
    result = shardctl.repair(here / "out")
    assert len(result.notices) == 2
    assert shardctl.open(here / "out").manifest.sources == ()
    with pytest.raises(DatasetError, match="that differs in its inputs and settings"):
        shardctl.convert(made / "in", here / "out", recipe=CROP, shuffle=4)
    (here / "out" / SHARD).unlink()
    result = shardctl.repair(here / "out")
    assert result.status == "damaged"
    assert (
        "does not say where the sources are; say where they are with --source SRC"
        in result.unrepaired[0].message
    )
    (here / "nothing").mkdir()
    assert shardctl.repair(here / "out", sources=[here / "nothing"]).status == "damaged"
    assert shardctl.open(here / "out").manifest.sources == (), (
        "sources that give nothing are not recorded"
    )
    assert shardctl.repair(here / "out", sources=[made / "in"]).status == "repaired"
    assert shardctl.open(here / "out").manifest.sources == (str(made / "in"),)


def test_only_what_is_damaged_is_touched(here):
    (here / "out" / SHARD).unlink()
    before = {path.name: path.stat().st_mtime_ns for path in (here / "out").iterdir()}
    assert shardctl.repair(here / "out", workers=1).repaired == (SHARD,)
    after = {path.name: path.stat().st_mtime_ns for path in (here / "out").iterdir()}
    assert {name: time for name, time in after.items() if name != SHARD} == before


def test_sources_that_moved_are_found_where_the_caller_says(here, made):
    shutil.copytree(made / "in", here / "moved", copy_function=shutil.copyfile)
    record = json.loads((here / "out" / "manifest.json").read_text())
    assert record["sources"] == [str(made / "in")]
    flip(here / "out" / SHARD)
    flip(here / "out" / "plan.arrow")
    assert shardctl.repair(here / "out", sources=[here / "moved"]).status == "repaired"
    assert sums(here / "out") == sums(made / "out")


@pytest.fixture
def with_lost(here: Path, made: Path) -> tuple[Path, list[str]]:
    """A dataset with a damaged shard, of whose sources one is gone and one has changed."""
    shutil.copytree(made / "in", here / "in")
    shutil.rmtree(here / "out")
    convert(here / "in", here / "out", recipe=CROP, shuffle=4)
    at = shardctl.open(here / "out").manifest
    assert at.samples == 60
    keys = shardctl.open(here / "out").take(range(18, 24), columns=["key"])["key"]
    flip(here / "out" / SHARD)
    (here / "in" / keys[1]).unlink()
    shutil.copyfile(here / "in" / keys[0], here / "in" / keys[3])
    return here, [keys[1], keys[3]]


def test_what_cannot_be_repaired_is_said_exactly(with_lost):
    here, keys = with_lost
    flip(here / "out" / OTHER)
    before = (here / "out" / SHARD).read_bytes()
    result = repair(here / "out")
    assert result.status == "damaged"
    assert result.repaired == (OTHER,), "what can be mended is, all the same"
    assert [entry.file for entry in result.unrepaired] == [SHARD]
    assert result.unrepaired[0].message.startswith(
        f"2 of its samples cannot be made again, for instance {keys[0]}: its source is gone ("
    )
    assert [lost.key for lost in result.lost] == keys
    assert [lost.reason.partition(" (")[0] for lost in result.lost] == [
        "its source is gone",
        "its source has changed",
    ]
    assert (here / "out" / SHARD).read_bytes() == before


def test_lost_samples_are_dropped_on_request_and_recorded(
    with_lost,
):
    here, keys = with_lost
    result = repair(here / "out", drop_lost=True)
    assert (result.status, result.ok) == ("dropped", True)
    assert shardctl.verify(here / "out", "deep").findings == ()
    sums(here / "out")
    ds = shardctl.open(here / "out")
    assert (len(ds), ds.manifest.rejected, ds.manifest.dropped) == (58, 4, 2)
    assert not set(keys) & set(ds.take(range(58), columns=["key"])["key"])
    rejects = {reject.key: (reject.stage, reject.error) for reject in rejects_of(here / "out")}
    assert [rejects[key] for key in keys] == [("read", "lost")] * 2
    assert rejects["coast/bad.jpg"] == ("decode", "not-an-image"), (
        "earlier rejects keep their reasons"
    )
    assert shardctl.repair(here / "out").status == "whole"
    (here / "out" / SHARD).unlink()
    assert repair(here / "out").status == "repaired", (
        "a dataset that lost samples can be repaired again"
    )


@pytest.fixture
def dropping(tmp_path: Path) -> Path:
    """damaged/ has lost a sample, and has a file that is not part of it; dropped/ is what it should
    become."""
    images(tmp_path / "in", *(f"{n}.png" for n in range(4)))
    convert(tmp_path / "in", tmp_path / "damaged", samples_per_shard=2)
    flip(tmp_path / "damaged" / "train-00000.arrow")
    (tmp_path / "in" / "1.png").unlink()
    (tmp_path / "damaged" / "mine.txt").write_text("not part of it")
    shutil.copytree(tmp_path / "damaged", tmp_path / "dropped")
    assert repair(tmp_path / "dropped", drop_lost=True).status == "dropped"
    return tmp_path


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["kill", "interrupt"])
@pytest.mark.parametrize("exchange", [True, False], ids=["exchange", "file by file"])
def test_dropping_can_be_stopped_at_any_change(dropping, monkeypatch, exchange, how):
    """What is there is the old dataset or the new one, or the next repair completes it on its
    own."""
    if not exchange:
        refuse_exchange(monkeypatch)
    out = dropping / "out"
    drop = partial(shardctl.repair, out, workers=0, drop_lost=True)
    before, after = content(dropping / "damaged"), content(dropping / "dropped")
    seen: Counter[str] = Counter()
    for change in range(1000):
        shutil.copytree(dropping / "damaged", out)
        if not stopped_at(change, how, publish, "publish", drop, monkeypatch):
            break
        there = (out / "manifest.json").exists()
        # it may be on its way into the new folder
        found = {"mine.txt": before["mine.txt"], **content(out)}
        status = repair(out).status
        seen[f"{there} {status}"] += 1
        assert content(out) == (before if status == "damaged" else after), (
            f"stopped at change {change}"
        )
        assert not there or found == content(out)
        assert sorted(path.name for path in dropping.iterdir()) == [
            "damaged",
            "dropped",
            "in",
            "out",
        ]
        shutil.rmtree(out)
    assert change > 15
    assert set(seen) == {"True damaged", "True whole"} | (set() if exchange else {"False whole"})


def refuse_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        publish, "_exchange", lambda one, other: (_ for _ in ()).throw(OSError(22, "not here"))
    )


def content(out: Path) -> dict[str, bytes]:
    """Return the files of a dataset, its staging folder and its manifest (which has a date) left
    out."""
    return {
        path.name: path.read_bytes()
        for path in out.iterdir()
        if path.is_file() and path.name != "manifest.json"
    }


def test_convert_completes_a_drop_that_was_killed(dropping, monkeypatch):
    refuse_exchange(monkeypatch)
    completed = 0
    for change in range(0, 24, 3):
        out = dropping / f"out{change}"
        shutil.copytree(dropping / "damaged", out)
        drop = partial(shardctl.repair, out, workers=0, drop_lost=True)
        assert stopped_at(change, "kill", publish, "publish", drop, monkeypatch)
        if (out / "manifest.json").exists():
            continue
        with pytest.raises(
            DatasetError, match=r"its files are being replaced; .*`shardctl repair` completes it"
        ):
            shardctl.open(out)
        with pytest.raises(DatasetError, match="that differs in its inputs"):
            convert(dropping / "in", out, samples_per_shard=2)
        assert content(out) == content(dropping / "dropped")
        completed += 1
    assert completed >= 3


def test_an_interrupted_drop_says_what_completes_it(dropping, monkeypatch):
    monkeypatch.chdir(dropping / "damaged")  # the current folder cannot be exchanged
    real = publish.sync_folder

    def interrupted(folder: Path) -> None:
        real(folder)
        if not (dropping / "damaged" / "manifest.json").exists():
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(publish, "sync_folder", interrupted)
        with pytest.raises(
            KeyboardInterrupt,
            match=r"interrupted while the new dataset took its place; .* completes that",
        ):
            repair(".", drop_lost=True)
    result = repair(".")
    assert (result.status, result.notices) == (
        "whole",
        ("an interrupted replacement of the dataset was completed",),
    )
    assert content(dropping / "damaged") == content(dropping / "dropped")


def test_a_file_system_without_links_or_exchange_drops_as_well(dropping, monkeypatch):
    def refused(*_: object) -> None:
        raise OSError(1, "no links here")

    monkeypatch.setattr(os, "link", refused)
    assert repair(dropping / "damaged", drop_lost=True).status == "dropped"
    assert content(dropping / "damaged") == content(dropping / "dropped")
    assert sorted(path.name for path in dropping.iterdir()) == ["damaged", "dropped", "in"]


def test_a_broken_off_conversion_survives_a_repair(dropping, monkeypatch):
    """A conversion with --overwrite was stopped when it had finished its shards; repair then
    replaces the folder."""
    convert = partial(
        shardctl.convert,
        dropping / "in",
        dropping / "damaged",
        workers=0,
        samples_per_shard=1,
        overwrite=True,
    )
    assert stopped_at(0, "kill", publish, "publish", convert, monkeypatch)
    assert repair(dropping / "damaged", drop_lost=True).status == "dropped"
    assert content(dropping / "damaged") == content(dropping / "dropped")
    assert convert().status == "resumed"


def test_a_worker_that_outlives_its_killed_repair_does_no_harm(dropping, monkeypatch):
    """It writes files into the folder of that repair, while the next one takes it away."""
    out = dropping / "damaged"
    drop = partial(shardctl.repair, out, workers=0, drop_lost=True)
    assert stopped_at(0, "kill", publish, "publish", drop, monkeypatch)
    (left,) = (path for path in (out / ".shardctl").iterdir() if path.is_dir())
    real = os.rmdir

    def write_late(path: Any, *, dir_fd: int | None = None) -> None:
        if left.exists():
            (left / "new" / "train-00000.arrow.partial").write_bytes(b"late")
        real(path, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", write_late)
        assert drop().status == "dropped"
    assert content(out) == content(dropping / "dropped")
    assert not (out / ".shardctl").exists()


def test_a_shard_that_is_called_as_the_manifest_is_not_written_over(here):
    """It may be the only copy of its samples."""
    swap(here / "out" / SHARD, here / "out" / "manifest.json")
    before = (here / "out" / "manifest.json").read_bytes()
    with pytest.raises(
        DatasetError,
        match="an Arrow file, not a manifest; rename it",
    ):
        repair(here / "out")
    assert (here / "out" / "manifest.json").read_bytes() == before


def test_a_manifest_of_other_files_is_refused_and_no_other_file_is_taken_for_one(here, made):
    """A copy of an earlier manifest is no substitute for one that is lost."""
    shutil.copytree(made / "in", here / "in")
    out = here / "made"
    convert(here / "in", out, recipe=CROP)
    shutil.copyfile(out / "manifest.json", here / "earlier.json")
    next((here / "in" / "forest").glob("*.png")).unlink()
    convert(here / "in", out, recipe=CROP, overwrite=True)
    after = sums(out)
    (here / "earlier.json").rename(out / "earlier.json")
    (out / "manifest.json").rename(here / "manifest.json")
    assert repair(out).repaired == ("manifest.json",)
    assert (sums(out), shardctl.open(out).manifest.samples) == (after, 59)
    shutil.copyfile(out / "earlier.json", out / "manifest.json")
    with pytest.raises(
        DatasetError, match=r"belongs to another dataset than shards.arrow and SHA256SUMS"
    ):
        repair(out)
    assert sums(out) == after


def test_splits_that_an_export_has_given_names_are_no_classes(demo, tmp_path, out):
    convert(
        demo / "photos",
        tmp_path / "first",
        recipe=CROP,
        labels="none",
        split="aa=0.5,bb=0.5",
    )
    shardctl.export(tmp_path / "first", tmp_path / "mds", "mds")
    convert(tmp_path / "mds", out)
    before = sums(out)
    flip(out / "files.arrow")
    assert repair(out).status == "repaired"
    assert sums(out) == before


def test_changed_sources_are_no_reason_to_lose_an_intact_shard(here, made):
    """The plan is damaged, and cannot be made again: everything else stays, and loads."""
    shutil.copytree(made / "in", here / "in")
    next((here / "in" / "forest").glob("*.png")).unlink()
    flip(here / "out" / "plan.arrow")
    result = shardctl.repair(here / "out", sources=[here / "in"])
    assert [entry.file for entry in result.unrepaired] == ["plan.arrow"]
    assert "have 61 inputs now, and had 62" in result.unrepaired[0].message
    assert len(shardctl.open(here / "out").take(range(60))["image"]) == 60


@pytest.fixture
def own_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "dim_steps.py").write_text(
        "from pathlib import Path\n"
        "Path(__file__).with_name('imported').touch()\n"
        "def dim(sample):\n    sample['image'] = sample['image'] // 2\n    return sample\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "imported"


def test_no_code_is_run_that_only_the_dataset_names(made, out, own_function):
    recipe: dict[str, Any] = {
        "store": "jpeg",
        "transform": [{"name": "custom", "target": "dim_steps:dim"}],
    }
    convert(made / "in", out, recipe=recipe)
    good = sums(out)
    own_function.unlink()
    sys.modules.pop("dim_steps")
    flip(out / SHARD)
    with pytest.raises(
        UsageError,
        match=r"was made with user functions, .*transforms=\['dim_steps:dim'\]",
    ):
        shardctl.repair(out, workers=1)
    assert not own_function.exists()
    assert shardctl.repair(out, transforms=["dim_steps:dim"], workers=1).status == "repaired"
    assert sums(out) == good


def test_what_other_versions_make_differently_is_not_taken_for_the_original(here, monkeypatch):
    flip(here / "out" / SHARD)
    before = (here / "out" / SHARD).read_bytes()
    real = image.to_rgb
    monkeypatch.setattr(image, "to_rgb", lambda picture, *_: ImageOps.invert(real(picture)))
    result = repair(here / "out")
    what = (
        "the rebuilt file differs from the recorded one: its sources are unchanged, but other "
        "versions of shardctl or of"
    )
    assert result.unrepaired[0].message.startswith(what)
    assert (here / "out" / SHARD).read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": {"kind": "image", "transform": [7]}},
        {"recipe": {"kind": "sound"}},
        {"recipe": {"transform": {"name": "custom"}}},
        {"settings": {}},
        {"settings": {"labels": "none", "lenient_labels": 3, "split": 5, "shuffle": "x"}},
    ],
)
def test_a_manifest_that_says_nonsense_of_its_making_is_refused(here, change):
    record = {**json.loads((here / "out" / "manifest.json").read_text()), **change}
    (here / "out" / "manifest.json").write_text(signed(record))
    (here / "out" / "plan.arrow").unlink()
    (unrepaired,) = shardctl.repair(here / "out").unrepaired
    assert (unrepaired.file, unrepaired.message.partition(" (")[0]) == (
        "plan.arrow",
        "its record of how it was made cannot be used",
    )


def test_what_cannot_be_repaired_at_all_is_said(here, tmp_path):
    with pytest.raises(DatasetError, match="no such dataset"):
        shardctl.repair(tmp_path / "absent")
    with pytest.raises(UsageError, match="one shard"):
        shardctl.repair(here / "out" / SHARD)
    with pytest.raises(InputError, match="no such file or folder"):
        shardctl.repair(here / "out", sources=[tmp_path / "absent"])
    (here / "out" / "manifest.json").unlink()
    flip(here / "out" / "shards.arrow")
    with pytest.raises(
        DatasetError,
        match=r"manifest.json is lost, and shards.arrow or SHA256SUMS is damaged as well",
    ):
        shardctl.repair(here / "out")


def test_sources_that_are_gone_are_named(here, made):
    flip(here / "out" / SHARD)
    (made / "in").rename(made / "away")
    try:
        result = repair(here / "out")
        assert len(result.lost) == 8
        assert "--source says where sources are now" in result.unrepaired[0].message
        assert repair(here / "out", sources=[made / "away"]).status == "repaired"
    finally:
        (made / "away").rename(made / "in")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "names", [("plan.arrow", SHARD), ("shards.arrow", "rejects.jsonl"), ("SHA256SUMS", "notes.txt")]
)
def test_files_that_may_not_be_read_are_replaced(here, made, names):
    (here / "out" / "notes.txt").write_text("mine")
    for name in names:
        (here / "out" / name).chmod(0)
    ran = without_privileges("repair", here / "out", "--json")
    read = (
        f"the manifest names these sources, which are read: {made / 'in'}\n"
        if "SHA256SUMS" not in names
        else ""
    )
    assert (ran.returncode, ran.stderr) == (0, read)
    told = json.loads(ran.stdout)
    assert (told["status"], set(told["repaired"])) == ("repaired", set(names) - {"notes.txt"})
    assert (here / "out" / "notes.txt").read_text() == "mine"
    (here / "out" / "notes.txt").unlink()
    assert sums(here / "out") == sums(made / "out")
    assert shardctl.verify(here / "out").findings == ()
    if SHARD in names:
        assert any(f"{SHARD} cannot be read" in notice for notice in told["notices"])


def test_a_manifest_that_may_not_be_read_is_not_replaced(here):
    """It may be whole, and nothing else has the fingerprint and the sources."""
    before = (here / "out" / "manifest.json").read_bytes()
    (here / "out" / "manifest.json").chmod(0)
    ran = without_privileges("repair", here / "out")
    assert ran.returncode == 3
    assert "manifest.json cannot be read (Permission denied); check its permissions" in ran.stderr
    assert (here / "out" / "manifest.json").read_bytes() == before


def test_samples_in_a_shard_that_cannot_be_read_are_not_dropped(here, made):
    """They may all be there once its disk is back, or for a user with the permission. `drop_lost`
    cannot be undone."""
    (here / "out" / SHARD).chmod(0)
    (here / "out" / OTHER).unlink()
    before = sorted(path.name for path in (here / "out").iterdir())
    ran = without_privileges("repair", here / "out", "--drop-lost")
    assert ran.returncode == 3
    assert f"{SHARD}: cannot be read (Permission denied)" in ran.stderr
    assert (
        sorted(path.name for path in (here / "out").iterdir() if path.name != ".shardctl") == before
    )
    (here / "out" / SHARD).chmod(0o644)
    assert repair(here / "out", drop_lost=True).repaired == (OTHER,)
    assert sums(here / "out") == sums(made / "out")


def test_a_file_that_is_deleted_while_repair_reads_is_built_again(here, made, monkeypatch):
    real = manifest.hash_file

    def deleted_first(folder: LocalFolder, name: str) -> str:
        if name == SHARD:
            folder.path(name).unlink()
        return real(folder, name)

    monkeypatch.setattr(manifest, "hash_file", deleted_first)
    result = repair(here / "out")
    assert (result.status, result.repaired, result.notices) == ("repaired", (SHARD,), ())
    assert sums(here / "out") == sums(made / "out")


@pytest.mark.parametrize("name", ["manifest.json", "plan.arrow", SHARD])
def test_a_folder_in_the_place_of_a_file_is_refused_before_anything_is_done(cli, here, made, name):
    (here / "out" / name).unlink()
    (here / "out" / name).mkdir()
    (here / "out" / OTHER).unlink()
    ran = cli("repair", here / "out")
    assert ran.code == 3
    assert (
        f"{name}: a folder, not a file" in ran.err
        or f"{name} cannot be read (Is a directory)" in ran.err
    )
    assert "move it away" in ran.err
    assert not (here / "out" / OTHER).exists()
    (here / "out" / name).rmdir()
    assert repair(here / "out", [made / "in"]).ok


# --- files of many records ---

BAD_LINE = b"not json\n"

LINES = {"samples_per_shard": 300, "workers": 0}


def lines_of(path: Path, count: int = 1000, bad: tuple[int, ...] = (10, 11, 700)) -> Path:
    """Write lines of JSON, some of them bad (numbered from 1)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        for number in range(1, count + 1):
            line = {"text": f"line {number} of {path.name}", "n": number, "label": "ab"[number % 2]}
            file.write(BAD_LINE if number in bad else json.dumps(line).encode() + b"\n")
    return path


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


TABLES_OF_LINES = (
    "manifest.json",
    "files.arrow",
    "plan.arrow",
    "rejects.jsonl",
    "shards.arrow",
    "SHA256SUMS",
)
LOST_OF_LINES = [(name,) for name in (*TABLES_OF_LINES, "train-00001.arrow")] + [
    TABLES_OF_LINES[1:],
    ("plan.arrow", "rejects.jsonl", "train-00000.arrow"),
    ("shards.arrow", "train-00002.arrow"),
    ("plan.arrow", "SHA256SUMS"),
]


@pytest.mark.thorough
@pytest.mark.parametrize("names", LOST_OF_LINES, ids=" ".join)
def test_a_dataset_of_lines_comes_back_with_the_same_bytes(lines_made, out, names):
    shutil.copytree(lines_made / "out", out)
    for name in names:
        (out / name).unlink()
    result = repair(out, [lines_made / "in"])
    assert (result.status, set(result.repaired)) == ("repaired", set(names))
    assert sums(out) == sums(lines_made / "out")
    assert shardctl.verify(out).findings == ()


@pytest.mark.thorough(after=1)
def test_a_unit_whose_file_changed_is_lost_as_a_whole_and_counted(lines_made, tmp_path):
    shutil.copytree(lines_made, tmp_path / "copy")
    source, out = tmp_path / "copy" / "in", tmp_path / "copy" / "out"
    before = {sample["key"]: sample["n"] for sample in shardctl.open(out)}
    (source / "b.jsonl").write_bytes(
        (source / "b.jsonl").read_bytes().replace(b"line 5 of", b"line 6 of")
    )
    for path in out.glob("*-0*.arrow"):
        path.unlink()
    result = repair(out, [source])
    assert result.status == "damaged"
    assert (result.lost_samples, {lost.source for lost in result.lost}) == (997, {"b.jsonl"})
    assert all(lost.reason.startswith("its source has changed") for lost in result.lost)
    dropped = repair(out, [source], drop_lost=True)
    assert (dropped.status, dropped.lost_samples) == ("dropped", 997)
    assert shardctl.verify(out, "deep").findings == ()
    ds = shardctl.open(out)
    assert {sample["key"]: sample["n"] for sample in ds} == {
        key: n for key, n in before.items() if key.startswith("a.jsonl#")
    }
    assert (ds.manifest.rejected, ds.manifest.dropped, ds.manifest.inputs) == (1003, 997, 2000)
    rejects = rejects_of(out)
    assert sum(reject.records for reject in rejects) == 1003
    assert sum(reject.records for reject in rejects if reject.error == "lost") == 997
    assert {reject.key for reject in rejects if reject.error == "not-json"} == {
        f"{f}.jsonl#{n}" for f in "ab" for n in (10, 11, 700)
    }
    whole = sums(out)
    (out / "train-00000.arrow").unlink()
    assert repair(out, [source]).status == "repaired", (
        "a dataset that lost samples can be repaired again"
    )
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
    (tmp_path / "fatal_step.py").write_text(FATAL_STEP)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("FATAL_LOG", str(tmp_path / "log"))
    lines_of(tmp_path / "in" / "a.jsonl", 500)
    recipe = {"kind": "text", "transform": [{"name": "custom", "target": "fatal_step:fatal"}]}
    result = shardctl.convert(tmp_path / "in", out, recipe=recipe, workers=1, samples_per_shard=500)
    assert (result.samples, result.rejected) == (496, 4)
    made = sums(out)
    for lost in (("train-00000.arrow",), ("plan.arrow", "train-00000.arrow")):
        for name in lost:
            (out / name).unlink()
        (tmp_path / "log").unlink()
        assert shardctl.repair(out, transforms=["fatal_step:fatal"], workers=1).status == "repaired"
        assert sums(out) == made
        tried = (tmp_path / "log").read_text().split()
        assert len(tried) == 496
        assert not {"a.jsonl#7", "a.jsonl#400"} & set(tried)


def lose(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def exchange_for_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.thorough(after=2)
@pytest.mark.parametrize("damage", [lose, cut, exchange_for_a_pipe])
@pytest.mark.parametrize("name", ["train-00001.arrow", "plan.arrow", "shards.arrow", "SHA256SUMS"])
def test_a_dataset_of_which_files_are_lost_is_not_up_to_date(tmp_path, out, cli, name, damage):
    """One look at the folder tells; what a file has in it, `verify` tells."""
    source = tmp_path / "in.jsonl"
    source.write_text("".join(f'{{"text": "number {n}"}}\n' for n in range(30)))
    convert = ("convert", source, out, "--workers", "0", "--samples-per-shard", "10")
    assert cli(*convert).code == 0
    damage(out / name)
    for command in (
        convert,
        (*convert, "--dry-run"),
        (*convert, "--update"),
        ("compact", out),
        ("compact", out, "--dry-run"),
    ):
        result = cli(*command)
        assert result.code == 3, command
        assert name in result.err
        assert "repair" in result.err
    assert f"{name} is missing or damaged; run `shardctl repair {out}`" in cli(*convert).err
    lose(out / "train-00002.arrow")
    lost = 1 if name == "shards.arrow" else 2
    assert ("(2 files in all)" in cli(*convert).err) == (lost == 2)
    assert cli("repair", out, "--workers", "0").code == 0
    assert "up to date" in cli(*convert).out
    lose(out / "train-00002.arrow")
    assert cli(*convert, "--overwrite").code == 0
    assert cli("verify", out).code == 0


def test_a_dataset_whose_files_are_links_is_up_to_date(tmp_path, out, cli):
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "one"}\n')
    convert = ("convert", source, out, "--workers", "0")
    assert cli(*convert).code == 0
    shard = (out / "train-00000.arrow").rename(tmp_path / "kept")
    (out / "train-00000.arrow").symlink_to(shard)
    assert "up to date" in cli(*convert).out


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("left", ["nothing", "no history"])
def test_a_manifest_made_anew_follows_the_generations_that_are_kept(left, here, made):
    source, out, manifest = here / "in", here / "out", here / "out" / "manifest.json"
    shutil.copytree(made / "in", source)
    shutil.rmtree(out)
    counts = []
    for _ in range(3):
        convert(source, out, recipe=CROP, update=True, keep_generations=3)
        counts.append(len(shardctl.open(out)))
        next(source.rglob("*[0-9].jpg")).unlink()
    record = json.loads(manifest.read_text())
    manifest.unlink()
    if left == "no history":
        manifest.write_text(
            json.dumps(
                {name: value for name, value in record.items() if name not in ("history", "keep")}
            )
        )
    assert repair(out, sources=[source]).status == "repaired"
    assert [len(shardctl.open(out, generation=number)) for number in (1, 2, 3)] == counts
    at = shardctl.open(out).manifest
    assert [each.to_json() for each in at.history[:2]] == record["history"][:2]
    assert (at.generation.digest, at.keep) == (record["history"][2]["digest"], 2)
    assert shardctl.verify(out).findings == ()
    if left == "nothing":
        with pytest.raises(
            DatasetError,
            match="lost its fingerprint",
        ):
            convert(source, out, recipe=CROP, update=True)


def test_a_manifest_is_not_made_anew_beside_a_kept_generation_that_is_damaged(here, made):
    out = here / "out"
    shutil.copytree(made / "in", here / "in")
    shutil.rmtree(out)
    for _ in range(2):
        convert(here / "in", out, recipe=CROP, update=True, keep_generations=3)
        next((here / "in").rglob("*[0-9].jpg")).unlink()
    for path in (out / "manifest.json", out / "generations" / "00001" / "manifest.json"):
        path.write_text("{")
    with pytest.raises(DatasetError, match=r"generations/00001"):
        repair(out, sources=[here / "in"])
    assert repair(out / "generations" / "00001", sources=[here / "in"]).status == "repaired"
    assert repair(out, sources=[here / "in"]).status == "repaired"
    assert shardctl.open(out).generation.number == 2
