"""The steps that clean texts and judge them: against plain Python, at the limits of each published
rule, and in conversions."""

from __future__ import annotations

import re
import sys
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import plain_text_steps as plain
import pyarrow as pa
import pytest
from conftest import examples
from dataset_facts import rejects_of
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import convert
from json_lines import json_lines, texts_in

import shardctl
from shardctl.errors import InputError, InstallError, Rejection, UsageError
from shardctl.system.packages import install_line
from shardctl.transforms.base import Records
from shardctl.transforms.table import TRANSFORMS, parse_step
from shardctl.transforms.text.base import TextStep
from shardctl.transforms.text.cleaning import PATTERNS

STEPS: dict[str, dict[str, Any]] = {
    "normalize": {"unicode": "NFKC"},
    "lower_case": {},
    "control_characters": {},
    "whitespace": {},
    "html": {},
    "redact": {"patterns": list(PATTERNS)},
    "replace": {"pattern": r"(?<=a)b", "replacement": "-"},
    "stop_words": {"language": "en"},
    "filter_stop_words": {"language": "en", "max_share": 0.4},
    "segment": {},
    "filter_length": {"min_chars": 3, "max_words": 30},
    "filter_gopher": {"min_words": 3},
    "filter_gopher_repetition": {},
    "filter_c4": {"min_sentences": 1},
    "filter_fineweb": {},
}
"""Every step of text that needs no other column, with settings that do something."""

TEXTS = [
    "",
    "The quick brown fox jumps over the lazy dog, and it isn't tired of that. It was not.\nNor am "
    "I, to be sure.",
    "  Two  spaces,\ttabs\r\n\r\n\r\n\r\nand   blank lines \n",
    "<p>A &amp; B</p><script>var x;</script> call +49 170 1234567 or mail a.b@example.org "
    "(10.0.0.1)",
    "我来到北京清华大学。Hello, don't C++世界\n新的 一行",
    "a\nb\na\nb\na\nb\n\na\n\nb",
    "e\u0301\u0301 ﬁne \x07\x85\u200b abab",
    "same words here same words here same words here same words here " * 3,
    "\n \n",
    "THE END…",
]


def records_of(texts: list[str | None], first: int = 0) -> Records:
    keys = pa.array([f"k{first + number}" for number in range(len(texts))])
    return Records(
        0,
        np.arange(first, first + len(texts)),
        pa.record_batch({"key": keys, "text": pa.array(texts, pa.string())}),
    )


def apply(
    step: Any, records: Records
) -> tuple[list[tuple[str, str | None]], list[tuple[int, str, str]]]:
    """Return the keys and texts that a step makes, and the numbers of the records that it rejects,
    with rule and message."""
    rejected: list[tuple[int, str, str]] = []

    def reject(row: int, rejection: Rejection) -> None:
        rejected.append((int(records.numbers[row]), rejection.error, rejection.message))

    made = list(step.begin(Path(), {}).apply(records, reject))
    rows = [
        row
        for part in made
        for row in zip(part.batch["key"].to_pylist(), part.batch["text"].to_pylist(), strict=True)
    ]
    return rows, rejected


def step_of(name: str, **settings: Any) -> Any:
    return parse_step({"name": name, **settings}).loaded()


def changed(name: str, text: str, **settings: Any) -> str:
    ((_, made),), _ = apply(step_of(name, **settings), records_of([text]))
    assert made is not None
    return made


def rule_of(name: str, text: str, **settings: Any) -> str | None:
    """Return the rule that a text breaks."""
    _, rejected = apply(step_of(name, **settings), records_of([text]))
    return rejected[0][1] if rejected else None


# All steps


def test_every_step_of_text_is_in_the_suite():
    there = {name for name in TRANSFORMS if issubclass(TRANSFORMS[name], TextStep)}
    assert there <= {*STEPS}, "add the new step to STEPS"


@pytest.mark.parametrize("name", STEPS)
def test_a_step_makes_the_same_whatever_the_size_of_batches(name):
    step = step_of(name, **STEPS[name])
    whole = records_of([*TEXTS])
    for size in (1, 3):
        rows: list[tuple[str, str | None]] = []
        rejected: list[tuple[int, str, str]] = []
        for first in range(0, len(TEXTS), size):
            part = whole.batch.slice(first, size)  # which begins anywhere in its buffers
            made = apply(step, Records(0, whole.numbers[first : first + size], part))
            rows += made[0]
            rejected += made[1]
        assert (rows, rejected) == apply(step, whole)


