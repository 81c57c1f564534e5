"""The site: every page is in it, no link is dead, and it works in a real browser without the
network."""

from __future__ import annotations

import contextlib
import functools
import http.server
import importlib.util
import json
import os
import re
import runpy
import shutil
import sys
import threading
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from doc_snippets import ROOT
from sessions import blocks

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "docs" / "build_site.py"))
CHROMIUM = shutil.which("chromium")
with_zensical = pytest.mark.skipif(
    importlib.util.find_spec("zensical") is None, reason="Zensical is not installed"
)


def pages_of(nav: Any) -> Iterator[str]:
    """Yield the pages of a part of the navigation, in its order."""
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from pages_of(entry)


def navigation() -> list[str]:
    settings = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    return list(pages_of(settings["project"]["nav"]))


def test_every_page_is_in_the_navigation_once():
    assert sorted(navigation()) == sorted(map(str, SCRIPT["sources"]()))


def test_links_to_code_become_text_and_links_to_pages_stay(tmp_path):
    places = {ROOT / "README.md": Path("index.md"), ROOT / "docs" / "loader.md": Path("loader.md")}
    page = tmp_path / "page.md"
    link = SCRIPT["_relinked"]
    places[page] = Path("how-to/page.md")
    page.write_text(
        f"[a]({os.path.relpath(ROOT, tmp_path)}/docs/loader.md#order) [b](../shardctl/cli) "
        "`[c](x.md)` [d](https://e.org)"
    )
    assert link(page, places) == "[a](../loader.md#order) b `[c](x.md)` [d](https://e.org)"
    page.write_text(f"[README.md]({os.path.relpath(ROOT, tmp_path)}/README.md)")
    assert link(page, places) == "[shardctl](../index.md)", "the title, not the file"


def test_versions_are_offered_newest_first(tmp_path):
    for name in ("0.9.0", "1.0.0rc1", "1.0.0", "1.0.0rc2", "0.10.0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").touch()
    write = SCRIPT["write_versions"]
    write.__globals__["SITE"] = tmp_path
    write()
    written = json.loads((tmp_path / "versions.json").read_text())
    names = [each["version"] for each in written]
    assert names == ["1.0.0", "1.0.0rc2", "1.0.0rc1", "0.10.0", "0.9.0"]
    assert 'url=1.0.0/"' in (tmp_path / "index.html").read_text()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of one version, built from a copy of the repository's pages."""
    copy = tmp_path_factory.mktemp("site")
    for name in (*(path.name for path in ROOT.glob("*.md")), "zensical.toml"):
        shutil.copy(ROOT / name, copy / name)
    shutil.copytree(ROOT / "docs", copy / "docs")
    (copy / "scripts" / "docs").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "docs" / "build_site.py", copy / "scripts" / "docs")
    built: Path = runpy.run_path(str(copy / "scripts" / "docs" / "build_site.py"))["build"]("1.2.3")
    return built


