"""Messages name arguments in Python as Python writes them, and leave everything else as it is."""

from __future__ import annotations

import pytest

import shardctl
from shardctl.system.python_names import in_python


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("use --overwrite to make it anew", "use overwrite=True to make it anew"),
        ("use --split source or --split folder", "use split='source' or split='folder'"),
        ("--split train=0.9,val=0.1, for instance", "split='train=0.9,val=0.1', for instance"),
        ("with --drop-columns x1,x2; or", "with drop_columns='x1,x2'; or"),
        ("keep it with --unmoved objects.bbox.", "keep it with unmoved='objects.bbox'."),
        ("--labels 'masks:my masks' uses them", "labels='masks:my masks' uses them"),
        ("add --transform steps:mark", "add transforms='steps:mark'"),
        ("--text-field FIELD names it, --shard-size 9", "text_field=FIELD names it, shard_size=9"),
        *(
            (text, text)
            for text in (
                "run `shardctl convert in out --update`",
                "data/a--split.jsonl: bad",
                "pip install --force-reinstall pillow",
            )
        ),
    ],
)
def test_arguments_are_named_as_python_writes_them(message, said):
    assert in_python(message, shardctl.convert) == said


def test_an_option_that_switches_off_is_false():
    assert (
        in_python("--no-eos exports them without", shardctl.export)
        == "eos=False exports them without"
    )
