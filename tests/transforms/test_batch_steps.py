"""Steps of text: they see files and records alike, reject single records, and are counted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from dataset_facts import rejects_of
from in_this_process import convert
from json_lines import json_lines, texts_in

import shardctl
from shardctl.errors import InputError
from shardctl.format.counts import step_lines
from shardctl.transforms.pipeline.batches import make_keys

NO_B = {"kind": "text", "transform": [{"name": "filter_length", "max_chars": 1}]}


def sources(folder: Path, form: str) -> Path:
    """Write the texts a, bb, c and d: as records of two files, or as a file each."""
    if form == "files":
        folder.mkdir()
        for text in ("a", "bb", "c", "d"):
            (folder / f"{text}.txt").write_text(text)
    else:
        texts_in(folder / "1.jsonl", ["a", "bb", "c"])
        texts_in(folder / "2.jsonl", ["d", None])
    return folder


@pytest.mark.parametrize(
    ("form", "key", "texts"),
    [("files", "bb.txt", ["a", "c", "d"]), ("records", "1.jsonl#2", ["a", "c", "d", None])],
)
def test_a_text_that_a_step_rejects_is_a_reject_of_its_own_record(tmp_path, out, form, key, texts):
    result = convert(sources(tmp_path / "in", form), out, recipe=NO_B)
    assert [sample["text"] for sample in shardctl.open(out)] == texts
    (reject,) = rejects_of(out)
    assert (reject.key, reject.stage, reject.error) == (key, "filter", "chars")
    assert shardctl.verify(out, level="deep").findings == ()
    counts = {"records": len(texts) + 1, "bytes": 5, "rejected": {"chars": [1, 2]}}
    assert result.steps == [{"name": "filter_length", **counts}]
    assert shardctl.open(out).manifest.steps == result.steps
    assert step_lines(result.steps) == [
        f"filter_length: kept {len(texts)} of {len(texts) + 1} (60.0% of the bytes); "
        "rejected: chars 1 (40.0%)"
    ]


def test_the_share_of_bytes_is_not_said_where_records_have_no_text():
    counts = {"records": 200, "bytes": 0, "rejected": {"tokens": [64, 0]}}
    assert step_lines([{"name": "filter_length", **counts}]) == [
        "filter_length: kept 136 of 200; rejected: tokens 64"
    ]


def test_steps_by_option_that_make_tokens_come_last_with_the_settings_of_both(tmp_path, out, cli):
    source = texts_in(tmp_path / "in.jsonl", ["a", "c"])
    given = "--tokenizer bytes --block-length 4 --workers 0 --step whitespace --step".split()
    assert cli("convert", source, out, *given, "pack eos=7").code == 0
    recipe = json.loads((out / "manifest.json").read_text())["recipe"]["transform"]
    assert [step["name"] for step in recipe] == ["whitespace", "tokenize", "pack"]
    assert (recipe[-1]["length"], recipe[-1]["eos"]) == (4, 7)


def test_a_dry_run_expects_as_many_rejects_as_it_has_tried(tmp_path, out):
    """The step rejects half of the texts."""
    source = texts_in(tmp_path / "in.jsonl", ["ab"[: 1 + n % 2] for n in range(60)])
    planned = convert(source, out, recipe=NO_B, dry_run=True)
    assert planned.samples == convert(source, out, recipe=NO_B).samples == 30


def test_texts_are_required(tmp_path, out):
    source = json_lines(tmp_path / "in.jsonl", [{"body": "a"}])
    with pytest.raises(InputError, match="they have body; text_field=FIELD"):
        convert(source, out, recipe={"transform": [{"name": "lower_case"}]})


def test_keys_have_the_numbers_of_lines_of_any_length(tmp_path, out):
    """Every seventh line is blank: it has a number and no key."""
    lines = [b"" if number % 7 == 0 else b'{"text": "a"}' for number in range(1, 1_201)]
    (tmp_path / "é文.jsonl").write_bytes(b"\n".join(lines))
    convert(tmp_path / "é文.jsonl", out, samples_per_shard=999)
    keys = [f"é文.jsonl#{number}" for number in range(1, 1_201) if number % 7]
    assert [sample["key"] for sample in shardctl.open(out)] == keys


@pytest.mark.parametrize("first", [2**32 - 2, 10**12 - 2, 10**18])
def test_keys_of_very_large_numbers(first):
    numbers = np.array([first, first + 1, first + 2, first + 5])
    assert make_keys("a", numbers).to_pylist() == [f"a#{number}" for number in numbers.tolist()]
