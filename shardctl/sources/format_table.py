"""The input formats: one row for each. Nothing is imported, because the command line lists the
formats.

A new format is a file in `formats/` and a row here. The row names classes and functions as text:
`module:name` is `name` in `shardctl.sources.formats.module`. Such a module is imported when a file
of the format is found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from shardctl.images.defaults import KNOWN_SUFFIXES
from shardctl.system.packages import install_line


class Family(Enum):
    """How the records of a format lie in its files, and so what reads them."""

    TEXT = "text"
    """Lines of text. The row names a `TextFormat` of base.py."""

    OWN = "own"
    """In a way of their own; the file says the types of the columns. The row names a `Format` of
    base.py."""

    CONTAINER = "container"
    """One after the other, in a file that may be compressed as a whole. It names a `Container`;
    framed.py reads it."""

    ROWS = "rows"
    """Each at a place that its number gives; the file says their types. The row names what opens
    a file as `Rows`; numbered.py reads it."""

    ENTRIES = "entries"
    """One by one, as a package of others gives them by their numbers. The row names what opens a
    file as `Entries` for a block; framed.py reads it."""


class Sidecar(NamedTuple):
    """A file beside the files of a format that is no input: an index, a list of features, a
    lock."""

    endings: tuple[str, ...]
    """The endings of such files, as `walk.suffix_of` gives them: the other fields are compared for
    these files only."""

    name: str
    """A regular expression for the whole name."""

    use: str = "describes"
    """What it is for. It `describes` other files, and decides how they are read: one that cannot be
    opened is an input like others. It has a `part` of the data of another file: the format reads
    both. It has `nothing` of the data, and may change at any time."""

    beside: tuple[str, ...] = ()
    """One file with such a name must be in the same folder. In a name, \\1 is the first group of
    `name`."""

    keys: tuple[frozenset[str], ...] = ()
    """The file must be a JSON object that has all keys of one of these sets."""

    missing: str = ""
    """A function of the sidecar. It returns a sentence about a file that the sidecar lists and that
    does not exist, or None.

    It may raise InputError."""


class Needs(NamedTuple):
    """What has to be installed to read a format: its name in messages (`title`), the packages, the
    extra of shardctl that brings them, and what is imported of them."""

    title: str
    packages: str
    extra: str
    modules: tuple[str, ...]

    @property
    def message(self) -> str:
        """What to say where a package is missing."""
        return f"{self.title} needs {self.packages}: {install_line(self.extra)}"


@dataclass(frozen=True)
class InputFormat:
    """A format of files that hold many records."""

    name: str
    """The name in options and messages. Two rows may have the same name: an option that names it
    chooses both."""

    endings: tuple[str, ...]
    """The endings of file names, in lower case."""

    reader: str
    """The class of the format, or a function that makes one: see `family`. ImportError means that a
    package is missing."""

    family: Family

    spellings: tuple[tuple[str, str], ...] = ()
    """Other forms of file names: a regular expression, and the ending that such a name is read
    as."""

    magic: tuple[tuple[int, bytes], ...] = ()
    """Offsets, and the bytes that every file has there. They tell the format where the name does
    not."""

    begins: str = ""
    """Without `magic`: a function of the first bytes of a file, 16 or more. It returns whether the
    file is of this format."""

    record: str = ""
    """The word of `--record` that chooses the format. Where it is empty, `--record` does not
    matter."""

    carrier: str = ""
    """Text only: the class that reads plain files in UTF-8 in parallel. Without one, sequential.py
    reads them too."""

    streamed: str = ""
    """The class for files that are compressed or in another encoding, where the files are text and
    the family is OWN."""

    needs: Needs | None = None

    of_tfds: bool = False
    """Whether TFDS writes such files: a features.json beside one may say more of its records, and a
    number may follow the ending of its name."""

    check: str = ""
    """A function of a path that looks at a file as a whole, as `formats.check_file` does: it returns
    a warning or None, and raises Rejection, for instance where a hash in another file differs."""

    companions: str = ""
    """A function of the path of a file. It yields what the format may read beside it, as paths from
    its folder on. Of a copy of an object, each of these is copied before the function goes on, if
    there is such an object."""

    sidecars: tuple[Sidecar, ...] = ()

    excluded: tuple[tuple[str, ...], str] = ((), "")
    """The endings of files that may be left out, and a function of a file and the last part of its
    path, which returns why it is: compressed copies, for instance. None: it stays."""

    folder: tuple[tuple[str, ...], str, str] | None = None
    """Of a folder that is one input: the endings of the files in it; a regular expression that is
    found in the paths of these files, as others need no look at their folder; and a function of
    such a file that returns the path of the one to read for all of them, None where the folder is
    an ordinary one."""

    @property
    def is_text(self) -> bool:
        """Whether the files are text: they may be compressed and in any encoding."""
        return self.family is Family.TEXT or self.streamed != ""

    def fits(self, start: bytes) -> bool:
        """Return whether a file that begins like this has the `magic` of the format."""
        return all(start.startswith(magic, place) for place, magic in self.magic)


_TEXTS = (".txt", ".text", ".md")

TFRECORD_NEEDS = Needs(
    "TFRecord", "google-crc32c and protobuf", "tfrecord", ("google_crc32c", "google.protobuf")
)
"""What it takes to read TFRecord files, and their records in other files."""

OF_EXPORT = "beside:of_export"
"""What says more of a file that an export may have."""

FRAME = "frame"
"""The record of image files whose frames are records each."""


def _any_of(*keys: str) -> tuple[frozenset[str], ...]:
    """Return what Sidecar.keys has where one of these is enough."""
    return tuple(frozenset((key,)) for key in keys)


INPUT_FORMATS: tuple[InputFormat, ...] = (
    InputFormat(
        "lines", _TEXTS, "text:Lines", Family.TEXT, record="line", carrier="lines:LineFile"
    ),
    InputFormat("paragraphs", _TEXTS, "text:Paragraphs", Family.TEXT, record="paragraph"),
    InputFormat(
        "jsonl", (".jsonl", ".ndjson"), "jsonl:JsonLines", Family.TEXT, carrier="lines:LineFile"
    ),
    InputFormat("csv", (".csv",), "csv:Delimited", Family.TEXT, carrier="csv:DelimitedFile"),
    InputFormat("tsv", (".tsv",), "csv:tab_delimited", Family.TEXT, carrier="csv:DelimitedFile"),
    InputFormat(
        "json",
        (".json",),
        "json_stream:JsonDocument",
        Family.OWN,
        streamed="json_stream:JsonStream",
    ),
    InputFormat(
        "webdataset",
        (".tar",),
        "webdataset:TarSamples",
        Family.CONTAINER,
        spellings=((r"\.(tgz|tar\.gz)$", ".tar.gz"), (r"\.(tzst|tar\.zstd)$", ".tar.zst")),
        magic=((257, b"ustar"),),
        companions=OF_EXPORT,
        check="webdataset:note_on_end",
        # Of img2dataset.
        sidecars=(Sidecar((".json",), r"(\d+)_stats\.json", beside=(r"\1.tar", r"\1.parquet")),),
    ),
    InputFormat(
        "tfrecord",
        (".tfrecord",),
        "tfrecord:TFRecords",
        Family.CONTAINER,
        spellings=(
            (r"(^|[._-])tfrecords?([._-]\d+)?(-\d+-of-\d+)?(\.(gz|gzip|zlib|zst))?$", ".tfrecord"),
        ),
        begins="tfrecord:begins",
        companions="tfds:companions",
        of_tfds=True,
        needs=TFRECORD_NEEDS,
        # Of TFDS; dataset_info.json also of Hugging Face.
        sidecars=(
            Sidecar(
                (".json",),
                r"features\.json",
                keys=_any_of("featuresDict", "sequence", "pythonClassName"),
            ),
            Sidecar(
                (".json",),
                r"dataset_info\.json",
                keys=_any_of("features", "splits", "builder_name", "name"),
            ),
            Sidecar((".txt",), r".*\.labels\.txt", beside=("features.json",)),
        ),
    ),
    InputFormat(
        "mds",
        (".mds",),
        "mds:MdsShard",
        Family.CONTAINER,
        spellings=((r"\.mds\.(zstd|zst|gz|bz2|br|snappy)$", ".mds"),),
        companions="mds:companions",
        check="mds:check_hashes",
        # Of MosaicML Streaming, or of LitData.
        sidecars=(
            Sidecar(
                (".json",),
                r"index\.json",
                keys=(frozenset(("shards", "version")), frozenset(("chunks", "config"))),
                missing="mds:refuse_missing_shards",
            ),
        ),
        excluded=(
            (".mds", ".zstd", ".br", ".snappy", ".mds.zst", ".mds.gz", ".mds.bz2"),
            "mds:why_left_out",
        ),
    ),
    InputFormat(
        "recordio",
        (".rec",),
        "recordio:RecordIOFile",
        Family.CONTAINER,
        magic=((0, b"\x0a\x23\xd7\xce"),),
        companions=OF_EXPORT,
    ),
    InputFormat("parquet", (".parquet",), "parquet:RowGroups", Family.ROWS, magic=((0, b"PAR1"),)),
    InputFormat(
        "arrow",
        (".arrow", ".arrows", ".ipc", ".feather"),
        "arrow:opened",
        Family.ROWS,
        magic=((0, b"ARROW1\0\0"),),
        # Of Hugging Face.
        sidecars=(
            Sidecar(
                (".json",),
                r"state\.json",
                keys=_any_of("_data_files"),
                missing="beside:first_missing_file",
            ),
            Sidecar((".json",), r"dataset_dict\.json", keys=_any_of("splits")),
        ),
    ),
    InputFormat("npy", (".npy",), "npy:npy_rows", Family.ROWS, magic=((0, b"\x93NUMPY"),)),
    InputFormat("npy", (".npz",), "npy:npz_rows", Family.ROWS),
    InputFormat(
        "megatron",
        # no file has this ending: an .idx of Megatron is known by its content, other files have it
        # too
        (".megatron",),
        "megatron:Sequences",
        Family.ROWS,
        magic=((0, b"MMIDIDX\0\0"),),
        companions="megatron:companions",
        sidecars=(Sidecar((".bin",), r"(.*)\.(?i:bin)", "part", beside=(r"\1.idx",)),),
    ),
    InputFormat(
        "array-record",
        (".array_record",),
        "array_record:opened",
        Family.ENTRIES,
        spellings=((r"(^|[._-])array_?records?(-\d+-of-\d+)?$", ".array_record"),),
        # the head of a block of Riegeli
        magic=((0, b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f"), (16, b"\x40" + bytes(7))),
        companions="tfds:companions",
        of_tfds=True,
        needs=Needs(
            "ArrayRecord", "the package array_record", "array-record", ("array_record.python",)
        ),
    ),
    InputFormat(
        "hdf5",
        (".h5", ".hdf5"),
        "hdf5:opened",
        Family.ROWS,
        magic=((0, b"\x89HDF\r\n\x1a\n"),),
        needs=Needs("HDF5", "the package h5py", "hdf5", ("h5py",)),
    ),
    InputFormat(
        "lmdb",
        (".mdb", ".lmdb"),
        "lmdb:opened",
        Family.ENTRIES,
        # behind the head of the first page
        magic=((16, b"\xde\xc0\xef\xbe"),),
        needs=Needs("LMDB", "the package lmdb", "lmdb", ("lmdb",)),
        sidecars=(Sidecar((".mdb",), r"lock\.mdb", "nothing", beside=("data.mdb",)),),
    ),
    InputFormat(
        "lance",
        (".lance",),
        "lance:opened",
        Family.ROWS,
        spellings=((r"^\d{1,20}\.manifest$", ".lance"),),
        needs=Needs("Lance", "the package pylance", "lance", ("lance",)),
        folder=(
            (".lance", ".manifest", ".txn", ".arrow", ".bin", ".json", ".idx"),
            r"(^|/)_[^/]*/[^/]*\Z|\.(?i:lance)\Z|/_indices/",
            "lance:manifest_of",
        ),
    ),
    InputFormat(
        "frames",
        tuple(sorted(KNOWN_SUFFIXES)),
        "frames:Frames",
        Family.OWN,
        begins="frames:begins",
        record=FRAME,
    ),
)
"""The formats, in the order in which help texts name them."""

RECORDS = ("file", *(row.record for row in INPUT_FORMATS if row.record and row.is_text))
"""The words of `--record`."""


def _endings(wanted: Callable[[InputFormat], bool]) -> frozenset[str]:
    return frozenset(ending for row in INPUT_FORMATS if wanted(row) for ending in row.endings)


_PLAIN = frozenset(("lines", "paragraphs", "jsonl", "csv", "tsv", "json", "frames"))
"""The formats that `--format` and `--kind` do not name."""


FORMAT_NAMES: dict[str, tuple[str, ...]] = {
    **{
        row.name: tuple(
            ending for each in INPUT_FORMATS if each.name == row.name for ending in each.endings
        )
        for row in INPUT_FORMATS
        if row.name not in _PLAIN
    },
    "huggingface": (".parquet", ".arrow"),
}
"""The formats that a person may name, and the endings of their files."""

TEXT_SUFFIXES = _endings(lambda row: row.record != "" and row.is_text)
"""The endings of plain text: `Reading.record` says what a record of it is."""

TABLE_SUFFIXES = _endings(lambda row: row.record == "")
"""The endings of all other formats."""

PLAIN_TEXTS = _endings(lambda row: row.is_text)
"""The endings of text. A second ending such as .gz may follow; Parquet and Arrow files are
compressed inside."""

CONTAINER_SUFFIXES = _endings(lambda row: row.family is Family.CONTAINER)
"""The endings of binary files that may be compressed as a whole."""

BINARY_SUFFIXES = TABLE_SUFFIXES - PLAIN_TEXTS
"""The endings of tables in which a column of bytes may have images. In other tables bytes are
text."""

UNDECLARED_SUFFIXES = _endings(lambda row: row.family in (Family.CONTAINER, Family.ENTRIES))
"""The endings of binary files that do not say the types of their columns."""


def format_of(ending: str, record: str = "") -> InputFormat:
    """Return the format of files with this ending, of plain text the one that has such records.
    Raises KeyError."""
    for row in INPUT_FORMATS:
        if ending in row.endings and row.record in ("", record):
            return row
    raise KeyError(ending)


class Subject(Enum):
    """What options may be `about`: something that not all inputs of a conversion have."""

    IMAGES = "images"
    OBJECTS = "objects in images"
    BOXES = "boxes"
    MASKS = "masks"
    BESIDE = "fields beside images"
    FIELDS = "fields of records"
    LABELS_FILES = "labels files"
    CSV = "CSV files"
    TEXT = "files of text"