@pytest.mark.parametrize("name", STEPS)
def test_missing_texts_stay_missing(name):
    step = step_of(name, **STEPS[name])
    with_none = apply(step, records_of([TEXTS[1], None, TEXTS[3]]))
    with_empty = apply(step, records_of([TEXTS[1], "", TEXTS[3]]))
    assert with_none[1] == with_empty[1], "a filter judges them as empty ones"
    expected = [(key, None if key == "k1" else text) for key, text in with_empty[0]]
    assert with_none[0] == expected
    assert apply(step, records_of([])) == ([], [])


@pytest.mark.parametrize(
    "name", ["normalize", "lower_case", "control_characters", "whitespace", "redact", "filter_c4"]
)
def test_what_is_clean_stays_as_it_is(name):
    step = step_of(name, **STEPS[name])
    rows, _ = apply(step, records_of([*TEXTS]))
    clean = [text for _, text in rows]
    again, rejected = apply(step, records_of([*clean]))
    assert [text for _, text in again] == clean
    assert rejected == []


@pytest.mark.parametrize("name", STEPS)
def test_a_step_survives_its_recipe_and_names_what_decides(name):
    step = step_of(name, **STEPS[name])
    assert parse_step({"name": name, **step.settings()}) == step
    assert all(len(version.split(" ")) == 2 for version in step.versions())


def test_steps_name_the_versions_that_decide_what_they_make():
    unidata = f"unidata {unicodedata.unidata_version}"
    assert step_of("normalize").versions() == step_of("lower_case").versions() == (unidata,)
    assert step_of("stop_words", language="en").versions()[1:] == (unidata,)
    for package, step in {
        "stopwordsiso": step_of("stop_words", language="en"),
        "rjieba": step_of("segment"),
        "selectolax": step_of("html"),
        "regex": step_of("replace", pattern="(?<=a)b"),
    }.items():
        assert step.versions()[0].startswith(f"{package} ")
    assert step_of("replace", pattern="b").versions() == (), (
        "pyarrow has RE2, and is in the fingerprint already"
    )


# Against plain Python

PIECES = st.sampled_from(
    "the|of|and|cat|dog|a|été|中国|我们|...|…|•|-|#|{|[1]|don't|it’s|1|lorem ipsum|Javascript|word."
    "|say\"|yes!|WITH|\u0301x|\x85y|…z|'tis|e\u0301|ﬁ|İ|ΣΑΣ|\x00|\x1c|\u200b|\u2028|🙂|\U0001d400"
    "|use cookies".split("|")
    + ["x" * 1001]
)
GAPS = st.sampled_from(" | | | |\n|\n|\n\n|  |\t|\r\n|\r|\u2003|\n \n|\u3000|".split("|"))
MIXED = st.lists(st.tuples(PIECES, GAPS), max_size=60).map(
    lambda parts: "".join(piece + gap for piece, gap in parts)
)
ASSIGNED = st.characters(
    exclude_categories=["Cs", "Cn"]
)  # the package regex, in plain Python, has tables of its own for others
ANY = st.text(ASSIGNED, max_size=30) | MIXED


@examples(60)
@given(st.lists(ANY, min_size=1, max_size=6))
def test_cleaning_is_what_plain_python_makes(texts):
    for name, settings, one in (
        ("normalize", {"unicode": "NFC"}, plain.normalize),
        ("normalize", {"unicode": "NFKD"}, lambda text: plain.normalize(text, "NFKD")),
        ("lower_case", {}, str.lower),
        ("control_characters", {}, plain.control_characters),
        ("whitespace", {}, plain.whitespace),
        ("whitespace", {"blank_lines": 0}, lambda text: plain.whitespace(text, 0)),
        ("whitespace", {"one_line": True}, lambda text: plain.whitespace(text, one_line=True)),
        ("stop_words", {"language": "en"}, plain.stop_words),
    ):
        rows, rejected = apply(step_of(name, **settings), records_of([*texts]))
        assert ([text for _, text in rows], rejected) == ([one(text) for text in texts], [])


