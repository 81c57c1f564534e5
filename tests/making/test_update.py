"""A dataset that follows its sources has the samples that a conversion of them would have, and
builds no more than it must."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from damage import flip
from dataset_facts import rejects_of
from in_this_process import command_line, repair
from PIL import Image
from samples_of import samples_of
from stopping import some_changes, stopped_at

import shardctl
from shardctl.errors import DatasetError, InputError, UsageError
from shardctl.format.manifest import kept_generations
from shardctl.format.names import SHARDS, UPDATE
from shardctl.format.tables import ShardTable, read_checksums
from shardctl.making.commit import publish
from shardctl.making.convert import Listener, conversion, run
from shardctl.sources import rechecking
from shardctl.system.files import sha256_of
from shardctl.system.folders import LocalFolder

SMALL = {"store": "jpeg:80", "transform": [{"name": "resize", "size": 24}]}


def convert(source: Path, out: Path, **options: Any) -> Any:
    return shardctl.convert(source, out, **{"workers": 0, "samples_per_shard": 6, **options})


@pytest.fixture
def made(source: Path, out: Path) -> Path:
    """The dataset of the source as it is at first: 60 samples in 10 shards."""
    convert(source, out)
    return out


def update(source: Path, out: Path, **options: Any) -> Any:
    return convert(source, out, update=True, **options)


def numbers(result: Any) -> tuple[int, int, int, int, int]:
    """Files added, removed and changed; shards rebuilt and new."""
    each = result.changes
    assert not each.anew, each.anew
    return each.added, each.removed, each.changed, each.rebuilt, each.new


def expect_as_fresh(source: Path, out: Path, fresh: Path, **options: Any) -> None:
    """Expect the dataset to be whole, up to date, and to have what a conversion of the source as it
    is now has."""
    assert shardctl.verify(out).findings == ()
    convert(source, fresh, **options)
    assert samples_of(out) == samples_of(fresh)
    assert convert(source, out, **options).status == "up-to-date"
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
        with Image.open(file) as image:
            size = dict(zip(("width", "height"), image.size, strict=True))
        images.append({"id": number, "file_name": file.relative_to(source).as_posix(), **size})
        for x in range(1 + number % 2):
            box = {"id": len(boxes), "image_id": number, "category_id": 1, "iscrowd": 0}
            boxes.append({**box, "bbox": [x, 2, 9, 8], "area": 72})
    categories = [{"id": 1, "name": "thing"}]
    labels.write_text(
        json.dumps({"images": images, "annotations": boxes, "categories": categories})
    )
    return f"coco:{labels}"


def _capital(source: Path) -> None:
    image = files_of(source)[0]
    shutil.copyfile(image, image.with_name(image.name.upper()))


def _capitals(source: Path) -> None:
    for image in files_of(source):
        image.rename(image.with_name(image.name.upper()))


BESIDE_INPUTS: dict[str, Any] = {
    "nothing": lambda source: None,
    "hidden files": lambda source: [(folder / ".DS_Store").touch() for folder in source.iterdir()],
    "a hidden folder": lambda source: (source / ".thumbs").mkdir(),
    "a pipe": lambda source: os.mkfifo(source / "pipe"),
    "a link back": lambda source: (source / "again").symlink_to(source),
    "a text": lambda source: (source / "README.md").write_text("photos"),
    "annotations": lambda source: boxes_of(source, files_of(source)[:3], source / "instances.json"),
    "masks": _png_beside,
    "names that differ by case": _capital,
    "capital letters": _capitals,
    "a folder of tests": lambda source: next(iter(sorted(source.iterdir()))).rename(
        source / "test_images"
    ),
    "files of a series": lambda source: files_of(source)[0].rename(
        files_of(source)[0].with_name("a-00001-of-00004.jpg")
    ),
    "texts of a series": lambda source: [
        path.touch() for path in (source / "a-00000-of-00003.txt", source / "b-00001-of-00003.json")
    ],
    "tables beside tars": lambda source: [
        (source / f"00000.{ending}").write_bytes(b"x") for ending in ("tar", "parquet")
    ],
    "images without an ending": lambda source: [
        path.rename(path.with_suffix("")) for path in files_of(source)[:5]
    ],
}


def files_of(source: Path) -> list[Path]:
    return sorted(path for path in source.rglob("*") if path.is_file())


@pytest.mark.thorough(after=4)
@pytest.mark.parametrize("beside", BESIDE_INPUTS)
def test_the_quick_look_says_what_a_list_of_the_inputs_says(beside, source, out, monkeypatch):
    BESIDE_INPUTS[beside](source)
    convert(source, out, recipe=SMALL)
    quick = [
        replace(convert(source, out, recipe=SMALL, update=update), seconds=0.0)
        for update in (False, True)
    ]
    monkeypatch.setattr(conversion, "listed_without_walk", lambda request, folder: None)
    listed = replace(convert(source, out, recipe=SMALL), seconds=0.0)
    assert quick == [listed, listed]
    assert listed.status == "up-to-date"


def _touched(source: Path) -> None:
    for path in files_of(source)[3::7]:
        os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))


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


@pytest.fixture(params=[False, True], ids=["few", "many"])
def many(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have files compared as where there are many."""
    if request.param:
        monkeypatch.setattr(rechecking, "FILES_AT_ONCE", 3)
        monkeypatch.setattr(rechecking, "NAMES_AT_ONCE", 2)