class Links(HTMLParser):
    """Where a page of the site leads to, what it fetches, and the names of its places."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value is not None}
        self.names.update(found[name] for name in ("id", "name") if name in found)
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in ("img", "script", "link", "iframe", "source") and found.get("rel") != "canonical":
            self.fetched += [found[name] for name in ("src", "href") if name in found]


@pytest.fixture(scope="module")
def parsed(site: Path) -> dict[Path, Links]:
    return {path: Links(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}


def target_of(page: Path, link: str) -> tuple[Path, str]:
    parts = urlsplit(link)
    path = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    return (path / "index.html" if path.is_dir() else path), unquote(parts.fragment)


@pytest.mark.thorough
@with_zensical
class TestSite:
    def test_no_link_and_no_anchor_is_dead(self, parsed):
        dead = []
        for page, found in parsed.items():
            for link in (*found.links, *found.fetched):
                if page.name == "404.html" or urlsplit(link).scheme or link.startswith("//"):
                    continue
                target, anchor = target_of(page, link)
                if not target.exists() or (
                    anchor and target in parsed and anchor not in parsed[target].names
                ):
                    dead.append(f"{page}: {link}")
        assert dead == []

    def test_a_page_fetches_nothing_from_elsewhere(self, site, parsed):
        fetched = [link for found in parsed.values() for link in found.fetched]
        assert [link for link in fetched if urlsplit(link).scheme not in ("", "data")] == []
        for sheet in site.rglob("*.css"):
            assert (
                re.findall(
                    r"(?:@import|url\()\s*[\"']?https?:[^)]*", sheet.read_text(encoding="utf-8")
                )
                == []
            )

    @pytest.mark.parametrize(
        "page", sorted(name for name in navigation() if name.startswith("tutorials/"))
    )
    def test_a_tutorial_has_the_files_and_sessions_of_its_page(self, site, page):
        """So what runs in tests/test_shown_outputs.py is what a reader of the site copies."""
        shown = (site / page.removesuffix(".md") / "index.html").read_text(encoding="utf-8")
        code = [
            re.sub(r"<[^>]*>", "", each)
            for each in re.findall(r"<pre><span></span><code>(.*?)</code></pre>", shown, re.DOTALL)
        ]
        texts = {unescape(each).strip() for each in code}
        for block in blocks((ROOT / "docs" / page).read_text(encoding="utf-8")):
            assert "\n".join(block.lines).strip() in texts
            assert block.title is None or f'<span class="filename">{block.title}</span>' in shown


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.thorough
@with_zensical
@pytest.mark.skipif(
    CHROMIUM is None or os.environ.get("SHARDCTL_BROWSER") != "yes",
    reason="there is no Chromium, or SHARDCTL_BROWSER is not yes",
)
class TestInABrowser:
    @pytest.fixture
    def page(self, browser: Any, site: Path) -> Iterator[Any]:
        """A page of a browser, which has nothing to complain of and asks nobody but the site."""
        context = browser.new_context(
            permissions=["clipboard-read", "clipboard-write"],
            viewport={"width": 1280, "height": 900},
        )
        page = context.new_page()
        requests: list[str] = []
        complaints: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        page.on(
            "console",
            lambda message: complaints.append(message.text) if message.type == "error" else None,
        )
        page.on("pageerror", lambda error: complaints.append(str(error)))
        with served(site.parent) as address:
            page.goto(address)
            page.wait_for_url(f"{address}1.2.3/")
            page.address = f"{address}1.2.3/"
            yield page
            assert [
                url for url in requests if not url.startswith((address, "data:", "blob:"))
            ] == []
            assert complaints == []
        context.close()

    def test_the_first_page_is_the_readme_of_the_newest_version(self, page):
        assert page.inner_text("h1").startswith("shardctl")
        assert "1.2.3" in page.inner_text(".md-version")
        assert page.eval_on_selector_all(
            "article img", "all => all.every(each => each.naturalWidth > 0)"
        )

    @pytest.mark.parametrize(
        ("asked", "first"),
        [
            ("Kubernetes", "Kubernetes"),
            ("multi gpu", "DDP"),
            ("resize", "resize"),
            ("GDPR", "person"),
            ("打乱", "order|打乱"),
        ],
    )
    def test_words_find_their_page_first(self, page, asked, first):
        page.locator(".md-search__button").first.click()
        page.keyboard.insert_text(asked)
        found = page.get_by_role("option").first.filter(has_text=re.compile(first))
        found.filter(has=page.locator("u")).wait_for()  # the words that were found are marked

    def test_a_session_is_copied_as_its_commands(self, page):
        page.locator(".language-console").first.hover()
        page.locator(".language-console [data-md-type=copy]").first.click()
        copied = page.evaluate("navigator.clipboard.readText()")
        (first, *_) = (
            block
            for block in blocks((ROOT / "README.md").read_text(encoding="utf-8"))
            if block.commands
        )
        assert copied == "".join(f"{command.text}\n" for command in first.commands)

    @pytest.mark.parametrize("width", [500, 1280])
    def test_nothing_is_wider_than_the_screen(self, page, width):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if width == 1280:
            cut = page.eval_on_selector_all(
                "pre > code",
                "all => all.filter(each => each.scrollWidth > each.clientWidth).length",
            )
            assert cut == 0

    def test_a_wide_table_keeps_its_first_column_and_its_code_can_be_read(self, page):
        page.goto(f"{page.address}explanation/compared/")
        table = page.locator(".md-typeset__scrollwrap").first
        cells = table.locator("tbody tr").first.locator("td")
        before = [cells.nth(column).bounding_box()["x"] for column in (0, 1)]
        table.evaluate("element => element.scrollLeft = 100")
        first, second = (cells.nth(column).bounding_box()["x"] for column in (0, 1))
        assert before[0] - first < before[1] - second == 100
        size = "code => parseFloat(getComputedStyle(code).fontSize)"
        assert table.locator("code").first.evaluate(size) >= 12
