"""Duplicates among texts, lines and paragraphs: what is kept is a rule, and the same however the
work is divided."""

from __future__ import annotations

import errno
import random
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from conftest import examples
from dataset_facts import rejects_of, sums
from dataset_files import files_called, tables_in
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import convert, repair
from json_lines import json_lines, texts_in
from stopping import stopped_at

import shardctl
from shardctl.errors import DatasetError, DiskFullError, UsageError, WorkerError
from shardctl.making.convert import Listener, discover
from shardctl.making.shards import hashes as text_hashes
from shardctl.making.shards import task
from shardctl.system.files import naming_the_path
from shardctl.transforms.base import Records
from shardctl.transforms.duplicates import exact, near
from shardctl.transforms.duplicates.exact import SCHEMA
from shardctl.transforms.duplicates.pieces import pieces_of, without_pieces
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.text.deduplicate import Deduplicate

# --- pieces ---

TEXTS = st.lists(st.text(st.sampled_from("ab .\n\r\té漢"), max_size=30), max_size=6)


def lines_of(text: str) -> list[str]:
    return [
        line.removesuffix("\r") for line in text.split("\n") if re.search(r"[^\x00-\x20]", line)
    ]


def paragraphs_of(text: str) -> list[str]:
    found: list[list[str]] = [[]]
    for line in text.split("\n"):
        if re.search(r"[^\x00-\x20]", line):
            found[-1].append(line)
        else:
            found.append([])
    return ["\n".join(lines).removesuffix("\r") for lines in found if lines]


CUTS = {"document": lambda text: [text], "line": lines_of, "paragraph": paragraphs_of}


@pytest.mark.parametrize("unit", CUTS)
@examples(150)
@given(TEXTS)
def test_texts_are_cut_as_the_plain_rule_says(unit, texts):
    # a slice of an array begins anywhere in its buffers
    found = pieces_of(pa.array(["x", *texts], pa.string())[1:], unit)
    expected = [
        (row, number, piece)
        for row, text in enumerate(texts)
        for number, piece in enumerate(CUTS[unit](text))
    ]
    cut = [found.data[a:b].tobytes().decode() for a, b in zip(found.start, found.end, strict=True)]
    assert list(zip(found.row.tolist(), found.number.tolist(), cut, strict=True)) == expected
    hashes = [tuple(each) for each in found.hashes().tolist()]
    digests = [xxhash.xxh3_128_intdigest(piece.encode()) for *_, piece in expected]
    assert hashes == [(digest >> 64, digest & (1 << 64) - 1) for digest in digests]


@pytest.mark.parametrize("unit", ["line", "paragraph"])
@examples(150)
@given(TEXTS, st.randoms(use_true_random=False))
def test_what_is_left_of_texts_are_the_other_pieces_in_their_order(unit, texts, draw):
    # of a line that ends in \r\r\n, a \r is left where the lines after it go: then it is an end, too
    texts = [text.replace("\r\r", "\r") for text in texts]
    array = pa.array(["x", *texts], pa.string())[1:]
    cut = pieces_of(array, unit)
    dropped = np.array([draw.random() < 0.5 for _ in range(len(cut))], bool)
    left = without_pieces(array, cut, dropped)
    left.validate(full=True)
    reference = CUTS[unit]
    for row, (before, after) in enumerate(zip(texts, left.to_pylist(), strict=True)):
        of_text = np.flatnonzero(cut.row == row)
        pieces = zip(reference(before), dropped[of_text], strict=True)
        assert reference(after) == [piece for piece, gone in pieces if not gone]
        if not dropped[of_text].any():
            assert after == before


def test_a_line_goes_with_its_line_end():
    texts = pa.array(["a\nb\nc\n", "a\r\n\r\nb\r\n", "\n\na\n\n\nb", "b"])
    for drop, expected in (
        ("b", ["a\nc\n", "a\r\n", "\n\na", ""]),
        ("a", ["b\nc\n", "b\r\n", "\n\nb", "b"]),
    ):
        cut = pieces_of(texts, "line")
        places = zip(cut.start, cut.end, strict=True)
        gone = [cut.data[a:b].tobytes().decode() == drop for a, b in places]
        assert without_pieces(texts, cut, np.array(gone)).to_pylist() == expected