@pytest.mark.thorough(after=2)
@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    "happens", [_touched, _another_image, _replaced, _new_folder, _empty_folder, _no_folder]
)
@pytest.mark.parametrize("beside", BESIDE_INPUTS)
def test_the_quick_look_of_an_update_makes_what_a_list_makes(
    beside,
    happens,
    source,
    tmp_path,
    monkeypatch,
):
    """The same bytes, and the same words about them."""
    BESIDE_INPUTS[beside](source)
    quick, listed = tmp_path / "quick", tmp_path / "listed"
    for out in (quick, listed):
        convert(source, out, recipe=SMALL, split="train=0.7,val=0.3")
    happens(source)
    results = [update(source, quick, recipe=SMALL, split="train=0.7,val=0.3")]
    monkeypatch.setattr(conversion, "listed_without_walk", lambda request, folder: None)
    results.append(update(source, listed, recipe=SMALL, split="train=0.7,val=0.3"))
    one, other = (replace(each, seconds=0.0, samples_per_s=0.0) for each in results)
    assert vars(one) == vars(other)
    assert one.status == "updated"
    assert (quick / "SHA256SUMS").read_bytes() == (listed / "SHA256SUMS").read_bytes()
    assert sha256_of(quick / UPDATE) == sha256_of(listed / UPDATE)
    assert convert(source, quick, recipe=SMALL, split="train=0.7,val=0.3").status == "up-to-date"


def test_an_update_of_usual_images_makes_no_list(source, out, monkeypatch):
    listed = list[int]()
    convert(source, out, recipe=SMALL)
    monkeypatch.setattr(
        "shardctl.making.convert.conversion.list_files", lambda *_: pytest.fail("it made a list")
    )
    _another_image(source)
    assert numbers(update(source, out, recipe=SMALL))[:3] == (0, 0, 2)
    _replaced(source)
    assert numbers(update(source, out, recipe=SMALL, listener=Listener(listing=listed.append)))[
        :2
    ] == (8, 5)
    assert listed == [63]


def test_more_new_inputs_than_are_kept_in_memory_are_listed(source, tmp_path, out, monkeypatch):
    convert(source, out, recipe=SMALL)
    _replaced(source)
    monkeypatch.setattr("shardctl.making.convert.unchanged.MOST_ADDED", 3)
    assert numbers(update(source, out, recipe=SMALL))[:2] == (8, 5)
    expect_as_fresh(source, out, tmp_path / "fresh", recipe=SMALL)


def test_a_new_input_with_the_path_of_another_source_is_refused(source, tmp_path, out):
    other = tmp_path / "other"
    other.mkdir()
    shutil.copyfile(files_of(source)[0], other / "one.jpg")
    shardctl.convert([source, other], out, recipe=SMALL, workers=0, labels="none")
    shutil.copyfile(files_of(source)[0], source / "one.jpg")
    with pytest.raises(InputError, match="1 key appears twice"):
        shardctl.convert([source, other], out, recipe=SMALL, workers=0, labels="none", update=True)


