"""Options that are short for steps of a recipe, and those that add any step.

The command line imports this module before Arrow: it imports little.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from shardctl.system.options import (
    FilePath,
    Flag,
    ImageSize,
    Many,
    Option,
    OptionType,
    Real,
    Text,
    Whole,
    Word,
    Written,
)
from shardctl.transforms.option_headings import CLEANING, IMAGES, STEPS, TOKENS


class Shortcut(NamedTuple):
    """An option that is short for a step: it gives one `setting` of it. With None as its setting it
    stands for the step alone.

    Where the option takes words, `step` may have the steps that each of them stands for.
    """

    step: str | Mapping[str, tuple[str, ...]]
    setting: str | None
    option: Option

    def steps(self, value: Any) -> list[str]:
        """Return the names of the steps that the option stands for with this value, in the order in
        which they are done."""
        if isinstance(self.step, str):
            return [self.step]
        return [name for word, names in self.step.items() if word in value for name in names]


def _giving(
    step: str, setting: str, type: OptionType, help: str, heading: str, **more: Any
) -> Shortcut:
    return Shortcut(step, setting, Option(type, None, help, heading=heading, **more))


def _alone(step: str, help: str, **more: Any) -> Shortcut:
    return Shortcut(step, None, Option(Flag(), False, help, heading=CLEANING, **more))


_QUALITY = {
    "gopher": ("filter_gopher", "filter_gopher_repetition"),
    "c4": ("filter_c4",),
    "fineweb": ("filter_fineweb",),
}
"""The filters that each word of --filter-quality stands for."""

SHORTCUTS = {
    "resize": _giving(
        "resize",
        "size",
        ImageSize(),
        "Resize the short side to N, or the image to exactly WxH.",
        IMAGES,
        metavar="N|WxH",
        brief="resize the short side to N, or to WxH",
    ),
    "crop": _giving(
        "crop",
        "size",
        ImageSize(),
        "Cut out the centre.",
        IMAGES,
        metavar="N|WxH",
        brief="cut out the centre",
    ),
    "random_crop": _giving(
        "random_resized_crop",
        "size",
        ImageSize(),
        "Cut out a random part and resize it (RandomResizedCrop).",
        IMAGES,
        metavar="N|WxH",
    ),
    "flip": _giving(
        "hflip",
        "p",
        Real(),
        "Mirror left to right with probability P.",
        IMAGES,
        metavar="P",
    ),
    "strip_html": _alone("html", "Remove HTML, with its scripts and styles."),
    "unicode": _giving(
        "normalize",
        "unicode",
        Text(),
        "Bring texts into the form NFC, NFKC, NFD or NFKD.",
        CLEANING,
        metavar="FORM",
    ),
    "strip_control_chars": _alone(
        "control_characters", "Remove control characters, but keep tabs and newlines."
    ),
    "whitespace": _alone(
        "whitespace",
        "Make each run of white space one space, and remove blank lines and spaces at the edges.",
    ),
    "redact": _giving(
        "redact",
        "patterns",
        Written("str | Sequence[str]"),
        "Replace personal data by placeholders: email, ip, url, phone, …",
        CLEANING,
        metavar="NAME,…",
    ),
    "lower_case": _alone("lower_case", "Make all letters lower case."),
    "segment": _giving(
        "segment",
        "language",
        Text(),
        "Put spaces between the words of Chinese.",
        CLEANING,
        metavar="zh",
    ),
    "min_chars": _giving(
        "filter_length",
        "min_chars",
        Whole(),
        "Reject texts with fewer characters.",
        CLEANING,
        metavar="N",
    ),
    "max_chars": _giving(
        "filter_length",
        "max_chars",
        Whole(),
        "Reject texts with more characters.",
        CLEANING,
        metavar="N",
    ),
    "filter_quality": Shortcut(
        _QUALITY,
        None,
        Option(
            Many(Word(*_QUALITY), alone=True),
            (),
            "Reject texts by published rules about quality (`shardctl help text`). May be given "
            "several times.",
            heading=CLEANING,
        ),
    ),
    "stop_words": _giving(
        "stop_words",
        "language",
        Text(),
        "Remove the stop words of a language: en, de, …",
        CLEANING,
        metavar="LANGUAGE",
    ),
    "tokenizer": _giving(
        "tokenize",
        "tokenizer",
        Written("str | Path"),
        "Make tokens of the texts, after all other steps except packing. Give a tokenizer.json, a "
        "folder with one, a"
        " SentencePiece .model, a .txt with a word on each line, tiktoken:ENCODING:FILE, or bytes "
        "(`shardctl help text`).",
        TOKENS,
        metavar="FILE|DIR|bytes",
        brief="make tokens of texts",
    ),
    "chat_template": _giving(
        "tokenize_chat",
        "template",
        Written("str | Path"),
        "With --tokenizer: make tokens of chats, and a mask of the tokens that count for the loss. "
        "auto:"
        " the template in the tokenizer's folder.",
        TOKENS,
        metavar="auto|chatml|FILE",
    ),
    "block_length": _giving(
        "pack",
        "length",
        Whole(least=2),
        "Pack the tokens of documents into blocks of L tokens. This is the last step, after "
        "--tokenizer.",
        TOKENS,
        metavar="L",
        brief="pack tokens into blocks of L tokens",
    ),
    "pack": _giving(
        "pack",
        "method",
        Word("concat", "bfd", "none"),
        "How documents are packed. concat: in sequence, cut where a block ends. bfd: best-fit "
        "decreasing; a document that fits"
        " in a block is not cut. none: one row for each document, or for each piece of at most L "
        "tokens.",
        TOKENS,
        otherwise="concat",
    ),
}
"""The options that are short for steps, by their names, in the order in which the steps are done
and `--help` lists them."""

STEP_OPTIONS = {name: shortcut.option for name, shortcut in SHORTCUTS.items()} | {
    "recipe": Option(
        FilePath(),
        None,
        "A recipe file (`shardctl help recipes`), or a ready recipe such as @imagenet (`shardctl "
        "recipe list`). An option"
        " replaces the key of the same name in the file. --resize, --crop, --random-crop and "
        "--flip change the step in the"
        " file.",
        metavar="FILE.toml|@NAME",
        heading=STEPS,
        brief="a file with all steps and keys, or @imagenet",
    ),
    "steps": Option(
        Many(Text("hflip p=0.5")),
        (),
        "Add any step of `shardctl help recipes`, for instance 'random_rotation degrees=10 "
        "fill=[0, 0, 0]'. It is done after"
        " the steps of the recipe and of the other options. May be given several times.",
        metavar="'NAME KEY=VALUE…'",
        spelling="--step",
        heading=STEPS,
    ),
    "transforms": Option(
        Many(Text(), alone=True),
        (),
        "Your own function, called with each sample. Or your own class, such as a model: each "
        "worker makes one object of it,"
        " and calls it with lists of samples. May be given several times.",
        metavar="MODULE:NAME",
        spelling="--transform",
        heading=STEPS,
    ),
}
"""The options that say what steps are done, by their names."""
