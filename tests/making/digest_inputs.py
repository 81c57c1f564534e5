"""Small inputs in every format that `shardctl convert` reads, for test_same_digests.py.

Each function writes one source into the folder that it is given, or below it. The content is the same in every
run. Nothing of shardctl is imported, so that these files stay the same when shardctl changes.
"""

from __future__ import annotations

import base64
import bz2
import gzip
import io
import json
import lzma
import os
import struct
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import zstandard
from PIL import Image
from tars import tar

CLASSES = ("cat", "dog", "owl")

zstd = zstandard.ZstdCompressor(3).compress

WORDS = (
    "the of and to have with that be snow river stone light morning window garden letter engine "
    "copper market winter "
    "yellow silver paper table water north bridge forest music number answer village Straße café "
    "naïve été"
).split()


# --- content ---


def pixels(number: int, size: tuple[int, int] = (24, 18)) -> np.ndarray:  # type: ignore[type-arg]
    """Return (height, width, 3) uint8: a smooth picture with a block of another colour, another one
    for each number.

    It is made of whole numbers, without a random generator, so that no version of numpy changes it.
    """
    width, height = size
    y, x = np.mgrid[0:height, 0:width]
    planes = [(x * (5 + number) + y * (3 + k) + 40 * k + 17 * number) % 256 for k in range(3)]
    picture = np.stack(planes, axis=2).astype(np.uint8)
    picture[height // 4 : height // 2, width // 4 : width // 2] = (
        30 * number % 256,
        200,
        255 - 20 * number % 256,
    )
    return picture


def picture(
    number: int,
    form: str = "JPEG",
    mode: str = "RGB",
    size: tuple[int, int] = (24, 18),
    **options: Any,
) -> bytes:
    """Return an encoded image."""
    target = io.BytesIO()
    image = Image.fromarray(pixels(number, size))
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257)
    elif mode == "P":
        image = image.quantize(16)
    else:
        image = image.convert(mode)
    image.save(target, form, **options)
    return target.getvalue()


def mask_picture(number: int, size: tuple[int, int] = (24, 18)) -> bytes:
    """Return a PNG with a palette, with the numbers 0 to 2."""
    width, height = size
    values = np.zeros((height, width), np.uint8)
    values[height // 4 : height // 2 + number % 3, width // 4 : width // 2] = 1 + number % 2
    image = Image.frombytes("P", size, values.tobytes())
    image.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0])
    target = io.BytesIO()
    image.save(target, "PNG")
    return target.getvalue()


def sentence(number: int, words: int = 12) -> str:
    """Return a sentence of so many words, another one for each number."""
    state, found = number * 7919 + 13, []
    for _ in range(words):
        state = (state * 1103515245 + 12345) % 2**31
        found.append(WORDS[(state >> 16) % len(WORDS)])
    return " ".join(found).capitalize() + "."


def document(number: int) -> str:
    """Return a text of some paragraphs with lines."""
    paragraphs = [
        "\n".join(sentence(number * 100 + p * 10 + line, 6 + line) for line in range(3))
        for p in range(1 + number % 3)
    ]
    return "\n\n".join(paragraphs) + "\n"


def write(path: Path, data: bytes | str) -> Path:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def lines(records: Iterable[Any]) -> str:
    """Return JSON lines."""
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def row(number: int) -> dict[str, Any]:
    """Return a record with values of many types, and one that is missing now and then."""
    return {
        "id": f"r{number:03}",
        "text": sentence(number),
        "count": number * number,
        "share": number / 8,
        "good": number % 2 == 0,
        "tags": [f"t{k}" for k in range(number % 3)],
        "info": {"width": number, "name": None if number % 4 == 3 else f"n{number}"},
        "label": CLASSES[number % 3],
    }


# --- images ---