@examples(60)
@given(st.lists(MIXED, min_size=1, max_size=6))
def test_filters_reject_what_plain_python_rejects(texts):
    low = {"min_words": 1, "min_word_length": 1, "max_word_length": 200}
    for name, settings, one in (
        ("filter_gopher", {}, plain.gopher),
        ("filter_gopher", low, lambda text: plain.gopher(text, **low)),
        ("filter_gopher_repetition", {}, plain.gopher_repetition),
        ("filter_c4", {}, lambda text: plain.c4(text)[0]),
        ("filter_fineweb", {}, plain.fineweb),
    ):
        _, rejected = apply(step_of(name, **settings), records_of([*texts]))
        expected = [
            (row, rule) for row, text in enumerate(texts) if (rule := one(text)) is not None
        ]
        assert [(row, rule) for row, rule, _ in rejected] == expected, name


@examples(60)
@given(
    st.lists(
        st.lists(st.sampled_from(["a", "bb", "c", "ddd"]), max_size=60), min_size=1, max_size=4
    ),
    st.integers(2, 10),
)
def test_repeated_n_grams_are_those_of_plain_python(documents, n):
    """Each n by itself: the limits of the others are 1."""
    limits = [1.0] * 9
    limits[n - 2] = 0.3
    off = {
        f"max_duplicate_{what}": 1.0
        for what in ("lines", "paragraphs", "line_chars", "paragraph_chars")
    }
    step = step_of(
        "filter_gopher_repetition", top_ngrams=limits[:3], duplicate_ngrams=limits[3:], **off
    )
    defaults = step_of("filter_gopher_repetition").duplicate_ngrams
    assert list(defaults) == list(plain.DUPLICATE.values())
    _, rejected = apply(step, records_of([" ".join(words) for words in documents]))
    shares = [plain.covered(words, n) / max(1, plain.size(words)) for words in documents]
    assert [row for row, *_ in rejected] == [row for row, share in enumerate(shares) if share > 0.3]


@examples(40)
@given(
    st.lists(ANY | st.text("我来到北京清华大学的了。abc '", max_size=20), min_size=1, max_size=4)
)
def test_segmenting_loses_nothing(texts):
    rows, _ = apply(step_of("segment"), records_of([*texts]))
    assert ["".join(str(text).split()) for _, text in rows] == ["".join(t.split()) for t in texts]
    bar, _ = apply(step_of("segment", separator="\ue000"), records_of([*texts]))
    without = [text.replace("\ue000", "") for text in texts]
    assert [str(text).replace("\ue000", "") for _, text in bar] == without


# Cleaning


def test_chinese_is_divided_and_other_languages_stay():
    assert (
        changed("segment", "我来到北京清华大学。Don't C++世界\n新的 一行")
        == "我 来到 北京 清华大学 。Don't C++ 世界\n新 的 一行"
    )
    assert changed("segment", "not  Chinese") == "not  Chinese"
    marks = "".join(map(chr, range(0xF0000, 0xF0003)))
    assert changed("segment", marks + "我来到北京") == marks + " 我 来到 北京", (
        "the marks that the step would use are in the text"
    )


def test_tags_scripts_and_references_go():
    page = (
        "<html><head><title>Title</title><style>p {}</style></head><body><!-- no --><h1>Head</h1>"
        "<p>One <b>bold</b> &amp; &lt;two&gt;"
        "<script>alert('x')</script><br>next</p><ul><li>a<li>b</ul><table><tr><td>1<td>2</table></body></html>"
    )
    lines = [line.strip() for line in changed("html", page).split("\n") if line.strip()]
    assert lines == ["Title", "Head", "One bold & <two>", "next", "a", "b", "1 2"]
    assert changed("html", "1 < 2 & no markup") == "1 < 2 & no markup"
    assert changed("html", "&eacute;&#x4e2d;<b>", tags=False) == "é中<b>"
    assert changed("html", "<p></p>") == ""


def test_text_in_pictures_and_formulas_stays():
    picture = (
        "<svg><style>.x {}</style><desc>D</desc><script>bad()</script><text "
        'x="1">Label</text></svg>'
    )
    formula = "<math><semantics><mi>x</mi><mo>=</mo><mn>2</mn><annotation>x=2</annotation></semantics></math>"
    assert changed("html", f"a {picture} b {formula} c") == "a Label b x=2 c"


