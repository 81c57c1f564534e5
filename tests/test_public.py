"""The names in `shardctl` itself: one table says where each is, and the imports that type checkers
read agree with it."""

from __future__ import annotations

import importlib
import inspect
import pickle
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import shardctl
from shardctl.errors import ShardctlError
from shardctl.making.options import chosen_options, convert_options

ROOT = Path(shardctl.__file__).parents[1]


def test_type_checkers_read_every_public_function_with_its_options():
    written = (ROOT / "shardctl" / "__init__.pyi").read_text(encoding="utf-8")
    assert (
        written == runpy.run_path(str(ROOT / "scripts" / "docs" / "write_signatures.py"))["stub"]()
    ), "run `make docs`"
    convert = written[written.index("def convert(") :].partition(") ->")[0]
    assert all(f"    {name}: " in convert for name in convert_options())


def test_all_public_names_are_there_and_sorted():
    assert {*shardctl.__all__} == {"__version__", *shardctl._PUBLIC}
    assert list(shardctl._PUBLIC) == sorted(shardctl._PUBLIC)
    for name, (module, attribute) in shardctl._PUBLIC.items():
        assert inspect.unwrap(getattr(shardctl, name)) is inspect.unwrap(
            getattr(importlib.import_module(module), attribute)
        )
    public = {name for name in dir(shardctl) if name[0] != "_"}
    assert public == {*shardctl._PUBLIC, *shardctl._ADAPTERS}


def test_public_functions_can_be_handed_to_other_processes():
    for name in shardctl._PUBLIC:
        assert pickle.loads(pickle.dumps(getattr(shardctl, name))) is getattr(shardctl, name)


CALLERS = """
import shardctl

shardctl.convert("photos", "out", resize=256, crop=(224, 200), store="raw", split={"train": 0.9, "val": 0.1}, shuffle=True)
shardctl.convert("photos", "out", rezise=256)
shardctl.convert("photos", "out", workers=[1])
shardctl.bench("out", consumer_rate=2500.0, batch_size="a")
"""


def test_a_type_checker_finds_wrong_arguments(tmp_path):
    (tmp_path / "callers.py").write_text(CALLERS)
    # Only the signatures are read, and not the code behind them, which takes half a minute.
    options = ["--cache-dir", str(tmp_path / "cache"), "--config-file=", "--follow-imports=skip"]
    files = [str(tmp_path / "callers.py"), str(ROOT / "shardctl" / "__init__.pyi")]
    environment = {"MYPYPATH": str(ROOT), "PATH": ""}
    found = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *files],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    )
    lines = [
        line.split(": ", 2)
        for line in found.stdout.splitlines()
        if "callers.py" in line and ": error: " in line
    ]
    assert [place.rpartition(":")[2] for place, *_ in lines] == ["5", "6", "7"], found.stdout


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: shardctl.convert("in", "out", coco="a"), "convert has no argument 'coco'"),
        (lambda: shardctl.verify("out", levl="quick"), "'levl'; did you mean level?"),
        (
            lambda: shardctl.convert("in", "out", update=True, overwrite=True),
            "update=True and overwrite=True contradict",
        ),
        (
            lambda: shardctl.convert("in", "out", crop=1, random_crop=2),
            "crop and random_crop contradict each other",
        ),
        (lambda: shardctl.convert("in", "out", max_rejects="many"), "max_rejects='many' is not"),
        (lambda: shardctl.convert("in", "out", filter_quality=["gofer"]), "must be gopher, c4"),
        (lambda: shardctl.convert("", "out"), "the source is a path; it is ''"),
        (lambda: shardctl.convert("in", "out", listener=print), "convert.listener.Listener"),
        (lambda: shardctl.bench("out", gpus=2), "Give consumer or consumer_rate too"),
        (lambda: shardctl.train_tokenizer("in", "t", vocab_size="4k"), "must be a whole number"),
        (lambda: shardctl.train_tokenizer("in", "t", special_tokens="a"), "takes a list"),
        (lambda: shardctl.train_tokenizer("in"), "'out'; write train_tokenizer(src, out, …)"),
        (lambda: shardctl.Dataset("out"), "Dataset takes no str; write shardctl.open(path)"),
        (lambda: shardctl.Mix("out"), "write shardctl.mix([a, b], [0.5, 0.5])"),
        (lambda: shardctl.Loader(), "write ds.loader(256)"),
        (lambda: shardctl.convert([1] * 99, "out"), "shardctl.write takes samples; it is [1, 1"),
        (lambda: shardctl.convert("in", "out", transforms=[{}]), "such as 'module:function'"),
        (lambda: shardctl.verify(["out"]), "path must be a path or a URL; it has the type list"),
        (lambda: shardctl.open("~/out"), "write Path('~/out').expanduser()"),
        (lambda: shardctl.open("out", split=["train", "val"]), "split is one name, or None"),
        (lambda: shardctl.open("out", cache_limit="lots"), "cache_limit: 'lots' is not a size"),
    ],
)
def test_messages_name_arguments(call, message):
    with pytest.raises(ShardctlError) as refused:
        call()
    assert message in str(refused.value)
    assert "--" not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "typed"),
    [
        ({"tokenizer": Path("tok.json")}, {"tokenizer": "tok.json"}),
        ({"redact": ["email", "ip"]}, {"redact": "email,ip"}),
        ({"fields": ["text", "label"]}, {"fields": "text,label"}),
        ({"fields": {"text": "body"}}, {"fields": "text=body"}),
        ({"schema": {"text": "string", "n": "int64"}}, {"schema": "text:string,n:int64"}),
        ({"schema": Path("types.txt")}, {"schema": "types.txt"}),
        ({"split": {"train": 0.9, "val": 0.1}}, {"split": "train=0.9,val=0.1"}),
        ({"filter_quality": "c4"}, {"filter_quality": ("c4",)}),
        ({"transforms": "m:f"}, {"transforms": ("m:f",)}),
        ({"flip": 0}, {"steps": ["hflip p=0"]}),
    ],
)
def test_python_says_the_same_in_its_own_types(given, typed):
    assert chosen_options("convert", None, given) == chosen_options("convert", None, typed)
