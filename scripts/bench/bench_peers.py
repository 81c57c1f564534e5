"""Rates of other tools on the same samples, beside shardctl.

    .venv/bin/python scripts/bench/bench_peers.py [CORPUS] [--folder FOLDER] [--runs 3] [--only PEER …] [--json FILE]
    .venv/bin/python scripts/bench/bench_peers.py --installed     (installs nothing)

Each peer lives in an environment of its own in FOLDER/PEER, made with pip where it is not there;
one that cannot be installed is reported with the reason, never left out in silence. FOLDER also
keeps the samples and every peer's version of them. With --installed, a peer without an environment
is looked for in the Python that runs this script. Every round runs each peer once, in turn, as a
process of its own that reads one epoch to warm up and measures the next ones. Two threads (or two
workers, where a peer has processes), batches of 256, a warm page cache.

Cases: `raw`, 224x224 RGB as it is; `jpeg`, 256x256 at quality 90, decoded and cut to 224x224;
`lines`, a million short texts. All shuffled, as well as the peer can. FFCV needs libopencv-dev and
libturbojpeg0-dev.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import HERE, options_of, save

BATCH = 256
WORKERS = 2
TORCH = "torch==2.13.0"
LINES = 1_000_000
LEAST_SECONDS = 2
CASES = ("raw", "jpeg", "lines")


@dataclass(frozen=True)
class Samples:
    """The samples, as plain files that every peer can read: raw.npy, jpeg/00000.jpg …,
    lines.txt."""

    root: Path

    def raw(self) -> Any:
        return np.load(self.root / "raw.npy", mmap_mode="r")

    def jpegs(self) -> Iterator[bytes]:
        for path in sorted((self.root / "jpeg").iterdir()):
            yield path.read_bytes()

    def lines(self) -> Iterator[str]:
        with open(self.root / "lines.txt", encoding="utf-8") as file:
            for line in file:
                yield line.rstrip("\n")

    def of(self, case: str) -> Iterable[Any]:
        return {"raw": self.raw, "jpeg": self.jpegs, "lines": self.lines}[case]()


def as_bytes(value: Any) -> bytes:
    """Return a sample of any case as bytes."""
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else value.tobytes()


def from_bytes(case: str, data: bytes, own: bool = True) -> Any:
    """Return a sample of what was stored as bytes, raw pixels in memory of its `own` or not."""
    if case == "raw":
        pixels = np.frombuffer(data, np.uint8).reshape(224, 224, 3)
        return pixels.copy() if own else pixels
    return decoded(data) if case == "jpeg" else data.decode()


def crop(pixels: Any) -> Any:
    return np.ascontiguousarray(pixels[16:240, 16:240])


def decoded(data: bytes) -> Any:
    from PIL import Image

    return crop(np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


# --- the peers: each makes its own files of the samples once, and gives the batches of an epoch (or
# their sizes)


def shardctl_peer(samples: Samples, case: str, folder: Path) -> Callable[[], Iterator[int]]:
    import pyarrow as pa
    from handmade import write_dataset

    import shardctl

    if not folder.exists():
        if case == "raw":
            columns = pa.schema(
                [("key", pa.string()), ("image", pa.fixed_shape_tensor(pa.uint8(), [224, 224, 3]))]
            )
            rows = ((str(n), pixels) for n, pixels in enumerate(samples.raw()))
            write_dataset(folder, columns, rows, 260, sample_bytes=150_528, shape=(224, 224, 3))
        elif case == "jpeg":
            shardctl.convert(samples.root / "jpeg", folder, recipe={"store": "source"}, workers=2)
        else:
            rows = ((str(n), line) for n, line in enumerate(samples.lines()))
            write_dataset(
                folder,
                pa.schema([("key", pa.string()), ("text", pa.string())]),
                rows,
                65536,
                "zstd",
                60,
            )
    column, options = (
        ("text", {}) if case == "lines" else ("image", {"crop": 224} if case == "jpeg" else {})
    )
    loader = shardctl.open(folder).loader(
        BATCH, shuffle=True, threads=WORKERS, columns=[column], **options
    )
    return lambda: (len(batch[column]) for batch in loader)


def torch_files(samples: Samples, case: str, folder: Path) -> Callable[[], Iterator[int]]:
    """Plain files (lines: one file with an index of offsets) in a torch DataLoader."""
    from torch.utils.data import DataLoader, Dataset

    if case == "raw" and not folder.exists():
        folder.mkdir()
        for number, pixels in enumerate(samples.raw()):
            (folder / f"{number:05d}.raw").write_bytes(pixels.tobytes())
    if case == "lines":
        raise NotImplementedError("a file per line is not used in practice")
    paths = sorted((folder if case == "raw" else samples.root / "jpeg").iterdir())

    class Files(Dataset):  # type: ignore[misc,type-arg]
        def __len__(self) -> int:
            return len(paths)

        def __getitem__(self, index: int) -> Any:
            return from_bytes(case, paths[index].read_bytes())

    loader = DataLoader(Files(), BATCH, shuffle=True, num_workers=WORKERS, persistent_workers=True)
    return lambda: (len(batch) for batch in loader)


def webdataset(samples: Samples, case: str, folder: Path) -> Callable[[], Iterator[int]]:
    import torch  # noqa: F401 - without it webdataset has a stand-in that reads nothing
    import webdataset as wds

    extension = {"raw": "bin", "jpeg": "jpg", "lines": "txt"}[case]
    if not folder.exists():
        folder.mkdir()
        with wds.ShardWriter(
            str(folder / "%05d.tar"), maxcount=50_000 if case == "lines" else 300, verbose=0
        ) as writer:
            for number, value in enumerate(samples.of(case)):
                writer.write({"__key__": f"{number:07d}", extension: as_bytes(value)})
    shards = sorted(map(str, folder.glob("*.tar")))
    data = (
        wds.WebDataset(
            shards,
            shardshuffle=len(shards),
            nodesplitter=wds.split_by_node,
            workersplitter=wds.split_by_worker,
        )
        .shuffle(1000)
        .to_tuple(extension)
        .map_tuple(partial(from_bytes, case))
        .batched(BATCH)
    )
    loader = wds.WebLoader(data, batch_size=None, num_workers=WORKERS, persistent_workers=True)
    return lambda: (len(batch[0]) for batch in loader)


def mosaicml(samples: Samples, case: str, folder: Path) -> Callable[[], Iterator[int]]:
    from streaming import MDSWriter, StreamingDataset
    from torch.utils.data import DataLoader

    if not folder.exists():
        column = {"raw": "ndarray:uint8:224,224,3", "jpeg": "bytes", "lines": "str"}[case]
        with MDSWriter(out=str(folder), columns={"x": column}) as writer:
            for value in samples.of(case):
                writer.write({"x": np.array(value) if case == "raw" else value})

    class Data(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: int) -> Any:
            value = super().__getitem__(index)["x"]
            return decoded(value) if case == "jpeg" else value

    data = Data(local=str(folder), shuffle=True, batch_size=BATCH)
    loader = DataLoader(data, BATCH, num_workers=WORKERS, persistent_workers=True)
    return lambda: (len(batch) for batch in loader)


_LITDATA: list[Any] = []


def _litdata_item(index: int) -> Any:
    value = _LITDATA[index]
    return np.array(value) if isinstance(value, np.ndarray) else value


def litdata(samples: Samples, case: str, folder: Path) -> Callable[[], Iterator[int]]:
    from litdata import StreamingDataLoader, StreamingDataset, optimize

    if not folder.exists():
        _LITDATA.extend(samples.of(case))
        optimize(
            _litdata_item,
            list(range(len(_LITDATA))),
            str(folder),
            chunk_bytes="64MB",
            num_workers=1,
            start_method="fork",
        )

    class Data(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            value = super().__getitem__(index)
            return decoded(value) if case == "jpeg" else value

    data = Data(str(folder), shuffle=True)
    loader = StreamingDataLoader(
        data, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True
    )
    return lambda: (len(batch) for batch in loader)


def huggingface(samples: Samples, case: str, folder: Path) -> Callable[[], Iterator[int]]:
    import datasets

    datasets.disable_progress_bars()
    if not folder.exists():
        if case == "raw":
            features = datasets.Features({"x": datasets.Array3D((224, 224, 3), "uint8")})
        else:
            features = datasets.Features(
                {"x": datasets.Image() if case == "jpeg" else datasets.Value("string")}
            )

        def rows() -> Iterator[Any]:
            for value in samples.of(case):
                yield {"x": {"bytes": value, "path": None} if case == "jpeg" else value}

        datasets.Dataset.from_generator(
            rows, features=features, cache_dir=str(folder) + "-cache"
        ).save_to_disk(str(folder))
    data = datasets.load_from_disk(str(folder))
    if case == "raw":
        data = data.with_format("numpy")
    seeds = iter(range(10**6))

    def epoch() -> Iterator[int]:
        shuffled = data.shuffle(seed=next(seeds))
        for first in range(0, len(shuffled), BATCH):
            values = shuffled[first : first + BATCH]["x"]
            yield len(
                np.stack([crop(np.asarray(image)) for image in values])
                if case == "jpeg"
                else values
            )

    return epoch


def tensorflow(samples: Samples, case: str, folder: Path) -> Callable[[], Iterator[int]]:
    """TFRecord files; `raw` as a decoded tf.data snapshot would hold it."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(WORKERS)
    tf.config.threading.set_inter_op_parallelism_threads(WORKERS)
    if not folder.exists():
        folder.mkdir()
        writers = [
            tf.io.TFRecordWriter(str(folder / f"{number:02d}.tfrecord")) for number in range(16)
        ]
        for number, value in enumerate(samples.of(case)):
            feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[as_bytes(value)]))
            example = tf.train.Example(features=tf.train.Features(feature={"x": feature}))
            writers[number % 16].write(example.SerializeToString())
        for writer in writers:
            writer.close()

    def parse(record: Any) -> Any:
        value = tf.io.parse_single_example(record, {"x": tf.io.FixedLenFeature([], tf.string)})["x"]
        if case == "raw":
            return tf.reshape(tf.io.decode_raw(value, tf.uint8), (224, 224, 3))
        return (
            tf.image.crop_to_bounding_box(tf.io.decode_jpeg(value, 3), 16, 16, 224, 224)
            if case == "jpeg"
            else value
        )

    files = tf.data.Dataset.list_files(str(folder / "*.tfrecord"), shuffle=True)
    data = files.interleave(tf.data.TFRecordDataset, cycle_length=16, num_parallel_calls=WORKERS)
    data = data.shuffle(1000).map(parse, num_parallel_calls=WORKERS).batch(BATCH).prefetch(2)
    return lambda: (len(batch) for batch in data.as_numpy_iterator())


