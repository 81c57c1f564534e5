from __future__ import annotations

from pathlib import Path

import pytest

import shardctl
from shardctl.errors import DatasetError, UsageError


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_measurement_counts_what_was_read(raw_dataset: Path, shuffle: bool) -> None:
    heard: list[int] = []
    result = shardctl.bench(raw_dataset, batch_size=16, epochs=3, shuffle=shuffle, threads=2, progress=heard.append)
    assert (result.samples, result.batches, result.epochs, result.threads) == (180, 12, 3, 2)
    assert sum(heard) == 180
    assert result.samples_per_s == pytest.approx(180 / result.seconds, rel=0.1)
    per_sample = result.mb_per_s * 1e6 / result.samples_per_s
    assert 32 * 32 * 3 < per_sample < 32 * 32 * 3 + 60
    assert 0 < result.batch_ms_p50 <= result.batch_ms_p99
    assert result.first_batch_s > 0
    assert result.rss_mb > 10


def test_a_time_is_kept(raw_dataset: Path) -> None:
    assert 0.3 <= shardctl.bench(raw_dataset, seconds=0.3, batch_size=8).seconds < 3


def test_a_cold_measurement_reads_the_same(raw_dataset: Path) -> None:
    assert shardctl.bench(raw_dataset, cold=True, epochs=1).samples == 60


def test_a_split_is_read_alone(raw_dataset: Path) -> None:
    manifest = shardctl.open(raw_dataset).manifest
    (val,) = [split for split in manifest.splits if split.name == "val"]
    assert shardctl.bench(raw_dataset, split="val", epochs=1).samples == val.samples


def test_impossible_measurements_are_refused(raw_dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contradict"):
        shardctl.bench(raw_dataset, epochs=1, seconds=1)
    with pytest.raises(UsageError, match="nothing to measure"):
        shardctl.bench(raw_dataset, epochs=0)
    with pytest.raises(DatasetError, match="no such dataset"):
        shardctl.bench(tmp_path / "absent")
