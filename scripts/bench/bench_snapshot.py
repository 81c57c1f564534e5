"""The article's experiment: epochs from raw photos, the first epoch through a snapshot, and epochs
from it; beside tf.data.

    .venv/bin/python scripts/bench/bench_snapshot.py [CORPUS] [--times 4] [--runs 3] [--files 1000000]

CORPUS has photos/ (default: $SHARDCTL_CORPUS, else ../shared/data; without it, photos that
`shardctl demo` draws). Its photos are taken so many `times`, and become raw 224x224.
Each contender runs once in every round, in turn, as a process of its own; its time is that of the epoch, from the call that begins it
to the last batch, without the start of Python and the imports. Photos/s, medians:

    raw epoch            scripts/bench/bare_pool.py's work: two processes read, decode and do the steps; nothing is kept
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
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from bench_update import WALK, sources
from harness import options_of, save
from processes import as_installed

HERE = Path(__file__).resolve().parent
TENSORFLOW = HERE.parent.parent / ".interop" / "tensorflow" / "bin" / "python"

STEPS = [{"name": "resize", "size": 256}, {"name": "crop", "size": 224}]

RAW = """
import os, sys, time
from multiprocessing import Pool
from pathlib import Path
import bare_pool
from shardctl.images.codecs import image

def made(path):
    steps, _ = bare_pool.steps({recipe!r})
    opened = image.open_image(Path(path).read_bytes())
    return sum(len(picture.image.tobytes()) for picture in steps.pictures(opened, path, lambda stage: None))

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

TIMED_WALK = (
    "import sys, time\nbegan = time.perf_counter()\n"
    + WALK
    + "print(time.perf_counter() - began)\n"
)


def main() -> None:
    parser = options_of(__doc__, corpus=True, runs=3)
    parser.add_argument("--times", type=int, default=4)
    parser.add_argument("--files", type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=HERE.parent.parent) as scratch:
        if options.files:
            found = check(Path(options.corpus), options.files, options.runs, Path(scratch))
        else:
            photos = copies(Path(options.corpus), options.times, Path(scratch))
            found = epochs(photos, options.runs, Path(scratch))
    for name, values in found.items():
        print(
            f"{name:30} {statistics.median(values):10.3f}   ({min(values):.3f} to "
            f"{max(values):.3f})"
        )
    save(options.json, found)


def copies(corpus: Path, times: int, scratch: Path) -> Path:
    """Copy the photos so many times into one folder, without those that are no colour photos that
    all can read."""
    photos = corpus / "photos"
    if not photos.is_dir():
        subprocess.run(
            [sys.executable, "-m", "shardctl", "demo", str(scratch / "demo")],
            check=True,
            capture_output=True,
        )
        photos = scratch / "demo" / "photos"
    folder = scratch / "photos"
    folder.mkdir()
    found = sorted(path for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    for number, path in enumerate(found):
        for copy in range(times):
            shutil.copyfile(path, folder / f"{copy}-{number:05}.jpg")
    return folder


def run(python: Path | str, script: str) -> float:
    """Run a script as a process, and return the number that it prints last."""
    # bare_pool is there
    modules = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**as_installed(), "PYTHONPATH": modules}
    ran = subprocess.run(
        [str(python), "-c", script], capture_output=True, text=True, env=environment, timeout=300
    )
    if ran.returncode:
        raise SystemExit(ran.stderr)
    return float(ran.stdout.split()[-1])


def epochs(photos: Path, runs: int, scratch: Path) -> dict[str, list[float]]:
    recipe_file = scratch / "recipe.toml"
    steps = "\n".join(
        "[[transform]]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in step.items())
        for step in STEPS
    )
    recipe_file.write_text(f'store = "raw"\n{steps}\n')
    found: dict[str, list[float]] = defaultdict(list)
    given = {"photos": str(photos), "recipe": {"store": "raw", "transform": STEPS}}
    for _ in range(runs):
        outs = {each: scratch / each for each in ("converted", "arriving", "waiting", "tensorflow")}
        for out in outs.values():
            shutil.rmtree(out, ignore_errors=True)
        raw = RAW.format(photos=str(photos), recipe=str(recipe_file))
        found["raw epoch"].append(run(sys.executable, raw))
        found["conversion alone"].append(
            run(sys.executable, CONVERT.format(**given, out=str(outs["converted"])))
        )
        arriving = SNAPSHOT.format(**given, out=str(outs["arriving"]), wait=False)
        found["first, wait=False"].append(run(sys.executable, arriving))
        waiting = SNAPSHOT.format(**given, out=str(outs["waiting"]), wait=True)
        found["first, wait=True"].append(run(sys.executable, waiting))
        found["second"].append(run(sys.executable, waiting))
        if TENSORFLOW.exists():
            tensorflow = TF.format(photos=str(photos), out=str(outs["tensorflow"]))
            found["tf.data first"].append(run(TENSORFLOW, tensorflow))
            found["tf.data second"].append(run(TENSORFLOW, tensorflow))
    return found


def check(corpus: Path, count: int, runs: int, scratch: Path) -> dict[str, list[float]]:
    sources(corpus, count, scratch)
    recipe = {"store": "raw", "transform": [{"name": "resize", "size": "32x32"}]}
    script = CHECK.format(recipe=recipe, out=str(scratch / "out"), source=str(scratch / "in"))
    run(sys.executable, script)
    again = [
        sys.executable,
        "-m",
        "shardctl",
        "convert",
        *map(str, (scratch / "in", scratch / "out")),
    ]
    again += ["--store", "raw", "--resize", "32x32"]
    found: dict[str, list[float]] = defaultdict(list)
    for _ in range(runs):
        found["bare walk, s"].append(
            run(sys.executable, TIMED_WALK.replace("sys.argv[1]", repr(str(scratch / "in"))))
        )
        found["snapshot() of what is there, s"].append(run(sys.executable, script))
        began = time.perf_counter()
        subprocess.run(again, check=True, capture_output=True, env=as_installed())
        found["shardctl convert, again, s"].append(time.perf_counter() - began)
    return found


if __name__ == "__main__":
    main()
