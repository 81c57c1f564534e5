"""The whole way of texts, from files to blocks and back: nothing is lost for any number of workers,
nor after kills."""

from __future__ import annotations

import re
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import plain_text_steps as plain
import pytest
from conftest import examples
from dataset_facts import sums
from dataset_files import content_of, tables_in
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import convert
from json_lines import texts_in
from stopping import stopped_at
from text_to_blocks import assert_decodes_to, convert_thrice

import shardctl
from shardctl.cli import run
from shardctl.making.shards import task

WORDS = re.findall(
    r"\w+",
    "the quiet boat drifts past a row of lamps while rain falls on warm stone and nobody speaks",
)

CLEANING = [
    {"name": "normalize", "unicode": "NFC"},
    {"name": "whitespace"},
    {"name": "deduplicate"},
]
"""The steps before tokens, as every recipe here has them."""


def to_blocks(tokenizer: str, length: int, method: str) -> list[dict[str, object]]:
    return [
        *CLEANING,
        {"name": "tokenize", "tokenizer": tokenizer},
        {"name": "pack", "length": length, "method": method},
    ]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of many lines, texts of one file each, and a tokenizer that was trained on them."""
    folder = tmp_path_factory.mktemp("texts")
    for number in range(6):
        lines = (
            " ".join(WORDS[(row * number + place) % len(WORDS)] for place in range(row % 40))
            for row in range(60)
        )
        texts = [f"{line} café naïve 数据 {number}" for line in lines]
        texts_in(folder / "lines" / f"{number}.jsonl", texts)
    shardctl.train_tokenizer(
        folder / "lines", tables_in(folder) / "tokenizer.json", vocab_size=400, workers=0
    )
    return folder


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["concat", "bfd"])
def test_blocks_are_the_cleaned_texts_whoever_works(corpus, tmp_path, method):
    steps = to_blocks(str(tables_in(corpus) / "tokenizer.json"), 64, method)
    out = convert_thrice(corpus / "lines", tmp_path, {"transform": steps}, samples_per_shard=40)
    convert(corpus / "lines", tmp_path / "cleaned", recipe={"transform": CLEANING})
    assert_decodes_to(
        out, {sample["key"]: sample["text"] for sample in shardctl.open(tmp_path / "cleaned")}
    )


@pytest.mark.thorough
def test_a_killed_conversion_goes_on_and_ends_with_the_same_blocks(
    corpus, tmp_path, out, monkeypatch
):
    recipe = {"transform": to_blocks(str(tables_in(corpus) / "tokenizer.json"), 64, "bfd")}
    make = partial(convert, corpus / "lines", recipe=recipe, samples_per_shard=12)
    make(tmp_path / "whole")
    again = partial(make, out)
    assert stopped_at(20, "kill", task, "build_shard", again, monkeypatch)
    assert again().status == "resumed"
    assert sums(out) == sums(tmp_path / "whole")


@given(
    texts=st.lists(st.text(max_size=60), min_size=1, max_size=8),
    method=st.sampled_from(["concat", "bfd"]),
)
@examples(10)
def test_any_texts_come_back_from_blocks(corpus, texts, method):
    """But for those that are empty once they are cleaned, which are rejects."""
    given_texts = [*texts, "one that stays"]
    source = texts_in(corpus / "drawn.jsonl", given_texts)
    steps = to_blocks(str(tables_in(corpus) / "tokenizer.json"), 8, method)
    options = {"overwrite": True, "max_rejects": "100%"}
    convert(source, corpus / "drawn", recipe={"transform": steps}, **options)
    cleaned = {}
    for number, text in enumerate(given_texts, 1):
        clean = plain.whitespace(plain.normalize(text))
        if clean and clean not in cleaned.values():
            cleaned[f"drawn.jsonl#{number}"] = clean
    assert_decodes_to(corpus / "drawn", cleaned)


def test_the_source_of_a_block_is_the_file_of_its_first_document(corpus, out, cli):
    recipe = {"transform": to_blocks(str(tables_in(corpus) / "tokenizer.json"), 64, "bfd")}
    convert(corpus / "lines", out, recipe=recipe, samples_per_shard=1000)
    for row in range(0, len(shardctl.open(out)), 7):
        found = cli("inspect", out, "--shard", "train-00000", "--row", row, "--json").json
        assert found["source"] == str(corpus / "lines" / found["values"]["key"].partition("#")[0])


@pytest.mark.thorough
def test_the_page_about_text_leads_from_files_to_a_loop(tmp_path, monkeypatch):
    """Its first section, as it stands there, on a small corpus; the recipe makes the same blocks as
    the options."""
    page = (Path(__file__).parents[2] / "docs" / "text.md").read_text(encoding="utf-8")
    section = page.partition("## From a folder of files to a training loop")[2].partition("\n## ")[
        0
    ]
    shell, toml, loop = (
        re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL)[0]
        for kind in ("sh", "toml", "python")
    )
    monkeypatch.chdir(tmp_path)
    Path("corpus").mkdir()
    for number in range(40):
        Path("corpus", f"{number}.txt").write_text(
            " ".join(WORDS[(number * place) % len(WORDS)] for place in range(900))
        )
    for line in shell.replace("\\\n", "").splitlines():
        assert run(shlex.split(line.replace("shardctl ", "", 1))) == 0, line
    Path("text.toml").write_text(toml)
    assert run("convert corpus again --recipe text.toml --split train=0.9,val=0.1".split()) == 0
    assert content_of("out") == content_of("again")
    names: dict[str, Any] = {}
    exec(loop.replace("ds.loader(16", "ds.loader(4"), names)
    assert names["inputs"].shape[1] == names["labels"].shape[1] == 1024