@pytest.mark.parametrize(
    ("name", "text", "made"),
    [
        (
            "email",
            "Write to John.Doe+x@mail.example.co.uk, or me@home.",
            "Write to [EMAIL], or me@home.",
        ),
        (
            "email",
            "müller@web.de, Jürgen.Groß@müller-bau.de; e\u0301ric@a.fr",
            "[EMAIL], [EMAIL]; [EMAIL]",
        ),
        (
            "email",
            "почта@пример.рф, δοκιμή@παράδειγμα.ελ, उदाहरण@उदाहरण.भारत",
            "[EMAIL], [EMAIL], [EMAIL]",
        ),
        ("email", "a@xn--e1afmkfd.xn--p1ai b@例子.com 用户@例子.广告", "[EMAIL] [EMAIL] [EMAIL]"),
        (
            "email",
            "请联系me@example.com谢谢，메일은a@b.kr입니다",
            "请联系[EMAIL]谢谢，메일은[EMAIL]입니다",
        ),
        ("email", "a@b.com.Привет, 看@张三 and über@home", "[EMAIL].Привет, 看@张三 and über@home"),
        (
            "email",
            "o'neil@ex.ie, Sean.O'Neil@ex.ie so'neil@ex.ie \"d'a@b.it\"",
            '[EMAIL], [EMAIL] [EMAIL] "[EMAIL]"',
        ),
        (
            "email",
            "f'a@b.com' rb'a@b.com' return'a@b.com' 'x'+'a@b.com' ['a@b.com','c@d.com'] "
            "x='a@b.com' it.'a@b.com' ?m=a@b.com",
            "f'[EMAIL]' rb'[EMAIL]' return'[EMAIL]' 'x'+'[EMAIL]' ['[EMAIL]','[EMAIL]'] "
            "x='[EMAIL]' it.'[EMAIL]' ?m=[EMAIL]",
        ),
        (
            "ip",
            "from 192.168.0.255 or 2001:db8::ff00:42:8329, not 300.1.1.1 or 10:30:12",
            "from [IP] or [IP], not 300.1.1.1 or 10:30:12",
        ),
        ("url", "See https://a.example/b?c=d#e, (www.example.org).", "See [URL], ([URL])."),
        (
            "phone",
            "+49 170 1234567, (212) 555-0199 and 212-555-0199, not 2021-11-05",
            "[PHONE], [PHONE] and [PHONE], not 2021-11-05",
        ),
        (
            "phone",
            "+33\u00a06\u202f12 34 56 78, +49 (0) 30 12 34 56 78, +49 170/1234567, "
            "212\u2011555\u20110199; +10/20/30",
            "[PHONE], [PHONE], [PHONE], [PHONE]; +10/20/30",
        ),
        (
            "card",
            "4111 1111 1111 1111 and 378282246310005, not 1234567890123456",
            "[CARD] and [CARD], not 1234567890123456",
        ),
        ("iban", "to DE89 3704 0044 0532 0130 00 today", "to [IBAN] today"),
        ("ssn", "078-05-1120 but 078-051-120", "[SSN] but 078-051-120"),
    ],
)
def test_what_is_personal_becomes_a_placeholder(name, text, made):
    assert changed("redact", text, patterns=name) == made
    assert changed("redact", text, patterns=name, placeholder="\\1") == made.replace(
        f"[{name.upper()}]", "\\1"
    )


def test_stop_words_go_with_the_spaces_after_them():
    assert (
        changed("stop_words", "The cat, of course, isn't on the\nold mat", language="en")
        == "cat, , \nmat"
    )
    assert changed("stop_words", "Not the cat", language="en", keep=["not"], also=["CAT"]) == "Not "
    assert changed("stop_words", "Der Hund und die Katze", language="de") == "Hund Katze"


def test_replace_uses_re2_where_it_takes_the_pattern():
    assert changed("replace", "a1b22", pattern=r"(\d+)", replacement=r"<\1>") == "a<1>b<22>"
    assert changed("replace", "abba", pattern=r"(.)\1", replacement="-") == "a-a"
    assert changed("replace", "éa", pattern=r"\w", replacement="x") == "éx", "RE2 has \\w of ASCII"
    assert changed("replace", "éa", pattern=r"\w", replacement="x", engine="regex") == "xx"


