"""Reads shards with the reader of another tool, batch by batch, as it is asked to: run as a
program.

The first line of standard input has the options as JSON; it is answered when the reader's packages
are imported. Each later line is a command: `open` opens the shards, `begin` starts an epoch, and
`next` takes a batch. Each line has one answer, a line of JSON; the batches themselves stay here.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
PACKAGE = "shardctl_programs"
"""The name of this folder as a package: the modules in it would otherwise hide those of the same
names."""


def main() -> None:
    """Answer until standard input ends."""
    sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != FOLDER]
    _package().end_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is no answer
    with contextlib.suppress(BrokenPipeError):
        for answer in _answers():
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    os._exit(0)  # the threads and processes of readers are not waited for


def _answers() -> Iterator[dict[str, Any]]:
    options = json.loads(sys.stdin.readline())
    try:
        try:
            program = importlib.import_module(f"{PACKAGE}.{options['program']}")
        except Exception as error:  # noqa: BLE001 - packages that do not fit together raise anything when they are imported
            yield {"missing": f"{type(error).__name__}: {error}"}
            return
        yield {}
        sys.stdin.readline()
        reading = program.open_reading(options)
        yield {
            "library": reading.library,
            "how": reading.how,
            "parallel": reading.parallel,
            "ahead": reading.ahead,
        }
        batches: Iterator[Any] = iter(())
        for line in sys.stdin:
            if line.strip() == "begin":
                batches = iter(reading.epoch())
                yield {}
                continue
            batch = next(batches, None)
            yield (
                {"samples": 0, "bytes": 0}
                if batch is None
                else {"samples": batch.samples, "bytes": batch.bytes()}
            )
    except Exception as error:  # noqa: BLE001 - whatever the reader raises is told to the other process
        traceback.print_exc()
        yield {"error": f"{type(error).__name__}: {error}"}


def _package() -> Any:
    """Make this folder a package, and return it."""
    spec = importlib.util.spec_from_file_location(
        PACKAGE, FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    return package


if __name__ == "__main__":
    main()
