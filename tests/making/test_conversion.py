from __future__ import annotations

import io
import json
import os
import select
import shutil
import signal
import subprocess
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CROP
from dataset_facts import expect_whole, keys, rejects_of, sums
from dataset_files import shard_in, shards_in, tables_in
from followed_sources import write, write_lines
from forged_datasets import signed
from image_files import image, images, saved
from in_this_process import children_of, command_line, convert, repair
from PIL import Image
from places import file_at

import shardctl
from shardctl.errors import (
    DatasetError,
    InputError,
    SourceGoneError,
    StorageError,
    TooManyRejectsError,
    UsageError,
)
from shardctl.format.tables import open_table
from shardctl.making.convert import Listener
from shardctl.making.plan.fingerprint import fingerprint
from shardctl.making.shards import inputs
from shardctl.making.shards.marker import WorkDone
from shardctl.system.permutation import evenly_spaced

RANDOM = {
    "store": "jpeg:85",
    "seed": 5,
    "variants": 2,
    "transform": [{"name": "random_resized_crop", "size": 24}, {"name": "hflip", "p": 0.5}],
}


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("recipe", [CROP, RANDOM, {}], ids=["raw", "random", "source"])
def test_the_same_bytes_whoever_converts(photos, tmp_path, monkeypatch, recipe):
    options = {"recipe": recipe, "shuffle": 3, "split": "train=0.8,val=0.2"}
    found = []
    for workers in (0, 2):
        convert(photos, tmp_path / f"out{workers}", workers=workers, **options)
        found.append(sums(tmp_path / f"out{workers}"))
    shutil.copytree(photos, tmp_path / "copy", copy_function=shutil.copyfile)  # at other times
    monkeypatch.chdir(tmp_path)
    convert("copy", "out", **options)
    assert set(found) == {sums(tmp_path / "out")}


def test_the_same_again_is_up_to_date_and_writes_nothing(photos, out):
    first = convert(photos, out, recipe=CROP)
    before = times(out)
    again = convert(photos, out, recipe=CROP)
    assert (first.status, again.status) == ("created", "up-to-date")
    for name in ("samples", "shards", "bytes", "fingerprint"):
        assert getattr(again, name) == getattr(first, name)
    assert times(out) == before


def test_what_the_last_moment_of_a_killed_conversion_leaves_goes(photos, out):
    """Its lease was taken away already, and the folder of that was not."""
    convert(photos, out)
    (out / ".shardctl").mkdir()
    assert convert(photos, out).status == "up-to-date"
    assert not (out / ".shardctl").exists()


def times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_another_recipe_or_input_is_refused_by_name_and_overwrite_replaces(tmp_path, out):
    source = images(tmp_path / "in", "a/1.png", "b/2.png")
    convert(source, out)
    old = sums(out)
    with pytest.raises(DatasetError, match="that differs in its recipe \\(store: source → png\\);"):
        convert(source, out, recipe={"store": "png"})
    image(source / "a" / "3.png")
    with pytest.raises(DatasetError, match="that differs in its inputs;"):
        convert(source, out)
    assert sums(out) == old
    result = convert(source, out, overwrite=True, samples_per_shard=1)
    assert (result.status, result.samples) == ("updated", 3)
    assert json.loads((out / "manifest.json").read_text())["seconds"] > 0
    assert len(shards_in(out)) == 3
    expect_whole(out)


def test_a_dry_run_tells_the_truth_and_writes_nothing(photos, out):
    planned = shardctl.convert(photos, out, recipe=CROP, dry_run=True)
    assert not out.exists()
    made = convert(photos, out, recipe=CROP)
    assert planned.status == "planned"
    for name in ("samples", "shards", "fingerprint"):
        assert getattr(planned, name) == getattr(made, name)
    assert planned.bytes == pytest.approx(made.bytes, rel=0.1)


def test_a_dry_run_of_an_update_has_the_fingerprint_of_what_would_be_made(tmp_path, out):
    convert(images(tmp_path / "in", "1.png"), out)
    image(tmp_path / "in" / "2.png")
    planned, made = (
        convert(tmp_path / "in", out, update=True, dry_run=dry) for dry in (True, False)
    )
    assert planned.fingerprint == made.fingerprint


