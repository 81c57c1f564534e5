from __future__ import annotations

from shardctl.system.user_cache import Remembered, user_cache


def digest(number: int) -> str:
    return f"{number:064x}"


def test_the_facts_that_came_last_are_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for number in range(5):
        Remembered("facts", 3).add(digest(number), {"is": [number, "文"]})
    Remembered("facts", 3).add(digest(3), "another")
    found = [Remembered("facts", 3).find(digest(number)) for number in range(5)]
    assert found == [None, None, {"is": [2, "文"]}, "another", {"is": [4, "文"]}]
    assert [path.name for path in (tmp_path / "shardctl").iterdir()] == ["facts"]
    assert (tmp_path / "shardctl").stat().st_mode & 0o777 == 0o700


def test_without_a_folder_nothing_is_remembered_and_nothing_fails(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    Remembered("facts").add(digest(1), True)
    assert Remembered("facts").find(digest(1)) is None


def test_a_relative_name_of_the_cache_is_not_used(tmp_path, monkeypatch):
    """As the XDG specification says: it would be another folder in each current folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache() == tmp_path / ".cache" / "shardctl"
