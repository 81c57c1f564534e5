"""The option --metrics, of measurements and of conversions. Little is imported: the command line
reads it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shardctl.system.options import Many, Option, ValueType


def _check_targets(targets: Sequence[str | Path]) -> None:
    from shardctl.loader.metrics import check_target

    for target in targets:
        check_target(target)


METRICS = Option(
    Many(ValueType("str | Path")),
    (),
    "Write figures every few seconds: FILE.jsonl (JSON lines), FILE.prom (Prometheus), http:PORT "
    "(Prometheus, on this"
    " machine) or tensorboard:FOLDER. May be given several times.",
    metavar="FILE",
    limit=_check_targets,
)
