from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import examples
from dataset_facts import keys, rejects_of
from hypothesis import example, given
from hypothesis import strategies as st
from in_this_process import convert
from PIL import Image
from tars import tar

import shardctl
from shardctl.errors import InputError, TooManyRejectsError, UsageError
from shardctl.sources.files import SourceRoot, read_small
from shardctl.sources.walk import walk


def tree(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith((".png", ".jpg")):
            Image.new("RGB", (8, 8), (len(name), 0, 0)).save(root / name)
        else:
            (root / name).write_text("x")
    return root


def converted(source: Path, out: Path, **options: Any) -> list[dict[str, Any]]:
    convert(source, out, **options)
    return list(shardctl.open(out))


def labels(source: Path, out: Path, **options: Any) -> dict[str, str | None]:
    convert(source, out, **options)
    ds = shardctl.open(out)
    names = ds.classes or ()
    return {
        sample["key"]: names[sample["label"]] if sample.get("label") is not None else None
        for sample in ds
    }


def test_files_come_in_a_fixed_order_through_links_and_not_round_and_round(tmp_path):
    tree(tmp_path / "in", "b.png", "a/2.png", "a/1.png", "a/.hidden.png", ".git/x.png", "a-b/3.png")
    tree(tmp_path / "elsewhere", "4.png")
    (tmp_path / "in" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "a" / "loop").symlink_to(tmp_path / "in")
    notices: list[str] = []
    found = [
        path
        for files in walk([SourceRoot(str(tmp_path / "in"))], notices.append)
        for path in files.paths
    ]
    assert found == ["b.png", "a/1.png", "a/2.png", "a-b/3.png", "linked/4.png"]
    assert notices == [
        f"{tmp_path}/in/a/loop: a link back to a folder that contains it; skipped",
        f"left out: 2 hidden files and folders, for instance {tmp_path}/in/.git (a dot before the "
        "name, or of a system)",
    ]


def test_hidden_files_and_pipes_are_left_out_with_a_notice(tmp_path):
    tree(tmp_path / "in", "1.png", ".2.png")
    os.mkfifo(tmp_path / "in" / "pipe.png")
    result = convert(tmp_path / "in", tmp_path / "out")
    assert (result.samples, result.rejected) == (1, 0)
    assert result.notices == (
        f"left out: 1 hidden file or folder, for instance {tmp_path}/in/.2.png (a dot before the "
        "name, or of a system)",
        f"left out: 1 pipe, socket or device, for instance {tmp_path}/in/pipe.png, which are no "
        "ordinary files",
    )


@pytest.mark.parametrize(
    "junk", ["__MACOSX/cat", "cat/@eaDir/1.png", "$RECYCLE.BIN", "System Volume Information"]
)
def test_folders_that_systems_make_are_no_classes(junk, tmp_path, out):
    tree(tmp_path / "in", "cat/1.png", "dog/2.png", f"{junk}/3.png")
    result = convert(tmp_path / "in", out)
    assert (result.samples, shardctl.open(out).classes) == (2, ("cat", "dog"))
    assert "left out: 1 hidden file or folder" in str(result.notices)
    assert convert(tmp_path / "in", out).status == "up-to-date"
    tree(tmp_path / "in", f"{junk}/4.png", "dog/5.png")
    assert convert(tmp_path / "in", out, update=True).samples == 3


def test_the_class_is_the_folder_nested_or_not(tmp_path):
    source = tree(tmp_path / "in", "animals/cat/1.png", "animals/dog/2.png", "things/cup/3.png")
    assert labels(source, tmp_path / "out") == {
        "animals/cat/1.png": "cat",
        "animals/dog/2.png": "dog",
        "things/cup/3.png": "cup",
    }


def test_a_flat_folder_has_no_labels_and_one_folder_is_no_class(tmp_path):
    tree(tmp_path / "flat", "1.png", "2.png")
    tree(tmp_path / "one", "images/1.png", "images/2.png")
    for name in ("flat", "one"):
        convert(tmp_path / name, tmp_path / f"{name}-out")
        assert "label" not in shardctl.open(tmp_path / f"{name}-out").schema.names
    assert labels(tmp_path / "one", tmp_path / "forced", labels="folder") == {
        "images/1.png": "images",
        "images/2.png": "images",
    }


def test_split_folders_are_splits_and_no_classes(tmp_path, out):
    source = tree(tmp_path / "in", "train/a/1.png", "train/b/2.png", "test/a/3.png", "val/b/4.png")
    assert labels(source, out) == {
        "train/a/1.png": "a",
        "train/b/2.png": "b",
        "val/b/4.png": "b",
        "test/a/3.png": "a",
    }
    splits = [split.name for split in shardctl.open(out).manifest.splits]
    assert splits == ["train", "val", "test"]
    convert(source, tmp_path / "whole", split="none")
    assert [split.name for split in shardctl.open(tmp_path / "whole").manifest.splits] == ["train"]


def test_a_share_split_keeps_each_input_where_it_is(tmp_path, out):
    names = [f"{n}.png" for n in range(200)]
    tree(tmp_path / "in", *names)
    convert(tmp_path / "in", out, split="train=0.8,val=0.2")
    before = {s["key"] for s in shardctl.open(out, split="val")}
    assert 20 < len(before) < 60
    tree(tmp_path / "in", "another.png")
    convert(tmp_path / "in", out, split="train=0.8,val=0.2", overwrite=True)
    assert {s["key"] for s in shardctl.open(out, split="val")} - {"another.png"} == before


def test_two_sources_join_and_the_same_key_twice_is_refused(tmp_path, out):
    one, other = tree(tmp_path / "one", "a/1.png", "b/2.png"), tree(tmp_path / "other", "a/3.png")
    convert([one, other], out)
    assert keys(out) == ["a/1.png", "b/2.png", "a/3.png"]
    tree(other, "a/1.png")
    with pytest.raises(InputError, match=r"keys? appears? twice, among them a/1.png"):
        convert([one, other], tmp_path / "out2")
    with pytest.raises(UsageError, match="the source is given twice; leave one out"):
        convert([other, other], tmp_path / "out2")
    assert not (tmp_path / "out2").exists()


def test_names_with_newlines_and_names_that_differ_by_case_are_kept(tmp_path, out):
    names = ["Cat.png", "a\nb.png", "cat.png", "naïve café.png"]
    convert(tree(tmp_path / "in", *names), out)
    assert sorted(keys(out)) == names


def test_a_csv_beside_the_images_gives_labels_and_columns(tmp_path, out):
    source = tree(tmp_path / "in", "x/1.png", "2.png")
    (source / "labels.csv").write_text(
        '﻿filename,label,score,note\nx/1.png,dog,0.5,"a, b"\n2.png,cat,,\n', encoding="utf-8"
    )
    found = {
        each["key"]: (each["label"], each["score"], each["note"]) for each in converted(source, out)
    }
    assert found == {"2.png": (0, None, ""), "x/1.png": (1, 0.5, "a, b")}
    assert shardctl.open(out).classes == ("cat", "dog")


def test_an_explicit_labels_file_may_lie_anywhere(tmp_path):
    source = tree(tmp_path / "in", "a/1.png", "a/2.png")
    for place, start in ((tmp_path, "a/"), (source / "a", "")):
        (place / "own.csv").write_text(f"filename,label\n{start}1.png,x\n{start}2.png,y\n")
        found = labels(source, tmp_path / f"out{start[:1]}", labels=str(place / "own.csv"))
        assert found == {"a/1.png": "x", "a/2.png": "y"}


def test_text_files_are_samples_with_their_folders_as_classes(tmp_path, out):
    for name, text in (("pos/a.txt", "﻿fine\r\n"), ("neg/b.txt", "schlecht, nicht gut: ß")):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(text.encode())
    (tmp_path / "in" / "neg" / "c.txt").write_bytes("caf\xe9".encode("latin-1"))
    found = {
        sample["key"]: (sample["text"], sample["label"])
        for sample in converted(tmp_path / "in", out)
    }
    assert found == {"neg/b.txt": ("schlecht, nicht gut: ß", 0), "pos/a.txt": ("fine\r\n", 1)}
    (reject,) = rejects_of(out)
    assert (reject.key, reject.error) == ("neg/c.txt", "not-utf8")


def test_a_name_that_is_not_utf8_rejects_its_file_alone(tmp_path, out):
    names = ["a\u3000b/c\u202fd.txt", "a\u3000b/\u00a0\n.txt", "e.txt"]
    for name in (*names, "a\u3000b/\udcff.txt", "\udcfe.txt"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_text("fine")
    found = converted(tmp_path / "in", out, labels="none")
    assert {sample["key"] for sample in found} == {*names}
    assert {reject.error for reject in rejects_of(out)} == {"name-not-utf8"}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    ),
    max_leaves=6,
)


