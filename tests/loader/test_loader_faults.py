"""Damage, and other things that happen to files and processes while a loader runs."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import pickle
import resource
import signal
import struct
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from annotated import png
from conftest import CROP
from dataset_files import shard_in, shards_in
from handmade import write_dataset
from in_this_process import convert
from programs import run_python

import shardctl
from shardctl.errors import DatasetError, UsageError
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.shard import BlockFile
from shardctl.loader.prefetch import Prefetcher
from shardctl.system.mmap import map_file

ROWS = pa.schema(
    {"key": pa.string(), "text": pa.string(), "x": pa.fixed_shape_tensor(pa.uint8(), [64])}
)


def make(root: Path, compression: str = "none", samples: int = 120, **missing: Any) -> Path:
    """Write a dataset of 3 shards, each of 4 blocks; a text may be missing."""
    rows = (
        (f"k{n:03d}", missing.get(f"k{n}", f"text of {n} " * 20), np.full(64, n, np.uint8))
        for n in range(samples)
    )
    size = 400_000 if compression == "none" else 100_000
    write_dataset(root, ROWS, rows, 40, compression, sample_bytes=size)
    return root


KEYS = [f"k{n:03d}" for n in range(120)]


def keys_of(loader: Any) -> list[str]:
    return [key for batch in loader for key in batch["key"]]


def named_and_skipped(root: Path, said: str, **options: Any) -> tuple[list[str], int]:
    """Fail unless damage is named; return the keys that are read where it is skipped, and how many
    samples are not."""
    ds = shardctl.open(root)
    options = {"batch_size": 16, **options}
    with pytest.raises(DatasetError, match=said):
        list(ds.loader(**options))
    loader = ds.loader(on_error="skip", **options)
    return keys_of(loader), loader.stats().skipped


def overwrite(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def place_of(path: Path, block: int, column: str) -> tuple[int, int]:
    """Return where the offsets and the data of a text column of a block begin in an uncompressed
    file."""
    file = BlockFile.at(path, map_file)
    _, offsets, data = file.fetch(block)[0].column(column).buffers()
    base = file.contents.address
    return offsets.address - base, data.address - base


def lead_astray(shard: Path) -> None:
    """Damage an offset in a block."""
    offsets, _ = place_of(shard, 1, "text")
    overwrite(shard, offsets + 4 * 3, (2**31 - 1).to_bytes(4, "little"))


@pytest.mark.parametrize(("shuffle", "mmap"), [(False, True), (True, False), ("window", True)])
def test_offsets_that_lead_astray_are_named_or_skipped(out, shuffle, mmap):
    lead_astray(shard_in(make(out), "train-00001"))
    said = r"train-00001-\w+.arrow, block 1, row \d+.*damaged, text leads out"
    read, skipped = named_and_skipped(out, said, shuffle=shuffle, mmap=mmap)
    assert skipped == 2
    assert sorted(read) == [key for key in KEYS if key not in ("k052", "k053")]


@pytest.mark.parametrize("mmap", [True, False])
def test_offsets_that_lead_astray_are_looked_at_where_another_block_has_a_missing_value(out, mmap):
    """Arrow itself collects the values of all blocks of a batch then: the process would end where
    it follows them."""
    lead_astray(shard_in(make(out, k2=None), "train-00001"))
    said = r"train-00001-\w+.arrow, block 1 cannot be read .*out of bounds"
    read, skipped = named_and_skipped(out, said, batch_size=120, mmap=mmap)
    assert (read, skipped) == (KEYS[:50] + KEYS[60:], 10), "all of the block"


def test_text_that_is_not_utf8_is_named_or_skipped(out):
    shard = shard_in(make(out), "train-00002")
    overwrite(shard, place_of(shard, 0, "text")[1], b"\xff\xfe")
    said = r"train-00002-\w+.arrow, block 0, row 0, key 'k080': text is not UTF-8"
    assert named_and_skipped(out, said) == (KEYS[:80] + KEYS[81:], 1)


@pytest.mark.parametrize("pad", [None, {"tokens": 0}, {"tokens": 0, "boxes": 0}])
def test_a_batch_of_which_every_sample_is_skipped_does_not_come(out, pad):
    """Whatever its columns are: one that is filled up has no longest sample then."""
    lists = {"tokens": pa.list_(pa.int32()), "boxes": pa.list_(pa.list_(pa.float32()))}
    schema = pa.schema({"key": pa.string(), "image": ENCODED_IMAGE, **lists})
    good = png(np.zeros((9, 9, 3), np.uint8))
    rows = ((f"k{n}", (b"no image" if n < 4 else good, "x.png"), [n], [[1.0]]) for n in range(6))
    write_dataset(out, schema, rows, 6)
    ds = shardctl.open(out)
    for source in (ds, shardctl.mix([ds[:4], ds[4:]], [2, 1], 6)):
        loader = source.loader(2, on_error="skip", pad=pad)
        keys = keys_of(loader)
        assert set(keys) <= {"k4", "k5"}
        assert loader.stats().skipped == 6 - len(keys)


@pytest.mark.parametrize("widths", [1, 3])
@pytest.mark.parametrize("options", [{}, {"crop": 16, "flip": 0.5}, {"resize": 20, "crop": 16}])
def test_a_damaged_size_of_an_image_takes_no_memory_and_can_be_skipped(out, widths, options):
    """Four damaged bytes of one of 24 JPEGs of 48x31, or of some widths, say 40000x40000."""
    noise = np.random.default_rng(0).integers(0, 256, (24, 31, 50, 3), np.uint8)
    images = ({"image": image[:, : 48 + n % widths]} for n, image in enumerate(noise))
    shardctl.write(out, images, store="jpeg:75")
    forged = shardctl.open(out).take([5], decode=False)["image"][0]
    (shard,) = shards_in(out)
    frame = shard.read_bytes().index(forged) + forged.index(b"\xff\xc0")
    overwrite(shard, frame + 5, struct.pack(">HH", 40_000, 40_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said = r"row 5, key .*: image: .*40000 ?x ?40000"
    read, skipped = named_and_skipped(out, said, batch_size=8, threads=1, **options)
    assert (len(read), skipped) == (23, 1)
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert taken < 100_000, "kB: it has been decoded"


@pytest.mark.parametrize("store", ["jpeg:90", "png", "webp:80"])
def test_images_that_were_made_larger_than_those_that_are_read_are_loaded(out, store, monkeypatch):
    """Nothing limits the size of what a program or a recipe makes, even if hardly any bytes are
    left of it."""
    monkeypatch.setattr("shardctl.loader.blocks.pictures.MAX_PIXELS", 1000)
    sizes = [(900, 1000), (1000, 900)]
    shardctl.write(out, ({"image": np.zeros((*size, 3), np.uint8)} for size in sizes), store=store)
    (batch,) = shardctl.open(out).loader(2)
    assert [pixels.shape[:2] for pixels in batch["image"]] == sizes


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_block_that_does_not_decompress_is_named_with_its_keys_or_skipped(out, compression):
    shard = shard_in(make(out, compression), "train-00001")
    with pa.ipc.open_file(str(shard)) as file:
        blocks = [file.get_batch(number).num_rows for number in range(file.num_record_batches)]
    overwrite(shard, shard.stat().st_size // 2, b"\xa5" * 64)
    said = r"train-00001-\w+.arrow.*block \d+.*(keys 'k|samples \d)"
    read, skipped = named_and_skipped(out, said, shuffle=True)
    assert skipped in blocks
    assert len(set(read)) == len(read) == 120 - skipped


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"shuffle": "window"}, {"mmap": False}])
def test_a_flipped_bit_is_found_by_checksums(out, options):
    shard = shard_in(make(out), "train-00001")
    _, data = place_of(shard, 2, "text")
    overwrite(shard, data + 5, b"X")
    unchecked = shardctl.open(out).loader(16, **options)
    assert len(keys_of(unchecked)) == 120, "looked at only where asked for"
    said = r"train-00001-\w+.arrow, block 2: damaged, its checksum does not match.*keys 'k060'"
    read, skipped = named_and_skipped(out, said, checksums=True, **options)
    assert (sorted(read), skipped) == (KEYS[:60] + KEYS[70:], 10)


def truncate(path: Path) -> None:
    os.truncate(path, 5000)


def rewrite(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def replace(path: Path) -> None:
    other = path.with_suffix(".other")
    other.write_bytes(path.read_bytes())
    other.replace(path)


CHANGES: list[Any] = [truncate, rewrite, replace, Path.unlink]


@pytest.fixture(
    scope="module",
    params=itertools.product(["none", "zstd"], [True, False]),
    ids=lambda given: f"{given[0]}-{given[1]}",
)
def changed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, bool, dict[str, str]]:
    """A compression, whether files are mapped, and what is said of every change."""
    compression, mmap = request.param
    roots = [make(tmp_path_factory.mktemp("changed") / "out", compression) for _ in CHANGES]
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=change_one_after_the_other, args=(roots, mmap, queue))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    return compression, mmap, {each.__name__: queue.get(timeout=60) for each in CHANGES}


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("change", CHANGES)
def test_a_shard_that_changes_under_a_running_loader_is_named(changed, change):
    """In a process of its own, which a mapping of a file that shrank would kill."""
    compression, mmap, messages = changed
    message = messages[change.__name__]
    assert "train-00001-" in message or message == "120 read"
    if mmap and compression == "none" and change is truncate:
        assert "truncated" in message
    if change is replace:
        assert message == "120 read", "the same bytes: a name means them"


def change_one_after_the_other(roots: list[Path], mmap: bool, queue: Any) -> None:
    for root, change in zip(roots, CHANGES, strict=True):
        loader = shardctl.open(root).loader(5, shuffle=True, mmap=mmap, threads=1, prefetch=1)
        batches = iter(loader)
        read = keys_of(itertools.islice(batches, 8))
        change(shard_in(root, "train-00001"))
        threading.Event().wait(0.05)  # longer than a file goes unlooked at
        try:
            read += keys_of(batches)
            queue.put(f"{len(read)} read")
        except DatasetError as error:
            queue.put(str(error))


def test_a_bus_error_of_somebody_else_is_theirs(tmp_path):
    root = make(tmp_path / "out")
    code = """
