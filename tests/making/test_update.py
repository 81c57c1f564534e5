"""A dataset that follows its sources has the samples that a conversion of them would have, and
builds no more than it must."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from damage import file_of, flip
from dataset_facts import expect_whole, rejects_of
from dataset_facts import keys as keys_of
from dataset_files import tables_in
from followed_sources import (
    change,
    change_to,
    convert,
    digests_of,
    files_of,
    make_unreadable,
    update,
    write,
    write_lines,
)
from image_files import images
from in_this_process import command_line, repair
from PIL import Image
from samples_of import samples_of
from snapshots import touched
from stopping import some_changes, stop_after, stops

import shardctl
from shardctl.errors import DatasetError, InputError, UsageError
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.names import SHARDS, UPDATE
from shardctl.format.tables import ShardTable
from shardctl.making.convert import Listener, conversion, decision, run
from shardctl.making.convert.decision import Decision
from shardctl.making.plan import listing
from shardctl.sources import walk, walked
from shardctl.system.files import sha256_of

SMALL = {"store": "jpeg:80", "transform": [{"name": "resize", "size": 24}]}


@pytest.fixture
def made(source: Path, out: Path) -> Path:
    """The dataset of the source as it is at first: 60 samples in 10 shards."""
    convert(source, out)
    return out


def numbers(result: Any) -> tuple[int, int, int, int, int]:
    """Files added, removed and changed; shards rebuilt and new."""
    each = result.changes
    assert not each.anew, each.anew
    return each.added, each.removed, each.changed, each.rebuilt, each.new


def expect_as_fresh(source: Path, out: Path, fresh: Path, **options: Any) -> None:
    """Expect the dataset to be whole, up to date, and to have what a conversion of the source as it
    is now has."""
    expect_whole(out)
    convert(source, fresh, **options)
    assert samples_of(out) == samples_of(fresh)
    assert convert(source, out, **options).status == "up-to-date"
    alone = shardctl.convert(source, out, update=True, workers=0, progress=False)
    assert alone.status == "up-to-date"  # with the recipe, labels and splits of the dataset
    one, other = (json.loads((root / "manifest.json").read_text()) for root in (out, fresh))
    for name in (
        "samples",
        "inputs",
        "rejected",
        "class_counts",
        "fields",
        "objects",
        "jpeg",
        "steps",
        "fingerprint",
    ):
        assert one.get(name) == other.get(name), name


def _png_beside(source: Path) -> None:
    for image in files_of(source)[:8]:
        Image.new("L", (8, 8)).save(image.with_name(f"{image.stem}_mask.png"))


def boxes_of(source: Path, files: list[Path], labels: Path) -> str:
    """Write labels with a box or two for each of some images."""
    images, boxes = [], []
    for number, file in enumerate(files):
        images.append({"id": number, "file_name": file.relative_to(source).as_posix()})
        for x in range(1 + number % 2):
            box = {"image_id": number, "category_id": 1, "bbox": [x, 2, 9, 8]}
            boxes.append({**box, "id": len(boxes)})
    categories = [{"id": 1, "name": "thing"}]
    record = {"images": images, "annotations": boxes, "categories": categories}
    return f"coco:{write_lines(labels, [record])}"


def _capital(source: Path) -> None:
    image = files_of(source)[0]
    shutil.copyfile(image, image.with_name(image.name.upper()))


def _capitals(source: Path) -> None:
    for image in files_of(source):
        image.rename(image.with_name(image.name.upper()))


def _no_inputs(source: Path) -> None:
    """Hidden files, a pipe, a link back and a text."""
    write(source / ".thumbs" / ".DS_Store", "")
    (source / ".hidden").mkdir()
    os.mkfifo(source / "pipe")
    (source / "again").symlink_to(source)
    write(source / "README.md", "photos")


BESIDE_INPUTS: dict[str, Any] = {
    "nothing": lambda source: None,
    "no inputs": _no_inputs,
    "annotations": lambda source: boxes_of(source, files_of(source)[:3], source / "instances.json"),
    "masks": _png_beside,
    "names that differ by case": _capital,
    "capital letters": _capitals,
    "a folder of tests": lambda source: min(source.iterdir()).rename(source / "test_images"),
    "files of a series": lambda source: files_of(source)[0].rename(
        files_of(source)[0].with_name("a-00001-of-00004.jpg")
    ),
    "texts of a series": lambda source: [
        (source / name).touch() for name in ("a-00000-of-00003.txt", "b-00001-of-00003.json")
    ],
    "tables beside tars": lambda source: [
        (source / f"00000.{ending}").write_bytes(b"x") for ending in ("tar", "parquet")
    ],
    "images without an ending": lambda source: [
        path.rename(path.with_suffix("")) for path in files_of(source)[:5]
    ],
}


def _nothing(source: Path) -> None:
    pass


def _touched(source: Path) -> None:
    for path in files_of(source)[3::7]:
        touched(path)


def _another_image(source: Path) -> None:
    files = [path for path in files_of(source) if path.suffix == ".jpg"] or files_of(source)
    change(files[2], files[1])
    change_to(files[9], b"no image at all")


def _replaced(source: Path) -> None:
    _another_image(source)
    files = files_of(source)
    for number in (0, 4, 5, 17, len(files) - 1):
        files[number].unlink()
    for number in (3, 7, 20, 40):
        shutil.copyfile(files[number], files[number].with_name(f"{files[number].stem}-new.jpg"))
        shutil.copyfile(files[number], files[number].with_name(f"a{number}.jpg"))


def _new_folder(source: Path) -> None:
    image = files_of(source)[1]
    for name in ("aa/x.jpg", "mm/deep/y.jpg", "mm/z.jpg"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(image, source / name)


def _empty_folder(source: Path) -> None:
    for path in files_of(source)[-1].parent.iterdir():
        path.unlink()


def _no_folder(source: Path) -> None:
    shutil.rmtree(next(path for path in files_of(source) if path.suffix.lower() == ".jpg").parent)


HAPPENS = (_touched, _another_image, _nothing, _replaced, _new_folder, _empty_folder, _no_folder)


@pytest.mark.thorough(after=2)
@pytest.mark.parametrize("happens", HAPPENS)
@pytest.mark.parametrize("beside", BESIDE_INPUTS)
def test_an_update_beside_other_files(beside, happens, source, out, tmp_path, monkeypatch):
    """In every other case files are examined as where there are many."""
    if (HAPPENS.index(happens) + list(BESIDE_INPUTS).index(beside)) % 2:
        monkeypatch.setattr(walk, "FILES_AT_ONCE", 3)
        monkeypatch.setattr(walk, "FEW_FILES", 2)
        monkeypatch.setattr(walked, "CHUNK_ROWS", 7)
    options: dict[str, Any] = {"recipe": SMALL, "split": "train=0.7,val=0.3"}
    BESIDE_INPUTS[beside](source)
    convert(source, out, **options)
    happens(source)
    result = update(source, out, **options)
    assert result.status == ("up-to-date" if happens is _nothing else "updated")
    expect_as_fresh(source, out, tmp_path / "fresh", **options)


def test_it_begins_anew_where_another_process_has_replaced_the_dataset(source, out, monkeypatch):
    convert(source, out, recipe=SMALL)
    _touched(source)
    decisions = []

    def decided(inputs: Any) -> Any:
        decisions.append(decision.decide(inputs))
        if len(decisions) == 1:
            monkeypatch.setattr(run, "decide", decision.decide)
            update(source, out, recipe=SMALL)  # before this one has the lease
            monkeypatch.setattr(run, "decide", decided)
        return decisions[-1]

    monkeypatch.setattr(run, "decide", decided)
    assert update(source, out, recipe=SMALL).status == "up-to-date"
    assert decisions == [Decision.FOLLOW, Decision.NOTHING]


@pytest.mark.parametrize("labels", ["coco", "a labels file"])
def test_labels_that_have_not_changed_are_not_read_again(
    labels, source, out, tmp_path, monkeypatch
):
    file = tmp_path / "labels.csv"
    if labels == "coco":
        given = boxes_of(source, files_of(source)[:3], file)
    else:
        names = (str(path.relative_to(source)) for path in files_of(source))
        given = write(file, "file_name,label\n" + "".join(f"{name},{name[:3]}\n" for name in names))
    with monkeypatch.context() as patch:
        patch.setattr(listing, "CLOCK_SECONDS", -60)  # else it might have changed while it was read
        convert(source, out, recipe=SMALL, labels=given)
    with monkeypatch.context() as patch:
        patch.setattr(conversion, "read_labels", lambda *_: pytest.fail("they were read"))
        assert convert(source, out, recipe=SMALL, labels=given).status == "up-to-date"
    os.utime(file, ns=(0, 10**18 + 1))
    assert update(source, out, recipe=SMALL, labels=given).status == "up-to-date"
    file.write_text(file.read_text() + "\n")
    with pytest.raises(DatasetError, match="labels"):
        convert(source, out, recipe=SMALL, labels=given)
    file.unlink()
    with pytest.raises(InputError, match=r"no such file|cannot be read"):
        convert(source, out, recipe=SMALL, labels=given)


def test_annotations_that_may_have_changed_while_they_were_read_are_read_again(
    source, out, tmp_path, monkeypatch
):
    file = tmp_path / "boxes.json"
    given = boxes_of(source, files_of(source)[:3], file)
    os.utime(file, ns=(0, 10**18))  # an old file takes its place, as tar and rsync put it there
    convert(source, out, recipe=SMALL, labels=given)
    monkeypatch.setattr(conversion, "read_labels", Mock(side_effect=KeyError("read again")))
    with pytest.raises(KeyError, match="read again"):
        convert(source, out, recipe=SMALL, labels=given)


def test_labels_that_come_where_none_were_are_seen(source, out, tmp_path, monkeypatch):
    monkeypatch.setattr(listing, "CLOCK_SECONDS", -60)
    photo = files_of(source)[0].read_bytes()
    for name in ("train", "extra"):
        write(tmp_path / "yolo" / "images" / name / f"{name}.jpg", photo)
    write(tmp_path / "yolo" / "labels" / "train" / "train.txt", "0 0.5 0.5 0.2 0.2\n")
    yaml = write(tmp_path / "yolo" / "data.yaml", "names: [a]\ntrain: images/train\n")
    options: dict[str, Any] = {"labels": f"yolo:{yaml}", "split": "none"}
    convert(tmp_path / "yolo" / "images", out, **options)
    assert convert(tmp_path / "yolo" / "images", out, **options).status == "up-to-date"
    write(tmp_path / "yolo" / "labels" / "extra" / "extra.txt", "0 0.5 0.5 0.2 0.2\n")
    with pytest.raises(InputError, match="names no folder with"):
        convert(tmp_path / "yolo" / "images", out, **options)


def test_a_new_input_with_the_path_of_another_source_is_refused(source, tmp_path, out):
    other = tmp_path / "other"
    write(other / "one.jpg", files_of(source)[0].read_bytes())
    convert([source, other], out, labels="none")
    shutil.copy(other / "one.jpg", source)
    with pytest.raises(InputError, match="1 key appears twice"):
        update([source, other], out, labels="none")


def shards_of(out: Path) -> dict[str, str]:
    return {entry.path: entry.sha256 for entry in ShardTable(dataset_in(out))}


def kept_in(out: Path) -> dict[int, Path]:
    """The folders of the generations that are kept, by their numbers."""
    return {each.number: out / each.path for each in shardctl.open(out).manifest.kept}


def expect_no_other_shards(out: Path) -> None:
    """Expect data/ to have the shards of the generations that are there, and nothing else."""
    named = {path for root in (out, *kept_in(out).values()) for path in shards_of(root)}
    assert {f"data/{path.name}" for path in (out / "data").iterdir()} == named


def test_only_shards_of_which_inputs_changed_are_rebuilt(source, tmp_path, out):
    options = {"recipe": SMALL, "split": "train=0.7,val=0.3"}
    convert(source, out, **options)
    before = shards_of(out)
    inodes = {name: (out / name).stat().st_ino for name in before}
    files = files_of(source)
    files[3].unlink()
    change(files[20], files[21])
    shutil.copy(files[8], files[8].with_name("zz-new.jpg"))
    added, removed, changed, rebuilt, new = numbers(update(source, out, **options))
    assert (added, removed, changed) == (1, 1, 1)
    assert rebuilt + new <= 3
    after = shards_of(out)
    same = [name for name in before if after.get(name) == before[name]]
    assert len(same) >= len(before) - 3
    assert all((out / name).stat().st_ino == inodes[name] for name in same), "they are not copied"
    expect_as_fresh(source, out, tmp_path / "fresh", **options)


def test_new_inputs_fill_the_last_shard_and_then_new_ones(source, tmp_path, out):
    last = [file for n, file in enumerate(files_of(source)) if n % 5 == 4 or n == 3]
    for file in last:
        file.rename(tmp_path / file.name)
    convert(source, out)  # 47 inputs in 8 shards of 6 at most
    for file in last:
        (tmp_path / file.name).rename(file)
    assert numbers(update(source, out))[:3] == (13, 0, 0)
    rows = [entry.rows for entry in ShardTable(dataset_in(out))]
    assert (sum(rows), max(rows)) == (60, 6)
    expect_as_fresh(source, out, tmp_path / "fresh")


def test_new_records_of_a_small_split_make_no_smaller_shards(tmp_path, out):
    """A split that is drawn has a share of the records of each file."""
    source = tmp_path / "in"
    options = {"recipe": {"kind": "table"}, "split": "train=0.9,val=0.1", "samples_per_shard": 50}
    for name in ("first", "second"):
        write_lines(source / f"{name}.jsonl", [{"text": f"{name} {n}"} for n in range(1000)])
        result = update(source, out, **options)
    assert numbers(result) == (1, 0, 0, 0, 20)
    rows = [entry.rows for entry in ShardTable(dataset_in(out)) if entry.split == "val"]
    assert min(rows) > 25
    expect_as_fresh(source, out, tmp_path / "fresh", **options)


@pytest.mark.parametrize("column", ["label", "split"])
def test_relabelled_inputs_are_changed_ones(source, tmp_path, out, column):
    """Where their splits change, they move there."""
    names = ("train", "val", "train")
    rows = {path: [names[n % 3], n] for n, path in enumerate(files_of(source))}

    def write_labels() -> None:
        lines = (f"{path.relative_to(source)},{a},{n}\n" for path, (a, n) in rows.items())
        write(source / "labels.csv", f"file,{column},number\n{''.join(lines)}")

    write_labels()
    convert(source, out)
    some = list(rows.values())
    some[10][1], some[30][0], some[31][0] = 99, "val", "train"
    write_labels()
    result = update(source, out)
    assert numbers(result)[2] == (3 if column == "label" else 1)
    assert result.changes.kept > 0
    expect_as_fresh(source, out, tmp_path / "fresh")


def test_a_new_class_gives_all_labels_other_numbers(source, tmp_path, made, cli):
    write(source / "aardvark" / "1.jpg", files_of(source)[0].read_bytes())
    dry = cli("convert", source, made, "--update", "--dry-run", "--samples-per-shard", "6")
    assert "as aardvark came or went" in dry.out
    assert update(source, made).changes.anew
    expect_as_fresh(source, made, tmp_path / "fresh")


def test_a_split_that_loses_all_its_inputs_goes(photos, tmp_path, out):
    source, options = tmp_path / "in", {"labels": "none", "split": "folder"}
    for split, name in (("train", "dunes"), ("val", "forest")):
        shutil.copytree(photos / name, source / split)
    convert(source, out, **options)
    shutil.rmtree(source / "val")
    update(source, out, **options)
    assert [split.name for split in shardctl.open(out).manifest.splits] == ["train"]
    expect_as_fresh(source, out, tmp_path / "fresh", **options)


def lines_of(name: str, count: int, first: int = 0) -> list[Any]:
    return [{"text": f"{name} says {n}", "label": "ab"[n % 2], "n": n} for n in range(first, count)]


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("shuffle", [None, 3])
@pytest.mark.parametrize("split", ["none", "train=0.6,val=0.4"])
def test_files_of_many_records_follow_too(tmp_path, out, split, shuffle):
    source = tmp_path / "in"
    options = {"split": split, "shuffle": shuffle, "samples_per_shard": 20}
    for number in range(6):
        write_lines(source / f"day-{number}.jsonl", lines_of(f"day {number}", 40))
    convert(source, out, **options)
    (source / "day-1.jsonl").unlink()
    write_lines(source / "day-4.jsonl", [*lines_of("day 4", 40), *lines_of("day 4", 55, 40)])
    write_lines(source / "day-6.jsonl", lines_of("day 6", 30))
    result = update(source, out, **options)
    assert numbers(result)[:3] == (1, 1, 1)
    assert split != "none" or shuffle or result.changes.kept >= 4
    expect_as_fresh(source, out, tmp_path / "fresh", **options)


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("other", [{"label": "c"}, {"more": 2}, {"n": 1.5}, {"n": "one"}])
def test_new_records_of_other_types_make_all_anew(tmp_path, out, other):
    source = tmp_path / "in"
    write_lines(source / "a.jsonl", lines_of("a", 60))
    convert(source, out)
    write_lines(source / "b.jsonl", [{"text": "x", "label": "a", "n": 1, **other}])
    assert update(source, out).changes.anew
    expect_as_fresh(source, out, tmp_path / "fresh")


def test_a_type_that_only_a_late_record_has_makes_all_anew(tmp_path, out):
    source = tmp_path / "in"
    write(source / "a.csv", "n,t\n" + "1,x\n" * 60)
    convert(source, out, samples_per_shard=100_000)
    write(source / "b.csv", "n,t\n" + "1,x\n" * 250_000 + "none,y\n")
    assert update(source, out, samples_per_shard=100_000).changes.anew
    assert shardctl.open(out).schema.field("n").type == "string"


@pytest.mark.thorough
def test_rejects_of_kept_shards_stay(source, tmp_path, out):
    files = files_of(source)
    for number in (2, 30, 50):
        files[number].write_bytes(b"no image")
    convert(source, out)
    files[31].unlink()
    result = update(source, out)
    assert result.rejected == 3
    files[30].write_bytes(files[29].read_bytes())
    assert update(source, out).rejected == 2
    expect_as_fresh(source, out, tmp_path / "fresh")


RECIPES: dict[str, dict[str, Any]] = {
    "source": {"store": "source"},
    "raw": {
        "store": "raw",
        "compression": "zstd:1",
        "transform": [{"name": "resize", "size": "24x24"}],
    },
    "variants": {
        "store": "png",
        "variants": 2,
        "transform": [{"name": "random_resized_crop", "size": 16}],
    },
    "annotated": {"store": "jpeg:80", "transform": [{"name": "resize", "size": 24}]},
}


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("name", RECIPES)
def test_samples_of_unchanged_inputs_are_not_made_again(name, source, tmp_path, out):
    files = files_of(source)
    options: dict[str, Any] = {"recipe": RECIPES[name], "samples_per_shard": 20}
    if name == "annotated":
        options["labels"] = boxes_of(source, files, tmp_path / "labels.json")
    files[13].write_bytes(b"no image")
    convert(source, out, **options)
    held = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in files}
    for place, file in enumerate(files):
        if place in (3, 25, 44):
            change_to(file, held[file][0] + b"\0")  # behind its end
        else:
            make_unreadable(file)
    files[30].unlink()
    result = update(source, out, **options)
    assert numbers(result)[:3] == (0, 1, 3)
    assert numbers(result)[3] >= 2
    assert result.rejected == 1
    for file, (data, mtime_ns) in held.items():
        if file.exists() and file.stat().st_mtime_ns == mtime_ns:
            file.write_bytes(data)
            os.utime(file, ns=(1, mtime_ns))
    expect_as_fresh(source, out, tmp_path / "fresh", **options)
    before = shards_of(out)
    for shard in before:
        (out / shard).unlink()
    assert repair(out).status == "repaired"
    assert shards_of(out) == before


def test_samples_are_copied_after_a_compaction_too(source, out):
    files = files_of(source)
    convert(source, out, recipe=SMALL)
    for file in files[::4]:
        file.unlink()
    update(source, out, recipe=SMALL)
    assert shardctl.compact(out).status == "compacted"
    change(files[22], files[23])
    for file in set(files_of(source)) - {files[22]}:
        make_unreadable(file)
    assert update(source, out, recipe=SMALL).rejected == 0


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("compression", ["none", "zstd:1"])
@pytest.mark.parametrize("place", [0, 5, 59])
@pytest.mark.parametrize("small_blocks", [True, False])
def test_a_rebuilt_shard_is_that_of_the_same_samples_made_anew(
    small_blocks, place, compression, source, out, monkeypatch
):
    """Nothing of a neighbour is left in its buffers: `repair` makes the same bytes, and what has
    gone is in none of them."""
    for kind in ("PLAIN", "COMPRESSED") if small_blocks else ():
        monkeypatch.setattr(f"shardctl.format.shard.{kind}_BLOCK_BYTES", 5000)
    options: dict[str, Any] = {"recipe": {"compression": compression}, "samples_per_shard": 100}
    convert(source, out, **options)
    gone = files_of(source)[place]
    gone.unlink()
    update(source, out, **options)
    before = shards_of(out)
    (shard,) = before
    if compression == "none":
        key = gone.relative_to(source).as_posix()
        assert key.encode() not in (out / shard).read_bytes()
    (out / shard).unlink()
    assert repair(out).status == "repaired"
    assert shards_of(out) == before


def test_masks_without_images_follow(source, tmp_path, out, monkeypatch):
    images, masks = source / "forest", tmp_path / "masks"
    function = "def mean(sample):\n    return {**sample, 'mean': float(sample['image'].mean())}\n"
    write(tmp_path / "just_masks.py", function)
    monkeypatch.syspath_prepend(tmp_path)
    masks.mkdir()
    for path in images.iterdir():
        with Image.open(path) as image:
            Image.new("L", image.size).save(masks / f"{path.stem}.png")
    steps = [{"name": "resize", "size": "8x8"}, {"name": "custom", "target": "just_masks:mean"}]
    options: dict[str, Any] = {
        "recipe": {"store": "none", "transform": steps},
        "labels": f"masks:{masks}",
    }
    convert(images, out, **options)
    one = files_of(images)[1]
    change_to(one, one.read_bytes() + b"\0")
    assert numbers(update(images, out, **options))[2] == 1
    expect_as_fresh(images, out, tmp_path / "fresh", **options)


def test_damaged_samples_of_unchanged_inputs_are_made_again(source, tmp_path, out):
    files = files_of(source)
    convert(source, out, recipe=SMALL)
    change(files[1], files[2])
    flip(out / next(iter(shards_of(out))))
    assert numbers(update(source, out, recipe=SMALL))[2:4] == (1, 1)
    expect_as_fresh(source, out, tmp_path / "fresh", recipe=SMALL)


def test_an_updated_dataset_can_be_repaired(source, out):
    """By its plan, without the list of rejects too: the sources alone would give another order."""
    copy = files_of(source)[0]
    copy.with_name("broken.png").write_bytes(b"no image")
    convert(source, out, recipe=SMALL)
    shutil.copy(copy, copy.with_name(f"a{copy.name}"))
    files_of(source)[9].unlink()
    change(files_of(source)[40], files_of(source)[41])
    update(source, out, recipe=SMALL)
    before = digests_of(out)
    for name in list(shards_of(out))[::2]:
        flip(out / name)
    for name in (SHARDS, "rejects.jsonl"):
        (tables_in(out) / name).unlink()
    assert repair(out).status == "repaired"
    assert digests_of(out) == before
    (tables_in(out) / "plan.arrow").unlink()
    assert "an update has ordered it" in repair(out).unrepaired[0].message


def test_history_says_what_changed(source, made, cli):
    files_of(source)[0].unlink()
    update(source, made, keep_generations=0)
    first, last = shardctl.open(made).manifest.history
    assert [(each.number, each.command, each.added, each.removed) for each in (first, last)] == [
        (1, "convert", 60, 0),
        (2, "update", 0, 1),
    ]
    assert shardctl.open(made).generation == last
    assert last.digest == sha256_of(tables_in(made) / "SHA256SUMS") != first.digest
    listed = cli("inspect", made, "--history", "--json").json["generations"]
    assert [each["there"] for each in listed] == [False, True]


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["kill", "interrupt"])
def test_an_update_goes_on_wherever_it_is_stopped(source, tmp_path, monkeypatch, how):
    """Stopped right before changes that it makes to the file system, one after the other."""
    before = tmp_path / "before"
    options = {"samples_per_shard": 3, "labels": "none"}
    for file in files_of(source)[6:]:
        file.unlink()
    convert(source, before, **options)
    files_of(source)[3].unlink()
    found = set()
    again = partial(update, source, **options)
    changes = some_changes(3 * (how == "kill"))
    for out in stops(changes, how, run, "begin_job", before, again, monkeypatch):
        found.add(len(shardctl.open(out)))
        again(out)
        assert (len(shardctl.open(out)), len(shardctl.open(out, generation=1))) == (5, 6)
        expect_no_other_shards(out)
        shardctl.compact(out)  # a check may leave what is left of a job to the next that writes
    assert found == {6, 5}
    expect_as_fresh(source, tmp_path / "out", tmp_path / "fresh", **options)


# --- sources that only grow ---


def days(source: Path, *numbers: int) -> None:
    for number in numbers:
        write_lines(source / f"day-{number}" / "log.jsonl", lines_of(f"day {number}", 30))


def test_new_days_are_appended_and_the_old_ones_may_be_gone(tmp_path, out):
    source, fresh, held = tmp_path / "in", tmp_path / "fresh", tmp_path / "held"
    days(source, 1, 2)
    convert(source, out, samples_per_shard=20)
    before = shards_of(out)
    source.rename(held)
    days(source, 3, 10)
    append = partial(convert, samples_per_shard=20, append=True)
    appended = append([source / "day-3", source / "day-10"], out)
    assert numbers(appended) == (2, 0, 0, 0, 3)
    assert {name: shards_of(out)[name] for name in before} == before
    assert "day-10/log.jsonl#7" in {key for key, _ in samples_of(out)}
    for day in held.iterdir():
        shutil.move(day, source)
    expect_as_fresh(source, out, fresh, samples_per_shard=20)
    assert shardctl.open(out).generation.command == "append"
    assert append(source / "day-3", out).status == "up-to-date"
    assert shardctl.compact(out).status == "compacted"
    assert samples_of(out) == samples_of(fresh)


def test_another_source_is_appended_as_one_of_its_own(source, tmp_path, out):
    other = tmp_path / "more"
    convert(source, out)
    files = files_of(source)
    write(other / files[0].parent.name / "new.jpg", files[0].read_bytes())
    assert numbers(convert(other, out, append=True)) == (1, 0, 0, 0, 1)
    assert shardctl.open(out).manifest.sources == (str(source), str(other))
    both = partial(convert, [source, other])
    assert both(out).status == "up-to-date"
    both(tmp_path / "fresh")
    assert samples_of(out) == samples_of(tmp_path / "fresh")
    files[5].unlink()
    assert both(out, update=True).samples == 60


def test_only_what_is_new_can_be_appended(source, out):
    assert convert(source, out, append=True).status == "created"
    assert convert(source, out, append=True).status == "up-to-date"
    file, zebra = files_of(source)[9], source / "zebra"
    change(file, files_of(source)[10])
    write(zebra / "1.jpg", file.read_bytes())

    def refused(folder: Path, reason: str, **options: Any) -> None:
        with pytest.raises(InputError, match=reason):
            convert(folder, out, append=True, **options)

    refused(file.parent, "append=True only adds; use update=True")
    refused(zebra, "as zebra came or went; use update=True")
    write(zebra / "labels.csv", "file,label\n1.jpg,a\n")
    refused(zebra, "labels files name all inputs")
    refused(zebra, "labels files and annotations", labels=zebra / "labels.csv")


def test_files_that_are_appended_one_by_one_are_in_the_order_of_a_walk(source, out):
    """So are those of a new source, and what says more of files there; a source may be empty."""
    options: dict[str, Any] = {"labels": "none", "split": "none", "append": True}
    both = sorted(path for path in source.iterdir() if path.is_dir())[:2]
    convert(both, out, **options | {"append": False})
    photo = files_of(source)[0].read_bytes()
    for name in ("c", "a", "b"):
        write(both[1] / "new" / f"{name}.png", photo)
    given = [both[1] / "new" / f"{name}.png" for name in ("c", "a", "b")]
    assert convert(given, out, **options).status == "updated"
    assert convert(both, out, **options | {"append": False}).status == "up-to-date"
    (empty := both[1] / "later").mkdir()
    assert convert(empty, out, kind="image", **options).status == "up-to-date"


def test_lists_beside_appended_inputs_are_those_of_the_dataset(source, out):
    options: dict[str, Any] = {"labels": "none", "split": "none"}
    both = sorted(path for path in source.iterdir() if path.is_dir())[:2]
    write(both[1] / "val.txt", "nothing.jpg\n")
    convert(both, out, **options)
    write(both[1] / "zz.jpg", files_of(source)[0].read_bytes())
    assert convert(both[1], out, append=True, **options).status == "updated"
    assert convert(both, out, **options).status == "up-to-date"


# --- what cannot be brought up to date ---


def test_what_is_no_update_is_refused_by_name(source, made, cli):
    files_of(source)[0].unlink()
    with pytest.raises(DatasetError, match="differs in its inputs; use update=True"):
        convert(source, made)
    with pytest.raises(DatasetError, match="differs in its settings"):
        update(source, made, samples_per_shard=7)
    for options in ({"update": True, "overwrite": True}, {"append": True, "update": True}):
        with pytest.raises(UsageError, match="contradict each other"):
            convert(source, made, **options)
    with pytest.raises(UsageError, match="moved_from"):
        convert(source, made, moved_from=["x"])


@pytest.mark.parametrize("changed", [False, True])
def test_sources_that_moved_are_taken_when_that_is_said(changed, source, tmp_path, out):
    """And recorded, though nothing else has changed."""
    moved = tmp_path / "elsewhere"
    convert(source, out)
    shutil.move(source, moved)
    if changed:
        files_of(moved)[0].unlink()
    for wrong in ((), ["/nowhere"]):
        with pytest.raises(InputError, match=r"moved_from|is said to have been"):
            update(moved, out, moved_from=wrong)
    update(moved, out, moved_from=[os.path.relpath(source)])
    assert len(shardctl.open(out)) == 60 - changed
    assert shardctl.open(out).manifest.sources == (str(moved),)


@pytest.mark.parametrize("happens", [None, Path.unlink, os.utime])
@pytest.mark.parametrize("name", ["plan.arrow", "files.arrow", "rejects.jsonl", "train-00009"])
def test_a_damaged_dataset_is_to_be_repaired_first(source, made, name, happens):
    if happens:
        happens(files_of(source)[0])
    damaged = file_of(made, name)
    damaged.write_bytes(damaged.read_bytes() + b" ")
    before = digests_of(made)
    for dry_run in (True, False):
        with pytest.raises(DatasetError, match=f"{name}.*`shardctl repair"):
            update(source, made, dry_run=dry_run)
    assert digests_of(made) == before


@pytest.mark.parametrize("name", ["plan.arrow", "files.arrow", "shards.arrow", UPDATE])
def test_a_changed_byte_of_a_table_is_refused_even_where_no_input_changed(source, made, name):
    flip(file_of(made, name))
    for dry_run in (True, False):
        with pytest.raises(DatasetError, match=f"{name}.*damaged"):
            update(source, made, dry_run=dry_run)


def test_without_its_record_a_dataset_is_whole_and_cannot_follow(source, tmp_path, made):
    (tables_in(made) / UPDATE).unlink()
    result = shardctl.verify(made)
    assert (result.ok, [finding.kind for finding in result.findings]) == (True, ["damaged-update"])
    files_of(source)[0].unlink()
    with pytest.raises(DatasetError, match=f"{UPDATE} is missing"):
        update(source, made)
    shardctl.write(tmp_path / "written", [{"key": "a", "n": 1}])
    with pytest.raises(DatasetError, match="has no source"):
        update(source, tmp_path / "written")


def test_explain_names_all_that_differs(source, out, cli):
    explain = ("convert", source, out, "--explain", "--samples-per-shard", "6")
    assert cli(*explain).code == 3
    convert(source, out)
    assert cli(*explain).out == f"{out} is up to date\n"
    files = files_of(source)
    files[3].unlink()
    change(files[5], files[6])
    new = Path(shutil.copy(files[0], files[0].with_name("zz.jpg")))
    explained = cli(*explain, "--json").json["explanation"]
    assert (explained["verdict"], explained["parts"]) == ("update", ["inputs"])
    for what, path in (("added", new), ("removed", files[3]), ("changed", files[5])):
        assert explained[what]["examples"] == [str(path.relative_to(source))]
    told = cli(*explain, "--resize", "9", "--shuffle", "2").out
    for part in ("--overwrite", "recipe: resize: none → 9", "settings: shuffle: none → 2"):
        assert part in told


# --- two at once, and what was left behind ---


@pytest.mark.thorough
def test_appends_at_the_same_time_are_all_there(tmp_path, out):
    source = tmp_path / "in"
    days(source, 1, 2, 3, 4)
    convert(source / "day-1", out, labels="none")
    options = "--append --labels none --samples-per-shard 6 --workers 0".split()
    running = []
    for number in (2, 3, 4):
        other = source / f"day-{number}"
        (other / "log.jsonl").rename(other / f"{number}.jsonl")
        command = command_line("convert", *options, other, out)
        running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert len(shardctl.open(out)) == 120
    expect_whole(out)


def test_the_number_of_kept_generations_holds_for_every_later_command(source, out):
    convert(source, out, keep_generations=0)
    for samples in (3, 4, 5):
        convert(source, out, samples_per_shard=samples, overwrite=True)
        assert len(list((out / "generations").iterdir())) == 1
    convert(source, out, samples_per_shard=6, overwrite=True, keep_generations=1)
    assert len(list((out / "generations").iterdir())) == 2


def test_a_kept_generation_stays_as_it_was(source, made, cli):
    files_of(source)[3].unlink()
    update(source, made)
    kept = kept_in(made)[1]
    for command in (
        ["convert", source, kept, "--update"],
        ["compact", kept],
        ["prune", kept, "--key", "x"],
    ):
        ran = cli(*command)
        assert (ran.code, "a kept generation never" in ran.err) == (3, True), ran.err
    assert cli("convert", source, made / "generations" / "00009").code == 3
    assert len(shardctl.open(made, generation=1)) == 60


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("labels", ["folders", "file"])
def test_labels_that_have_gone_away_are_no_update(labels, source, out):
    images, table = source, source / "forest" / "labels.csv"
    if labels == "file":
        images = table.parent
        rows = "".join(f"{path.name},{n % 3}\n" for n, path in enumerate(files_of(images)))
        write(table, f"file,label\n{rows}")
    convert(images, out)
    count = len(shardctl.open(out))
    table.unlink(missing_ok=True)
    for folder in source.iterdir():
        if folder != table.parent:
            shutil.rmtree(folder)
    with pytest.raises(DatasetError, match="the sources have lost their"):
        update(images, out)
    assert len(shardctl.open(out)) == count
    assert convert(images, out, overwrite=True).status == "updated"


@pytest.mark.thorough
def test_as_many_generations_are_kept_as_were_asked_for(source, out):
    """They share their shards, and no other ones stay. The number is remembered, though nothing has
    changed."""
    convert(source, out)
    assert convert(source, out, keep_generations=2).status == "up-to-date"
    contents, kept = [samples_of(out)], []
    for number in range(4):
        files_of(source)[number * 10].unlink()
        update(source, out, keep_generations=3 if number > 1 else None)
        contents.append(samples_of(out))
        kept.append([*kept_in(out)])
        expect_no_other_shards(out)
    assert kept == [[1], [1, 2], [1, 2, 3], [2, 3, 4]]
    shared = set.intersection(*(set(shards_of(root)) for root in (out, *kept_in(out).values())))
    assert len(shared) >= 6, "most shards are in all generations"
    assert update(source, out, keep_generations=2).status == "up-to-date"
    with pytest.raises(DatasetError, match="generation 1 is not there, only 3, 4, 5"):
        shardctl.open(out, generation=1)
    for number, root in {**kept_in(out), 5: out}.items():
        assert shardctl.open(out, generation=number).generation.number == number
        assert samples_of(root) == contents[number - 1]
        expect_whole(root)
    convert(source, out, overwrite=True, keep_generations=0)
    assert kept_in(out) == {}
    expect_no_other_shards(out)


def test_rejected_records_of_unchanged_files_stay_rejected(tmp_path, out):
    source, fresh = tmp_path / "in", tmp_path / "fresh"
    for name in "abc":
        write_lines(source / f"{name}.jsonl", lines_of(name, 12))
    torn = write_lines(source / "b.jsonl.gz", lines_of("torn", 200))
    torn.write_bytes(torn.read_bytes()[:-40])
    write_lines(source / "b2.jsonl", ["no JSON", *lines_of("b2", 3)])
    options = {"split": "train=0.5,val=0.5", "samples_per_shard": 400}
    assert convert(source, out, **options).rejected >= 2
    (source / "a.jsonl").unlink()
    update(source, out, **options)
    expect_as_fresh(source, out, fresh, **options)
    one, other = (sorted((r.key, r.error) for r in rejects_of(root)) for root in (out, fresh))
    assert one == other


@pytest.mark.thorough
@pytest.mark.parametrize("tear", ["marker", "shard", "no shard", "generation"])
def test_what_a_power_failure_tore_of_an_update_is_made_again(tear, source, tmp_path, out):
    """And the dataset before it, and the generation that is kept, are whole all the time."""
    convert(source, out)
    keys, before = keys_of(out), shards_of(out)
    for path in files_of(source)[::3]:
        change(path, files_of(source)[1])
    with pytest.raises(KeyboardInterrupt):
        update(source, out, listener=Listener(progress=stop_after(30)))
    (job,) = (path for path in (out / ".shardctl").iterdir() if path.is_dir())
    shard = min(path for path in out.glob("data/*.arrow") if f"data/{path.name}" not in before)
    if tear == "no shard":
        shard.unlink()
    elif tear == "generation":
        unfinished = f"00002-{json.loads((job / 'job.json').read_text())['id']}"
        write(out / "generations" / unfinished / "manifest.json", "")
    else:
        torn = shard if tear == "shard" else next((job / "done").glob("*.arrow"))
        torn.write_bytes(torn.read_bytes()[:100])
    assert keys_of(out) == keys
    assert update(source, out).status in ("resumed", "updated")
    expect_as_fresh(source, out, tmp_path / "fresh")
    ((number, kept),) = kept_in(out).items()
    assert (number, keys_of(kept)) == (1, keys)
    expect_whole(kept)
    expect_no_other_shards(out)


def follow(source: Path, out: Path, **options: Any) -> Any:
    """Bring a dataset up to date with nothing said but that."""
    return shardctl.convert(source, out, update=True, workers=0, progress=False, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": 0},
        {"classes": "classes.txt"},
        {"samples_per_shard": 4, "split": "a=0.5,b=0.5"},
        {"labels": "none", "resize": 8},
    ],
)
def test_an_update_alone_takes_every_setting_of_the_dataset(tmp_path, out, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    source = images(tmp_path / "in", "a/1.png", "b/2.png", "a/3.png")
    Path("classes.txt").write_text("c\nb\na\n")
    write(source / "a" / "bad.png", b"no image")
    made = convert(source, out, max_rejects="100%", **options)
    assert follow(source, out, max_rejects="100%").fingerprint == made.fingerprint
    images(source, "b/4.png")
    assert follow(source, out, max_rejects="100%").changes.added == 1


def test_a_default_that_is_given_counts_as_said(tmp_path, out, cli):
    source = images(tmp_path / "in", "a/1.png", "b/2.png")
    convert(source, out, labels="none")
    refused = cli("convert", source, out, "--update", "--labels", "auto")
    assert (refused.code, "labels: none → auto" in refused.err) == (3, True)
    assert cli("convert", source, out, "--update", "--workers", 1).code == 0


def test_labels_files_are_those_of_the_dataset_wherever_the_command_runs(
    tmp_path, out, monkeypatch
):
    source, other = images(tmp_path / "in", "1.png", "2.png"), tmp_path / "other"
    other.mkdir()
    (tmp_path / "labels.csv").write_text("file_name,label\n1.png,a\n2.png,b\n")
    (other / "labels.csv").write_text("file_name,label\n1.png,b\n2.png,a\n")
    monkeypatch.chdir(tmp_path)
    convert(source, out, labels="labels.csv")
    monkeypatch.chdir(other)
    assert follow(source, out).status == "up-to-date"
    other_labels = convert(source, out, update=True, labels="labels.csv")
    assert other_labels.status == "updated"
    assert shardctl.open(out)[0]["label"] == 1


@pytest.mark.parametrize("given", [{}, {"labels": "new/labels.csv", "samples_per_shard": 6}])
def test_labels_files_within_a_source_that_moved_have_moved(tmp_path, out, monkeypatch, given):
    monkeypatch.chdir(tmp_path)
    source = images(tmp_path / "old", "1.png", "2.png")
    (source / "labels.csv").write_text("file_name,label\n1.png,a\n2.png,b\n")
    convert(source, out, labels="old/labels.csv")
    source.rename("new")
    assert follow("new", out, moved_from=["old"], **given).status == "updated"
    assert shardctl.open(out).classes == ("a", "b")


def test_a_column_of_a_followed_dataset_does_not_become_its_labels(tmp_path, out):
    source = images(tmp_path / "in", "1.png", "2.png")
    table = source / "labels.csv"
    table.write_text("file_name,kind\n1.png,a\n2.png,b\n")
    convert(source, out)
    table.write_text("file_name,kind,class\n1.png,a,x\n2.png,b,y\n")
    follow(source, out)
    assert sorted(shardctl.open(out).schema.names) == ["class", "image", "key", "kind"]
