"""`shardctl tokenizer`: train tokenizers, and look at them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from shardctl.cli.command import PATH, SRC, Group, option, path_argument
from shardctl.cli.options import OneOf, option_of, reading
from shardctl.cli.output import (
    Output,
    good,
    note,
    output_options,
    printing_to_stderr,
    progress_options,
)
from shardctl.making.options import WORKERS
from shardctl.system.machine import quick_imports
from shardctl.system.options import ByteSize
from shardctl.system.packages import look_in_current_folder
from shardctl.system.text import counted, format_bytes, printable


@click.group(
    cls=Group,
    examples=(
        "shardctl tokenizer train texts tokenizer.json --vocab-size 16384",
        "shardctl convert texts out --tokenizer tokenizer.json",
        "shardctl tokenizer show tokenizer.json",
    ),
)
def tokenizer() -> None:
    """Train tokenizers on your own texts, and look at any tokenizer.

    `shardctl help tokens` explains the kinds of tokenizers, and `shardctl help chat` how chats are
    written.
    """


@tokenizer.command(
    short_help="train a tokenizer on texts",
    examples=(
        "shardctl tokenizer train texts more.jsonl tok.json --recipe clean.toml",
        "shardctl tokenizer train out tok.json --kind unigram --max-bytes 1GiB",
    ),
)
@SRC
@path_argument("out", "OUT.json")
@option(
    "--kind",
    "bpe and unigram, of bytes, give back every text. words: the parts between white space.",
    type=OneOf(["bpe", "unigram", "words"]),
    default="bpe",
)
@option(
    "--vocab-size",
    "Number of tokens, also special ones.",
    type=click.INT,
    default=32_768,
    metavar="N",
)
@option(
    "--special-tokens",
    "Tokens that stand for no text, with the first numbers. Default: "
    "<|endoftext|>,<|pad|>,<|im_start|>,<|im_end|>.",
    metavar="A,B,…",
)
@option(
    "--recipe",
    "Clean the texts with this recipe first, up to its step tokenize.",
    type=PATH,
    metavar="FILE.toml|@NAME",
)
@option(
    "--record",
    "One text of a text file: the whole file, a line or a paragraph. Default: file.",
    type=OneOf(["file", "line", "paragraph"]),
)
@option("--text-field", "Field of the records with the text.", metavar="FIELD")
@option("--encoding", "Encoding of text files. Default: utf-8.", metavar="utf-8|NAME|detect")
@option(
    "--max-bytes",
    "Train on about this much text, from all parts of the sources.",
    callback=reading(ByteSize()),
    metavar="SIZE",
)
@option("--overwrite", "Replace OUT.json if it exists.")
@option_of("workers", WORKERS)
@progress_options
def train(src: tuple[str, ...], out: str, output: Output, **given: Any) -> None:
    """Train a tokenizer on the texts of SRC. SRC may be any sources of convert, or datasets.

    The texts of sources are first cleaned and written to a scratch folder (TMPDIR). They are read
    from there, so that memory does not grow with them. The same texts give the same file. OUT.json
    is a tokenizer.json of Hugging Face. A tokenizer of words can also be written as OUT.txt, with
    one word on each line.

    Exit codes: 0 done, 2 wrong usage, 3 no such source, no text or a full disk, 130 interrupted.
    """
    with quick_imports():
        from shardctl.making.train_tokenizer import train_tokenizer
        from shardctl.transforms.recipe_files.reading import load_recipe

    look_in_current_folder()
    file = given.pop("recipe")
    recipe = load_recipe(Path(file)) if file else {}
    reading_texts = {key: given.pop(key) for key in ("record", "text_field", "encoding")}
    recipe |= {key: value for key, value in reading_texts.items() if value is not None}
    if given["special_tokens"] is not None:
        given["special_tokens"] = list(filter(None, given["special_tokens"].split(",")))
    with printing_to_stderr():
        made = train_tokenizer(
            list(src), out, recipe or None, progress=output.shows_progress, **given
        )
    of = f"{counted(made.documents, 'text')}, {format_bytes(made.bytes)}"
    size = f"{made.vocabulary:,} tokens ({made.kind}) of {of}, in {made.seconds:.1f} s"
    lines = [good("made") + printable(f" {made.path}: {size}")]
    if made.rejected:
        lines.append(
            f"  {counted(made.rejected, 'record')} could not be used; shardctl convert lists them"
        )
    output.show(made, lines)
    if output.shows_notes:
        for notice in made.notices:
            note(notice)


@tokenizer.command(
    short_help="show the tokens of a tokenizer",
    examples=("shardctl tokenizer show tokenizer.json",),
)
@click.argument("file", metavar="FILE|DIR|bytes")
@output_options
def show(file: str, output: Output) -> None:
    """Show a tokenizer: its tokens, its special tokens, whether it gives back every text, and which
    library does the work.

    FILE may be anything that `convert --tokenizer` takes.

    Exit codes: 0 done, 2 wrong usage, 3 no such file, or not a tokenizer.
    """
    with quick_imports():
        from shardctl.transforms.tokenizers.table import describe

    found = describe(file)
    special = ", ".join(list(found.special)[:20]) or "none"
    roles = [
        f"  {role}: {f'{number} {found.roles[role]}' if number is not None else 'none'}"
        for role, number in (("eos", found.eos), ("bos", found.bos), ("pad", found.pad))
    ]
    lines = (
        f"{file}: {found.vocabulary:,} tokens, stored as {found.dtype}",
        *roles,
        f"  special tokens: {special}{', …' if len(found.special) > 20 else ''}",
        "  gives every text back: "
        f"{'yes' if found.lost is None else f'no, {found.lost!r} does not come back'}",
        f"  chat template: {'yes' if found.chat_template else 'no'}",
        f"  done by: {', '.join(found.versions) or 'shardctl'}",
    )
    output.show(found, map(printable, lines))
