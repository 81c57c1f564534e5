"""Conditions: what they mean, and that nothing else is done with them."""

from __future__ import annotations

import json
import threading
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from places import place_of

import shardctl
from shardctl.errors import UsageError
from shardctl.inspection.content.samples import matching
from shardctl.loader.condition import kept_rows, parse_condition

SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "x": pa.float64(),
        "text": pa.string(),
        "ids": pa.list_(pa.int64()),
        "label": pa.int64(),
        "box": pa.struct({"width": pa.int64()}),
        "yes": pa.bool_(),
    }
)
ROWS: list[dict[str, Any]] = [
    {
        "n": n,
        "x": n / 4,
        "text": f"Text {n}",
        "ids": list(range(n)),
        "label": n % 3,
        "box": {"width": 10 * n},
        "yes": n > 5,
    }
    for n in range(8)
] + [dict.fromkeys(SCHEMA.names)]
CLASSES = ("ant", "bee", "cat")


def kept(table: pa.Table, text: str, classes: Any = None) -> list[int]:
    """Return the places of the rows that meet a condition."""
    where = parse_condition(text, table.schema, classes or {})
    numbered = table.append_column("place", pa.array(range(table.num_rows)))
    found: list[int] = kept_rows(numbered, where.expression)["place"].to_pylist()
    return found


def chosen(text: str) -> list[int]:
    return kept(pa.Table.from_pylist(ROWS, schema=SCHEMA), text, {"label": CLASSES})


@pytest.mark.parametrize(
    "text",
    [
        "n == 3",
        "n != 3",
        "3 < n <= 6",
        "n >= 2 and x < 1.5 or n == 7",
        "not (n > 2)",
        "n in [1, 2, 5]",
        "n not in (1, 2)",
        "n > -1",
        "n * 2 + 1 == 7",
        "n / 2 > 1.4",
        "len(text) == 6",
        "len(ids) > 4",
        "contains(text, '5')",
        "startswith(lower(text), 'text')",
        "endswith(text, ' 7')",
        "yes == True and n != 2",
        "yes in [False]",
        "n == 3.0",
        "text in ['Text 1']",
        "box.width >= 30",
    ],
)
def test_a_condition_means_what_it_means_in_python(text):
    functions = {name: getattr(str, name) for name in ("startswith", "endswith", "lower")}
    functions["contains"] = str.__contains__
    rows = [{**row, "box": SimpleNamespace(**row["box"])} for row in ROWS[:-1]]
    assert chosen(text) == [n for n, row in enumerate(rows) if eval(text, functions, row)]


def test_classes_are_named_and_missing_values_meet_no_comparison():
    for text, numbers in (
        ("label == 'bee'", [1]),
        ("label in ['ant', 2]", [0, 2]),
        ("'cat' != label", [0, 1]),
    ):
        assert chosen(text) == [n for n in range(8) if n % 3 in numbers]
    assert chosen("n is None") == [8]
    assert chosen("text is not None and n < 2") == [0, 1]


NUMBERS = {
    "i": pa.array([1, 16777213, 2**53 + 1, -5, -(2**63)], pa.int64()),
    "b": pa.array([100, -100, 1, 127, 0], pa.int8()),
    "u": pa.array([2**63 + 5, 1, 2, 3, 127], pa.uint64()),
    "f": pa.array([0.5, 1.5, 2.0**53, float("nan"), -5.0], pa.float64()),
    "g": pa.array([0.1, 0.2, 1.0, 127.0, -0.0], pa.float32()),
}


def as_in_python(text: str) -> None:
    """Fail unless a condition holds for the rows of numbers for which Python says so."""
    table = pa.table(NUMBERS)
    rows = enumerate(table.to_pylist())
    assert kept(table, text) == [place for place, row in rows if eval(text, {}, row)], text


@examples(400)
@given(
    st.sampled_from("ibufg"),
    st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "in"]),
    st.sampled_from([0, 1, -5, 127, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)])
    | st.sampled_from([0.5, -0.0, 1.0, 0.1, -5.0, 127.5, 2.0**53, 1e30, -1e30, 9.3e18]),
    st.booleans(),
)
def test_numbers_of_all_types_are_compared_as_in_python(column, sign, number, behind):
    text = f"{number} {sign} {column}" if behind and sign != "in" else f"{column} {sign} {number}"
    text = text.replace(f"in {number}", f"in [{number}, 1.5]")
    as_in_python(text)