@examples(14)
@example(records=[{"x": [{"a": [0, 0]}]}])
@given(
    records=st.lists(
        st.dictionaries(st.sampled_from(["x", "label", "text"]), JSON), min_size=1, max_size=8
    )
)
@example(records=[{"x": [0, 0]}])
@example(records=[{"x": 2**53 + 1}, {"x": 0.5}])
def test_lines_of_json_come_back_with_the_same_values(tmp_path_factory, records):
    """A field of one type as itself, one of mixed types as its JSON text; absent and null are the
    same."""
    root = tmp_path_factory.mktemp("lines")
    (root / "in.jsonl").write_text(
        "".join(json.dumps(record) + "\n\n" for record in records), encoding="utf-8"
    )
    found = converted(root / "in.jsonl", root / "out", labels="none")
    assert [sample["key"] for sample in found] == [
        f"in.jsonl#{2 * n + 1}" for n in range(len(records))
    ]
    for record, sample in zip(records, found, strict=True):
        for name, value in record.items():
            assert _same(sample[name], value)


def _same(got: Any, put: Any) -> bool:
    if isinstance(got, np.ndarray):
        got = got.tolist()
    if isinstance(got, str) and not isinstance(put, str) and put is not None:
        return bool(json.loads(got) == put)
    if isinstance(put, dict) and isinstance(got, dict):
        return all(_same(got.get(name), put.get(name)) for name in {*got, *put})
    if isinstance(put, list) and isinstance(got, list):
        return len(got) == len(put) and all(_same(g, p) for g, p in zip(got, put, strict=True))
    return bool(got == put)


