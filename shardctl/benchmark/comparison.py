"""A measurement beside an earlier one: what is faster, by how much, and whether that is more than noise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardctl.errors import InputError
from shardctl.storage import printable

METRICS = (
    ("samples_per_s", True),
    ("mb_per_s", True),
    ("stored_mb_per_s", True),
    ("first_batch_s", False),
    ("batch_ms_p50", False),
    ("batch_ms_p99", False),
    ("rss_mb", False),
    ("cores_used", False),
    ("accelerator_utilization", True),
    ("gpus_fed", True),
)
"""What is compared, and whether more of it is better."""

_SETTINGS = ("threads", "batch_size", "shuffle", "split", "cold", "consumer", "consumer_rate", "gpus")
_ENVIRONMENT = ("cpu", "cores", "memory_bytes", "system", "file_system", "python")


@dataclass(frozen=True)
class Change:
    """One figure, before and now. `change` is now / before - 1, `verdict` better, worse or noise.

    It is noise where it is smaller than the distance between the fastest and the slowest run of either measurement.
    """

    metric: str
    before: float
    now: float
    change: float
    noise: float
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """All figures that both measurements have, and what was not the same: a change may come from that."""

    changes: tuple[Change, ...]
    differences: tuple[str, ...]


def load_record(path: Path) -> dict[str, Any]:
    """Read what `shardctl bench --json` printed. Raises InputError."""
    shown = printable(str(path))
    try:
        record = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{shown}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError):
        record = None
    if not isinstance(record, dict) or not isinstance(record.get("samples_per_s"), int | float):
        raise InputError(f"{shown}: not what `shardctl bench --json` printed")
    return record


def compare_records(before: dict[str, Any], now: dict[str, Any]) -> Comparison:
    """Set two records of `shardctl bench --json` against each other."""
    noise = max(_spread(before), _spread(now))
    changes = []
    for metric, more_is_better in METRICS:
        old, new = before.get(metric), now.get(metric)
        if not isinstance(old, int | float) or not isinstance(new, int | float) or not old:
            continue
        change = new / old - 1
        verdict = "noise" if abs(change) <= noise else "better" if (change > 0) is more_is_better else "worse"
        changes.append(Change(metric, old, new, round(change, 4), round(noise, 4), verdict))
    return Comparison(tuple(changes), tuple(_differences(before, now)))


def _spread(record: dict[str, Any]) -> float:
    spread = record.get("spread")
    return float(spread) if isinstance(spread, int | float) else 0.0


def _differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    pairs = [(name, before.get(name), now.get(name)) for name in _SETTINGS]
    there, here = _part(before, "environment"), _part(now, "environment")
    pairs += [(name.replace("_", " "), there.get(name), here.get(name)) for name in _ENVIRONMENT]
    versions, own = _part(there, "versions"), _part(here, "versions")
    pairs += [(name, versions.get(name), own.get(name)) for name in sorted({*versions, *own})]
    pairs.append(("dataset", _part(before, "dataset").get("fingerprint"), _part(now, "dataset").get("fingerprint")))
    for name, old, new in pairs:
        if old != new:
            yield f"{name}: {printable(str(old))}, now {printable(str(new))}"


def _part(record: dict[str, Any], name: str) -> dict[str, Any]:
    part = record.get(name)
    return part if isinstance(part, dict) else {}