import mmap, os, sys, shardctl
list(shardctl.open(sys.argv[1]).loader(8))
with open(sys.argv[2], 'w+b') as file:
    file.write(bytes(8192))
    file.flush()
    mine = mmap.mmap(file.fileno(), 0)
    os.truncate(sys.argv[2], 0)
    print('reading', flush=True)
    mine[5000]
"""
    ran = run_python(code, root, tmp_path / "other")
    assert (ran.returncode, ran.stdout) == (-signal.SIGBUS, "reading\n")


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("mmap", [True, False])
def test_a_dataset_that_is_replaced_is_read_on_as_it_was_opened(photos, out, mmap):
    """By the loader, its processes, and a copy in another process: all read the same generation."""
    convert(photos, out, recipe={**CROP, "store": "png"})
    ds, whole = shardctl.open(out), list(shardctl.open(out).loader(8))
    batches = iter(ds.loader(8, mmap=mmap, threads=1, prefetch=1))
    read = [next(batches)]
    convert(photos, out, recipe={**CROP, "store": "raw"}, overwrite=True)
    assert_equal([*read, *batches], whole)
    assert_equal(list(pickle.loads(pickle.dumps(ds)).loader(8, mmap=mmap)), whole)
    assert_equal(list(ds.loader(8, processes=1)), whole)
    assert shardctl.open(out).manifest.generation.number == 2


def assert_equal(batches: list[Any], others: list[Any]) -> None:
    for batch, other in zip(batches, others, strict=True):
        assert batch["key"] == other["key"]
        assert np.array_equal(batch["image"], other["image"])


@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("mmap", [True, False])
def test_a_generation_that_was_swept_under_a_running_loader_is_named(photos, out, mmap, kept):
    """By the commit that keeps none, or by the second one after it."""
    convert(photos, out, recipe={**CROP, "store": "png"}, samples_per_shard=8)
    ds = shardctl.open(out)
    batches = iter(ds.loader(4, mmap=mmap, threads=1, prefetch=1))
    next(batches)
    for store in ("jpeg", "raw")[: 1 + kept]:
        recipe = {**CROP, "store": store}
        convert(photos, out, recipe=recipe, overwrite=True, keep_generations=kept)
    said = r"out: generation 1 was swept while it was read; open the dataset again, or keep more"
    for others in (batches, ds.loader(4, mmap=mmap)):
        with pytest.raises(DatasetError, match=said):
            list(others)
    with pytest.raises(DatasetError, match=said):
        pickle.loads(pickle.dumps(ds))
    assert len(list(shardctl.open(out).loader(4))) > 0


@pytest.fixture
def loader_threads() -> Callable[[], list[str]]:
    """The loaders' threads that a test has started: an iterator of another test may still be alive
    in this process."""
    before = set(threading.enumerate())
    return lambda: [
        t.name
        for t in threading.enumerate()
        if t not in before and t.name.startswith("shardctl-loader")
    ]


def test_abandoned_iterators_leave_no_thread(tmp_path, loader_threads):
    ds = shardctl.open(make(tmp_path / "out"))
    kept = [iter(ds.loader(4, threads=3)) for _ in range(3)]
    for batches in kept:
        next(batches)
    assert len(loader_threads()) == 9
    kept[0].close()
    del batches, kept
    gc.collect()
    assert loader_threads() == []


def test_a_program_that_ends_in_the_middle_of_an_epoch_ends(tmp_path):
    root = make(tmp_path / "out")
    code = """
