"""Samples that are pruned are gone from every file, and stay away; all others stay as they were."""

from __future__ import annotations

import gzip
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from dataset_facts import rejects_of, shards_of
from in_this_process import repair
from samples_of import samples_of
from stopping import some_changes, stopped_at
from token_samples import packed_blocks, write_packed

import shardctl
from shardctl.errors import InputError, UsageError
from shardctl.format.names import SHARDS
from shardctl.format.tables import read_checksums
from shardctl.making.commit import publish
from shardctl.making.rewrite import prune
from shardctl.system.files import sha256_of
from shardctl.system.folders import LocalFolder


def convert(source: Path, out: Path, **options: Any) -> Any:
    return shardctl.convert(source, out, **{"workers": 0, "samples_per_shard": 6, **options})


def files_of(source: Path) -> list[Path]:
    return sorted(
        path for path in source.rglob("*") if path.is_file() and path.name != "labels.csv"
    )


def keys_of(out: Path) -> list[str]:
    return [str(key) for key, _ in samples_of(out)]


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
    assert (manifest.samples, manifest.rejected) == (
        len(opened),
        sum(r.records for r in rejects_of(out)),
    )
    labels = opened.take(range(len(opened)), ["label"])["label"] if manifest.class_counts else []
    if manifest.class_counts:
        assert sum(map(sum, manifest.class_counts.values())) == len(labels)
    if manifest.jpeg:
        assert manifest.jpeg["images"] == sum(key.endswith(".jpg") for key in keys_of(out))


