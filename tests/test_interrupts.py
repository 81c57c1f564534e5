"""Ctrl-C in a script or a notebook: one short traceback, whose last line says what is done and how
to go on."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_this_process import convert

import shardctl
from shardctl.benchmark.measure import Listener as BenchListener
from shardctl.making.convert import Listener


def texts_beside(out: Path) -> Path:
    """Write some texts, and return their file."""
    lines = out.with_suffix(".jsonl")
    lines.write_text('{"text": "some words"}\n' * 20)
    return lines


CALLS: dict[str, tuple[Callable[[Path, Path, Path, Callable[..., None]], Any], str]] = {
    "convert": (
        lambda photos, _, out, stop: convert(photos, out, listener=Listener(progress=stop)),
        r"^interrupted; \d of \d shards are done; run the same command again to continue$",
    ),
    "convert, while it lists inputs": (
        lambda photos, _, out, stop: convert(photos, out, listener=Listener(listing=stop)),
        r"^interrupted; run the same command again to continue$",
    ),
    "verify": (
        lambda _, dataset, __, stop: shardctl.verify(dataset, progress=stop),
        r"^interrupted; 1 of \d+ shards were checked, and nothing is changed by a check$",
    ),
    "bench": (
        lambda _, dataset, __, stop: shardctl.bench(dataset, listener=BenchListener(samples=stop)),
        r"^interrupted, without a result",
    ),
    "train_tokenizer": (
        lambda _, __, out, stop: shardctl.train_tokenizer(
            texts_beside(out), out.with_suffix(".json"), listener=Listener(progress=stop), workers=0
        ),
        r"^interrupted; nothing was written$",
    ),
    "export": (
        lambda _, dataset, out, stop: shardctl.export(
            dataset, out, "parquet", progress=stop, workers=0
        ),
        r"^interrupted; ",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_ctrl_c_says_what_is_done_in_one_short_traceback(name, photos, raw_dataset, tmp_path):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    call, said = CALLS[name]
    with pytest.raises(KeyboardInterrupt, match=said) as stopped:
        call(photos, raw_dataset, tmp_path / "new", stop)
    assert stopped.type is KeyboardInterrupt, (
        "Python ends a script as Ctrl-C does for this class alone"
    )
    shown = "".join(traceback.format_exception(stopped.value))
    assert shown.count("Traceback") == 1
    assert shown.count("  File ") <= 8
