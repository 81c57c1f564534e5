"""The options that say what is done to every sample, for the commands that convert."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from shardctl.cli.options import Command, option_of, options_of
from shardctl.errors import UsageError
from shardctl.sources.format_table import FORMAT_NAMES
from shardctl.system.options import FilePath, Flag, Many, Option, OptionType, Real, Text, Whole, Word, declared_in
from shardctl.system.text import printable
from shardctl.transforms.recipe_options import RecipeOptions

_RECIPE = Option(
    FilePath(),
    None,
    "A recipe file (docs/recipes.md, `shardctl recipe --help`). Options change what it says: each has the key of its name, and"
    " wins; --resize, --crop, --random-crop and --flip change the step of the file.",
    metavar="FILE.toml",
)


class Shortcut(NamedTuple):
    """An option that is short for a step: it gives one `setting` of it. With None as its setting it stands for the step alone.

    Where the option takes words, `step` may have the steps that each of them stands for.
    """

    step: str | Mapping[str, tuple[str, ...]]
    setting: str | None
    option: Option

    def steps(self, value: Any) -> list[str]:
        """Return the names of the steps that the option stands for with this value, in the order in which they are done."""
        if isinstance(self.step, str):
            return [self.step]
        return [name for word, names in self.step.items() if word in value for name in names]


def _giving(step: str, setting: str, type: OptionType, help: str, **more: Any) -> Shortcut:
    return Shortcut(step, setting, Option(type, None, help, **more))


def _alone(step: str, help: str) -> Shortcut:
    return Shortcut(step, None, Option(Flag(), False, help))


_QUALITY = {
    "gopher": ("filter_gopher", "filter_gopher_repetition"),
    "c4": ("filter_c4",),
    "fineweb": ("filter_fineweb",),
}
"""The filters that each word of --quality stands for."""

_SHORTCUTS = {
    "resize": _giving("resize", "size", Text(), "Images: resize the short side to N, or to exactly WxH.", metavar="N|WxH"),
    "crop": _giving("crop", "size", Text(), "Images: cut out the centre.", metavar="N|WxH"),
    "random_crop": _giving(
        "random_resized_crop",
        "size",
        Text(),
        "Images: cut out a random part and resize it (RandomResizedCrop).",
        metavar="N|WxH",
    ),
    "flip": _giving("hflip", "p", Real(), "Images: mirror left to right with probability P.", metavar="P"),
    "strip_html": _alone("html", "Text: take HTML out, with scripts and styles."),
    "unicode": _giving("normalize", "unicode", Text(), "Text: bring it into the form NFC, NFKC, NFD or NFKD.", metavar="FORM"),
    "strip_controls": _alone("control_characters", "Text: remove control characters but tabs and newlines."),
    "whitespace": _alone("whitespace", "Text: runs of white space become one space, edges and blank lines go."),
    "redact": _giving(
        "redact",
        "patterns",
        Text(),
        "Text: replace what is personal by placeholders: email, ip, url, phone, …",
        metavar="NAME,…",
    ),
    "lower_case": _alone("lower_case", "Text: make all letters lower case."),
    "segment": _giving("segment", "language", Text(), "Text: put spaces between the words of Chinese.", metavar="zh"),
    "min_chars": _giving("filter_length", "min_chars", Whole(), "Text: reject texts with fewer characters.", metavar="N"),
    "max_chars": _giving("filter_length", "max_chars", Whole(), "Text: reject texts with more characters.", metavar="N"),
    "quality": Shortcut(
        _QUALITY,
        None,
        Option(
            Many(Word(*_QUALITY)),
            (),
            "Text: reject texts by published rules about quality (docs/text.md). May be given several times.",
        ),
    ),
    "stop_words": _giving(
        "stop_words",
        "language",
        Text(),
        "Text: remove the stop words of a language: en, de, …",
        metavar="LANGUAGE",
    ),
    "tokenizer": _giving(
        "tokenize",
        "tokenizer",
        Text(),
        "Text: make tokens of the texts, after all other steps but packing: a tokenizer.json or a folder with one, a"
        " SentencePiece .model, a .txt with a word on each line, tiktoken:ENCODING:FILE, or bytes (docs/text.md).",
        metavar="FILE|DIR|bytes",
    ),
    "chat_template": _giving(
        "tokenize_chat",
        "template",
        Text(),
        "Text: with --tokenizer, make tokens of chats, the field messages, and a mask of what the loss counts. auto: the"
        " template of the tokenizer's folder.",
        metavar="auto|chatml|FILE",
    ),
    "block_length": _giving(
        "pack",
        "length",
        Whole(least=2),
        "Text: pack the tokens of documents into blocks of L tokens; the last step, after --tokenizer.",
        metavar="L",
    ),
    "pack": _giving(
        "pack",
        "method",
        Word("concat", "bfd", "none"),
        "Text: how documents are packed. concat: one behind the other, cut at the ends of blocks. bfd: best-fit decreasing,"
        " which cuts no document that fits in a block. none: a row for each document, or for each piece of at most L tokens.",
        otherwise="concat",
    ),
}
"""The options that are short for steps, by their names, in the order in which the steps are done and `--help` lists them."""

_ANY_STEP = {
    "steps": Option(
        Many(Text()),
        (),
        "Any step of docs/recipes.md, for instance 'random_rotation degrees=10 fill=[0, 0, 0]'; done after those of the recipe"
        " and of the options above. May be given several times.",
        metavar="'NAME KEY=VALUE…'",
        spelling="--step",
    ),
    "transforms": Option(
        Many(Text()),
        (),
        "Your own function, called with every sample; or your own class, such as a model, of which each worker makes an object,"
        " called with lists of samples. May be given several times.",
        metavar="MODULE:NAME",
        spelling="--transform",
    ),
}


def source_options(command: Command) -> Command:
    """Add --recipe, --kind and what says how records are read."""
    return option_of("recipe", _RECIPE)(options_of(RecipeOptions, "source")(command))


def transform_options(command: Command) -> Command:
    """Add the transforms."""
    options = {name: shortcut.option for name, shortcut in _SHORTCUTS.items()} | _ANY_STEP
    for name, option in reversed(options.items()):
        command = option_of(name, option)(command)
    return command


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
    named = [
        StepOption(name.replace("_", "-"), steps_of_options.get(name, step), shortcut.setting, given[name])
        for name, shortcut in _SHORTCUTS.items()
        if given[name] not in (None, False)
        for step in shortcut.steps(given[name])
    ]
    if given["chat_template"] is not None and given["tokenizer"] is None and not _has_step(recipe, "tokenize_chat"):
        raise UsageError("--chat-template needs a tokenizer; give --tokenizer too")
    if not recipe.get("transform") and given["crop"] and given["random_crop"]:
        raise UsageError("--crop and --random-crop contradict each other; use one of them")
    more = [parse_step_option(text) for text in given["steps"]]
    steps = with_steps(recipe.get("transform"), named, more, given["transforms"], printable(str(given["recipe"])))
    return {**recipe, "transform": steps} if steps else recipe


def _has_step(recipe: dict[str, Any], name: str) -> bool:
    steps = recipe.get("transform")
    return isinstance(steps, list) and any(isinstance(step, dict) and step.get("name") == name for step in steps)