import shardctl, sys
batches = iter(shardctl.open(sys.argv[1]).loader(4, threads=3))
next(batches)
print('over')
"""
    ran = run_python(code, root)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "over\n", "")


def test_an_exception_in_a_thread_arrives_with_its_traceback(out, loader_threads):
    shard_in(make(out), "train-00002").unlink()
    batches = iter(shardctl.open(out).loader(8, threads=2))
    assert keys_of(itertools.islice(batches, 10)) == KEYS[:80], "all that came before it"
    with pytest.raises(DatasetError, match=r"train-00002-\w+.arrow: no such shard") as caught:
        next(batches)
    assert "blocks/batch.py" in "".join(traceback.format_exception(caught.value))
    assert loader_threads() == []


def test_an_iterator_is_not_continued_in_a_forked_process(tmp_path):
    ds = shardctl.open(make(tmp_path / "out"))
    batches = iter(ds.loader(4, threads=2))
    next(batches)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=continue_reading, args=(batches, queue))
    process.start()
    assert "belongs to the parent process" in queue.get(timeout=60)
    process.join()
    assert len(keys_of(batches)) == 116


def continue_reading(batches: Any, queue: Any) -> None:
    try:
        queue.put(next(batches))
    except UsageError as error:
        queue.put(str(error))


def test_many_loaders_at_once_over_one_dataset(out):
    ds = shardctl.open(make(out, "zstd"))

    def read(seed: int) -> list[str]:
        return sorted(keys_of(ds.loader(7, shuffle=True, seed=seed, threads=2)))

    with ThreadPoolExecutor(12) as readers:
        assert list(readers.map(read, range(12))) == [KEYS] * 12


@pytest.mark.thorough
def test_many_threads_that_read_files_cut_short_go_on(tmp_path):
    """All of them fault on the same page at the same time, again and again: only one finds
    something to mend."""
    code = """