@pytest.mark.thorough(after=4)
@pytest.mark.usefixtures("many")
@pytest.mark.parametrize(
    "change", ["touched", "another size", "renamed", "gone", "new", "a folder", "a link to nothing"]
)
def test_a_changed_input_is_seen(change, source, tmp_path, out):
    last = files_of(source)[-1]
    convert(source, out, recipe=SMALL)
    status = last.stat()
    if change == "touched":
        os.utime(last, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    elif change == "another size":
        last.write_bytes(last.read_bytes() + b"x")
        os.utime(last, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "new":
        shutil.copy2(last, last.with_name(f"more-{last.name}"))
    elif change == "renamed":
        last.rename(last.with_name(f"more-{last.name}"))
    else:
        last.unlink()
        if change == "a folder":
            last.mkdir()
        elif change == "a link to nothing":
            last.symlink_to(tmp_path / "nothing")
    with pytest.raises(DatasetError, match="differs in its inputs"):
        convert(source, out, recipe=SMALL)
    assert convert(source, out, recipe=SMALL, update=True, max_rejects="100%").status == "updated"


def shards_of(out: Path) -> dict[str, str]:
    return {entry.path: entry.sha256 for entry in ShardTable(LocalFolder(out))}


def change(path: Path, other: Path) -> None:
    """Give a file the content of another one, at another time."""
    change_to(path, other.read_bytes())


def change_to(path: Path, data: bytes) -> None:
    """Give a file another content, at another time."""
    path.write_bytes(data)
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1_000_000_007))


def test_only_shards_of_which_inputs_changed_are_rebuilt(source, tmp_path, out, cli):
    options = {"recipe": SMALL, "split": "train=0.7,val=0.3"}
    convert(source, out, **options)
    before = shards_of(out)
    inodes = {name: (out / name).stat().st_ino for name in before}
    files = files_of(source)
    files[3].unlink()
    change(files[20], files[21])
    shutil.copy(files[8], files[8].with_name("zz-new.jpg"))
    result = update(source, out, **options)
    assert result.status == "updated"
    added, removed, changed, rebuilt, new = numbers(result)
    assert (added, removed, changed) == (1, 1, 1)
    assert rebuilt + new <= 3
    after = shards_of(out)
    same = [name for name in before if after.get(name) == before[name]]
    assert len(same) >= len(before) - 3
    assert all((out / name).stat().st_ino == inodes[name] for name in same), (
        "shards that are kept are not copied"
    )
    expect_as_fresh(source, out, tmp_path / "fresh", **options)
    assert cli("inspect", out, "--diff", tmp_path / "fresh").code == 0


def test_new_inputs_fill_the_last_shard_and_then_new_ones(source, tmp_path, out):
    files, held = files_of(source), tmp_path / "held"
    held.mkdir()
    last = [file for number, file in enumerate(files) if number % 5 == 4 or number == 3]
    for file in last:
        shutil.move(file, held / file.name)
    convert(source, out)  # 47 inputs in 8 shards of 6 at most
    for file in last:
        shutil.move(held / file.name, file)
    result = update(source, out)
    assert numbers(result)[:3] == (13, 0, 0)
    rows = [entry.rows for entry in ShardTable(LocalFolder(out))]
    assert sum(rows) == 60
    assert max(rows) <= 6
    expect_as_fresh(source, out, tmp_path / "fresh")


def test_a_file_that_was_only_touched_gives_the_same_shard(source, made):
    before = shards_of(made)
    os.utime(files_of(source)[0])
    assert numbers(update(source, made)) == (0, 0, 1, 1, 0)
    assert shards_of(made) == before


def test_relabelled_inputs_are_changed_ones(source, tmp_path, out):
    rows = [
        f"{path.relative_to(source)},{number % 3},{number}"
        for number, path in enumerate(files_of(source))
    ]
    labels = source / "labels.csv"
    labels.write_text("\n".join(["file,label,number", *rows]) + "\n")
    convert(source, out)
    rows[10] = rows[10].replace(",10", ",99")
    rows[30] = rows[30].replace(",0,", ",1,")
    labels.write_text("\n".join(["file,label,number", *rows]) + "\n")
    assert numbers(update(source, out)) == (0, 0, 2, 2, 0)
    expect_as_fresh(source, out, tmp_path / "fresh")


def test_inputs_that_change_their_split_move_there(source, tmp_path, out):
    rows = [
        f"{path.relative_to(source)},{'train' if number % 4 else 'val'}\n"
        for number, path in enumerate(files_of(source))
    ]
    labels = source / "labels.csv"
    labels.write_text("file,split\n" + "".join(rows))
    convert(source, out)
    rows[0], rows[1] = rows[0].replace(",val", ",train"), rows[1].replace(",train", ",val")
    labels.write_text("file,split\n" + "".join(rows))
    assert update(source, out).changes.kept > 0
    expect_as_fresh(source, out, tmp_path / "fresh")


