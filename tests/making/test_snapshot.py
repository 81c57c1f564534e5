"""The dataset of a training script: one process makes it, all open it, and nothing is done where
nothing has changed."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from custom_steps import SLOW
from dataset_facts import shards_of
from snapshots import (
    SMALL,
    TRAINING,
    first_file,
    ranks,
    shards_done,
    slow_recipe,
    snapshot,
    touched,
)

import shardctl
from shardctl.errors import DatasetError, InputError, TooManyRejectsError, UsageError
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
    assert shardctl.verify(out).ok


def test_nothing_is_written_and_no_process_started_where_nothing_has_changed(source, out):
    """No list of the inputs either, though there are other files beside them."""
    snapshot(source, out)
    for name in ("README.md", ".hidden", "notes.pdf", "paper.tar"):
        (source / name).write_bytes(b"x")
    script = f"""
        import sys
        import shardctl, shardctl.making.snapshot
        def hook(event, given):
            starts = event in ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec", "os.mkdir", "os.rename", "os.remove")
            if starts or (event == "open" and isinstance(given[2], int) and given[2] & 3):
                print(event, given[:1])
        sys.addaudithook(hook)
        recipe = {SMALL!r}
        shardctl.snapshot({str(out)!r}, {str(source)!r}, recipe, samples_per_shard=6)
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    assert (ran.stdout, ran.stderr) == ("", "")


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def another_size(path: Path) -> None:
    status = path.stat()
    path.write_bytes(path.read_bytes() + b"x")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


CHANGES: dict[str, tuple[int, Callable[[Path], object]]] = {
    "nothing": (0, lambda source: None),
    "a hidden file": (0, lambda source: (source / ".hidden").write_bytes(b"x")),
    "a hidden folder": (0, lambda source: (source / ".git" / "a").mkdir(parents=True)),
    "an empty folder": (0, lambda source: (source / "apples").mkdir()),
    "a file that is no input": (0, lambda source: (source / "notes.pdf").write_bytes(b"x")),
    "a text beside the images": (0, lambda source: (source / "README.md").write_text("x")),
    "no image by its content": (
        0,
        lambda source: (first_file(source).parent / "checkpoint").write_bytes(b"x"),
    ),
    "a pipe": (0, lambda source: os.mkfifo(source / "pipe")),
    "a link to a folder above": (0, lambda source: (source / "loop").symlink_to(source)),
    "a file again": (
        0,
        lambda source: os.utime(first_file(source), ns=(1, first_file(source).stat().st_mtime_ns)),
    ),
    "touched": (1, lambda source: touched(first_file(source))),
    "another size": (1, lambda source: another_size(first_file(source))),
    "gone": (1, lambda source: first_file(source).unlink()),
    "renamed": (
        1,
        lambda source: first_file(source).rename(first_file(source).with_name("zz.jpg")),
    ),
    "new": (
        1,
        lambda source: (first_file(source).parent / "zz.jpg").write_bytes(
            first_file(source).read_bytes()
        ),
    ),
    "new by its content": (
        1,
        lambda source: (first_file(source).parent / "zz").write_bytes(
            first_file(source).read_bytes()
        ),
    ),
    "a new link": (
        1,
        lambda source: (first_file(source).parent / "zz.jpg").symlink_to(first_file(source)),
    ),
    "a name that is not UTF-8": (
        1,
        lambda source: Path(
            os.fsdecode(os.fsencode(first_file(source).parent) + b"/\xff.jpg")
        ).write_bytes(b"x"),
    ),
    "a link to nothing": (
        1,
        lambda source: (first_file(source).parent / "zz.jpg").symlink_to("nowhere.jpg"),
    ),
    "a folder in the place of a file": (1, lambda source: folder_instead(first_file(source))),
}


@pytest.mark.thorough
def test_the_check_does_not_import_pandas(source, tmp_path, out):
    """Many calls of Arrow do, where it is installed; that takes ten times as long as the check of a
    few thousand files."""
    (tmp_path / "modules" / "pandas").mkdir(parents=True)
    (tmp_path / "modules" / "pandas" / "__init__.py").write_text("raise RuntimeError('imported')")
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
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "modules")}
    ran = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout.strip()) == (0, "would be noticed"), ran.stderr