TRIED = set(evenly_spaced(99, 32))
"""32 inputs are tried. Here those are all of the large ones, as chance had it with the photos of
`shardctl demo`."""
"""32 inputs are tried. Here those are all of the large ones, as chance had it with the photos of
`shardctl demo`."""


@pytest.mark.parametrize(
    ("sides", "bad", "recipe"),
    [
        ([40 if number in TRIED else 10 for number in range(99)], 0, {}),
        ([40] * 8, 8, {"store": "png"}),
    ],
    ids=["a copy", "with rejects"],
)
def test_the_size_is_estimated_from_all_inputs_that_can_be_converted(
    tmp_path, out, sides, bad, recipe
):
    """Of noise, whose files are about as large as its pixels."""
    rng = np.random.default_rng(0)
    for number, side in enumerate(sides):
        noise = Image.fromarray(rng.integers(0, 255, (side, side, 3), np.uint8))
        saved(noise, tmp_path / "in" / f"{number:02d}.png")
    for number in range(bad):
        write(tmp_path / "in" / f"bad{number}.png", "bad")
    planned, made = (
        convert(tmp_path / "in", out, recipe=recipe, dry_run=dry) for dry in (True, False)
    )
    assert planned.bytes == pytest.approx(made.bytes, rel=0.1)


@pytest.mark.parametrize("dry_run", [True, False])
def test_too_little_disk_is_said_before_anything_is_written(photos, out, monkeypatch, dry_run):
    monkeypatch.setattr("shardctl.making.commit.target.free_bytes", lambda path: 10_000)
    with pytest.raises(StorageError, match=r"needs about \d.* and 9.8 KiB are free"):
        convert(photos, out, recipe=CROP, dry_run=dry_run)
    assert not out.exists()


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_place_that_cannot_be_is_said_by_a_dry_run_too(tmp_path, out, dry_run):
    source = images(tmp_path / "in", "1.png")
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    for place in ("file/out", "x" * 300, "loop"):
        with pytest.raises(StorageError, match=r"(?i)is not a folder|name too long|link"):
            convert(source, tmp_path / place, dry_run=dry_run)
    for place in ("file/in", "x" * 300, "loop"):
        with pytest.raises(InputError, match=r"(cannot be read|no such file)(?!.*did you mean)"):
            convert(tmp_path / place, out, dry_run=dry_run)


@pytest.fixture
def begun(tmp_path: Path, out: Path) -> Path:
    """A source of three images; of its conversion, of which each is a shard, one shard is done."""

    def stop(progress: WorkDone) -> None:
        raise KeyboardInterrupt

    source = images(tmp_path / "in", "1.png", "2.png", "3.png")
    with pytest.raises(KeyboardInterrupt, match="1 of 3 shards are done"):
        go_on(source, out, listener=Listener(progress=stop))
    return source


def go_on(source: Path, out: Path, **options: Any) -> Any:
    return convert(source, out, samples_per_shard=1, **options)


def test_a_dry_run_leaves_an_unfinished_conversion_as_it_is(begun, out):
    before = times(out)
    with pytest.raises(DatasetError, match="unfinished conversion that differs in its recipe"):
        go_on(begun, out, recipe={"store": "png"}, dry_run=True)
    planned = go_on(begun, out, dry_run=True)
    assert (planned.status, planned.samples, planned.shards) == ("planned", 3, 3)
    assert times(out) == before


def test_the_rate_of_a_resumed_conversion_counts_what_it_made_itself(begun, out):
    result = go_on(begun, out)
    assert (result.status, result.samples) == ("resumed", 3)
    assert result.samples_per_s == pytest.approx(2 / result.seconds)


def other_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardctl.making.plan.fingerprint.__version__", "9.9.9")
    monkeypatch.setattr(
        "shardctl.making.plan.fingerprint.backend.libraries",
        lambda: ["libjpeg-turbo 99.1", "zlib 9"],
    )


