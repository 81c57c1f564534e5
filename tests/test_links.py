"""Links and pipes in the folders that shardctl works in: nothing behind a link is changed, and
nothing waits for a pipe."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import examples
from damage import file_of
from dataset_files import shard_in, tables_in
from forged_datasets import write_manifest
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import command_line, export, repair
from places import place_of

import shardctl
from shardctl.errors import DatasetError, ShardctlError, StorageError
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.tables import ShardTable
from shardctl.inspection.content.overview import overview
from shardctl.inspection.content.samples import head, save
from shardctl.loader.remote.cache import About, Cache
from shardctl.system import files

FINGERPRINT = "0123456789abcdef" * 2

PRECIOUS = f"""
a.txt sub/b.txt sub/deep/c.txt lease job.json data/d.txt done/e.txt files/f shards/g
tables/h dataset.json manifest.json 00001/manifest.json 00001-01234567/manifest.json 9.jsonl
{FINGERPRINT}/j {FINGERPRINT}-update/k repair-01234567/l write-00ff/m x/job.json
{FINGERPRINT}.01234567/n train-00000-0123456789abcdef.arrow 0123456789abcdef/files/p
train-00000.01234567.89abcdef.partial
""".split()
"""What a person has: all names that shardctl gives to what it deletes, as the names alone must not
decide."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """raw/, and out/, a dataset of it with earlier generations, and precious/: what a person has
    elsewhere."""
    root = tmp_path_factory.mktemp("links")
    (root / "raw").mkdir()
    for number in range(3):
        write_lines(root / "raw" / f"{number}.jsonl", 12)
    convert(root / "raw", root / "out", keep_generations=2)
    write_lines(root / "raw" / "0.jsonl", 13)
    convert(root / "raw", root / "out", keep_generations=2, update=True)
    for name in PRECIOUS:
        path = root / "precious" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[]" if path.suffix == ".json" else name)
    return root


@pytest.fixture
def here(made: Path, tmp_path: Path) -> Path:
    """A copy of all that."""
    return copied(made, tmp_path)


def copied(made: Path, to: Path) -> Path:
    shutil.copytree(made, to, dirs_exist_ok=True)
    record = json.loads((to / "out" / "manifest.json").read_text())
    write_manifest(to / "out", {**record, "sources": [str(to / "raw")]})
    return to


def write_lines(path: Path, count: int) -> None:
    path.write_text(
        "".join(f'{{"text": "{path.stem} {line}", "label": {line % 2}}}\n' for line in range(count))
    )


def convert(*given: Any, **options: Any) -> Any:
    return shardctl.convert(*given, **{"workers": 0, "samples_per_shard": 6, **options})


def state(root: Path) -> dict[str, str]:
    """Return all that is below a folder, with a digest of each file; links are not followed."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        digest = (
            hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(status.st_mode) else ""
        )
        found[str(path.relative_to(root))] = (
            f"{stat.S_IFMT(status.st_mode)} {digest} {status.st_mtime_ns if digest else ''}"
        )
    return found


def converting(**options: Any) -> Callable[[Path, Path], Any]:
    return lambda raw, out: convert(raw, out, **options)


def parts_of(part: int) -> Iterator[dict[str, int]]:
    yield {"x": part}


COMMANDS: dict[str, Callable[[Path, Path], Any]] = {
    "dry run": converting(overwrite=True, samples_per_shard=5, dry_run=True),
    "dry run, up to date": converting(dry_run=True),
    "up to date": converting(),
    "dry run of an update": converting(update=True, dry_run=True),
    "repair": lambda _, out: repair(out),
    "compact": lambda _, out: shardctl.compact(out),
    "prune": lambda _, out: shardctl.prune(out, "label == 1"),
    "update": converting(update=True, keep_generations=1),
    "merge": lambda _, out: shardctl.finish(out),
    "part": converting(overwrite=True, samples_per_shard=4, part="1/2"),
    "snapshot": lambda raw, out: shardctl.snapshot(out, raw, samples_per_shard=6, workers=0),
    "overwrite": converting(overwrite=True, samples_per_shard=5),
    "write": lambda _, out: shardctl.write(out, [{"x": 1}], overwrite=True),
    "write parts": lambda _, out: shardctl.write(out, parts_of, parts=[1, 2], overwrite=True),
    "export": lambda _, out: export(out, out.with_name("ex"), "mds"),
    "export again": lambda _, out: export(out, out.with_name("ex"), "files", overwrite=True),
    "open": lambda _, out: [len(batch["key"]) for batch in shardctl.open(out).loader(batch_size=7)],
    "inspect": lambda _, out: overview(dataset_in(out)),
    "verify": lambda _, out: shardctl.verify(out),
}
WRITERS = ["repair", "compact", "prune", "update", "overwrite", "write"]