@pytest.mark.thorough(after=3)
@pytest.mark.parametrize("change", CHANGES)
def test_it_follows_its_source_as_an_update_does(change, source, out):
    snapshot(source, out)
    made, do = CHANGES[change]
    do(source)
    snapshot(source, out)
    assert generations(out) - 1 == made
    options = {"recipe": SMALL, "workers": 0, "samples_per_shard": 6}
    assert shardctl.convert(source, out, **options).status == "up-to-date"


def test_labels_files_count_by_their_content(source, out):
    names = sorted(
        path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()
    )
    table = source / "labels.csv"
    table.write_text("file_name,grade\n" + "".join(f"{name},{len(name)}\n" for name in names))
    first = snapshot(source, out)
    snapshot(source, out)
    assert generations(out) == 1
    status = table.stat()
    table.write_text(
        table.read_text().replace(f"{names[0]},{len(names[0])}", f"{names[0]},{len(names[0]) + 1}")
    )
    os.utime(table, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert snapshot(source, out)[0]["grade"] == first[0]["grade"] + 1


def test_texts_and_tables_are_followed(tmp_path, out):
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    assert [each["n"] for each in snapshot(source, out, recipe={})] == [1, 2]
    assert generations(out) == 1
    snapshot(source, out, recipe={})
    assert generations(out) == 1
    (source / "b.jsonl").write_text('{"n": 3}\n')
    assert sorted(each["n"] for each in snapshot(source, out, recipe={})) == [1, 2, 3]
    assert generations(out) == 2


def test_what_may_be_done_with_another_dataset_is_said(source, tmp_path, out):
    snapshot(source, out)
    other = {**SMALL, "store": "png"}
    with pytest.raises(DatasetError, match=r"differs in its recipe; overwrite=True makes it again"):
        snapshot(source, out, recipe=other)
    with pytest.raises(DatasetError, match=r"differs in its recipe, settings or code"):
        snapshot(source, out, recipe={"kind": "text"}, trust=True)
    touched(first_file(source))
    with pytest.raises(
        DatasetError, match=r"differs in its inputs; update=True brings it up to date"
    ):
        snapshot(source, out, update=False)
    assert snapshot(source, out, recipe=other, overwrite=True).manifest.recipe["store"] == "png"
    assert generations(out) == 1
    for name in ("append", "dry_run", "explain"):
        with pytest.raises(UsageError, match=f"{name} is an option of convert"):
            snapshot(source, out, **{name: True})
    with pytest.raises(InputError, match="nowhere: no such file or folder"):
        snapshot(tmp_path / "nowhere", tmp_path / "new")


def test_a_source_that_has_moved_and_changed_is_followed(source, tmp_path, out):
    moved = tmp_path / "moved"
    snapshot(source, out)
    source.rename(moved)
    first_file(moved).unlink()
    with pytest.raises(InputError, match="moved_from"):
        snapshot(moved, out)
    with pytest.raises(UsageError, match="moved_from takes a list"):
        snapshot(moved, out, moved_from=str(source))
    assert len(snapshot(moved, out, moved_from=[source])) == 59
    assert len(snapshot(moved, out, moved_from=[source])) == 59
    assert len(snapshot(moved, tmp_path / "new", moved_from=[source])) == 59


def test_a_trusted_dataset_needs_no_source(source, tmp_path, out):
    snapshot(source, out, trust=True)
    source.rename(tmp_path / "gone")
    assert len(snapshot(source, out, trust=True)) == 60
    with pytest.raises(DatasetError, match=r"differs in its recipe, settings or code"):
        snapshot(source, out, trust=True, recipe={**SMALL, "store": "png"})
    with pytest.raises(InputError, match="no such file or folder"):
        snapshot(source, out)


def test_too_many_rejects_are_an_error_each_time(source, out):
    first_file(source).write_bytes(b"no image")
    for _ in range(2):
        with pytest.raises(TooManyRejectsError, match="1 input of 60 rejected"):
            snapshot(source, out, max_rejects="0")
    assert len(snapshot(source, out, max_rejects="1")) == 59


def test_a_split_of_it_is_chosen(source, out):
    whole = snapshot(source, out, split="train=0.7,val=0.3")
    assert {each["key"] for split in ("train", "val") for each in whole.in_split(split)} == {
        each["key"] for each in whole
    }
    with pytest.raises(UsageError, match="in_split takes a whole dataset"):
        whole.in_split("val").in_split("val")
    touched(first_file(source))
    snapshot(source, out, split="train=0.7,val=0.3")
    # the same bytes: only the time had changed
    assert whole.in_split("val").generation.digest == whole.generation.digest
    whole = shardctl.open(out)
    first_file(source).unlink()
    snapshot(source, out, split="train=0.7,val=0.3", keep_generations=0)
    with pytest.raises(DatasetError, match="replaced by another dataset"):
        whole.in_split("val")


@pytest.mark.thorough
def test_a_job_that_reads_it_goes_on_while_another_one_brings_it_up_to_date(source, out):
    """From where the generation is kept that it has opened: in this process, and in others that it
    starts later."""
    ds = snapshot(source, out)
    keys = [sample["key"] for sample in ds]
    batches = iter(ds.loader(batch_size=7, mmap=False))
    first = next(batches)["key"]
    for path in sorted(path for path in source.rglob("*") if path.is_file())[::7]:
        path.unlink()
    assert len(snapshot(source, out)) < len(keys)
    assert [*first, *(key for batch in batches for key in batch["key"])] == keys
    assert [sample["key"] for sample in ds] == keys
    assert [
        key for batch in pickle.loads(pickle.dumps(ds)).loader(batch_size=7) for key in batch["key"]
    ] == keys
    pickled = pickle.dumps(ds)
    first_file(source).unlink()
    snapshot(source, out)
    with pytest.raises(DatasetError, match="replaced by another dataset while it was read"):
        pickle.loads(pickled)


@pytest.mark.parametrize(
    ("environment", "given", "said"),
    [
        ({}, {"rank": 3, "world_size": 2}, r"rank 3 must be below world_size \(2\)"),
        ({}, {"rank": -1}, "rank must be at least 0"),
        ({}, {"world_size": 2}, "world_size needs a rank"),
        (
            {"RANK": "x", "WORLD_SIZE": "2"},
            {},
            r"RANK='x' and WORLD_SIZE='2'; give rank=",
        ),
    ],
)
def test_a_rank_that_cannot_be_is_wrong_usage(
    environment,
    given,
    said,
    source,
    out,
    monkeypatch,
):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=said):
        snapshot(source, out, **given)


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
    """Twice: first the first rank, then the one that has taken over. Nothing that was done is
    lost."""
    with ranks(4, source, out, tmp_path) as processes:
        killed: list[int] = []
        done = 0
        for _ in range(2):
            until = time.monotonic() + 60
            while owner(out) in (None, *killed) or shards_done(out) <= done:
                assert time.monotonic() < until
                time.sleep(0.01)
            done = shards_done(out)
            builder = owner(out)
            assert builder is not None
            os.kill(builder, signal.SIGKILL)
            killed.append(builder)
        assert killed[0] == processes[0].pid
        left = [process for process in processes if process.pid not in killed]
        ended = [process.communicate(timeout=60) for process in left]
    assert [process.returncode for process in left] == [0, 0], ended
    assert len({printed for printed, _ in ended}) == 1
    assert len(json.loads(ended[0][0])[1]) == 60
    assert sorted("resuming" in err for _, err in ended) == [False, True]
    assert shardctl.verify(out).ok
    assert generations(out) == 1


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
    recipe = {
        **SMALL,
        "transform": [*SMALL["transform"], {"name": "custom", "target": "own_step:step"}],
    }
    call = f"shardctl.snapshot({str(out)!r}, {str(source)!r}, {recipe!r}, workers=0)"
    script = f"import shardctl; print({call}[0]['value'])"
    module, helper = tmp_path / "own_step.py", tmp_path / "helper.py"

    def run() -> tuple[int, str, str]:
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        ran = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True
        )
        return ran.returncode, ran.stdout.strip(), ran.stderr

    module.write_text(VERSIONED.format(version="1"))
    helper.write_text("def value(): return 1")
    assert run()[:2] == (0, "1")
    module.write_text(VERSIONED.format(version="1") + "# a comment\n")
    assert run()[:2] == (0, "1")
    helper.write_text("def value(): return 1 + 1")
    code, _, err = run()
    assert (code, "differs in its code" in err) == (1, True)
    helper.write_text("def value(): return 1")
    module.write_text(VERSIONED.format(version="2"))
    assert "differs in its code" in run()[2]
    explain = (
        f"shardctl.convert({str(source)!r}, {str(out)!r}, {recipe!r}, workers=0, explain=True)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", f"import shardctl; print({explain}.explanation.differences)"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert "own_step:step, or the format" in ran.stdout
    module.write_text(VERSIONED.format(version="1"))
    assert run()[:2] == (0, "1")


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
    page = (Path(__file__).parents[2] / "docs" / "snapshot.md").read_text(encoding="utf-8")
    # of one: test_snapshot_on_store.py
    training, _, step, arriving = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    shutil.copytree(photos, tmp_path / "photos")
    (tmp_path / "my_helpers.py").write_text("def edges(image): return int(image[0, 0, 0])")
    (tmp_path / "my_steps.py").write_text(step)
    own = {"transform": [{"name": "custom", "target": "my_steps:add_edges"}]}
    more = (
        f"print(ds.is_complete)\nprint('edges' in shardctl.snapshot('own', 'photos', {own!r}, "
        "workers=0)[0])"
    )
    script = f"{training}\nprint(images.shape[1:])\n{arriving}\n{more}"
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout) == (0, "(224, 224, 3)\nTrue\nTrue\n"), ran.stderr