def test_a_pattern_that_does_not_end_costs_the_record(tmp_path, out):
    source = texts_in(tmp_path / "in.jsonl", ["fine", "x" * 60, "xy"])
    step = {"name": "replace", "pattern": r"(?<!a)(x|xx)+\b(?!.)z?y", "time_limit": 0.05}
    assert convert(source, out, recipe={"transform": [step]}).samples == 2
    (reject,) = rejects_of(out)
    assert (reject.key, reject.stage, reject.error) == ("in.jsonl#2", "transform", "replace-time")


# Each published rule, at its limit

WORDS = [f"wor{chr(97 + number // 26)}{chr(97 + number % 26)}" for number in range(200)]
"""Different words of five letters."""


def prose(count: int, *more: str) -> str:
    return " ".join(["the", "and", *WORDS[: count - 2 - len(more)], *more])


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (prose(50), None),
        (prose(49), "gopher-words"),
        (" ".join(["the", "and", *["xyz"] * 60]), None),
        (" ".join(["the", "and", *["xyz"] * 59, "xy"]), "gopher-word-length"),
        (" ".join(["the", "and", *("x" * 11 for _ in range(60))]), "gopher-word-length"),
        (prose(60, *["#"] * 6), None),
        (prose(60, *["#"] * 7), "gopher-hashes"),
        (prose(60, *["..."] * 3, *["…"] * 3, "end"), None),
        (prose(60, *["..."] * 4, *["…"] * 3, "end"), "gopher-ellipses"),
        ("• the" + "\n- and some other words" * 10, "gopher-bullet-lines"),
        (
            "the and\n" + "words and more ...\n" * 20 + "words and more\n" * 40,
            "gopher-ellipsis-lines",
        ),
        (prose(60, *["123"] * 12), None),
        (prose(60, *["123"] * 13), "gopher-alphabetic"),
        (prose(60).replace("and", "AND,"), None),
        (prose(60).replace("and", "the"), "gopher-stop-words"),
        ("", "gopher-words"),
    ],
)
def test_gopher_at_its_limits(text, rule):
    assert rule_of("filter_gopher", text) == rule == plain.gopher(text)


TOP = [f"first other {word}" for word in WORDS[100:110]]


def line(number: int, words: int = 1) -> str:
    return " ".join(WORDS[(number * words + place) % len(WORDS)] for place in range(words))


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("\n".join([*map(line, range(7)), *[line(0)] * 1]), None),
        ("\n".join([*map(line, range(7)), *[line(0)] * 2]), "gopher-duplicate-line-chars"),
        ("\n".join([*(line(number, 9) for number in range(7)), *"xxxx"]), None),
        ("\n".join([*(line(number, 9) for number in range(5)), *"xxxx"]), "gopher-duplicate-lines"),
        (
            "\n\n".join(
                [*("\n".join(line(5 * n + k, 2) for k in range(5)) for n in range(4)), *"xxxx"]
            ),
            "gopher-duplicate-paragraphs",
        ),
        (" ".join([*WORDS[:70], *TOP]), None),
        (" ".join([*WORDS[:69], *TOP]), "gopher-top-2-gram"),
        ("", None),
        ("one two three four", None),
    ],
)
def test_gopher_repetition_at_its_limits(text, rule):
    assert plain.gopher_repetition(text) == rule_of("filter_gopher_repetition", text) == rule


FIVE = "There are five words here."
THREE = " ".join([FIVE] * 3)


@pytest.mark.parametrize(
    ("text", "rule", "left"),
    [
        ("\n".join([FIVE] * 3), None, "\n".join([FIVE] * 3)),
        ("\n".join([FIVE] * 2), "c4-sentences", None),
        (f"{THREE}\nonly four words here.\n{FIVE}\nno mark at the end", None, f"{THREE}\n{FIVE}"),
        (f"{THREE}\nIt goes on and on...", None, THREE),
        (f"{THREE}\nPlease turn on JavaScript in it.", None, THREE),
        (f"{THREE}\nRead our Terms of Use before that.", None, THREE),
        *(
            (f"{THREE}\nOne word is {'x' * size} long.", None, left)
            for size, left in ((1000, f"{THREE}\nOne word is {'x' * 1000} long."), (1001, THREE))
        ),
        (f"{THREE}[12][citation needed]", None, THREE),
        (f"{THREE}\nif {{", "c4-curly-bracket", None),
        (f"{THREE}\nLorem Ipsum", "c4-lorem-ipsum", None),
        (f'  {THREE} Really? He said "yes!"  ', None, f'{THREE} Really? He said "yes!"'),
    ],
)
def test_c4_at_its_limits(text, rule, left):
    rows, rejected = apply(step_of("filter_c4"), records_of([text]))
    assert [reject[1] for reject in rejected] == ([rule] if rule else [])
    assert [made for _, made in rows] == ([] if left is None else [left])
    assert plain.c4(text)[0] == rule


