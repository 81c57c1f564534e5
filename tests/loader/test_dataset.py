from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_files import images
from in_this_process import convert

import shardctl
from shardctl.errors import UsageError
from shardctl.format.shard import BlockFile
from shardctl.images.codecs.image import decode


def keys_of(samples: Any) -> list[str]:
    return [sample["key"] for sample in samples]


def test_every_input_comes_out_as_it_went_in(photos, out):
    convert(photos, out, shuffle=5)
    ds = shardctl.open(out)
    samples = list(ds)
    assert sorted(keys_of(samples)) == sorted(
        str(path.relative_to(photos)) for path in photos.rglob("*.*")
    )
    for sample in samples:
        assert np.array_equal(sample["image"], decode((photos / sample["key"]).read_bytes()))
        assert ds.classes[sample["label"]] == sample["key"].split("/")[0]
    stored = ds.take([5, 2], decode=False)
    assert stored["image"] == [(photos / key).read_bytes() for key in stored["key"]]
    wide = [
        sample["key"]
        for sample in samples
        if sample["image"].shape[1] > sample["image"].shape[0] and sample["label"] != 1
    ]
    assert keys_of(ds.filter("width > height and label != 1")) == wide != []


def test_indices_and_slices_of_the_order(raw_dataset):
    ds = shardctl.open(raw_dataset)
    in_order = keys_of(ds)
    assert [ds[index]["key"] for index in range(-1, 60)] == [in_order[-1], *in_order]
    for indices in ([3, 1, 4, 1], [], [-1, 0, -60, -2]):
        assert ds.take(indices)["key"] == [in_order[index] for index in indices]
    for index in (60, -61, 2**64 - 1):
        with pytest.raises(IndexError):
            ds[index]
        with pytest.raises(IndexError, match=f"sample {index} of a dataset of 60"):
            ds.take([index])
    chosen = np.array([-1, 3])
    ds.take(chosen)
    assert chosen.tolist() == [-1, 3], "what the caller gave is not changed"
    for wrong in (1.5, "a", None, True, False, np.True_):
        with pytest.raises(TypeError):
            ds[wrong]
    for indices in ([1.5], [True], "12", [[1]]):
        with pytest.raises(UsageError, match="a list of whole numbers"):
            ds.take(indices)


def test_the_splits_are_the_whole(raw_dataset):
    train, val, both = (shardctl.open(raw_dataset, split=split) for split in ("train", "val", None))
    assert keys_of(train) + keys_of(val) == keys_of(both)
    with pytest.raises(UsageError, match="no split 'test'; it has train, val"):
        shardctl.open(raw_dataset, split="test")


@pytest.fixture
def half_labelled(tmp_path: Path, out: Path) -> Path:
    source = images(tmp_path / "in", "a.png", "b.png", "c.png")
    (source / "labels.csv").write_text("filename,label\na.png,cat\nc.png,dog\n")
    convert(source, out, lenient_labels=True)
    return out


def test_a_missing_label_is_none_for_who_looks_and_refused_for_who_trains(half_labelled, cli):
    ds = shardctl.open(half_labelled)
    assert ds.take([0, 1, 2])["label"] == [0, None, 1]
    assert [sample["label"] for sample in (*ds, ds[1])] == [0, None, 1, None]
    with pytest.raises(UsageError, match=r"1 of 3 samples .*'b.png'; give fill="):
        ds.loader(2)
    (batch,) = ds.loader(3, fill={"label": -1})
    assert batch["label"].tolist() == [0, -1, 1]
    assert [len(b["key"]) for b in ds.loader(3, columns=["key", "image"])] == [3]
    with pytest.raises(UsageError, match=r"row 1, key 'b.png': label is missing; give fill"):
        list(ds[1:].loader(2, on_error="skip"))
    assert [b["label"].tolist() for b in ds.filter("label is not None").loader(2)] == [[0, 1]]
    for words in ("bench {} --seconds 0.1", "inspect {} --head 3", "verify {} --level deep"):
        assert cli(*words.format(half_labelled).split()).code == 0


@pytest.mark.parametrize(
    ("call", "answer"),
    [
        (lambda ds: ds.map(print), "write ds.loader(256).map(function)"),
        (lambda ds: ds.categories, "ds.class_names by field, has the names"),
        (lambda ds: ds.loader(8, collate_fn=print), "write ds.loader(256).map(function)"),
        (lambda ds: ds.loader(8, sufle=True), "did you mean shuffle?"),
        (lambda ds: ds.loader(8, xyz=True), "`shardctl help loader` lists all"),
        (lambda ds: ds.loader(8, seed=-1), "seed must be at least 0"),
        (lambda ds: ds.loader(8, normalize={"image": "imagenet"}), "([123.7, 116.3, 103.5], "),
        (lambda ds: ds.loader(8).dataset, "'Loader' object has no attribute 'dataset'"),
        (lambda ds: ds.loader(8)[0], "next(iter(loader))"),
        (shardctl.verify, "; write verify('"),
    ],
)
def test_what_other_libraries_have_is_answered_with_what_to_write(raw_dataset, call, answer):
    with pytest.raises((AttributeError, TypeError, UsageError), match=re.escape(answer)):
        call(shardctl.open(raw_dataset))


