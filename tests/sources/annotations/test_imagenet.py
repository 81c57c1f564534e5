from __future__ import annotations

from pathlib import Path

import pytest
from making import converted, photos, samples

import shardctl
from shardctl.errors import InputError, UsageError

WORDS = "n02012849 crane\nn01440764 tench, Tinca tinca\nn03126707 crane\n"
VAL = "ILSVRC2012_val_00000001.png", "ILSVRC2012_val_00000002.png"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = photos(
        tmp_path / "in",
        "train/n03126707/n03126707_1.png",
        "train/n01440764/x.png",
        *(f"val/{name}" for name in VAL),
    )
    (root / "LOC_synset_mapping.txt").write_text(WORDS)
    return root


def labels(out: Path) -> dict[str, str | None]:
    names = [*(shardctl.open(out).classes or ()), None]
    return {
        key.rpartition("/")[2]: names[-1 if row["label"] is None else row["label"]]
        for key, row in samples(out).items()
    }


def test_classes_come_from_folders_and_names_in_the_order_of_wordnet(out, source):
    photos(source, "train/n02012849_77.png")
    said = converted(source, out, f"imagenet:{source}", split="none").notices
    assert shardctl.open(out).classes == (
        "tench, Tinca tinca",
        "crane (n02012849)",
        "crane (n03126707)",
    )
    assert labels(out) == {
        "n03126707_1.png": "crane (n03126707)",
        "x.png": "tench, Tinca tinca",
        "n02012849_77.png": "crane (n02012849)",
        VAL[0]: None,
        VAL[1]: None,
    }
    assert "2 of 5 inputs without a class of ImageNet" in str(said)


@pytest.mark.parametrize(
    ("files"),
    [
        {
            "LOC_val_solution.csv": "ImageId,PredictionString\nILSVRC2012_val_00000001,n02012849 1 "
            "2 3 4 n02012849 5 6 7 8\n"
            "ILSVRC2012_val_00000002,n01440764 1 2 3 4\n"
        },
        {"val.txt": "ILSVRC2012_val_00000001.JPEG 1\nILSVRC2012_val_00000002.JPEG 0\n"},
        {
            "data/ILSVRC2012_validation_ground_truth.txt": "490\n1\n",
            "data/map_clsloc.txt": "n02012849 490 crane\nn01440764 1 tench\nn03126707 2 crane\n",
        },
    ],
)
def test_validation_images_have_the_class_of_the_list(out, source, files):
    (source / "data").mkdir()
    for name, text in files.items():
        (source / name).write_text(text)
    for path in source.rglob("*.png"):  # nothing but the list names a split
        path.rename(source / path.name)
    converted(source, out, f"imagenet:{source}")
    found = labels(out)
    assert [found[name] for name in VAL] == ["crane (n02012849)", "tench, Tinca tinca"]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        (
            {"ILSVRC2012_validation_ground_truth.txt": "490\n1\n"},
            "which names its numbers",
        ),
        (
            {"LOC_val_solution.csv": "ImageId,PredictionString\na,n00000000 1 2 3 4\n"},
            "line 2: a,n00000000 1 2 3 4 gives no image a class",
        ),
        ({"val.txt": "a.JPEG 3\n"}, "line 1: a.JPEG 3 gives no image a class"),
        (
            {"LOC_synset_mapping.txt": "tench n01440764\n"},
            "line 1: each line needs another WordNet number",
        ),
        (
            {"LOC_synset_mapping.txt": WORDS + WORDS},
            "line 4: each line needs another WordNet number",
        ),
    ],
)
def test_wrong_lists_are_refused_with_the_place(tmp_path, source, files, says):
    for name, text in files.items():
        (source / name).write_text(text)
    with pytest.raises(InputError) as caught:
        converted(source, tmp_path / "out", f"imagenet:{source}")
    assert says in str(caught.value)
    assert next(iter(files)) in str(caught.value)


def test_no_lists_or_no_image_of_theirs_or_two_labels_are_refused(tmp_path, out, source):
    with pytest.raises(InputError, match="needs one of LOC_synset_mapping"):
        converted(source, out, f"imagenet:{source}/train")
    other = photos(tmp_path / "other", "1.png")
    with pytest.raises(InputError, match="no image has a class of ImageNet"):
        converted(other, out, f"imagenet:{source}")
    with pytest.raises(UsageError, match="both give label"):
        converted(source, out, f"imagenet:{source}", "folder")