PLACES = f"""
out/.shardctl out/.shardctl/{FINGERPRINT} out/.shardctl/{FINGERPRINT}/done
out/.shardctl/repair-01234567 out/.shardctl/write-{FINGERPRINT}/parts out/.shardctl/mine
out/data out/generations out/generations/00001-* out/generations/00002-*
out/generations/00003-01234567 out/mine ex.partial ex.partial/0123456789abcdef/files ex
""".split()


def call(command: str, here: Path) -> Any:
    return COMMANDS[command](here / "raw", here / "out")


def at(here: Path, place: str) -> Path:
    """Return a place below a folder; where its name has a *, the first one that fits."""
    for part in place.split("/"):
        here = min(here.glob(part), default=here / part) if "*" in part else here / part
    return here


def plant(path: Path, target: Path) -> None:
    """Put a link in the place of whatever is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def refused(command: str, here: Path) -> str | None:
    """Call a command, and return what it says if it refuses."""
    try:
        call(command, here)
    except ShardctlError as error:
        return str(error)
    return None


def check_unchanged(here: Path, place: str, commands: list[str]) -> None:
    """Call commands, which may refuse; expect that what is at the place is as it was after each."""
    before = state(here / place)
    for command in commands:
        refused(command, here)
        assert state(here / place) == before, command


@pytest.mark.thorough(after=2)
@pytest.mark.parametrize("place", PLACES)
def test_nothing_behind_a_link_is_changed(here, place):
    before = state(here / "precious")
    for command in COMMANDS:
        plant(at(here, place), here / "precious")
        refused(command, here)
        assert state(here / "precious") == before, command


@pytest.mark.parametrize(
    "command", ["repair", "compact", "update", "overwrite", "write", "part", "dry run"]
)
def test_a_linked_staging_folder_is_refused_by_its_name(here, command):
    write_lines(here / "raw" / "1.jsonl", 14)
    (here / "out" / ".shardctl").symlink_to(here / "precious")
    message = refused(command, here)
    assert message is not None
    assert "out/.shardctl: a link to " in message
    assert "behind which nothing is written" in message


def test_a_lease_that_is_a_link_is_not_written_to(here):
    (here / "out" / ".shardctl").mkdir()
    (here / "out" / ".shardctl" / "lease").symlink_to(here / "precious" / "a.txt")
    with pytest.raises(StorageError, match=r"\.shardctl/lease: a link to"):
        call("overwrite", here)
    assert (here / "precious" / "a.txt").read_text() == "a.txt"


@pytest.mark.parametrize("command", WRITERS)
def test_shards_that_are_links_are_replaced_and_what_they_lead_to_stays(here, command):
    """Some caches keep all files of a dataset as links to others."""
    for number, path in enumerate([*(here / "out").rglob("*.*")]):
        if path.is_file():
            path.symlink_to(path.rename(here / "precious" / f"{number}-{path.name}"))
    assert len(shardctl.open(here / "out")) == 37
    check_unchanged(here, "precious", [command])


def test_a_destination_that_is_a_link_to_a_folder_is_that_folder(here):
    (here / "out").rename(here / "real")
    (here / "out").symlink_to(here / "real")
    assert call("up to date", here).status == "up-to-date"
    assert call("overwrite", here).samples == 37
    assert call("repair", here).status == "whole"
    assert call("compact", here)
    assert (here / "out").is_symlink()
    assert shardctl.verify(here / "real").ok


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("path", ["link", "real/out/.", "real/out/../out", "beside/../out"])
@pytest.mark.parametrize("command", WRITERS)
def test_a_dataset_may_be_named_by_any_path(here, monkeypatch, command, path):
    """It is written in its own folder, under no other name, and a shell that stands in it stays
    there."""
    (here / "real" / "sub").mkdir(parents=True)
    (here / "raw" / "0.jsonl").unlink()
    convert(here / "raw", here / "out", update=True, keep_generations=1)
    (here / "raw" / "0.jsonl").write_text('{"text": "new", "label": 1}\n')
    if command == "repair":
        (shard_in(here / "out", "train-00002")).unlink()
    (here / "out").rename(here / "real" / "out")
    (here / "link").symlink_to("real/out")
    (here / "beside").symlink_to("real/sub")  # `..` behind it leads to real/
    monkeypatch.chdir(here / "real" / "out")
    folders, inode = (
        (sorted(os.listdir(here)), sorted(os.listdir(here / "real"))),
        Path().stat().st_ino,
    )
    before = state(Path())
    COMMANDS[command](here / "raw", Path("../..") / path)
    assert (sorted(os.listdir(here)), sorted(os.listdir(here / "real"))) == folders
    assert (here / "link").is_symlink()
    assert (here / "real" / "out").stat().st_ino == inode
    assert shardctl.verify(here / "real" / "out").ok
    assert state(here / "real" / "out") != before


@pytest.mark.parametrize(
    "command", ["overwrite", "repair", "compact", "update", "prune", "write", "write parts", "part"]
)
def test_a_persons_folders_in_a_staging_folder_stay(here, command):
    """Also where the dataset that they are in is replaced, and one that is called as a shard."""
    write_lines(here / "raw" / "1.jsonl", 14)
    places = ".shardctl/mine", f"data/train-00008-{16 * '0'}.arrow"
    for place in places:
        shutil.copytree(here / "precious", here / "out" / place)
    before = state(here / "precious")
    refused(command, here)
    for place in places:
        assert state(here / "out" / place) == before


@pytest.mark.parametrize("name", ["00001", "2024", ".git"])
def test_folders_that_only_look_like_ours_stay(here, name):
    name = f"out/generations/{name}"
    shutil.copytree(here / "precious" / "sub", here / name)
    check_unchanged(here, name, ["up to date", "repair", "compact", "update", "overwrite"])


def test_a_check_deletes_nothing(here):
    for name in ("repair-01234567", FINGERPRINT, "mine"):
        (here / "out" / ".shardctl" / name / "new").mkdir(parents=True)
        (here / "out" / ".shardctl" / name / "new" / "a").write_text("a")
    checks = ["up to date", "dry run, up to date", "dry run", "dry run of an update"]
    check_unchanged(here, "out", checks)


@pytest.mark.parametrize("command", [*WRITERS, "write parts"])
def test_a_persons_files_beside_the_shards_stay(here, command):
    """Also those that are called as shards, and have other bytes: prune names them, as they may have
    samples."""
    write_lines(here / "raw" / "3.jsonl", 12)
    places = [
        here / "out" / "data" / name
        for name in ("notes.txt", "train-00000.arrow", f"train-00008-{16 * '0'}.arrow")
    ]
    for path in places:
        path.write_text("mine")
    said = refused(command, here)
    assert (said is None) == (command != "prune"), said
    assert {path.read_text() for path in places} == {"mine"}
    assert shardctl.verify(here / "out").ok


def test_files_of_a_dataset_without_its_manifest_are_not_overwritten(here):
    """Also where a staging folder is left, as of a conversion that was stopped."""
    shardctl.write(here / "written", [{"x": number} for number in range(20)])
    (here / "written" / "manifest.json").unlink()
    (here / "written" / ".shardctl").mkdir()
    (here / "written" / ".shardctl" / "lease").touch()
    before = state(here / "written")
    for command in ("up to date", "dry run, up to date", "overwrite", "write"):
        with pytest.raises(
            StorageError, match=r"\(generations/00001-\w+/\), but no manifest\.json"
        ):
            COMMANDS[command](here / "raw", here / "written")
    assert state(here / "written") == before


def test_a_kept_generation_with_a_damaged_manifest_stays(here):
    kept = at(here, "out/generations/00001-*")
    (kept / "manifest.json").write_text((kept / "manifest.json").read_text()[:-40])
    before = state(kept)
    write_lines(here / "raw" / "1.jsonl", 14)
    assert convert(here / "raw", here / "out", update=True, keep_generations=2).status == "updated"
    folders = sorted(os.listdir(here / "out" / "generations"))
    assert [name[:5] for name in folders] == ["00001", "00002", "00003"]
    assert state(kept) == before
    shardctl.prune(here / "out", "label == 1")  # they may have the samples that go
    assert [name[:5] for name in os.listdir(here / "out" / "generations")] == ["00004"]


@pytest.mark.parametrize("command", ["update", "prune"])
def test_a_persons_file_in_a_kept_generation_stays_when_that_goes(here, command):
    kept = at(here, "out/generations/00001-*")
    (kept / "notes").mkdir()
    for name in ("notes.txt", "notes/more.txt"):
        (kept / name).write_text("mine")
    write_lines(here / "raw" / "1.jsonl", 14)
    call(command, here)
    assert sorted(os.listdir(kept)) == ["notes", "notes.txt"]
    assert os.listdir(kept / "notes") == ["more.txt"]


def test_a_tree_is_deleted_and_no_link_in_it_is_followed(tmp_path):
    outside = tmp_path / "outside"
    (outside / "sub").mkdir(parents=True)
    (outside / "sub" / "a").write_text("mine")
    tree = tmp_path / "ours" / "tree"
    (tree / "deep" / "deeper").mkdir(parents=True)
    (tree / "deep" / "file").write_text("")
    for name in ("link", "deep/link", "deep/deeper/link"):
        (tree / name).symlink_to(outside)
    files.remove_tree(tree, tmp_path)
    assert os.listdir(tmp_path / "ours") == []
    (tmp_path / "ours" / "link").symlink_to(outside)
    for path in (tmp_path / "ours" / "link", tmp_path / "ours" / "link" / "sub"):
        with pytest.raises(StorageError, match="ours/link: a link to"):
            files.remove_tree(path, tmp_path)
    assert (outside / "sub" / "a").read_text() == "mine"


# --- folders of other users ---


def without_rights() -> None:
    """Have the modes of files count for this process also where its user is root."""
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="takes rights from root as Linux does")
def test_a_check_goes_on_where_another_user_works(here):
    """A dataset that is shared, and may only be read: what another user has begun is not known, and
    changes nothing."""
    (here / "out" / ".shardctl").mkdir()
    before = state(here / "out")
    (here / "out" / ".shardctl").chmod(0)
    (here / "out").chmod(0o555)
    here.chmod(0o555)
    try:
        script = f"import test_links; test_links.check_all(test_links.Path({str(here)!r}))"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        ran = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            preexec_fn=without_rights,
            capture_output=True,
            text=True,
        )
    finally:
        here.chmod(0o755)
        (here / "out").chmod(0o755)
        (here / "out" / ".shardctl").chmod(0o755)
    assert ran.returncode == 0, ran.stderr
    assert state(here / "out") == before


def check_all(here: Path) -> None:
    assert not os.access(here / "out", os.W_OK)
    for name in ("up to date", "dry run, up to date", "dry run of an update", "merge"):
        assert call(name, here).status in ("up-to-date", "planned"), name
    assert len(call("snapshot", here)) == 37


# --- folders beside datasets ---


def test_a_cache_follows_no_link(here):
    """Neither in the place of a dataset, nor of its shards, nor of a file that it writes in
    place."""
    before, cache = state(here / "precious"), Cache(here / "cache")
    about = About("s3://bucket/out", "1", "0" * 64)

    def bring(folder: Path) -> None:
        (folder / "manifest.json").write_text("{}")
        shutil.copy(tables_in(here / "out") / "shards.arrow", folder)

    found = cache.make(about, 100, bring)
    assert found is not None
    folder = found.folder
    found.attach(ShardTable(dataset_in(here / "out")))
    found.path(0).symlink_to(here / "precious" / "a.txt")
    with pytest.raises(StorageError, match=r"\.arrow: cannot write here"):
        found.keep(0, 0, None, lambda: pa.py_buffer(b"tail"))
    del found
    shutil.rmtree(folder / "shards")
    (folder / "shards").symlink_to(here / "precious")
    assert cache.find(about.url, about.version) is None
    assert cache.clear() == ([], [])
    with pytest.raises(StorageError, match="the cache needs this name"):
        cache.make(about, 100, bring)
    shutil.rmtree(folder)
    folder.symlink_to(here / "precious")
    with pytest.raises(StorageError, match="the cache needs this name"):
        cache.make(about, 100, bring)
    assert cache.clear() == ([], [])
    folder.unlink()
    shutil.copytree(here / "precious", folder)
    assert cache.clear() == ([], [])
    assert state(folder) == state(here / "precious") == before


def test_records_are_not_saved_behind_a_link(here):
    """A key has the path of its file: a folder of that name may be a link."""
    (here / "saved").mkdir()
    (here / "saved" / "sub").symlink_to(here / "precious")
    before = state(here / "precious")
    (here / "deep" / "sub").mkdir(parents=True)
    write_lines(here / "deep" / "sub" / "new.jsonl", 2)
    convert(here / "deep", here / "deep-out")
    with pytest.raises(StorageError, match="saved/sub: a link to"):
        save(head(place_of(here / "deep-out"), None, 1), here / "saved")
    assert state(here / "precious") == before


# --- pipes ---

READERS = """
import sys, contextlib
from pathlib import Path
import shardctl
from shardctl.errors import ShardctlError
from test_links import call
here = Path(sys.argv[1])
for name in sys.argv[2:]:
    print(name, flush=True)
    try:
        call(name, here)
    except ShardctlError as error:
        print("refused:", error, flush=True)
