"""An engine of another kind needs nothing but the protocol, and is one file."""

from __future__ import annotations

import errno
import re
import sys

import pytest
from followed_sources import write
from in_this_process import convert

import shardctl
from shardctl.errors import InstallError, UsageError
from shardctl.making.shards import inputs
from shardctl.making.shards.engines import local
from shardctl.making.shards.engines.local import Engine
from shardctl.system.packages import install_line


def test_a_disk_error_costs_one_input_where_others_answer(tmp_path, out, monkeypatch):
    """To tell, other inputs of the plan are tried, also for the probe of a
    user's functions."""
    write(tmp_path / "same_steps.py", "def same(sample):\n    return sample\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in "abcd":
        write(tmp_path / "in" / f"{name}.txt", name)
    read = inputs.read_file

    def bad_sector(path: str, size: int) -> object:
        if path.endswith("b.txt"):
            raise OSError(errno.EIO, "Input/output error")
        return read(path, size)

    monkeypatch.setattr(inputs, "read_file", bad_sector)
    monkeypatch.setattr(local, "start", lambda *_: Engine())
    steps = {"kind": "text", "transform": [{"name": "custom", "target": "same_steps:same"}]}
    result = convert(tmp_path / "in", out, recipe=steps)
    assert (result.samples, result.rejected) == (3, 1)


UNKNOWN = r"the engine is local\|ray\[:ADDRESS\]; it is"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        *(({"engine": name}, UsageError, UNKNOWN) for name in ("ray:", "local:here", "", "Ray")),
        ({"engine": "ray", "workers": 0}, UsageError, "1 worker or more, or the engine local"),
        ({"engine": "ray:ray://head:1"}, UsageError, "^ray://head:1: Ray Client cannot be used"),
        ({"engine": "ray"}, InstallError, re.escape(install_line("ray"))),
    ],
)
def test_an_engine_that_cannot_be_used_is_refused_before_the_work(
    tmp_path, out, options, error, message, monkeypatch
):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(error, match=message):
        shardctl.convert(write(tmp_path / "a.txt", "a"), out, **options)
    assert not out.exists()
