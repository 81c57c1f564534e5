"""Conversations about images beside these: no image dataset without them, and the sentence that
refuses it is true."""

from __future__ import annotations

import gzip
import io
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from image_files import images

import shardctl
from shardctl.cli import run
from shardctl.errors import InputError
from shardctl.making.convert import convert

Record = dict[str, Any]


def messages(question: Any, answer: Any = "A cat.") -> list[Record]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def turns(question: str) -> list[Record]:
    return [{"from": "human", "value": question}, {"from": "gpt", "value": "A cat."}]


FLAT: dict[str, Callable[[str], Record]] = {
    "LLaVA": lambda image: {"id": "1", "image": image, "conversations": turns("<image>\nWhat?")},
    "messages": lambda image: {"image": image, "messages": messages("What?")},
    "objects": lambda image: {
        "file": image,
        "annotations": [{"label": "cat", "box": [1, 2, 3, 4]}],
    },
}
NESTED: dict[str, Callable[[str], Record]] = {
    "LLaMA-Factory": lambda image: {"messages": messages("<image>What?"), "images": [image]},
    "a list of one": lambda image: {"image": [image], "conversations": turns("<image>\nWhat?")},
    "parts": lambda image: {
        "messages": messages([{"type": "image_url", "image_url": {"url": image}}])
    },
    "tags": lambda image: {"conversations": turns(f"Picture 1: <img>{image}</img>\nWhat?")},
    "an object": lambda image: {"media": {"image": image}, "text": "A cat."},
}


def as_array(records: list[Record]) -> bytes:
    return json.dumps(records, indent=1).encode()


def as_lines(records: list[Record]) -> bytes:
    return "".join(f"{json.dumps(each)}\n" for each in records).encode()


def as_table(records: list[Record]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(records), sink)
    return sink.getvalue()


FILES: dict[str, Callable[[list[Record]], bytes]] = {
    "chats.json": as_array,
    "chats.jsonl": as_lines,
    "lines.json": as_lines,
    "chats.json.gz": lambda records: gzip.compress(as_array(records)),
    "chats.parquet": as_table,
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return images(tmp_path / "my data", *(f"imgs/{number}.jpg" for number in range(4)))


def write(path: Path, make: Callable[[str], Record], image: str = "imgs/{}.jpg") -> None:
    path.parent.mkdir(exist_ok=True)
    records = [make(image.format(number)) for number in range(3)]
    path.write_bytes(FILES[path.name](records))


def refused(source: Path, out: Path, **options: Any) -> str:
    with pytest.raises(InputError) as raised:
        convert(source, out, workers=0, **options)
    assert raised.value.exit_code == 3
    assert not out.exists()
    return str(raised.value)


def command_in(sentence: str, out: Path) -> list[str]:
    found = re.search("`(.*)`", sentence)
    assert found is not None, sentence
    return [word.replace("DST", str(out)) for word in shlex.split(found[1])[1:]]


def each_once(layouts: dict[str, Any]) -> list[tuple[str, str]]:
    """Every layout in one kind of file, and the first one in every kind."""
    first = next(iter(layouts))
    return [(layout, "chats.json") for layout in layouts] + [
        (first, name) for name in FILES if name != "chats.json"
    ]


@pytest.mark.parametrize(("layout", "name"), each_once(FLAT))
def test_records_of_one_image_are_refused_with_the_command_that_makes_samples_of_them(
    layout, name, source, out
):
    write(source / name, FLAT[layout])
    sentence = refused(source, out)
    assert sentence.startswith(f"{source}/{name}: its records name images of the source")
    assert run(command_in(sentence, out)) == 0
    samples = list(shardctl.open(out))
    assert [int(sample["image"][0, 0, 0]) // 16 for sample in samples] == [0, 1, 2]
    ((nested, value),) = (each for each in FLAT[layout]("x").items() if isinstance(each[1], list))
    assert [json.loads(json.dumps(sample[nested])) for sample in samples] == [value] * 3


@pytest.mark.parametrize(("layout", "name"), each_once(NESTED))
def test_records_with_images_in_lists_are_refused_with_the_command_that_keeps_the_rest(
    layout, name, source, out
):
    write(source / name, NESTED[layout])
    sentence = refused(source, out)
    assert "are not read, and" in sentence
    if name == "chats.json":
        assert run(command_in(sentence, out)) == 0
        assert len(shardctl.open(out)) == 3


@pytest.mark.parametrize("option", ["none", "folder"])
def test_the_images_alone_are_converted_where_a_person_says_so(option, source, tmp_path):
    write(source / "chats.json", NESTED["parts"])
    assert convert(source, tmp_path / "out", workers=0, labels=option).samples == 4


@pytest.mark.parametrize("image", ["{}.jpg", "C:\\data\\{}.jpg", "{}", "/home/me/{}.Png"])
def test_images_are_known_by_their_names_wherever_paths_begin_and_whatever_ending_they_have(
    image, source, tmp_path
):
    write(source / "annotations" / "chats.json", FLAT["LLaVA"], image)
    assert "if its paths lead from its folder" in refused(source, tmp_path / "out")


@pytest.mark.parametrize("layout", ["parts", "tags"])
def test_images_in_lists_are_known_without_their_endings_too(layout, source, tmp_path):
    write(source / "chats.json", NESTED[layout], "imgs/{}")
    assert "are not read, and" in refused(source, tmp_path / "out")


def test_paths_out_of_the_folder_of_the_records_need_the_source_itself(source, out):
    write(source / "annotations" / "chats.json", FLAT["LLaVA"], "../imgs/{}.jpg")
    assert run(command_in(refused(source, out), out)) == 0
    assert len(shardctl.open(out)) == 3


def test_records_that_came_after_a_conversion_are_refused_too(source, out):
    convert(source, out, workers=0)
    write(source / "chats.jsonl", NESTED["LLaMA-Factory"])
    for options in ({}, {"update": True}):
        with pytest.raises(InputError, match="are not read, and"):
            convert(source, out, workers=0, **options)


@pytest.mark.parametrize(
    "text",
    [
        '[{"image": "elsewhere.jpg", "conversations": [{"value": "x"}]}]',
        '[{"image": "imgs/0.jpg", "width": 8, "tags": ["a"]}]',  # a row, as in a table
        # one object is no list of records
        '{"imagePath": "imgs/0.jpg", "shapes": [{"label": "cat"}]}',
        '[["imgs/0.jpg"], 1, null, "imgs/0.jpg"]',
        "[" * 100_000,
        '[{"text": "\\ud83d", "image": "\\ud83d.jpg"}]',
        json.dumps([{"text": "x" * 9999}]),
        '[{"image": "imgs/0.jpg", "conversations": [{"value": "',
        '[{"image": "elsewhere/9", "conversations": [{"value": "2"}], "answers": ["1", "0", '
        '"1/2"]}]',
        "",
    ],
)
def test_other_files_are_not_refused(text, source, tmp_path):
    (source / "a.json").write_text(text)
    assert convert(source, tmp_path / "out", workers=0).samples == 4
