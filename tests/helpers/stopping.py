"""The product stopped right before any change that it makes to the file system, one after the
other."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dataset_facts import sums

CHANGES = {
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.mkdir",
    "os.truncate",
}
"""Audit events of Python right before such a change."""


EVERY = 8
"""Which changes are tried where each try takes long; `make fuzz` tries all of them."""


def some_changes(first: int, every: int = EVERY) -> range:
    """Return the changes at which something is stopped, one after the other, until it is not
    stopped any more."""
    return range(1000) if os.environ.get("SHARDCTL_FUZZ", "0") != "0" else range(first, 1000, every)


class Killed(BaseException):
    """What stands in the place of SIGKILL: from then on nothing is changed any more, whatever is
    there to tidy up."""


class _Stop:
    """Counts the changes of one thread, and raises at one of them. Audit hooks stay for good;
    `thread` 0 is none."""

    def __init__(self) -> None:
        self.thread = self.changes = self.last = 0
        self.killing = False

    def __call__(self, event: str, given: tuple[Any, ...]) -> None:
        if self.thread != threading.get_ident():
            return
        if event in CHANGES or (
            event == "open" and isinstance(given[2], int) and given[2] & os.O_CREAT
        ):
            self.changes += 1
            if self.changes == self.last + 1 and not self.killing:
                raise KeyboardInterrupt
            if self.changes > self.last and self.killing:
                raise Killed


_STOP = _Stop()
sys.addaudithook(_STOP)


def stopped_at(
    change: int,
    how: str,
    owner: Any,
    name: str,
    call: Callable[[], object],
    monkeypatch: pytest.MonkeyPatch,
) -> bool:
    """Call something, and stop it at a change (0 is the first) after `name` of `owner` was entered.
    Tell whether that was.

    `how` is "kill" or "interrupt": as SIGKILL does it, or as Ctrl-C does, after which it may tidy
    up.
    """
    real = getattr(owner, name)

    def entered(*given: Any, **named: Any) -> Any:
        _STOP.changes, _STOP.last, _STOP.killing, _STOP.thread = (
            0,
            change,
            how == "kill",
            threading.get_ident(),
        )
        return real(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, entered)
        try:
            call()
        except (Killed, KeyboardInterrupt):
            return True
        finally:
            _STOP.thread = 0
    return False


def stops(
    changes: range,
    how: str,
    owner: Any,
    name: str,
    before: Path,
    call: Callable[[Path], object],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Path]:
    """Stop a call on a copy of a dataset at one change after the other until it is not stopped any
    more, and yield the copy each time. What goes on with it must leave a dataset that is whole, and
    nothing hidden."""
    out = before.with_name("out")
    for change in changes:
        shutil.copytree(before, out)
        if not stopped_at(change, how, owner, name, lambda: call(out), monkeypatch):
            assert change > 15
            return
        yield out
        sums(out)
        left = (*out.iterdir(), *out.parent.iterdir())
        assert [path.name for path in left if path.name.startswith(".")] == []
        shutil.rmtree(out)


def stop_after(records: int) -> Callable[[Any], None]:
    """Return what hears of the progress, and interrupts it when so many records are done."""
    done = 0

    def stop(progress: Any) -> None:
        nonlocal done
        done += progress.records
        if done >= records:
            raise KeyboardInterrupt

    return stop