def tf_snapshot(samples: Samples, case: str, folder: Path) -> Callable[[], Iterator[int]]:
    """What tf.data's own snapshot gives after the first epoch: decoded elements."""
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    if case != "raw":
        raise NotImplementedError("a snapshot holds what is decoded: see raw")
    table = samples.raw()
    data = tf.data.Dataset.from_generator(
        lambda: iter(table), output_signature=tf.TensorSpec((224, 224, 3), tf.uint8)
    )
    data = data.snapshot(str(folder), compression=None).shuffle(1000).batch(BATCH).prefetch(2)
    return lambda: (len(batch) for batch in data.as_numpy_iterator())


def grain(samples: Samples, case: str, folder: Path) -> Callable[[], Iterator[int]]:
    import grain.python as pygrain
    from array_record.python.array_record_module import ArrayRecordWriter

    if not folder.exists():
        folder.mkdir()
        writer = ArrayRecordWriter(str(folder / "x.array_record"), "group_size:1,uncompressed")
        for value in samples.of(case):
            writer.write(as_bytes(value))
        writer.close()
    source = pygrain.ArrayRecordDataSource([str(path) for path in folder.glob("*.array_record")])
    seeds = iter(range(10**6))

    def epoch() -> Iterator[int]:
        data = (
            pygrain.MapDataset.source(source)
            .shuffle(seed=next(seeds))
            .map(partial(from_bytes, case, own=False))
        )
        options = pygrain.ReadOptions(num_threads=WORKERS, prefetch_buffer_size=2 * BATCH)
        for batch in data.to_iter_dataset(options).batch(
            BATCH, batch_fn=list if case == "lines" else np.stack
        ):
            yield len(batch)

    return epoch


