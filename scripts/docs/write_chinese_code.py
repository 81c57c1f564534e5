"""Copy the code of each page into its Chinese one: NAME.md into NAME.zh.md. `make docs` calls it.

A block of the Chinese page that differs in comments only stays. The other tests of
tests/test_docs.py compare the rest of the two pages.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

BLOCK = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)

COMMENT = re.compile(r"(^|\s+)# .*", re.MULTILINE)


def pages() -> dict[Path, Path]:
    """Return the English page of each Chinese one that has one."""
    found = {page.name: page for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))}
    names = {name: name.replace(".zh.md", ".md") for name in found if name.endswith(".zh.md")}
    return {found[name]: found[other] for name, other in names.items() if other in found}


def in_step(chinese: str, english: str) -> str:
    """Return a Chinese page with the blocks of code of the English one."""
    blocks = iter(BLOCK.findall(english))

    def block(found: re.Match[str]) -> str:
        other = next(blocks, found[0])
        same = COMMENT.sub("", found[0]) == COMMENT.sub("", other)
        return found[0] if same else other

    return BLOCK.sub(block, chinese)


if __name__ == "__main__":
    for page, other in pages().items():
        text = in_step(page.read_text(encoding="utf-8"), other.read_text(encoding="utf-8"))
        page.write_text(text, encoding="utf-8")
