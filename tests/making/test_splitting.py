"""Which inputs are in which split, and which have which label, where nobody says so."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dataset_files import tables_in
from followed_sources import write
from image_files import image
from in_this_process import convert
from places import file_at
from pyarrow import parquet
from tars import tar

import shardctl
from shardctl.errors import DatasetError, InputError, UsageError
from shardctl.format.tables import open_table
from shardctl.making.plan.splits import SplitRule
from shardctl.sources.splits import named_as_splits, rank, split_word


def tree(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            image(path, (4, 4), (len(name), 0, 0))
        elif path.suffix == ".parquet":
            parquet.write_table(pa.table({"text": ["a"]}), path)
        elif path.suffix == ".tar":
            path.write_bytes(tar([("a.txt", b"")]))
        else:
            path.write_text("text\na\n" if path.suffix == ".csv" else '{"text": "a"}\n')
    return root


def planned(source: Any, out: Path, **options: Any) -> shardctl.making.convert.ConvertResult:
    return convert(source, out, dry_run=True, **options)


def splits(result: shardctl.making.convert.ConvertResult) -> dict[str, int]:
    assert result.estimate is not None
    return {split.name: split.expected for split in result.estimate.splits}


def test_class_folders_whose_name_contains_a_split_word_are_classes():
    assert named_as_splits({"bullet_train", "cat", "dog"}) == set()
    assert named_as_splits({"contest", "trainer", "evaluate"}) == set()
    assert named_as_splits({"train", "car", "bus"}) == {"train"}
    assert named_as_splits({"train", "bullet_train"}) == {"train"}
    others = "протест latest protest devices evaluator testimony values valid_until trains"
    assert [name for name in others.split() if split_word(name)] == []
    order = ["train", "val1", "val2", "test", "other"]
    assert sorted(["test", "other", "val2", "val1", "train"], key=rank) == order


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("train/1.png val/2.png stray/3.png", "train, val are named as splits, .* not: stray"),
        ("train/1.png other/2.png", "train is named as a split, but .* are not: other"),
        ("train/1.png val/2.png logo.png", r"1 input \(logo.png\) is in no folder; move such"),
        ("coco/train2017/1.png coco/val2017/2.png", "further down .*coco/train2017 and coco/val"),
        ("cat/train/1.png cat/test/2.png dog/train/3.png", "further down are named as splits"),
        ("train-256/1.png val-256/2.png", "train-256, val-256 cannot name a split"),
        ("seg_train/1.png seg_test/2.png seg_pred/3.png", "seg_train, seg_test are named as"),
        ("train.jsonl more.jsonl", "train is named as a split, but .* are not: more"),
    ],
)
def test_folders_of_splits_beside_others_are_refused(tmp_path, out, names, message):
    source = tree(tmp_path / "in", *names.split())
    with pytest.raises(InputError, match=f"{message}.*none"):
        planned(source, out)
    count = len(names.split())
    assert splits(planned(source, out, split="none", labels="none")) == {"train": count}


def test_sources_that_are_named_as_splits_are_the_splits(tmp_path, out):
    tree(tmp_path, "train/cat/1.png", "train/dog/2.png", "val/cat/3.png")
    both = [tmp_path / "train", tmp_path / "val"]
    notices = convert(both, out).notices
    assert any("the sources are the splits: train, val" in notice for notice in notices)
    assert [sample["key"] for sample in shardctl.open(out, split="val")] == ["cat/3.png"]
    assert shardctl.open(out).classes == ("cat", "dog")
    assert convert(both, out).status == "up-to-date"
    # the same sources under other names are another dataset
    test = both[1].rename(tmp_path / "test")
    with pytest.raises(DatasetError, match="that differs in its inputs"):
        convert([both[0], test], out)


def test_a_class_of_which_a_split_has_no_sample_is_told(tmp_path, out):
    names = ["train/a", "train/b", "train/c", "val/b", "val/d"]
    source = tree(tmp_path / "in", *(f"{name}/1.png" for name in names))
    told = [said for said in convert(source, out).notices if "no sample of" in said]
    of = ["train has no sample of 1 of 4 classes (d)", "val has no sample of 2 of 4 classes (a, c)"]
    assert told == of


def test_a_source_named_as_a_split_beside_one_that_is_not_is_refused(tmp_path, out):
    tree(tmp_path, "train/a.png", "more/b.png")
    both = [tmp_path / "train", tmp_path / "more"]
    said = r"the source train is named as a split, and more is not; use split='source'"
    with pytest.raises(InputError, match=said):
        planned(both, out)
    assert splits(planned(both, out, split="source")) == {"train": 1, "more": 1}
    assert splits(planned(both, out, split="none")) == {"train": 2}


def test_sources_and_folders_that_are_both_named_as_splits_are_refused(tmp_path, out):
    tree(tmp_path, "train/val/a.png", "test/train/b.png")
    with pytest.raises(InputError, match=r"are named as splits"):
        planned([tmp_path / "train", tmp_path / "test"], out)


def test_files_of_lines_that_are_named_as_splits_are_the_splits(tmp_path, out):
    names = ("train-00000-of-00002.jsonl", "test-00000-of-00001.jsonl")
    source = tree(tmp_path / "in", *names)
    assert splits(planned([source / name for name in names], out)) == {"train": 1, "test": 1}


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ("train/1.png val/1.png test/1.png", "train val test"),
        ("train2017/1.png val2017/1.png", "train2017 val2017"),
        ("train_256/1.png valid_256/1.png", "train_256 valid_256"),
        ("Training/1.png Validation/1.png", "Training Validation"),
        ("train/1.png holdout/1.png", "train holdout"),
        ("train/1.png hold_out/1.png", "train hold_out"),
        ("train/1.png evaluation/1.png", "train evaluation"),
        ("train/1.png dev/1.png eval/1.png", "train dev eval"),
        ("trainA/1.png trainB/1.png testA/1.png testB/1.png", "trainA trainB testA testB"),
        ("training_set/1.png test_set/1.png", "training_set test_set"),
        ("TrainData/1.png testdata/1.png", "TrainData testdata"),
        ("train/1.png validate/1.png", "train validate"),
        ("test.jsonl", "test"),
        ("test/1.jsonl", "test"),
        ("test/1.png", "test"),
        ("val.csv", "val"),
        ("data/test.csv", "test"),
        ("test-00000-of-00002.parquet test-00001-of-00002.parquet", "test test"),
        (
            "train-00000-of-00002.jsonl train-00001-of-00002.jsonl test-00000-of-00001.jsonl",
            "train train test",
        ),
        ("test.tar", "test"),
        ("dev.jsonl test.jsonl", "dev test"),
        ("imdb_train.jsonl imdb_test.jsonl", "train test"),
        ("seg_train/1.png seg_test/1.png", "seg_train seg_test"),
        ("training.jsonl", "train"),
        ("more.jsonl attest.jsonl dev_log.jsonl", "train train train"),
        ("contest.jsonl eval_scores.jsonl valid_until.jsonl vals.jsonl", "train train train train"),
        ("trainset.jsonl testset.jsonl", "train test"),
        ("trainset/cat/1.png testset/cat/2.png", "trainset testset"),
        ("bullet_train/1.png car/2.png test_tube/3.png", "train train train"),
    ],
    ids=str,
)
def test_a_set_within_a_source_is_a_split_of_its_own_whether_file_or_folder(
    tmp_path, out, names, found
):
    """In their order: training before validation before test."""
    result = planned(tree(tmp_path / "in", *names.split()), out)
    assert splits(result) == Counter(found.split())
    assert list(splits(result)) == list(dict.fromkeys(found.split()))
    assert result.warnings == ()


def with_column(root: Path, rows: dict[str, str]) -> Path:
    lines = "".join(f"{name},{split}\n" for name, split in rows.items())
    write(root / "labels.csv", f"filename,split\n{lines}")
    return tree(root, *rows)


def test_a_column_split_of_the_labels_file_decides(tmp_path, out):
    source = with_column(tmp_path / "in", {"1.png": "test", "2.png": "train", "3.png": "train"})
    notices = convert(source, out).notices
    ds = shardctl.open(out)
    assert [split.name for split in ds.manifest.splits] == ["train", "test"]
    assert [sample["key"] for sample in shardctl.open(out, split="test")] == ["1.png"]
    assert "split" not in ds.schema.names
    said = "the column split are the splits: train, test"
    assert any(said in notice for notice in notices)


@pytest.mark.parametrize("split", ["none", "train=0.5,val=0.5"])
def test_an_option_goes_before_the_column_split_which_is_kept(tmp_path, out, split):
    rows = {"1.png": "test", "2.png": "train"}
    result = convert(with_column(tmp_path / "in", rows), out, split=split)
    assert {sample["key"]: sample["split"] for sample in shardctl.open(out)} == rows
    assert any(f"split={split!r} decides the splits" in notice for notice in result.notices)
    mixed = "the values of the column split are splits (train, test), but split="
    assert sum(mixed in warning for warning in result.warnings) == (split != "none")


def test_a_column_split_that_cannot_divide_the_inputs_is_refused(tmp_path, out):
    source = with_column(tmp_path / "in", {"1.png": "train", "2.png": ""})
    with pytest.raises(InputError, match=r"the column split names no split for 1 input \(2.png\)"):
        planned(source, out)
    folds = with_column(tmp_path / "folds", {"1.png": "0", "2.png": "1"})
    with pytest.raises(InputError, match="its split is int64, not names"):
        planned(folds, out)
    bare = tree(tmp_path / "bare", "1.png")
    with pytest.raises(InputError, match="no labels file with a column called split"):
        planned(bare, out, split="column")


def test_a_column_split_and_folders_that_disagree_are_refused(tmp_path, out):
    source = with_column(tmp_path / "in", {"train/1.png": "train", "val/2.png": "test"})
    with pytest.raises(
        InputError, match=r"puts 1 input into another split .*\(val/2.png\); choose split="
    ):
        planned(source, out)
    assert splits(planned(source, out, split="column")) == {"train": 1, "test": 1}
    assert splits(planned(source, out, split="folder")) == {"train": 1, "val": 1}
    agreeing = with_column(
        tmp_path / "agreeing", {"train/1.png": "train", "val/2.png": "validation"}
    )
    assert splits(planned(agreeing, out)) == {"train": 1, "validation": 1}


@pytest.mark.parametrize("stray", ["logo.png", "train/logo.png"])
def test_one_stray_image_beside_class_folders_does_not_take_all_labels(tmp_path, out, stray):
    top = stray.rpartition("/")[0]
    names = [f"{top}/{name}".lstrip("/") for name in ("cat/1.png", "dog/2.png")]
    source = tree(tmp_path / "in", *names, stray)
    beside = f"1 input ({stray}) beside 2 class folders (cat, dog)"
    with pytest.raises(InputError, match=re.escape(f"{beside} would have no label")):
        planned(source, out)
    result = convert(source, out, labels="folder")
    files = (
        open_table(*file_at(tables_in(out) / "files.arrow")).select(["path", "label"]).to_pylist()
    )
    labels = {row["path"]: row["label"] for row in files}
    assert labels == {names[0]: 0, names[1]: 1, stray: None}
    assert any(f"{beside}: no label" in notice for notice in result.notices)
    convert(source, tmp_path / "none", labels="none")
    assert "label" not in shardctl.open(tmp_path / "none").schema.names


def test_split_folders_are_no_classes_when_they_are_no_splits(tmp_path, out):
    source = tree(tmp_path / "in", "train2017/1.png", "val2017/2.png")
    result = planned(source, out, split="train=0.5,val=0.5")
    assert result.estimate is not None
    assert result.estimate.classes is None
    said = "train2017, val2017 are names of splits, not classes"
    assert any(said in notice for notice in result.notices)


def test_what_was_decided_is_said_in_json_too(tmp_path, out, cli):
    source = tree(tmp_path / "in", "train2017/a/1.png", "val2017/b/2.png")
    for more in (("--dry-run",), ()):
        (notice, *_) = cli("convert", source, out, "--workers", 0, "--json", *more).json["notices"]
        assert "the top-level folders or files are the splits: train2017, val2017" in notice


def test_a_split_rule_is_read_or_refused():
    """Shares are recorded exactly: repair and the fingerprint read what was recorded."""
    words = "auto folder source column none train=0.9,val=0.1"
    exact = "train=0.6666667,val=0.1666667,test=0.1666666 train=0.12345649,val=0.87654351"
    for text in f"{words} {exact}".split():
        assert SplitRule.parse(str(SplitRule.parse(text))) == SplitRule.parse(text)
    for text in words.split():
        assert str(SplitRule.parse(text)) == text
    with pytest.raises(UsageError, match=r"not of the form train=0.9,val=0.1, and not one of auto"):
        SplitRule.parse("folders")
    with pytest.raises(UsageError, match="names a split twice"):
        SplitRule.parse("a=0.5,a=0.5")
    with pytest.raises(UsageError, match="256 are too many; there can be 255"):
        SplitRule.parse(",".join(f"s{n}={1 / 256}" for n in range(256)))