def ffcv(samples: Samples, case: str, folder: Path) -> Callable[[], Iterator[int]]:
    from ffcv.fields import NDArrayField, RGBImageField
    from ffcv.fields.decoders import CenterCropRGBImageDecoder, NDArrayDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.writer import DatasetWriter

    if case == "lines":
        raise NotImplementedError("FFCV has no text")
    path = folder.with_suffix(".beton")
    values = list(samples.of(case))

    class Data:
        def __len__(self) -> int:
            return len(values)

        def __getitem__(self, index: int) -> Any:
            if case == "raw":
                return (np.array(values[index]),)
            from PIL import Image

            return (Image.open(io.BytesIO(values[index])).convert("RGB"),)

    if not path.exists():
        field = (
            NDArrayField(np.dtype("uint8"), (224, 224, 3))
            if case == "raw"
            else RGBImageField("jpg", jpeg_quality=90)
        )
        DatasetWriter(str(path), {"x": field}, num_workers=1).from_indexed_dataset(Data())
    decoder = (
        NDArrayDecoder()
        if case == "raw"
        else CenterCropRGBImageDecoder((224, 224), ratio=224 / 256)
    )
    loader = Loader(
        str(path),
        BATCH,
        num_workers=WORKERS,
        order=OrderOption.RANDOM,
        os_cache=True,
        pipelines={"x": [decoder]},
    )
    return lambda: (len(batch[0]) for batch in loader)


