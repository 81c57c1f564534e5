"""The dataset of a training script: one process makes it, all open it, and nothing is done where
nothing has changed."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from dataset_facts import expect_whole, shards_of
from doc_snippets import snippets_of
from followed_sources import files_of, write, write_lines
from programs import run_python
from snapshots import (
    SMALL,
    TRAINING,
    first_file,
    ranks,
    shards_done,
    slow_recipe,
    snapshot,
    touched,
    wait_until,
)

import shardctl
from shardctl.errors import DatasetError, InputError, ShardctlError, TooManyRejectsError, UsageError
from shardctl.making.convert import Listener


def generations(out: Path) -> int:
    return int(shardctl.open(out).generation.number)


def test_it_is_made_once_and_then_opened(source, out):
    made = snapshot(source, out)
    assert len(made) == 60
    assert made.classes is not None
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert len(snapshot(source, out)) == 60
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before
    expect_whole(out)


def test_nothing_is_written_and_no_process_started_where_nothing_has_changed(source, tmp_path, out):
    """But for the list of the inputs, a file for scratch."""
    (scratch := tmp_path / "scratch").mkdir()
    snapshot(source, out)
    for name in ("README.md", ".hidden", "notes.pdf", "paper.tar"):
        write(source / name, "x")
    script = f"""
        import sys, tempfile
        import shardctl, shardctl.making.snapshot
        tempfile.tempdir = {str(scratch)!r}
        def hook(event, given):
            starts = event in ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec", "os.mkdir", "os.rename", "os.remove")
            written = event == "open" and isinstance(given[2], int) and given[2] & 3
            place = str(given[0])
            if (starts or written) and "/" in place and not place.startswith(tempfile.tempdir):
                print(event, given[:1])
        sys.addaudithook(hook)
        recipe = {SMALL!r}
        shardctl.snapshot({str(out)!r}, {str(source)!r}, recipe, samples_per_shard=6)
    """
    ran = run_python(textwrap.dedent(script), check=True)
    assert (ran.stdout, ran.stderr) == ("", "")


def another_size(path: Path) -> None:
    status = path.stat()
    path.write_bytes(path.read_bytes() + b"x")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def folder_of(path: Path) -> None:
    path.unlink()
    path.mkdir()


NOT_UTF8 = os.fsdecode(b"\xff.jpg")


CHANGES: dict[str, tuple[int, Callable[[Path, Path], object]]] = {
    "nothing": (0, lambda source, first: None),
    "a hidden file": (0, lambda source, first: write(source / ".hidden", "x")),
    "a hidden folder": (0, lambda source, first: write(source / ".git" / "a.jpg", "x")),
    "an empty folder": (0, lambda source, first: (source / "apples").mkdir()),
    "a file that is no input": (0, lambda source, first: write(source / "notes.pdf", "x")),
    "a text beside the images": (0, lambda source, first: write(source / "README.md", "x")),
    "no image by its content": (0, lambda source, first: write(first.with_name("check"), "x")),
    "a pipe": (0, lambda source, first: os.mkfifo(source / "pipe")),
    "a link to a folder above": (0, lambda source, first: (source / "loop").symlink_to(source)),
    "a file again": (0, lambda source, first: os.utime(first, ns=(1, first.stat().st_mtime_ns))),
    "touched": (1, lambda source, first: touched(first)),
    "another size": (1, lambda source, first: another_size(first)),
    "gone": (1, lambda source, first: first.unlink()),
    "renamed": (1, lambda source, first: first.rename(first.with_name("zz.jpg"))),
    "new": (1, lambda source, first: shutil.copy(first, first.with_name("zz.jpg"))),
    "new by its content": (1, lambda source, first: shutil.copy(first, first.with_name("zz"))),
    "a new link": (1, lambda source, first: first.with_name("zz.jpg").symlink_to(first)),
    "a name that is not UTF-8": (1, lambda source, first: first.with_name(NOT_UTF8).touch()),
    "a link to nothing": (1, lambda source, first: first.with_name("zz.jpg").symlink_to("no.jpg")),
    "a folder in the place of a file": (1, lambda source, first: folder_of(first)),
}


@pytest.mark.thorough
def test_the_check_does_not_import_pandas(source, tmp_path, out):
    """Many calls of Arrow do, where it is installed; that takes ten times as long as the check of a
    few thousand files."""
    write(tmp_path / "modules" / "pandas" / "__init__.py", "raise RuntimeError('imported')")
    snapshot(source, out)
    script = f"""
