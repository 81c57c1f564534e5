"""Build the site of docs/ with Zensical: build/site/VERSION/, beside the folders of other versions
that are there.

The pages at the top of the repository become pages of the site: README.md is its first one. Links
to files that are not part of the site, such as code, become plain text. Nothing is downloaded: a
page of the site asks for nothing but the site.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build"
PAGES, HTML, SITE = BUILD / "pages", BUILD / "html", BUILD / "site"

TOP = {"README.md": "index.md"}
"""Pages at the top of the repository that have another name on the site."""

NOT_FOUND = {
    "CHANGELOG",
    "CODE_OF_CONDUCT",
    "CONTRIBUTING",
    "SKILL",
    "architecture",
    "troubleshooting",
}
"""Pages that the search leaves out. `shardctl help` is the way to the messages in troubleshooting."""

_LINK = re.compile(r"(!?)\[((?:[^][]|\[[^]]*\])*)\]\(([^)#\s]*)(#[^)]*)?\)")
_CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)
_PLACE = re.compile("\0(\\d+)\0")


def sources() -> dict[Path, Path]:
    """Return the pages, by their places in the site."""
    top = {Path(TOP.get(path.name, path.name)): path for path in ROOT.glob("*.md")}
    below = {
        path.relative_to(ROOT / "docs"): path
        for path in (ROOT / "docs").rglob("*.md")
        if "dev" not in path.parts
    }
    return {**top, **below}


def copy_pages() -> None:
    """Copy the pages to build/pages, with links that are right there."""
    shutil.rmtree(PAGES, ignore_errors=True)
    kept = shutil.ignore_patterns("*.md", "dev", "messages")
    shutil.copytree(ROOT / "docs", PAGES, ignore=kept)
    places = {path: place for place, path in sources().items()}
    for path, place in places.items():
        (PAGES / place).parent.mkdir(parents=True, exist_ok=True)
        (PAGES / place).write_text(_relinked(path, places), encoding="utf-8")


def _relinked(path: Path, places: dict[Path, Path]) -> str:
    """Return the text of a page with links as they are on the site.

    Code stays as it is. Only a pipe, which GitHub wants escaped in a table, is no end of a cell for
    Zensical.
    """
    code: list[str] = []

    def put_aside(found: re.Match[str]) -> str:
        code.append(found[0] if found[0].startswith("```") else found[0].replace(r"\|", "|"))
        return f"\0{len(code) - 1}\0"

    page = _CODE.sub(put_aside, path.read_text(encoding="utf-8"))
    page = _LINK.sub(lambda found: _link(found, path, places), page)
    up = os.path.relpath(".", places[path].parent)
    page = page.replace('<img src="docs/', f'<img src="{up}/')
    return _PLACE.sub(lambda found: code[int(found[1])], page)


def _link(found: re.Match[str], path: Path, places: dict[Path, Path]) -> str:
    mark, text, target, anchor = found[1], found[2], found[3], found[4] or ""
    if not target or ":" in target:
        return found[0]
    file = (path.parent / target).resolve()
    place = places.get(file)
    if (
        place is None
        and file.suffix != ".md"
        and file.is_file()
        and (ROOT / "docs") in file.parents
    ):
        place = file.relative_to(ROOT / "docs")
    if place is None:
        return text
    if text.endswith(".md"):
        text = _title(file)
    return f"{mark}[{text}]({os.path.relpath(place, places[path].parent)}{anchor})"


def _title(page: Path) -> str:
    """Return the heading of a page: in a terminal the name of its file leads to it."""
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def build(version: str) -> Path:
    """Build the pages into the folder of a version, and return it."""
    copy_pages()
    shutil.rmtree(HTML, ignore_errors=True)
    subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=ROOT, check=True
    )
    set_search(HTML)
    folder = SITE / version
    shutil.rmtree(folder, ignore_errors=True)
    SITE.mkdir(parents=True, exist_ok=True)
    HTML.rename(folder)
    write_versions()
    return folder


def set_search(site: Path) -> None:
    """Put the search of docs/site into a built site, with the words of docs/words.json, and leave
    pages out of it."""
    index = site / "search.json"
    found = json.loads(index.read_text(encoding="utf-8"))
    words = json.loads((ROOT / "docs" / "words.json").read_text(encoding="utf-8"))
    found["config"]["words"] = words
    found["items"] = [
        each for each in found["items"] if each["location"].partition("/")[0] not in NOT_FOUND
    ]
    index.write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
    (worker,) = site.glob("assets/javascripts/workers/search.*.js")
    shutil.copy(ROOT / "docs" / "site" / "search.js", worker)


def write_versions() -> None:
    """Write versions.json, from which the pages offer the other versions, and a first page that
    leads to the newest one."""
    built = [
        path.name
        for path in SITE.iterdir()
        if path.name[0].isdigit() and (path / "index.html").exists()
    ]
    folders = sorted(built, key=Version, reverse=True)
    versions = [
        {"version": name, "title": name, "aliases": ["latest"] if name == folders[0] else []}
        for name in folders
    ]
    (SITE / "versions.json").write_text(json.dumps(versions, indent=1) + "\n", encoding="utf-8")
    refresh = f'<meta http-equiv="refresh" content="0; url={folders[0]}/">'
    head = f'<!doctype html>\n<title>shardctl</title>\n<link rel="icon" href="data:,">\n{refresh}'
    page = f'{head}\n<a href="{folders[0]}/">shardctl {folders[0]}</a>\n'
    (SITE / "index.html").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from shardctl.version import __version__

    print(build(__version__))