# --- equal hashes ---


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 10 * exact.HASHED.itemsize])
@examples(30)
@given(
    given_hashes=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2)), max_size=60),
    draw=st.randoms(use_true_random=False),
)
def test_the_first_of_equal_hashes_is_kept_in_whichever_order_they_come(
    chunk_bytes, given_hashes, draw, tmp_path_factory
):
    # High halves in two parts, some of them with another low half.
    rows = np.array(
        [(high << 61, low, place, 10) for place, (high, low) in enumerate(given_hashes)],
        exact.HASHED,
    )
    first = {hash_: place for place, hash_ in reversed(list(enumerate(given_hashes)))}
    expected = {
        place: first[hash_] for place, hash_ in enumerate(given_hashes) if first[hash_] != place
    }
    order = list(range(len(rows)))
    draw.shuffle(order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "CHUNK_BYTES", chunk_bytes)
        patch.setattr(exact, "HELD_BYTES", 200)
        held = exact.Runs(tmp_path_factory.mktemp("runs") / "r", exact.HASHED)
        for part in np.array_split(rows[order], 4):
            exact.add_hashes(held, part)
        held.flush()
        found = list(exact.repeated(held))
    assert {
        int(place): int(kept) for dropped, _ in found for place, kept, _ in dropped.tolist()
    } == expected
    assert sum(size for _, size in found) == 10 * len(expected)


# --- nearly equal texts ---


def shingles(text: str) -> set[tuple[str, ...]]:
    """Return the shingles of a text as plain Python finds them."""
    between = "\u0000-/:-@\\[-`{-\u007f\u0080-\u00bf\u2000-\u207f"
    lower = re.sub("[A-Z]", lambda found: found[0].lower(), text)
    words = re.findall(f"[\u3000-\u9fff]|[^{between}\u3000-\u9fff]+", lower)
    places = range(max(1, len(words) - near.SHINGLE + 1))
    return {tuple(words[at : at + near.SHINGLE]) for at in places} if words else {(text,)}


@examples(150)
@given(
    st.lists(st.text(st.sampled_from("aBb1 .,\n“é—漢字かж"), max_size=40), max_size=5),
    st.sampled_from([16, 1 << 18]),
)
def test_shingles_are_words_that_follow_each_other(texts, stretch):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near, "_STRETCH", stretch)
        # words of more than half a stretch may be cut, and these have 8 bytes at most
        if stretch == 16:
            texts = [re.sub("([aBb1éж]{2})", r"\1 ", text) for text in texts]
        near._powers.cache_clear()
        found, starts = near.shingles_of(pa.array(["x", *texts], pa.string())[1:])
        near._powers.cache_clear()
    parts = np.split(found, starts[1:]) if texts else []
    for text, hashes in zip(texts, parts, strict=True):
        for other, others in zip(texts, parts, strict=True):
            shared = set(hashes.tolist()) & set(others.tolist())
            assert len(shared) == len(shingles(text) & shingles(other))


def pair(draw: random.Random, words: int, changed: float) -> tuple[str, str]:
    """Return a text of random words, and the same with some of them changed."""
    one = [f"w{draw.randrange(10**6)}" for _ in range(words)]
    other = [f"x{word}" if draw.random() < changed else word for word in one]
    return " ".join(one), " ".join(other)


def jaccard(one: str, other: str) -> float:
    return len(shingles(one) & shingles(other)) / len(shingles(one) | shingles(other))


def compared(
    texts: list[str], threshold: float, folder: Path
) -> tuple[near.Components, near.Sketches]:
    shingles, starts = near.shingles_of(pa.array(texts))
    found, sketches = near.Components(len(texts)), near.Sketches(folder / "s", len(texts))
    held = exact.Runs(folder / "r", near.BANDED)
    sketches.add(np.arange(len(texts)), *near.sketches_of(shingles, starts))
    sketches.finish()
    near.add_bands(held, near.signatures_of(shingles, starts), np.arange(len(texts)), threshold)
    held.flush()
    near.connect(held, sketches, found, threshold)
    return found, sketches


