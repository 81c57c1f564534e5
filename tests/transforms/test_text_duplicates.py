"""Duplicates among texts, lines and paragraphs: what is kept is a rule, and the same however the
work is divided."""

from __future__ import annotations

import errno
import json
import random
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import xxhash
from conftest import examples
from dataset_facts import sums
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import repair
from stopping import stopped_at

import shardctl
from shardctl.errors import DatasetError, DiskFullError, Rejection, UsageError, WorkerError
from shardctl.format.tables import read_rejects
from shardctl.making.convert import Listener, discover
from shardctl.making.shards import hashes as text_hashes
from shardctl.making.shards import task
from shardctl.system.files import naming_the_path
from shardctl.system.folders import LocalFolder
from shardctl.transforms.base import Records
from shardctl.transforms.duplicates import exact, near
from shardctl.transforms.duplicates.exact import SCHEMA
from shardctl.transforms.duplicates.pieces import pieces_of, without_pieces
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.table import TRANSFORMS
from shardctl.transforms.text.base import Fault, TextFilter, TextTransform
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


@pytest.mark.parametrize(
    ("unit", "reference"),
    [("document", lambda text: [text]), ("line", lines_of), ("paragraph", paragraphs_of)],
)
@examples(150)
@given(TEXTS)
def test_texts_are_cut_as_the_plain_rule_says(unit, reference, texts):
    assert callable(reference)
    # a slice of an array begins anywhere in its buffers
    found = pieces_of(pa.array(["x", *texts], pa.string())[1:], unit)
    expected = [
        (row, number, piece)
        for row, text in enumerate(texts)
        for number, piece in enumerate(reference(text))
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
    reference = {"line": lines_of, "paragraph": paragraphs_of}[unit]
    for row, (before, after) in enumerate(zip(texts, left.to_pylist(), strict=True)):
        of_text = np.flatnonzero(cut.row == row)
        expected = [
            piece
            for piece, gone in zip(reference(before), dropped[of_text], strict=True)
            if not gone
        ]
        assert reference(after) == expected
        if not dropped[of_text].any():
            assert after == before


def test_a_line_goes_with_its_line_end():
    texts = pa.array(["a\nb\nc\n", "a\r\n\r\nb\r\n", "\n\na\n\n\nb", "b"])
    for drop, expected in (
        ("b", ["a\nc\n", "a\r\n", "\n\na", ""]),
        ("a", ["b\nc\n", "b\r\n", "\n\nb", "b"]),
    ):
        cut = pieces_of(texts, "line")
        gone = np.array(
            [
                cut.data[a:b].tobytes().decode() == drop
                for a, b in zip(cut.start, cut.end, strict=True)
            ]
        )
        assert without_pieces(texts, cut, gone).to_pylist() == expected


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
    words = re.findall(
        f"[\u3000-\u9fff]|[^{between}\u3000-\u9fff]+",
        re.sub("[A-Z]", lambda found: found[0].lower(), text),
    )
    count = max(1, len(words) - near.SHINGLE + 1)
    return (
        {tuple(words[place : place + near.SHINGLE]) for place in range(count)}
        if words
        else {(text,)}
    )


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
        expected = shingles(text)
        assert len(set(hashes.tolist())) == len(expected)
        for other, others in zip(texts, parts, strict=True):
            assert len(set(hashes.tolist()) & set(others.tolist())) == len(
                expected & shingles(other)
            )


def pair(draw: random.Random, words: int, changed: float) -> tuple[str, str]:
    """Return a text of random words, and the same with some of them changed."""
    one = [f"w{draw.randrange(10**6)}" for _ in range(words)]
    return " ".join(one), " ".join(
        f"x{draw.randrange(10**6)}" if draw.random() < changed else word for word in one
    )


def jaccard(one: str, other: str) -> float:
    return len(shingles(one) & shingles(other)) / len(shingles(one) | shingles(other))


def compared(
    texts: list[str], threshold: float, folder: Path
) -> tuple[near.Components, near.Sketches]:
    shingles, starts = near.shingles_of(pa.array(texts))
    found, sketches, held = (
        near.Components(len(texts)),
        near.Sketches(folder / "s", len(texts)),
        exact.Runs(folder / "r", near.BANDED),
    )
    sketches.add(np.arange(len(texts)), *near.sketches_of(shingles, starts))
    sketches.finish()
    near.add_bands(held, near.signatures_of(shingles, starts), np.arange(len(texts)), threshold)
    held.flush()
    near.connect(held, sketches, found, threshold)
    return found, sketches


def test_signatures_agree_as_often_as_texts_are_alike():
    draw = random.Random(3)
    pairs = [pair(draw, draw.choice([30, 100, 400]), draw.random() * 0.1) for _ in range(400)]
    one, other = (
        near.signatures_of(*near.shingles_of(pa.array(texts))) for texts in zip(*pairs, strict=True)
    )
    errors = (one == other).mean(axis=1) - np.array([jaccard(*each) for each in pairs])
    assert abs(errors.mean()) < 0.01
    assert errors.std() < 0.045  # sqrt(J (1 - J) / 128) is 0.044 at most


@pytest.mark.thorough
def test_sketches_tell_how_alike_texts_are_exactly_unless_they_are_long(tmp_path):
    draw = random.Random(4)
    pairs = [
        pair(draw, words, draw.random() * 0.2)
        for words in [1, 4, 7, 30, 100, 400] * 20 + [3000] * 20
    ]
    _, sketches = compared([text for each in pairs for text in each], 0.8, tmp_path)
    places = np.arange(len(pairs)) * 2
    errors = sketches.similarities(places, places + 1) - np.array(
        [jaccard(*each) for each in pairs]
    )
    assert not errors[:120].any()
    assert errors[120:].any()
    assert np.abs(errors).max() < 0.07  # sqrt(J (1 - J) / 512) is 0.022 at most


def test_pairs_above_the_threshold_are_found_and_others_are_not(tmp_path):
    draw = random.Random(5)
    pairs = [pair(draw, 150, draw.random() * 0.08) for _ in range(1500)]
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


class Lower(TextTransform, step="lower"):
    """Makes all letters small."""

    def changed(self, texts: pa.Array) -> pa.Array:
        return pc.utf8_lower(texts)


class NoB(TextFilter, step="no_b"):
    """Rejects texts that have a b."""

    def faults(self, texts: pa.Array) -> Iterable[Fault]:
        return [
            (row, Rejection("filter", "letter-b", "has a b"))
            for row, text in enumerate(texts.to_pylist())
            if "b" in text
        ]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRANSFORMS, "lower", Lower)
    monkeypatch.setitem(TRANSFORMS, "no_b", NoB)


