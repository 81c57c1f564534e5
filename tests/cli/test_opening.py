"""`--open`: a written page is opened in the browser of the user, if there is one."""

from __future__ import annotations

import shlex
import sys
import webbrowser
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

import pytest


def file_of(url: str) -> Path:
    return Path(url2pathname(urlparse(url).path))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The contents of the pages that are opened, and a folder of its own for temporary files."""
    pages: list[str] = []

    def open_url(url: str) -> bool:
        pages.append(file_of(url).read_text(encoding="utf-8"))
        sys.stdout.write("a browser talks\n")
        return True

    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(webbrowser, "open", open_url)
    monkeypatch.setenv("DISPLAY", ":0")
    return pages


def commands(photos: Path, dataset: Path) -> dict[str, list[object]]:
    return {
        "inspect": ["inspect", dataset],
        "bench": ["bench", dataset, "--runs", 1, "--epochs", 1],
        "preview": ["preview", photos, *"--resize 32 --inputs 1 --workers 0".split()],
    }


@pytest.mark.parametrize("command", ["inspect", "bench", "preview"])
def test_a_page_is_opened_when_it_is_complete(cli, photos, raw_dataset, tmp_path, opened, command):
    arguments = commands(photos, raw_dataset)[command]
    found = cli(*arguments, "--html", tmp_path / "p.html", "--open", "--json")
    assert found.code == 0
    assert found.json["page"] == str(tmp_path / "p.html")
    assert opened == [(tmp_path / "p.html").read_text(encoding="utf-8")]
    assert opened[0].endswith("</html>\n")
    found = cli(*arguments, "--open")
    temporary = next((tmp_path / "temporary").rglob("*.html"))
    assert f"page written to {temporary}" in found.out, (
        "without --html the page is a file that stays"
    )
    assert len(opened) == 2


def test_a_temporary_page_is_for_its_user_alone(cli, raw_dataset, tmp_path, opened):
    assert cli("inspect", raw_dataset, "--open").code == 0
    temporary = next((tmp_path / "temporary").rglob("inspect.html"))
    assert temporary.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="there a browser is always asked")
@pytest.mark.parametrize("command", ["inspect", "bench", "preview"])
def test_without_a_display_a_note_names_the_page(
    cli, photos, raw_dataset, tmp_path, opened, monkeypatch, command
):
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    found = cli(*commands(photos, raw_dataset)[command], "--html", tmp_path / "p.html", "--open")
    assert (found.code, opened) == (0, [])
    assert f"note: no browser can be opened here; the page is {tmp_path / 'p.html'}" in found.err


def test_a_browser_that_fails_is_a_note_too(cli, raw_dataset, tmp_path, opened, monkeypatch):
    def fail(url: str) -> bool:
        raise webbrowser.Error("could not locate runnable browser")

    monkeypatch.setattr(webbrowser, "open", fail)
    found = cli("inspect", raw_dataset, "--html", tmp_path / "p.html", "--open")
    assert found.code == 0
    assert found.err.count("no browser can be opened here") == 1


def test_the_preview_page_has_the_command_that_converts(cli, photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my photos").symlink_to(photos)
    given = ("--random-crop", 32, "--flip=0.5", "--seed", 3, "--workers", 0)
    assert cli("preview", "my photos", *given, "--inputs", 1, "--html", "p.html", "-q").code == 0
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert f"In {tmp_path}:" in page, "where the paths of the command are right"
    line = page.partition("<code>")[2].partition("</code>")[0]
    words = shlex.split(line.replace("&#x27;", "'"))
    assert words[:4] == ["shardctl", "convert", "my photos", "out"]
    assert sorted(words[4:]) == sorted("--random-crop 32 --flip 0.5 --seed 3 --workers 0".split())
    converted = cli(*words[1:3], "converted", *words[4:])
    assert converted.code == 0, "it is a command line of convert"
