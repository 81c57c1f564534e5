"""The options that say what is done to every sample, for the commands that convert."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from shardctl.cli.options import option_of, options_of
from shardctl.errors import UsageError
from shardctl.sources.format_table import FORMAT_NAMES
from shardctl.system.options import FilePath, Option, declared_in
from shardctl.system.text import printable
from shardctl.transforms.recipe_options import RecipeOptions

Command = Callable[..., Any]

_RECIPE = Option(
    FilePath(),
    None,
    "A recipe file (docs/recipes.md, `shardctl recipe --help`). Options change what it says: each has the key of its name, and"
    " wins; --resize, --crop, --random-crop and --flip change the step of the file.",
    metavar="FILE.toml",
)
_QUALITY = {
    "gopher": ("filter_gopher", "filter_gopher_repetition"),
    "c4": ("filter_c4",),
    "fineweb": ("filter_fineweb",),
}
"""The filters that each word of --quality stands for."""

_TRANSFORMS = (
    click.option("--resize", metavar="N|WxH", help="Images: resize the short side to N, or to exactly WxH."),
    click.option("--crop", metavar="N|WxH", help="Images: cut out the centre."),
    click.option("--random-crop", metavar="N|WxH", help="Images: cut out a random part and resize it (RandomResizedCrop)."),
    click.option("--flip", type=float, metavar="P", help="Images: mirror left to right with probability P."),
    click.option("--strip-html", is_flag=True, help="Text: take HTML out, with scripts and styles."),
    click.option("--unicode", metavar="FORM", help="Text: bring it into the form NFC, NFKC, NFD or NFKD."),
    click.option("--strip-controls", is_flag=True, help="Text: remove control characters but tabs and newlines."),
    click.option("--whitespace", is_flag=True, help="Text: runs of white space become one space, edges and blank lines go."),
    click.option("--redact", metavar="NAME,…", help="Text: replace what is personal by placeholders: email, ip, url, phone, …"),
    click.option("--lower-case", is_flag=True, help="Text: make all letters lower case."),
    click.option("--segment", metavar="zh", help="Text: put spaces between the words of Chinese."),
    click.option("--min-chars", type=int, metavar="N", help="Text: reject texts with fewer characters."),
    click.option("--max-chars", type=int, metavar="N", help="Text: reject texts with more characters."),
    click.option(
        "--quality",
        multiple=True,
        type=click.Choice(list(_QUALITY)),
        help="Text: reject texts by published rules about quality (docs/text.md). May be given several times.",
    ),
    click.option("--stop-words", metavar="LANGUAGE", help="Text: remove the stop words of a language: en, de, …"),
    click.option(
        "--tokenizer",
        metavar="FILE|DIR|bytes",
        help="Text: make tokens of the texts, after all other steps but packing: a tokenizer.json or a folder with one, a"
        " SentencePiece .model, a .txt with a word on each line, tiktoken:ENCODING:FILE, or bytes (docs/text.md).",
    ),
    click.option(
        "--chat-template",
        metavar="auto|chatml|FILE",
        help="Text: with --tokenizer, make tokens of chats, the field messages, and a mask of what the loss counts. auto: the"
        " template of the tokeniser's folder.",
    ),
    click.option(
        "--block-length",
        type=click.IntRange(min=2),
        metavar="L",
        help="Text: pack the tokens of documents into blocks of L tokens; the last step, after --tokenizer.",
    ),
    click.option(
        "--pack",
        type=click.Choice(["concat", "bfd", "none"]),
        help="Text: how documents are packed. concat: one behind the other, cut at the ends of blocks. bfd: best-fit"
        " decreasing, which cuts no document that fits in a block. none: a row for each document, or for each piece of at most"
        " L tokens. Default: concat.",
    ),
    click.option(
        "--step",
        "steps",
        multiple=True,
        metavar="'NAME KEY=VALUE…'",
        help="Any step of docs/recipes.md, for instance 'random_rotation degrees=10 fill=[0, 0, 0]'; done after those of the"
        " recipe and of the options above. May be given several times.",
    ),
    click.option(
        "--transform",
        "transforms",
        multiple=True,
        metavar="MODULE:NAME",
        help="Your own function, called with every sample; or your own class, such as a model, of which each worker makes an"
        " object, called with lists of samples. May be given several times.",
    ),
)


def source_options(command: Command) -> Command:
    """Add --recipe, --kind and what says how records are read."""
    return option_of("recipe", _RECIPE)(options_of(RecipeOptions, "source")(command))


def transform_options(command: Command) -> Command:
    """Add the transforms."""
    return _with(command, _TRANSFORMS)


def _with(command: Command, options: tuple[Callable[[Command], Command], ...]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


_STEPS = (
    ("resize", "resize", "size"),
    ("crop", "crop", "size"),
    ("random_crop", "random_resized_crop", "size"),
    ("flip", "hflip", "p"),
    ("strip_html", "html", None),
    ("unicode", "normalize", "unicode"),
    ("strip_controls", "control_characters", None),
    ("whitespace", "whitespace", None),
    ("redact", "redact", "patterns"),
    ("lower_case", "lower_case", None),
    ("segment", "segment", "language"),
    ("min_chars", "filter_length", "min_chars"),
    ("max_chars", "filter_length", "max_chars"),
    *(("quality", step, None) for steps in _QUALITY.values() for step in steps),
    ("stop_words", "stop_words", "language"),
    ("tokenizer", "tokenize", "tokenizer"),
    ("chat_template", "tokenize_chat", "template"),
    ("block_length", "pack", "length"),
    ("pack", "pack", "method"),
)
"""Options for steps, in the order in which the steps are done: option, step, the setting that has its value (None: it stands
for the step alone)."""


def recipe_of(given: dict[str, Any]) -> dict[str, Any]:
    """Join the recipe file and the options: an option changes what the file says. Raises UsageError."""
    from shardctl.transforms.recipe_files.overriding import StepOption, parse_step_option, with_steps
    from shardctl.transforms.recipe_files.reading import load_recipe

    recipe = load_recipe(Path(given["recipe"])) if given["recipe"] else {}
    recipe |= {key: given[key] for key in declared_in(RecipeOptions) if given.get(key) is not None}
    if recipe.get("kind") in FORMAT_NAMES:
        recipe |= {"kind": "auto", "format": recipe["kind"]}
    chats = given["chat_template"] is not None or _has_step(recipe, "tokenize_chat")
    steps_of_options = {"tokenizer": "tokenize_chat"} if chats else {}
    wanted = [name for word in given["quality"] for name in _QUALITY[word]]
    named = [
        StepOption(option.replace("_", "-"), steps_of_options.get(option, name), setting, given[option])
        for option, name, setting in _STEPS
        if given[option] not in (None, False) and (option != "quality" or name in wanted)
    ]
    if given["chat_template"] is not None and given["tokenizer"] is None and not _has_step(recipe, "tokenize_chat"):
        raise UsageError("--chat-template needs a tokeniser; give --tokenizer too")
    if not recipe.get("transform") and given["crop"] and given["random_crop"]:
        raise UsageError("--crop and --random-crop contradict each other; use one of them")
    more = [parse_step_option(text) for text in given["steps"]]
    steps = with_steps(recipe.get("transform"), named, more, given["transforms"], printable(str(given["recipe"])))
    return {**recipe, "transform": steps} if steps else recipe


def _has_step(recipe: dict[str, Any], name: str) -> bool:
    steps = recipe.get("transform")
    return isinstance(steps, list) and any(isinstance(step, dict) and step.get("name") == name for step in steps)
