"""Recipes as files: what is wrong is found and told with its place; what is written is read back;
the schema says the same."""

from __future__ import annotations

import copy
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from conftest import examples
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import convert

import shardctl
from shardctl.cli.convert import convert as convert_command
from shardctl.errors import UsageError
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.manifest import Manifest
from shardctl.sources.format_table import RECORDS
from shardctl.system.options import declared_in
from shardctl.transforms.recipe import KEYS, Recipe
from shardctl.transforms.recipe_files.overriding import parse_step_option
from shardctl.transforms.recipe_files.reading import (
    check_recipe,
    load_recipe,
    places,
    recipe_schema,
    recipe_toml,
    show_recipe,
)
from shardctl.transforms.settings import SettingError
from shardctl.transforms.table import TRANSFORMS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
SCHEMA = jsonschema.Draft7Validator(recipe_schema())


def written(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    return path


# What is wrong, and where

MANY_FAULTS = """\
stor = "jpeg:95"
"variants" = 0
seed = 1.5  # no whole number
columns = [
    "a", # a comment, with ] and "
    "a",
]

[[transform]]
name = "random_resized_crop"
size = 0
scale = [1, 0]

[[transform]]
name = "choice"
steps = [
  {name = "hflop"},
  {name = "elastic", alpha = "20", sigma = -1}, 3,
  { name = "maybe", steps = [{ name = "hflip", p = 2 }] },
]
[[transform]]
nam = "x"

[[transform]]
name = 'letterbox'
fill.red = 3
"""


def test_every_problem_is_told_with_its_line_column_and_key(tmp_path):
    found = check_recipe(written(tmp_path, MANY_FAULTS))
    assert found.recipe is None
    assert [(problem.line, problem.column, problem.key) for problem in found.problems] == [
        (1, 1, "stor"),
        (2, 1, "variants"),
        (3, 1, "seed"),
        (4, 1, "columns"),
        (11, 1, "transform[0].size"),
        (12, 1, "transform[0].scale"),
        (17, 4, "transform[1].steps[0].name"),
        (18, 22, "transform[1].steps[1].alpha"),
        (18, 36, "transform[1].steps[1].sigma"),
        (18, 49, "transform[1].steps[2]"),
        (19, 48, "transform[1].steps[3].steps[0].p"),
        (21, 1, "transform[2]"),
        (24, 1, "transform[3]"),
        (26, 1, "transform[3].fill"),
    ]
    assert "recipe.toml:1: " in str(found.problems[0])
    assert "did you mean store?" in str(found.problems[0])


@pytest.mark.parametrize(
    ("text", "line", "key", "sentence"),
    [
        ('kind = "text"\n\n[[transform]]\nname = "hflip"\n', 3, "transform[0]", "is for images"),
        ('kind = "text"\nstore = "png"\n', 2, "store", "is about images"),
        ("variants = 2\n", 1, "variants", "no step is random"),
        ('\nstore = "raw"\n', 2, "store", "store raw needs"),
        ('store = "source"\n[[transform]]\nname = "hflip"\n', 1, "store", "without hflip"),
        ('encoding = "klingon"', 1, "encoding", "no such encoding"),
        ('schema = "a:b"', 1, "schema", "name:type"),
        ('text_field = "a"\nlabel_field = "a"', 2, "label_field", "the text and the label"),
        ('[transform]\nname = "hflip"', 1, "transform", "must be a list of steps"),
        (
            '[[transform]]\nname = "choice"\nsteps = [{name = "hflip"}]\nweights = [1, 2]',
            4,
            "transform[0].weights",
            "of the 1 steps",
        ),
        ('[[transform]]\nname = "maybe"\nsteps = []', 3, "transform[0].steps", "at least one step"),
        (
            '[[transform]]\nname = "maybe"\nsteps = [{name = "ten_crop", size = 3}]',
            3,
            "transform[0].steps[0]",
            "cannot be inside",
        ),
        ('[[transform]]\nname = "hflip"\np = nan', 3, "transform[0].p", "from 0 to 1"),
        ("a = 1\na = 2", 2, "", "Cannot overwrite a value"),
        ('seed = 1\nkind = "im', 2, "", "not a TOML file"),
        ('seed = 1\n# caf\udce9\nstore = "png"\n', 2, "", "not UTF-8"),
        ("\ufeffseed = 3\r\nvariants = 0\r\n", 2, "variants", "must be"),
        ("x = " + "[" * 3000, None, "", "too deep"),
        (
            "transform = [" + '{name = "maybe", steps = [' * 120 + "]}" * 120 + "]",
            1,
            "transform",
            "deeper than 16",
        ),
    ],
)
def test_a_problem_is_told_with_its_line_and_key(tmp_path, text, line, key, sentence):
    (problem,) = check_recipe(written(tmp_path, text)).problems
    assert (problem.line, problem.key) == (line, key)
    assert sentence in problem.message
    assert "\n" not in str(problem)


WRONG_VALUES = {
    "kind": "video",
    "store": 90,
    "compression": 3,
    "seed": -1,
    "variants": True,
    "max_pixels": 1.5,
    "truncated": "maybe",
    "duplicates": "some",
    "record": "word",
    "encoding": 8,
    "columns": ["a", 3],
    "delimiter": "ab",
    "null_values": ["NA", "NA"],
    "text_field": 1,
    "label_field": [],
    "image_field": {},
    "key_field": 1,
    "group": 1,
    "format": "avi",
    "fields": 3,
    "schema": 1,
    "gray16": 4095,
    "frames": "two",
    "keep_objects": 1.5,
    "unmoved": 3,
    "mask_fields": 3,
    "transform": {"name": "hflip"},
    "reading": {"name": "hflip"},
}


def test_a_name_that_is_given_twice_and_half_a_pair_are_refused():
    with pytest.raises(SettingError, match="each name once"):
        Recipe.from_json({"schema": "a:string,a:string"})
    half = {"name": "tokenize_chat", "tokenizer": "bytes", "user": "question"}
    with pytest.raises(SettingError, match="give both"):
        Recipe.from_json({"kind": "table", "transform": [half]})


@pytest.mark.parametrize("key", KEYS)
def test_a_wrong_value_of_each_key_is_refused_with_the_key(key):
    assert key in WRONG_VALUES, f"the new key {key} has no wrong value here: add one"
    with pytest.raises(SettingError, match=f"^{key} must be") as caught:
        Recipe.from_json({key: WRONG_VALUES[key]})
    assert caught.value.key == (key,)
    assert list(SCHEMA.iter_errors({key: WRONG_VALUES[key]})), "the schema refuses it too"


def test_a_function_is_imported_only_when_that_is_asked_for(tmp_path, monkeypatch):
    (tmp_path / "imported_once.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    recipe = written(tmp_path, '[[transform]]\nname = "custom"\ntarget = "imported_once:nothing"\n')
    assert check_recipe(recipe).ok
    assert not (tmp_path / "ran").exists()
    (problem,) = check_recipe(recipe, imports=True).problems
    assert "imported_once has no nothing" in problem.message
    assert (tmp_path / "ran").exists()


def test_converting_with_a_wrong_recipe_file_names_the_line(tmp_path, photos):
    recipe = written(tmp_path, '[[transform]]\nname = "crop"\nsize = -1\nsiz = 3\n')
    with pytest.raises(UsageError, match=r"recipe\.toml:4: step 1 .*'siz' .*and 1 more"):
        shardctl.convert(photos, tmp_path / "out", recipe=recipe)


# Places

NAMES = st.sampled_from(["a", "b-c", "name", "size", "1", "x y", "é", 'q"', "d.e", "tab\t"])


def toml_key(name: str) -> str:
    bare = name.isascii() and name.replace("-", "").isalnum()
    return name if bare else json.dumps(name, ensure_ascii=False)


@st.composite
def toml_values(draw: st.DrawFn, depth: int = 2) -> str:
    scalars = (
        "1",
        "-2.5e3",
        "true",
        "inf",
        "1979-05-27 07:32:00",
        '"a # ] } , = \\" b"',
        "'\\'",
        '"""a\n"x" \\\n  y""""',
        "'''a\n''b'''",
        '""',
    )
    form = draw(st.sampled_from(["scalar", "list", "table"] if depth else ["scalar"]))
    if form == "scalar":
        return draw(st.sampled_from(scalars))
    items = draw(st.lists(toml_values(depth - 1), max_size=3))
    if form == "list":
        between = draw(st.sampled_from([", ", " ,\n  ", ", # a comment, ] }\n"]))
        begin, end = (draw(st.sampled_from(["", " ", "\n"])) for _ in range(2))
        return f"[{begin}{between.join(items)}{end}]"
    names = draw(st.lists(NAMES, min_size=3, max_size=3, unique=True))
    pairs = (f"{toml_key(name)} = {item}" for name, item in zip(names, items, strict=False))
    return "{ " + ", ".join(pairs) + " }"


@st.composite
def toml_pairs(draw: st.DrawFn) -> str:
    lines = []
    for name in draw(st.lists(NAMES, max_size=3, unique=True)):
        begin, dots, end = (
            draw(st.sampled_from(each))
            for each in (("", "  "), ("", "", ".x", ' . "y z"'), ("", " # [c]"))
        )
        lines.append(f"{begin}{toml_key(name)}{dots} = {draw(toml_values())}{end}")
        lines += draw(st.sampled_from([[], [""], ["# a = 1"]]))
    return "".join(f"{line}\n" for line in lines)


@st.composite
def toml_documents(draw: st.DrawFn) -> str:
    text = draw(toml_pairs())
    forms = st.sampled_from(["[t{}]", "[[list]]", "[[list.inner]]", "[ 'list' . more{} ]"])
    for number, form in enumerate(draw(st.lists(forms, max_size=5))):
        if form.startswith(("[[list.", "[ '")) and "[[list]]" not in text:
            continue
        text += f"{form.format(number)}\n{draw(toml_pairs())}"
    return text


def keys_in(value: Any, key: tuple[Any, ...] = ()) -> set[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = set()
    for name, item in items:
        within = keys_in(item, (*key, name)) if isinstance(item, dict | list) else set()
        found |= {(*key, name)} | within
    return found


@examples(60)
@given(toml_documents())
def test_every_key_that_tomllib_reads_has_the_place_where_it_is_written(text):
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return  # a key is there twice
    found = places(text)
    assert set(found) == keys_in(values)
    lines = text.split("\n")
    for key, place in found.items():
        rest = lines[place[0] - 1][place[1] - 1 :]
        last = key[-1]
        if isinstance(last, int):
            # an item begins with its value, a table of a list with [[
            assert rest[:1] not in ("", ",", "]", " ")
        else:
            assert any(part in rest for part in (toml_key(last), json.dumps(last), last))


# Writing

TEXTS = st.text(min_size=1, max_size=8).filter(
    lambda text: text.encode("utf-8", "ignore").decode() == text
)
WITHIN: list[dict[str, Any]] = [
    {"name": "vflip"},
    {"name": "maybe", "p": 0.3, "steps": [{"name": "hflip", "p": 1}]},
]
STEPS = st.sampled_from(
    [
        {"name": "hflip", "p": 0.25},
        {"name": "resize", "size": "40x30"},
        {"name": "random_affine", "degrees": 10, "scale": [0.5, 2], "fill": [1, 2, 3]},
        {"name": "choice", "steps": WITHIN, "weights": [1, 3]},
    ]
)
RECIPES = st.one_of(
    st.fixed_dictionaries(
        {"transform": st.lists(STEPS, min_size=1, max_size=4)},
        optional={
            "kind": st.sampled_from(["image", "auto"]),
            "store": st.sampled_from(["png", "webp:70", "jpeg"]),
            "seed": st.integers(0, 2**63 - 1),
            "variants": st.just(1),
            "max_pixels": st.integers(1, 2**40),
            "truncated": st.sampled_from(["reject", "keep"]),
            "image_field": TEXTS.filter(lambda text: text != "none"),
        },
    ),
    st.fixed_dictionaries(
        {"kind": st.sampled_from(["text", "table"])},
        optional={
            "compression": st.sampled_from(["auto", "lz4", "zstd", "zstd:9"]),
            "record": st.sampled_from(RECORDS),
            "encoding": st.sampled_from(["utf-8", "gbk", "detect"]),
            "columns": st.lists(TEXTS, min_size=1, max_size=3, unique=True),
            "delimiter": st.sampled_from(["tab", "\t", ";", " "]),
            "null_values": st.lists(TEXTS, min_size=1, max_size=3, unique=True),
            "text_field": TEXTS,
            "schema": st.just("n:int64,s:string"),
        },
    ),
)


@examples(45)
@given(RECIPES)
def test_a_recipe_comes_back_from_the_file_that_it_is_written_to(settings):
    assert list(SCHEMA.iter_errors(settings)) == []
    recipe = Recipe.from_json(settings)
    text = recipe_toml(recipe.to_json())
    assert Recipe.from_json(tomllib.loads(text)) == recipe
    assert list(SCHEMA.iter_errors(tomllib.loads(text))) == []
    assert recipe_toml(tomllib.loads(text)) == text


def test_what_no_terminal_shows_is_escaped():
    text = recipe_toml({"text_field": "\x1b[31m\x7f\x85\u202e\U000e0001", "key here": 1})
    assert text == 'text_field = "\\u001b[31m\\u007f\\u0085\\u202e\\U000e0001"\n"key here" = 1\n'
    assert tomllib.loads(text)["text_field"] == "\x1b[31m\x7f\x85\u202e\U000e0001"


NESTED = {
    "store": "png",
    "variants": 2,
    "transform": [
        {"name": "resize", "size": 24},
        {"name": "choice", "steps": WITHIN},
        {"name": "random_resized_crop", "size": "16x12", "scale": [0.5, 1.0]},
    ],
}


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("form", ["photos", "csv", "lines"])
def test_the_recipe_of_a_dataset_makes_the_same_dataset_again(tmp_path, photos, form):
    source, recipe = photos, NESTED
    if form == "csv":
        source, recipe = tmp_path / "t.csv", {"columns": ["a", "b"], "delimiter": "tab"}
        recipe |= {"schema": "a:int64,b:string", "label_field": "b"}
        source.write_text("1\tx\n2\ty\n")
    if form == "lines":
        source, recipe = tmp_path / "t.txt", {"record": "line", "encoding": "latin-1"}
        source.write_bytes(b"caf\xe9\nb\n")
    convert(source, tmp_path / "first", recipe=copy.deepcopy(recipe))
    shown = show_recipe(tmp_path / "first")
    assert shown["misfits"] == []
    again = written(tmp_path, shown["toml"])
    assert check_recipe(again).ok
    assert load_recipe(again) == shown["recipe"]
    convert(source, tmp_path / "second", recipe=again)
    first, second = (Manifest.load(dataset_in(tmp_path / name)) for name in ("first", "second"))
    assert first.fingerprint_parts == second.fingerprint_parts
    assert convert(source, tmp_path / "first", recipe=again).status == "up-to-date"


# The schema


def test_the_schema_of_recipes_is_one_and_is_up_to_date():
    jsonschema.Draft7Validator.check_schema(recipe_schema())
    page = (ROOT / "docs" / "recipe.schema.json").read_text(encoding="utf-8")
    script = runpy.run_path(str(ROOT / "scripts" / "docs" / "write_recipe_docs.py"))
    assert page == script["schema"](), "run `make docs`"


@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_schema_describes_every_setting_of_a_step_and_its_default_is_allowed(name):
    described = recipe_schema()["definitions"][name]["properties"]
    for setting in declared_in(TRANSFORMS[name]):
        assert described[setting]["description"], f"{name}: {setting} has no description"
        if "default" in described[setting]:
            schema = SCHEMA.evolve(schema=described[setting])
            assert list(schema.iter_errors(described[setting]["default"])) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"sede": 1},
        {"transform": [{"name": "hflop"}]},
        {"transform": [{"name": "hflip", "p": 1.5}]},
        {"transform": [{"name": "crop"}]},
        {"transform": [{"name": "crop", "size": "224*224"}]},
        {"transform": [{"name": "choice", "steps": [{"name": "hflip", "p": "x"}]}]},
    ],
    ids=json.dumps,
)
def test_what_the_schema_refuses_is_refused(settings):
    assert list(SCHEMA.iter_errors(settings))
    with pytest.raises(SettingError):
        Recipe.from_json(settings)