def test_a_new_class_gives_all_labels_other_numbers(source, tmp_path, made, cli):
    (source / "aardvark").mkdir()
    shutil.copy(files_of(source)[0], source / "aardvark" / "1.jpg")
    dry = cli("convert", source, made, "--update", "--dry-run", "--samples-per-shard", "6")
    assert "as aardvark came or went" in dry.out
    assert update(source, made).changes.anew
    expect_as_fresh(source, made, tmp_path / "fresh")


def test_a_split_that_loses_all_its_inputs_goes(photos, tmp_path, out):
    source = tmp_path / "in"
    for number, split in enumerate(("train", "val")):
        shutil.copytree(photos, source / split)
        for file in files_of(source / split)[number::2]:
            file.unlink()
    convert(source, out, labels="none", split="folder")
    shutil.rmtree(source / "val")
    update(source, out, labels="none", split="folder")
    assert [split.name for split in shardctl.open(out).manifest.splits] == ["train"]
    expect_as_fresh(source, out, tmp_path / "fresh", labels="none", split="folder")


def lines_of(name: str, count: int, first: int = 0) -> str:
    return "".join(
        json.dumps({"text": f"{name} says {n}", "label": "ab"[n % 2], "n": n}) + "\n"
        for n in range(first, count)
    )


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("shuffle", [None, 3])
@pytest.mark.parametrize("split", ["none", "train=0.6,val=0.4"])
def test_files_of_many_records_follow_too(tmp_path, out, split, shuffle):
    source = tmp_path / "in"
    source.mkdir()
    for number in range(6):
        (source / f"day-{number}.jsonl").write_text(lines_of(f"day {number}", 40))
    options = {"split": split, "shuffle": shuffle, "samples_per_shard": 20}
    convert(source, out, **options)
    (source / "day-1.jsonl").unlink()
    with open(source / "day-4.jsonl", "a") as file:
        file.write(lines_of("day 4", 55, 40))
    (source / "day-6.jsonl").write_text(lines_of("day 6", 30))
    result = update(source, out, **options)
    assert numbers(result)[:3] == (1, 1, 1)
    assert split != "none" or shuffle or result.changes.kept >= 4
    expect_as_fresh(source, out, tmp_path / "fresh", **options)


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("other", [{"label": "c"}, {"more": 2}, {"n": 1.5}, {"n": "one"}])
def test_new_records_of_other_types_make_all_anew(tmp_path, out, other):
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.jsonl").write_text(lines_of("a", 60))
    convert(source, out)
    (source / "b.jsonl").write_text(json.dumps({"text": "x", "label": "a", "n": 1, **other}) + "\n")
    assert update(source, out).changes.anew
    expect_as_fresh(source, out, tmp_path / "fresh")


def test_a_type_that_only_a_late_record_has_makes_all_anew(tmp_path, out):
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.csv").write_text("n,t\n" + "".join(f"{n},x\n" for n in range(60)))
    convert(source, out, samples_per_shard=100_000)
    (source / "b.csv").write_text(
        "n,t\n" + "".join(f"{n},x\n" for n in range(250_000)) + "none,y\n"
    )
    result = update(source, out, samples_per_shard=100_000)
    assert result.changes.anew
    assert shardctl.open(out).schema.field("n").type == "string"


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
    held = {}
    for file in files:  # cannot be decoded any more, which their sizes and times do not show
        held[file] = file.read_bytes(), file.stat().st_mtime_ns
        file.write_bytes(bytes(len(held[file][0])))
        os.utime(file, ns=(1, held[file][1]))
    for place in (3, 25, 44):
        change_to(files[place], held[files[place]][0] + b"\0")  # behind its end
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
    # cannot be decoded any more, which their sizes and times do not show
    for file in set(files_of(source)) - {files[22]}:
        status = file.stat()
        file.write_bytes(bytes(status.st_size))
        os.utime(file, ns=(1, status.st_mtime_ns))
    assert update(source, out, recipe=SMALL).rejected == 0


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("compression", ["none", "zstd:1"])
@pytest.mark.parametrize("place", [0, 5, 59])
@pytest.mark.parametrize("small_blocks", [True, False])
def test_a_rebuilt_shard_is_that_of_the_same_samples_made_anew(
    small_blocks,
    place,
    compression,
    source,
    out,
    monkeypatch,
):
    """Nothing of a neighbour is left in its buffers: `repair` makes the same bytes, and what has
    gone is in none of them."""
    if small_blocks:
        monkeypatch.setattr("shardctl.format.shard.PLAIN_BLOCK_BYTES", 5000)
        monkeypatch.setattr("shardctl.format.shard.COMPRESSED_BLOCK_BYTES", 5000)
    recipe = {"store": "source", "compression": compression}
    convert(source, out, recipe=recipe, samples_per_shard=100)
    gone = files_of(source)[place]
    key = gone.relative_to(source).as_posix()
    gone.unlink()
    update(source, out, recipe=recipe, samples_per_shard=100)
    (shard,) = shards_of(out)
    if compression == "none":
        assert key.encode() not in (out / shard).read_bytes()
    before = shards_of(out)
    (out / shard).unlink()
    assert repair(out).status == "repaired"
    assert shards_of(out) == before


