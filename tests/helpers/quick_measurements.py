"""Measurements of tests take no longer than they must."""

from __future__ import annotations

import pytest

SECONDS = {
    "measure.throughput.WARM_UP_SECONDS": 0.05,
    "measure.BASELINE_SECONDS": 0.5,
    "advice.ROUND_SECONDS": 0.05,
    "advice.PROOF_SECONDS": 0.3,
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in SECONDS.items():
        monkeypatch.setattr(f"shardctl.benchmark.{name}", seconds)