def test_an_unfinished_conversion_by_other_versions_is_refused_and_named(begun, out, monkeypatch):
    """Its shards would be mixed with those of other code and other decoders."""
    other_versions(monkeypatch)
    with pytest.raises(DatasetError, match=r"its versions \(shardctl \S+ → 9.9.9, libjpeg-turbo"):
        go_on(begun, out)
    assert go_on(begun, out, overwrite=True).status == "created"


@pytest.mark.parametrize("change", [{"bases": [{"path": "/", "more": 2}]}, {"recipe": {"new": 1}}])
def test_a_job_that_another_version_wrote_is_no_crash(begun, out, change):
    (path,) = out.glob(".shardctl/*/job.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DatasetError, match="unfinished conversion of another version of shardctl"):
        go_on(begun, out)
    assert go_on(begun, out, overwrite=True).status == "created"


def test_a_dataset_that_other_versions_made_is_up_to_date_with_a_notice(tmp_path, out, monkeypatch):
    source = images(tmp_path / "in", "1.png")
    first = convert(source, out)
    other_versions(monkeypatch)
    again = convert(source, out)
    assert (again.status, again.fingerprint) == ("up-to-date", first.fingerprint)
    (notice,) = again.notices
    assert "made by other versions (shardctl " in notice
    shard_in(out).unlink()
    # proven by SHA-256, by whichever version
    assert repair(out).status == "repaired"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"resize": 8}, ["stored as jpeg:90, which loses a little"]),
        ({"resize": 8, "store": "jpeg:90"}, []),
        ({"resize": "8x8", "store": "raw"}, []),
        ({"shard_size": 4096}, ["shards of 4.0 KiB: "]),
        ({"shard_size": 1 << 20}, []),
    ],
)
def test_what_an_option_left_to_shardctl_is_said(tmp_path, out, options, said):
    notices = convert(images(tmp_path / "in", "1.png", "2.png"), out, **options).notices
    assert [begin for notice, begin in zip(notices, said, strict=True) if begin in notice] == said


def test_a_dataset_of_a_version_that_recorded_no_versions_is_up_to_date(tmp_path, out):
    source = images(tmp_path / "in", "1.png")
    convert(source, out)
    record = json.loads((out / "manifest.json").read_text())
    parts = record["fingerprint_parts"]

    def again(versions: Any) -> Any:
        parts["versions"] = versions
        (out / "manifest.json").write_text(signed(record))
        return convert(source, out)

    del parts["versions"]
    record["fingerprint"] = fingerprint(parts)
    (out / "manifest.json").write_text(signed(record))
    found = convert(source, out)
    assert found.status == "up-to-date"
    assert "not recorded → shardctl " in found.notices[0]
    assert "\\x1b[31mred 1 → none" in again("\x1b[31mred 1").notices[0]
    with pytest.raises(DatasetError, match="manifest"):
        again(["no", "text"])


def test_more_than_a_few_inputs_that_fail_are_a_warning(tmp_path, out):
    source = images(tmp_path / "in", *(f"{number}.png" for number in range(19)))
    (source / "bad.png").write_bytes(b"bad")
    assert convert(source, tmp_path / "few").warnings == ()
    (source / "worse.png").write_bytes(b"bad")
    for _ in ("created", "up-to-date"):
        (warning,) = convert(source, out).warnings
        for part in ("2 of 21 inputs (9.5%)", "decode: not-an-image", "bad.png", "max_rejects"):
            assert part in warning


def test_bad_inputs_are_listed_and_the_rest_is_converted(tmp_path, out):
    good = ["a/1.png", "a/2.png", "b/3.png", "b/4.png"]
    source = images(tmp_path / "in", *good)
    write(source / "a" / "cut.png", (source / "a" / "1.png").read_bytes()[:60])
    write(source / "a" / "empty.jpg", "")
    write(source / "b" / "drawing.eps", "%!PS-Adobe-3.0 EPSF-3.0\n")
    (source / "b" / "loose").symlink_to("nowhere")
    write(source / "b" / "notes.txt", "no image, and not meant as one")
    image(source / "b" / "5.png").rename(source / "b" / os.fsdecode(b"caf\xe9.png"))
    result = convert(source, out, max_rejects="100%")
    assert (result.samples, result.rejected) == (4, 5)
    found = {reject.source: (reject.stage, reject.error) for reject in rejects_of(out)}
    assert found == {
        "a/cut.png": ("decode", "truncated"),
        "a/empty.jpg": ("decode", "empty"),
        "b/drawing.eps": ("decode", "format-not-allowed"),
        "b/loose": ("plan", "unreachable"),
        "b/caf\\xe9.png": ("plan", "name-not-utf8"),
    }
    plan = open_table(*file_at(tables_in(out) / "plan.arrow"))
    assert (sum(plan["samples"].to_pylist()), sum(plan["rejected"].to_pylist())) == (4, 5)
    expect_whole(out)
    assert keys(out) == good


