"""Samples that are pruned are gone from every file, and stay away; all others stay as they were."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from damage import file_of, flip
from dataset_facts import keys as keys_of
from dataset_facts import rejects_of, shards_of
from dataset_files import tables_in
from followed_sources import convert, digests_of, files_of, update, write, write_lines
from in_this_process import repair
from samples_of import samples_of
from stopping import some_changes, stopped_at, stops
from token_samples import packed_blocks, write_packed

import shardctl
from shardctl.errors import UsageError
from shardctl.format.names import SHARDS
from shardctl.making.commit.target import Target
from shardctl.making.convert import run as running
from shardctl.making.rewrite import prune
from shardctl.system.files import sha256_of


def in_any_file(root: Path, data: bytes) -> list[str]:
    return [
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and data in path.read_bytes()
    ]


def expect_whole(out: Path) -> None:
    """Expect no finding, and numbers that fit the samples."""
    assert shardctl.verify(out, level="deep").findings == ()
    opened = shardctl.open(out)
    manifest = opened.manifest
    rejected = sum(reject.records for reject in rejects_of(out))
    assert (manifest.samples, manifest.rejected) == (len(opened), rejected)
    if manifest.class_counts:
        assert sum(map(sum, manifest.class_counts.values())) == len(opened)
    if manifest.jpeg:
        assert manifest.jpeg["images"] == sum(key.endswith(".jpg") for key in keys_of(out))


def captions(source: Path) -> str:
    """Write a labels file with a caption for each photo, and return it."""
    rows = [
        f"{path.relative_to(source)},{'ab'[n % 2]},the caption {n:03} of it"
        for n, path in enumerate(files_of(source))
    ]
    text = "\n".join(["file,label,caption", *rows, ""])
    write(source / "labels.csv", text)
    return text


def test_no_byte_of_a_pruned_sample_stays(source, tmp_path, out, cli):
    labels = captions(source)
    convert(source, out)
    write(source / "labels.csv", labels.replace("caption 059", "caption 999"))
    update(source, out, keep_generations=3)
    gone = files_of(source)[7]
    key, data = str(gone.relative_to(source)), gone.read_bytes()
    before = samples_of(out)
    shards = {entry.path for entry in shards_of(out)}
    assert in_any_file(out, data)
    write(tmp_path / "keys.txt", f"\ufeff{key}\nnot/there.jpg\n")
    command = ("prune", out, "--keys", tmp_path / "keys.txt")
    dry = cli(*command, "--dry-run", "--json").json
    assert (dry["removed"], dry["samples"], dry["shards_rewritten"]) == (1, 59, 1)
    ran = cli(*command)
    assert ran.out.splitlines() == [
        f"removed 1 sample from {out}, in 1 of 10 shards; 59 are left",
        "deleted the earlier generations that were kept: 1",
    ]
    assert "warning: no sample has the key not/there.jpg" in ran.err
    for gone_bytes in (data, b"the caption 007 of it"):
        assert in_any_file(out, gone_bytes) == []
    assert len(list((out / "generations").iterdir())) == 1
    expect_whole(out)
    assert samples_of(out) == {name: values for name, values in before.items() if name[0] != key}
    assert len({entry.path for entry in shards_of(out)} - shards) == 1
    (reject,) = rejects_of(out)
    assert (reject.key, reject.stage, reject.error) == (key, "prune", "pruned")
    last = shardctl.open(out).generation
    assert (last.command, last.removed, last.samples) == ("prune", 1, 59)


def test_no_update_brings_pruned_samples_back(source, out):
    files = files_of(source)
    convert(source, out)
    gone = [str(files[number].relative_to(source)) for number in (3, 30)]
    shardctl.prune(out, keys=gone)
    assert convert(source, out).status == "up-to-date"
    files[4].unlink()  # of the same shard
    files[30].write_bytes(files[31].read_bytes())  # of the other one, and another content
    update(source, out)
    write(source / "aardvark" / "1.jpg", files[0].read_bytes())
    assert update(source, out).changes.anew
    assert set(keys_of(out)).isdisjoint(gone)
    assert len(keys_of(out)) == 58
    expect_whole(out)


def test_what_was_pruned_can_be_repaired_and_stays_away(source, out):
    convert(source, out, recipe={"store": "jpeg:80", "transform": [{"name": "resize", "size": 24}]})
    gone = str(files_of(source)[20].relative_to(source))
    shardctl.prune(out, keys=[gone])
    (shard,) = [entry for entry in shards_of(out) if entry.rejected]
    (out / shard.path).unlink()
    assert repair(out).status == "repaired"
    assert sha256_of(out / shard.path) == shard.sha256
    assert gone not in keys_of(out)


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(
    "options", [{}, {"shuffle": 4}, {"split": "train=0.5,val=0.5", "shuffle": 4}]
)
def test_records_of_a_file_are_pruned_one_by_one(tmp_path, out, options):
    source, options = tmp_path / "in", {"samples_per_shard": 20, **options}
    for name in "ab":
        write_lines(
            source / f"{name}.jsonl",
            [{"text": f"secret {name}{n}", "label": "xy"[n % 2], "user": n % 7} for n in range(50)],
        )
    convert(source, out, **options)
    before = samples_of(out)
    result = shardctl.prune(out, where="user == 3")
    assert (result.removed, result.samples) == (14, 86)
    expect_whole(out)
    after = samples_of(out)
    assert after == {key: value for key, value in before.items() if "'user': 3" not in value[1]}
    if len(options) == 1:
        assert in_any_file(out, b"secret a3") == []
    write_lines(source / "c.jsonl", [{"text": "new", "label": "x", "user": 1}] * 30)
    update(source, out, **options)
    followed = samples_of(out).items()
    assert {key: value for key, value in followed if not key[0].startswith("c")} == after
    expect_whole(out)


def test_nothing_of_a_pruned_record_is_left_beside_its_neighbours(tmp_path, out, monkeypatch):
    """Blocks are cut out of records that were read together: each has its own alone."""
    monkeypatch.setattr("shardctl.format.shard.PLAIN_BLOCK_BYTES", 1000)
    source = write_lines(
        tmp_path / "in.jsonl", [{"text": f"secret {n:02} " * 9} for n in range(60)]
    )
    convert(source, out, recipe={"compression": "none"}, samples_per_shard=100)
    (shard,) = shards_of(out)
    assert len(shard.block_rows) > 3
    first = sum(shard.block_rows[:2])
    shardctl.prune(out, keys=[f"in.jsonl#{first + 1}"])
    assert in_any_file(out, f"secret {first:02}".encode()) == []
    assert in_any_file(out, f"secret {first + 1:02}".encode())
    expect_whole(out)


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{}, {"shuffle": 4}, {"split": "train=0.5,val=0.5"}])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.jsonl.gz"])
def test_records_stay_away_while_their_file_grows(name, options, tmp_path, out):
    source, is_csv = tmp_path / "in", name == "a.csv"
    lines = ["text"] * is_csv
    lines += [f'"words {n}"' if is_csv else json.dumps({"text": f"words {n}"}) for n in range(90)]
    gone = [f"{name}#4", f"{name}#40"]

    def other(number: int) -> None:
        row = "other" if is_csv else {"text": "other"}
        own = [*lines[:is_csv], *[row] * number]
        write_lines(source / name.replace("a", "z").removesuffix(".gz"), own)

    def followed() -> Any:
        """Follow, and return the warnings but that of another split, which `split` alone gives."""
        warnings = list(convert(source, out, samples_per_shard=20, update=True, **options).warnings)
        expect_whole(out)
        if "split" in options:
            assert "may now be in another split" in warnings.pop(0)
        return warnings

    write_lines(source / name, lines[:51])
    other(3)
    convert(source, out, samples_per_shard=20, **options)
    shardctl.prune(out, keys=gone)
    for count in (70, len(lines)):
        write_lines(source / name, lines[:count])
        assert followed() == []
        assert set(keys_of(out)).isdisjoint(gone)
    other(4)
    followed()
    assert set(keys_of(out)).isdisjoint(gone)
    write_lines(source / name, [*lines[:1], *reversed(lines[1:])])
    (warning,) = followed()
    assert f"2 records of {name} had been pruned, and may be back" in warning
    other(5)
    assert followed() == []
    assert set(keys_of(out)) >= set(gone), "what is not known any more stays as it is"


def _records(path: Path, count: int = 5) -> None:
    write_lines(path, ({"id": f"user-{path.stem}{n}", "n": n} for n in range(count)))


KEYED: dict[str, Any] = {"recipe": {"kind": "table", "key_field": "id"}, "labels": "none"}


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Files a, b and c of five records each."""
    for name in "abc":
        _records(tmp_path / "records" / f"{name}.jsonl")
    return tmp_path / "records"


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("gone", [[2], [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("keyed", [True, False])
def test_records_of_a_file_that_was_away_stay_away(keyed, gone, records, tmp_path, out):
    options = KEYED if keyed else {"labels": "none"}
    file = records / "b.jsonl"
    convert(records, out, **options)
    shardctl.prune(out, keys=[f"user-b{n}" if keyed else f"b.jsonl#{n + 1}" for n in gone])
    kept = samples_of(out)
    for _ in range(2):
        file.rename(tmp_path / "b.jsonl")
        for more in range(2):
            _records(records / "d.jsonl", 5 + more)  # what else changes makes no difference
            update(records, out, **options)
        file.write_bytes((tmp_path / "b.jsonl").read_bytes())  # at another time
        (records / "d.jsonl").unlink()
        warnings = update(records, out, **options).warnings
        assert not any("may be back" in warning for warning in warnings)
        assert samples_of(out) == kept
        expect_whole(out)
    _records(file, 6)
    update(records, out, **options)
    assert len(keys_of(out)) == len(kept) + 1, "it grew"


def test_a_key_that_was_pruned_does_not_come_back_in_another_file(records, tmp_path, out):
    convert(records, out, **KEYED)
    shardctl.prune(out, where="key == 'user-b2' or key == 'user-c1'")
    assert in_any_file(out, b"user-b2") == []
    kept = set(keys_of(out))
    write(records / "b.jsonl.gz", (records / "b.jsonl").read_bytes())
    (records / "b.jsonl").unlink()
    (records / "c.jsonl").rename(records / "c-1.jsonl")
    write_lines(records / "e.jsonl", [{"id": "e0", "n": 0}, {"id": "user-b2", "n": 7}])
    assert update(records, out, **KEYED).warnings == ()
    assert set(keys_of(out)) == kept | {"e0"}
    expect_whole(out)
    later = tmp_path / "later" / "f.jsonl"
    write_lines(later, [{"id": "f0", "n": 0}, {"id": "user-b2", "n": 7}])
    convert(later.parent, out, append=True, **KEYED)
    assert set(keys_of(out)) == kept | {"e0", "f0"}
    expect_whole(out)


def test_a_warning_tells_of_pruned_records_whose_file_has_another_name(records, out):
    file = records / "b.jsonl"
    convert(records, out, labels="none")
    shardctl.prune(out, keys=["b.jsonl#3", "b.jsonl#4"])
    moved = file.rename(records / "b-1.jsonl")
    (warning,) = update(records, out, labels="none").warnings
    assert "2 records of b.jsonl had been pruned, and may be back" in warning
    _records(records / "d.jsonl", 1)
    assert update(records, out, labels="none").warnings == (), "that is known"
    moved.rename(file)
    update(records, out, labels="none")
    assert {key[-1] for key in keys_of(out) if key.startswith("b.")} == {"1", "2", "5"}


def test_all_variants_of_an_input_go_together(source, out):
    recipe = {"store": "raw", "variants": 3, "transform": [{"name": "random_crop", "size": 16}]}
    convert(source, out, recipe=recipe)
    result = shardctl.prune(out, where="variant == 1 and label == 0")
    assert result.removed == 30
    assert result.samples == 150
    expect_whole(out)


def test_keys_that_are_values_of_a_field(tmp_path, out):
    source = tmp_path / "in.jsonl"
    _records(source, 60)
    convert(source, out, **KEYED)
    shardctl.prune(out, keys=["user-in33"])
    assert [(reject.key, reject.error) for reject in rejects_of(out)] == [("in.jsonl#34", "pruned")]
    expect_whole(out)
    convert(source, tmp_path / "mixed", shuffle=1, **KEYED)
    with pytest.raises(UsageError, match="its records were shuffled; remove them"):
        shardctl.prune(tmp_path / "mixed", keys=["user-in33"])


def test_samples_without_a_source(out):
    samples = [{"key": f"k{n}", "text": f"words {n}", "label": n % 2} for n in range(40)]
    shardctl.write(out, samples, classes=["even", "odd"], samples_per_shard=10)
    assert shardctl.prune(out, keys=["k5", "k17"]).removed == 2
    expect_whole(out)
    assert in_any_file(out, b"words 17") == []
    assert len(keys_of(out)) == 38
    (tables_in(out) / SHARDS).unlink()
    assert shardctl.repair(out).status == "repaired"


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("how", ["kill", "interrupt"])
def test_a_prune_that_is_stopped_anywhere_has_done_all_or_nothing(
    source, tmp_path, monkeypatch, how
):
    for file in files_of(source)[6:]:
        file.unlink()
    convert(source, tmp_path / "before", samples_per_shard=3, labels="none")
    again = partial(shardctl.prune, keys=[str(files_of(source)[1].relative_to(source))])
    found, changes = set(), some_changes(how == "kill", 4)
    for out in stops(changes, how, prune, "_written", tmp_path / "before", again, monkeypatch):
        found.add(len(shardctl.open(out)))
        again(out)
        assert len(shardctl.open(out)) == 5
    assert found == {5, 6}


def test_what_cannot_be_pruned_is_refused(dataset, tmp_path, cli):
    with pytest.raises(UsageError, match="no key was given"):
        shardctl.prune(dataset, keys=[])
    packed = write_packed(
        tmp_path / "tokens", packed_blocks({"a": "a document", "b": "another one, and longer"})
    )
    with pytest.raises(UsageError, match="each sample is made of several records"):
        shardctl.prune(packed, keys=["a"])
    assert cli("prune", dataset, "--where", "nonsense ==").code == 2
    assert cli("prune", tmp_path / "nothing", "--key", "a").code == 3
    assert not (tmp_path / "nothing").exists()


@pytest.mark.thorough
def test_a_pruned_file_that_was_away_stays_away(source, tmp_path, out):
    labels = captions(source)
    file = files_of(source)[7]
    key = str(file.relative_to(source))

    def followed() -> None:
        update(source, out)
        assert key not in keys_of(out)
        assert in_any_file(out, b"the caption 007 of it") == []

    convert(source, out)
    shardctl.prune(out, keys=[key])
    files_of(source)[0].touch()
    followed()
    shutil.move(file, tmp_path / "away")
    write(source / "labels.csv", labels.replace(f"{key},b,the caption 007 of it\n", ""))
    followed()
    shutil.move(tmp_path / "away", file)
    write(source / "labels.csv", labels)
    followed()
    shardctl.compact(out)
    files_of(source)[1].touch()
    followed()
    expect_whole(out)


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("anew", [False, True])
def test_an_update_that_was_stopped_before_a_prune_does_not_bring_samples_back(
    source, out, monkeypatch, anew
):
    convert(source, out)
    files_of(source)[20].touch()
    if anew:
        write(source / "aardvark" / "1.jpg", files_of(source)[0].read_bytes())
    follow = partial(update, source, out)
    assert stopped_at(0, "kill", running, "commit_job", follow, monkeypatch)
    gone = files_of(source)[30]
    key = str(gone.relative_to(source))
    shardctl.prune(out, keys=[key])
    assert in_any_file(out, gone.read_bytes()) == []
    follow()
    assert key not in keys_of(out)
    expect_whole(out)


def test_a_prune_that_was_killed_right_after_its_commit_is_completed(source, out, monkeypatch):
    convert(source, out)
    over = partial(convert, source, out, samples_per_shard=7, overwrite=True)
    assert stopped_at(0, "kill", running, "commit_job", over, monkeypatch)
    gone = files_of(source)[3]
    remove = partial(shardctl.prune, out, keys=[str(gone.relative_to(source))])
    assert stopped_at(3, "kill", Target, "replace_manifest", remove, monkeypatch)
    assert len(keys_of(out)) == 59
    assert remove().removed == 0
    assert in_any_file(out, gone.read_bytes()) == []


def test_a_sample_that_only_a_kept_generation_has_goes_too(source, out):
    file = files_of(source)[3]
    key, data = str(file.relative_to(source)), file.read_bytes()
    convert(source, out)
    file.unlink()
    update(source, out, keep_generations=2)
    nothing = shardctl.prune(out, where="label > 99")
    assert (nothing.removed, nothing.generations) == (0, ())
    assert in_any_file(out, data)
    result = shardctl.prune(out, keys=[key])
    assert (result.removed, result.generations, in_any_file(out, data)) == (0, (1,), [])


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("name", ["files.arrow", "plan.arrow", "rejects.jsonl", "train-00000"])
@pytest.mark.parametrize("kind", ["image", "table", "key"])
def test_a_damaged_file_is_repaired_without_what_was_pruned(kind, name, source, records, out):
    options = KEYED if kind == "key" else {"labels": "none"}
    if kind == "image":
        captions(source)
        options = {}
        gone = [str(files_of(source)[number].relative_to(source)) for number in (3, 30)]
    else:
        source = records
        gone = ["user-a1", *(f"user-b{n}" for n in range(5))]
        gone = gone if kind == "key" else ["a.jsonl#2", *(f"b.jsonl#{n}" for n in range(1, 6))]
    convert(source, out, **options)
    shardctl.prune(out, keys=gone)
    kept, digests = samples_of(out), digests_of(out)
    flip(file_of(out, name))
    assert repair(out).status == "repaired"
    assert digests_of(out) == digests
    files_of(source)[-1].touch()
    update(source, out, **options)
    assert samples_of(out) == kept
    expect_whole(out)


def test_what_cannot_be_repaired_says_that_overwrite_undoes_a_prune(source, out):
    files = files_of(source)
    convert(source, out)
    shardctl.prune(out, keys=[str(files[3].relative_to(source))])
    files[9].unlink()
    (tables_in(out) / "plan.arrow").unlink()
    result = repair(out)
    assert result.status == "damaged"
    assert any("--overwrite brings pruned samples back" in notice for notice in result.notices)