@pytest.mark.thorough
def test_sketches_tell_how_alike_texts_are_exactly_unless_they_are_long(tmp_path):
    draw = random.Random(4)
    sizes = [1, 4, 7, 30, 100, 400] * 20 + [3000] * 20
    pairs = [pair(draw, words, draw.random() * 0.2) for words in sizes]
    _, sketches = compared([text for each in pairs for text in each], 0.8, tmp_path)
    places = np.arange(len(pairs)) * 2
    errors = sketches.similarities(places, places + 1) - [jaccard(*each) for each in pairs]
    assert not errors[:120].any()
    assert errors[120:].any()
    assert np.abs(errors).max() < 0.07  # sqrt(J (1 - J) / 512) is 0.022 at most


def test_pairs_above_the_threshold_are_found_and_others_are_not(tmp_path):
    draw = random.Random(5)
    pairs = [pair(draw, 150, draw.random() * 0.08) for _ in range(800)]
    alike = np.array([jaccard(*each) for each in pairs])
    found, _ = compared([text for each in pairs for text in each], 0.8, tmp_path)
    dropped = np.isin(np.arange(len(pairs)) * 2 + 1, found.dropped())
    # of each pair the first is kept
    assert set(found.roots(found.dropped()) + 1) == set(found.dropped())
    assert dropped[alike >= 0.8].mean() > 0.99
    assert not dropped[alike < 0.8].any()


@examples(60)
@given(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=40), st.integers(1, 7))
def test_what_is_connected_has_the_lowest_rank_of_all(edges, together):
    reference = list(range(20))
    for _ in range(20):
        for one, other in edges:
            reference[one] = reference[other] = min(reference[one], reference[other])
    found = near.Components(20)
    for begin in range(0, len(edges), together):
        pairs = np.array(edges[begin : begin + together])
        found.connect(pairs[:, 0], pairs[:, 1])
    assert found.roots(np.arange(20)).tolist() == reference
    assert found.dropped().tolist() == [rank for rank in range(20) if reference[rank] != rank]


# --- whole conversions ---


def write(folder: Path, files: dict[str, list[str | None]]) -> Path:
    """Write texts as records of JSON lines, by the path of their file."""
    for name, texts in files.items():
        texts_in(folder / name, texts)
    return folder


EXACT = {"duplicates": "exact"}


def exactly(folder: Path, **options: Any) -> Any:
    return convert(folder / "in", folder / "out", recipe=EXACT, **options)


def deduplicated(
    folder: Path, out: str = "out", workers: int = 0, **options: Any
) -> dict[str, Any]:
    """Convert what is in folder/in, and return the texts by their keys."""
    shardctl.convert(folder / "in", folder / out, workers=workers, **options)
    return {sample["key"]: sample["text"] for sample in shardctl.open(folder / out)}


def why(out: Path) -> dict[str, str]:
    """Return the message of every reject of a filter, by its key."""
    return {
        reject.key: f"{reject.error}: {reject.message}"
        for reject in rejects_of(out)
        if reject.stage == "filter"
    }


def like(key: str) -> str:
    return f"duplicate: has the same text as {key}, which is kept"


DOCUMENTS: dict[str, list[str | None]] = {
    "a/1.jsonl": ["one two", "three", "one two", None, "", "four"],
    "a/2.jsonl": ["four", "five", None],
    "b/1.jsonl": ["ONE TWO", "", "three", "six", "one two\n"],
}