def test_too_many_rejects_fail_and_nothing_looks_complete(tmp_path, out):
    source = images(tmp_path / "in", *(f"{n}.png" for n in range(8)))
    for number in range(4):
        (source / f"bad{number}.png").write_bytes(b"bad")
    for limit in ("3", "25%"):
        with pytest.raises(TooManyRejectsError, match="rejected"):
            convert(source, out, max_rejects=limit)
        assert not (out / "manifest.json").exists()
        with pytest.raises(DatasetError, match="unfinished conversion"):
            shardctl.open(out)
    assert convert(source, out, max_rejects="34%").rejected == 4


def test_when_every_input_is_rejected_nothing_is_committed(tmp_path, out):
    """Nor are rejects copied, or is it promised that the same command completes it."""
    source = write(tmp_path / "in" / "a.jpg", "bad").parent
    copies = tmp_path / "copies"
    with pytest.raises(TooManyRejectsError, match=r"for instance a\.jpg: .*no rejected input was"):
        convert(source, out, max_rejects="100%", copy_rejects=copies)
    assert not (out / "manifest.json").exists()
    assert not copies.exists()
    with pytest.raises(DatasetError, match="run the same command or script again"):
        shardctl.open(out)


@pytest.mark.parametrize(
    ("becomes", "error"),
    [
        (lambda victim, data: None, "vanished"),
        (lambda victim, data: victim.write_bytes(data + b"more"), "changed"),
        (lambda victim, data: victim.write_bytes(data[::-1]), "changed"),
        (lambda victim, data: os.mkfifo(victim), "unreadable"),
        (lambda victim, data: victim.mkdir(), "unreadable"),
    ],
    ids=["nothing", "larger", "another", "a pipe", "a folder"],
)
def test_a_file_that_changes_between_plan_and_read_is_rejected(tmp_path, out, becomes, error):
    source = images(tmp_path / "in", "1.png", "2.png", "3.png")
    victim = source / "2.png"

    def meddle(_: object) -> None:
        data = victim.read_bytes()
        victim.unlink()
        becomes(victim, data)

    convert(source, out, listener=Listener(announce=meddle))
    (reject,) = rejects_of(out)
    assert (reject.source, reject.stage, reject.error) == ("2.png", "read", error)


def test_a_file_that_is_written_while_it_is_read_is_rejected(tmp_path, out, monkeypatch):
    """Written after it was opened and looked at: its bytes may be a mixture."""
    source = images(tmp_path / "in", *(f"{n}.png" for n in range(4)))
    fstat = os.fstat

    def look(descriptor: int) -> os.stat_result:
        status = fstat(descriptor)
        if Path(f"/proc/self/fd/{descriptor}").readlink() == source / "2.png":
            os.utime(source / "2.png", ns=(0, 0))
        return status

    def meddle(estimate: object) -> None:
        monkeypatch.setattr(os, "fstat", look)

    convert(source, out, listener=Listener(announce=meddle))
    (reject,) = rejects_of(out)
    assert (reject.source, reject.stage, reject.error) == ("2.png", "read", "changed")


def test_a_file_whose_bytes_come_in_small_pieces_is_read_whole(tmp_path, out, monkeypatch):
    """As some network file systems give them, and Linux those of more than 2 GiB."""

    class Slow(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(size or 0, 7))

    def opened(path: str, mode: str, buffering: int, opener: Any) -> Slow:
        return Slow(path, mode, opener=opener)

    source = images(tmp_path / "in", "1.png")
    monkeypatch.setattr(inputs, "open", opened, raising=False)
    result = convert(source, out)
    assert (result.samples, result.rejected) == (1, 0)