def write(folder: Path, files: dict[str, list[str | None]]) -> Path:
    """Write texts as records of JSON lines, by the path of their file."""
    for name, texts in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


EXACT = {"duplicates": "exact"}


def exactly(folder: Path) -> Any:
    return shardctl.convert(folder / "in", folder / "out", recipe=EXACT, workers=0)


def deduplicated(
    source: Path, out: Path, workers: int = 0, **options: Any
) -> dict[str, str | None]:
    """Convert, and return the texts by their keys."""
    shardctl.convert(source, out, workers=workers, **options)
    return {sample["key"]: sample["text"] for sample in shardctl.open(out)}


def why(out: Path) -> dict[str, tuple[str, str]]:
    """Return the error and the message of every reject of a filter, by its key."""
    return {
        reject.key: (reject.error, reject.message)
        for reject in read_rejects(LocalFolder(out))
        if reject.stage == "filter"
    }


DOCUMENTS: dict[str, list[str | None]] = {
    "a/1.jsonl": ["one two", "three", "one two", None, "", "four"],
    "a/2.jsonl": ["four", "five", None],
    "b/1.jsonl": ["ONE TWO", "", "three", "six", "one two\n"],
}


def test_of_equal_texts_the_first_in_the_order_of_the_sources_is_kept(tmp_path, out, cli):
    write(tmp_path / "in", DOCUMENTS)
    texts = deduplicated(tmp_path / "in", out, recipe=EXACT)
    assert why(out) == {
        "a/1.jsonl#3": ("duplicate", "has the same text as a/1.jsonl#1, which is kept"),
        "a/2.jsonl#1": ("duplicate", "has the same text as a/1.jsonl#6, which is kept"),
        "b/1.jsonl#2": ("duplicate", "has the same text as a/1.jsonl#5, which is kept"),
        "b/1.jsonl#3": ("duplicate", "has the same text as a/1.jsonl#2, which is kept"),
    }
    given_texts = {
        f"{name}#{number}": text
        for name, given in DOCUMENTS.items()
        for number, text in enumerate(given, 1)
    }
    assert texts == {key: text for key, text in given_texts.items() if key not in why(out)}
    ran = cli(
        "convert",
        tmp_path / "in",
        out,
        "--duplicates",
        "exact",
        "--workers",
        0,
        "--json",
    )
    assert ran.json["status"] == "up-to-date"
    assert ran.json["steps"] == [
        {"name": "deduplicate", "records": 14, "bytes": 54, "rejected": {"duplicate": [4, 16]}}
    ]
    assert cli("verify", out).code == 0