def test_of_equal_texts_the_first_in_the_order_of_the_sources_is_kept(tmp_path, out, cli):
    write(tmp_path / "in", DOCUMENTS)
    texts = deduplicated(tmp_path, recipe=EXACT)
    assert why(out) == {
        "a/1.jsonl#3": like("a/1.jsonl#1"),
        "a/2.jsonl#1": like("a/1.jsonl#6"),
        "b/1.jsonl#2": like("a/1.jsonl#5"),
        "b/1.jsonl#3": like("a/1.jsonl#2"),
    }
    assert texts == {
        f"{name}#{number}": text
        for name, given in DOCUMENTS.items()
        for number, text in enumerate(given, 1)
        if f"{name}#{number}" not in why(out)
    }
    options = "--duplicates exact --workers 0 --json".split()
    ran = cli("convert", tmp_path / "in", out, *options)
    assert ran.json["status"] == "up-to-date"
    assert ran.json["steps"] == [
        {"name": "deduplicate", "records": 14, "bytes": 54, "rejected": {"duplicate": [4, 16]}}
    ]
    assert cli("verify", out).code == 0


@pytest.mark.thorough
def test_a_dry_run_and_the_conversion_say_how_many_there_are(tmp_path, out):
    write(tmp_path / "in", DOCUMENTS)
    said = "4 of 12 texts are duplicates of others"
    assert said in str(exactly(tmp_path, dry_run=True).estimate.notices)
    assert not out.exists()
    heard: list[int] = []
    made = exactly(tmp_path, listener=Listener(comparing=heard.append))
    assert said in str(made.notices)
    assert (made.samples, made.reasons) == (10, {"filter: duplicate": 4})
    assert heard == [14]


def random_texts(seed: int) -> dict[str, list[str | None]]:
    """Return texts of few different lines, some of them like others, in several files."""
    draw = random.Random(seed)
    lines = [f"line {number} has these words" for number in range(60)] + ["", " ", "\t"]
    return {
        f"{'ab'[number % 2]}/{number}.jsonl": [
            "\n".join(draw.choices(lines, k=draw.randint(0, 6))) for _ in range(40)
        ]
        for number in range(9)
    }


def without_repeats(files: dict[str, list[Any]], unit: str) -> dict[str, list[str]]:
    """Return the pieces that are kept of texts, by their keys, as plain Python finds them."""
    seen: set[str] = set()
    kept = {}
    for name in sorted(files):
        for number, text in enumerate(files[name], 1):
            pieces = CUTS[unit](text)
            new = [piece for piece in dict.fromkeys(pieces) if piece not in seen]
            seen.update(pieces)
            if new or not pieces:
                kept[f"{name}#{number}"] = new
    return kept


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("unit", "split"),
    [("document", "train=0.7,val=0.3"), ("line", "folder"), ("paragraph", "none")],
)
def test_what_is_dropped_is_what_plain_python_finds_whoever_converts(tmp_path, out, unit, split):
    files = random_texts(3)
    write(tmp_path / "in", files)
    recipe = {"transform": [{"name": "deduplicate", "unit": unit}]}
    options: dict[str, Any] = {"recipe": recipe, "split": split, "samples_per_shard": 50}
    texts = deduplicated(tmp_path, **options)
    found = {key: CUTS[unit](text) for key, text in texts.items()}
    assert found == without_repeats(files, unit)
    for workers in (1, 2):
        deduplicated(tmp_path, str(workers), workers, **options)
        assert sums(tmp_path / str(workers)) == sums(out)


@pytest.mark.thorough
def test_near_duplicates_are_rejected_whoever_converts(tmp_path, out):
    draw = random.Random(8)
    pairs = [pair(draw, 80, changed) for changed in [0.0, 0.01, 0.5] * 20]
    texts_in(tmp_path / "in" / "a.jsonl", [one for one, _ in pairs])
    texts_in(tmp_path / "in" / "b.jsonl", [other.upper() for _, other in pairs])
    options: dict[str, Any] = {"recipe": {"duplicates": "near:0.7"}, "shuffle": 1}
    deduplicated(tmp_path, **options)
    expected = {f"b.jsonl#{n}" for n, each in enumerate(pairs, 1) if jaccard(*each) >= 0.7}
    rejects = why(out)
    assert set(rejects) == expected
    assert len(expected) > 30
    assert rejects["b.jsonl#1"].startswith("near-duplicate: has nearly the same text as a.jsonl#1")
    assert "1.00" in rejects["b.jsonl#1"]
    deduplicated(tmp_path, "2", 2, **options)
    assert sums(tmp_path / "2") == sums(out)