def test_no_byte_of_a_pruned_sample_stays(source, tmp_path, out, cli):
    rows = [
        f"{path.relative_to(source)},{'ab'[n % 2]},the caption {n:03} of it"
        for n, path in enumerate(files_of(source))
    ]
    (source / "labels.csv").write_text("\n".join(["file,label,caption", *rows, ""]))
    convert(source, out)
    (source / "labels.csv").write_text(
        "\n".join(["file,label,caption", *rows, ""]).replace("caption 059", "caption 999")
    )
    convert(source, out, update=True, keep_generations=3)
    gone = files_of(source)[7]
    key, data = str(gone.relative_to(source)), gone.read_bytes()
    before, shards = (
        samples_of(out),
        {entry.path: entry.sha256 for entry in shards_of(out)},
    )
    assert in_any_file(out, data)
    (tmp_path / "keys.txt").write_text(f"\ufeff{key}\nnot/there.jpg\n", encoding="utf-8")
    dry = cli("prune", out, "--keys", tmp_path / "keys.txt", "--dry-run", "--json").json
    assert (dry["removed"], dry["samples"], dry["shards_rewritten"]) == (1, 59, 1)
    ran = cli("prune", out, "--keys", tmp_path / "keys.txt")
    assert ran.out.splitlines() == [
        f"removed 1 sample from {out}, in 1 of 10 shards; 59 are left",
        "deleted the earlier generations that were kept: 1",
    ]
    assert "warning: no sample has the key not/there.jpg" in ran.err
    assert in_any_file(out, data) == []
    assert in_any_file(out, b"the caption 007 of it") == []
    assert not (out / "generations").exists()
    expect_whole(out)
    assert samples_of(out) == {name: values for name, values in before.items() if name[0] != key}
    assert sum(shards[entry.path] != entry.sha256 for entry in shards_of(out)) == 1
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
    convert(source, out, update=True)
    (source / "aardvark").mkdir()
    shutil.copy(files[0], source / "aardvark" / "1.jpg")
    result = convert(source, out, update=True)
    assert result.changes.anew
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
    "options",
    [
        {},
        {"shuffle": 4},
        {"split": "train=0.5,val=0.5"},
        {"split": "train=0.5,val=0.5", "shuffle": 4},
    ],
)
def test_records_of_a_file_are_pruned_one_by_one(tmp_path, out, options):
    source = tmp_path / "in"
    source.mkdir()
    for name in "ab":
        rows = [
            {"text": f"secret {name}{n}", "label": "xy"[n % 2], "user": n % 7} for n in range(50)
        ]
        (source / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    convert(source, out, samples_per_shard=20, **options)
    before = samples_of(out)
    result = shardctl.prune(out, where="user == 3")
    assert (result.removed, result.samples) == (14, 86)
    expect_whole(out)
    after = samples_of(out)
    assert after == {
        name: values for name, values in before.items() if "'user': 3" not in values[1]
    }
    if not options:
        assert in_any_file(out, b"secret a3") == []
    (source / "c.jsonl").write_text('{"text": "new", "label": "x", "user": 1}\n' * 30)
    convert(source, out, samples_per_shard=20, update=True, **options)
    assert {
        name: values for name, values in samples_of(out).items() if not name[0].startswith("c")
    } == after
    expect_whole(out)


def test_nothing_of_a_pruned_record_is_left_beside_its_neighbours(tmp_path, out, monkeypatch):
    """Blocks are cut out of records that were read together: each has its own alone."""
    monkeypatch.setattr("shardctl.format.shard.PLAIN_BLOCK_BYTES", 1000)
    source = tmp_path / "in.jsonl"
    source.write_text(
        "".join(json.dumps({"text": f"secret {n:02} " * 9}) + "\n" for n in range(60))
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
    source = tmp_path / "in"
    source.mkdir()
    made = (
        json.dumps({"text": f"words {n}"}) if "json" in name else f'"words {n}"' for n in range(90)
    )
    lines = ["text", *made] if "csv" in name else list(made)
    written = gzip.open if name.endswith("gz") else open

    def write(lines: list[str]) -> None:
        with written(source / name, "wt") as file:
            file.write("".join(f"{line}\n" for line in lines))

    def other(number: int) -> None:
        row = "other" if "csv" in name else '{"text": "other"}'
        (source / name.replace("a", "z").removesuffix(".gz")).write_text(
            "".join(f"{line}\n" for line in [*lines[: "csv" in name], *[row] * number])
        )

    write(lines[:51])
    other(3)
    convert(source, out, samples_per_shard=20, **options)
    gone = [f"{name}#4", f"{name}#40"]
    shardctl.prune(out, keys=gone)
    for count in (70, len(lines)):
        write(lines[:count])
        warnings = convert(source, out, samples_per_shard=20, update=True, **options).warnings
        assert ["may now be in another split" in warning for warning in warnings] == [True] * (
            "split" in options
        )
        assert set(keys_of(out)).isdisjoint(gone)
        expect_whole(out)
    other(4)
    convert(source, out, samples_per_shard=20, update=True, **options)
    assert set(keys_of(out)).isdisjoint(gone)
    write([*lines[:1], *reversed(lines[1:])])
    warnings = convert(source, out, samples_per_shard=20, update=True, **options).warnings
    assert f"2 records of {name} had been pruned, and may be back" in warnings[-1]
    assert ["may now be in another split" in warning for warning in warnings[:-1]] == [True] * (
        "split" in options
    )
    other(5)
    warnings = convert(source, out, samples_per_shard=20, update=True, **options).warnings
    assert ["may now be in another split" in warning for warning in warnings] == [True] * (
        "split" in options
    )
    assert set(keys_of(out)) >= set(gone), "what is not known any more stays as it is"
    expect_whole(out)


def _records(path: Path, count: int = 5) -> list[str]:
    lines = [json.dumps({"id": f"user-{path.stem}{n}", "n": n}) for n in range(count)]
    path.write_text("".join(f"{line}\n" for line in lines))
    return lines


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("gone", [["user-b2"], [f"user-b{n}" for n in range(5)]])
@pytest.mark.parametrize("key", ["id", None])
def test_records_of_a_file_that_was_away_stay_away(key, gone, tmp_path, out):
    source, options = (
        tmp_path / "in",
        {"recipe": {"kind": "table", "key_field": key}, "labels": "none"},
    )
    source.mkdir()
    for name in "abc":
        _records(source / f"{name}.jsonl")
    convert(source, out, **options)
    shardctl.prune(out, keys=gone if key else [f"b.jsonl#{int(each[-1]) + 1}" for each in gone])
    kept = samples_of(out)
    for _ in range(2):
        shutil.move(source / "b.jsonl", tmp_path / "b.jsonl")
        for update in range(2):
            _records(source / "d.jsonl", 5 + update)  # what else changes makes no difference
            convert(source, out, update=True, **options)
        # another time of change
        (source / "b.jsonl").write_bytes((tmp_path / "b.jsonl").read_bytes())
        (source / "d.jsonl").unlink()
        warnings = convert(source, out, update=True, **options).warnings
        assert not any("may be back" in warning for warning in warnings)
        assert samples_of(out) == kept
        expect_whole(out)
    _records(source / "b.jsonl", 6)
    convert(source, out, update=True, **options)
    assert len(keys_of(out)) == len(kept) + 1, "it grew"


def test_a_key_that_was_pruned_does_not_come_back_in_another_file(tmp_path, out):
    source = tmp_path / "in"
    options: dict[str, Any] = {"recipe": {"kind": "table", "key_field": "id"}, "labels": "none"}
    source.mkdir()
    for name in "abc":
        _records(source / f"{name}.jsonl")
    convert(source, out, **options)
    shardctl.prune(out, where="key == 'user-b2' or key == 'user-c1'")
    assert in_any_file(out, b"user-b2") == []
    kept = set(keys_of(out))
    with gzip.open(source / "b.jsonl.gz", "wb") as file:
        file.write((source / "b.jsonl").read_bytes())
    (source / "b.jsonl").unlink()
    (source / "c.jsonl").rename(source / "c-1.jsonl")
    (source / "e.jsonl").write_text('{"id": "e0", "n": 0}\n{"id": "user-b2", "n": 7}\n')
    assert convert(source, out, update=True, **options).warnings == ()
    assert set(keys_of(out)) == kept | {"e0"}
    expect_whole(out)
    later = tmp_path / "later" / "f.jsonl"
    later.parent.mkdir()
    later.write_text('{"id": "f0", "n": 0}\n{"id": "user-b2", "n": 7}\n')
    convert(later.parent, out, append=True, **options)
    assert set(keys_of(out)) == kept | {"e0", "f0"}
    expect_whole(out)


def test_a_warning_tells_of_pruned_records_whose_file_has_another_name(tmp_path, out):
    source = tmp_path / "in"
    source.mkdir()
    for name in "ab":
        _records(source / f"{name}.jsonl")
    convert(source, out, labels="none")
    shardctl.prune(out, keys=["b.jsonl#3", "b.jsonl#4"])
    (source / "b.jsonl").rename(source / "b-1.jsonl")
    (warning,) = convert(source, out, labels="none", update=True).warnings
    assert "2 records of b.jsonl had been pruned, and may be back" in warning
    (source / "c.jsonl").write_text('{"id": "c0", "n": 0}\n')
    assert convert(source, out, labels="none", update=True).warnings == (), "that is known"
    (source / "b-1.jsonl").rename(source / "b.jsonl")
    convert(source, out, labels="none", update=True)
    assert set(keys_of(out)) & {f"b.jsonl#{n}" for n in range(6)} == {
        "b.jsonl#1",
        "b.jsonl#2",
        "b.jsonl#5",
    }


def test_all_variants_of_an_input_go_together(source, out):
    recipe = {"store": "raw", "variants": 3, "transform": [{"name": "random_crop", "size": 16}]}
    convert(source, out, recipe=recipe)
    result = shardctl.prune(out, where="variant == 1 and label == 0")
    assert result.removed == 30
    assert result.samples == 150
    expect_whole(out)


def test_keys_that_are_values_of_a_field(tmp_path, out):
    source = tmp_path / "in.jsonl"
    source.write_text(
        "".join(json.dumps({"id": f"u{n}", "text": f"words {n}"}) + "\n" for n in range(60))
    )
    convert(source, out, recipe={"key_field": "id"})
    shardctl.prune(out, keys=["u33"])
    assert [(reject.key, reject.error) for reject in rejects_of(out)] == [("in.jsonl#34", "pruned")]
    expect_whole(out)
    source.touch()
    convert(source, out, recipe={"key_field": "id"}, overwrite=True)
    convert(source, tmp_path / "mixed", recipe={"key_field": "id"}, shuffle=1)
    with pytest.raises(UsageError, match="its records were shuffled; remove them"):
        shardctl.prune(tmp_path / "mixed", keys=["u33"])


def test_samples_without_a_source(out):
    samples = [{"key": f"k{n}", "text": f"words {n}", "label": n % 2} for n in range(40)]
    shardctl.write(out, samples, classes=["even", "odd"], samples_per_shard=10)
    assert shardctl.prune(out, keys=["k5", "k17"]).removed == 2
    expect_whole(out)
    assert in_any_file(out, b"words 17") == []
    assert len(keys_of(out)) == 38
    (out / SHARDS).unlink()
    assert shardctl.repair(out).status == "repaired"


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("how", ["kill", "interrupt"])
def test_a_prune_that_is_stopped_anywhere_has_done_all_or_nothing(
    source, tmp_path, out, monkeypatch, how
):
    before = tmp_path / "before"
    for file in files_of(source)[6:]:
        file.unlink()
    convert(source, before, samples_per_shard=3, labels="none")
    key = str(files_of(source)[1].relative_to(source))
    found = set()
    for change in some_changes(how == "kill", 4):
        shutil.copytree(before, out)
        again = partial(shardctl.prune, out, keys=[key])
        if not stopped_at(change, how, prune, "_written", again, monkeypatch):
            break
        found.add(len(shardctl.open(out)))
        again()
        assert len(shardctl.open(out)) == 5
        sums = read_checksums(LocalFolder(out))
        assert sums == {name: sha256_of(out / name) for name in sums}
        assert [
            path.name for path in (*out.iterdir(), *tmp_path.iterdir()) if path.name.startswith(".")
        ] == []
        shutil.rmtree(out)
    assert found == {5, 6}


def test_what_cannot_be_pruned_is_refused(dataset, tmp_path, cli):
    with pytest.raises(UsageError, match="needs a condition or keys"):
        shardctl.prune(dataset)
    with pytest.raises(UsageError, match="no key was given"):
        shardctl.prune(dataset, keys=[])
    with pytest.raises(InputError, match=r"no sample has the key nowhere\.jpg"):
        shardctl.prune(dataset, keys=["nowhere.jpg"])
    packed = write_packed(
        tmp_path / "tokens", packed_blocks({"a": "a document", "b": "another one, and longer"})
    )
    with pytest.raises(UsageError, match="each sample is made of several records"):
        shardctl.prune(packed, keys=["a"])
    assert cli("prune", dataset, "--keys", tmp_path / "none.txt").code == 3
    assert cli("prune", dataset, "--where", "nonsense ==").code == 2
    assert cli("prune", tmp_path / "nothing", "--key", "a").code == 3
    assert not (tmp_path / "nothing").exists()


@pytest.mark.thorough
def test_a_pruned_file_that_was_away_stays_away(source, tmp_path, out):
    rows = [
        f"{path.relative_to(source)},{'ab'[n % 2]},the caption {n:03} of it"
        for n, path in enumerate(files_of(source))
    ]
    labels = "\n".join(["file,label,caption", *rows, ""])
    (source / "labels.csv").write_text(labels)
    file = files_of(source)[7]
    key = str(file.relative_to(source))
    convert(source, out)
    shardctl.prune(out, keys=[key])
    files_of(source)[0].touch()
    convert(source, out, update=True)
    assert in_any_file(out, b"the caption 007 of it") == []
    shutil.move(file, tmp_path / "away")
    (source / "labels.csv").write_text(labels.replace(f"{rows[7]}\n", ""))
    convert(source, out, update=True)
    shutil.move(tmp_path / "away", file)
    (source / "labels.csv").write_text(labels)
    convert(source, out, update=True)
    assert key not in keys_of(out)
    assert in_any_file(out, b"the caption 007 of it") == []
    shardctl.compact(out)
    files_of(source)[1].touch()
    convert(source, out, update=True)
    assert key not in keys_of(out)
    expect_whole(out)


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("anew", [False, True])
def test_an_update_that_was_stopped_before_a_prune_does_not_bring_samples_back(
    source, out, monkeypatch, anew
):
    convert(source, out)
    files_of(source)[20].touch()
    if anew:
        (source / "aardvark").mkdir()
        shutil.copy(files_of(source)[0], source / "aardvark" / "1.jpg")
    assert stopped_at(
        0, "kill", publish, "publish", lambda: convert(source, out, update=True), monkeypatch
    )
    gone = files_of(source)[30]
    key = str(gone.relative_to(source))
    shardctl.prune(out, keys=[key])
    assert in_any_file(out, gone.read_bytes()) == []
    convert(source, out, update=True)
    assert key not in keys_of(out)
    expect_whole(out)


def test_a_sample_that_only_a_kept_generation_has_goes_too(source, out):
    file = files_of(source)[3]
    key, data = str(file.relative_to(source)), file.read_bytes()
    convert(source, out)
    file.unlink()
    convert(source, out, update=True, keep_generations=2)
    nothing = shardctl.prune(out, where="label > 99")
    assert (nothing.removed, nothing.generations, (out / "generations").exists()) == (0, (), True)
    assert in_any_file(out, data)
    result = shardctl.prune(out, keys=[key])
    assert (result.removed, result.generations, in_any_file(out, data)) == (0, (1,), [])


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(
    "name", ["files.arrow", "plan.arrow", "rejects.jsonl", "train-00000.arrow"]
)
@pytest.mark.parametrize("kind", ["image", "table", "key"])
def test_a_damaged_file_is_repaired_without_what_was_pruned(kind, name, source, tmp_path, out):
    files = files_of(source)
    options: dict[str, Any] = {"recipe": {"kind": kind}}
    if kind == "image":
        rows = [f"{path.relative_to(source)},{'ab'[n % 2]},{n}" for n, path in enumerate(files)]
        (source / "labels.csv").write_text("\n".join(["file,label,number", *rows, ""]))
        gone = [str(files[number].relative_to(source)) for number in (3, 30)]
    else:
        source = tmp_path / "records"
        source.mkdir()
        for each in "abc":
            _records(source / f"{each}.jsonl")
        options = {
            "recipe": {"kind": "table", "key_field": "id" if kind == "key" else None},
            "labels": "none",
        }
        gone = ["user-a1", *(f"user-b{n}" for n in range(5))]
        gone = gone if kind == "key" else ["a.jsonl#2", *(f"b.jsonl#{n}" for n in range(1, 6))]
    convert(source, out, **options)
    shardctl.prune(out, keys=gone)
    kept, sums = (
        samples_of(out),
        {path.name: sha256_of(path) for path in out.iterdir() if path.name != "manifest.json"},
    )
    damaged = bytearray((out / name).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (out / name).write_bytes(damaged)
    assert repair(out).status == "repaired"
    assert {
        path.name: sha256_of(path) for path in out.iterdir() if path.name != "manifest.json"
    } == sums
    next(source.rglob("*.jpg" if kind == "image" else "*.jsonl")).touch()
    convert(source, out, update=True, **options)
    assert samples_of(out) == kept
    expect_whole(out)


def test_what_cannot_be_repaired_says_that_overwrite_undoes_a_prune(source, out):
    files = files_of(source)
    convert(source, out)
    shardctl.prune(out, keys=[str(files[3].relative_to(source))])
    files[9].unlink()
    (out / "plan.arrow").unlink()
    result = repair(out)
    assert result.status == "damaged"
    assert any("--overwrite brings pruned samples back" in notice for notice in result.notices)
