"""The article's experiment: epochs from raw photos, the first epoch through a snapshot, and epochs
from it; beside tf.data.

    .venv/bin/python scripts/bench/bench_snapshot.py [CORPUS] [--times 4] [--runs 3] [--files 1000000]

CORPUS has photos/ (default: $SHARDCTL_CORPUS, else ../shared/data; without it, photos that
`shardctl demo` draws). Its photos are taken so many `times`, and become raw 224x224.
Each contender runs once in every round, in turn, as a process of its own; its time is that of the epoch, from the call that begins it
to the last batch, without the start of Python and the imports. Photos/s, medians:

    raw epoch            scripts/bench/bare_images.py's work: two processes read, decode and do the steps; nothing is kept
    conversion alone     convert(), and no epoch
    first, wait=False    snapshot(wait=False): the first epoch, which reads what is finished, until the dataset is committed
    first, wait=True     snapshot(), and one epoch from what it has made
    second               an epoch from the snapshot: open, check of the sources, batches
    tf.data …            the same with tf.data.Dataset.snapshot, uncompressed, AUTOTUNE, in the environment of `make interop`

With --files only the check that nothing has changed is measured, on so many tiny files, in turn
with a bare os.scandir and stat of them, both in a process that is there already; and `shardctl
convert` of what is there as a whole command.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections import defaultdict
from pathlib import Path

from harness import (
    HERE,
    ROOT,
    SHARDCTL,
    WALK,
    done,
    folders,
    images,
    in_turn,
    options_of,
    save,
    scratch,
    seconds,
    tell,
    tiny_files,
)

TENSORFLOW = ROOT / ".interop" / "tensorflow" / "bin" / "python"

STEPS = [{"name": "resize", "size": 256}, {"name": "crop", "size": 224}]

RAW = """
import os, sys, time
from multiprocessing import Pool
from pathlib import Path
sys.path.append({here!r})
import bare_images

def made(path):
    record = dict(key=path, image=dict(bytes=Path(path).read_bytes(), path=path))
    return len(list(bare_images.steps({recipe!r}).make(record)))

paths = sorted(os.path.join(at, name) for at, _, names in os.walk({photos!r}) for name in names)
with Pool(2) as pool:
    pool.map(made, paths[:4], chunksize=1)  # the processes have their modules
    began = time.perf_counter()
    done = sum(1 for _ in pool.imap_unordered(made, paths, chunksize=8))
    print(done / (time.perf_counter() - began))
"""

SNAPSHOT = """
import sys, time
import shardctl, shardctl.making.snapshot, shardctl.loader
options = dict(recipe={recipe!r}, labels="none", progress=False)
began = time.perf_counter()
ds = shardctl.snapshot({out!r}, {photos!r}, wait={wait}, **options)
count = sum(len(batch["key"]) for batch in ds.loader(64, shuffle=True))
print(count / (time.perf_counter() - began))
"""

CONVERT = """
import sys, time
import shardctl, shardctl.making.convert
began = time.perf_counter()
print(shardctl.convert({photos!r}, {out!r}, {recipe!r}, labels="none").samples / (time.perf_counter() - began))
"""

TF = """
import os, sys, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf
def load(path):
    image = tf.io.decode_image(tf.io.read_file(path), channels=3, expand_animations=False)
    size = tf.cast(tf.shape(image)[:2], tf.float32)
    scaled = tf.cast(tf.round(size * (256 / tf.reduce_min(size))), tf.int32)
    image = tf.image.resize(image, scaled, antialias=True)
    return tf.cast(tf.image.resize_with_crop_or_pad(image, 224, 224), tf.uint8)
