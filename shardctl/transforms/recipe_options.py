"""The keys of a recipe that have an option: what the command line, recipe files and their pages say
of each.

A key is a field here, and a field of the same name in `Recipe` (recipe.py). That field says what
the value may be, and takes its default and its text from here. The command line imports this module
before Arrow: it imports little.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardctl.images.defaults import KEPT_SHARE, MAX_PIXELS
from shardctl.sources.format_table import FORMAT_NAMES, RECORDS
from shardctl.system.options import (
    Anything,
    NumberOrText,
    OptionType,
    Text,
    Whole,
    Word,
    Written,
    option,
)
from shardctl.transforms.duplicates.limits import DISTANCE, SIMILARITY
from shardctl.transforms.option_headings import (
    FIELDS,
    IMAGES,
    LABELS,
    READING,
    SPLITS,
    STEPS,
    STORAGE,
)

UNDECIDED = "auto"
"""The kind where the sources say what it is."""

KINDS = (UNDECIDED, "image", "text", "table", *FORMAT_NAMES)
FORMATS = (UNDECIDED, *FORMAT_NAMES)
TRUNCATED = ("reject", "keep")
FRAMES = ("first", "all")


def _key(type: OptionType, otherwise: Any, help: str, **more: Any) -> Any:
    """Return the field of a key. `otherwise` is its value, as a recipe file has it, where neither
    file nor option give one."""
    return option(type, None, help, otherwise=otherwise, **more)


@dataclass(init=False, repr=False, eq=False)
class RecipeOptions:
    """What options say of a recipe. None leaves a key as the recipe file has it.

    A command joins the values with the recipe file. It makes no object of this class, which has
    none of the methods of a dataclass: `--help` would wait 2 ms for them.
    """

    kind: str | None = _key(
        Word(*KINDS),
        UNDECIDED,
        "Kind of the samples. image: files, or images in tables. text: .txt, .jsonl. table: the "
        "rows of .csv, .json, .parquet"
        " and the like. auto: decided by the content of the sources. A format: like auto, but only "
        "files of this format are"
        " read.",
        heading=READING,
    )
    record: str | None = _key(
        Word(*RECORDS),
        "file",
        "One sample of a text file (.txt, .md): the whole file, a line or a paragraph.",
        heading=READING,
    )
    text_field: str | None = _key(
        Text(),
        None,
        "Field of the records with the text. It is renamed to text.",
        metavar="FIELD",
        heading=FIELDS,
        brief="the field that has the text",
    )
    label_field: str | None = _key(
        Text(),
        None,
        "Field of the records with the label. It is renamed to label.",
        metavar="FIELD",
        heading=FIELDS,
    )
    key_field: str | None = _key(
        Text(),
        None,
        "Field of the records with the keys of the samples. Each key must occur once. The field is "
        "renamed to key. Default:"
        " keys are made of the file and the number of the record, FILE#N.",
        metavar="FIELD",
        heading=FIELDS,
    )
    image_field: str | None = _key(
        Text(),
        None,
        "Field of a table with the images: bytes, paths, or structs of both. It is renamed to "
        "image. Default: found by its"
        " type and name. none, with --kind table: keep structs of bytes and path unchanged.",
        metavar="FIELD|none",
        heading=FIELDS,
    )
    format: str | None = _key(
        Word(*FORMATS),
        UNDECIDED,
        "Read only files of this format, such as webdataset or tfrecord. auto: files of any "
        "format. You can also give the"
        " format as the kind.",
        heading=READING,
    )
    fields: str | None = _key(
        Written("str | Sequence[str] | Mapping[str, str]"),
        None,
        "Fields of the records to keep, and their new names: "
        "image=image/encoded,label=image/class/label. Default: all.",
        metavar="NEW=OLD,…",
        heading=FIELDS,
    )
    columns: str | None = _key(
        Anything("str | Sequence[str]"),
        (),
        "Names of the columns of CSV files without a header.",
        metavar="A,B,…",
        heading=READING,
    )
    delimiter: str | None = _key(
        Text(),
        None,
        "Character between the cells of CSV files, for instance ; or tab. Default: a comma, in "
        ".tsv files a tab.",
        metavar="C|tab",
        heading=READING,
    )
    null_values: str | None = _key(
        Anything("str | Sequence[str]"),
        (),
        "Texts that mean a missing value in the cells of CSV files and labels files, for instance "
        "NA,null. Default: none"
        " (`shardctl help inputs`).",
        metavar="A,B,…",
        heading=READING,
    )
    encoding: str | None = _key(
        Text(),
        "utf-8",
        "Encoding of text files: a name that Python knows, for instance gbk. detect: it is guessed "
        "for each file.",
        metavar="NAME",
        heading=READING,
    )
    schema: str | None = _key(
        Written("str | Path | Mapping[str, str]", ":"),
        None,
        "Types of the fields of records: NAME:TYPE,… or a file with this text. A type is string, "
        "int64, float64 or bool. Other"
        " fields are left out. Default: all fields, with the types found in the records.",
        metavar="TYPES",
        heading=FIELDS,
    )
    store: str | None = _key(
        Text(),
        None,
        "How images are stored: source (the original bytes), jpeg:QUALITY, png, webp:QUALITY, raw "
        "(pixels), or none. Default:"
        " source, or jpeg:90 if a step changes the image.",
        metavar="HOW",
        heading=STORAGE,
        brief="raw (pixels), jpeg:90, png, webp:80 or source",
    )
    compression: str | None = _key(
        Text(),
        "auto",
        "Compression of the blocks: none, lz4, zstd or zstd:LEVEL. auto: zstd:3 for text and "
        "tables; images and packed tokens"
        " are not compressed.",
        metavar="HOW",
        heading=STORAGE,
    )
    seed: int | None = _key(
        Whole(), 0, "Seed of random steps and splits.", metavar="S", heading=SPLITS
    )
    group: str | None = _key(
        Text(),
        None,
        "With --split train=0.9,val=0.1: keep a group in one split. FIELD is a column of the "
        "labels file or a field of the"
        " records; REGEX finds its one (group) in the keys.",
        metavar="FIELD|REGEX",
        heading=SPLITS,
    )
    variants: int | None = _key(
        Whole(),
        1,
        "Number of samples made of every input, each with its own random numbers.",
        metavar="K",
        heading=STEPS,
    )
    max_pixels: int | None = _key(
        Whole(),
        MAX_PIXELS,
        "Reject images with more pixels.",
        metavar="N",
        heading=IMAGES,
    )
    truncated: str | None = _key(
        Word(*TRUNCATED),
        "reject",
        "Truncated images: reject them, or keep the part that can be read and fill the rest with "
        "grey.",
        heading=IMAGES,
    )
    gray16: str | None = _key(
        Text("range"),
        None,
        "Values of deep gray that become black and white: LOW:HIGH, or range: those of each image. "
        "Default: those of its type.",
        metavar="range|LOW:HIGH",
        heading=IMAGES,
    )
    frames: str | None = _key(
        Word(*FRAMES),
        "first",
        "Of animations and pages: the first, or all as samples.",
        heading=IMAGES,
    )
    duplicates: str | None = _key(
        Text("exact"),
        "keep",
        "keep: keep all. exact: reject an image with the same bytes, or the same text, as an "
        "earlier one. similar or"
        " similar:BITS: reject an image that looks like an earlier one. Up to BITS of the 64 bits "
        "of their hashes differ,"
        f" {DISTANCE} by default. near or near:SHARE: reject a text that is nearly the same as an "
        "earlier one. At least SHARE"
        f" of their 5-word sequences are the same, {SIMILARITY} by default. line, paragraph: drop "
        "lines or paragraphs that an"
        " earlier text had. For texts, this is the step deduplicate after the last step that "
        "changes them.",
        metavar="WHICH",
        heading=STEPS,
        brief="reject duplicates: exact, similar or near",
    )
    keep_objects: float | str | None = _key(
        NumberOrText(),
        KEPT_SHARE,
        "When an image is cut: keep an object if at least this share of its area stays visible. "
        "center: keep an object if its"
        " centre stays visible.",
        metavar="SHARE|center",
        heading=LABELS,
    )
    unmoved: str | None = _key(
        Anything("str | Sequence[str]"),
        (),
        "Fields that are right as they are when steps move the pixels of the image. Without this, "
        "known places, masks and other"
        " images are refused, and other numbers named in a note.",
        metavar="A,B,…",
        heading=FIELDS,
    )
    mask_fields: str | None = _key(
        Anything("str | Sequence[str]"),
        (),
        "Fields of records that are masks: images with one number for each pixel of their image. "
        "They move with it, as in the"
        " loader. Default: if steps move pixels, the fields with names and first values of masks.",
        metavar="A,B,…",
        heading=FIELDS,
    )