@pytest.mark.thorough
def test_a_dry_run_and_the_conversion_say_how_many_there_are(tmp_path, out):
    write(tmp_path / "in", DOCUMENTS)
    said = "4 of 12 texts are duplicates of others, and rejected (deduplicate)"
    tried = shardctl.convert(
        tmp_path / "in", out, recipe={"duplicates": "exact"}, workers=0, dry_run=True
    )
    assert tried.estimate is not None
    assert said in tried.estimate.notices
    assert not out.exists()
    heard: list[int] = []
    listener = Listener(comparing=heard.append)
    made = shardctl.convert(tmp_path / "in", out, {"duplicates": "exact"}, listener, workers=0)
    assert said in made.notices
    assert (made.samples, made.reasons) == (10, {"filter: duplicate": 4})
    assert heard == [14]


def random_texts(seed: int) -> dict[str, list[str | None]]:
    """Return texts of few different lines, some of them like others, in several files."""
    draw = random.Random(seed)
    lines = [f"line {number} has these words" for number in range(60)] + ["", " ", "\t"]
    files: dict[str, list[str | None]] = {}
    for number in range(9):
        files[f"{'ab'[number % 2]}/{number}.jsonl"] = [
            "\n".join(draw.choices(lines, k=draw.randint(0, 6))) for _ in range(40)
        ]
    return files


def without_repeats(files: dict[str, list[str | None]], unit: str) -> dict[str, str]:
    """Return what is kept of texts, by their keys, as plain Python finds it."""
    seen: set[str] = set()
    kept = {}
    for name in sorted(files):
        for number, text in enumerate(files[name], 1):
            assert text is not None
            pieces = {
                "document": lambda text: [text],
                "line": lines_of,
                "paragraph": paragraphs_of,
            }[unit](text)
            new = []
            for piece in pieces:
                if piece not in seen:
                    new.append(piece)
                seen.add(piece)
            if new or not pieces:
                kept[f"{name}#{number}"] = new
    return kept  # type: ignore[return-value]  # lists of pieces


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
    texts = deduplicated(tmp_path / "in", out, **options)
    cut = {"document": lambda text: [text], "line": lines_of, "paragraph": paragraphs_of}[unit]
    assert {key: cut(text or "") for key, text in texts.items()} == without_repeats(files, unit)
    for workers in (1, 2):
        deduplicated(tmp_path / "in", tmp_path / str(workers), workers, **options)
        assert sums(tmp_path / str(workers)) == sums(out)


@pytest.mark.thorough
def test_near_duplicates_are_rejected_whoever_converts(tmp_path, out):
    draw = random.Random(8)
    pairs = [pair(draw, 80, changed) for changed in [0.0, 0.01, 0.5] * 20]
    write(
        tmp_path / "in",
        {"a.jsonl": [one for one, _ in pairs], "b.jsonl": [other.upper() for _, other in pairs]},
    )
    options: dict[str, Any] = {"recipe": {"duplicates": "near:0.7"}, "shuffle": 1}
    deduplicated(tmp_path / "in", out, **options)
    expected = {
        f"b.jsonl#{number}" for number in range(1, 61) if jaccard(*pairs[number - 1]) >= 0.7
    }
    rejects = why(out)
    assert set(rejects) == expected
    assert len(expected) > 30
    assert rejects["b.jsonl#1"] == (
        "near-duplicate",
        "has nearly the same text as a.jsonl#1, which is kept (their similarity is 1.00)",
    )
    deduplicated(tmp_path / "in", tmp_path / "2", 2, **options)
    assert sums(tmp_path / "2") == sums(out)