def test_masks_without_images_follow(tmp_path, out, monkeypatch):
    source = tmp_path / "in"
    (tmp_path / "just_masks.py").write_text(
        "def mean(sample):\n    return {**sample, 'mean': float(sample['image'].mean())}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in "abc":
        for folder in ("images", "masks"):
            (source / folder).mkdir(parents=True, exist_ok=True)
            Image.new("L" if folder == "masks" else "RGB", (20, 16)).save(
                source / folder / f"{name}.png"
            )
    steps = [{"name": "resize", "size": "8x8"}, {"name": "custom", "target": "just_masks:mean"}]
    options: dict[str, Any] = {
        "recipe": {"store": "none", "transform": steps},
        "labels": f"masks:{source / 'masks'}",
    }
    convert(source / "images", out, **options)
    change_to(source / "images" / "b.png", (source / "images" / "b.png").read_bytes() + b"\0")
    assert numbers(update(source / "images", out, **options))[2] == 1
    expect_as_fresh(source / "images", out, tmp_path / "fresh", **options)


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
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for name in list(shards_of(out))[::2]:
        flip(out / name)
    for name in (SHARDS, "rejects.jsonl"):
        (out / name).unlink()
    assert repair(out).status == "repaired"
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    (out / "plan.arrow").unlink()
    assert "an update has ordered it" in repair(out).unrepaired[0].message


def test_history_says_what_changed(source, made, cli):
    files_of(source)[0].unlink()
    update(source, made)
    history = shardctl.open(made).manifest.history
    assert [
        (each.number, each.command, each.added, each.removed, each.changed) for each in history
    ] == [
        (1, "convert", 60, 0, 0),
        (2, "update", 0, 1, 0),
    ]
    assert shardctl.open(made).generation == history[1]
    sums = hashlib.sha256((made / "SHA256SUMS").read_bytes()).hexdigest()
    assert (history[1].digest, history[0].digest != sums) == (sums, True)
    shown = cli("inspect", made, "--history")
    assert [line.split()[2] for line in shown.out.splitlines()[1:]] == ["convert", "update"]
    assert shown.out.rstrip().endswith(f"{sums[:12]}  present")
    listed = cli("inspect", made, "--history", "--json").json["generations"]
    assert [each["there"] for each in listed] == [False, True]


def test_generations_are_kept_and_share_their_shards(source, made):
    contents = [samples_of(made)]
    for number in range(3):
        files_of(source)[number * 10].unlink()
        update(source, made, keep_generations=2 if number == 0 else None)
        contents.append(samples_of(made))
    with pytest.raises(
        DatasetError, match=r"generation 1 is not there, only 2, 3, 4; .* keeps earlier ones"
    ):
        shardctl.open(made, generation=1)
    for number in (2, 3, 4):
        opened = shardctl.open(made, generation=number)
        assert opened.generation.number == number
        assert samples_of(opened.root) == contents[number - 1]
        assert shardctl.verify(opened.root).findings == ()
    linked = [(made / name).stat().st_nlink for name in shards_of(made)]
    assert linked.count(3) >= 7, "most shards are in all three generations"
    assert shardctl.verify(made).findings == ()
    convert(source, made, overwrite=True)
    assert not (made / "generations").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["kill", "interrupt"])