def test_files_of_text_are_compared_too(tmp_path, out):
    (tmp_path / "in").mkdir()
    for name, text in {"a": "x", "b": "y", "c": "x", "d": ""}.items():
        (tmp_path / "in" / f"{name}.txt").write_text(text)
    assert list(deduplicated(tmp_path, recipe=EXACT)) == ["a.txt", "b.txt", "d.txt"]
    assert why(out) == {"c.txt": like("a.txt")}


def test_lines_of_text_are_compared_too(tmp_path, out):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("x\ny\n\nx\n")
    deduplicated(tmp_path, recipe={**EXACT, "record": "line"})
    assert why(out)["a.txt#4"] == like("a.txt#1")


def test_texts_are_compared_as_the_steps_before_make_them(tmp_path):
    texts_in(tmp_path / "in/a.jsonl", ["a  b", "x", "x ", "a b", "y"])
    texts_in(tmp_path / "in/b.jsonl", ["y ", "x"])
    tidy, step = {"name": "whitespace"}, {"name": "deduplicate"}
    of_3, of_1 = ({"name": "filter_length", "max_chars": most} for most in (3, 1))

    def kept(out: str, *steps: Any) -> str:
        texts = deduplicated(tmp_path, out, recipe={"transform": list(steps)})
        return " ".join(texts).replace(".jsonl#", "")

    assert kept("after", tidy, step) == "a1 a2 a5"
    assert kept("before", step, tidy) == "a1 a2 a3 a4 a5 b1"
    # What a filter before it rejects is compared with nothing; what one after it rejects was
    # compared.
    assert kept("filtered", of_3, tidy, step) == "a2 a4 a5"
    assert why(tmp_path / "filtered")["a.jsonl#3"] == like("a.jsonl#2")
    assert kept("late", tidy, step, of_1) == "a2 a5"


@pytest.mark.thorough
def test_texts_that_cleaning_makes_equal_are_duplicates_in_worker_processes_too(tmp_path):
    texts_in(tmp_path / "in/a.jsonl", ["Some  words\nline", "some words\nline ", "other"])
    recipe = {**EXACT, "transform": [{"name": "whitespace"}, {"name": "lower_case"}]}
    for workers in (0, 2):
        texts = deduplicated(tmp_path, str(workers), workers, recipe=recipe)
        assert texts == {"a.jsonl#1": "some words\nline", "a.jsonl#3": "other"}
    assert sums(tmp_path / "0") == sums(tmp_path / "2")


def test_the_key_duplicates_stands_for_a_step_after_those_that_change_texts():
    steps = [{"name": name} for name in ("filter_c4", "lower_case", "filter_fineweb")]
    recipe = Recipe.from_json({"kind": "text", "duplicates": "near", "transform": steps})
    names = [step.name for step in recipe.transform]
    assert names == ["filter_c4", "lower_case", "deduplicate", "filter_fineweb"]
    assert recipe.to_json()["transform"][2] == {
        "name": "deduplicate",
        "unit": "document",
        "method": "near",
        "threshold": 0.8,
    }
    assert "duplicates" not in recipe.to_json()
    assert Recipe.from_json(recipe.to_json()) == recipe


def test_several_units_are_compared_one_after_the_other(tmp_path):
    texts_in(tmp_path / "in/a.jsonl", ["x\ny", "z\nx", "z", "y\nz\nw"])
    steps = [{"name": "deduplicate", "unit": "line"}, {"name": "deduplicate", "unit": "document"}]
    texts = deduplicated(tmp_path, "lines", recipe={"transform": steps})
    assert texts == {"a.jsonl#1": "x\ny", "a.jsonl#2": "z", "a.jsonl#4": "w"}
    texts_in(tmp_path / "in/a.jsonl", ["x\ny", "z", "x\ny", "z\nz"])
    deduplicated(tmp_path, "both", recipe={"transform": steps[::-1]})
    assert why(tmp_path / "both") == {
        "a.jsonl#3": like("a.jsonl#1"),
        "a.jsonl#4": "duplicate: all its lines are in texts before it too",
    }


