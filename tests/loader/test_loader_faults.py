"""Damage, and other things that happen to files and processes while a loader runs."""

from __future__ import annotations

import gc
import io
import itertools
import multiprocessing
import os
import resource
import signal
import struct
import threading
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from annotated import png
from conftest import CROP
from handmade import repeat_shard, write_dataset
from in_this_process import convert
from PIL import Image
from programs import run_python

import shardctl
from shardctl.errors import DatasetError, UsageError
from shardctl.format.layout import ENCODED_IMAGE
from shardctl.format.shard import BlockFile, map_file
from shardctl.loader.prefetch import Prefetcher

ROWS = pa.schema(
    {"key": pa.string(), "text": pa.string(), "x": pa.fixed_shape_tensor(pa.uint8(), [64])}
)


def make(root: Path, compression: str = "none", samples: int = 120) -> Path:
    rows = ((f"k{n:03d}", f"text of {n} " * 20, np.full(64, n, np.uint8)) for n in range(samples))
    write_dataset(
        root,
        ROWS,
        rows,
        40,
        compression,
        sample_bytes=400_000 if compression == "none" else 100_000,
    )
    return root


def keys_of(loader: Any) -> list[str]:
    return [key for batch in loader for key in batch["key"]]


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


@pytest.mark.parametrize(("shuffle", "mmap"), [(False, True), (True, False), ("window", True)])
def test_offsets_that_lead_astray_are_named_or_skipped(tmp_path, shuffle, mmap):
    root = make(tmp_path / "out")
    shard = root / "train-00001.arrow"
    offsets, _ = place_of(shard, 1, "text")
    overwrite(shard, offsets + 4 * 3, (2**31 - 1).to_bytes(4, "little"))
    ds = shardctl.open(root)
    with pytest.raises(
        DatasetError,
        match=r"train-00001.arrow, block 1, row \d+.*damaged, text leads out of its block",
    ):
        list(ds.loader(16, shuffle=shuffle, mmap=mmap))
    loader = ds.loader(16, shuffle=shuffle, mmap=mmap, on_error="skip")
    read = keys_of(loader)
    assert loader.stats().skipped == 2
    assert sorted(read) == sorted({f"k{n:03d}" for n in range(120)} - {"k052", "k053"})


@pytest.mark.parametrize("mmap", [True, False])
def test_offsets_that_lead_astray_are_looked_at_where_another_block_has_a_missing_value(out, mmap):
    """Arrow itself collects the values of all blocks of a batch then: the process would end where
    it follows them."""
    rows = (
        (f"k{n:03d}", None if n == 2 else f"text of {n} " * 20, np.full(64, n, np.uint8))
        for n in range(120)
    )
    write_dataset(out, ROWS, rows, 40, sample_bytes=400_000)
    shard = out / "train-00001.arrow"
    offsets, _ = place_of(shard, 1, "text")
    overwrite(shard, offsets + 4 * 3, (2**31 - 1).to_bytes(4, "little"))
    ds = shardctl.open(out)
    with pytest.raises(
        DatasetError, match=r"train-00001.arrow, block 1 cannot be read .*out of bounds"
    ):
        list(ds.loader(120, mmap=mmap))
    loader = ds.loader(120, mmap=mmap, on_error="skip")
    read = keys_of(loader)
    assert loader.stats().skipped == 10, "all of the block"
    assert read == [f"k{n:03d}" for n in range(120) if not 50 <= n < 60]


def test_text_that_is_not_utf8_is_named_or_skipped(tmp_path):
    root = make(tmp_path / "out")
    _, data = place_of(root / "train-00002.arrow", 0, "text")
    overwrite(root / "train-00002.arrow", data, b"\xff\xfe")
    with pytest.raises(
        DatasetError, match=r"train-00002.arrow, block 0, row 0, key 'k080': text is not UTF-8"
    ):
        list(shardctl.open(root).loader(16))
    assert len(keys_of(shardctl.open(root).loader(16, on_error="skip"))) == 119


@pytest.mark.parametrize("pad", [None, {"tokens": 0}, {"tokens": 0, "boxes": 0}])
def test_a_batch_of_which_every_sample_is_skipped_does_not_come(out, pad):
    """Whatever its columns are: one that is filled up has no longest sample then."""
    columns = [("key", pa.string()), ("image", ENCODED_IMAGE), ("tokens", pa.list_(pa.int32()))]
    schema = pa.schema([*columns, ("boxes", pa.list_(pa.list_(pa.float32())))])
    good = png(np.zeros((9, 9, 3), np.uint8))
    rows = ((f"k{n}", (b"no image" if n < 4 else good, "x.png"), [n], [[1.0]]) for n in range(6))
    write_dataset(out, schema, rows, 6)
    ds = shardctl.open(out)
    for source in (ds, shardctl.mix([ds[:4], ds[4:]], [2, 1], 6)):
        loader = source.loader(2, on_error="skip", pad=pad)
        keys = keys_of(loader)
        assert set(keys) <= {"k4", "k5"}
        assert loader.stats().skipped == 6 - len(keys)