def test_an_interrupt_after_the_destination_is_gone_says_so(tmp_path, out):
    def remove(_: WorkDone) -> None:
        shutil.rmtree(out)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="shardctl cannot read what is done"):
        convert(images(tmp_path / "in", "1.png"), out, listener=Listener(progress=remove))


def test_a_source_that_goes_away_as_a_whole_stops_the_job_and_rejects_nothing(tmp_path, out):
    """As when it is unmounted: the folder may stay, empty. Nothing is lost, and the same command
    goes on."""
    source = images(tmp_path / "in", *(f"{n}.png" for n in range(8)))
    hidden = tmp_path / "hidden"

    def unmount(_: object) -> None:
        shutil.copytree(source, hidden)
        shutil.rmtree(source)
        source.mkdir()

    with pytest.raises(SourceGoneError, match=r"has gone away; .* 0 of 1 shards are done"):
        convert(source, out, listener=Listener(announce=unmount))
    source.rmdir()
    hidden.rename(source)
    result = convert(source, out)
    assert (result.status, result.samples, result.rejected) == ("resumed", 8, 0)


def test_truncated_images_are_kept_where_that_is_asked_for(tmp_path, out):
    pixels = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    cut = saved(Image.fromarray(pixels), tmp_path / "in" / "2.jpg")
    cut.write_bytes(cut.read_bytes()[:2000])
    source = images(tmp_path / "in", "1.png")
    with pytest.raises(UsageError, match="truncated must be reject or keep"):
        convert(source, out, recipe={"truncated": "maybe"})
    assert convert(source, out).reasons == {"decode: truncated": 1}
    for store in ("source", "png"):
        convert(source, tmp_path / store, recipe={"store": store, "truncated": "keep"})
        assert shardctl.open(tmp_path / store)[1]["image"].shape == (64, 64, 3)


def test_rejects_are_copied_to_a_folder_of_their_own(tmp_path, out):
    source, copies = images(tmp_path / "in", "a/1.png", "b/2.png"), tmp_path / "quarantine"
    write(source / "b" / "bad.png", "bad")
    for _ in ("created", "up-to-date"):
        assert convert(source, out, copy_rejects=copies).copied == 1
        assert (copies / "b" / "bad.png").read_bytes() == b"bad"
        shutil.rmtree(copies / "b")
    assert keys_of_rejects(copies) == ["b/bad.png"]


def keys_of_rejects(folder: Path) -> list[str]:
    return [reject.key for reject in rejects_of(folder)]


def test_copies_of_rejects_never_write_into_the_source(tmp_path, out):
    """An earlier copy may have become a hard link to it, or its folder a symbolic link."""
    source, copies = images(tmp_path / "in", "a/1.png"), tmp_path / "quarantine"
    bad = write(source / "a" / "bad.png", "bad")
    copy, table = copies / "a" / "bad.png", tables_in(copies) / "rejects.jsonl"
    copy.parent.mkdir(parents=True)
    copy.hardlink_to(bad)
    convert(source, out, copy_rejects=copies)
    assert bad.read_bytes() == copy.read_bytes() == b"bad"
    assert not copy.samefile(bad)
    table.unlink()
    table.hardlink_to(tables_in(out) / "rejects.jsonl")
    assert convert(source, out, copy_rejects=copies).copied == 1
    assert not table.samefile(tables_in(out) / "rejects.jsonl")
    shutil.rmtree(copy.parent)
    copy.parent.symlink_to(bad.parent)
    with pytest.raises(StorageError, match="quarantine/a: a link to"):
        convert(source, out, copy_rejects=copies)
    assert bad.read_bytes() == b"bad"


def test_a_large_reject_is_copied_in_flat_memory(tmp_path, out):
    source, copies = images(tmp_path / "in", "1.png"), tmp_path / "copies"
    with open(source / "bad.png", "wb") as file:
        file.truncate(32 << 20)
    convert(source, out)
    tracemalloc.start()
    try:
        assert convert(source, out, copy_rejects=copies).copied == 1
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert (copies / "bad.png").stat().st_size == 32 << 20