import sys, shardctl
shardctl.snapshot({str(out)!r}, {str(source)!r}, {SMALL!r}, workers=0, samples_per_shard=6)
import pyarrow
try:
    pyarrow.array([1])
except RuntimeError:
    print("would be noticed")
"""
    ran = run_python(script, env=with_path(tmp_path / "modules"))
    assert (ran.returncode, ran.stdout.strip()) == (0, "would be noticed"), ran.stderr


@pytest.mark.thorough(after=3)
@pytest.mark.parametrize("change", CHANGES)
def test_it_follows_its_source_as_an_update_does(change, source, out):
    snapshot(source, out)
    made, do = CHANGES[change]
    do(source, first_file(source))
    snapshot(source, out)
    assert generations(out) - 1 == made
    options = {"recipe": SMALL, "workers": 0, "samples_per_shard": 6}
    assert shardctl.convert(source, out, **options).status == "up-to-date"


def test_labels_files_count_by_their_content(source, out):
    rows = [f"{path.relative_to(source)},1\n" for path in files_of(source)]
    table = write(source / "labels.csv", f"file_name,grade\n{''.join(rows)}")
    snapshot(source, out)
    snapshot(source, out)
    assert generations(out) == 1
    status = table.stat()
    table.write_text(table.read_text().replace(",1\n", ",2\n", 1))
    os.utime(table, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert snapshot(source, out)[0]["grade"] == 2


def test_texts_and_tables_are_followed(tmp_path, out):
    source = tmp_path / "in"

    def followed() -> list[int]:
        return sorted(each["n"] for each in snapshot(source, out, recipe={}))

    write_lines(source / "a.jsonl", [{"n": 1}, {"n": 2}])
    assert (followed(), generations(out)) == ([1, 2], 1)
    assert (followed(), generations(out)) == ([1, 2], 1)
    write_lines(source / "b.jsonl", [{"n": 3}])
    assert (followed(), generations(out)) == ([1, 2, 3], 2)


def expect(error: type[ShardctlError], said: str, *given: Any, **options: Any) -> None:
    with pytest.raises(error, match=said):
        snapshot(*given, **options)


def test_what_may_be_done_with_another_dataset_is_said(source, tmp_path, out):
    snapshot(source, out)
    other = {**SMALL, "store": "png"}
    expect(DatasetError, "in its recipe; overwrite=True makes it again", source, out, recipe=other)
    touched(first_file(source))
    said = "differs in its inputs; update=True brings it up to date"
    expect(DatasetError, said, source, out, update=False)
    assert snapshot(source, out, recipe=other, overwrite=True).manifest.recipe["store"] == "png"
    assert generations(out) == 2
    for name in ("append", "dry_run", "explain"):
        expect(UsageError, f"{name} is an option of convert", source, out, **{name: True})


def test_a_source_that_has_moved_and_changed_is_followed(source, tmp_path, out):
    moved = tmp_path / "moved"
    snapshot(source, out)
    source.rename(moved)
    first_file(moved).unlink()
    expect(InputError, "moved_from", moved, out)
    expect(UsageError, "moved_from takes a list", moved, out, moved_from=str(source))
    for place in (out, out, tmp_path / "new"):
        assert len(snapshot(moved, place, moved_from=[source])) == 59


def test_a_trusted_dataset_needs_no_source(source, tmp_path, out):
    snapshot(source, out, trust=True)
    source.rename(tmp_path / "gone")
    assert len(snapshot(source, out, trust=True)) == 60
    other = {**SMALL, "store": "png"}
    said = "differs in its recipe, settings or code"
    expect(DatasetError, said, source, out, trust=True, recipe=other)
    expect(InputError, "no such file or folder", source, out)


def test_too_many_rejects_are_an_error_each_time(source, out):
    first_file(source).write_bytes(b"no image")
    for _ in range(2):
        expect(TooManyRejectsError, "1 input of 60 rejected", source, out, max_rejects="0")
    assert len(snapshot(source, out, max_rejects="1")) == 59


def test_a_split_of_it_is_chosen(source, out):
    whole = snapshot(source, out, split="train=0.7,val=0.3")
    parts = [keys(whole.in_split(split)) for split in ("train", "val")]
    assert sorted(parts[0] + parts[1]) == sorted(keys(whole))
    with pytest.raises(UsageError, match="in_split takes a whole dataset"):
        whole.in_split("val").in_split("val")
    touched(first_file(source))
    snapshot(source, out, split="train=0.7,val=0.3")
    os.utime(out / "manifest.json", ns=(1, 1))
    # the same bytes: only the time had changed
    assert keys(whole.in_split("val")) == parts[1]
    whole = shardctl.open(out)
    first_file(source).unlink()
    snapshot(source, out, split="train=0.7,val=0.3", keep_generations=0)
    with pytest.raises(DatasetError, match="generation 2 was swept"):
        whole.in_split("val")


def keys(dataset: Any) -> list[str]:
    return [sample["key"] for sample in dataset]


@pytest.mark.thorough
def test_a_job_that_reads_it_goes_on_while_another_one_brings_it_up_to_date(source, out):
    """From where the generation is kept that it has opened: in this process, and in others that it
    starts later."""
    ds = snapshot(source, out)
    before = keys(ds)
    batches = iter(ds.loader(batch_size=7, mmap=False))
    first = next(batches)["key"]
    for path in files_of(source)[::7]:
        path.unlink()
    assert len(snapshot(source, out)) < len(before)
    assert [*first, *(key for batch in batches for key in batch["key"])] == before
    assert keys(ds) == keys(pickle.loads(pickle.dumps(ds))) == before
    pickled = pickle.dumps(ds)
    first_file(source).unlink()
    snapshot(source, out)
    with pytest.raises(DatasetError, match="generation 1 was swept"):
        pickle.loads(pickled)


@pytest.mark.parametrize(
    ("environment", "given", "said"),
    [
        ({}, {"rank": 3, "world_size": 2}, r"rank 3 must be below world_size \(2\)"),
        ({}, {"rank": -1}, "rank must be at least 0"),
        ({}, {"world_size": 2}, "world_size needs a rank"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, {}, "RANK='x' and WORLD_SIZE='2'; give rank="),
    ],
)
def test_a_rank_that_cannot_be_is_wrong_usage(environment, given, said, source, out, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    expect(UsageError, said, source, out, **given)


def owner(out: Path) -> int | None:
    """The process that holds the lease."""
    try:
        return int(json.loads((out / ".shardctl" / "lease").read_text())["process"])
    except (OSError, ValueError):
        return None


@pytest.mark.thorough
def test_the_first_rank_makes_it_and_the_others_wait(source, tmp_path):
    with ranks(3, source, tmp_path / "out", tmp_path) as processes:
        ended = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], ended
    assert len({out for out, _ in ended}) == 1
    assert len(json.loads(ended[0][0])[1]) == 60
    assert [": making" in err for _, err in ended] == [True, False, False]
    assert all(f"waiting for process {processes[0].pid} on" in err for _, err in ended[1:])


@pytest.mark.thorough
def test_where_the_one_that_makes_it_is_killed_another_goes_on(source, tmp_path, out):
    """Twice: the one that has begun, then the one that has taken over. Nothing that was done is
    lost."""
    with ranks(4, source, out, tmp_path) as processes:
        killed: list[int] = []
        done = [0]
        for _ in range(2):
            wait_until(lambda: owner(out) not in (None, *killed) and shards_done(out) > done[-1])
            done.append(shards_done(out))
            builder = owner(out)
            assert builder is not None
            os.kill(builder, signal.SIGKILL)
            killed.append(builder)
        left = [process for process in processes if process.pid not in killed]
        ended = [process.communicate(timeout=60) for process in left]
    assert [process.returncode for process in left] == [0, 0], ended
    assert len({printed for printed, _ in ended}) == 1
    assert len(json.loads(ended[0][0])[1]) == 60
    assert sorted("resuming" in err for _, err in ended) == [False, True]
    expect_whole(out)
    assert generations(out) == 1


def with_path(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(folder)}


VERSIONED = """
import shardctl, helper
@shardctl.transform(version={version!r}, modules=[helper])
def step(sample):
    sample["value"] = helper.value()
    return sample