import os, sys, threading
import numpy as np
from pathlib import Path
from shardctl.system.mmap import map_whole, mended
for turn in range(30):
    path = Path(sys.argv[1], str(turn))
    path.write_bytes(b'x' * 400_000)
    mapped = np.frombuffer(map_whole(path, large_pages=False), np.uint8)
    barrier = threading.Barrier(8)
    copies = []
    def read():
        barrier.wait()
        copies.append(mapped.copy())
    threads = [threading.Thread(target=read) for _ in range(8)]
    os.truncate(path, 0)
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(copies) == 8 and not any(copy.any() for copy in copies)
    assert mended() == turn + 1, 'each file is mended once'
"""
    ran = run_python(code, tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_handler_that_was_replaced_is_put_back_before_the_next_batch(tmp_path):
    """As torch's worker processes do: they replace the handler after the dataset was opened."""
    root = make(tmp_path / "out")
    code = """
import os, signal, sys, shardctl
ds = shardctl.open(sys.argv[1])
list(ds.loader(8, shuffle=True))
signal.signal(signal.SIGBUS, signal.SIG_DFL)
os.truncate(sys.argv[2], 5000)
try:
    list(ds.loader(8, shuffle=True))
except shardctl.errors.DatasetError as error:
    print(error)
signal.raise_signal(signal.SIGBUS)
"""
    ran = run_python(code, root, shard_in(root, "train-00001"))
    assert "train-00001-" in ran.stdout
    assert ran.returncode == -signal.SIGBUS, "one that somebody sends is theirs"