LONG = "A line that has more than thirty characters"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("\n".join(f"{LONG} {n}{'.' * (n < 4)}" for n in range(25)), None),
        ("\n".join(f"{LONG} {n}{'.' * (n < 3)}" for n in range(25)), "fineweb-punctuated"),
        ("\n".join(f"{LONG if n < 34 else 'Short'} {n}." for n in range(100)), None),
        (
            "\n".join(f"{LONG if n < 33 else 'Short'} {n}." for n in range(100)),
            "fineweb-short-lines",
        ),
        ("\n".join(f"{LONG} {n % 10:02}." for n in range(11)), None),
        ("\n".join(f"{LONG} {n % 9:02}." for n in range(10)), "fineweb-duplicate-line-chars"),
        ("\n".join("x" * n + " b c." for n in range(31, 40)), None),
        ("\n".join("x" * n + " b." for n in range(31, 40)), "fineweb-newlines"),
        ("", "fineweb-punctuated"),
    ],
)
def test_fineweb_at_its_limits(text, rule):
    assert rule_of("filter_fineweb", text) == rule == plain.fineweb(text)


def test_lengths_at_their_limits():
    step = step_of("filter_length", min_chars=2, max_chars=4, max_words=2)
    _, rejected = apply(step, records_of(["a", "éé", "1234", "12345", "a b", "a b c"]))
    assert [(row, rule) for row, rule, _ in rejected] == [(0, "chars"), (3, "chars"), (5, "chars")]
    assert apply(step_of("filter_length", max_words=2), records_of(["a b", "a b c"]))[1] == [
        (1, "words", "words 3 is over 2")
    ]


def test_lengths_in_tokens_need_tokens():
    step = step_of("filter_length", min_tokens=2, max_tokens=3)
    schema = pa.schema([("tokens", pa.list_(pa.uint16()))])
    assert step.schema(schema) == schema, "the text may be gone"
    texts = records_of([""] * 5)
    tokens = pa.array([[1], [1, 2], [1, 2, 3], [1, 2, 3, 4], None], pa.list_(pa.uint16()))
    records = Records(0, texts.numbers, texts.batch.append_column("tokens", tokens))
    rows, rejected = apply(step, records)
    assert ([key for key, _ in rows], [row for row, *_ in rejected]) == (["k1", "k2"], [0, 3, 4])
    with pytest.raises(InputError, match="after tokenize"):
        step.schema(pa.schema([("text", pa.string())]))


def test_the_share_of_stop_words():
    step = step_of("filter_stop_words", language="en", min_share=0.2, max_share=0.5)
    _, rejected = apply(step, records_of(["the cat", "the of cat", "cat dog mouse bird horse", ""]))
    assert [(row, rule) for row, rule, _ in rejected] == [(row, "stop-words") for row in (1, 2, 3)]


# What is wrong


@pytest.mark.parametrize(
    ("name", "settings", "word"),
    [
        ("stop_words", {"language": "xx"}, "'xx'"),
        ("filter_stop_words", {"language": "en"}, "at least one"),
        ("filter_stop_words", {"language": "en", "min_share": 0.5, "max_share": 0.4}, "is under"),
        ("redact", {"patterns": ["mail"]}, "did you mean email"),
        ("replace", {"pattern": "(?<=a"}, "not a regular expression"),
        ("replace", {"pattern": "(?<=a)b", "replacement": r"\2"}, "group reference"),
        ("replace", {"pattern": "a", "replacement": "\ud800"}, "surrogates"),
        ("replace", {"pattern": "(?<=a)b", "engine": "re2"}, "RE2"),
        ("filter_length", {}, "at least one"),
    ],
)
def test_impossible_settings_are_refused(name, settings, word):
    with pytest.raises(UsageError, match=word):
        step_of(name, **settings)


