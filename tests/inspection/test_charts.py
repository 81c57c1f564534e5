"""Charts of pages, as text: their numbers, axes and colours. What a browser makes of them is in
test_report.py."""

from __future__ import annotations

import re

import pytest

from shardctl.inspection.pages import charts


def ticks(chart: str, kind: str) -> list[str]:
    return re.findall(rf'<text class="{kind}"[^>]*>([^<]*)</text>', chart)


def test_one_of_something_is_not_several() -> None:
    drawn = charts.bars("Classes", {"": (["one", "two"], [1, 2])}, charts.counts("batches")).text
    assert "one: 1 batch<" in drawn
    assert "two: 2 batches<" in drawn
    rates = charts.bars("Rates", {"": (["a"], [1])}, charts.Axis("samples/s")).text
    assert "a: 1 samples/s<" in rates


def test_a_narrow_range_has_no_label_twice() -> None:
    edges = [3072.0 + step for step in range(40)]
    drawn = charts.histogram("Sizes", edges, [1] * 39, charts.BYTES, "samples").text
    assert drawn.count(">3 KiB<") <= 1


def test_a_sum_of_shares_that_is_a_little_off_is_all_or_nothing() -> None:
    assert (charts.percent(0.9999999999), charts.percent(1e-17), charts.percent(0.9999)) == (
        "100%",
        "0%",
        "over 99%",
    )


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0"),
        (12, "12"),
        (1250, "1,250"),
        (0.25, "0.25"),
        (1234.5, "1,234"),
        (1.5e6, "1.5 M"),
        (1_234_567, "1,234,567"),
        (2.5e9, "2.5 G"),
        (999.7, "1,000"),
        (float("nan"), "-"),
    ],
)
def test_numbers_are_written_for_people(value: float, written: str) -> None:
    assert charts.number(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0%"),
        (0.005, "0.5%"),
        (0.5, "50%"),
        (0.123, "12%"),
        (1, "100%"),
        (0.0004, "under 0.1%"),
        (0.9999, "over 99%"),
    ],
)
def test_shares_are_percents(value: float, written: str) -> None:
    assert charts.percent(value) == written


@pytest.mark.parametrize(
    ("axis", "most", "expected"),
    [
        (charts.counts("samples"), 2, ["0", "1", "2"]),
        (charts.Axis("s"), 2, ["0", "0.5", "1", "1.5", "2"]),
        (charts.counts("samples/s"), 38_000, ["0", "10,000", "20,000", "30,000", "40,000"]),
        (charts.BYTES, 40 << 10, ["0 B", "10 KiB", "20 KiB", "30 KiB", "40 KiB"]),
        (charts.SHARES, 1.0, ["0%", "20%", "40%", "60%", "80%", "100%"]),
    ],
)
def test_an_axis_has_round_numbers_with_their_unit(
    axis: charts.Axis, most: float, expected: list[str]
) -> None:
    made = charts.columns("a title", {"": (["a", "b"], [1, most])}, "x", axis).text
    assert ticks(made, "ytick") == expected


def test_every_value_is_there_on_hover_and_as_a_table() -> None:
    made = charts.bars(
        "Samples <b>", {"train": (["cat", "dog"], [1200, 3])}, charts.counts("samples")
    ).text
    assert "<title>cat, train: 1,200 samples</title>" in made
    assert "<tr><td>dog</td><td>3</td></tr>" in made
    assert 'aria-label="Samples &lt;b&gt;"' in made


def test_of_many_bars_the_first_are_drawn_and_all_are_in_the_table() -> None:
    names = [f"class {number}" for number in range(100)]
    made = charts.bars("Samples", {"": (names, [1.0] * 100)}, charts.counts("samples")).text
    assert made.count('class="bar') == charts.MOST_BARS
    assert "the first 30 of 100" in made
    assert "<td>class 99</td>" in made


def test_a_title_names_the_number_of_all_bars_and_a_bar_of_nothing_is_not_drawn() -> None:
    names = [f"class {number}" for number in range(40)]
    made = charts.bars(
        "Samples", {"": (names, [1.0] * 39 + [0.0])}, charts.counts("samples"), total=1000
    ).text
    assert "the first 30 of 1,000" in made
    assert (
        charts.bars("Samples", {"": (["a", "b"], [2.0, 0.0])}, charts.counts("samples")).text.count(
            'class="bar'
        )
        == 1
    )


@pytest.mark.parametrize(("low", "high"), [(2.512, 3.981), (2.1, 4.9), (5.2, 9.5), (0.11, 0.19)])
def test_an_axis_between_round_numbers_has_its_ends(low: float, high: float) -> None:
    made = charts.histogram(
        "ms", [low, (low + high) / 2, high], [1, 2], charts.Axis("ms"), "batches", log=True
    ).text
    assert len(ticks(made, "xtick")) == 2


def test_bytes_are_counted_in_their_own_units() -> None:
    made = charts.histogram("text", [100, 3000, 6100], [1, 2], charts.BYTES, "samples").text
    assert ticks(made, "xtick") == ["1 KiB", "2 KiB", "3 KiB", "4 KiB", "5 KiB"]


def test_stacked_bars_stand_on_each_other() -> None:
    made = charts.bars(
        "x", {"a": (["n"], [30.0]), "b": (["n"], [10.0])}, charts.counts("samples"), stacked=True
    ).text
    (first, wide), (second, _) = (
        map(float, each)
        for each in re.findall(
            r'class="bar[^"]*" x="([0-9.]+)" y="[0-9.]+" width="([0-9.]+)"', made
        )
    )
    assert second == pytest.approx(first + wide, abs=0.11)
    assert ticks(made, "value") == ["40"], "the sum is written beside them"


def test_an_axis_of_powers_has_equal_steps_of_equal_ratios() -> None:
    made = charts.histogram(
        "ms", [0.1, 1.0, 10.0, 100.0], [1, 2, 3], charts.Axis("ms"), "batches", log=True
    ).text
    wide = {float(each) for each in re.findall(r'class="bar[^"]*"[^>]* width="([0-9.]+)"', made)}
    assert max(wide) - min(wide) <= 0.11
    assert {"0.1", "1", "10", "100"} <= set(ticks(made, "xtick"))


def test_an_axis_of_many_powers_has_some_of_them() -> None:
    made = charts.histogram(
        "b", [2.0**n for n in range(40)], [1] * 39, charts.BYTES, "samples", log=True
    ).text
    assert 3 <= len(ticks(made, "xtick")) <= 8


def test_colours_are_variables_of_the_page() -> None:
    made = charts.lines("x", {"a": ([0, 1], [0, 1])}, charts.Axis("s"), charts.Axis()).text
    assert "#" not in made
    assert "script" not in made
