"""Conversions in parts, by real processes: in any order, at the same time, killed and repeated,
they make the same dataset."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import CROP
from dataset_facts import expect_whole, sums
from dataset_files import shards_in
from doc_snippets import snippets_of
from followed_sources import files_of, write, write_lines
from held_conversions import go_on, held, run_held, started
from held_conversions import here as here
from held_conversions import made as made
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import command_line, convert
from programs import run_command
from snapshots import shards_done

import shardctl
from shardctl.cli.conversion import lines_of_result
from shardctl.errors import (
    BusyError,
    DatasetError,
    InputError,
    TooManyRejectsError,
    UnfinishedError,
    UsageError,
)
from shardctl.making.convert import discover
from shardctl.making.options import Part

SMALL: dict[str, Any] = {"samples_per_shard": 4, "workers": 0, "split": "train=0.8,val=0.2"}


def build(src: Path, out: Path, part: str, **options: Any) -> Any:
    return shardctl.convert(
        src, out, recipe=options.pop("recipe", CROP), part=part, **{**SMALL, **options}
    )


@pytest.fixture(scope="module")
def whole(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("parts") / "whole"
    shardctl.convert(photos, out, recipe=CROP, **SMALL)
    return out


@pytest.mark.thorough(after=2)
@pytest.mark.parametrize(
    "order",
    [("1/3", "2/3", "3/3"), ("2/3", "0/3", "2/3", "1/3"), ("1/1",), [f"{n}/40" for n in range(40)]],
)
def test_parts_in_any_order_make_the_same_dataset(photos, whole, out, order):
    results = [build(photos, out, part) for part in order]
    assert {result.status for result in results} == {"built"}
    last = results[-1].part
    assert last.shards_done == last.shards == len(shards_in(whole))
    assert not (out / "manifest.json").exists()
    again = build(photos, out, order[0])  # complete already: it builds nothing, and has no speed
    assert (again.status, again.samples_per_s) == ("built", 0)
    assert "samples/s" not in "\n".join(lines_of_result(again, "out"))
    merged = shardctl.finish(out)
    assert (merged.status, merged.samples) == ("created", 60)
    assert sums(out) == sums(whole)
    assert not (out / ".shardctl").exists()
    assert shardctl.finish(out).status == "up-to-date"
    assert build(photos, out, order[0]).status == "up-to-date"
    assert shardctl.convert(photos, out, recipe=CROP, **SMALL).status == "up-to-date"


@given(st.integers(1, 200), st.data())
def test_every_part_has_two_names_at_most_and_all_parts_are_different(parts, data):
    number = data.draw(st.integers(0, parts))
    named = [Part.parse(f"{n}/{parts}") for n in range(parts + 1)]
    assert named[0] == named[parts]
    assert {part.number for part in named} == set(range(parts))
    assert (str(named[number]), named[number].name) == (
        f"{number}/{parts}",
        f"{number or parts}/{parts}",
    )


@pytest.mark.parametrize("text", ["3", "4/3", "-1/3", "1/0", "a/b", "1/3/3", "", "1.5/3", "²/3"])
def test_impossible_parts_are_wrong_usage(photos, out, text):
    with pytest.raises(UsageError, match="part"):
        build(photos, out, text)


@pytest.mark.parametrize("option", ["dry_run", "explain", "copy_rejects"])
def test_options_of_a_whole_conversion_are_refused(photos, tmp_path, out, option):
    value = tmp_path / "rejects" if option == "copy_rejects" else True
    with pytest.raises(UsageError, match="part"):
        build(photos, out, "1/2", **{option: value})


def test_records_of_large_files_in_parts(tmp_path, out):
    lines: list[Any] = [
        {"text": f"line {n} " * (n % 40 + 1), "label": "ab"[n % 2]} for n in range(3000)
    ]
    lines[700] = "{broken"
    source = write_lines(tmp_path / "lines.jsonl", lines)
    given = {**SMALL, "shuffle": 3, "samples_per_shard": 200}
    shardctl.convert(source, tmp_path / "whole", **given)
    for number in range(5):
        shardctl.convert(source, out, part=f"{number}/5", **given)
    merged = shardctl.finish(out)
    assert (merged.samples, merged.rejected) == (2999, 1)
    assert sums(out) == sums(tmp_path / "whole")


@pytest.mark.thorough
def test_parts_that_start_together_plan_once(photos, whole, out):
    words = "--resize 40 --crop 32 --store raw --samples-per-shard 4 --workers 1".split()
    command = command_line("convert", photos, out, *words, "--split", SMALL["split"], "--part")
    piped: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    running = [subprocess.Popen([*command, f"{n}/3"], text=True, **piped) for n in (1, 2, 3)]
    told = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], told
    assert sum("will write" in err for _, err in told) == 1
    assert shardctl.finish(out).status == "created"
    assert sums(out) == sums(whole)


def building(
    here: Path, part: str, image: int, shards: int
) -> AbstractContextManager[subprocess.Popen[str]]:
    """Start a part, and give it when so many shards are done; images from this number on are
    held."""
    return held(here, image, lambda: shards_done(here / "out") >= shards, "out", "--part", part)


@pytest.mark.thorough
def test_a_killed_part_is_named_by_merge_and_repeated(here):
    with building(here, "2/2", 28, 2) as process:  # images 20 to 39, in shards 5 to 9
        process.kill()
    missing = run_command("finish", "out", cwd=here)
    assert missing.returncode == 1
    assert "8 shards of 10 are missing: 5 of part 1/2; 3 of part 2/2. Run them" in missing.stderr
    assert "--part 1/2" in missing.stderr
    for part in ("1/2", "2/2"):
        done = go_on(here, "out", "--part", part, "--json")
    assert json.loads(done.stdout)["part"] == {"name": "2/2", "shards_done": 10, "shards": 10}
    (here / "steps.py").rename(here / "away.py")  # merge runs no code that the job names
    try:
        merged = run_command("finish", "out", "--json", cwd=here)
    finally:
        (here / "away.py").rename(here / "steps.py")
    assert json.loads(merged.stdout)["status"] == "created", merged.stderr
    assert sums(here / "out") == sums(here / "whole")


@pytest.mark.thorough
def test_while_a_part_is_built_nothing_else_writes(here):
    with building(here, "1/2", 4, 1) as process:
        merging = run_command("finish", "out", cwd=here)
        assert merging.returncode == 1
        assert f"4 of part 1/2, which process {process.pid} on " in merging.stderr
        of_part, fail = f"(part 1/2: process {process.pid} on ", ("--if-running", "fail")
        for words, said in (
            (("--part", "1/2"), f"part 1/2: another shardctl is writing it (process {process.pid}"),
            (("--seed", "5", "--part", "1/2"), f"another shardctl is writing it {of_part}"),
            ((), f"another shardctl is writing it {of_part}"),
            (("--overwrite",), ""),
        ):
            refused = run_held(here, "out", *words, *fail)
            assert (refused.returncode, said in refused.stderr) == (3, True), refused.stderr
        with started(here, "out") as second:
            assert second.stderr is not None
            line = next(line for line in second.stderr if "writing it" in line)
            assert line.startswith(f"another shardctl is writing it {of_part}")
            assert line.endswith("); waiting until it ends\n")
            (here / "hold").unlink()
            assert process.wait(60) == 0
            out, err = second.communicate(timeout=60)
    assert second.returncode == 0, err
    # an ordinary conversion builds what the parts have not, and ends it
    assert out.startswith("resumed")
    assert sums(here / "out") == sums(here / "whole")


@pytest.mark.thorough
def test_an_interrupted_part_says_what_of_it_is_done(here):
    with building(here, "1/2", 8, 2) as process:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "2 of 5 shards are done; run the same command again to continue" in err


def edit_job(out: Path, name: str, edit: Callable[[Any], object]) -> None:
    (path,) = out.glob(".shardctl/*/job.json")
    job = json.loads(path.read_text())
    edit(job[name])
    path.write_text(json.dumps(job))


def test_parts_of_different_conversions_do_not_mix(photos, out):
    build(photos, out, "1/3")
    with pytest.raises(UsageError, match="begun in 3 parts; give part='I/3'"):
        build(photos, out, "1/4")
    with pytest.raises(DatasetError, match="unfinished conversion that differs in its recipe"):
        build(photos, out, "2/3", recipe={**CROP, "store": "png"})
    with pytest.raises(UnfinishedError, match="5 of part 2/3; "):
        shardctl.finish(out)


def test_a_machine_with_other_versions_is_refused(photos, out):
    build(photos, out, "1/2")
    # as a machine with another Arrow would have planned it
    edit_job(out, "parts", lambda parts: parts.update(versions="pyarrow 1.0"))
    with pytest.raises(DatasetError, match=r"other versions \(pyarrow 1\.0 → .* than here"):
        build(photos, out, "2/2")


def test_a_part_runs_no_code_only_because_the_job_names_it(photos, tmp_path, out, monkeypatch):
    build(photos, out, "1/2")
    write(tmp_path / "evil.py", "raise SystemExit('it was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    own = [{"name": "custom", "target": "evil:f"}]
    edit_job(out, "recipe", lambda recipe: recipe.update(transform=own))
    with pytest.raises(UsageError, match="made with user functions"):
        build(photos, out, "2/2")


def test_files_that_change_between_plan_and_part_are_rejected(source, out):
    build(source, out, "1/2", split="none")
    last = files_of(source)[-1]
    last.write_bytes(last.read_bytes() + b"more")
    assert build(source, out, "2/2", split="none").reasons == {"read: changed": 1}
    assert shardctl.finish(out).rejected == 1


def test_merge_counts_the_rejects_of_all_parts(source, out):
    for path in files_of(source)[::20]:
        path.write_bytes(b"no image")
    built = [build(source, out, part, max_rejects=2) for part in ("1/3", "2/3", "3/3")]
    assert sum(result.rejected for result in built) == 3
    with pytest.raises(TooManyRejectsError, match="3 inputs of 60 rejected"):
        shardctl.finish(out, max_rejects=2)
    assert shardctl.finish(out, max_rejects="5%").rejected == 3


def test_nothing_to_merge(photos, out):
    build(photos, out, "1/2")
    (path,) = out.glob(".shardctl/*/parted.json")
    path.write_text("{}")
    with pytest.raises(DatasetError, match="not a job of this version"):
        shardctl.finish(out)


def test_an_update_in_parts(source, out):
    given = {"split": "none", "update": True}
    build(source, out, "1/1", **given)
    assert shardctl.finish(out).status == "created"
    first = files_of(source)[0]
    shutil.copy(first, first.with_name("aaa.jpg"))
    assert [build(source, out, part, **given).status for part in ("1/2", "2/2")] == ["built"] * 2
    assert len(shardctl.open(out)) == 60
    merged = shardctl.finish(out)
    assert (merged.status, merged.samples, merged.changes.added) == ("updated", 61, 1)
    expect_whole(out, "deep")


def test_an_update_in_parts_that_would_lose_samples_is_refused(source, out):
    given = {"split": "none", "update": True}
    build(source, out, "1/1", **given)
    before = shardctl.finish(out).samples
    for file in files_of(source)[:4]:
        write(file, "bad")
    build(source, out, "1/1", **given)
    with pytest.raises(TooManyRejectsError, match="4 samples of changed files would be lost"):
        shardctl.finish(out)
    with pytest.raises(TooManyRejectsError, match="nothing was committed"):
        shardctl.finish(out, max_rejects=3)
    assert len(shardctl.open(out)) == before
    assert shardctl.finish(out, max_rejects="100%").samples == before - 4
    with pytest.raises(TooManyRejectsError, match="the dataset is complete"):
        shardctl.finish(out, max_rejects=3)


def test_an_update_whose_dataset_has_changed_meanwhile_is_refused(source, tmp_path, out):
    given = {"split": "none", "update": True}
    shardctl.convert(source, out, recipe=CROP, **{**SMALL, "split": "none"})
    next(source.rglob("*.jpg")).unlink()
    build(source, out, "1/1", **given)
    convert(source, tmp_path / "other", recipe=CROP)
    shutil.copytree(tmp_path / "other", out, dirs_exist_ok=True)
    with pytest.raises(DatasetError, match="has changed since its update was planned"):
        shardctl.finish(out)
    assert shardctl.verify(out).ok


def test_a_part_that_finds_other_types_says_what_to_do(tmp_path, out, monkeypatch):
    monkeypatch.setattr(discover, "TYPED_UNITS", 1)  # with few files, all of them are looked at
    for name in "abcde":
        lines = ({"n": "many" if (name, n) == ("d", 1111) else n} for n in range(2000))
        write_lines(tmp_path / "in" / f"{name}.jsonl", lines)
    given: dict[str, Any] = {"workers": 0, "recipe": {"kind": "table"}, "labels": "none"}
    with pytest.raises(InputError, match="give the types"):
        shardctl.convert(tmp_path / "in", out, part="1/1", **given)


def test_if_running_fail_does_not_wait_for_the_plan(photos, out):
    from shardctl.system import file_lease

    with (
        file_lease.hold(out / ".shardctl", None),
        pytest.raises(BusyError, match="another shardctl is writing it"),
    ):
        build(photos, out, "1/2", if_running="fail")


def run_example(script: str, cwd: Path, **variables: str) -> None:
    bin_folder = Path(sys.executable).parent
    found = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=cwd,
        text=True,
        capture_output=True,
        timeout=120,
        env={"PATH": f"{bin_folder}:/usr/bin:/bin", "HOME": str(cwd), **variables},
    )
    assert found.returncode == 0, found.stderr


@pytest.fixture
def cluster(photos: Path, tmp_path: Path) -> Path:
    """A folder that stands for the shared file system of the examples, /data."""
    shutil.copytree(photos, tmp_path / "photos")
    run_command("convert", "photos", "whole", "--resize", "256", cwd=tmp_path).check_returncode()
    return tmp_path


@pytest.mark.thorough
def test_the_example_for_slurm(cluster):
    array, finish = (
        script.replace("/data", str(cluster))
        for script in snippets_of("cluster.md", "bash")
        if "#SBATCH" in script
    )
    count = int(array.split("--array=0-")[1].split()[0]) + 1
    for task in range(count):
        variables = {"SLURM_ARRAY_TASK_ID": str(task), "SLURM_ARRAY_TASK_COUNT": str(count)}
        run_example(array, cluster, **variables)
    run_example(finish, cluster)
    assert sums(cluster / "out") == sums(cluster / "whole")


@pytest.mark.thorough
def test_the_example_for_kubernetes(cluster):
    documents = [
        document
        for block in snippets_of("cluster.md", "yaml")
        for document in yaml.safe_load_all(block)
    ]
    array, finish = (document["spec"] for document in documents if document["kind"] == "Job")
    assert array["completionMode"] == "Indexed"
    for index in range(array["completions"]):
        run_example(command_of(array, cluster), cluster, JOB_COMPLETION_INDEX=str(index))
    run_example(command_of(finish, cluster), cluster)
    assert sums(cluster / "out") == sums(cluster / "whole")


def command_of(job: dict[str, Any], cluster: Path) -> str:
    (container,) = job["template"]["spec"]["containers"]
    shell, option, script = container["command"]
    assert (shell, option) == ("sh", "-c")
    return str(script).replace("/data", str(cluster))
