"""Steps of text: they see files and records alike, reject single records, are counted, and may
depend on files of their own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from in_this_process import convert, repair

import shardctl
from shardctl.errors import InputError, Rejection
from shardctl.format.counts import step_lines
from shardctl.format.tables import read_rejects
from shardctl.system.folders import LocalFolder
from shardctl.system.options import Text, setting
from shardctl.transforms.pipeline.batches import make_keys
from shardctl.transforms.table import TRANSFORMS
from shardctl.transforms.text.base import Fault, TextFilter, TextTransform


class Ending(TextTransform, step="ending"):
    """Adds what a file says to the end of each text."""

    file: str = setting(Text())

    def loaded(self, folder: Path | None = None) -> Ending:
        path = folder / "ending.txt" if folder else Path(self.file)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from error
        step = Ending("ending.txt")
        vars(step)["content"] = content
        return step

    @property
    def files(self) -> dict[str, bytes]:
        return {"ending.txt": vars(self)["content"]}

    def versions(self) -> tuple[str, ...]:
        return ("endings 1.0",)

    def changed(self, texts: pa.Array) -> pa.Array:
        return pc.binary_join_element_wise(texts, pa.scalar(vars(self)["content"].decode()), "")


class NoB(TextFilter, step="no_b"):
    """Rejects texts that have a b."""

    def faults(self, texts: pa.Array) -> Iterable[Fault]:
        for row, text in enumerate(texts.to_pylist()):
            if "b" in text:
                yield row, Rejection("filter", "letter-b", f"has a b at {text.index('b')}")


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRANSFORMS, "ending", Ending)
    monkeypatch.setitem(TRANSFORMS, "no_b", NoB)


def sources(folder: Path, form: str) -> Path:
    """Write the texts a, bb, c and d: as records of two files, or as a file each."""
    folder.mkdir()
    if form == "files":
        for text in ("a", "bb", "c", "d"):
            (folder / f"{text}.txt").write_text(text)
    else:
        (folder / "1.jsonl").write_text(
            '{"text": "a", "n": 1}\n{"text": "bb", "n": 2}\n{"text": "c", "n": 3}\n'
        )
        (folder / "2.jsonl").write_text('{"text": "d", "n": 4}\n{"text": null, "n": 5}\n')
    return folder


def recipe(folder: Path) -> dict[str, Any]:
    (folder / "my ending").write_bytes(b"!")
    return {
        "kind": "text",
        "transform": [{"name": "no_b"}, {"name": "ending", "file": str(folder / "my ending")}],
    }


@pytest.mark.parametrize("form", ["files", "records"])
def test_a_text_that_a_step_rejects_is_a_reject_of_its_own_record(tmp_path, out, form):
    source = sources(tmp_path / "in", form)
    result = convert(source, out, recipe=recipe(tmp_path))
    ds = shardctl.open(out)
    assert [sample["text"] for sample in ds] == (
        ["a!", "c!", "d!"] if form == "files" else ["a!", "c!", "d!", None]
    )
    (reject,) = read_rejects(LocalFolder(out))
    key = "bb.txt" if form == "files" else "1.jsonl#2"
    assert (reject.key, reject.stage, reject.error, reject.message) == (
        key,
        "filter",
        "letter-b",
        "has a b at 0",
    )
    assert shardctl.verify(out, level="deep").findings == ()
    records = 4 if form == "files" else 5
    first = {"name": "no_b", "records": records, "bytes": 5, "rejected": {"letter-b": [1, 2]}}
    assert result.steps == [
        first,
        {"name": "ending", "records": records - 1, "bytes": 3, "rejected": {}},
    ]


@pytest.mark.parametrize("form", ["files", "records"])
def test_what_the_steps_did_is_printed_and_recorded(tmp_path, out, cli, form):
    given = recipe(tmp_path)
    toml = 'kind = "text"\n' + "".join(
        "[[transform]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in step.items())
        for step in given["transform"]
    )
    (tmp_path / "r.toml").write_text(toml)
    source = sources(tmp_path / "in", form)
    ran = cli("convert", source, out, "--recipe", tmp_path / "r.toml", "--workers", 0)
    total = 4 if form == "files" else 5
    assert (
        f"no_b: kept {total - 1} of {total} (60.0% of the bytes); rejected: letter-b 1 (40.0%)"
        in ran.out
    )
    manifest = json.loads((out / "manifest.json").read_text())
    assert [step["name"] for step in manifest["steps"]] == ["no_b", "ending"]
    assert "endings 1.0" in manifest["fingerprint_parts"]["versions"]
    assert manifest["environment"]["endings"] == "1.0"


def test_a_file_that_a_step_depends_on_is_part_of_the_dataset(tmp_path, out):
    """It is in the checksums, not in the recipe by its path; the dataset needs the first one no
    more."""
    source, given = sources(tmp_path / "in", "records"), recipe(tmp_path)
    convert(source, out, recipe=given)
    assert (out / "ending.txt").read_bytes() == b"!"
    assert "ending.txt" in (out / "SHA256SUMS").read_text()
    assert shardctl.verify(out).findings == ()
    shards = [path for path in out.iterdir() if path.name.startswith("train-")]
    before = shards[0].read_bytes()
    shards[0].write_bytes(before[:-100] + bytes(100))
    (tmp_path / "my ending").unlink()
    assert repair(out).status == "repaired"
    assert shards[0].read_bytes() == before
    (out / "ending.txt").write_bytes(b"?")
    (finding,) = shardctl.verify(out).findings
    assert finding.kind == "wrong-checksum"
    assert "copy the right one into the dataset's folder" in finding.message
    repaired = repair(out)
    assert (repaired.status, [entry.file for entry in repaired.unrepaired]) == (
        "damaged",
        ["ending.txt"],
    )
    assert "copy the right one into the dataset's folder" in repaired.unrepaired[0].message
    (out / "ending.txt").write_bytes(b"!")
    assert shardctl.verify(out).findings == ()


def test_a_dataset_that_is_replaced_takes_its_files_with_it(tmp_path, out):
    source, given = sources(tmp_path / "in", "files"), recipe(tmp_path)
    convert(source, out, recipe=given)
    (out / "notes").write_text("mine")
    convert(source, out, recipe={"kind": "text"}, overwrite=True)
    assert not (out / "ending.txt").exists()
    assert (out / "notes").exists()
    assert {finding.kind for finding in shardctl.verify(out).findings} == {"extra-file"}


def test_a_lost_manifest_is_rebuilt_with_the_files_of_the_recipe(tmp_path, out):
    source, given = sources(tmp_path / "in", "files"), recipe(tmp_path)
    convert(source, out, recipe=given)
    shutil.copytree(out, tmp_path / "copy")
    (out / "manifest.json").unlink()
    repair(out, sources=[source])
    assert shardctl.verify(out).findings == ()
    before, after = (
        json.loads((path / "manifest.json").read_text()) for path in (tmp_path / "copy", out)
    )
    assert after["files"] == before["files"]


def test_the_share_of_bytes_is_not_said_where_records_have_no_text():
    counts = {"records": 200, "bytes": 0, "rejected": {"tokens": [64, 0]}}
    assert step_lines([{"name": "filter_length", **counts}]) == [
        "filter_length: kept 136 of 200; rejected: tokens 64"
    ]


def test_steps_by_option_that_make_tokens_come_last_with_the_settings_of_both(tmp_path, out, cli):
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n{"text": "c"}\n')
    given = (
        "--tokenizer",
        "bytes",
        "--block-length",
        4,
        "--step",
        "pack eos=7",
        "--step",
        "whitespace",
        "--workers",
        0,
    )
    assert cli("convert", tmp_path / "in.jsonl", out, *given).code == 0
    recipe = json.loads((out / "manifest.json").read_text())["recipe"]["transform"]
    assert [step["name"] for step in recipe] == ["whitespace", "tokenize", "pack"]
    assert (recipe[-1]["length"], recipe[-1]["eos"]) == (4, 7)


def test_a_dry_run_expects_as_many_rejects_as_it_has_tried(tmp_path, out):
    """The step rejects half of the texts."""
    (tmp_path / "in.jsonl").write_text(
        "".join(json.dumps({"text": f"{number} {'ab'[number % 2]}"}) + "\n" for number in range(60))
    )
    recipe = {"transform": [{"name": "no_b"}]}
    planned = convert(tmp_path / "in.jsonl", out, recipe=recipe, dry_run=True)
    assert planned.samples == convert(tmp_path / "in.jsonl", out, recipe=recipe).samples == 30


def test_texts_are_required_in_a_sentence(tmp_path):
    (tmp_path / "in.jsonl").write_text('{"body": "a"}\n')
    with pytest.raises(
        InputError,
        match="no_b takes texts, but the records have none: they have body; text_field=FIELD",
    ):
        convert(
            tmp_path / "in.jsonl",
            tmp_path / "out",
            recipe={"transform": [{"name": "no_b"}]},
        )


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