def test_a_field_whose_values_no_type_holds_is_told(tmp_path, out):
    (tmp_path / "a.jsonl").write_text('{"a": 9007199254740993}\n{"a": 0.5}\n')
    said = convert(tmp_path / "a.jsonl", out).notices
    assert "the field a has values" in str(said)


def test_text_files_and_lines_do_not_mix(tmp_path, out):
    tree(tmp_path / "in", "a.txt")
    (tmp_path / "in" / "b.jsonl").write_text('{"text": "b"}\n')
    with pytest.raises(InputError, match=r"many records \(b.jsonl\) and .* \(a.txt\)"):
        convert(tmp_path / "in", out)


def test_an_image_without_a_telling_name_is_found(tmp_path, out):
    tree(tmp_path / "in", "a.png", "readme")
    (tmp_path / "in" / "a.png").rename(tmp_path / "in" / "photo")
    convert(tmp_path / "in", out)
    assert keys(out) == ["photo"]


def test_a_file_that_cannot_be_looked_at_does_not_decide_the_kind(tmp_path, out):
    source = tree(tmp_path / "in", "b.txt")
    (source / "a-link").symlink_to("nowhere")
    result = convert(source, out)
    assert shardctl.open(out).manifest.kind == "text"
    assert f"1 file or folder, for instance {source}/a-link, which cannot" in result.notices[0]
    (source / "b.txt").rename(tmp_path / "b.txt")
    (source / "c.png").symlink_to("nowhere")
    with pytest.raises(TooManyRejectsError, match="no input could be converted"):
        convert(source, tmp_path / "images", max_rejects="100%")


@pytest.mark.parametrize(
    "idle", ["empty", "pdf", "header.csv", "none.jsonl", "empty.tar", "README.md"]
)
@pytest.mark.parametrize("place", [0, 1])
def test_a_source_that_gives_nothing_beside_others_is_an_error(idle, place, tmp_path, out):
    made = tree(tmp_path, "photos/1.png", "pdf/1.pdf", "README.md")
    (made / "empty").mkdir()
    (made / "empty.tar").write_bytes(tar([]))
    for name, text in {"header.csv": "a,b\n", "none.jsonl": "", "good.csv": "a,b\n1,2\n"}.items():
        (made / name).write_text(text)
    tables = idle.endswith((".csv", ".jsonl", ".tar"))
    sources = [made / ("good.csv" if tables else "photos")]
    sources.insert(place, made / idle)
    with pytest.raises(InputError, match=rf"{idle}: .*Leave this source out"):
        convert(sources, out, kind="table" if tables else "image")
    assert not out.exists()


def test_sources_that_describe_or_label_others_give_something(tmp_path, out):
    made = tree(tmp_path, "1.png", "00000_stats.json", "00000.parquet")
    (made / "labels.csv").write_text("file_name,label\n1.png,cat\n")
    convert([made / "1.png", made / "labels.csv"], out)
    assert shardctl.open(out).classes == ("cat",)
    (made / "00000.tar").write_bytes(tar([("a.txt", b"1")]))
    files = [made / f"00000{ending}" for ending in (".tar", "_stats.json", ".parquet")]
    assert convert(files, tmp_path / "table").samples == 1


def test_a_small_file_is_whole_where_one_call_returns_some_of_it(tmp_path, monkeypatch):
    file, real = tmp_path / "labels.txt", os.read
    file.write_bytes(b"0 0.5 0.5 0.1 0.1\n" * 3)
    monkeypatch.setattr(os, "read", lambda descriptor, most: real(descriptor, min(most, 7)))
    assert read_small(str(file), 100) == file.read_bytes()