def test_zeros_in_place_of_lost_pages_are_never_given_out(tmp_path):
    """A file that was cut short and has its old bytes and times again looks unchanged, but the
    mapping is not."""
    root = make(tmp_path / "out")
    code = """
import os, sys, shardctl
path = sys.argv[2]
ds = shardctl.open(sys.argv[1])
status, whole = os.stat(path), open(path, 'rb').read()
view = ds[40]['x']
assert not view.flags.writeable and view.copy().any(), 'it lies in the file'
os.truncate(path, 0)
assert not view.copy().any()
with open(path, 'r+b') as file:
    file.write(whole)
os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
try:
    sys.exit(f'given out: {ds[41]}')
except shardctl.errors.DatasetError as error:
    assert path + ': parts cannot be read' in str(error), error
"""
    ran = run_python(code, root, shard_in(root, "train-00001"))
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_copy_of_a_view_whose_file_was_cut_short_is_refused(tmp_path):
    root = make(tmp_path / "out")
    code = """
import os, sys, shardctl
from shardctl.loader.blocks.memory import without_views
batch = next(iter(shardctl.open(sys.argv[1]).loader(5)))
assert not batch['x'].flags.writeable and without_views(batch)['x'].flags.writeable
os.truncate(sys.argv[2], 0)
try:
    sys.exit(without_views(batch))
except shardctl.errors.DatasetError as error:
    assert 'cut short while x was copied' in str(error)
"""
    ran = run_python(code, root, shard_in(root))
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_loader_that_is_collected_in_a_thread_of_another_does_not_wait_for_it():
    """The collector may run anywhere, in a thread that holds what the threads of an abandoned
    iterator wait for."""
    held, begun = threading.Event(), threading.Event()

    def wait(_: int) -> int:
        begun.set()
        held.wait(60)
        return 0

    def collect(_: int) -> bool:
        abandoned.close()
        return held.is_set()

    abandoned = Prefetcher(wait, iter(range(3)), 1, None, None)
    begun.wait(60)
    try:
        with closing(Prefetcher(collect, iter(range(1)), 1, None, None)) as other:
            assert list(other) == [False]
    finally:
        held.set()


INTERRUPTED = """
import faulthandler, sys
import shardctl

faulthandler.dump_traceback_later(100, exit=True)
ds = shardctl.open(sys.argv[1])


def keys(interrupt_at):
    places = [0]

    def trace(frame, event, argument):
        if frame.f_code.co_filename.endswith(("prefetch.py", "threading.py")) and event in ("call", "return"):
            places[0] += 1
            if places[0] == interrupt_at:
                raise KeyboardInterrupt
        return trace

    iterator = iter(ds.loader(4, threads=2))
    next(iterator)  # Python's own start of a thread is none of this
    sys.settrace(trace)
    try:
        for batch in iterator:
            pass
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    iterator.close()
    return places[0]


whole = keys(-1)
for place in range(1, whole + 1):
    keys(place)
print(whole)
"""


def test_an_interrupt_at_any_moment_ends_the_threads(out):
    """Where Python may raise KeyboardInterrupt: when one of its functions begins, or when a call
    has returned."""
    make(out, samples=40)
    ran = run_python(INTERRUPTED, out)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 20
