"""Write tests/interop/samples: small files by the real writers of other formats, and in expected/
what they read in them.

    make interop                                                        makes the environments of both, below .interop
    .interop/tensorflow/bin/python scripts/data/write_interop_fixtures.py    WebDataset, TFRecord, TFDS, Hugging Face datasets
    .interop/torch/bin/python scripts/data/write_interop_fixtures.py         MDS

All content is made up. The files are stored, so that the tests need none of these packages; a new
release of one is a reason to write them anew, and to look at what differs.
"""

from __future__ import annotations

import base64
import gzip
import importlib.util
import io
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

OUT = Path(__file__).resolve().parents[2] / "tests" / "interop" / "samples"


def plain(value: Any) -> Any:
    """Return a value as JSON has it: bytes as {"base64": …}, arrays as lists, what is no number as
    its name."""
    if isinstance(value, bytes | bytearray):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return str(value) if isinstance(value, Decimal) else value


def expect(name: str, records: dict[str, list[Any]]) -> None:
    """Write what the real reader reads in each file of a folder, a record per line; not into it: it
    would be an input."""
    lines = {
        file: ",\n".join(json.dumps(plain(each), ensure_ascii=False) for each in rows)
        for file, rows in records.items()
    }
    files = ",\n".join(f"{json.dumps(file)}: [\n{rows}\n]" for file, rows in lines.items())
    (OUT / "expected").mkdir(parents=True, exist_ok=True)
    (OUT / "expected" / f"{name}.json").write_text(f"{{\n{files}\n}}\n", encoding="utf-8")


def made_anew(name: str) -> Path:
    shutil.rmtree(OUT / name, ignore_errors=True)
    (OUT / name).mkdir(parents=True)
    return OUT / name


def picture(seed: int, mode: str = "RGB", form: str = "png") -> bytes:
    from PIL import Image

    size = (5 + seed, 4) if mode == "L" else (5 + seed, 4, 3)
    pixels = np.random.default_rng(seed).integers(0, 255, size, dtype=np.uint8)
    sink = io.BytesIO()
    Image.fromarray(pixels, mode).save(sink, form)
    return sink.getvalue()


# --- WebDataset ---


def tar_samples() -> Iterator[dict[str, Any]]:
    for n in range(3):
        sample = {
            "__key__": f"part/v1.{n % 2}/img{n:03}",
            "png": picture(n),
            "cls": n % 3,
            "json": {"caption": f"tëxt {n}", "size": [n, n + 1], "score": n / 2},
            "txt": f"line {n}\nänd another",
            "emb.npy": np.arange(n * 2, dtype=np.float32).reshape(n, 2),
            "raw": bytes([0xFF, n]),
        }
        if n == 1:
            del sample["txt"]
        yield sample


def write_webdataset() -> None:
    import webdataset

    folder = made_anew("webdataset")
    records = {}
    for name, options in (("plain-000000.tar", {}), ("packed.tar.gz", {"compress": True})):
        path = folder / name
        with webdataset.TarWriter(str(path), mtime=0, user="", group="", **options) as sink:
            for sample in tar_samples():
                sink.write(sample)
        if path.suffix == ".gz":  # no time in it: the same bytes each time
            path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), mtime=0))
        dataset = webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False).decode()
        records[name] = [
            {name: part for name, part in each.items() if name not in ("__url__", "__local_path__")}
            for each in dataset
        ]
    expect("webdataset", records)
    names = [
        "a.jpg",
        "a/b.c/d.e.jpg",
        "./a.jpg",
        "a.b.c",
        "a/.b",
        ".a",
        "a",
        "a/",
        "a.",
        "x/a.",
        "A.JPG",
        "a b.cls",
        "/abs/a.txt",
    ]
    split = {name: list(webdataset.tariterators.base_plus_ext(name)) for name in names}
    (OUT / "expected" / "webdataset_names.json").write_text(json.dumps(split, indent=1) + "\n")


# --- TFRecord ---


def examples() -> Iterator[dict[str, Any]]:
    """Features of all kinds: absent, empty, one value, several; bytes that are text and that are
    not."""
    for n in range(5):
        features: dict[str, Any] = {
            "id": [n],
            "score": [n / 3],
            "name": [f"nämé {n}".encode()],
            "data": [bytes([0xFF, n])],
            "values": list(range(n)),
            "words": [b"a", b"b"][: n % 3],
            "mixed": [b"\xfe" if n == 3 else b"text"],
            "sometimes_one": [0.5] * (1 + n % 2),
        }
        if n % 2:
            features["odd"] = [-(2**63) if n == 1 else 2**63 - 1]
        yield features