@dataclass(frozen=True)
class Peer:
    """How to install a peer, and the function that reads with it."""

    read: Callable[[Samples, str, Path], Callable[[], Iterator[int]]]
    packages: tuple[str, ...]
    environment: str
    needs_torchvision: bool = False


PEERS = {
    "shardctl": Peer(shardctl_peer, (), ""),
    "files + torch DataLoader": Peer(
        torch_files, (TORCH, "webdataset", "pillow", "numpy"), "webdataset"
    ),
    "WebDataset": Peer(webdataset, (TORCH, "webdataset", "pillow", "numpy"), "webdataset"),
    "MosaicML Streaming": Peer(
        mosaicml, (TORCH, "mosaicml-streaming", "pillow", "numpy"), "mosaicml", True
    ),
    "LitData": Peer(litdata, (TORCH, "litdata", "pillow", "numpy"), "litdata", True),
    "Hugging Face datasets": Peer(huggingface, ("datasets", "pillow", "numpy"), "huggingface"),
    "tf.data TFRecord": Peer(tensorflow, ("tensorflow-cpu", "numpy", "pillow"), "tensorflow"),
    "tf.data snapshot": Peer(tf_snapshot, ("tensorflow-cpu", "numpy", "pillow"), "tensorflow"),
    "ArrayRecord + Grain": Peer(grain, ("array_record", "grain", "numpy", "pillow"), "grain"),
    "FFCV": Peer(
        ffcv,
        (
            TORCH,
            "numpy<2.2",
            "numba",
            "opencv-python-headless",
            "pandas",
            "fastargs",
            "matplotlib",
            "tqdm",
            "psutil",
            "ffcv",
        ),
        "ffcv",
        True,
    ),
}

TORCHVISION = '''
"""A stand-in for torchvision, of which there is no CPU build here: for imports alone, nothing of it is called."""
import sys, types
class _Any(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})
for _name in ("transforms", "transforms.functional", "transforms.v2", "datasets", "io", "models"):
    sys.modules["torchvision." + _name] = _Any("torchvision." + _name)
transforms, datasets, io = (sys.modules["torchvision." + name] for name in ("transforms", "datasets", "io"))
transforms.functional = sys.modules["torchvision.transforms.functional"]
__version__ = "0"
'''


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
        return
    parser = options_of(__doc__, corpus=True, runs=3)
    parser.add_argument("--folder", type=Path, default=HERE.parent.parent / "peers")
    parser.add_argument(
        "--environments", type=Path, help="where the environments are, if they are not in FOLDER"
    )
    parser.add_argument(
        "--installed",
        action="store_true",
        help="measure the peers that are installed, and install none",
    )
    parser.add_argument("--lines", type=int, default=LINES)
    parser.add_argument(
        "--seconds",
        type=float,
        default=LEAST_SECONDS,
        help="read each for so long, after the first epoch",
    )
    parser.add_argument("--only", nargs="*", default=list(PEERS))
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    make_samples(options.corpus, options.folder, options.cases, options.lines)
    environments = options.environments or options.folder
    pythons = {
        name: environment(PEERS[name], environments, options.installed) for name in options.only
    }
    results = {
        case: compare(case, pythons, options.folder, options.runs, options.seconds)
        for case in options.cases
    }
    save(options.json, results)


