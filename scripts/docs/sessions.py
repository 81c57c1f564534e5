"""What a page shows of a terminal: its commands are run, and the output is compared with the page.

A block of code whose first line is ```console has commands, each after "$ ", and what they print. A
line that ends with a backslash goes on in the next one, which may begin with "> ". The commands of
a page run in order in one folder, which is empty at first. A block with a title (```python
title="train.py") is written to a file of this name before the commands that stand below it. Other
blocks are left alone.

Times, rates and sizes differ from machine to machine: they are compared as if all were the same. So
are line breaks, since a page breaks long lines. "…" stands for any text. The folder is shown as
/home/you. A command may not fail. Where a page shows that it does, it prints the exit code:
`shardctl verify out; echo "exit code $?"`.

A comment at the top of a page names what it needs: <!-- needs: torch torchvision s3 -->.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

TITLED = re.compile(r'```\w+ .*title="([^"]+)"')
NEEDS = re.compile(r"<!-- needs: ([^>]*) -->")
LONGEST_S = 600
SHOWN_FOLDER = "/home/you"

_NUMBER = r"\d[\d,]*(?:\.\d+)?"
_UNITS = (
    r"s|ms|µs|min|h|bytes|B|kB|KiB|MB|MiB|GB|GiB|TB|%|x|(?:\w+ )?\w+/s|(?:samples|images) "
    r"per "
    r"second"
)
_MASKS = (
    (re.compile(r"\s+"), " "),
    (re.compile(r"\b[0-9a-f]{12,64}\b"), "HASH"),
    (re.compile(r"(?<=generations/)\d{5}-[0-9a-f]{8}\b"), "GENERATION"),
    (
        re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)?)?"),
        "DATE",
    ),
    (re.compile(rf"{_NUMBER}(?: to {_NUMBER})? ?(?:{_UNITS})(?![\w])"), "SIZE"),
    (re.compile(r"\d[\d,]*\.\d+(?:e-?\d+)?"), "DECIMAL"),
    (re.compile(r"[▁▂▃▄▅▆▇█]+"), "BARS"),
    (re.compile(r"-{3,}"), "---"),
)


@dataclass
class Command:
    """A command of a page, and the lines that the page shows of its output. `line` counts from
    1."""

    text: str
    line: int
    shown: list[str] = field(default_factory=list)


@dataclass
class Block:
    """A block of code of a page: lines `begin` to `end` (from 0, without the fences). `title` names
    the file that it is."""

    begin: int
    end: int
    lines: list[str]
    title: str | None
    commands: list[Command]


@dataclass
class Difference:
    """A command whose output is not the one of the page."""

    page: Path
    command: Command
    printed: list[str]
    code: int

    def __str__(self) -> str:
        shown, printed = "\n".join(self.command.shown), "\n".join(self.printed)
        place = f"{self.page}:{self.command.line}: $ {self.command.text}"
        return f"{place}\n(exit code {self.code}) shown:\n{shown}\nprinted:\n{printed}"


def needs(page: str) -> list[str]:
    """Return what a page says that it needs, besides shardctl."""
    found = NEEDS.search(page)
    return found[1].split() if found else []


def blocks(page: str) -> Iterator[Block]:
    """Yield the blocks of a page that are files or sessions."""
    lines = page.split("\n")
    at = 0
    while at < len(lines):
        opening = lines[at]
        at += 1
        if not opening.startswith("```") or opening == "```":
            continue
        begin = at
        while at < len(lines) and not lines[at].startswith("```"):
            at += 1
        inner = lines[begin:at]
        titled = TITLED.match(opening)
        if opening.startswith("```console"):
            yield Block(begin, at, inner, None, _commands(inner, begin + 1))
        elif titled:
            yield Block(begin, at, inner, titled[1], [])
        at += 1


def _commands(lines: list[str], first: int) -> list[Command]:
    found: list[Command] = []
    goes_on = False
    for number, line in enumerate(lines, first):
        if goes_on:
            found[-1].text += "\n" + line.removeprefix("> ")
        elif line.startswith("$ "):
            found.append(Command(line[2:], number))
        elif found:
            found[-1].shown.append(line)
            continue
        else:
            raise ValueError(
                f"line {number}: a session begins with a command, after a $ and a space"
            )
        goes_on = line.endswith("\\")
    return found


def differences(
    path: Path, folder: Path, environment: Mapping[str, str] = {}
) -> Iterator[Difference]:
    """Run a page in an empty folder. Yield the commands that fail, or whose output is another one
    than the page shows."""
    for block in blocks(path.read_text(encoding="utf-8")):
        if block.title is not None:
            file = folder / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("\n".join([*block.lines, ""]), encoding="utf-8")
        for command in block.commands:
            printed, code = run(command.text, folder, environment)
            if code != 0 or not same(command.shown, printed):
                yield Difference(path, command, printed, code)


def run(command: str, folder: Path, environment: Mapping[str, str]) -> tuple[list[str], int]:
    """Return the lines that a command prints on stdout and stderr, and its exit code."""
    variables = {
        **os.environ,
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "HOME": str(folder),
        "PYTHONWARNINGS": "ignore",
        **environment,
    }
    # beside other tests, threads of PyTorch wait for each other most of the time
    variables.setdefault("OMP_NUM_THREADS", "1")
    variables["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{variables['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST_S,
    )
    printed = done.stdout.replace(str(folder), SHOWN_FOLDER).rstrip()
    return [line.rstrip() for line in printed.split("\n")] if printed else [], done.returncode


def same(shown: list[str], printed: list[str]) -> bool:
    """Say whether lines are the ones that a page shows. A page may break a long line, and figures
    may differ (see above)."""
    parts = " ".join(shown).split("…")
    return (
        re.fullmatch(
            ".*".join(re.escape(masked(part)) for part in parts), masked(" ".join(printed))
        )
        is not None
    )


def masked(line: str) -> str:
    """Return text in one line, with words in the place of the figures that differ from machine to
    machine."""
    for pattern, word in _MASKS:
        line = pattern.sub(word, line)
    return line.strip()