"""


@pytest.mark.thorough
def test_of_a_declared_function_the_version_counts_and_not_the_file(source, tmp_path, out):
    """Each call is a process of its own, as each run of a training script is."""
    own = {"name": "custom", "target": "own_step:step"}
    recipe = {**SMALL, "transform": [*SMALL["transform"], own]}

    def run(code: str) -> str:
        ran = run_python(f"import shardctl; print({code})", env=with_path(tmp_path))
        return ran.stdout.strip() or ran.stderr

    def declare(version: str, more: str = "") -> None:
        write(tmp_path / "own_step.py", VERSIONED.format(version=version) + more)

    def helper_returns(value: str) -> None:
        write(tmp_path / "helper.py", f"def value(): return {value}")

    call = f"shardctl.snapshot({str(out)!r}, {str(source)!r}, {recipe!r}, workers=0)[0]['value']"
    declare("1")
    helper_returns("1")
    assert run(call) == "1"
    declare("1", "# a comment\n")
    assert run(call) == "1"
    helper_returns("1 + 1")
    assert "differs in its code" in run(call)
    helper_returns("1")
    declare("2")
    assert "differs in its code" in run(call)
    explain = (
        f"shardctl.convert({str(source)!r}, {str(out)!r}, {recipe!r}, workers=0, explain=True)"
    )
    assert "own_step:step, or the format" in run(f"{explain}.explanation.differences")
    declare("1")
    assert run(call) == "1"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"version": 2}, "is a string"),
        ({"version": ""}, "is a string"),
        ({"version": "1", "modules": "a"}, "modules"),
        ({"version": "1", "modules": None}, "takes a list of modules"),
    ],
)
def test_a_wrong_declaration_is_wrong_usage(given, said):
    with pytest.raises(UsageError, match=said):
        shardctl.transform(**given)


@pytest.mark.thorough
def test_the_page_about_it_works_as_it_is_written(photos, tmp_path):
    # of one: test_snapshot_on_store.py
    training, _, step, arriving = snippets_of("snapshot.md", "python")
    (tmp_path / "photos").symlink_to(photos)
    write(tmp_path / "my_helpers.py", "def edges(image): return int(image[0, 0, 0])")
    write(tmp_path / "my_steps.py", step)
    own = {"transform": [{"name": "custom", "target": "my_steps:add_edges"}]}
    more = (
        f"print(ds.is_complete)\nprint('edges' in shardctl.snapshot('own', 'photos', {own!r}, "
        "workers=0)[0])"
    )
    script = f"{training}\nprint(images.shape[1:])\n{arriving}\n{more}"
    ran = run_python(script, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "(224, 224, 3)\nTrue\nTrue\n"), ran.stderr


def test_an_input_that_changes_while_it_is_made_comes_with_the_next_call(source, out):
    changing = first_file(source)

    def change(_: object) -> None:
        changing.write_bytes(max(source.rglob("*.jpg")).read_bytes())

    made = snapshot(source, out, listener=Listener(announce=change))
    assert (len(made), made.manifest.rejected) == (59, 1)
    later = snapshot(source, out)
    assert (len(later), later.manifest.rejected) == (60, 0)
    assert changing.relative_to(source).as_posix() in keys(later)


NEIGHBOURS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "a tar of the same name": ({"format": "parquet"}, "a.parquet", "z.parquet", "a.tar"),
    "a folder of that name": ({}, "a.parquet", "z.parquet", "a.tar/x"),
    "a list of features": ({"kind": "text"}, "b.labels.txt", "z.txt", "features.json"),
    "an uncompressed copy": ({"kind": "image"}, "s.mds.zstd", "z.jpg", "s.mds/x"),
}


@pytest.mark.parametrize("case", NEIGHBOURS)
def test_a_neighbour_may_decide_what_a_file_is(case, source, tmp_path, out):
    """Then it is not certain that nothing has changed: what a conversion finds counts."""
    recipe, name, other, neighbour = NEIGHBOURS[case]
    folder = tmp_path / "other"
    file = write(folder / name, b"text" if "txt" in name else first_file(source).read_bytes())
    if name.endswith(".parquet"):
        parquet.write_table(pa.table({"text": ["one", "two"]}), file)
    shutil.copy(file, folder / other)
    before = snapshot(folder, out, recipe=recipe)
    write(folder / neighbour, "{}")
    after = snapshot(folder, out, recipe=recipe)
    fresh = snapshot(folder, tmp_path / "fresh", recipe=recipe)
    assert set(keys(after)) == set(keys(fresh))
    assert len(before) >= len(after)


@pytest.mark.thorough
def test_inputs_that_came_while_it_waited_are_in_what_it_opens(source, tmp_path, out):
    with ranks(1, source, out, tmp_path) as (process,):
        wait_until(lambda: shards_done(out) > 0)
        shutil.copy(first_file(source), first_file(source).with_name("late.jpg"))
        script = TRAINING.format(out=str(out), source=str(source), recipe=slow_recipe())
        ran = run_python(script, env=with_path(tmp_path))
        assert process.wait(60) == 0
    assert ran.returncode == 0, ran.stderr
    assert len(json.loads(ran.stdout)[1]) == 61


@pytest.mark.thorough
def test_a_script_that_would_wait_for_itself_is_told_so(source, tmp_path, out):
    """It holds the function, so that it is imported by its own call."""
    recipe = {"transform": [{"name": "custom", "target": "training:mine"}]}
    call = f"shardctl.snapshot({str(out)!r}, {str(source)!r}, {recipe!r})"

    def run(guard: str) -> tuple[int, bool]:
        mine = "import shardctl\ndef mine(sample):\n    return sample\n"
        script = write(tmp_path / "training.py", f"{mine}if {guard}:\n    {call}\n")
        ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
        return ran.returncode, 'under `if __name__ == "__main__":`' in ran.stderr

    assert run("True") == (1, True)
    assert run("__name__ == '__main__'") == (0, False)
    own = {"transform": [{"name": "custom", "target": "__main__:mine"}]}
    expect(UsageError, "into another file", source, tmp_path / "new", recipe=own)


def test_what_is_left_out_is_said(source, out, capfd):
    first_file(source).write_bytes(b"no image")
    (source / "notes.xyz").write_bytes(b"x")
    (source / ".hidden").write_bytes(b"x")
    snapshot(source, out, progress=True)
    said = capfd.readouterr().err
    for expected in (
        "other files, not converted: 1 .xyz",
        "left out: 1 hidden file",
        "1 input rejected",
        "created: 59 samples",
    ):
        assert expected in said


def test_a_file_of_lines_that_grows_does_not_add_empty_shards(tmp_path, out):
    for count in (200, 201, 202, 203):
        source = write_lines(tmp_path / "in.jsonl", ({"n": number} for number in range(count)))
        ds = snapshot(source, out, recipe={}, samples_per_shard=20)
        assert all(facts.rows for facts in shards_of(out))
        assert sorted(sample["n"] for sample in ds) == list(range(count))
    assert ds.manifest.shards <= 12


@pytest.mark.parametrize(
    "options",
    [
        {"max_rejects": "x"},
        {"shard_size": "1MB"},
        {"split": 5},
        {"wrkers": 2},
        {"labels": 5},
        {"keep_generations": "a"},
        {"metrics": "m.jsonl"},
        {"metrics": [3]},
        {"recipe": 5},
        {"trust": "no"},
        {"copy_rejects": "x"},
    ],
)
def test_values_of_other_types_are_wrong_usage(options, source, out):
    with pytest.raises(UsageError):
        snapshot(source, out, **options)