def test_slices_are_datasets(raw_dataset):
    ds = shardctl.open(raw_dataset, split="train")
    in_order = keys_of(ds)
    for chosen in (
        slice(1, 3),
        slice(None),
        slice(-5, None),
        slice(None, None, -3),
        slice(30, 2, -7),
        slice(9, 9),
    ):
        part = ds[chosen]
        assert keys_of(part) == in_order[chosen]
        for shuffle in (False, "global", "window"):
            loader = part.loader(4, shuffle=shuffle, columns=["key"])
            read = [key for batch in loader for key in batch["key"]]
            assert (sorted(read) if shuffle else read) == (
                sorted(in_order[chosen]) if shuffle else in_order[chosen]
            )
    assert keys_of(ds[::-1][2:10:3]) == in_order[::-1][2:10:3]
    assert len(ds[::2].filter("label >= 0")) == len(in_order[::2])


def test_a_filter_may_be_a_string(raw_dataset):
    ds, train, val = (shardctl.open(raw_dataset, split=split) for split in (None, "train", "val"))
    in_order = keys_of(ds)
    second = [sample["key"] for sample in ds if sample["label"] == 2]
    dunes = [key for key in in_order if "dunes" in key]
    turned = ds[::-1]
    for kept, keys in (
        (ds.filter("label == 2"), second),
        (ds.filter(f"label == {ds.classes[2]!r}"), second),
        (ds.filter("contains(key, 'dunes') and label >= 0").limit(2), dunes[:2]),
        (ds.filter("width == 32 and height > 31 and image_bytes == 32 * 32 * 3"), in_order),
        (ds.filter("width > 100 or label == 2"), second),
        (ds.filter("index < 5 or index == 59"), [*in_order[:5], in_order[59]]),
        (ds.filter("split == 'val' and label >= 0"), keys_of(val)),
        (val.filter("split == 'val' and index in [0, 2]"), [val[0]["key"], val[2]["key"]]),
        (val.filter("split != 'val'"), []),
        (turned.filter("index < 3 and width == 32"), in_order[:-4:-1]),
    ):
        assert keys_of(kept) == keys
    for whole in (ds, turned):
        assert len(whole.filter("split == 'train'")) == len(train)
    for wrong, message in (
        ("label = 2", "'label = 2' is not a condition"),
        ("colour == 2", "no column 'colour'"),
        ("label == 'dune'", "did you mean dunes"),
    ):
        with pytest.raises(UsageError, match=message):
            ds.filter(wrong)


def test_what_is_printed_says_what_is_in_it(raw_dataset):
    ds = shardctl.open(raw_dataset, split="train")
    loader = ds.loader(8, shuffle="window", seed=3, rank=1, world_size=2)
    for shown, part in (
        (ds, str(raw_dataset)),
        (ds, f"{len(ds)} samples of split train"),
        (ds[:3], f"3 samples of split train, chosen from {len(ds)}"),
        (loader, "'window', seed 3, rank 1 of 2"),
        (shardctl.mix([ds, ds], [1, 2]), f"{2 * len(ds)} samples; 6 classes"),
    ):
        assert part in repr(shown)
    assert {"open", "convert", "mix", "bench", "__version__"} <= set(dir(shardctl))


def test_a_dataset_that_was_opened_by_a_relative_path_stays_where_it_is(
    raw_dataset, tmp_path, monkeypatch
):
    monkeypatch.chdir(raw_dataset.parent)
    ds = shardctl.open(raw_dataset.name)
    monkeypatch.chdir(tmp_path)
    assert sum(len(batch["key"]) for batch in ds.loader(16)) == len(ds)


def test_a_dataset_that_is_replaced_while_it_is_opened_is_the_new_one(tmp_path, out, monkeypatch):
    convert(images(tmp_path / "in", "a.png"), out)
    convert(images(tmp_path / "other", "b.png", "c.png"), tmp_path / "new")
    read = BlockFile.at

    def replaced(path: Path, *how: Any) -> BlockFile:
        if (tmp_path / "new").exists():
            out.rename(tmp_path / "old")
            (tmp_path / "new").rename(out)
        return read(path, *how)

    monkeypatch.setattr(BlockFile, "at", staticmethod(replaced))
    assert keys_of(shardctl.open(out)) == ["b.png", "c.png"]


def test_a_sample_alone_is_what_it_is_among_others(raw_dataset, tmp_path):
    """A block that was read before is looked at in another way."""
    shown = {"image": np.zeros((9, 7, 3), np.uint8), "tensor": np.arange(6).reshape(2, 3)}
    rows = [
        {**shown, "n": n, "text": "é" * n, "list": list(range(n)), "lists": [[1.5] * n, []]}
        for n in range(6)
    ]
    rows[2] |= {"n": None, "text": None, "list": None}
    shardctl.write(tmp_path / "out", rows, store="png", compression="none")
    for root in (raw_dataset, tmp_path / "out"):
        ds = shardctl.open(root)
        together = ds.take(range(len(ds)))
        for _ in range(2):
            for place in range(len(ds)):
                alone = ds[place]
                for name, values in together.items():
                    assert repr(alone[name]) == repr(values[place]), name


def test_the_datasets_of_a_mixture_share_the_blocks_that_are_open(tmp_path):
    shardctl.write(
        tmp_path / "out",
        ({"n": number} for number in range(4000)),
        compression="zstd",
        samples_per_shard=40,
    )
    ds = shardctl.open(tmp_path / "out")
    for count, most in ((1, 64), (8, 64), (100, 100)):
        loader = shardctl.mix([ds] * count, [1] * count).loader(
            256, shuffle=True, threads=1, prefetch=1
        )
        next(iter(loader))
        assert loader.stats().block_misses <= most + count