def test_records_that_cannot_be_read_are_rejected_for_that_and_others_are_not_because_of_them(
    tmp_path, out
):
    texts_in(tmp_path / "in/b.jsonl", ["x", "y"])
    (tmp_path / "in/a.jsonl").write_bytes(b'{"text": "x"\n{"text": "y"}\n')
    (tmp_path / "in/c.jsonl").write_bytes(b"\xff\xfe nothing")
    assert deduplicated(tmp_path, recipe=EXACT) == {"a.jsonl#2": "y", "b.jsonl#1": "x"}
    assert set(why(out)) == {"b.jsonl#2"}


def test_a_full_disk_for_scratch_ends_the_conversion(tmp_path, monkeypatch):
    def refuse(_path: Path, _data: bytes) -> None:
        with naming_the_path(tmp_path):
            raise OSError(errno.ENOSPC, "No space left on device")

    write(tmp_path / "in", DOCUMENTS)
    monkeypatch.setattr(text_hashes, "_append", refuse)
    with pytest.raises(DiskFullError, match="the disk is full"):
        exactly(tmp_path)


def test_records_that_could_not_be_compared_are_told(tmp_path, monkeypatch):
    def fail(_comparing: object, number: int, _progress: object) -> None:
        raise MemoryError

    write(tmp_path / "in", DOCUMENTS)
    monkeypatch.setattr(text_hashes.TextHashTask, "look", fail)
    made = exactly(tmp_path)
    assert made.samples == 14
    assert "14 records could not be compared" in str(made.notices)