@pytest.mark.parametrize("exchanged", [True, False])
def test_an_update_goes_on_wherever_it_is_stopped(
    source, tmp_path, out, monkeypatch, how, exchanged
):
    """Stopped right before changes that it makes to the file system, one after the other."""
    before = tmp_path / "before"
    options = {"samples_per_shard": 3, "labels": "none"}
    for file in files_of(source)[6:]:
        file.unlink()
    convert(source, before, **options)
    files_of(source)[3].unlink()
    if not exchanged:
        monkeypatch.setattr(publish, "_exchange_folders", lambda new, target: False)
    found = set()
    for change in some_changes(3 * (how == "kill")):
        shutil.copytree(before, out)
        again = partial(update, source, out, keep_generations=1, **options)
        if not stopped_at(change, how, run, "begin_job", again, monkeypatch):
            assert change > 30
            break
        found.add(len(shardctl.open(out)) if (out / "manifest.json").exists() else 0)
        again()
        assert (len(shardctl.open(out)), len(shardctl.open(out, generation=1))) == (5, 6)
        sums = read_checksums(LocalFolder(out))
        assert sums == {name: sha256_of(out / name) for name in sums}
        assert [
            path.name for path in (*out.iterdir(), *tmp_path.iterdir()) if path.name.startswith(".")
        ] == []
        shutil.rmtree(out)
    assert {6, 5} <= found <= ({6, 5} if exchanged else {6, 0, 5})
    expect_as_fresh(source, out, tmp_path / "fresh", **options)


# --- sources that only grow ---


def days(source: Path, *numbers: int) -> None:
    for number in numbers:
        (source / f"day-{number}").mkdir(parents=True)
        (source / f"day-{number}" / "log.jsonl").write_text(lines_of(f"day {number}", 30))


def test_new_days_are_appended_and_the_old_ones_may_be_gone(tmp_path, out, cli):
    source, fresh = tmp_path / "in", tmp_path / "fresh"
    days(source, 1, 2)
    convert(source, out, samples_per_shard=20)
    before = shards_of(out)
    days(source, 3, 10)
    held = tmp_path / "held"
    held.mkdir()
    for number in (1, 2):
        shutil.move(source / f"day-{number}", held)
    options = ("--samples-per-shard", "20", "--workers", "0")
    ran = cli("convert", source / "day-3", source / "day-10", out, "--append", *options)
    assert (ran.code, ran.out.splitlines()[1]) == (
        0,
        "+2 -0 ~0 inputs; 0 of 3 shards rebuilt, 3 new",
    )
    assert {name: shards_of(out)[name] for name in before} == before
    assert "day-10/log.jsonl#7" in {key for key, _ in samples_of(out)}
    for number in (1, 2):
        shutil.move(held / f"day-{number}", source)
    expect_as_fresh(source, out, fresh, samples_per_shard=20)
    assert shardctl.open(out).generation.command == "append"
    again = cli("convert", source / "day-3", out, "--append", *options)
    assert again.out.startswith(f"{out} is up to date: 120 samples in 6 shards")
    assert shardctl.compact(out).status == "compacted"
    assert samples_of(out) == samples_of(fresh)


def test_another_source_is_appended_as_one_of_its_own(source, tmp_path, out):
    other = tmp_path / "more"
    convert(source, out)
    files = files_of(source)
    (other / files[0].parent.name).mkdir(parents=True)
    shutil.copy(files[0], other / files[0].parent.name / "new.jpg")
    assert numbers(convert(other, out, append=True)) == (1, 0, 0, 0, 1)
    assert shardctl.open(out).manifest.sources == (str(source), str(other))
    assert shardctl.verify(out).findings == ()
    both = partial(shardctl.convert, [source, other], workers=0, samples_per_shard=6)
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
    with pytest.raises(InputError, match="append=True only adds; use update=True"):
        convert(file.parent, out, append=True)
    zebra.mkdir()
    shutil.copy(file, zebra / "1.jpg")
    with pytest.raises(InputError, match="as zebra came or went; use update=True"):
        convert(zebra, out, append=True)
    (zebra / "labels.csv").write_text("file,label\n1.jpg,a\n")
    with pytest.raises(InputError, match="labels files name all inputs"):
        convert(zebra, out, append=True)
    with pytest.raises(InputError, match="labels files and annotations"):
        convert(zebra, out, append=True, labels=zebra / "labels.csv")
    with pytest.raises(UsageError, match="contradict each other"):
        convert(source, out, append=True, update=True)


