"""What `advise` recommends."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st

import shardctl
from shardctl.benchmark import advice
from shardctl.benchmark.network import Epoch, OverNetwork
from shardctl.errors import InputError, UsageError
from shardctl.transforms.recipe_files.reading import load_recipe, recipe_toml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CROP = {"transform": [{"name": "resize", "size": 40}, {"name": "crop", "size": 32}]}
WORDS = "--resize 40 --crop 32 --inputs 8 --batch-size 4 --workers 0 --consumer-rate".split()


pytestmark = pytest.mark.usefixtures("short_rounds")


def advised(source: Path, recipe: Any = None, **options: Any) -> Any:
    usual = {"inputs": 8, "batch_size": 4, "workers": 0}
    if "consumer" not in options:
        usual["consumer_rate"] = 20
    return shardctl.advise(source, recipe, **{**usual, **options})


@pytest.mark.thorough
def test_the_smallest_that_keeps_up_is_recommended_and_proven(photos):
    found = advised(photos, CROP, inputs=24)
    possible = [choice for choice in found.choices if choice.error is None]
    names = {choice.name for choice in possible}
    assert names == {"jpeg:90", "webp:80", "png", "raw none", "raw lz4", "raw zstd"}
    sizes = [choice.sample_bytes for choice in possible]
    assert sizes == sorted(sizes)
    assert found.best == possible[0]
    assert found.keeps_up
    assert found.proven >= 0.9
    assert (found.inputs, found.tried, found.rejected) == (60, 24, 0)
    assert found.placements == ()
    assert found.total_bytes == pytest.approx(60 * found.best.sample_bytes, abs=60)
    assert (found.blocks, {choice.ratio for choice in found.choices}) == (None, {None})
    (source,) = [choice for choice in found.choices if choice.error is not None]
    assert "store source keeps the original bytes" in str(source.error)
    # without transforms the original bytes are a choice, and pixels need one size
    by_name = {choice.name: choice for choice in advised(photos).choices}
    assert by_name["source"].error is None
    assert "one size of all images" in str(by_name["raw none"].error)


@pytest.mark.thorough
def test_it_says_where_the_random_steps_belong(cli, photos, tmp_path, monkeypatch):
    once, random = CROP["transform"][:1], [{"name": "random_crop", "size": 32}]
    random.append({"name": "color_jitter", "brightness": 0.4})
    ways = {
        each.where: each for each in advised(photos, {"transform": [*once, *random]}).placements
    }
    assert list(ways) == ["conversion", "variants", "reading"]
    assert [each.views for each in ways.values()] == [1, 4, None]
    assert all(each.keeps_up and each.samples_per_s > 20 for each in ways.values())
    assert ways["variants"].input_bytes == 4 * ways["conversion"].input_bytes
    # those that the recipe does while reading are not asked about a second time
    split = advised(photos, {"transform": once, "reading": random})
    assert [each.where for each in split.placements] == list(ways)
    # what a loader cannot do is said, and the rest of the advice stays
    (tmp_path / "choosing.py").write_text(
        'def some(sample):\n    return sample if "dunes" in sample["key"] else None\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    left = advised(photos, {"transform": [{"name": "custom", "target": "choosing:some"}]})
    assert left.keeps_up
    assert "choosing:some left it out" in str(left.placements[-1].error)
    # nothing is done once: the original bytes stay
    found = cli("advise", photos, "--step", "random_crop size=32", *WORDS[4:], "20")
    assert re.search(r"\* +under \[\[reading\]\] +source .* a new one in each epoch", found.out)


@pytest.mark.thorough
def test_where_none_is_fast_enough_the_fastest_is_named(cli, photos):
    found = cli("advise", photos, *WORDS, "1e9")
    assert found.code == 1
    (named,) = re.findall(r"NONE keeps it busy on this machine; (.*) is the fastest", found.out)
    rows = re.findall(r"(?m)^ *\*? *(\S+(?: \S+)?)  +.*  ([\d,]+) +0%", found.out)
    rates = {name: int(rate.replace(",", "")) for name, rate in rows}
    assert len(rates) == 6
    assert rates[named] == max(rates.values())


@pytest.mark.thorough
def test_text_is_tried_with_every_compression(cli, demo, tmp_path, out):
    recipe, lines = tmp_path / "recipe.toml", demo / "lines.jsonl"
    options = "--consumer mpt-7b-h100 --inputs 20 --batch-size 4 --workers 0 --write".split()
    found = cli("advise", lines, *options, recipe)
    assert found.code == 0
    assert "20 of 50 inputs tried" in found.out
    assert all(name in found.out for name in ("none", "lz4", "zstd:1", "zstd:3", "zstd:9"))
    assert cli("convert", lines, out, "--recipe", recipe, "--workers", 0).code == 0
    assert shardctl.open(out).manifest.recipe["compression"] == load_recipe(recipe)["compression"]


def test_what_cannot_be_advised_on_is_refused(photos):
    for options, message in (
        ({}, "how fast is the consumer"),
        ({"consumer_rate": 1, "consumer": "resnet50-a100"}, "how fast is the consumer"),
        ({"consumer_rate": -1}, "consumer_rate must be a number, over 0"),
        ({"consumer": "resnet"}, "did you mean"),
        ({"consumer": "mine:step"}, "takes presets"),
        ({"consumer_rate": 1000, "recipe": {"store": "raw"}}, "itself decides store"),
        ({"consumer_rate": 0.001}, "give a smaller batch_size$"),
        ({"consumer_rate": 1000, "bandwidth": "2Gb"}, "not clear"),
        ({"consumer_rate": 1000, "latency": "30ms"}, "latency needs bandwidth"),
    ):
        with pytest.raises(UsageError, match=message):
            shardctl.advise(photos, **{"inputs": 2, **options})


def test_sources_that_are_not_there_or_no_images_are_said(cli, tmp_path):
    refused = cli("advise", tmp_path / "absent", "--consumer-rate", 1000)
    assert (refused.code, "no such file or folder" in refused.err) == (3, True)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "bad.jpg").write_bytes(b"bad")
    with pytest.raises(InputError, match=r"\(1 rejected\).*bad\.jpg: not an image [^/]*$"):
        shardctl.advise(tmp_path / "in", consumer_rate=1000)


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@examples(100)
@given(names, st.integers(0, 2**60), st.floats(0, 1))
def test_a_recipe_is_read_as_it_was_written(target, seed, chance):
    steps = [{"name": "hflip", "p": chance}, {"name": "custom", "target": target}]
    settings = {"kind": "image", "store": "raw", "seed": seed, "transform": steps}
    assert tomllib.loads(recipe_toml(settings)) == settings


@pytest.mark.thorough
def test_of_text_it_says_how_it_compresses_and_what_blocks_cost(tmp_path, cli):
    """Texts of 2,396 to 2,400 bytes: 600 tokens and the one that ends them, so that a block of
    1,024 has one of them."""
    lines = [json.dumps({"text": f"{number:04}" + "text " * 479}) for number in range(40)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    found = advised(tmp_path / "in.jsonl", inputs=30)
    ratios = {choice.name: choice.ratio for choice in found.choices}
    assert ratios["none"] == 1.0
    assert ratios["zstd:9"] > 3
    assert all(each.decode_mb_per_s > 0 for each in found.choices if each.compression != "none")
    assert facts_of(found.blocks) == (30, 601, 601, True)
    costs = {(each.length, each.method): (each.cut, each.padding) for each in found.blocks.choices}
    assert costs[512, "bfd"][0] == costs[512, "none"][0] == 1.0
    alone = (0.0, pytest.approx(1 - 601 / 1024, abs=1e-4))
    assert costs[1024, "bfd"] == costs[1024, "none"] == alone
    assert costs[2048, "bfd"] == (0.0, pytest.approx(1 - 3 * 601 / 2048, abs=1e-3))
    assert costs[1024, "concat"][1] < 0.001
    assert costs[1024, "concat"][0] == pytest.approx(600 / 1024, abs=0.02)
    shown = cli("advise", tmp_path / "in.jsonl", *WORDS[4:], 20)
    assert "documents have 601 to 601 tokens, 601 at the median (estimated" in shown.out
    assert "MB/s" in shown.out


def facts_of(blocks: Any) -> tuple[Any, ...]:
    return blocks.documents, blocks.low, blocks.high, blocks.estimated


@pytest.mark.thorough
def test_a_recipe_that_packs_tokens_is_advised_by_its_documents(tmp_path):
    lines = [json.dumps({"text": "x" * (50 + number)}) + "\n" for number in range(40)]
    (tmp_path / "in.jsonl").write_text("".join(lines))
    steps = [
        {"name": "tokenize", "tokenizer": "bytes"},
        {"name": "pack", "length": 128, "method": "concat"},
    ]
    given = {"consumer": "mpt-1b-h100", "inputs": 40}
    found = advised(tmp_path / "in.jsonl", {"transform": steps}, **given)
    assert (found.inputs, found.tried) == (40, 40)
    assert facts_of(found.blocks) == (40, 51, 90, False)
    # 2,820 tokens are in 23 blocks
    assert found.rate == pytest.approx(45_455 / (40 * 70.5 / 23), rel=0.01)
    assert found.total_bytes < 2 * found.best.sample_bytes * 23


@pytest.mark.thorough
def test_what_is_recommended_changes_with_the_bandwidth(photos):
    """The bandwidth is chosen between what raw pixels of 32 x 32 need and what JPEGs of them do."""

    def starving(found: advice.Advice) -> set[str]:
        tried = [choice for choice in found.choices if choice.network is not None]
        return {each.name for each in tried if each.network.first.verdict == "starves"}

    fast = advised(photos, CROP, bandwidth="1Gbit", latency="1ms")
    assert fast.keeps_up
    assert starving(fast) == set()
    sizes = {choice.name: choice.sample_bytes for choice in fast.choices if choice.error is None}
    between = (sizes["jpeg:90"] + sizes["raw none"]) / 2
    slow = advised(photos, CROP, bandwidth=f"{20 * between:.0f}B")
    assert slow.best.sample_bytes < between
    assert "raw none" in starving(slow)


def choice(name: str, size: float, first: bool, later: bool, rate: float) -> advice.Choice:
    """A choice that keeps up with local data, with these verdicts over a network."""
    verdicts = [
        Epoch(rate, 1.0, "network", "keeps-up" if verdict else "starves")
        for verdict in (first, later)
    ]
    far = OverNetwork(rate, "bandwidth", 1.0, 0.0, *verdicts)
    return advice.Choice(name, "none", True, size, 1000.0, 1.0, network=far)


def test_the_smallest_that_keeps_up_in_every_epoch_comes_first_then_what_the_cache_makes_fast():
    tried = [
        choice("a", 1, False, False, 100),
        choice("b", 2, False, True, 300),
        choice("c", 3, False, True, 400),
        choice("d", 5, True, True, 900),
        choice("e", 4, True, True, 800),
        dataclasses.replace(choice("f", 0, True, True, 900), utilization=0.5),
    ]
    assert [each.store for each in advice.ranked(tried)] == ["e", "d", "c", "b"]


@pytest.mark.thorough
def test_the_command_says_what_the_network_and_the_cache_do(cli, photos):
    network = "--lossless --bandwidth 800bit --latency 30ms --cache-limit 1GB".split()
    found = cli("advise", photos, *WORDS, 20, *network)
    assert found.code == 1
    assert "computed for a store (100 B/s, 30 ms, a cache of 953.7 MiB):" in found.out
    assert re.search(r"(?m)^ *\*? +raw none .* starves it \(network\) .* keeps up +100%", found.out)
    assert "first epoch: the network is the slowest part (its bandwidth)" in found.out
    assert "later epochs: the consumer is the slowest part" in found.out
    local = cli("advise", photos, *WORDS, 20, "--lossless", "--json").json
    assert all(choice["lossless"] for choice in local["choices"])
    assert local["best"]["store"] in ("png", "raw")
    assert local["keeps_up"] is True
    assert local["recipe_toml"].startswith('kind = "image"')
