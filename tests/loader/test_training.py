"""The example of docs/text.md, as it stands there: a small GPT learns from the blocks that the demo
makes."""

from __future__ import annotations

import re
import statistics
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "text.md"


def snippet(language: str) -> str:
    """The one of the section "Training"."""
    section = PAGE.read_text(encoding="utf-8").partition("## Training\n")[2]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.thorough
def test_a_small_gpt_learns_from_the_blocks_of_the_demo(tmp_path, monkeypatch, cli):
    torch = pytest.importorskip("torch")
    pytest.importorskip("tokenizers")
    monkeypatch.chdir(tmp_path)
    for line in snippet("sh").replace("\\\n", "").splitlines():
        arguments = line.removeprefix("shardctl ").split()
        more = ["--images", 1] if arguments[0] == "demo" else ["--workers", 0]
        assert cli(*arguments, *more).code == 0, line
    names: dict[str, Any] = {}
    threads = torch.get_num_threads()
    # threads that wait for each other take many times as long where other work runs
    torch.set_num_threads(1)
    try:
        exec(compile(snippet("python"), str(PAGE), "exec"), names)
    finally:
        torch.set_num_threads(threads)
    losses = names["losses"]
    assert len(losses) == 200
    assert statistics.mean(losses[-20:]) < 0.5 * statistics.mean(losses[:20])
