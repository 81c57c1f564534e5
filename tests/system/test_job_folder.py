"""The folder of a job that may be killed: what can be gone on with, what is left over, what is
taken away."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardctl.errors import StorageError
from shardctl.system import job_folder
from shardctl.system.job_folder import JobFolder


@pytest.fixture
def job(tmp_path: Path) -> JobFolder:
    """A job with two parts, of which one is done."""
    job = JobFolder(tmp_path / "staging" / "job")
    job.path.parent.mkdir()
    job.make_folders("made")
    job.save({"parts": 2})
    job.mark_done("0", {"files": ["a"]})
    return job


def test_what_was_written_is_read_again(job):
    assert job.is_begun()
    assert job.record() == {"parts": 2}
    assert job.read_marker("0") == {"files": ["a"]}
    assert job.markers() == ["0.json"]
    with pytest.raises(FileNotFoundError):
        job.read_marker("1")


def test_where_the_markers_are_gone_it_is_not_said_that_nothing_is_done(job):
    (job.path / "done").rename(job.path / "away")
    with pytest.raises(FileNotFoundError):
        job.markers()


def test_folders_are_made_again_but_not_behind_a_link(job, tmp_path):
    job.make_folders("made")
    (tmp_path / "mine").mkdir()
    (job.path / "other").symlink_to(tmp_path / "mine")
    with pytest.raises(StorageError, match="a link to"):
        job.make_folders("other")


def test_only_incomplete_files_that_are_wanted_are_deleted(job):
    for name in (
        "made/a",
        "made/a.0123abcd.partial",
        "made/b.0123abcd.partial",
        "done/a.0123abcd.partial",
    ):
        (job.path / name).touch()
    assert job.markers() == ["0.json"]
    for folder in ("made", "done"):
        job.delete_partial_files(job.path / folder, lambda name: name == "a")
    assert sorted(os.listdir(job.path / "made")) == ["a", "b.0123abcd.partial"]
    assert os.listdir(job.path / "done") == ["0.json"]


@pytest.mark.parametrize("killed_at", ["rename", "remove_tree"])
def test_half_of_a_folder_is_none_to_go_on_with(job, monkeypatch, killed_at):
    def killed(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if killed_at == "rename":
            patch.setattr(Path, "rename", killed)
        else:
            patch.setattr(job_folder, "remove_tree", killed)
        with pytest.raises(KeyboardInterrupt):
            job.discard(job.path.parent.parent)
    (left,) = job.path.parent.iterdir()
    assert not JobFolder(left).is_begun()
    JobFolder(left).discard(left.parent.parent)
    assert list(job.path.parent.iterdir()) == []


def test_no_link_is_followed_when_a_folder_is_taken_away(job, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    (job.path / "made" / "link").symlink_to(tmp_path / "mine")
    job.discard(tmp_path)
    assert list(job.path.parent.iterdir()) == []
    job.path.symlink_to(tmp_path / "mine")
    with pytest.raises(StorageError, match="a link to"):
        job.discard(tmp_path)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "mine"
