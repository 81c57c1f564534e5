"""The keys of a recipe that have an option, and the options that are short for steps: what the
command line, Python, recipe files and their pages know of each.

The command line imports this module before Arrow: it imports little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from shardctl.images.defaults import KEPT_SHARE, MAX_PIXELS
from shardctl.sources.format_table import FORMAT_NAMES, RECORDS, Subject
from shardctl.system.options import (
    FilePath,
    Flag,
    Many,
    Number,
    Option,
    Text,
    ValueType,
    Whole,
    Word,
    Written,
    declared_in,
    setting,
)
from shardctl.transforms.duplicates.rule import DISTANCE, KEEP_ALL, SIMILARITY
from shardctl.transforms.settings import NAMES, Checked, KeptShare, OrWord, Settings, Sides

if TYPE_CHECKING:
    from shardctl.format.shard import Compression
    from shardctl.images.codecs.deep_gray import GrayRange
    from shardctl.images.codecs.image import ImageEncoding
    from shardctl.sources.splits import GroupRule
    from shardctl.transforms.duplicates.rule import DuplicateRule

HEADINGS = (
    READING := "Reading inputs",
    FIELDS := "Fields of records",
    LABELS := "Labels and annotations",
    SPLITS := "Splits and order",
    IMAGES := "Images",
    CLEANING := "Text: cleaning and filters",
    TOKENS := "Text: tokens and packing",
    STEPS := "Recipe and any step",
    STORAGE := "How samples are stored",
    TARGET := "A dataset that exists already",
    RUNNING := "Workers and machines",
    REJECTS := "Bad inputs",
    OUTPUT := "What is printed",
)
"""The headings of the options of a conversion in `--help`, in order."""

UNDECIDED = "auto"
"""The kind where the sources say what it is."""

KINDS = (UNDECIDED, "image", "text", "table", *FORMAT_NAMES)
FORMATS = (UNDECIDED, *FORMAT_NAMES)


class Parsed(Written):
    """A string that a function, `module:name`, reads, refusing it with a sentence of its own
    (UsageError), and `str` writes. The module is imported at the first string.

    `pattern` is what such strings look like, for editors; the others are those of Written.
    """

    def __init__(
        self, parse: str, pattern: str = "", python: str = "str", between: str = "="
    ) -> None:
        super().__init__(python, between)
        self.parse, self.pattern = parse, pattern

    def read(self, value: Any) -> Any:
        """Return what the string says."""
        return resolve_name(self.parse)(super().read(value))

    def write(self, value: Any) -> str:
        """Return the string."""
        return str(value)

    def schema(self) -> dict[str, Any]:
        """Return the schema of the strings."""
        return super().schema() | ({"pattern": self.pattern} if self.pattern else {})


def _delimiter(value: Any) -> str:
    """Return the character that is between the cells of a line; `tab` is a tab."""
    text = {"tab": "\t", "\\t": "\t"}.get(value, value) if isinstance(value, str) else ""
    if len(text) != 1 or not text.isascii() or text in '"\r\n' or text.isalnum():
        raise ValueError("must be one character, such as ; or |, or tab")
    return text


@dataclass(frozen=True)
class RecipeKeys(Settings):
    """The keys of a recipe that have an option. What each does: `Recipe` (recipe.py)."""

    what: ClassVar[str] = "recipe key"

    kind: str = setting(
        Word(*KINDS),
        UNDECIDED,
        "Kind of the samples. image: files, or images in tables. text: .txt, .jsonl. table: "
        "rows of .csv, .json, .parquet and the like. auto: by the sources. A format: like auto, "
        "with its files alone.",
        heading=READING,
    )
    store: ImageEncoding | None = setting(
        Parsed(
            "shardctl.images.codecs.image:ImageEncoding.parse",
            r"^(source|png|raw|none|(jpeg|webp)(:[0-9]{1,3})?)$",
        ),
        None,
        "How images are stored: source (the original bytes), jpeg:QUALITY, png, webp:QUALITY, raw "
        "(pixels), or none. Default: source, or jpeg:90 if a step changes the image.",
        metavar="HOW",
        heading=STORAGE,
        brief="raw (pixels), jpeg:90, png, webp:80 or source",
        about=(Subject.IMAGES,),
    )
    compression: Compression = setting(
        OrWord(
            Parsed("shardctl.format.shard:Compression.parse", "^(none|lz4|zstd(:[0-9]{1,2})?)$"),
            "auto",
        ),
        None,
        "Compression of the blocks: none, lz4, zstd or zstd:LEVEL. auto: zstd:3 for text and "
        "tables, none for images and packed tokens.",
        metavar="HOW",
        heading=STORAGE,
    )
    seed: int = setting(
        Whole(0, 2**63 - 1), 0, "Seed of random steps and splits.", metavar="S", heading=SPLITS
    )
    group: GroupRule | None = setting(
        Parsed("shardctl.sources.splits:GroupRule.parse"),
        None,
        "With --split train=0.9,val=0.1: keep a group in one split. FIELD: a column of the labels "
        "file, or a field of the records. REGEX: its one (group) in the keys.",
        metavar="FIELD|REGEX",
        heading=SPLITS,
        omit_default=True,
    )
    variants: int = setting(
        Whole(1, 10_000),
        1,
        "Number of samples made of every input, each with its own random numbers.",
        metavar="K",
        heading=STEPS,
    )
    max_pixels: int = setting(
        Whole(1, 2**40),
        MAX_PIXELS,
        "Reject images with more pixels.",
        metavar="N",
        heading=IMAGES,
        about=(Subject.IMAGES,),
    )
    truncated: str = setting(
        Word("reject", "keep"),
        "reject",
        "Truncated images: reject them, or keep what can be read and make the rest grey.",
        heading=IMAGES,
        about=(Subject.IMAGES,),
    )
    gray16: GrayRange | None = setting(
        Parsed("shardctl.images.codecs.deep_gray:GrayRange.parse", "^(range|[^:]+:[^:]+)$"),
        None,
        "Values of deep gray that become black and white: LOW:HIGH, or range: those of each image. "
        "Default: those of its type.",
        metavar="range|LOW:HIGH",
        heading=IMAGES,
        omit_default=True,
        about=(Subject.IMAGES,),
    )
    frames: str = setting(
        Word("first", "all"),
        "first",
        "Of animations and pages: the first, or all as samples.",
        heading=IMAGES,
        omit_default=True,
        about=(Subject.IMAGES,),
    )
    duplicates: DuplicateRule = setting(
        Parsed(
            "shardctl.transforms.duplicates.rule:DuplicateRule.parse",
            "^(keep|exact|similar(:[0-9]{1,2})?|near(:[0-9.]+)?|line|paragraph)$",
        ),
        KEEP_ALL,
        "keep: keep all. exact: reject an image with the same bytes, or the same text, as an "
        "earlier one. similar or similar:BITS: an image that looks like an earlier one: up to "
        f"BITS of the 64 bits of their hashes differ, {DISTANCE} by default. near or near:SHARE: "
        "a text that is nearly an earlier one: at least SHARE of their 5-word sequences are the "
        f"same, {SIMILARITY} by default. line, paragraph: drop those of earlier texts. For "
        "texts, this is the step deduplicate after all that change them.",
        metavar="WHICH",
        heading=STEPS,
        brief="reject duplicates: exact, similar or near",
        omit_default=True,
    )
    record: str = setting(
        Word(*RECORDS),
        "file",
        "One sample of a text file (.txt, .md): the whole file, a line or a paragraph.",
        heading=READING,
        about=(Subject.TEXT,),
    )
    encoding: str = setting(
        Parsed("shardctl.sources.formats.encodings:known_encoding"),
        "utf-8",
        "Encoding of text files, as Python calls it, for instance gbk. detect: guessed for each "
        "file.",
        metavar="NAME",
        heading=READING,
        about=(Subject.TEXT,),
    )
    columns: tuple[str, ...] = setting(
        NAMES,
        (),
        "Names of the columns of CSV files without a header.",
        metavar="A,B,…",
        heading=READING,
        about=(Subject.CSV,),
    )
    delimiter: str | None = setting(
        Checked(_delimiter, {"type": "string", "pattern": r"^([^\"\r\nA-Za-z0-9]|tab|\\t)$"}),
        None,
        "Character between the cells of CSV files, such as ; or tab. Default: a comma, in .tsv "
        "files a tab.",
        metavar="C|tab",
        heading=READING,
        about=(Subject.CSV, Subject.LABELS_FILES),
    )
    null_values: tuple[str, ...] = setting(
        NAMES,
        (),
        "Texts that mean a missing value in CSV and labels files, such as NA,null. Default: "
        "none (`shardctl help labels`).",
        metavar="A,B,…",
        heading=READING,
        omit_default=True,
        about=(Subject.CSV, Subject.LABELS_FILES),
    )
    text_field: str | None = setting(
        Text(),
        None,
        "Field of the records with the text, renamed to text.",
        metavar="FIELD",
        heading=FIELDS,
        brief="the field that has the text",
        about=(Subject.FIELDS,),
    )
    label_field: str | None = setting(
        Text(),
        None,
        "Field of the records or labels file with the label, renamed to label.",
        metavar="FIELD",
        heading=FIELDS,
        about=(Subject.FIELDS, Subject.LABELS_FILES),
    )
    key_field: str | None = setting(
        Text(),
        None,
        "Field of the records with the keys, each of them once, renamed to key. Default: the "
        "file and the number of the record, FILE#N. In labels files: the field of file names.",
        metavar="FIELD",
        heading=FIELDS,
        omit_default=True,
        about=(Subject.FIELDS, Subject.LABELS_FILES),
    )
    image_field: str | None = setting(
        Text(),
        None,
        "Field of a table with the images (bytes, paths, or structs of both), renamed to image. "
        "Default: found by type and name. none, with --kind table: keep structs of bytes and "
        "path.",
        metavar="FIELD|none",
        heading=FIELDS,
    )
    format: str = setting(
        Word(*FORMATS),
        UNDECIDED,
        "Read only files of this format, such as webdataset or tfrecord; auto: of any. The kind "
        "can name it too.",
        heading=READING,
        omit_default=True,
    )
    fields: str | None = setting(
        Parsed(
            "shardctl.transforms.recipe:written_fields",
            python="str | Sequence[str] | Mapping[str, str]",
        ),
        None,
        "Fields of the records to keep, with new names: "
        "image=image/encoded,label=image/class/label. Default: all.",
        metavar="NEW=OLD,…",
        heading=FIELDS,
        omit_default=True,
        about=(Subject.FIELDS,),
    )
    schema: str | None = setting(
        Parsed(
            "shardctl.transforms.recipe:written_schema",
            python="str | Path | Mapping[str, str]",
            between=":",
        ),
        None,
        "Types of the fields of records: NAME:TYPE,… or a file with this text, of types string, "
        "int64, float64 or bool. Others are left out. Default: all fields, with the types found.",
        metavar="TYPES",
        heading=FIELDS,
        about=(Subject.FIELDS,),
    )
    keep_objects: float | str = setting(
        KeptShare(),
        KEPT_SHARE,
        "When an image is cut: keep an object if at least this share of its area stays visible. "
        "center: if its centre does.",
        metavar="SHARE|center",
        heading=LABELS,
        omit_default=True,
        about=(Subject.OBJECTS,),
    )
    unmoved: tuple[str, ...] = setting(
        NAMES,
        (),
        "Fields that stay right when steps move the pixels of the image. Without this, places, "
        "masks and other images are refused, and other numbers noted.",
        metavar="A,B,…",
        heading=FIELDS,
        omit_default=True,
        about=(Subject.IMAGES,),
    )
    mask_fields: tuple[str, ...] = setting(
        NAMES,
        (),
        "Fields of records that are masks, images with one number for each pixel of their "
        "image, and move with it. Default: if steps move pixels, fields with names and first "
        "values of masks.",
        metavar="A,B,…",
        heading=FIELDS,
        omit_default=True,
        about=(Subject.BESIDE,),
    )


_KEYS = declared_in(RecipeKeys)

RECIPE_OPTIONS = {
    name: _KEYS[name]._replace(default=None, otherwise=_KEYS[name].written_default)
    # in a recipe, keys stay in the order in which they came; `--help` has another one
    for name in dict.fromkeys(
        ("kind", "record", "format", "columns", "delimiter", "null_values", *_KEYS)
    )
}
"""The options of the keys, by their names. None leaves a key as the recipe file has it."""


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
    step: str, setting: str, type: ValueType, help: str, heading: str = CLEANING, **more: Any
) -> Shortcut:
    return Shortcut(step, setting, Option(type, None, help, heading=heading, **more))


def _alone(step: str, help: str) -> Shortcut:
    return Shortcut(step, None, Option(Flag(), False, help, heading=CLEANING))


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
        Sides(),
        "Resize the short side to N, or the image to exactly WxH.",
        IMAGES,
        metavar="N|WxH",
        brief="resize the short side to N, or to WxH",
    ),
    "crop": _giving(
        "crop",
        "size",
        Sides(),
        "Cut out the centre.",
        IMAGES,
        metavar="N|WxH",
        brief="cut out the centre",
    ),
    "random_crop": _giving(
        "random_resized_crop",
        "size",
        Sides(),
        "Cut out a random part and resize it (RandomResizedCrop).",
        IMAGES,
        metavar="N|WxH",
    ),
    "flip": _giving(
        "hflip",
        "p",
        Number(),
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
        metavar="NAME,…",
    ),
    "lower_case": _alone("lower_case", "Make all letters lower case."),
    "segment": _giving(
        "segment",
        "language",
        Text(),
        "Put spaces between the words of Chinese.",
        metavar="zh",
    ),
    "min_chars": _giving(
        "filter_length",
        "min_chars",
        Whole(),
        "Reject texts with fewer characters.",
        metavar="N",
    ),
    "max_chars": _giving(
        "filter_length",
        "max_chars",
        Whole(),
        "Reject texts with more characters.",
        metavar="N",
    ),
    "filter_quality": Shortcut(
        _QUALITY,
        None,
        Option(
            Many(Word(*_QUALITY), alone=True),
            (),
            "Reject texts by published rules about quality (`shardctl help clean-text`). May be given "
            "several times.",
            heading=CLEANING,
        ),
    ),
    "stop_words": _giving(
        "stop_words",
        "language",
        Text(),
        "Remove the stop words of a language: en, de, …",
        metavar="LANGUAGE",
    ),
    "tokenizer": _giving(
        "tokenize",
        "tokenizer",
        Written("str | Path"),
        "Make tokens of the texts, after all steps but packing: a tokenizer.json or its folder, "
        "a SentencePiece .model, a .txt of words, tiktoken:ENCODING:FILE, or bytes (`shardctl "
        "help tokens`).",
        TOKENS,
        metavar="FILE|DIR|bytes",
        brief="make tokens of texts",
    ),
    "chat_template": _giving(
        "tokenize_chat",
        "template",
        Written("str | Path"),
        "With --tokenizer: make tokens of chats, and a mask of those that count for the loss. auto: "
        "the template in the tokenizer's folder.",
        TOKENS,
        metavar="auto|chatml|FILE",
    ),
    "block_length": _giving(
        "pack",
        "length",
        Whole(2),
        "Pack the tokens of documents into blocks of L tokens: the last step, after --tokenizer.",
        TOKENS,
        metavar="L",
        brief="pack tokens into blocks of L tokens",
    ),
    "pack": _giving(
        "pack",
        "method",
        Word("concat", "bfd", "none"),
        "How documents are packed. concat: in sequence, cut where a block ends. bfd: best-fit "
        "decreasing, which cuts none that fits in a block. none: a row for each document, or for "
        "each piece of at most L tokens.",
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
        "A recipe file (`shardctl help recipes`), or a ready one such as @imagenet (`shardctl "
        "recipe list`). An option replaces the key of its name; --resize, --crop, --random-crop and "
        "--flip change the step in the file.",
        metavar="FILE.toml|@NAME",
        heading=STEPS,
        brief="a file with all steps and keys, or @imagenet",
    ),
    "steps": Option(
        Many(Text("hflip p=0.5")),
        (),
        "Add a step of `shardctl help recipes` after all others, for instance 'random_rotation "
        "degrees=10 fill=[0, 0, 0]'. May be given several times.",
        metavar="'NAME KEY=VALUE…'",
        spelling="--step",
        heading=STEPS,
    ),
    "transforms": Option(
        Many(Text("module:function"), alone=True),
        (),
        "Your own function, called with each sample; or class, such as a model, of which each "
        "worker calls one object with lists of samples. May be given several times.",
        metavar="MODULE:NAME",
        spelling="--transform",
        heading=STEPS,
    ),
}
"""The options that say what steps are done, by their names."""