def feature(values: list[Any]) -> Any:
    import tensorflow as tf

    if values and isinstance(values[0], bytes):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
    if values and isinstance(values[0], float):
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def read_examples(path: Path, compression: str, sequences: bool) -> list[Any]:
    import tensorflow as tf

    def values(each: Any) -> list[Any]:
        return list(getattr(each, each.WhichOneof("kind")).value)

    records = []
    for data in tf.data.TFRecordDataset(str(path), compression_type=compression):
        if sequences:
            read = tf.train.SequenceExample.FromString(data.numpy())
            record = {name: values(each) for name, each in sorted(read.context.feature.items())}
            lists = sorted(read.feature_lists.feature_list.items())
            records.append(
                record | {name: [values(each) for each in steps.feature] for name, steps in lists}
            )
        else:
            read = tf.train.Example.FromString(data.numpy())
            records.append(
                {name: values(each) for name, each in sorted(read.features.feature.items())}
            )
    return records


def write_tfrecord() -> None:
    import tensorflow as tf

    folder = made_anew("tfrecord")
    records = {}
    names = {"plain.tfrecord": "", "gzip.tfrecord.gz": "GZIP", "zlib-00000-of-00001": "ZLIB"}
    for name, compression in names.items():
        with tf.io.TFRecordWriter(str(folder / name), options=compression) as sink:
            for features in examples():
                made = tf.train.Features(
                    feature={name: feature(values) for name, values in features.items()}
                )
                sink.write(tf.train.Example(features=made).SerializeToString(deterministic=True))
        records[name] = read_examples(folder / name, compression, False)
    with tf.io.TFRecordWriter(str(folder / "sequence.tfrecord")) as sink:
        for n in range(3):
            context = tf.train.Features(feature={"id": feature([n]), "who": feature([b"x"])})
            steps = tf.train.FeatureList(feature=[feature([float(m)] * 2) for m in range(n)])
            words = tf.train.FeatureList(feature=[feature([b"w%d" % m]) for m in range(n)])
            lists = tf.train.FeatureLists(feature_list={"steps": steps, "words": words})
            sink.write(
                tf.train.SequenceExample(context=context, feature_lists=lists).SerializeToString(
                    deterministic=True
                )
            )
    records["sequence.tfrecord"] = read_examples(folder / "sequence.tfrecord", "", True)
    expect("tfrecord", records)


# --- TFDS ---