"""


def run_commands(here: Path, names: list[str]) -> str:
    """Run some commands in a process of their own: it is killed where one waits for a pipe. Return
    what they said."""
    ran = subprocess.run(
        [sys.executable, "-c", READERS, str(here), *names],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout
    return ran.stdout


READING = "open,inspect,verify,export,up to date,update,compact,prune,snapshot,merge".split(",")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["train-00000", "manifest.json", "files.arrow", "SHA256SUMS", "rejects.jsonl"]
)
def test_a_pipe_in_the_place_of_a_file_of_a_dataset_holds_nothing_up(here, name):
    path = file_of(here / "out", name)
    path.unlink()
    os.mkfifo(path)
    said = run_commands(here, READING)
    if name == "train-00000":
        assert f"{path.name}: not a readable Arrow file (not an ordinary file)" in said
        assert repair(here / "out").repaired == (name,)


def test_sockets_and_devices_in_the_place_of_a_shard_are_refused(here, monkeypatch):
    shard = shard_in(here / "out", "train-00000")
    monkeypatch.chdir(shard.parent)
    shard.unlink()
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
        server.bind(shard.name)
        with pytest.raises(DatasetError, match=r"train-00000-\w+\.arrow"):
            call("open", here)
    shard.unlink()
    shard.symlink_to("/dev/zero")
    with pytest.raises(
        DatasetError,
        match=r"train-00000-\w+\.arrow: not a readable Arrow file \(not an ordinary file\)",
    ):
        call("open", here)


@pytest.mark.thorough
def test_a_pipe_in_a_staging_folder_is_refused_by_its_name(here):
    job = here / "out" / ".shardctl" / FINGERPRINT
    (job / "done").mkdir(parents=True)
    for name in ("job.json", "done/0000000.arrow"):
        os.mkfifo(job / name)
        said = run_commands(here, ["dry run", "repair", "overwrite", "part", "write", "snapshot"])
        assert said.count(f"{job / name}: neither a file nor a folder") >= 4
        (job / name).unlink()


def test_a_shard_that_is_a_pipe_is_not_measured(cli, here):
    shard = shard_in(here / "out")
    shard.unlink()
    os.mkfifo(shard)
    for how in ((), ("--cold",)):
        ran = cli("bench", here / "out", "--seconds", 1, *how)
        assert ran.code == 3
        assert f"{shard.name}: not a readable Arrow file (not an ordinary file)" in ran.err


NAMED = {
    "recipe.toml": "convert raw new --recipe recipe.toml",
    "labels.csv": "convert photos new --labels labels.csv",
    "coco.json": "convert photos new --labels coco:coco.json",
    "schema.txt": "convert raw new --schema schema.txt",
    "tokenizer.json": "convert raw new --tokenizer tokenizer.json",
    "chat.jinja": "convert raw new --chat-template chat.jinja --tokenizer bytes",
    "words.txt": "convert raw new --tokenizer words:words.txt",
    "cl.tiktoken": "convert raw new --tokenizer tiktoken:cl100k_base:cl.tiktoken",
    "keys.txt": "prune out --keys keys.txt",
    "raw.jsonl": "convert raw.jsonl new",
}


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("name", NAMED)
def test_a_pipe_that_is_named_on_the_command_line_is_refused(here, name, photos):
    os.mkfifo(here / name)
    (here / "photos").symlink_to(photos)
    command = command_line(*NAMED[name].split())
    ran = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=120)
    assert ran.returncode in (2, 3)
    assert name in ran.stderr
    assert "Traceback" not in ran.stderr


def test_keys_may_come_from_another_command(here):
    """The shell gives <(command) as a pipe of which it writes the end."""
    keys = "\n".join(f"0.jsonl#{number}" for number in (1, 2))
    command = (
        f"'{sys.executable}' -m shardctl prune '{here / 'out'}' --json --keys <(printf '{keys}')"
    )
    ran = subprocess.run(["bash", "-c", command], stdout=subprocess.PIPE, text=True, timeout=120)
    assert json.loads(ran.stdout)["removed"] == 2


# --- anything, anywhere ---


@contextlib.contextmanager
def _no_longer_than(seconds: int) -> Iterator[None]:
    """Raise TimeoutError where the block waits for longer, in a call of the system too."""

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


NAMES = f"""
manifest.json generations/00002-*/manifest.json generations/00002-*/shards.arrow
generations/00002-*/plan.arrow generations/00002-*/SHA256SUMS generations/00001-*/shards.arrow
data/train-00000-* data/train-00008-0123456789abcdef.arrow .shardctl/lease
.shardctl/{FINGERPRINT}/job.json .shardctl/{FINGERPRINT}/done/0000000.arrow
.shardctl/{FINGERPRINT}/plan.arrow
""".split()
PLANTED = st.tuples(
    st.sampled_from([*PLACES, *(f"out/{name}" for name in NAMES)]),
    st.sampled_from(["link", "file", "pipe"]),
)
CALLED = st.sampled_from(sorted({*COMMANDS} - {"open", "verify", "export", "export again"}))


@examples(12)
@given(st.lists(PLANTED, min_size=1, max_size=3), st.lists(CALLED, min_size=1, max_size=3))
def test_whatever_is_planted_anywhere_no_command_changes_what_is_outside(made, planted, commands):
    """A link to a folder, a link to a file or a pipe."""
    with tempfile.TemporaryDirectory() as folder:
        here = copied(made, Path(folder))
        before = state(here / "precious"), state(here / "raw")
        for place, kind in planted:
            with contextlib.suppress(NotADirectoryError, FileExistsError):  # behind another one
                path = at(here, place)
                if not any(parent.is_symlink() for parent in path.parents):
                    plant(path, here / "precious" / ("a.txt" if kind == "file" else ""))
                    if kind == "pipe":
                        path.unlink()
                        os.mkfifo(path)
        for command in commands:
            with _no_longer_than(60):
                refused(command, here)
            assert (state(here / "precious"), state(here / "raw")) == before
