"""What --json prints is what docs/json.schema.json says, key by key; and it is JSON whatever goes
wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from dataset_files import shard_in
from in_this_process import convert
from remote_datasets import upload
from token_samples import packed_blocks, write_packed

import shardctl
from shardctl.benchmark import advice

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / "json.schema.json").read_text(encoding="utf-8")
)
RECORD = {"inspect": "record"}
"""The keys of the first record are also those of the command."""


def of_command(command: str) -> dict[str, Any]:
    """Return the schema of what a command prints, with all keys that it has."""
    found = SCHEMA["$defs"][command]
    more = SCHEMA["$defs"].get(RECORD.get(command), {}).get("properties", {})
    return {**found, "properties": {**more, **found["properties"]}}


def keys(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Yield the keys that a schema names: a.b of an object, a[].b of the objects of a list."""
    schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}{name}"
        yield from keys(inner, f"{path}{name}.")
        yield from keys(inner.get("items", {}), f"{path}{name}[].")


def found_keys(value: Any, known: set[str], path: str = "") -> Iterator[str]:
    """Yield the keys of a record that the schema names or should name. Below a key without keys of
    its own everything is data."""
    for name, part in value.items() if isinstance(value, dict) else ():
        key = f"{path}{name}"
        yield key
        for mark, inner in ((".", [part]), ("[].", part)):
            below = {each for each in known if each.startswith(f"{key}{mark}")}
            if isinstance(inner, list) and below:
                yield from (below if not inner else ())  # nothing to tell its keys from
                for each in inner:
                    yield from found_keys(each, known, f"{key}{mark}")


@pytest.fixture
def source(photos: Path, tmp_path: Path) -> Path:
    """30 of the demo's photos, one of them broken."""
    for name in ("dunes", "forest", "snow"):
        shutil.copytree(photos / name, tmp_path / "in" / name)
    min((tmp_path / "in").rglob("*.jpg")).write_bytes(b"bad")
    return tmp_path / "in"


@pytest.fixture
def check(cli: Any) -> Any:
    """Run a command with --json several ways; the keys of all its answers together must be those of
    the schema."""

    def check(command: str, *ways: list[object]) -> None:
        schema = of_command(command)
        known, seen = set(keys(schema)), set[str]()
        for way in ways:
            ran = cli(*command.split(), *way, "--json")
            assert "error" not in ran.json, ran.json
            assert ran.out.count("\n") == 1
            jsonschema.validate(ran.json, {**SCHEMA, **schema})
            found = set(found_keys(ran.json, known))
            assert found <= known, f"{command} {way}: no schema of {sorted(found - known)}"
            seen |= found
        assert known <= seen, f"{command} does not print {sorted(known - seen)}"

    return check


def test_demo(check, tmp_path):
    check("demo", [tmp_path / "demo", "--images", 6])


def test_export(check, tmp_path):
    samples = [{"tokens": [1, 2], "loss_mask": [1, 0]}]
    shardctl.write(tmp_path / "in", samples, roles={"tokens": {"role": "tokens", "eos": 3}})
    check("export", [tmp_path / "in", tmp_path / "out", "--to", "megatron"])


def test_tokenizer(check, tmp_path):
    (tmp_path / "in.txt").write_text("some words, and some more words\n")
    made = tmp_path / "made.txt"
    check(
        "tokenizer train",
        [tmp_path / "in.txt", made, *"--kind words --vocab-size 20 --workers 0".split()],
    )
    check("tokenizer show", [made], ["bytes"])


def test_convert(check, source, tmp_path, out):
    followed = tmp_path / "followed"
    convert(source, followed)
    next(path for path in source.rglob("*") if path.is_file()).touch()
    update = [source, followed, "--update", "--workers", 0]
    explain = [source, followed, "--explain", "--resize", 8]
    part = [source, tmp_path / "parts", "--part", "1/2", "--workers", 0]
    check(
        "convert",
        explain,
        [source, out, "--dry-run"],
        [source, out, "--workers", 0],
        [source, out],
        update,
        part,
    )


def test_verify_and_repair(check, source, out):
    convert(source, out)
    shard_in(out).unlink()
    check("verify", [out])
    shutil.rmtree(source)
    check("repair", [out, "--workers", 0])


def test_compact_and_prune(check, source, out, cli):
    convert(source, out)
    check("prune", [out, "--where", "label == 0", "--dry-run"])
    assert cli("prune", out, "--where", "label == 0").code == 0
    check("compact", [out])


def test_inspect(check, source, tmp_path):
    out, other = tmp_path / "out", tmp_path / "other"
    varied = tmp_path / "varied"
    convert(source, out, split="train=0.7,val=0.3")
    convert(source, other, resize=8, labels="none")
    convert(source, varied, random_crop=8, variants=2)
    tokens = write_packed(
        tmp_path / "tokens", packed_blocks({"a": "a document", "b": "another one, and longer"})
    )
    ways = [
        "--stats",
        "--shard 0 --block 0",
        "--shard 0 --row 0",
        "--history",
        "--split val",
        "--files",
    ]
    written = [out, "--head", 1, "--save", tmp_path / "saved", "--images", tmp_path / "sheet.png"]
    check(
        "inspect",
        *([out, *way.split()] for way in ways),
        *([out, "--where", "label == 1"], [out, "--diff", other]),
        *(written, [out, "--html", tmp_path / "page.html"], [varied]),
        *([tokens], [tokens, "--key", "b"], [tokens, "--head", 1]),
    )