# --- what cannot be brought up to date ---


def test_what_is_no_update_is_refused_by_name(source, made, cli):
    files_of(source)[0].unlink()
    with pytest.raises(DatasetError, match="differs in its inputs; use update=True"):
        convert(source, made)
    with pytest.raises(DatasetError, match="differs in its recipe"):
        update(source, made, recipe=SMALL)
    with pytest.raises(DatasetError, match="differs in its settings"):
        update(source, made, samples_per_shard=7)
    assert cli("convert", source, made, "--update", "--resize", "20").code == 3
    with pytest.raises(UsageError, match="contradict each other"):
        update(source, made, overwrite=True)
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
@pytest.mark.parametrize(
    "name", ["plan.arrow", "files.arrow", "rejects.jsonl", "train-00009.arrow"]
)
def test_a_damaged_dataset_is_to_be_repaired_first(source, made, name, happens):
    if happens:
        happens(files_of(source)[0])
    if name.startswith("train"):
        (made / name).unlink()
    else:
        (made / name).write_bytes((made / name).read_bytes() + b" ")
    before = sorted(made.iterdir())
    for dry_run in (True, False):
        with pytest.raises(DatasetError, match=f"{name}.*`shardctl repair"):
            update(source, made, dry_run=dry_run)
    assert sorted(made.iterdir()) == before


def test_without_its_record_a_dataset_is_whole_and_cannot_follow(source, tmp_path, made):
    (made / UPDATE).unlink()
    result = shardctl.verify(made)
    assert (result.ok, [finding.kind for finding in result.findings]) == (True, ["damaged-update"])
    files_of(source)[0].unlink()
    with pytest.raises(DatasetError, match=f"{UPDATE} is missing"):
        update(source, made)
    shardctl.write(tmp_path / "written", [{"key": "a", "n": 1}])
    with pytest.raises(DatasetError, match="has no source"):
        update(source, tmp_path / "written")


# --- what differs ---


def test_explain_names_all_that_differs(source, tmp_path, out, cli):
    convert(source, out)
    explain = ("convert", source, out, "--explain", "--samples-per-shard", "6")
    assert cli(*explain).out == f"{out} is up to date\n"
    files = files_of(source)
    new = files[0].with_name("zz.jpg")
    files[3].unlink()
    change(files[5], files[6])
    shutil.copy(files[0], new)
    explained = cli(*explain, "--json").json["explanation"]
    assert (explained["verdict"], explained["parts"]) == ("update", ["inputs"])
    for what, path in (("added", new), ("removed", files[3]), ("changed", files[5])):
        assert explained[what]["examples"] == [str(path.relative_to(source))]
    told = cli(*explain, "--resize", "9", "--shuffle", "2").out
    for part in ("--overwrite", "recipe: resize: none → 9", "settings: shuffle: none → 2"):
        assert part in told
    assert cli("convert", source, tmp_path / "none", "--explain").code == 3


# --- two at once, and what was left behind ---


@pytest.mark.thorough
def test_appends_at_the_same_time_are_all_there(tmp_path, out):
    source = tmp_path / "in"
    days(source, 1, 2, 3, 4)
    convert(source / "day-1", out, labels="none")
    options = "--append --labels none --samples-per-shard 6 --workers 0".split()
    others = [source / f"day-{number}" for number in (2, 3, 4)]
    for other in others:
        (other / "log.jsonl").rename(other / f"{other.name}.jsonl")
    running = [
        subprocess.Popen(command_line("convert", *options, other, out), stdout=subprocess.DEVNULL)
        for other in others
    ]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    assert len(shardctl.open(out)) == 120
    assert shardctl.verify(out).findings == ()


def test_how_many_generations_are_kept_is_remembered_though_nothing_has_changed(source, made):
    opened = shardctl.open(made)
    assert convert(source, made, keep_generations=2).status == "up-to-date"
    assert len(list(opened.loader(10))) == 6
    for number in (3, 7):
        files_of(source)[number].unlink()
        update(source, made)
    assert kept_generations(made) == [1, 2]
    assert update(source, made, keep_generations=1).status == "up-to-date"
    assert kept_generations(made) == [2]
    assert shardctl.verify(made).findings == ()