def photos(root: Path) -> None:
    """Folders of three classes, with images of all usual formats and modes. One is truncated."""
    exif = Image.Exif()
    exif[0x0112], exif[0x0132] = 6, "2026:01:02 03:04:05"
    files = {
        "cat/0.jpg": picture(0, quality=90),
        "cat/1.png": picture(1, "PNG"),
        "cat/2.webp": picture(2, "WEBP", lossless=True),
        "cat/3.bmp": picture(3, "BMP"),
        "cat/4.jpg": picture(4, quality=80, subsampling=0, size=(31, 17)),
        "dog/0.jpg": picture(5, progressive=True, size=(40, 30)),
        "dog/1.jpg": picture(6, exif=exif),
        "dog/2.gif": picture(7, "GIF"),
        "dog/3.tif": picture(8, "TIFF"),
        "dog/4.ppm": picture(9, "PPM"),
        "dog/5.tga": picture(17, "TGA"),
        "owl/0.jpg": picture(10, mode="L"),
        "owl/1.png": picture(11, "PNG", "RGBA"),
        "owl/2.png": picture(12, "PNG", "P"),
        "owl/3.png": picture(13, "PNG", "I;16"),
        "owl/4.jpg": picture(14, mode="CMYK"),
        "owl/5.webp": picture(15, "WEBP", quality=70),
        "owl/6.jpg": picture(16, size=(33, 33))[:-60],
    }
    for name, data in files.items():
        write(root / name, data)


def plain_photos(root: Path, count: int = 12) -> list[str]:
    """A flat folder of JPEG and PNG images, whose names are returned."""
    names = [f"{number:02}.{'png' if number % 2 else 'jpg'}" for number in range(count)]
    for number, name in enumerate(names):
        write(root / name, picture(number, "PNG" if number % 2 else "JPEG"))
    return names


def split_photos(root: Path) -> None:
    """Folders train and val, with folders of classes."""
    for number in range(12):
        split = "val" if number % 4 == 3 else "train"
        write(root / split / CLASSES[number % 3] / f"{number:02}.jpg", picture(number))


def labelled_photos(root: Path) -> None:
    """A flat folder with a labels.csv that has labels, splits and columns of numbers and text."""
    table = ["file_name,label,split,score,count,note"]
    for number, name in enumerate(plain_photos(root)):
        label = "" if number == 5 else CLASSES[number % 3]
        split = "val" if number % 4 == 1 else "train"
        table.append(
            f'{name},{label},{split},{number / 4},{"NA" if number == 7 else number},"a, '
            f'""{number}"""'
        )
    write(root / "labels.csv", "\n".join(table) + "\n")


def repeated_photos(root: Path) -> None:
    """Images of which some are there twice, or look like others."""
    for number in range(8):
        write(root / f"a{number}.png", picture(number, "PNG"))
    write(root / "b0.png", picture(0, "PNG"))
    write(root / "b1.jpg", picture(1, quality=95))
    write(root / "b2.jpg", picture(2, quality=40))
    write(root / "c.png", picture(9, "PNG", size=(90, 60)))


# --- annotations ---