@pytest.mark.parametrize("source", ["in", "in/a.jsonl"])
def test_of_a_file_of_many_inputs_only_the_rejected_ones_are_copied(tmp_path, out, source):
    """And an earlier copy that has become a link to the source is not written through."""
    lines, copies = '{"x": 1}\nbad\n{"x": 2}\n[3]\n', tmp_path / "copies"
    file = write(tmp_path / "in" / "a.jsonl", lines)
    copies.mkdir()
    (copies / "a.jsonl").hardlink_to(file)
    result = convert(tmp_path / source, out, copy_rejects=copies)
    assert (result.samples, result.copied) == (2, 2)
    assert (file.read_text(), (copies / "a.jsonl").read_text()) == (lines, "bad\n[3]\n")


@pytest.mark.parametrize(
    ("source", "copies"),
    [
        ("data/a.jsonl", "data"),
        ("data/train", "data"),
        ("data/train", "data/train/rejects"),
        ("data/a.jsonl", "."),
        ("data/train", "other"),
        ("data/train", "out"),
    ],
)
def test_rejects_are_not_copied_over_sources_or_into_datasets(tmp_path, out, source, copies):
    """A source that is a file lies in the folder that its copy would go to."""
    for name in ("data/a.jsonl", "data/train/a.jsonl", "other.jsonl"):
        write(tmp_path / name, '{"x": 1}\nbad\n')
    convert(tmp_path / "other.jsonl", tmp_path / "other")

    def state() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    before = state()
    with pytest.raises(UsageError, match="need another folder"):
        convert(tmp_path / source, out, copy_rejects=tmp_path / copies)
    assert state() == before


def test_a_file_in_the_place_of_a_copy_stays_unless_it_is_a_copy_from_before(tmp_path, out):
    copies = tmp_path / "copies"
    source = write(tmp_path / "in" / "a.jsonl", '{"x": 1}\nbad\n')

    def copied() -> int:
        return int(convert(source.parent, out, update=True, copy_rejects=copies).copied)

    def expect_refused(name: str, text: str) -> None:
        copy = write(copies / name, text)
        with pytest.raises(StorageError, match=f"{name}: not a copy that copy_rejects made"):
            copied()
        assert copy.read_text() == text
        assert not list(copies.glob("*.partial"))
        copy.unlink()

    for name in ("a.jsonl", "rejects.jsonl"):
        expect_refused(name, "mine\n")
    assert (copied(), copied()) == (1, 1)
    write(source, '{"x": 1}\nbad\nworse\n')
    assert (copied(), (copies / "a.jsonl").read_text()) == (2, "bad\nworse\n")
    expect_refused("a.jsonl", "mended by hand\n")


def test_the_pool_builds_every_shard_with_more_workers_than_shards(tmp_path, out):
    source = images(tmp_path / "in", "1.png", "2.png")
    assert shardctl.convert(source, out, workers=5).samples == 2


def test_changed_code_is_another_conversion(tmp_path, out, monkeypatch):
    source = images(tmp_path / "in", "1.png")
    code = write(tmp_path / "own_steps.py", "def same(sample):\n    return sample\n")
    monkeypatch.syspath_prepend(tmp_path)
    recipe = {"store": "png", "transform": [{"name": "custom", "target": "own_steps:same"}]}
    convert(source, out, recipe=recipe)
    code.write_text(code.read_text() + "# changed\n")
    with pytest.raises(DatasetError, match="differs in its code"):
        convert(source, out, recipe=recipe)


@pytest.mark.thorough
def test_workers_end_when_their_parent_is_killed(tmp_path, out):
    images(tmp_path / "in", *(f"{n}.png" for n in range(200)))
    write(
        tmp_path / "slow.py",
        "import threading\ndef wait(sample):\n    threading.Event().wait(0.05)\n    return sample\n",
    )
    words = "in out --transform slow:wait --workers 2".split()
    with subprocess.Popen(
        command_line("convert", *words), cwd=tmp_path, stderr=subprocess.DEVNULL
    ) as parent:
        while not list(out.glob("data/*.partial")):
            assert parent.poll() is None
            select.select([], [], [], 0.01)
        children = below(parent.pid)
        parent.send_signal(signal.SIGKILL)
    assert children
    for child in children:
        _wait_until_gone(child)
    assert not (out / "manifest.json").exists()


