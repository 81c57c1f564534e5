"""The commands for known data convert files of the shape that one downloads."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from doc_snippets import ROOT, snippets
from PIL import Image
from sessions import blocks, run
from tars import tar

import shardctl

pytestmark = pytest.mark.thorough

PAGE = (ROOT / "docs" / "how-to" / "known-data.md").read_text(encoding="utf-8")
WORDNET = {"n01440764": "tench, Tinca tinca", "n01443537": "goldfish, Carassius auratus"}
WORDS = "".join(f"{number} {words}\n" for number, words in WORDNET.items()).encode()
STORY = "Once upon a time there was a cat.\n\nThe cat liked to play."


def photo(number: int) -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (64, 48), (number * 40, 90, 30)).save(sink, "JPEG")
    return sink.getvalue()


def parquet(**columns: list[Any]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def image_net() -> Iterator[tuple[str, bytes]]:
    train = {name: [(f"{name}_{n}.JPEG", photo(n)) for n in range(2)] for name in WORDNET}
    val = [(f"ILSVRC2012_val_{n:08}.JPEG", photo(n)) for n in (1, 2)]
    tars = [(f"{name}.tar", tar(members)) for name, members in train.items()]
    lists = "".join(f"{name} {2 - n}\n" for n, (name, _) in enumerate(val, 1)).encode()
    yield "ILSVRC2012_img_train.tar", tar(tars)
    yield "ILSVRC2012_img_val.tar", tar(val)
    yield (
        "caffe_ilsvrc12.tar.gz",
        gzip.compress(tar([("synset_words.txt", WORDS), ("val.txt", lists)])),
    )
    yield "kaggle/LOC_synset_mapping.txt", WORDS
    rows = ["ImageId,PredictionString"]
    rows += [
        f"{name[:-5]},{number} 1 1 9 9 "
        for (name, _), number in zip(val, [*WORDNET][::-1], strict=True)
    ]
    yield "kaggle/LOC_val_solution.csv", "\n".join(rows).encode()
    images = "kaggle/ILSVRC/Data/CLS-LOC"
    yield from (
        (f"{images}/train/{name}/{key}", data) for name in train for key, data in train[name]
    )
    yield from ((f"{images}/val/{name}", data) for name, data in val)
    yield f"{images}/test/ILSVRC2012_test_00000001.JPEG", photo(3)


def coco() -> Iterator[tuple[str, bytes]]:
    for split, ids in {"train2017": (1, 2, 3), "val2017": (4,)}.items():
        names = {number: f"{number:012}.jpg" for number in ids}
        yield from ((f"coco/{split}/{name}", photo(number)) for number, name in names.items())
        box = {"bbox": [1, 1, 9, 9], "area": 81, "iscrowd": 0, "category_id": 18}
        instances = {
            "images": [
                {"id": number, "file_name": name, "width": 64, "height": 48}
                for number, name in names.items()
            ],
            "annotations": [{"id": n, "image_id": n, "segmentation": [], **box} for n in ids],
            "categories": [{"id": 18, "name": "dog", "supercategory": "animal"}],
        }
        yield f"coco/annotations/instances_{split}.json", json.dumps(instances).encode()
    turns = [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "A dog."}]
    chats = [{"id": f"{n}", "image": f"{n:012}.jpg", "conversations": turns} for n in (1, 2, 2)]
    yield "LLaVA-Instruct-150K/llava_instruct_150k.json", json.dumps(chats).encode()


def food() -> Iterator[tuple[str, bytes]]:
    for split, numbers in {"train": (1, 2), "test": (3,)}.items():
        keys = [f"{name}/{number}" for name in ("apple_pie", "waffles") for number in numbers]
        yield from ((f"food-101/images/{key}.jpg", photo(int(key[-1]))) for key in keys)
        yield f"food-101/meta/{split}.txt", "\n".join(keys).encode()
        yield f"food-101/meta/{split}.json", json.dumps({"apple_pie": keys}).encode()
    yield "food-101/meta/classes.txt", b"apple_pie\nwaffles\n"
    yield "food-101/README.txt", b"Food-101\n"


def texts() -> Iterator[tuple[str, bytes]]:
    for part in range(2):
        ids = [f"<urn:uuid:{part}-{n}>" for n in range(100)]
        rows = parquet(text=[f"{STORY} {key}" for key in ids], id=ids, score=[3.5] * 100)
        yield f"fineweb-edu/sample/10BT/{part:03}_00000.parquet", rows
    for split, stories in {"train": 40, "validation": 4}.items():
        name = f"TinyStories/data/{split}-00000-of-00001-2d5a1467fff1081b.parquet"
        yield name, parquet(text=[STORY] * stories)
    for split, stories in {"train": 40, "valid": 4}.items():
        text = "\n<|endoftext|>\n".join([STORY] * stories)
        yield f"TinyStories/TinyStoriesV2-GPT4-{split}.txt", text.encode()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the downloads, in which all commands of the page have run."""
    folder = tmp_path_factory.mktemp("known")
    for name, data in (*image_net(), *coco(), *food(), *texts()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    for block in blocks(PAGE):
        (folder / str(block.title)).write_text("\n".join(block.lines))
    for command in snippets(PAGE, "sh"):
        printed, code = run(f"set -e\n{command}", folder, {})
        assert code == 0, "\n".join([command, *printed])
    return folder


def splits(dataset: Path) -> dict[str, int]:
    return {split.name: split.samples for split in shardctl.inspect(dataset).splits}


@pytest.mark.parametrize("name", ["imagenet", "kaggle"])
def test_photos_of_imagenet_have_the_classes_of_their_lists(here, name):
    ds = shardctl.open(here / f"out-{name}")
    assert ds.classes == tuple(WORDNET.values())
    assert [s["label"] for s in ds.in_split("train")] == [0, 0, 1, 1]
    assert [s["label"] for s in ds.in_split("val")] == [1, 0]


def test_photos_of_coco_have_their_boxes(here):
    assert splits(here / "out-coco") == {"train2017": 3, "val2017": 1}
    found = [sample["objects"] for sample in shardctl.open(here / "out-coco")]
    assert [objects["bbox"].tolist() for objects in found] == [[[1, 1, 9, 9]]] * 4


def test_lists_of_food_101_are_its_splits(here):
    assert splits(here / "out-food") == {"train": 4, "test": 2}
    assert shardctl.open(here / "out-food").classes == ("apple_pie", "waffles")


def test_texts_become_blocks_of_tokens(here):
    names = {"out-fineweb": "val", "out-stories": "validation", "out-stories-v2": "valid"}
    for name, other in names.items():
        assert [*splits(here / name)] == ["train", other]
        ds = shardctl.open(here / name)
        assert "The cat liked to play" in ds.tokenizer.decode(ds[0]["tokens"])
    lines = (here / "stories" / "train.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"text": STORY}] * 40


def test_each_conversation_has_its_image(here):
    ds = shardctl.open(here / "out-llava")
    assert [s["id"] for s in ds] == ["1", "2", "2"]
    assert ds[0]["conversations"][1] == {"from": "gpt", "value": "A dog."}
    assert ds[0]["image"].shape == (48, 64, 3)
