"""Compare the size of shardctl with the table in docs/dev/budget.md. `make lint` calls it.

    python scripts/check_budget.py [--lower]

Code is counted in tokens, as lines can be made long and tokens cannot: no comments, no docstrings.
Pages are counted in words, those in Chinese in characters. A number of the table may fall at any time: `--lower` writes today's
counts where they are smaller. It may rise only with a new reason in its line; the lines of the
last commit and of the one before it are compared.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "docs" / "dev" / "budget.md"

LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.ENCODING,
}
ROW = re.compile(r"^\| `?([^`|]+?)`? \| ([\d,]+) \| (.*?) ?\|$", re.MULTILINE)


def measured(path: Path) -> Counter[str]:
    """Return the tokens, lines, classes and words in strings of a module."""
    source = path.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(source)))
    docstrings = {
        line
        for node in nodes
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type not in LAYOUT and token.start[0] not in docstrings
    ]
    return Counter(
        tokens=len(tokens),
        lines=len({line for token in tokens for line in range(token.start[0], token.end[0] + 1)}),
        classes=sum(isinstance(node, ast.ClassDef) for node in nodes),
        words=sum(
            len(re.findall(r"[A-Za-z]{2,}", token.string))
            for token in tokens
            if token.type == tokenize.STRING and " " in token.string
        ),
    )


def counts() -> dict[str, int]:
    """Return what the table has rows for."""
    modules = {path: measured(path) for path in sorted((ROOT / "shardctl").rglob("*.py"))}
    rooms: Counter[str] = Counter()
    for path, each in modules.items():
        below = path.relative_to(ROOT / "shardctl").parts
        rooms[f"shardctl/{below[0]}" if len(below) > 1 else "shardctl/*.py"] += each["tokens"]
    total = sum(modules.values(), Counter())
    pages = [ROOT / "README.md", ROOT / "README.zh.md", *(ROOT / "docs").rglob("*.md")]
    chinese = {page for page in pages if page.name.endswith(".zh.md")}
    return {
        **{f"tokens of {room}": rooms[room] for room in sorted(rooms)},
        "tokens of shardctl": total["tokens"],
        "files of shardctl": len(modules),
        "lines of the longest file of shardctl": max(each["lines"] for each in modules.values()),
        "classes of shardctl": total["classes"],
        "words in strings of shardctl": total["words"],
        **{
            f"tokens of {folder}": sum(
                measured(path)["tokens"] for path in (ROOT / folder).rglob("*.py")
            )
            for folder in ("tests", "scripts")
        },
        "words of docs and README.md": sum(
            len(page.read_text(encoding="utf-8").split()) for page in pages if page not in chinese
        ),
        "characters of Chinese pages": sum(
            len(re.findall(r"[\u4e00-\u9fff]", page.read_text(encoding="utf-8")))
            for page in chinese
        ),
    }


def rows_of(text: str) -> dict[str, tuple[int, str]]:
    """Return the number and the reason of each row of the table."""
    return {name: (int(most.replace(",", "")), why) for name, most, why in ROW.findall(text)}


def rows_at(commit: str) -> dict[str, tuple[int, str]]:
    """Return the rows of a commit; none where there is no such commit, or no git."""
    name = f"{commit}:{TABLE.relative_to(ROOT)}"
    try:
        shown = subprocess.run(["git", "show", name], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return {}
    return rows_of(shown.stdout)


def lower(found: dict[str, int]) -> None:
    """Write today's counts into the rows with larger numbers."""

    def row(match: re.Match[str]) -> str:
        name, most, why = match.groups()
        least = min(found.get(name, 0), int(most.replace(",", "")))
        return f"| {name} | {least:,} | {why} |".replace("|  |", "| |")

    TABLE.write_text(ROW.sub(row, TABLE.read_text(encoding="utf-8")), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--lower", action="store_true", help="write smaller counts to the table")
    found, faults = counts(), []
    if parser.parse_args().lower:
        lower(found)
    rows = rows_of(TABLE.read_text(encoding="utf-8"))
    for name in sorted(rows.keys() ^ found.keys()):
        faults.append(f"{name}: {'no row of the table' if name in found else 'nothing is counted'}")
    for name in rows.keys() & found.keys():
        if found[name] > rows[name][0]:
            faults.append(f"{name}: {found[name]:,}, the table allows {rows[name][0]:,}")
    for before in (rows_at("HEAD"), rows_at("HEAD~1")):
        for name, (most, why) in rows.items():
            if name in before and most > before[name][0] and why == before[name][1]:
                faults.append(f"{name}: rose from {before[name][0]:,}; say why in its line")
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"budget: {found['tokens of shardctl']:,} tokens of shardctl, {len(faults)} faults")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