def below(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have."""
    children = children_of(pid)
    return children + [deeper for child in children for deeper in below(child)]


def _wait_until_gone(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    assert select.select([descriptor], [], [], 20)[0], f"worker {pid} outlives its parent"
    os.close(descriptor)


@pytest.mark.parametrize("workers", [0, 2])
def test_progress_adds_up(photos, out, workers):
    heard: list[WorkDone] = []
    convert(photos, out, recipe=CROP, workers=workers, listener=Listener(progress=heard.append))
    size = sum(path.stat().st_size for path in photos.rglob("*.*"))
    assert (sum(each.records for each in heard), sum(each.bytes for each in heard)) == (60, size)


def test_variants_are_drawn_anew_and_named_and_by_the_seed(tmp_path, photos):
    convert(photos, tmp_path / "a", recipe=RANDOM)
    convert(photos, tmp_path / "b", recipe={**RANDOM, "seed": 6})
    one, other = (shardctl.open(tmp_path / name).take(range(8)) for name in "ab")
    assert len(shardctl.open(tmp_path / "a")) == 120
    assert one["key"][0] == one["key"][1]
    assert list(one["variant"][:2]) == [0, 1]
    assert not np.array_equal(one["image"][0], one["image"][1])
    assert not np.array_equal(one["image"], other["image"])


def test_the_manifest_knows_the_shape_that_all_images_share(tmp_path, out):
    source = images(tmp_path / "alike", "1.png", "2.png")
    convert(source, out)
    assert shardctl.open(out).take([0, 1])["image"].shape == (2, 20, 30, 3)
    image(source / "3.png", (31, 20))
    convert(source, out, update=True)
    found = [pixels.shape for pixels in shardctl.open(out).take([0, 2])["image"]]
    assert found == [(20, 30, 3), (20, 31, 3)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard_size": 10}, "at least 4 KiB"),
        ({"workers": -1}, "workers must be"),
        ({"worker_memory": 1 << 30, "workers": 0}, "needs worker processes"),
        ({"max_rejects": "many"}, "not a number of inputs"),
        ({"max_rejects": "101%"}, "at most 100%"),
        ({"split": "train=0.5"}, "add up to 1"),
        ({"split": "train=0.5,train=0.5"}, "twice"),
        ({"split": "../x=1"}, "split name"),
    ],
)
def test_impossible_options_are_refused_before_the_source_is_looked_at(
    tmp_path, out, options, message
):
    with pytest.raises(UsageError, match=message):
        shardctl.convert(tmp_path / "absent", out, **options)


def test_the_settings_are_recorded(raw_dataset):
    manifest = json.loads((raw_dataset / "manifest.json").read_text())
    assert manifest["settings"]["split"] == "train=0.7,val=0.3"
    assert manifest["settings"]["shuffle"] == 1
    assert manifest["fields"]["image"] == {"role": "image", "store": "raw", "shape": [32, 32, 3]}
    assert sum(split["samples"] for split in manifest["splits"]) == manifest["samples"] == 60


def test_a_label_that_is_not_among_the_chosen_fields_is_left_out(tmp_path, out):
    source = write_lines(tmp_path / "a.jsonl", [{"a": 1, "s": "x", "label": "u"}] * 3)
    convert(source, out, fields="a,s")
    assert shardctl.open(out)[0] == {"key": "a.jsonl#1", "a": 1, "s": "x"}


def test_records_that_each_have_fields_of_their_own_are_refused_until_some_are_named(tmp_path, out):
    records = ({"id": number, f"name {number}": number} for number in range(5000))
    lines = write_lines(tmp_path / "lines.jsonl", records)
    with pytest.raises(InputError, match="fields that the first ones lack"):
        convert(lines, out)
    assert convert(lines, out, fields="id").samples == 5000
    assert sorted(sample["id"] for sample in shardctl.open(out)) == list(range(5000))