def write_tfds() -> None:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf
    import tensorflow_datasets as tfds

    of = tfds.features
    boxes = {
        "bbox": of.BBoxFeature(),
        "label": of.ClassLabel(names=["a", "b"]),
        "points": of.Sequence(tf.float32),
    }
    features = of.FeaturesDict(
        {
            "image": of.Image(shape=(None, None, 3), encoding_format="png"),
            "label": of.ClassLabel(names=["zebra", "ant", "a cow"]),
            "text": of.Text(),
            "double": tf.float64,
            "flag": tf.bool,
            "small": tf.uint8,
            "large": tf.uint64,
            "vector": of.Tensor(shape=(3,), dtype=tf.float32),
            "matrix": of.Tensor(shape=(2, 2), dtype=tf.int32),
            "rows": of.Tensor(shape=(None, 2), dtype=tf.float32),
            "grid_bytes": of.Tensor(shape=(None, None), dtype=tf.float32, encoding="bytes"),
            "packed": of.Tensor(shape=(2, 2), dtype=tf.int16, encoding="zlib"),
            "list": of.Sequence(tf.int64),
            "texts": of.Sequence(of.Text()),
            "pairs": of.Sequence(of.Tensor(shape=(2,), dtype=tf.int64)),
            "ragged": of.Sequence(of.Sequence(tf.int64)),
            "objects": of.Sequence(boxes),
            "nested": {"a": tf.int64, "b": {"c": of.Text()}},
            "pictures": of.Sequence(of.Image(shape=(None, None, 1), encoding_format="png")),
        }
    )

    class Toy(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
        VERSION = tfds.core.Version("1.0.0")
        name = "toy"

        def _info(self) -> Any:
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, _: Any) -> Any:
            return {
                "train": self._generate_examples(4),
                "test": self._generate_examples(2),
                "unsupervised": self._generate_examples(1),
            }

        def _generate_examples(self, count: int) -> Iterator[Any]:
            random = np.random.default_rng(count)
            for i in range(count):
                yield (
                    f"k{i}",
                    {
                        "image": random.integers(0, 255, (3 + i, 4, 3), dtype=np.uint8),
                        "label": i % 3,
                        "text": f"tëxt {i}",
                        "double": 0.5 * i,
                        "flag": i % 2 == 0,
                        "small": i,
                        "large": 2**64 - 1 - i,
                        "vector": [i, 1, 2],
                        "matrix": [[i, 1], [2, 3]],
                        "rows": random.integers(0, 9, (i, 2)).astype(np.float32),
                        "grid_bytes": random.integers(0, 9, (i, i + 1)).astype(np.float32),
                        "packed": np.full((2, 2), i, np.int16),
                        "list": list(range(i)),
                        "texts": ["ä"] * i,
                        "pairs": [[j, -j] for j in range(i)],
                        "ragged": [[j] * j for j in range(i)],
                        "objects": [
                            {
                                "bbox": of.BBox(0.0, 0.25, 0.5, 1.0),
                                "label": j % 2,
                                "points": [1.0] * j,
                            }
                            for j in range(i)
                        ],
                        "nested": {"a": i, "b": {"c": "q"}},
                        "pictures": [
                            random.integers(0, 255, (2, 3, 1), dtype=np.uint8) for _ in range(i)
                        ],
                    },
                )

    folder = made_anew("tfds")
    with tempfile.TemporaryDirectory() as scratch:
        builder = Toy(data_dir=scratch)
        builder.download_and_prepare()
        for path in Path(builder.data_dir).iterdir():
            shutil.copy(path, folder)
    decoders = {"image": tfds.decode.SkipDecoding(), "pictures": tfds.decode.SkipDecoding()}
    read = tfds.builder_from_directory(str(folder))
    records = {}
    for split in read.info.splits:
        rows = tfds.as_numpy(read.as_dataset(split=split, decoders=decoders))
        records[split] = [tfds_value(row) for row in rows]
    expect("tfds", records)


def tfds_value(value: Any) -> Any:
    """Return what TFDS read with ragged tensors as lists, and bytes that are text as text."""
    if isinstance(value, dict):
        return {name: tfds_value(part) for name, part in value.items()}
    if hasattr(value, "to_list"):  # a ragged tensor
        return value.to_list()
    if isinstance(value, np.ndarray):
        return tfds_value(value.tolist())
    if isinstance(value, list):
        return [tfds_value(part) for part in value]
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value


# --- Hugging Face datasets ---


def write_huggingface() -> None:
    import datasets

    folder = made_anew("huggingface")
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["zebra", "ant"]),
            "coarse": datasets.ClassLabel(names=["animal", "other", "third"]),
            "text": datasets.Value("string"),
            "tags": datasets.Sequence(datasets.Value("int32")),
        }
    )

    def rows(count: int) -> dict[str, list[Any]]:
        return {
            "image": [{"bytes": picture(n), "path": f"{n}.png"} for n in range(count)],
            "label": [n % 3 - 1 for n in range(count)],  # -1 stands for no label
            "coarse": [n % 3 for n in range(count)],
            "text": [f"tëxt {n}" for n in range(count)],
            "tags": [list(range(n)) for n in range(count)],
        }

    splits = {
        name: datasets.Dataset.from_dict(rows(count), features=features)
        for name, count in (("train", 4), ("test", 2))
    }
    datasets.DatasetDict(splits).save_to_disk(str(folder / "disk"))
    (folder / "repository" / "data").mkdir(parents=True)
    for name, split in splits.items():
        split.to_parquet(str(folder / "repository" / "data" / f"{name}-00000-of-00001.parquet"))
    (folder / "repository" / "README.md").write_text("---\nlicense: cc0-1.0\n---\n# Made up\n")


# --- MDS ---


