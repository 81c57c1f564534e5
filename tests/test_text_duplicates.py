"""Duplicates among texts, lines and paragraphs: what is kept is a rule, and the same however the work is divided."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st

from shardctl.duplicates import exact, near, runs
from shardctl.duplicates.pieces import pieces_of, without_pieces

# --- pieces ---

TEXTS = st.lists(st.text(st.sampled_from("ab .\n\r\té漢"), max_size=30), max_size=6)


def lines_of(text: str) -> list[str]:
    return [line.removesuffix("\r") for line in text.split("\n") if re.search(r"[^\x00-\x20]", line)]


def paragraphs_of(text: str) -> list[str]:
    found: list[list[str]] = [[]]
    for line in text.split("\n"):
        if re.search(r"[^\x00-\x20]", line):
            found[-1].append(line)
        else:
            found.append([])
    return ["\n".join(lines).removesuffix("\r") for lines in found if lines]


@pytest.mark.parametrize(
    ("unit", "reference"), [("document", lambda text: [text]), ("line", lines_of), ("paragraph", paragraphs_of)]
)
@examples(150)
@given(TEXTS)
def test_texts_are_cut_as_the_plain_rule_says(unit: str, reference: object, texts: list[str]) -> None:
    assert callable(reference)
    found = pieces_of(pa.array(["x", *texts], pa.string())[1:], unit)  # a slice of an array begins anywhere in its buffers
    expected = [(row, number, piece) for row, text in enumerate(texts) for number, piece in enumerate(reference(text))]
    cut = [found.data[a:b].tobytes().decode() for a, b in zip(found.start, found.end, strict=True)]
    assert list(zip(found.row.tolist(), found.number.tolist(), cut, strict=True)) == expected
    hashes = [tuple(each) for each in found.hashes().tolist()]
    digests = [xxhash.xxh3_128_intdigest(piece.encode()) for *_, piece in expected]
    assert hashes == [(digest >> 64, digest & (1 << 64) - 1) for digest in digests]


@pytest.mark.parametrize("unit", ["line", "paragraph"])
@examples(150)
@given(TEXTS, st.randoms(use_true_random=False))
def test_what_is_left_of_texts_are_the_other_pieces_in_their_order(unit: str, texts: list[str], draw: random.Random) -> None:
    array = pa.array(["x", *texts], pa.string())[1:]
    cut = pieces_of(array, unit)
    dropped = np.array([draw.random() < 0.5 for _ in range(len(cut))], bool)
    left = without_pieces(array, cut, dropped)
    left.validate(full=True)
    reference = {"line": lines_of, "paragraph": paragraphs_of}[unit]
    for row, (before, after) in enumerate(zip(texts, left.to_pylist(), strict=True)):
        of_text = np.flatnonzero(cut.row == row)
        expected = [piece for piece, gone in zip(reference(before), dropped[of_text], strict=True) if not gone]
        assert reference(after) == expected
        if not dropped[of_text].any():
            assert after == before


def test_a_line_goes_with_its_line_end() -> None:
    texts = pa.array(["a\nb\nc\n", "a\r\n\r\nb\r\n", "\n\na\n\n\nb", "b"])
    for drop, expected in (("b", ["a\nc\n", "a\r\n", "\n\na", ""]), ("a", ["b\nc\n", "b\r\n", "\n\nb", "b"])):
        cut = pieces_of(texts, "line")
        gone = np.array([cut.data[a:b].tobytes().decode() == drop for a, b in zip(cut.start, cut.end, strict=True)])
        assert without_pieces(texts, cut, gone).to_pylist() == expected


# --- equal hashes ---


@pytest.mark.parametrize("chunk_bytes", [1 << 20, 10 * exact.HASHED.itemsize])
@examples(60)
@given(
    given_hashes=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2)), max_size=60),
    draw=st.randoms(use_true_random=False),
)
def test_the_first_of_equal_hashes_is_kept_in_whichever_order_they_come(
    chunk_bytes: int, given_hashes: list[tuple[int, int]], draw: random.Random, tmp_path_factory: pytest.TempPathFactory
) -> None:
    # High halves in two parts, some of them with another low half.
    rows = np.array([(high << 61, low, place, 10) for place, (high, low) in enumerate(given_hashes)], exact.HASHED)
    first = {hash_: place for place, hash_ in reversed(list(enumerate(given_hashes)))}
    expected = {place: first[hash_] for place, hash_ in enumerate(given_hashes) if first[hash_] != place}
    order = list(range(len(rows)))
    draw.shuffle(order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "CHUNK_BYTES", chunk_bytes)
        patch.setattr(runs, "HELD_BYTES", 200)
        held = runs.Runs(tmp_path_factory.mktemp("runs") / "r", exact.HASHED)
        for part in np.array_split(rows[order], 4):
            exact.add_hashes(held, part)
        held.flush()
        found = list(exact.repeated(held))
    assert {int(place): int(kept) for dropped, _ in found for place, kept, _ in dropped.tolist()} == expected
    assert sum(size for _, size in found) == 10 * len(expected)


# --- nearly equal texts ---


def shingles(text: str) -> set[tuple[str, ...]]:
    """Return the shingles of a text as plain Python finds them."""
    between = "\u0000-/:-@\\[-`{-\u007f\u0080-\u00bf\u2000-\u207f"
    words = re.findall(f"[\u3000-\u9fff]|[^{between}\u3000-\u9fff]+", re.sub("[A-Z]", lambda found: found[0].lower(), text))
    count = max(1, len(words) - near.SHINGLE + 1)
    return {tuple(words[place : place + near.SHINGLE]) for place in range(count)} if words else {(text,)}


@examples(150)
@given(st.lists(st.text(st.sampled_from("aBb1 .,\n“é—漢字かж"), max_size=40), max_size=5), st.sampled_from([16, 1 << 18]))
def test_shingles_are_words_that_follow_each_other(texts: list[str], stretch: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(near, "_STRETCH", stretch)
        if stretch == 16:  # words of more than half a stretch may be cut, and these have 8 bytes at most
            texts = [re.sub("([aBb1éж]{2})", r"\1 ", text) for text in texts]
        near._powers.cache_clear()
        found, starts = near.shingles_of(pa.array(["x", *texts], pa.string())[1:])
        near._powers.cache_clear()
    parts = np.split(found, starts[1:]) if texts else []
    for text, hashes in zip(texts, parts, strict=True):
        expected = shingles(text)
        assert len(set(hashes.tolist())) == len(expected)
        for other, others in zip(texts, parts, strict=True):
            assert len(set(hashes.tolist()) & set(others.tolist())) == len(expected & shingles(other))


def pair(draw: random.Random, words: int, changed: float) -> tuple[str, str]:
    """Return a text of random words, and the same with some of them changed."""
    one = [f"w{draw.randrange(10**6)}" for _ in range(words)]
    return " ".join(one), " ".join(f"x{draw.randrange(10**6)}" if draw.random() < changed else word for word in one)


def jaccard(one: str, other: str) -> float:
    return len(shingles(one) & shingles(other)) / len(shingles(one) | shingles(other))


def components(texts: list[str], threshold: float, folder: Path) -> near.Components:
    signatures = near.signatures_of(*near.shingles_of(pa.array(texts)))
    found, held = near.Components(len(texts)), runs.Runs(folder, near.BANDED)
    near.add_bands(held, signatures, np.arange(len(texts)), threshold)
    held.flush()
    near.connect(held, signatures, found, threshold)
    return found


def test_signatures_estimate_how_alike_texts_are() -> None:
    draw = random.Random(3)
    pairs = [pair(draw, draw.choice([30, 100, 400]), draw.random() * 0.1) for _ in range(400)]
    one, other = (near.signatures_of(*near.shingles_of(pa.array(texts))) for texts in zip(*pairs, strict=True))
    errors = near.similarities(one, other) - np.array([jaccard(*each) for each in pairs])
    assert abs(errors.mean()) < 0.01
    assert errors.std() < 0.045  # sqrt(J (1 - J) / 128) is 0.044 at most


def test_pairs_above_the_threshold_are_found_and_others_are_not(tmp_path: Path) -> None:
    draw = random.Random(5)
    pairs = [pair(draw, 150, draw.random() * 0.08) for _ in range(1500)]
    alike = np.array([jaccard(*each) for each in pairs])
    found = components([text for each in pairs for text in each], 0.8, tmp_path / "runs")
    dropped = np.isin(np.arange(len(pairs)) * 2 + 1, found.dropped())
    assert set(found.roots(found.dropped()) + 1) == set(found.dropped())  # of each pair the first is kept
    assert dropped[alike >= 0.85].mean() > 0.93
    assert dropped[alike >= 0.9].mean() > 0.99
    assert dropped[alike < 0.7].mean() < 0.02


@examples(60)
@given(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=40), st.integers(1, 7))
def test_what_is_connected_has_the_lowest_rank_of_all(edges: list[tuple[int, int]], together: int) -> None:
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


def test_bands_find_almost_all_pairs_at_the_threshold() -> None:
    for threshold in (0.5, 0.7, 0.8, 0.9, 0.95, 1.0):
        bands, size = near.bands_of(threshold)
        assert bands * size <= near.PERMUTATIONS
        assert 1 - (1 - threshold**size) ** bands >= 0.99