def jpegs_with_a_forged_size(root: Path, widths: int, side: int) -> Path:
    """A dataset of 24 JPEGs of 48x31, or of some `widths`; four damaged bytes of number 5 say side
    x side."""
    rng = np.random.default_rng(0)
    images = []
    for n in range(24):
        target = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (31, 48 + n % widths, 3), np.uint8)).save(
            target, "JPEG"
        )
        images.append(target.getvalue())
    shardctl.write(root, ({"image": data} for data in images))
    (shard,) = root.glob("train-*.arrow")
    frame = shard.read_bytes().index(images[5]) + images[5].index(b"\xff\xc0")
    overwrite(shard, frame + 5, struct.pack(">HH", side, side))
    return root


@pytest.mark.parametrize("widths", [1, 3])
@pytest.mark.parametrize("options", [{}, {"crop": 16, "flip": 0.5}, {"resize": 20, "crop": 16}])
def test_a_damaged_size_of_an_image_takes_no_memory_and_can_be_skipped(tmp_path, widths, options):
    ds = shardctl.open(jpegs_with_a_forged_size(tmp_path / "out", widths, 40_000))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(
        DatasetError,
        match=r"row 5, key .*: image: (it is 40000x40000|its header says 40000 x 40000)",
    ):
        keys_of(ds.loader(8, threads=1, **options))
    loader = ds.loader(8, threads=1, on_error="skip", **options)
    assert len(keys_of(loader)) == 23
    assert loader.stats().skipped == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, (
        "kB: it has been decoded"
    )


@pytest.mark.parametrize("store", ["jpeg:90", "png", "webp:80"])
def test_images_that_were_made_larger_than_those_that_are_read_are_loaded(out, store, monkeypatch):
    """Nothing limits the size of what a program or a recipe makes, even if hardly any bytes are
    left of it."""
    from shardctl.loader.blocks import pictures

    monkeypatch.setattr(pictures, "MAX_PIXELS", 1000)
    sizes = [(900, 1000), (1000, 900)]
    shardctl.write(out, ({"image": np.zeros((*size, 3), np.uint8)} for size in sizes), store=store)
    (batch,) = shardctl.open(out).loader(2)
    assert [pixels.shape[:2] for pixels in batch["image"]] == sizes


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_block_that_does_not_decompress_is_named_with_its_keys_or_skipped(tmp_path, compression):
    root = make(tmp_path / "out", compression)
    shard = root / "train-00001.arrow"
    whole = shard.read_bytes()
    with pa.ipc.open_file(str(shard)) as file:
        blocks = [file.get_batch(number).num_rows for number in range(file.num_record_batches)]
    middle = len(whole) // 2
    overwrite(shard, middle, b"\xa5" * 64)
    loader = shardctl.open(root).loader(16, shuffle=True)
    with pytest.raises(DatasetError, match=r"train-00001.arrow.*block \d+.*(keys 'k|samples \d)"):
        list(loader)
    loader = shardctl.open(root).loader(16, shuffle=True, on_error="skip")
    read = keys_of(loader)
    assert len(read) + loader.stats().skipped == 120
    assert loader.stats().skipped in blocks
    assert len(set(read)) == len(read)


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"shuffle": "window"}, {"mmap": False}])
def test_a_flipped_bit_is_found_by_checksums(tmp_path, options):
    root = make(tmp_path / "out")
    shard = root / "train-00001.arrow"
    _, data = place_of(shard, 2, "text")
    overwrite(shard, data + 5, b"X")
    assert len(keys_of(shardctl.open(root).loader(16, **options))) == 120, (
        "looked at only where asked for"
    )
    with pytest.raises(
        DatasetError,
        match=r"train-00001.arrow, block 2: damaged, its checksum does not match.*keys 'k060'",
    ):
        list(shardctl.open(root).loader(16, checksums=True, **options))
    loader = shardctl.open(root).loader(16, checksums=True, on_error="skip", **options)
    assert sorted(keys_of(loader)) == sorted(
        {f"k{n:03d}" for n in range(120)} - {f"k{n:03d}" for n in range(60, 70)}
    )
    assert loader.stats().skipped == 10


def truncate(path: Path) -> None:
    os.truncate(path, 5000)