def test_with_given_types_the_records_that_fit_are_compared(tmp_path, out):
    records = [("x", 1), ("x", "no number"), ("x", 2), ("y", 3)]
    json_lines(tmp_path / "in/a.jsonl", [{"text": text, "n": n} for text, n in records])
    recipe = {**EXACT, "schema": "text:string,n:int64"}
    assert list(deduplicated(tmp_path, recipe=recipe)) == ["a.jsonl#1", "a.jsonl#4"]
    assert set(why(out)) == {"a.jsonl#3"}


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(("rule", "name"), [("exact", "_write_hashes"), ("near", "signatures_of")])
def test_where_memory_runs_out_for_many_texts_fewer_are_compared_together(
    tmp_path, out, monkeypatch, rule, name
):
    (tmp_path / "in").mkdir()
    for number in range(12):
        text = "the same words in each of them" if number % 2 else f"other {number}"
        (tmp_path / f"in/{number:02d}.txt").write_text(text)
    write = getattr(text_hashes, name)

    def refuse(*args: Any) -> Any:
        if len(args[1]) > 1:  # texts, or where they begin
            raise MemoryError
        return write(*args)

    monkeypatch.setattr(text_hashes, name, refuse)
    result = convert(tmp_path / "in", out, recipe={"duplicates": rule})
    assert (result.samples, result.rejected) == (7, 5)
    if rule == "near":
        return

    def never(*args: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(text_hashes, name, never)
    monkeypatch.setattr(text_hashes, "HELD_BYTES", 20)
    with pytest.raises(WorkerError, match="too little memory to compare texts"):
        exactly(tmp_path, overwrite=True)


def test_types_that_the_sampled_records_did_not_show_are_found_before_texts_are_compared(
    tmp_path, monkeypatch
):
    for most in ("TYPED_RECORDS", "FIRST_RECORDS"):
        monkeypatch.setattr(discover, most, 5)
    numbers = enumerate([*range(50), "one"])
    records = [{"text": str(place % 40), "n": number} for place, number in numbers]
    json_lines(tmp_path / "in/a.jsonl", records)
    assert exactly(tmp_path).reasons == {"filter: duplicate": 11}


@pytest.mark.thorough
@pytest.mark.parametrize(("unit", "change"), [("document", 3), ("line", 9)])
def test_a_killed_conversion_goes_on_with_the_same_duplicates(
    tmp_path, out, monkeypatch, unit, change
):
    write(tmp_path / "in", random_texts(4))
    recipe = {"transform": [{"name": "deduplicate", "unit": unit}]}
    make = partial(convert, tmp_path / "in", recipe=recipe, samples_per_shard=40)
    make(tmp_path / "whole")
    again = partial(make, out)
    assert stopped_at(change, "kill", task, "build_shard", again, monkeypatch)
    assert again().status == "resumed"
    assert sums(out) == sums(tmp_path / "whole")


@pytest.fixture(scope="module", params=["document", "line"])
def without_duplicates(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A dataset that tests copy, and whose sources are where its manifest says."""
    folder = tmp_path_factory.mktemp("without_duplicates")
    write(folder / "in", random_texts(5))
    recipe = {"transform": [{"name": "deduplicate", "unit": request.param}]}
    options: dict[str, Any] = {"samples_per_shard": 120, "split": "train=0.8,val=0.2", "shuffle": 2}
    convert(folder / "in", folder / "out", recipe=recipe, **options)
    return folder / "out"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "names",
    [
        "train-*",
        "duplicates-*",
        "train-* duplicates-*",
        "plan.arrow train-*",
        "rejects* duplicates-*",
    ],
)
def test_repair_makes_the_same_shards_and_tables(without_duplicates, tmp_path, names):
    out = Path(shutil.copytree(without_duplicates, tmp_path / "out"))
    before = sums(out)
    for path in [path for name in names.split() for path in files_called(out, name)]:
        path.write_bytes(b"damaged")
    assert repair(out).status == "repaired"
    assert sums(out) == before
    assert shardctl.verify(out).ok


def test_a_lost_table_of_sources_that_have_changed_is_not_made_again(tmp_path):
    write(tmp_path / "in", DOCUMENTS)
    exactly(tmp_path)
    (tables_in(tmp_path / "out") / "duplicates-document.arrow").unlink()
    texts_in(tmp_path / "in/a/1.jsonl", ["one two", "three", "one two", None, "", "other"])
    result = repair(tmp_path / "out")
    assert result.status == "damaged"
    assert "give other duplicates" in result.unrepaired[0].message


def test_a_table_that_contradicts_the_texts_is_refused(tmp_path):
    row = {name: [0] for name in SCHEMA.names} | {"record": [1], "piece": [7]}
    with pa.ipc.new_file(tables_in(tmp_path) / "duplicates-line.arrow", SCHEMA) as writer:
        writer.write_table(pa.table(row, SCHEMA))
    run = Deduplicate("line").begin(tmp_path, {})
    records = Records(0, np.array([1]), pa.record_batch({"key": ["a#1"], "text": ["x\ny"]}))
    with pytest.raises(DatasetError, match=r"duplicates-line\.arrow: contradicts the texts"):
        list(run.apply(records, lambda row, rejection: None))


@pytest.mark.parametrize(
    ("steps", "options", "word"),
    [
        ("", {"duplicates": "similar"}, "use exact or near"),
        ("", {"duplicates": "near:0.2"}, "'near:0.2'"),
        ("lines", {}, "near compares documents"),
        ("words", {}, "unit must be"),
        ("deduplicate deduplicate", {}, "twice"),
        ("deduplicate", {"kind": "image"}, "text and tables"),
        ("tokenize deduplicate", {}, "before tokenize"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path, steps, options, word):
    write(tmp_path / "in", DOCUMENTS)
    settings = {
        "lines": {"name": "deduplicate", "unit": "line", "method": "near"},
        "words": {"name": "deduplicate", "unit": "word"},
        "tokenize": {"name": "tokenize", "tokenizer": "bytes"},
    }
    transform = [settings.get(name, {"name": name}) for name in steps.split()]
    with pytest.raises(UsageError, match=word):
        convert(tmp_path / "in", tmp_path / "out", recipe={"transform": transform, **options})