DISTRIBUTED = """
import json, os, shardctl, torch.distributed as distributed
ds = shardctl.snapshot({out!r}, {source!r}, {recipe!r}, samples_per_shard=4, workers=2)
distributed.init_process_group("gloo")
from shardctl.torch import Loader
keys = [key for batch in Loader(ds.loader(batch_size=5, shuffle=True)) for key in batch["key"]]
found = [None] * distributed.get_world_size()
distributed.all_gather_object(found, (ds.generation.digest, keys))
print(json.dumps(found))
distributed.destroy_process_group()
"""


@pytest.mark.thorough
def test_four_ranks_of_torch_train_on_it_though_the_one_that_makes_it_is_killed(
    source, tmp_path, out
):
    """The launcher starts the rank again, which opens what another one has made."""
    pytest.importorskip("torch")
    (tmp_path / "slow_step.py").write_text(SLOW)
    script = DISTRIBUTED.format(out=str(out), source=str(source), recipe=slow_recipe())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }

    def start(rank: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", script]
        return subprocess.Popen(
            command, env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True
        )

    processes = [start(rank) for rank in range(4)]
    try:
        until = time.monotonic() + 60
        while owner(out) is None or shards_done(out) < 2:
            assert time.monotonic() < until
            time.sleep(0.01)
        builder = owner(out)
        killed = next(rank for rank, process in enumerate(processes) if process.pid == builder)
        processes[killed].kill()
        processes[killed].communicate()
        processes[killed] = start(killed)
        printed = [json.loads(process.communicate(timeout=90)[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert all(each == printed[0] for each in printed)
    assert len({digest for digest, _ in printed[0]}) == 1
    assert sorted(key for _, keys in printed[0] for key in keys) == sorted(
        sample["key"] for sample in shardctl.open(out)
    )


def test_an_input_that_changes_while_it_is_made_comes_with_the_next_call(source, out):
    changing, key = first_file(source), first_file(source).relative_to(source).as_posix()

    def change(_: object) -> None:
        changing.write_bytes(max(source.rglob("*.jpg")).read_bytes())

    made = snapshot(source, out, listener=Listener(announce=change))
    assert (len(made), made.manifest.rejected) == (59, 1)
    later = snapshot(source, out)
    assert (len(later), later.manifest.rejected) == (60, 0)
    assert key in {sample["key"] for sample in later}


NEIGHBOURS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a tar of the same name": ({"format": "parquet"}, "a.parquet", "a.tar"),
    "a folder of that name": ({}, "a.parquet", "a.tar/x"),
    "a list of features": ({"kind": "text"}, "b.labels.txt", "features.json"),
    "an uncompressed copy": ({"kind": "image"}, "s.mds.zstd", "s.mds/x"),
}


@pytest.mark.parametrize("case", NEIGHBOURS)
def test_a_neighbour_may_decide_what_a_file_is(case, source, tmp_path, out):
    """Then it is not certain that nothing has changed: what a conversion finds counts."""
    recipe, name, neighbour = NEIGHBOURS[case]
    folder = tmp_path / "other"
    folder.mkdir()
    if name.endswith(".parquet"):
        parquet.write_table(pa.table({"text": ["one", "two"]}), folder / name)
    else:
        (folder / name).write_bytes(
            b"text" if name.endswith(".txt") else first_file(source).read_bytes()
        )
    (folder / f"z{Path(name).suffix if name != 's.mds.zstd' else '.jpg'}").write_bytes(
        (folder / name).read_bytes()
    )
    before = snapshot(folder, out, recipe=recipe)
    (folder / neighbour).parent.mkdir(exist_ok=True)
    (folder / neighbour).write_bytes(b"{}")
    after = snapshot(folder, out, recipe=recipe)
    fresh = snapshot(folder, tmp_path / "fresh", recipe=recipe)
    assert {sample["key"] for sample in after} == {sample["key"] for sample in fresh}
    assert len(before) >= len(after)


@pytest.mark.thorough
def test_inputs_that_came_while_it_waited_are_in_what_it_opens(source, tmp_path, out):
    with ranks(1, source, out, tmp_path) as (process,):
        until = time.monotonic() + 60
        while shards_done(out) < 1:
            assert time.monotonic() < until
            time.sleep(0.01)
        (first_file(source).parent / "late.jpg").write_bytes(first_file(source).read_bytes())
        script = TRAINING.format(out=str(out), source=str(source), recipe=slow_recipe())
        ran = subprocess.run(
            [sys.executable, "-c", script], env=with_path(tmp_path), capture_output=True, text=True
        )
        assert process.wait(60) == 0
    assert ran.returncode == 0, ran.stderr
    assert len(json.loads(ran.stdout)[1]) == 61


def with_path(folder: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(folder)}


@pytest.mark.thorough
def test_a_script_that_would_wait_for_itself_is_told_so(source, tmp_path, out):
    """It holds the function, so that it is imported by its own call."""
    recipe = {"transform": [{"name": "custom", "target": "training:mine"}]}
    call = f"shardctl.snapshot({str(out)!r}, {str(source)!r}, {recipe!r})"
    (tmp_path / "training.py").write_text(
        f"import shardctl\ndef mine(sample):\n    return sample\n{call}\n"
    )
    ran = subprocess.run(
        [sys.executable, "training.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 1
    assert (
        'Put the call under `if __name__ == "__main__":`, or the function into a file of its own'
        in ran.stderr
    )
    guarded = f"if __name__ == '__main__':\n    {call}\n"
    (tmp_path / "training.py").write_text(
        f"import shardctl\ndef mine(sample):\n    return sample\n{guarded}"
    )
    subprocess.run(
        [sys.executable, "training.py"], cwd=tmp_path, check=True, capture_output=True, timeout=60
    )
    with pytest.raises(UsageError, match="put it into a file of its own"):
        snapshot(
            source,
            tmp_path / "new",
            recipe={"transform": [{"name": "custom", "target": "__main__:mine"}]},
        )


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
    source = tmp_path / "in.jsonl"
    for count in (200, 201, 202, 203):
        source.write_text("".join(f'{{"n": {number}}}\n' for number in range(count)))
        ds = snapshot(source, out, recipe={}, samples_per_shard=20)
        assert [facts.rows for facts in shards_of(out)].count(0) == 0
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


def test_a_touched_manifest_is_that_of_the_same_dataset(source, out):
    ds = snapshot(source, out, samples_per_shard=6)
    os.utime(out / "manifest.json", ns=(1, 1))
    assert len([sample["key"] for sample in ds]) == 60