def rewrite(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def replace(path: Path) -> None:
    other = path.with_suffix(".other")
    other.write_bytes(path.read_bytes())
    other.replace(path)


CHANGES = [truncate, rewrite, replace, Path.unlink]


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
    messages = {
        change.__name__: queue.get(timeout=60)
        for change in CHANGES
        if process.exitcode == 0 or not queue.empty()
    }
    assert process.exitcode == 0, f"it ended at the change after {list(messages)}"
    return compression, mmap, messages


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("change", CHANGES)
def test_a_shard_that_changes_under_a_running_loader_is_named(changed, change):
    """In a process of its own, which a mapping of a file that shrank would kill."""
    compression, mmap, messages = changed
    message = messages[change.__name__]
    assert "train-00001.arrow" in message or message == "120 read"
    assert (
        mmap is False or compression != "none" or change is not truncate or "truncated" in message
    )


def change_one_after_the_other(roots: list[Path], mmap: bool, queue: Any) -> None:
    for root, change in zip(roots, CHANGES, strict=True):
        change_while_reading(root, change, mmap, queue)


def change_while_reading(root: Path, change: Any, mmap: bool, queue: Any) -> None:
    loader = shardctl.open(root).loader(5, shuffle=True, mmap=mmap, threads=1, prefetch=1)
    batches = iter(loader)
    read = keys_of([next(batches) for _ in range(8)])
    change(root / "train-00001.arrow")
    waited = threading.Event()
    waited.wait(0.05)  # longer than a file goes unlooked at
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


@pytest.mark.thorough
def test_a_dataset_replaced_under_a_running_loader_is_named(photos, out):
    convert(photos, out, recipe={**CROP, "store": "png"})
    ds = shardctl.open(out)
    convert(photos, out, recipe={**CROP, "store": "jpeg"}, overwrite=True)
    with pytest.raises(
        DatasetError, match=r"replaced by another dataset while it was read; open it again"
    ):
        list(ds.loader(8, mmap=False))


@pytest.mark.thorough
def test_many_shards_with_few_open_files(out):
    columns = pa.schema({"key": pa.string(), "n": pa.int64()})
    write_dataset(out, columns, ((f"k{n}", n) for n in range(4)), 4)
    repeat_shard(out, 1000)
    code = """
import shardctl, sys, collections
for options in ({}, {'shuffle': True}, {'shuffle': 'window'}, {'mmap': False}):
    batches = shardctl.open(sys.argv[1]).loader(256, **options)
    counts = collections.Counter(n for batch in batches for n in batch['n'].tolist())
    assert counts == dict.fromkeys(range(4), 1000), (options, counts)
"""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))"
    ran = run_python(limit + code, out)
    assert ran.returncode == 0, ran.stderr


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


def test_an_exception_in_a_thread_arrives_with_its_traceback(tmp_path, loader_threads):
    root = make(tmp_path / "out")
    (root / "train-00002.arrow").unlink()
    batches = iter(shardctl.open(root).loader(8, threads=2))
    assert keys_of(itertools.islice(batches, 10)) == [f"k{n:03d}" for n in range(80)], (
        "all that came before it"
    )
    with pytest.raises(DatasetError, match=r"train-00002.arrow: no such shard") as caught:
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


def test_many_loaders_at_once_over_one_dataset(tmp_path):
    ds = shardctl.open(make(tmp_path / "out", "zstd"))
    found: list[list[str]] = []

    def read(seed: int) -> None:
        found.append(sorted(keys_of(ds.loader(7, shuffle=True, seed=seed, threads=2))))

    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(12)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert found == [[f"k{n:03d}" for n in range(120)]] * 12


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
os.truncate(sys.argv[1] + '/train-00001.arrow', 5000)
try:
    list(ds.loader(8, shuffle=True))
except shardctl.errors.DatasetError as error:
    print(error)
signal.raise_signal(signal.SIGBUS)
"""
    ran = run_python(code, root)
    assert "train-00001.arrow" in ran.stdout
    assert ran.returncode == -signal.SIGBUS, "one that somebody sends is theirs"


def test_zeros_in_place_of_lost_pages_are_never_given_out(tmp_path):
    """A file that was cut short and has its old bytes and times again looks unchanged, but the
    mapping is not."""
    root = make(tmp_path / "out")
    code = """
import os, sys, shardctl
path = sys.argv[1] + '/train-00001.arrow'
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
    assert 'train-00001.arrow: parts cannot be read' in str(error), error
"""
    ran = run_python(code, root)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_copy_of_a_view_whose_file_was_cut_short_is_refused(tmp_path):
    root = make(tmp_path / "out")
    code = """
import os, sys, shardctl
from shardctl.loader.blocks.memory import without_views
batch = next(iter(shardctl.open(sys.argv[1]).loader(5)))
assert not batch['x'].flags.writeable and without_views(batch)['x'].flags.writeable
os.truncate(sys.argv[1] + '/train-00000.arrow', 0)
try:
    sys.exit(without_views(batch))
except shardctl.errors.DatasetError as error:
    assert 'cut short while x was copied' in str(error)
"""
    ran = run_python(code, root)
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