@pytest.mark.parametrize("form", ["files", "lines"])
def test_files_of_text_are_compared_too(tmp_path, out, form):
    (tmp_path / "in").mkdir()
    if form == "files":
        for name, text in {"a": "x", "b": "y", "c": "x", "d": ""}.items():
            (tmp_path / "in" / f"{name}.txt").write_text(text)
        texts = deduplicated(tmp_path / "in", out, recipe=EXACT)
        assert list(texts) == ["a.txt", "b.txt", "d.txt"]
        assert why(out)["c.txt"] == (
            "duplicate",
            "has the same text as a.txt, which is kept",
        )
    else:
        (tmp_path / "in/a.txt").write_text("x\ny\n\nx\n")
        texts = deduplicated(tmp_path / "in", out, recipe={"duplicates": "exact", "record": "line"})
        assert "a.txt#4" not in texts
        assert why(out)["a.txt#4"] == (
            "duplicate",
            "has the same text as a.txt#1, which is kept",
        )


@pytest.mark.usefixtures("steps")
def test_texts_are_compared_as_the_steps_before_make_them(tmp_path):
    write(tmp_path / "in", {"a.jsonl": ["ab", "x", "X", "AB", "y"], "b.jsonl": ["Y", "x"]})
    lower, no_b, step = {"name": "lower"}, {"name": "no_b"}, {"name": "deduplicate"}
    convert = lambda out, *steps: deduplicated(  # noqa: E731 - short
        tmp_path / "in", tmp_path / out, recipe={"transform": list(steps)}
    )
    assert list(convert("after", lower, step)) == ["a.jsonl#1", "a.jsonl#2", "a.jsonl#5"]
    assert list(convert("before", step, lower)) == [
        "a.jsonl#1",
        "a.jsonl#2",
        "a.jsonl#3",
        "a.jsonl#4",
        "a.jsonl#5",
        "b.jsonl#1",
    ]
    # What a filter before it rejects is compared with nothing; what one after it rejects was
    # compared.
    assert list(convert("filtered", no_b, lower, step)) == ["a.jsonl#2", "a.jsonl#4", "a.jsonl#5"]
    assert why(tmp_path / "filtered")["a.jsonl#3"] == (
        "duplicate",
        "has the same text as a.jsonl#2, which is kept",
    )
    assert list(convert("late", lower, step, no_b)) == ["a.jsonl#2", "a.jsonl#5"]


@pytest.mark.thorough
def test_texts_that_cleaning_makes_equal_are_duplicates_in_worker_processes_too(tmp_path):
    write(tmp_path / "in", {"a.jsonl": ["Some  words\nline", "some words\nline ", "other"]})
    recipe = {"transform": [{"name": "whitespace"}, {"name": "lower_case"}], "duplicates": "exact"}
    packed = [
        {"name": "tokenize", "tokenizer": "bytes"},
        {"name": "pack", "method": "concat", "length": 8},
    ]
    for workers in (0, 2):
        texts = deduplicated(tmp_path / "in", tmp_path / f"out{workers}", workers, recipe=recipe)
        assert texts == {"a.jsonl#1": "some words\nline", "a.jsonl#3": "other"}
    assert sums(tmp_path / "out0") == sums(tmp_path / "out2")
    recipe["transform"] = [*recipe["transform"], *packed]
    shardctl.convert(tmp_path / "in", tmp_path / "blocks", recipe=recipe, workers=0)
    assert [sample["document_keys"] for sample in shardctl.open(tmp_path / "blocks")][-1] == [
        "a.jsonl#3"
    ]


@pytest.mark.usefixtures("steps")
def test_the_key_duplicates_stands_for_a_step_after_those_that_change_texts(tmp_path):
    steps = [{"name": "no_b"}, {"name": "lower"}, {"name": "no_b"}]
    recipe = Recipe.from_json({"kind": "text", "duplicates": "near", "transform": steps})
    assert [step.name for step in recipe.transform] == ["no_b", "lower", "deduplicate", "no_b"]
    assert recipe.to_json()["transform"][2] == {
        "name": "deduplicate",
        "unit": "document",
        "method": "near",
        "threshold": 0.8,
    }
    assert "duplicates" not in recipe.to_json()
    assert Recipe.from_json(recipe.to_json()) == recipe
    steps = [{"name": "lower"}, {"name": "replace", "pattern": "x"}, {"name": "no_b"}]
    recipe = Recipe.from_json({"kind": "text", "duplicates": "exact", "transform": steps})
    assert [step.name for step in recipe.transform] == ["lower", "replace", "deduplicate", "no_b"]


