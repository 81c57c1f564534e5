"""Which inputs are in which split, and which have which label, where nobody says so."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from in_this_process import convert
from PIL import Image
from places import file_at
from pyarrow import parquet

import shardctl
from shardctl.errors import InputError, UsageError
from shardctl.format.tables import open_table
from shardctl.making.plan.splits import SplitRule
from shardctl.sources.splits import named_as_splits, rank, split_word


def tree(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            Image.new("RGB", (4, 4), (len(name), 0, 0)).save(path)
        elif path.suffix == ".parquet":
            parquet.write_table(pa.table({"text": ["a"]}), path)
        elif path.suffix == ".tar":
            with tarfile.open(path, "w") as tar:
                tar.addfile(tarfile.TarInfo("a.txt"), io.BytesIO(b""))
        elif path.suffix == ".csv":
            path.write_text("text\na\n")
        else:
            path.write_text('{"text": "a"}\n')
    return root


def planned(source: Any, out: Path, **options: Any) -> shardctl.making.convert.ConvertResult:
    return convert(source, out, dry_run=True, **options)


def splits(result: shardctl.making.convert.ConvertResult) -> dict[str, int]:
    assert result.estimate is not None
    return {split.name: split.expected for split in result.estimate.splits}


@pytest.mark.parametrize(
    "names",
    [
        ("train", "val", "test"),
        ("train2017", "val2017"),
        ("train_256", "valid_256"),
        ("Training", "Validation"),
        ("train", "holdout"),
        ("train", "hold_out"),
        ("train", "evaluation"),
        ("train", "dev", "eval"),
        ("trainA", "trainB", "testA", "testB"),
        ("seg_train", "seg_test"),
        ("training_set", "test_set"),
        ("trainset", "testset"),
        ("TrainData", "testdata"),
        ("train", "validate"),
    ],
)
def test_folders_on_top_that_are_named_as_splits_are_the_splits(tmp_path, out, names):
    source = tree(tmp_path / "in", *(f"{name}/{place}.png" for place, name in enumerate(names)))
    result = planned(source, out)
    assert splits(result) == dict.fromkeys(names, 1)
    assert list(splits(result)) == list(names), "training before validation before test"
    assert any("are the splits" in notice for notice in result.notices)
    assert list(splits(planned(source, out, split="none"))) == ["train"]


def test_class_folders_whose_name_contains_a_split_word_are_classes():
    assert named_as_splits({"bullet_train", "cat", "dog"}) == set()
    assert named_as_splits({"contest", "trainer", "evaluate"}) == set()
    assert named_as_splits({"train", "car", "bus"}) == {"train"}
    assert named_as_splits({"train", "bullet_train"}) == {"train"}
    assert split_word("протест") is None
    others = (
        "contest",
        "latest",
        "attest",
        "protest",
        "devices",
        "evaluator",
        "testimony",
        "values",
        "valid_until",
        "trains",
    )
    assert [name for name in others if split_word(name)] == []
    assert sorted(["test", "other", "val2", "val1", "train"], key=rank) == [
        "train",
        "val1",
        "val2",
        "test",
        "other",
    ]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ("train/1.png", "val/2.png", "stray/3.png"),
            "train, val are named as splits, but these beside them are not: stray",
        ),
        (
            ("train/1.png", "other/2.png"),
            "train is named as a split, but these beside them are not: other",
        ),
        (
            ("train/1.png", "val/2.png", "logo.png"),
            r"1 input \(logo.png\) is in no folder; move such files",
        ),
        (
            ("coco/train2017/1.png", "coco/val2017/2.png"),
            "further down are named as splits .*coco/train2017 and coco/val2017",
        ),
        (
            ("cat/train/1.png", "cat/test/2.png", "dog/train/3.png"),
            "further down are named as splits",
        ),
        (("train-256/1.png", "val-256/2.png"), "train-256, val-256 cannot name a split"),
        (
            ("seg_train/1.png", "seg_test/2.png", "seg_pred/3.png"),
            "seg_train, seg_test are named as splits, but these beside them are not",
        ),
        (
            ("train.jsonl", "more.jsonl"),
            "train is named as a split, but these beside them are not: more",
        ),
    ],
)
def test_folders_of_splits_beside_others_are_refused(tmp_path, out, names, message):
    source = tree(tmp_path / "in", *names)
    with pytest.raises(InputError, match=message) as caught:
        planned(source, out)
    assert "split='none'" in str(caught.value)
    assert splits(planned(source, out, split="none", labels="none")) == {"train": len(names)}


def test_split_folder_makes_a_split_of_every_folder_on_top(tmp_path, out):
    source = tree(tmp_path / "in", "train/1.png", "stray/2.png")
    assert splits(planned(source, out, split="folder")) == {"train": 1, "stray": 1}


def test_sources_that_are_named_as_splits_are_the_splits(tmp_path, out, cli):
    tree(tmp_path / "sp", "train/cat/1.png", "train/dog/2.png", "val/cat/3.png")
    ran = cli(
        "convert",
        tmp_path / "sp" / "train",
        tmp_path / "sp" / "val",
        out,
        "--workers",
        "0",
    )
    assert ran.code == 0
    assert "note: the sources are the splits: train, val" in ran.err
    assert [sample["key"] for sample in shardctl.open(out, split="val")] == ["cat/3.png"]
    assert shardctl.open(out).classes == ("cat", "dog")


def test_the_same_sources_under_other_names_are_another_dataset(tmp_path, out):
    tree(tmp_path, "train/a.png", "val/b.png")
    convert([tmp_path / "train", tmp_path / "val"], out)
    assert convert([tmp_path / "train", tmp_path / "val"], out).status == "up-to-date"
    (tmp_path / "val").rename(tmp_path / "test")
    with pytest.raises(shardctl.errors.DatasetError, match="that differs in its inputs"):
        convert([tmp_path / "train", tmp_path / "test"], out)


def test_a_source_named_as_a_split_beside_one_that_is_not_is_refused(tmp_path, out):
    tree(tmp_path, "train/a.png", "more/b.png")
    both = [tmp_path / "train", tmp_path / "more"]
    with pytest.raises(
        InputError,
        match=r"the source train is named as a split, and more is not; use split='source'",
    ):
        planned(both, out)
    assert splits(planned(both, out, split="source")) == {"train": 1, "more": 1}
    assert splits(planned(both, out, split="none")) == {"train": 2}


def test_sources_and_folders_that_are_both_named_as_splits_are_refused(tmp_path, out):
    tree(tmp_path, "train/val/a.png", "test/train/b.png")
    with pytest.raises(InputError, match=r"are named as splits"):
        planned([tmp_path / "train", tmp_path / "test"], out)


def test_files_of_lines_that_are_named_as_splits_are_the_splits(tmp_path, out):
    source = tree(
        tmp_path / "in",
        "train-00000-of-00002.jsonl",
        "train-00001-of-00002.jsonl",
        "test-00000-of-00001.jsonl",
    )
    assert splits(planned(source, out)) == {"train": 2, "test": 1}
    files = [source / "train-00000-of-00002.jsonl", source / "test-00000-of-00001.jsonl"]
    assert splits(planned(files, out)) == {"train": 1, "test": 1}


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("test.jsonl",), {"test": 1}),
        (("test/1.jsonl",), {"test": 1}),
        (("test/1.png",), {"test": 1}),
        (("val.csv",), {"val": 1}),
        (("data/test.csv",), {"test": 1}),
        (("test-00000-of-00002.parquet", "test-00001-of-00002.parquet"), {"test": 2}),
        (("test.tar",), {"test": 1}),
        (("dev.jsonl", "test.jsonl"), {"dev": 1, "test": 1}),
        (("imdb_train.jsonl", "imdb_test.jsonl"), {"train": 1, "test": 1}),
        (("seg_train/1.png", "seg_test/1.png"), {"seg_train": 1, "seg_test": 1}),
        (("train.jsonl",), {"train": 1}),
        (("training.jsonl",), {"train": 1}),
        (("more.jsonl", "attest.jsonl", "dev_log.jsonl"), {"train": 3}),
        (
            (
                "a.jsonl",
                "contest.jsonl",
                "eval_scores.jsonl",
                "valid_until.jsonl",
                "devices.jsonl",
                "vals.jsonl",
            ),
            {"train": 6},
        ),
        (("trainset.jsonl", "testset.jsonl"), {"train": 1, "test": 1}),
        (("traindata/1.jsonl", "testdata/1.jsonl"), {"traindata": 1, "testdata": 1}),
        (("trainset/cat/1.png", "testset/cat/2.png"), {"trainset": 1, "testset": 1}),
        (("bullet_train/1.png", "car/2.png", "test_tube/3.png", "dev_log/4.png"), {"train": 4}),
    ],
    ids=" ".join,
)
def test_a_set_within_a_source_is_a_split_of_its_own_whether_file_or_folder(
    tmp_path, out, names, found
):
    result = planned(tree(tmp_path / "in", *names), out)
    assert splits(result) == found
    assert result.warnings == ()


def with_column(root: Path, rows: dict[str, str], **more: str) -> Path:
    tree(root, *rows)
    (root / "labels.csv").write_text(
        "filename,split\n" + "".join(f"{name},{split}\n" for name, split in rows.items())
    )
    return root


def test_a_column_split_of_the_labels_file_decides(tmp_path, out):
    source = with_column(tmp_path / "in", {"1.png": "test", "2.png": "train", "3.png": "train"})
    result = convert(source, out)
    ds = shardctl.open(out)
    assert [split.name for split in ds.manifest.splits] == ["train", "test"]
    assert [sample["key"] for sample in shardctl.open(out, split="test")] == ["1.png"]
    assert "split" not in ds.schema.names
    assert any(
        "the column split are the splits: train, test" in notice for notice in result.notices
    )


@pytest.mark.parametrize("split", ["none", "train=0.5,val=0.5"])
def test_an_option_goes_before_the_column_split_which_is_kept(tmp_path, out, split):
    source = with_column(tmp_path / "in", {"1.png": "test", "2.png": "train"})
    result = convert(source, out, split=split)
    assert {sample["key"]: sample["split"] for sample in shardctl.open(out)} == {
        "1.png": "test",
        "2.png": "train",
    }
    assert any(f"split={split!r} decides the splits" in notice for notice in result.notices)
    mixed = (
        "the values of the column split are splits (train, test), but "
        "split='train=0.5,val=0.5' divides all"
    )
    assert sum(mixed in warning for warning in result.warnings) == (split != "none")


def test_a_column_split_that_cannot_divide_the_inputs_is_refused(tmp_path, out):
    source = with_column(tmp_path / "in", {"1.png": "train", "2.png": ""})
    with pytest.raises(InputError, match=r"the column split names no split for 1 input \(2.png\)"):
        planned(source, out)
    folds = with_column(tmp_path / "folds", {"1.png": "0", "2.png": "1"})
    with pytest.raises(
        InputError,
        match=r"its split is int64, not names; split='none' keeps the column",
    ):
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
    with pytest.raises(
        InputError,
        match=rf"1 input \({stray}\) beside 2 class folders \(cat, dog\) would have no label",
    ):
        planned(source, out)
    result = convert(source, out, labels="folder")
    files = open_table(*file_at(out / "files.arrow"))
    assert dict(zip(files["path"].to_pylist(), files["label"].to_pylist(), strict=True)) == {
        names[0]: 0,
        names[1]: 1,
        stray: None,
    }
    assert any(
        f"1 input ({stray}) beside 2 class folders (cat, dog): no label" in notice
        for notice in result.notices
    )
    assert "label" not in {name for name, _ in planned_schema(source, tmp_path / "none")}


def planned_schema(source: Path, out: Path) -> tuple[tuple[str, str], ...]:
    convert(source, out, labels="none")
    return shardctl.open(out).manifest.schema


def test_split_folders_are_no_classes_when_they_are_no_splits(tmp_path, out):
    source = tree(tmp_path / "in", "train2017/1.png", "val2017/2.png")
    result = planned(source, out, split="train=0.5,val=0.5")
    assert result.estimate is not None
    assert result.estimate.classes is None
    assert any(
        "train2017, val2017 are names of splits, not classes" in notice for notice in result.notices
    )


def test_what_was_decided_is_said_in_json_too(tmp_path, out, cli):
    source = tree(tmp_path / "in", "train2017/a/1.png", "val2017/b/2.png")
    for more in (("--dry-run",), ()):
        ran = cli("convert", source, out, "--workers", "0", "--json", *more)
        assert (
            "the top-level folders or files are the splits: train2017, val2017"
            in ran.json["notices"][0]
        )


def test_a_split_rule_is_read_or_refused():
    from shardctl.making.plan.splits import SplitRule

    for text in ("auto", "folder", "source", "column", "none", "train=0.9,val=0.1"):
        assert str(SplitRule.parse(text)) == text
    with pytest.raises(
        UsageError, match=r"not of the form train=0.9,val=0.1, and not one of auto, folder"
    ):
        SplitRule.parse("folders")


def test_shares_are_recorded_exactly():
    """repair and the fingerprint read what was recorded."""
    for text in (
        "train=0.6666667,val=0.1666667,test=0.1666666",
        "train=0.12345649,val=0.87654351",
        "train=0.9,val=0.1",
    ):
        assert SplitRule.parse(str(SplitRule.parse(text))) == SplitRule.parse(text)
    assert str(SplitRule.parse("train=0.9,val=0.1")) == "train=0.9,val=0.1"