@pytest.mark.parametrize(
    ("package", "name", "settings", "extra"),
    [
        ("selectolax.lexbor", "html", {}, "text"),
        ("regex", "replace", {"pattern": "(?<=a)b"}, "text"),
        ("stopwordsiso", "stop_words", {"language": "da"}, "text"),
        ("rjieba", "segment", {}, "chinese"),
    ],
)
def test_a_missing_package_names_the_extra(package, name, settings, extra, monkeypatch):
    step = parse_step({"name": name, **settings})
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InstallError, match=f"{name}.*{re.escape(install_line(extra))}"):
        step.loaded()


# Conversions


def documents(folder: Path) -> Path:
    texts = [prose(60), "short", f"<p>{prose(55)}</p>", None, " ".join(["the", *["word"] * 60])]
    records = ({"text": text, "id": number} for number, text in enumerate(texts))
    return json_lines(folder / "in.jsonl", records)


def steps_of(out: Path) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = shardctl.open(out).manifest.recipe["transform"]
    return steps


def test_rejects_name_the_rule_and_the_value_and_counts_add_up(tmp_path, out):
    recipe = {"transform": [{"name": "html"}, {"name": "filter_gopher"}]}
    result = convert(documents(tmp_path), out, recipe=recipe)
    assert (result.samples, result.rejected) == (2, 3)
    assert [(each.key, each.stage, each.error, each.message) for each in rejects_of(out)] == [
        ("in.jsonl#2", "filter", "gopher-words", "words 1 is under 50"),
        ("in.jsonl#4", "filter", "gopher-words", "words 0 is under 50"),
        ("in.jsonl#5", "filter", "gopher-stop-words", "different stop words 1 is under 2"),
    ]
    ds = shardctl.open(out)
    assert [sample["id"] for sample in ds] == [0, 2]
    assert ds[1]["text"] == prose(55)
    html, gopher = result.steps
    assert (html["records"], html["rejected"]) == (5, {})
    assert gopher["rejected"]["gopher-words"] == [2, len("short")]


def test_flags_are_steps_in_a_fixed_order(cli, tmp_path, out):
    source = texts_in(tmp_path / "in.jsonl", ["<p>The  Mail of ME@x.org is \x07 ﬁne.</p>", "x"])
    flags = (
        "--stop-words en --lower-case --max-chars 900 --min-chars 4 --redact email --whitespace "
        "--strip-control-chars --unicode NFKC --strip-html --step"
    )
    step = "replace pattern=fine replacement=good"
    ran = cli("convert", source, out, "--workers", 0, *flags.split(), step)
    assert ran.code == 0, ran.err
    names = (
        "html normalize control_characters whitespace redact lower_case filter_length stop_words "
        "replace"
    )
    steps = steps_of(out)
    assert [step["name"] for step in steps] == names.split()
    assert steps[6] == {"name": "filter_length", "min_chars": 4, "max_chars": 900}
    assert shardctl.open(out)[0]["text"] == "mail [email] good."
    assert "filter_length: kept 1 of 2" in ran.out


def test_quality_names_published_filters(cli, tmp_path, out):
    options = "--workers 0 --filter-quality gopher --segment zh"
    assert cli("convert", documents(tmp_path), out, *options.split()).code == 0
    names = "segment filter_gopher filter_gopher_repetition"
    assert [step["name"] for step in steps_of(out)] == names.split()


def test_a_flag_changes_the_step_of_a_recipe_or_says_how_to_add_it(cli, tmp_path, out):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[[transform]]\nname = "filter_length"\nmin_chars = 2\n')
    given_ones = ("convert", documents(tmp_path), out, "--recipe", recipe, "--workers", 0)
    ran = cli(*given_ones, "--lower-case")
    assert (ran.code, ran.err.count("\n")) == (2, 1)
    assert "add it with --step 'lower_case'" in ran.err
    assert cli(*given_ones, "--min-chars", 6).code == 0
    assert {reject.message for reject in rejects_of(out)} == {
        "characters 5 is under 6",
        "characters 0 is under 6",
    }