def test_several_units_are_compared_one_after_the_other(tmp_path):
    write(tmp_path / "in", {"a.jsonl": ["x\ny", "z\nx", "z", "y\nz\nw"]})
    steps = [{"name": "deduplicate", "unit": "line"}, {"name": "deduplicate", "unit": "document"}]
    assert deduplicated(tmp_path / "in", tmp_path / "lines", recipe={"transform": steps}) == {
        "a.jsonl#1": "x\ny",
        "a.jsonl#2": "z",
        "a.jsonl#4": "w",
    }
    steps.reverse()
    write(tmp_path / "in", {"a.jsonl": ["x\ny", "z", "x\ny", "z\nz"]})
    assert list(deduplicated(tmp_path / "in", tmp_path / "both", recipe={"transform": steps})) == [
        "a.jsonl#1",
        "a.jsonl#2",
    ]
    assert [why(tmp_path / "both")[f"a.jsonl#{number}"][1] for number in (3, 4)] == [
        "has the same text as a.jsonl#1, which is kept",
        "all its lines are in texts before it too",
    ]


def test_records_that_cannot_be_read_are_rejected_for_that_and_others_are_not_because_of_them(
    tmp_path,
    out,
):
    write(tmp_path / "in", {"b.jsonl": ["x", "y"]})
    (tmp_path / "in/a.jsonl").write_bytes(b'{"text": "x"\n{"text": "y"}\n')
    (tmp_path / "in/c.jsonl").write_bytes(b"\xff\xfe nothing")
    texts = deduplicated(tmp_path / "in", out, recipe=EXACT)
    assert texts == {"a.jsonl#2": "y", "b.jsonl#1": "x"}
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
    assert (
        "14 records could not be compared with others (deduplicate): needs more memory than there "
        "is" in "".join(made.notices)
    )


def test_a_table_that_contradicts_the_texts_is_refused_in_a_sentence(tmp_path):
    write(tmp_path / "in", {"a.jsonl": ["x\ny"]})
    columns: dict[str, list[int]] = {name: [0] for name in SCHEMA.names} | {
        "record": [1],
        "piece": [7],
    }
    with pa.ipc.new_file(tmp_path / "duplicates-line.arrow", SCHEMA) as writer:
        writer.write_table(pa.table(columns, SCHEMA))
    with pa.ipc.new_file(tmp_path / "files.arrow", pa.schema([("path", pa.string())])) as writer:
        writer.write_table(pa.table({"path": ["a.jsonl"]}))
    run = Deduplicate("line").begin(tmp_path, {})
    records = Records(0, np.array([1]), pa.record_batch({"key": ["a.jsonl#1"], "text": ["x\ny"]}))
    with pytest.raises(DatasetError, match=r"duplicates-line.arrow: contradicts the texts"):
        list(run.apply(records, lambda row, rejection: None))


