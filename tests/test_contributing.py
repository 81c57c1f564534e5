"""The worked examples of CONTRIBUTING.md: each is added to a copy of shardctl, as the page says,
and tried."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from object_server import ObjectServer

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"### (Add [^\n]+)\n(.*?)(?=\n### |\Z)", PAGE, re.DOTALL))

FILE = re.compile(r"\*\*New file\*\* `([^`]+)`:\n\n```python\n(.*?)```", re.DOTALL)
LINE = re.compile(
    r"\*\*New line\*\* in `([^`]+)`, below `([^`]+)`:\n\n```text\n(.*?)```", re.DOTALL
)
TRIAL = re.compile(r"\*\*Try it\*\*.*?```sh\n(.*?)```", re.DOTALL)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of what the examples change: the package, the docs, and the scripts that write the
    docs."""
    for name in ("shardctl", "docs", "scripts/docs"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.webp")
        )
    return tmp_path


def add(example: str, copy: Path) -> None:
    """Do what an example says: write its file, and put a line into each table below the one that is
    named."""
    ((path, content),) = FILE.findall(example)
    assert not (copy / path).exists()
    (copy / path).write_text(content, encoding="utf-8")
    for path, below, line in LINE.findall(example):
        lines = (copy / path).read_text(encoding="utf-8").splitlines(keepends=True)
        (place,) = (number for number, each in enumerate(lines) if each.lstrip().startswith(below))
        (copy / path).write_text(
            "".join([*lines[: place + 1], line, *lines[place + 1 :]]), encoding="utf-8"
        )


@pytest.mark.thorough
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_sibling_is_one_file_and_one_line_and_works(name, copy):
    add(EXAMPLES[name], copy)
    (trial,) = TRIAL.findall(EXAMPLES[name])
    tools = copy / "bin"
    tools.mkdir()
    for command, runs in (("shardctl", "-m shardctl"), ("python", "")):
        (tools / command).write_text(f'#!/bin/sh\nexec {sys.executable} {runs} "$@"\n')
        (tools / command).chmod(0o755)
    with ObjectServer() as server:
        server.make_bucket("bucket")
        variables = {
            **server.environment,
            "R2_ENDPOINT": server.environment["AWS_ENDPOINT_URL"],
            "PYTHONPATH": str(copy),
        }
        variables["PATH"] = f"{tools}:{os.environ['PATH']}"
        command = ["bash", "-e", "-o", "pipefail", "-c", trial]
        done = subprocess.run(
            command, cwd=copy, env={**os.environ, **variables}, capture_output=True, text=True
        )
    assert done.returncode == 0, f"{trial}\n{done.stdout}\n{done.stderr}"


def test_every_kind_of_sibling_has_an_example():
    kinds = (
        "image step, text step, input format, export, object store, engine, command, shard check"
    )
    assert {re.sub(r"^Add an? ", "", name) for name in EXAMPLES} == {*kinds.split(", ")}