def mds_samples() -> Iterator[dict[str, Any]]:
    from PIL import Image

    for n in range(5):
        yield {
            "bytes": bytes([0xFF, n]),
            "str": f"tëxt {n}",
            "int": -n,
            "uint8": 250 + n,
            "uint64": 2**64 - 1 - n,
            "int8": -n,
            "int16": n,
            "float16": n / 2,
            "float32": n / 4,
            "float64": n / 3,
            "str_int": 10 ** (n + 1),
            "str_float": n / 7,
            "str_decimal": Decimal(n) / 8,
            "array": np.arange(
                n + 1, dtype=[np.uint8, np.int16, np.float32, np.int64, np.float16][n]
            ),
            "matrix": np.arange(2 * (n + 1), dtype=np.float32).reshape(n + 1, 2),
            "fixed": np.full((2, 3), n, np.int32),
            "long": np.full((1, 300), n, np.uint8),
            "png": Image.open(io.BytesIO(picture(n, "L"))),
            "jpeg": Image.open(io.BytesIO(picture(n, "L"))),
            "jpegs": [picture(m, "L", "jpeg") for m in range(n + 1)],
            "pngs": [Image.open(io.BytesIO(picture(m, "L"))) for m in range(n)],
            "json": {"a": [n, None, {"b": "ü"}], "c": n / 2},
        }


_OF_COLUMNS = {
    "array": "ndarray",
    "matrix": "ndarray:float32",
    "fixed": "ndarray:int32:2,3",
    "long": "ndarray:uint8",
    "jpegs": "jpeg_array",
    "pngs": "list[png]",
}
"""The encodings of columns that are not called like theirs."""


def write_mds() -> None:
    import torch

    # PyPI's torchvision asks for these of a build with CUDA
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    from streaming import MDSWriter
    from streaming.base.format import reader_from_json
    from streaming.base.format.mds import encodings

    encodings.JPEG.decode = encodings.PNG.decode = lambda self, data: data  # type: ignore[method-assign]
    folder = made_anew("mds")
    columns = {name: _OF_COLUMNS.get(name, name) for name in next(mds_samples())}
    records = {}
    for name, compression in (("plain", None), ("packed", "zstd"), ("pickles", None)):
        of = {"pickle": "pkl", "id": "int"} if name == "pickles" else columns
        options: dict[str, Any] = {"size_limit": 4 << 10, "hashes": ["sha1", "xxh64"]}
        with MDSWriter(
            out=str(folder / name), columns=of, compression=compression, **options
        ) as sink:
            for number, sample in enumerate(mds_samples()):
                sink.write({"pickle": [number], "id": number} if name == "pickles" else sample)
    for shard in json.loads((folder / "plain" / "index.json").read_text())["shards"]:
        reader = reader_from_json(str(folder / "plain"), "", shard)
        records[f"plain/{shard['raw_data']['basename']}"] = [
            reader.get_item(n) for n in range(reader.size)
        ]
    expect("mds", records)


def write_recordio() -> None:
    """As dmlc-core writes it (src/recordio.cc): there is no wheel of MXNet for this Python."""
    folder = made_anew("recordio")
    magic = struct.pack("<I", 0xCED7230A)

    def written(data: bytes) -> bytes:
        parts, begin = [], 0
        for at in range(0, len(data) // 4 * 4, 4):
            if data[at : at + 4] == magic:
                parts.append(data[begin:at])
                begin = at + 4
        parts.append(data[begin:])
        kinds = [0] if len(parts) == 1 else [1, *[2] * (len(parts) - 2), 3]
        heads = [
            magic + struct.pack("<I", kind << 29 | len(part))
            for kind, part in zip(kinds, parts, strict=True)
        ]
        return b"".join(
            head + part + bytes(-len(part) % 4) for head, part in zip(heads, parts, strict=True)
        )

    payloads = [
        b"",
        b"abc",
        magic,
        magic * 3,
        b"wxyz" + magic + b"tail!",
        b"a" + magic,
        b"more than an image header" * 3,
    ]
    (folder / "plain.rec").write_bytes(b"".join(map(written, payloads)))
    images = [struct.pack("<IfQQ", 0, n, n, 0) + picture(n) for n in range(3)]
    images.append(struct.pack("<IfQQ", 2, 0, 3, 0) + struct.pack("<2f", 0.5, 2) + picture(3))
    (folder / "images.rec").write_bytes(b"".join(map(written, images)))
    read: list[Any] = [{"id": n, "label": n, "image": picture(n)} for n in range(3)]
    read.append({"id": 3, "label": [0.5, 2], "image": picture(3)})
    expect("recordio", {"plain.rec": [{"data": each} for each in payloads], "images.rec": read})


def main() -> None:
    has = importlib.util.find_spec
    if has("tensorflow"):
        write_webdataset()
        write_tfrecord()
        write_tfds()
        write_huggingface()
        write_recordio()
    if has("streaming"):
        write_mds()


if __name__ == "__main__":
    main()