def test_a_kept_generation_stays_as_it_was(source, made, cli):
    files_of(source)[3].unlink()
    update(source, made, keep_generations=1)
    kept = made / "generations" / "00001"
    assert kept.is_dir()
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
def test_labels_that_have_gone_away_are_no_update(labels, source, tmp_path, out, cli):
    flat = tmp_path / "flat"
    for folder in ("one", "two"):
        (flat / folder).mkdir(parents=True)
    places = [
        flat / ("one", "two")[number % 2] if labels == "folders" else flat for number in range(60)
    ]
    for number, (file, folder) in enumerate(zip(files_of(source), places, strict=True)):
        shutil.copy(file, folder / f"{number:02}{file.suffix}")
    if labels == "file":
        names = [file.name for file in files_of(flat)]
        (flat / "labels.csv").write_text(
            "file,label\n" + "".join(f"{name},{n % 3}\n" for n, name in enumerate(names))
        )
    convert(flat, out)
    if labels == "file":
        (flat / "labels.csv").unlink()
    else:
        shutil.rmtree(flat / "two")
    ran = cli("convert", flat, out, "--update", "--samples-per-shard", 6)
    assert (ran.code, "the sources have lost their" in ran.err) == (3, True), ran.err
    assert len(shardctl.open(out)) == 60
    assert cli("convert", flat, out, "--overwrite", "--samples-per-shard", 6).code == 0


def test_as_many_generations_are_kept_as_were_asked_for(source, out):
    kept = []
    convert(source, out)
    for number in range(5):
        os.utime(files_of(source)[number])
        update(source, out, keep_generations=3)
        kept.append(kept_generations(out))
    assert kept == [[1], [1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]
    convert(source, out, overwrite=True, keep_generations=3)
    os.utime(files_of(source)[0])
    update(source, out)
    assert kept_generations(out) == [1]
    assert shardctl.open(out, generation=1).generation == shardctl.open(out).manifest.history[0]


def test_rejected_records_of_unchanged_files_stay_rejected(tmp_path, out):
    source = tmp_path / "in"
    source.mkdir()
    for name in "abc":
        (source / f"{name}.jsonl").write_text(lines_of(name, 12))
    data = gzip.compress(lines_of("torn", 200).encode())
    (source / "b.jsonl.gz").write_bytes(data[:-40])
    (source / "b2.jsonl").write_text("no JSON\n" + lines_of("b2", 3))
    options = {"split": "train=0.5,val=0.5", "samples_per_shard": 400}
    convert(source, out, **options)
    assert shardctl.open(out).manifest.rejected >= 2
    (source / "a.jsonl").unlink()
    update(source, out, **options)
    expect_as_fresh(source, out, tmp_path / "fresh", **options)
    reasons = [
        sorted((r.key, r.error) for r in rejects_of(root)) for root in (out, tmp_path / "fresh")
    ]
    assert reasons[0] == reasons[1]


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("tear", ["marker", "shard", "no shard", "generation"])
def test_what_a_power_failure_tore_of_an_update_is_made_again(tear, source, tmp_path, out):
    """And the dataset before it, and the generation that is kept, are whole all the time."""
    convert(source, out, keep_generations=1)
    keys = [sample["key"] for sample in shardctl.open(out)]
    for path in files_of(source)[::3]:
        change(path, files_of(source)[1])
    done = 0

    def stop(progress: Any) -> None:
        nonlocal done
        done += progress.records
        if done >= 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        update(source, out, listener=Listener(progress=stop))
    (job,) = (path for path in (out / ".shardctl").iterdir() if path.is_dir())
    made = next((job / "done").glob("*.arrow"))
    shard = next(
        path for path in sorted((job / "new").glob("*.arrow")) if path.stat().st_nlink == 1
    )
    torn = {"marker": made, "shard": shard}.get(tear)
    if torn is not None:
        torn.write_bytes(torn.read_bytes()[:100])
    elif tear == "no shard":
        shard.unlink()
    else:
        (out / "generations" / ".unfinished").mkdir(parents=True)
        (out / "generations" / ".unfinished" / "manifest.json").write_bytes(b"")
    assert [sample["key"] for sample in shardctl.open(out)] == keys
    assert update(source, out).status in ("resumed", "updated")
    expect_as_fresh(source, out, tmp_path / "fresh")
    assert kept_generations(out) == [1]
    assert [sample["key"] for sample in shardctl.open(out, generation=1)] == keys
    assert shardctl.verify(out / "generations" / "00001").findings == ()