def test_with_given_types_the_records_that_fit_are_compared(tmp_path, out):
    (tmp_path / "in").mkdir()
    lines = [
        {"text": "x", "n": 1},
        {"text": "x", "n": "no number"},
        {"text": "x", "n": 2},
        {"text": "y", "n": 3},
    ]
    (tmp_path / "in/a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    recipe = {"duplicates": "exact", "schema": "text:string,n:int64"}
    assert list(deduplicated(tmp_path / "in", out, recipe=recipe)) == [
        "a.jsonl#1",
        "a.jsonl#4",
    ]
    assert set(why(out)) == {"a.jsonl#3"}


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("rule", ["exact", "near"])
def test_where_memory_runs_out_for_many_texts_fewer_are_compared_together(
    tmp_path, monkeypatch, rule
):
    (tmp_path / "in").mkdir()
    for number in range(12):
        (tmp_path / f"in/{number:02d}.txt").write_text(
            "the same words in each of them" if number % 2 else f"other {number}"
        )
    name = "_write_hashes" if rule == "exact" else "signatures_of"
    write = getattr(text_hashes, name)

    def refuse(*args: Any) -> Any:
        if len(args[1]) > 1:  # texts, or where they begin
            raise MemoryError
        return write(*args)

    monkeypatch.setattr(text_hashes, name, refuse)
    result = shardctl.convert(
        tmp_path / "in", tmp_path / "out", recipe={"duplicates": rule}, workers=0
    )
    assert (result.samples, result.rejected) == (7, 5)


def test_where_memory_runs_out_for_one_of_the_texts_that_wait_the_conversion_ends(
    tmp_path, monkeypatch
):
    (tmp_path / "in").mkdir()
    for number in range(12):
        (tmp_path / f"in/{number:02d}.txt").write_text(f"text {number % 6}")

    def refuse(*args: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(text_hashes, "_write_hashes", refuse)
    monkeypatch.setattr(text_hashes, "HELD_BYTES", 20)
    with pytest.raises(WorkerError, match="too little memory to compare texts"):
        exactly(tmp_path)


def test_types_that_the_sampled_records_did_not_show_are_found_before_texts_are_compared(
    tmp_path, monkeypatch
):
    for most in ("TYPED_RECORDS", "FIRST_RECORDS"):
        monkeypatch.setattr(discover, most, 5)
    (tmp_path / "in").mkdir()
    numbers = [*map(str, range(50)), '"one"']
    lines = [f'{{"text": "{place % 40}", "n": {number}}}\n' for place, number in enumerate(numbers)]
    (tmp_path / "in/a.jsonl").write_text("".join(lines))
    result = exactly(tmp_path)
    assert result.reasons == {"filter: duplicate": 11}


@pytest.mark.thorough
@pytest.mark.parametrize(("unit", "change"), [("document", 3), ("line", 9)])
def test_a_killed_conversion_goes_on_with_the_same_duplicates(
    tmp_path, out, monkeypatch, unit, change
):
    write(tmp_path / "in", random_texts(4))
    recipe = {"transform": [{"name": "deduplicate", "unit": unit}]}
    options: dict[str, Any] = {"recipe": recipe, "workers": 0, "samples_per_shard": 40}
    shardctl.convert(tmp_path / "in", tmp_path / "whole", **options)
    convert = lambda: shardctl.convert(tmp_path / "in", out, **options)  # noqa: E731 - two calls of the same
    assert stopped_at(change, "kill", task, "build_shard", convert, monkeypatch)
    assert convert().status == "resumed"
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
    shardctl.convert(folder / "in", folder / "out", recipe=recipe, workers=0, **options)
    return folder / "out"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "names",
    [
        ("train-*",),
        ("duplicates-*",),
        ("train-*", "duplicates-*"),
        ("plan.arrow", "train-*"),
        ("rejects.jsonl", "duplicates-*"),
    ],
)
def test_repair_makes_the_same_shards_and_tables(without_duplicates, tmp_path, names):
    out = Path(shutil.copytree(without_duplicates, tmp_path / "out"))
    before = sums(out)
    for path in [path for name in names for path in out.glob(name)]:
        path.write_bytes(b"damaged")
    assert repair(out).status == "repaired"
    assert sums(out) == before
    assert shardctl.verify(out).ok


def test_a_lost_table_of_sources_that_have_changed_is_not_made_again(tmp_path):
    write(tmp_path / "in", DOCUMENTS)
    exactly(tmp_path)
    (tmp_path / "out/duplicates-document.arrow").unlink()
    write(tmp_path / "in", {"a/1.jsonl": ["one two", "three", "one two", None, "", "other"]})
    result = repair(tmp_path / "out")
    assert result.status == "damaged"
    assert "give other duplicates" in result.unrepaired[0].message


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (
            {"duplicates": "similar"},
            "duplicates similar:7 compares images, and these inputs are text; use exact or near",
        ),
        (
            {"duplicates": "near:0.2"},
            "near:SHARE (0.3 to 1), line or paragraph; it is 'near:0.2'",
        ),
        (
            {"transform": [{"name": "deduplicate", "unit": "line", "method": "near"}]},
            "near compares documents, and a line",
        ),
        (
            {"transform": [{"name": "deduplicate", "unit": "word"}]},
            "unit must be document, line or paragraph",
        ),
        (
            {"transform": [{"name": "deduplicate"}] * 2},
            "deduplicate of the same unit is given twice",
        ),
        (
            {"transform": [{"name": "deduplicate"}], "kind": "image"},
            "deduplicate is for text and tables",
        ),
        (
            {"transform": [{"name": "tokenize", "tokenizer": "bytes"}, {"name": "deduplicate"}]},
            "deduplicate must come before tokenize",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path, recipe, message):
    write(tmp_path / "in", DOCUMENTS)
    with pytest.raises(UsageError, match=re.escape(message)):
        shardctl.convert(tmp_path / "in", tmp_path / "out", recipe=recipe, workers=0)