def coco(root: Path) -> None:
    """Images with boxes, polygons, runs, crowds and keypoints, and captions."""
    images = [
        {"id": 10 + n, "file_name": name, "width": 24, "height": 18}
        for n, name in enumerate(plain_photos(root / "images", 8))
    ]
    objects: list[dict[str, Any]] = []
    for n in range(7):
        one = {
            "id": 100 + n,
            "image_id": 10 + n,
            "category_id": 3,
            "bbox": [2 + n, 3, 9.5, 8],
            "area": 60 + n,
            "iscrowd": 0,
        }
        one["segmentation"] = [[2 + n, 3, 11.5 + n, 3, 11.5 + n, 11, 2 + n, 11]]
        one["keypoints"], one["num_keypoints"] = [4 + n, 5, 2, 8 + n, 5, 1, 0, 0, 0], 2
        objects.append(one)
        if n % 2:
            runs = {
                "size": [18, 24],
                "counts": [18 * 4 + 5, 6, 12, 6, 12, 6, 18 * 24 - 18 * 4 - 47],
            }
            many = {
                "id": 200 + n,
                "image_id": 10 + n,
                "category_id": 7,
                "bbox": [4, 5, 3, 6],
                "area": 18,
                "iscrowd": 1,
            }
            objects.append({**many, "segmentation": runs})
    points = {"keypoints": ["nose", "left_ear", "right_ear"], "skeleton": [[1, 2], [1, 3]]}
    categories = [
        {"id": 3, "name": "cat", **points},
        {"id": 7, "name": "dog", "supercategory": "animal"},
    ]
    record = {
        "info": {"year": 2026},
        "images": images,
        "annotations": objects,
        "categories": categories,
    }
    write(root / "instances.json", json.dumps(record))
    said = [{"id": n, "image_id": 10 + n // 2, "caption": sentence(n, 5)} for n in range(10)]
    write(root / "captions.json", json.dumps({"images": images, "annotations": said}))


def yolo(root: Path) -> None:
    """images/ and labels/ in two splits, with boxes, and data.yaml."""
    for number in range(8):
        split = "val" if number % 4 == 3 else "train"
        write(root / "images" / split / f"{number}.jpg", picture(number))
        if number != 4:
            text = f"{number % 2} 0.5 0.5 0.25 0.{1 + number}\n" + (
                "1 0.2 0.3 0.1 0.2\n" if number % 3 == 0 else ""
            )
            write(root / "labels" / split / f"{number}.txt", text)
    write(
        root / "data.yaml",
        "path: .\ntrain: images/train\nval: images/val\nnames:\n  0: cat\n  1: dog\n",
    )


def yolo_polygons(root: Path) -> None:
    """images/ and labels/ with polygons."""
    for number in range(6):
        write(root / "images" / f"{number}.png", picture(number, "PNG"))
        write(
            root / "labels" / f"{number}.txt",
            f"0 0.1 0.1 0.6 0.1 0.6 0.{4 + number % 4} 0.2 0.7 0.1 0.5\n",
        )
    write(root / "labels" / "classes.txt", "leaf\n")


def voc(root: Path) -> None:
    """Pascal VOC: images, an XML file for each, and masks. The times of the masks are fixed: they
    count in shards.arrow."""
    for number in range(8):
        write(root / "JPEGImages" / f"{number}.jpg", picture(number))
        corners = (
            f"<xmin>{1 + number}</xmin><ymin>2</ymin><xmax>{12 + number}</xmax><ymax>14.5</ymax>"
        )
        one = f"<object><name>{CLASSES[number % 2]}</name><truncated>{number % 2}</truncated><difficult>0</difficult>"
        one += f"<bndbox>{corners}</bndbox></object>"
        size = "<size><width>24</width><height>18</height><depth>3</depth></size>"
        text = f"<annotation><filename>{number}.jpg</filename>{size}{one if number != 3 else ''}</annotation>"
        write(root / "Annotations" / f"{number}.xml", text)
        if number % 4 != 2:
            os.utime(
                write(root / "SegmentationClass" / f"{number}.png", mask_picture(number)),
                (1_700_000_000, 1_700_000_000),
            )


def captions(root: Path) -> None:
    """Images with a text or a JSON file beside each."""
    for number in range(8):
        write(root / f"{number}.jpg", picture(number))
        if number % 3 == 2:
            write(root / f"{number}.json", json.dumps({"caption": sentence(number, 4)}))
        else:
            write(root / f"{number}.txt", f"  {sentence(number, 5)}\n")


def imagenet(root: Path) -> None:
    """Folders of classes by their WordNet ids, the list of their names, and a split without
    classes."""
    write(
        root / "LOC_synset_mapping.txt",
        "n02012849 crane\nn01440764 tench, Tinca tinca\nn03126707 crane\n",
    )
    for number, wnid in enumerate(("n02012849", "n01440764", "n03126707") * 3):
        write(root / "train" / wnid / f"{wnid}_{number}.JPEG", picture(number))
    for number in (1, 2):
        write(root / "val" / f"ILSVRC2012_val_0000000{number}.JPEG", picture(20 + number))


def image_folder(root: Path) -> None:
    """An ImageFolder of Hugging Face: metadata.jsonl with objects, labels and other columns."""
    records = []
    for number, name in enumerate(plain_photos(root, 8)):
        objects = {
            "bbox": [[1 + number, 2, 6, 5.5], [3, 4, 5, 6]][: number % 3],
            "categories": [1, 0][: number % 3],
        }
        more = {"label": CLASSES[number % 3], "note": sentence(number, 3)}
        records.append({"file_name": name, "objects": objects, **more})
    write(root / "metadata.jsonl", lines(records))


# --- text ---


def texts(root: Path) -> None:
    """Text files in two folders."""
    for number in range(14):
        write(
            root
            / ("news", "books")[number % 2]
            / f"{number:02}.{'md' if number % 5 == 0 else 'txt'}",
            document(number),
        )


def packed_texts(root: Path) -> None:
    """Text files, compressed in four ways and not."""
    pack = {
        "": bytes,
        ".gz": packed,
        ".bz2": bz2.compress,
        ".xz": lzma.compress,
        ".zst": zstd,
    }
    for number, (ending, compress) in enumerate(pack.items()):
        text = "\n".join(document(number * 10 + part) for part in range(4))
        write(root / f"{number}.txt{ending}", compress(text.encode()))


def packed(data: bytes) -> bytes:
    """Return gzip data without a time."""
    return gzip.compress(data, 6, mtime=0)


def encoded_texts(root: Path, encodings: Sequence[str]) -> None:
    """Texts in several encodings, one file in each, long enough to be told apart."""
    samples = {
        "gbk": "春天的早晨，阳光照在河面上。我们一起去公园散步，看见许多美丽的花。",
        "shift_jis": "春の朝、川の水が光っていました。わたしたちは公園へ行きました。",
        "cp1251": "Утром солнце светит на реку, и мы идём гулять в старый парк под мостом.",
        "utf-16": sentence(3, 20),
    }
    for number, name in enumerate(encodings):
        write(root / f"{number}-{name}.txt", ("\n".join([samples[name]] * 12) + "\n").encode(name))


def dirty_texts(root: Path) -> None:
    """JSON lines with HTML, white space, control characters, addresses, and text of poor
    quality."""
    records: list[dict[str, Any]] = []
    for number in range(16):
        body = "\n".join(sentence(number * 10 + part, 14) for part in range(5))
        text = {
            0: f"<html><head><style>p {{}}</style></head><body><p>{body}</p><ul><li>one &amp; "
            "two</ul></body></html>",
            1: body.replace(" ", "  \t ") + "\r\n\r\n\r\n\r\n\x07 end",
            2: body
            + "\nWrite to o'neil@example.org or müller@web.de, from 192.168.7.13 or 2001:db8::1, "
            "call +49 30 1234567.",
            3: body + "\nﬁne ① \uff21\uff42\uff43 e\u0301",
            4: "short",
            5: ("lorem ipsum dolor " * 40).strip(),
            6: "# # # # # ... ... ... \n- a\n- b\n- c",
            7: body + "\n" + body,
        }[number % 8]
        records.append({"body": text, "number": number})
    records[9]["body"] = None
    write(root / "crawl.jsonl", lines(records))


def repeated_texts(root: Path) -> None:
    """JSON lines with texts, paragraphs and lines that are there twice, or nearly so."""
    records = [
        {"text": "\n\n".join(sentence(number * 10 + part, 30) for part in range(3))}
        for number in range(10)
    ]
    records += [
        {"text": records[2]["text"]},
        {"text": records[3]["text"].replace("Straße", "Strasse").replace(" stone", "", 1)},
    ]
    records += [{"text": sentence(10, 30) + "\n\n" + sentence(999, 9) + "\n" + sentence(30, 30)}]
    write(root / "a.jsonl", lines(records[:7]))
    write(root / "b.jsonl", lines(records[7:]))


def chinese(root: Path) -> None:
    """Lines of Chinese."""
    write(
        root / "a.txt",
        "我来到北京清华大学\n他来到了网易杭研大厦\n小明硕士毕业于中国科学院计算所，后在 Kyoto 大学深造\n"
        * 3,
    )


def chats(root: Path) -> None:
    """JSON lines with chats."""
    roles = ("user", "assistant")
    records = [
        {
            "messages": [
                {"role": roles[turn % 2], "content": sentence(number * 10 + turn, 6)}
                for turn in range(2 + 2 * (number % 2))
            ]
        }
        for number in range(8)
    ]
    write(root / "chats.jsonl", lines(records))


def word_list(path: Path) -> None:
    """A vocabulary: a word on each line."""
    write(
        path,
        "\n".join(["<unk>", "<pad>", "<eos>", *sorted({word.lower() for word in WORDS}), "."])
        + "\n",
    )


def tiktoken_ranks(path: Path) -> None:
    """The ranks of all bytes and of a few pairs."""
    tokens = [*(bytes((byte,)) for byte in range(256)), b"th", b"the", b" t", b" the", b"er"]
    write(
        path,
        b"".join(
            base64.b64encode(token) + f" {rank}\n".encode() for rank, token in enumerate(tokens)
        ),
    )


def sentencepiece_model(path: Path) -> None:
    """A model that SentencePiece is trained to here."""
    from sentencepiece import SentencePieceTrainer

    sentences = iter([sentence(number) for number in range(200)])
    with path.open("wb") as file:
        SentencePieceTrainer.Train(
            sentence_iterator=sentences,
            model_writer=file,
            vocab_size=90,
            hard_vocab_limit=False,
            minloglevel=2,
            num_threads=1,
        )


# --- tables ---


def csv_files(root: Path) -> None:
    """Two CSV files and a TSV file: numbers, quotes, line ends in cells, missing values, one bad
    row."""
    head = ["id", "body", "count", "share", "version", "category", "none"]
    for number, (name, mark) in enumerate((("a.csv", ","), ("b.csv", ","), ("c.tsv", "\t"))):
        table = [mark.join(head)]
        for at in range(number * 8, number * 8 + 8):
            body = f'"{sentence(at, 4)} ""quoted""\nand more"'
            row = [f"r{at:03}", body, at, at / 4, f"1.{at}", CLASSES[at % 3], "NA" if at % 3 else 5]
            table.append(mark.join(map(str, row)))
        table += [f"bad{mark}row"] * (number == 1)
        write(root / name, "\n".join(table) + "\n")


def bare_csv(root: Path) -> None:
    """A CSV file without a header, with semicolons, in Latin-1, compressed."""
    table = "".join(f"{number};{sentence(number, 5)};{number % 2 == 0}\n" for number in range(12))
    write(root / "a.csv.gz", packed(table.encode("latin-1")))


def json_files(root: Path) -> None:
    """A JSON array, objects that follow each other, and a compressed array."""
    write(root / "a.json", json.dumps([row(number) for number in range(6)], indent=1))
    write(root / "b.json", "\n".join(json.dumps(row(number)) for number in range(6, 10)))
    write(
        root / "c.json.zst",
        zstd(json.dumps([row(n) for n in range(10, 13)]).encode()),
    )


def json_lines(root: Path) -> None:
    """JSON lines in three files, with blank lines, wrong lines and values of mixed types."""
    write(
        root / "a.jsonl",
        lines(map(row, range(10))) + "\n{wrong\n" + lines([{**row(10), "mixed": "text"}]),
    )
    write(
        root / "b.ndjson",
        lines({**row(number), "mixed": number, "late": [number]} for number in range(11, 20)),
    )
    write(root / "c.jsonl.gz", packed(lines(map(row, range(20, 26))).encode()))


def large_json_lines(root: Path) -> None:
    """JSON lines of some megabytes, so that files have several units and shards several blocks."""
    texts = [sentence(number, 30) for number in range(400)]
    for part, name in enumerate(("a.jsonl", "b.jsonl", "c.jsonl.gz")):
        records = [
            {
                "id": f"{part}-{number}",
                "n": number,
                "text": texts[number % 397] + texts[(number * 7 + part) % 400],
            }
            for number in range(5000 + 1000 * part)
        ]
        data = lines(records).encode()
        write(root / name, packed(data) if name.endswith(".gz") else data)


def table(first: int = 0, count: int = 12) -> pa.Table:
    """Return a table with columns of many types."""
    numbers = range(first, first + count)
    return pa.table(
        {
            "id": pa.array([f"r{n:03}" for n in numbers]),
            "small": pa.array([None if n % 5 == 2 else n % 100 for n in numbers], pa.int16()),
            "share": pa.array([n / 3 for n in numbers], pa.float32()),
            "kind": pa.array([CLASSES[n % 3] for n in numbers]).dictionary_encode(),
            "vector": pa.FixedSizeListArray.from_arrays(
                pa.array([k / 2 for k in range(count * 2)], pa.float32()), 2
            ),
            "tags": pa.array([["a", None, "b"][: n % 4] for n in numbers], pa.list_(pa.string())),
            "info": pa.array([{"n": n, "s": sentence(n, 2)} for n in numbers]),
            "day": pa.array([20_000 + n for n in numbers], pa.date32()),
            "at": pa.array([1_700_000_000_000_000 + n for n in numbers], pa.timestamp("us")),
            "price": pa.array(
                [None if n == 1 else Decimal(n) / 4 for n in numbers], pa.decimal128(9, 2)
            ),
            "data": pa.array([bytes([n % 256]) * (n % 7) for n in numbers], pa.large_binary()),
            "map": pa.array([[("k", n)] for n in numbers], pa.map_(pa.string(), pa.int32())),
        }
    )


def parquet(root: Path) -> None:
    """Two Parquet files with several row groups."""
    pyarrow.parquet.write_table(table(0, 12), root / "a.parquet", row_group_size=5)
    pyarrow.parquet.write_table(table(12, 6), root / "b.parquet", compression="zstd")


def arrow(root: Path) -> None:
    """The forms of Arrow: a file, a stream, a compressed file."""
    for number, (name, opened) in enumerate(
        (("a.arrow", pa.ipc.new_file), ("b.arrows", pa.ipc.new_stream))
    ):
        rows = table(8 * number, 8)
        with pa.OSFile(str(root / name), "wb") as sink, opened(sink, rows.schema) as writer:
            writer.write_table(rows, max_chunksize=3)
    pyarrow.feather.write_feather(table(16, 4), root / "c.feather", compression="zstd")


def image_table(root: Path) -> None:
    """A Parquet file with images, masks and objects: a recipe moves all three."""
    objects = [
        {
            "bbox": [[2.0, 3.0, 8.0, 6.0]] * (n % 3),
            "category": [n % 2] * (n % 3),
            "id": [n] * (n % 3),
        }
        for n in range(9)
    ]
    columns = {
        "image": [picture(n, "PNG" if n % 2 else "JPEG") for n in range(9)],
        "mask": [mask_picture(n) for n in range(9)],
        "objects": objects,
        "label": [n % 3 for n in range(9)],
        "name": [f"n{n}" for n in range(9)],
    }
    pyarrow.parquet.write_table(pa.table(columns), root / "a.parquet", row_group_size=4)


def hugging_face(root: Path) -> None:
    """A repository of Parquet files, as Hugging Face lays it out, with the names of its classes."""
    features = {
        "image": {"_type": "Image"},
        "label": {"names": list(CLASSES), "_type": "ClassLabel"},
    }
    said = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    for split, numbers in (("train", range(9)), ("test", range(9, 12))):
        images = [{"bytes": picture(n), "path": f"{n}.jpg"} for n in numbers]
        rows = pa.table(
            {"image": images, "label": pa.array([n % 3 for n in numbers], pa.int64())}
        ).replace_schema_metadata(said)
        (root / "data").mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(rows, root / "data" / f"{split}-00000-of-00001.parquet")


def saved_to_disk(root: Path) -> None:
    """What `save_to_disk` of Hugging Face datasets writes: streams of Arrow with JSON beside
    them."""
    label = {"names": list(CLASSES), "_type": "ClassLabel"}
    info = {"features": {"text": {"dtype": "string", "_type": "Value"}, "label": label}}
    for split, numbers in (("train", range(8)), ("test", range(8, 11))):
        rows = pa.table(
            {
                "text": [sentence(n, 5) for n in numbers],
                "label": pa.array([n % 3 for n in numbers], pa.int64()),
            }
        )
        rows = rows.replace_schema_metadata({b"huggingface": json.dumps({"info": info}).encode()})
        name = "data-00000-of-00001.arrow"
        (root / split).mkdir(parents=True)
        with (
            pa.OSFile(str(root / split / name), "wb") as sink,
            pa.ipc.new_stream(sink, rows.schema) as writer,
        ):
            writer.write_table(rows)
        write(
            root / split / "state.json",
            json.dumps({"_data_files": [{"filename": name}], "_split": split}),
        )
        write(root / split / "dataset_info.json", json.dumps(info))
    write(root / "dataset_dict.json", json.dumps({"splits": ["train", "test"]}))


# --- shards of other tools ---


def webdataset(root: Path) -> None:
    """Tars with images, classes, texts, JSON and arrays. One is plain, one gzip, one zstd. A sample
    has a link in it."""
    pack = {".tar": bytes, ".tar.gz": packed, ".tar.zst": zstd}
    for number, (ending, compress) in enumerate(pack.items()):
        members: list[tuple[str, bytes]] = []
        for at in range(number * 5, number * 5 + 5):
            array = io.BytesIO()
            np.save(array, np.arange(6, dtype=np.float32).reshape(2, 3) + at)
            key = f"part/s{at:03}"
            members += [
                (f"{key}.jpg", picture(at)),
                (f"{key}.cls", str(at % 3).encode()),
                (f"{key}.txt", sentence(at, 4).encode()),
                (f"{key}.json", json.dumps({"n": at, "s": [at]}).encode()),
                (f"{key}.emb.npy", array.getvalue()),
            ]
        write(root / f"train-{number:05}{ending}", compress(tar(members)))


def mds(root: Path) -> None:
    """Shards of MosaicML Streaming with their index: one plain, one compressed."""
    shards = []
    for number in range(2):
        samples = []
        for at in range(number * 6, number * 6 + 6):
            parts = [picture(at), sentence(at, 3).encode(), json.dumps({"n": at}).encode()]
            sizes = b"".join(struct.pack("<I", len(part)) for part in parts)
            array = np.arange(6, dtype="<i2").tobytes()
            samples.append(sizes + struct.pack("<q", at) + parts[0] + parts[1] + array + parts[2])
        said = {
            "column_names": ["id", "image", "name", "x", "more"],
            "column_encodings": ["int", "jpeg", "str", "ndarray:int16:2,3", "json"],
            "column_sizes": [8, None, None, 12, None],
            "compression": "zstd" if number else None,
            "format": "mds",
            "hashes": [],
            "samples": 6,
            "size_limit": 1 << 26,
            "version": 2,
        }
        text = json.dumps(said).encode()
        ends = 8 + 4 * 6 + len(text) + np.cumsum([0, *map(len, samples)])
        data = struct.pack("<I", 6) + ends.astype("<u4").tobytes() + text + b"".join(samples)
        name = f"shard.{number:05}.mds"
        raw = {"basename": name, "bytes": len(data), "hashes": {}}
        zipped = None
        if number:
            data = zstd(data)
            zipped = {"basename": f"{name}.zstd", "bytes": len(data), "hashes": {}}
        write(root / (name + ".zstd" * number), data)
        shards.append({**said, "raw_data": raw, "zip_data": zipped})
    write(root / "index.json", json.dumps({"version": 2, "shards": shards}))


def masked_crc(data: bytes) -> bytes:
    """Return the checksum of TFRecord: a masked CRC-32C."""
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF)


def tfrecord_of(payloads: Iterable[bytes]) -> bytes:
    """Return a TFRecord file."""
    found = []
    for data in payloads:
        length = struct.pack("<Q", len(data))
        found += [length, masked_crc(length), data, masked_crc(data)]
    return b"".join(found)


def _varint(number: int) -> bytes:
    number &= 2**64 - 1
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _member(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def example(features: dict[str, list[Any]]) -> bytes:
    """Return a tf.train.Example, written by hand."""
    entries = []
    for name, values in features.items():
        if isinstance(values[0], bytes):
            feature = _member(1, b"".join(_member(1, value) for value in values))
        elif isinstance(values[0], float):
            feature = _member(2, _member(1, struct.pack(f"<{len(values)}f", *values)))
        else:
            feature = _member(3, _member(1, b"".join(map(_varint, values))))
        entries.append(_member(1, _member(1, name.encode()) + _member(2, feature)))
    return _member(1, b"".join(entries))


def image_example(number: int) -> bytes:
    """Return an Example of an image as TensorFlow's tools name its features."""
    return example(
        {
            "image/encoded": [picture(number)],
            "image/class/label": [number % 3],
            "image/text": [sentence(number, 3).encode()],
            "scores": [number / 2, 0.25],
            "ids": [number, -number][: 1 + number % 2],
        }
    )


def tfrecord(root: Path) -> None:
    """TFRecords of Examples: one plain, one gzip. One record is damaged."""
    write(root / "x.tfrecord-00000-of-00002", tfrecord_of(map(image_example, range(7))))
    damaged = bytearray(tfrecord_of(map(image_example, range(7, 12))))
    damaged[len(damaged) // 2] ^= 1
    write(root / "x.tfrecord-00001-of-00002", packed(bytes(damaged)))


def tfds(root: Path) -> None:
    """A folder of TFDS with its features and names of classes."""
    shape = {"shape": {"dimensions": ["2"]}, "dtype": "float32", "encoding": "none"}
    image = {"shape": {"dimensions": ["-1", "-1", "3"]}, "dtype": "uint8", "encodingFormat": "jpeg"}
    features = {
        "image": {"image": image},
        "label": {"classLabel": {"numClasses": "3"}},
        "name": {"text": {}},
        "xy": {"tensor": shape},
    }
    write(root / "features.json", json.dumps({"featuresDict": {"features": features}}))
    write(root / "label.labels.txt", "\n".join(CLASSES) + "\n")
    for split, numbers in (("train", range(8)), ("test", range(8, 11))):
        records = [
            example(
                {
                    "image": [picture(n)],
                    "label": [n % 3],
                    "name": [b"n%d" % n],
                    "xy": [float(n), n / 2],
                }
            )
            for n in numbers
        ]
        write(root / f"toy-{split}.tfrecord-00000-of-00001", tfrecord_of(records))


def array_record(root: Path) -> None:
    """Two ArrayRecord files of Examples."""
    from array_record.python.array_record_module import ArrayRecordWriter

    for number, options in enumerate(("group_size:1,uncompressed", "group_size:4,zstd:3")):
        writer = ArrayRecordWriter(str(root / f"x.array_record-0000{number}-of-00002"), options)
        for at in range(number * 6, number * 6 + 6):
            writer.write(image_example(at))
        writer.close()


def hdf5(root: Path) -> None:
    """An HDF5 file with numbers, texts and structures."""
    import h5py

    with h5py.File(root / "a.h5", "w") as file:
        file.create_dataset(
            "x",
            data=np.arange(60, dtype=np.float32).reshape(12, 5),
            chunks=(4, 5),
            compression="gzip",
        )
        file["text"] = np.array([sentence(n, 3) for n in range(12)], object).astype(
            h5py.string_dtype()
        )
        file["pair"] = np.array(
            [(n, [n, n + 1]) for n in range(12)], [("n", "i2"), ("box", "f4", (2,))]
        )
        file["label"] = np.arange(12) % 3


def arrays(root: Path) -> None:
    """Two arrays of numpy with rows of one shape."""
    np.save(root / "a.npy", np.arange(60, dtype=np.int16).reshape(10, 3, 2))
    np.save(root / "b.npy", np.arange(30, dtype=np.int16).reshape(5, 3, 2) - 100)


def structured_arrays(root: Path) -> None:
    """An array of a structured type, and an .npz with arrays of one length."""
    np.save(
        root / "a.npy",
        np.array(
            [(n, n / 2, f"n{n}") for n in range(9)], [("n", "<i4"), ("x", ">f8"), ("name", "U4")]
        ),
    )
    np.savez(
        root / "b.npz",
        n=np.arange(7, dtype="<i4"),
        x=np.arange(7) / 4,
        name=np.array([f"z{n}" for n in range(7)]),
    )


def lmdb(root: Path) -> None:
    """An LMDB folder of images."""
    import lmdb as package

    (root / "images").mkdir(parents=True)
    with (
        package.open(str(root / "images"), map_size=1 << 20) as environment,
        environment.begin(write=True) as transaction,
    ):
        for number in range(12):
            transaction.put(b"%03d" % number, picture(number, "PNG"))


def lance(root: Path) -> None:
    """A Lance folder with two files."""
    import lance as package

    rows = table(0, 12).drop_columns(["map", "kind", "price"])
    package.write_dataset(rows, str(root / "a.lance"), max_rows_per_file=7)


def megatron(root: Path) -> None:
    """Megatron's index and tokens."""
    sequences = [[(number * 31 + at * 7) % 500 for at in range(number % 9)] for number in range(20)]
    lengths = [len(each) for each in sequences]
    places = (np.cumsum(lengths, dtype=np.int64) - lengths) * 2
    write(root / "a.bin", b"".join(np.array(each, "<u2").tobytes() for each in sequences))
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(sequences), len(sequences) + 1)
    index = np.array(lengths, "<i4").tobytes() + places.astype("<i8").tobytes()
    write(root / "a.idx", head + index + np.arange(len(sequences) + 1, dtype="<i8").tobytes())


def recordio(root: Path) -> None:
    """RecordIO of MXNet: images with a label; some records are in several parts."""

    def part(data: bytes, kind: int = 0) -> bytes:
        return struct.pack("<II", 0xCED7230A, kind << 29 | len(data)) + data + bytes(-len(data) % 4)

    found = []
    for number in range(12):
        data = struct.pack("<IfQQ", 0, number % 3, number, 0) + picture(number)
        found += (
            [part(data[:40], 1), part(data[40:80], 2), part(data[80:], 3)]
            if number % 3 == 1
            else [part(data)]
        )
    write(root / "a.rec", b"".join(found))