def test_preview(check, source, tmp_path):
    shown = [source, *"--flip 0.5 --inputs 3 --workers 0".split()]
    check("preview", shown, [*shown, "--html", tmp_path / "p.html", "--images", tmp_path / "p.png"])


@pytest.mark.thorough
def test_bench(check, raw_dataset, tmp_path, cli, monkeypatch, bucket):
    monkeypatch.setattr("shardctl.benchmark.measure.SETTING_SECONDS", 0.01)
    short = [raw_dataset, *"--seconds 0.02 --runs 1 --threads 1".split()]
    before = tmp_path / "before.json"
    before.write_text(cli("bench", *short, "--json").out)
    shardctl.export(raw_dataset, tmp_path / "shards", "parquet", workers=0)
    page = ["--html", tmp_path / "page.html"]
    ways = [
        [*short, "--consumer-rate", 5000, "--baseline", *page],
        [*short, "--sweep", "--compare", before],
        ["--list-consumers"],
    ]
    ways.append([upload(raw_dataset, f"{bucket}/out"), *short[1:], "--cache", tmp_path / "cache"])
    check("bench", *ways, [tmp_path / "shards", "--against", "--seconds", 0.02, "--runs", 1])


def test_cache(check, raw_dataset, tmp_path, bucket):
    urls = [upload(raw_dataset, f"{bucket}/{name}") for name in ("used", "unused")]
    used = shardctl.open(urls[0], cache=tmp_path)
    shardctl.open(urls[1], cache=tmp_path)
    check("cache ls", [tmp_path])
    check("cache clear", [tmp_path])
    assert used[0]


def test_advise(check, photos, monkeypatch):
    monkeypatch.setattr(advice, "ROUND_SECONDS", 0.02)
    monkeypatch.setattr(advice, "PROOF_SECONDS", 0.1)
    monkeypatch.setattr(advice, "PLACING_SECONDS", 0.1)
    given = [
        photos,
        *"--random-crop 8 --consumer-rate 1000 --inputs 8 --workers 0 --lossless".split(),
    ]
    check("advise", [*given, "--bandwidth", "1MB"])


def test_recipe(check, photos, tmp_path, out):
    (tmp_path / "good.toml").write_text('[[transform]]\nname = "crop"\nsize = 8\n')
    (tmp_path / "bad.toml").write_text("seed = -1\n")
    check("recipe check", [tmp_path / "good.toml"], [tmp_path / "bad.toml"])
    convert(photos, out, recipe=tmp_path / "good.toml", shuffle=1)
    check("recipe show", [out], ["@imagenet"])
    check("recipe list", [])
    check("recipe steps", [], ["resize"])


def test_help_and_completion(check):
    check("help", [], ["inputs"], ["convert"], ["no-such-input"], ["resize"], ["EXIF"])
    check("completion", ["bash"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["convert", "in"], "it needs DST, where the dataset is to be written"),
        (["convert", "in", "out", "--workers", "many"], "neither auto nor a whole number"),
        (["polish"], "there is no command 'polish'"),
    ],
)
def test_wrong_usage_is_json_too(cli, arguments, message):
    for with_json in ([*arguments, "--json"], [arguments[0], "--json", *arguments[1:]]):
        ran = cli(*with_json)
        assert (ran.code, ran.json["exit_code"], ran.err) == (2, 2, "")
        assert message in ran.json["error"]


NOISY = """
import os
print("import noise")
def say(sample):
    print("noise of a function")
    os.write(1, b"noise of compiled code\\n")
    return sample
"""


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("workers", [0, 1])
def test_what_functions_print_is_kept_out_of_the_json(cli, photos, tmp_path, monkeypatch, workers):
    (tmp_path / f"noisy{workers}.py").write_text(NOISY)
    monkeypatch.syspath_prepend(tmp_path)
    options = f"--transform noisy{workers}:say --workers {workers} --json".split()
    ran = cli("convert", photos, tmp_path / "out", *options)
    assert json.loads(ran.out)["samples"] == 60
    assert "import noise" in ran.err
    if workers == 0:
        assert "noise of a function" in ran.err
        assert "noise of compiled code" in ran.err


def test_most_inputs_rejected_is_said_on_stderr(cli, source, tmp_path):
    for path in sorted(source.rglob("*.*"))[:20]:
        path.write_bytes(b"bad")
    for options in ([], ["-q"], ["--json"]):
        allowed = ("--workers", 0, "--max-rejects", "100%")
        ran = cli("convert", source, tmp_path / "out", *allowed, *options)
        assert ran.code == 0
        assert "warning: 20 of 30 inputs (66.7%) could not be converted" in ran.err
    assert ran.json["warnings"][0].startswith("20 of 30 inputs (66.7%)")


@pytest.mark.thorough
def test_what_a_consumer_prints_is_kept_out_of_the_json(cli, raw_dataset, tmp_path, monkeypatch):
    monkeypatch.setattr("shardctl.benchmark.measure.consumers.OWN_SECONDS", 0.01)
    (tmp_path / "noisy_step.py").write_text("def step(batch):\n    print('noise of a step')\n")
    monkeypatch.syspath_prepend(tmp_path)
    ran = cli(
        "bench", raw_dataset, *"--consumer noisy_step:step --seconds 0.02 --runs 1 --json".split()
    )
    assert ran.json["consumer"] == "noisy_step:step"
    assert "noise of a step" in ran.err