files = sorted(os.path.join(at, each) for at, _, names in os.walk({photos!r}) for each in names)
data = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files), seed=0, reshuffle_each_iteration=False)
data = data.map(load, num_parallel_calls=tf.data.AUTOTUNE)
data = data.snapshot({out!r}, compression=None)
data = data.shuffle(512).batch(64).prefetch(tf.data.AUTOTUNE)
began = time.perf_counter()
count = sum(int(batch.shape[0]) for batch in data)
print(count / (time.perf_counter() - began))
"""

CHECK = """
import sys, time
import shardctl, shardctl.making.snapshot
given = dict(recipe={recipe!r}, progress=False)
began = time.perf_counter()
shardctl.snapshot({out!r}, {source!r}, **given)
print(time.perf_counter() - began)
"""


def main() -> None:
    parser = options_of(__doc__, corpus=True, runs=3, times=4)
    parser.add_argument("--files", type=int)
    options = parser.parse_args()
    with scratch() as folder:
        if options.files:
            found = check(options.corpus, options.files, options.runs, folder)
        else:
            photos = copies(options.corpus, options.times, folder)
            found = epochs(photos, options.runs, folder)
    tell(found, "s" if options.files else "photos/s")
    save(options.json, found)


def copies(corpus: Path, times: int, folder: Path) -> Path:
    """Copy the photos so many times into one folder, without those that are no colour photos that
    all can read."""
    photos = folder / "photos"
    photos.mkdir()
    for number, path in enumerate(images(folders(corpus, folder)[0])):
        for copy in range(times if path.lower().endswith((".jpg", ".jpeg")) else 0):
            shutil.copyfile(path, photos / f"{copy}-{number:05}.jpg")
    return photos


def printed(script: str, python: Path | str = sys.executable) -> float:
    """Run a script as a process, and return the number that it prints last."""
    return float(done(python, "-c", script).split()[-1])


def epochs(photos: Path, runs: int, folder: Path) -> dict[str, list[float]]:
    recipe_file = folder / "recipe.toml"
    steps = "\n".join(
        "[[transform]]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in step.items())
        for step in STEPS
    )
    recipe_file.write_text(f'store = "raw"\n{steps}\n')
    found: dict[str, list[float]] = defaultdict(list)
    given = {"photos": str(photos), "recipe": {"store": "raw", "transform": STEPS}}
    raw = RAW.format(here=str(HERE), photos=str(photos), recipe=str(recipe_file))
    outs = {each: folder / each for each in ("converted", "arriving", "waiting", "tensorflow")}
    convert = CONVERT.format(**given, out=str(outs["converted"]))
    arriving = SNAPSHOT.format(**given, out=str(outs["arriving"]), wait=False)
    waiting = SNAPSHOT.format(**given, out=str(outs["waiting"]), wait=True)
    for _ in range(runs):
        for out in outs.values():
            shutil.rmtree(out, ignore_errors=True)
        found["raw epoch"].append(printed(raw))
        found["conversion alone"].append(printed(convert))
        found["first, wait=False"].append(printed(arriving))
        found["first, wait=True"].append(printed(waiting))
        found["second"].append(printed(waiting))
        if TENSORFLOW.exists():
            tensorflow = TF.format(photos=str(photos), out=str(outs["tensorflow"]))
            found["tf.data first"].append(printed(tensorflow, TENSORFLOW))
            found["tf.data second"].append(printed(tensorflow, TENSORFLOW))
    return found


def check(corpus: Path, count: int, runs: int, folder: Path) -> dict[str, list[float]]:
    source, out = folder / "in", folder / "out"
    tiny_files(corpus, count, source)
    recipe = {"store": "raw", "transform": [{"name": "resize", "size": "32x32"}]}
    script = CHECK.format(recipe=recipe, out=str(out), source=str(source))
    printed(script)
    again = (*SHARDCTL, "convert", source, out, "--store", "raw", "--resize", "32x32")
    return in_turn(
        {
            "bare walk": lambda: float(done(sys.executable, "-c", WALK, source)),
            "snapshot() of what is there": lambda: printed(script),
            "shardctl convert, again": lambda: seconds(lambda: done(*again)),
        },
        runs,
    )


if __name__ == "__main__":
    main()