# Options


def test_every_key_of_a_recipe_is_an_option_of_convert():
    options = {parameter.name: parameter for parameter in convert_command.params}
    for key, field in declared_in(Recipe).items():
        if key not in ("transform", "reading"):
            assert key in options
            words = getattr(field.type, "words", None)
            assert words is None or tuple(options[key].type.choices) == words


CHOICE = {"name": "choice", "steps": [{"name": "hflip", "p": 1e-7}]}


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("hflip", {"name": "hflip"}),
        ("  hflip   p=1 ", {"name": "hflip", "p": 1}),
        ("resize size=320x240", {"name": "resize", "size": "320x240"}),
        ("random_rotation  degrees=[-5, 5]", {"name": "random_rotation", "degrees": [-5, 5]}),
        ("choice steps=[{name = 'hflip', p = 1e-7}]", CHOICE),
        ("custom target=my.module:function", {"name": "custom", "target": "my.module:function"}),
    ],
)
def test_values_of_a_step_option_are_toml_and_words_need_no_quotes(text, step):
    assert parse_step_option(text) == step


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("p=1", "write a step"),
        ("hflop p=1", "step 'hflop' is not known; did you mean hflip?"),
        ("hflip 0.5", "'0.5' is not of the form setting=value"),
        ("hflip p=1,2", "the value of p is not as TOML writes it"),
        ("hflip p=" + "[" * 3000 + "]" * 3000, "the value of p is not as TOML writes it"),
        ("hflip p=1 p=2", "p is given twice"),
    ],
)
def test_a_step_option_that_cannot_be_read_is_one_sentence(text, sentence):
    with pytest.raises(UsageError) as caught:
        parse_step_option(text)
    assert str(caught.value).startswith("--step '")
    assert sentence in str(caught.value)


def test_a_recipe_that_an_older_version_recorded_is_recorded_in_the_same_way():
    """Its datasets stay up to date: new keys and settings are recorded only where they are not the
    default."""
    recorded = (
        '{"kind": "image", "store": "jpeg:90", "compression": "none", "seed": 0, "variants": 1, '
        '"max_pixels": 100000000,'
        ' "truncated": "reject", "record": "file", "encoding": "utf-8", "columns": [], '
        '"delimiter": null, "text_field": null,'
        ' "label_field": null, "image_field": null, "schema": null, "transform": [{"name": '
        '"resize", "size": 64},'
        ' {"name": "crop", "size": "48x48"}, {"name": "random_resized_crop", "size": "24x24", '
        '"scale": [0.08, 1.0],'
        ' "ratio": [0.75, 1.3333333333333333]}, {"name": "hflip", "p": 0.5}]}'
    )
    assert json.dumps(Recipe.from_json(json.loads(recorded)).to_json()) == recorded