def environment(peer: Peer, folder: Path, installed: bool) -> Path | str:
    """Return the Python of a peer's environment, made where it is not there, or the reason why it
    cannot be."""
    root = folder / peer.environment
    python = root / "bin" / "python"
    if not peer.packages or (installed and not python.exists()):
        return Path(sys.executable)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", root], check=True)
        ran = subprocess.run(
            [python, "-m", "pip", "-q", "install", *peer.packages], capture_output=True, text=True
        )
        if ran.returncode:
            shutil.rmtree(root)
            return f"cannot be installed: {(ran.stderr.strip().splitlines() or ['?'])[-1]}"
    if peer.needs_torchvision:
        (site,) = (root / "lib").glob("python3*/site-packages")
        # a build for CUDA, which this torch refuses
        shutil.rmtree(site / "torchvision", ignore_errors=True)
        (site / "torchvision").mkdir()
        (site / "torchvision" / "__init__.py").write_text(TORCHVISION)
    return python


def compare(
    case: str, pythons: dict[str, Path | str], folder: Path, runs: int, seconds: float
) -> dict[str, Any]:
    """Measure all peers in turn, several times, and print the table."""
    rates: dict[str, list[float]] = {}
    failures = {name: python for name, python in pythons.items() if isinstance(python, str)}
    for _ in range(runs):
        for name, python in pythons.items():
            if name in failures:
                continue
            command = [python, Path(__file__).resolve(), "--child", name, case, folder, seconds]
            try:
                ran = subprocess.run(
                    list(map(str, command)), capture_output=True, text=True, timeout=900
                )
                rate = float(ran.stdout.split()[-1])
                rates.setdefault(name, []).append(rate)
            except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
                failures[name] = (
                    str(error) if isinstance(error, subprocess.TimeoutExpired) else last_line(ran)
                )
    medians = {name: statistics.median(found) for name, found in rates.items()}
    print(f"{case}:", flush=True)
    for name in pythons:
        if name in failures:
            print(f"  {name:<26} not measured: {failures[name]}")
        else:
            ratio = f"{medians['shardctl'] / medians[name]:8.1f} x" if "shardctl" in medians else ""
            print(f"  {name:<26} {medians[name]:>12,.0f}/s {ratio}", flush=True)
    return {"median": medians, "all": rates, "failures": failures}


def last_line(ran: subprocess.CompletedProcess[str]) -> str:
    return (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]


def child(name: str, case: str, folder: str, seconds: str) -> None:
    """Read one epoch, and print the rate of those that come after it, for so many seconds or one
    epoch."""
    peer = PEERS[name]
    own = Path(folder) / "data" / name.replace(" ", "_").replace("+", "and")
    own.mkdir(parents=True, exist_ok=True)
    epoch = peer.read(Samples(Path(folder) / "samples"), case, own / case)
    sum(epoch())
    samples, began = 0, time.perf_counter()
    while not samples or time.perf_counter() - began < float(seconds):
        samples += sum(epoch())
    print(samples / (time.perf_counter() - began), flush=True)
    os._exit(0)  # some leave workers behind that would keep the process from ending


def make_samples(corpus: Path, folder: Path, cases: list[str], line_count: int) -> None:
    """Write the samples of the cases that are not there yet: photos of the corpus, eight times
    over, or drawn ones."""
    files = {"raw": "raw.npy", "jpeg": "jpeg", "lines": "lines.txt"}
    missing = [case for case in cases if not (folder / "samples" / files[case]).exists()]
    if not missing:
        return
    from bench_loader import RAW, Bench

    import shardctl

    making = folder / "making"
    shutil.rmtree(making, ignore_errors=True)
    bench = Bench(corpus, making / "datasets", WORKERS, line_count)
    if "raw" in missing:
        raw = bench.as_npy(shardctl.open(bench.photos("raw", *RAW)))
        np.save(making / "raw.npy", raw)
    if "jpeg" in missing:
        (making / "jpeg").mkdir()
        encoded = shardctl.open(bench.photos("jpeg", "--crop", "256", "--store", "jpeg:90"))
        for number, sample in enumerate(encoded.loader(1, columns=["image"], decode=False)):
            (making / "jpeg" / f"{number:05d}.jpg").write_bytes(sample["image"][0])
    if "lines" in missing:
        bench.lines()
        with open(making / "lines.txt", "w", encoding="utf-8") as file:
            texts = shardctl.open(making / "datasets" / "lines").loader(4096, columns=["text"])
            lines = [line for batch in texts for line in batch["text"]]
            random.Random(0).shuffle(lines)
            file.writelines(f"{line}\n" for line in lines)
    (folder / "samples").mkdir(exist_ok=True)
    for case in missing:
        (making / files[case]).rename(folder / "samples" / files[case])
    shutil.rmtree(making)


if __name__ == "__main__":
    main()