@pytest.mark.parametrize(
    "text",
    ["i - 0.5 == 16777212.5", "b + b == 200", "b * 2.5 > 300", "i / 2 == 0.5", "u == i", "b < u"],
)
def test_numbers_are_computed_with_in_64_bits(text):
    as_in_python(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (text, "is not a condition")
            for text in ("n ==", "", "(" * 5000 + "n" + ")" * 5000, "n == " + "9" * 6000)
        ),
        ("m == 3", "no column 'm'; it has n, x, text"),
        ("lable == 3", "did you mean label"),
        ("label == 'wasp'", "no class 'wasp'"),
        ("label == 'bea'", "did you mean bee"),
        ("box.height > 1", "box has no part 'height'"),
        ("n == 'three'", "compare it with a number, not"),
        ("n == '5'", "compare it with 5, not"),
        ("box.width in [1, 2] and box.width in ['1']", "compare it with 1, not"),
        ("yes == 1", "compare it with True or False, not"),
        ("text > 3", "compare it with '3', not"),
        *((text, "does not fit the columns .n is a number.") for text in ("len(n) > 1", "n")),
        ("n in ids", "goes with a list"),
        ("contains(text, n)", "a column and a string"),
        *(
            (text, "is not one of len")
            for text in (
                "__import__('os').system('true')",
                "(lambda: n)() == 1",
                "text.upper() == 'X'",
            )
        ),
        *(
            (text, "is not allowed")
            for text in ("n == [x for x in ids]", "f'{n}' == '1'", "n if n else n", "ids[0] == 1")
        ),
        *(
            (text, "nested too deep")
            for text in (
                "not " * 200 + "n == 1",
                "n" + ".a" * 1500 + " == 1",
                "n" + " ** 2" * 1500 + " == 1",
            )
        ),
        *(
            (text, "a whole number is too large")
            for text in (f"n == {10**23}", f"n + {10**20} > 0", f"not (n > 1 or -{10**20} < n)")
        ),
        ("n == [0x" + "f" * 6000 + "]", "cannot be read"),
        *(
            (rf'text {sign} "\ud800"{end}', "half of a surrogate pair")
            for sign, end in (("==", ""), ("in [", "]"))
        ),
        ("n in [1, 'x']", "must be of one kind"),
        *(
            (text, "more than 1,000 comparisons")
            for text in (
                " or ".join(["n == 1"] * 1001),
                "n" + " < n" * 20_000,
                "not not (" + " and ".join(["n == 1"] * 20_000) + ")",
            )
        ),
    ],
)
def test_what_is_no_condition_is_refused_in_a_sentence(text, message):
    with pytest.raises(UsageError, match=message) as refused:
        parse_condition(text, SCHEMA, {"label": CLASSES})
    # a message repeats no more than the beginning of a condition
    assert len(str(refused.value)) < 800
    assert "kernel" not in str(refused.value), "Arrow's own words are not for users of shardctl"


def test_numbers_at_the_ends_of_64_bits_and_a_thousand_comparisons_are_allowed():
    assert chosen(f"n < {2**63 - 1} and n > {-(2**63)} and n == 4") == [4]
    assert chosen(" or ".join(f"n == {number}" for number in range(4, 1004))) == [4, 5, 6, 7]
    assert chosen(f"n in {list(range(5, 50_000))}") == [5, 6, 7]


def test_columns_are_released_by_the_thread_that_asked():
    """Where another thread is the last to release a numpy array while Python exits, the process is
    aborted."""
    many = " or ".join(f"n == {number}" for number in range(200))
    where, released = parse_condition(many, SCHEMA, {}), []
    for _ in range(50):
        numbers = np.arange(100)
        weakref.finalize(numbers, lambda: released.append(threading.get_ident()))
        table = pa.table({"n": pa.array(numbers)})
        del numbers
        assert kept_rows(table, where.expression).num_rows == 100
        del table
    assert released == [threading.get_ident()] * 50


@examples(300)
@given(st.text(st.sampled_from("nx text()[]'\"=<>!.,+-*/ inotadle12{}:\\\n\0é"), max_size=40))
def test_no_text_does_anything_but_be_refused_or_understood(text):
    try:
        assert set(chosen(text)) <= set(range(len(ROWS)))
    except UsageError:
        return


def test_the_place_and_the_size_can_be_asked_without_being_columns(raw_dataset):
    def found(where: str, split: str | None = None) -> list[Any]:
        return list(matching(place_of(raw_dataset), split, where))

    assert len(found("width == 32 and height == 32 and image_bytes > 9")) == 60
    assert [record.index for record in found("index in [3, 41]")] == [3, 41]
    val = found("split == 'val'")
    assert {record.shard.partition("-")[0] for record in val} == {"val"}
    assert {record.row for record in found("row == 1", "val")} == {1}


def test_the_command_counts_shows_and_saves_what_matches(cli, raw_dataset, tmp_path):
    def inspect(where: str, *options: object) -> Any:
        return cli("inspect", raw_dataset, "--where", where, *options)

    shown = inspect("label in ['snow', 'night', 'dunes']", "--columns", "key,label")
    assert (shown.code, "30 samples match; the first 20 are shown" in shown.out) == (0, True)
    # all samples were looked at, or not
    for head, matches in ((3, None), (30, 10)):
        counted = inspect("label == 'snow'", "--head", head, "--json").json
        assert (counted["matches"], len(counted["samples"])) == (matches, min(head, 10))
    folder = tmp_path / "snow"
    assert f"20 files written to {folder}" in inspect("label == 'snow'", "--save", folder).out
    assert len(list((folder / "snow").glob("*.png"))) == 10
    about = json.loads(next((folder / "snow").glob("*.json")).read_text())
    assert about == {"label": 4, "label_name": "snow"}
    files = ("--save", tmp_path / "s", "--images", tmp_path / "s.png")
    both = inspect("label == 3", *files, "--json").json
    assert (len(both["files"]), both["images"]) == (20, 10)
    assert (tmp_path / "s.png").exists()
    for where, said in (
        ("labl == 1", "did you mean label?"),
        ("index / 0 > 1", "divide by zero\n"),
    ):
        refused = inspect(where)
        assert (refused.code, refused.err.count(said)) == (2, 1)
    with pytest.raises(UsageError, match="columns label: divide by zero"):
        shardctl.open(raw_dataset).filter("label / 0 > 1")
