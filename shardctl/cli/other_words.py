"""What people type who know another tool: the options and commands of shardctl that do the same."""

from __future__ import annotations

from collections.abc import Collection

_OF_OPTIONS = {
    "workers num-workers num-proc processes threads thread-count num-threads jobs n-jobs j cores "
    "cpus": (
        "--workers N",
        "--threads N",
    ),
    "image-size img-size size width height max-size target-size": ("--resize 256",),
    "crop-size center-crop": ("--crop 224",),
    "augment augmentation augmentations aug randaugment autoaugment": ("--step rand_augment",),
    "coco yolo voc annotation annotations boxes": ("--labels coco:FILE",),
    "quality jpeg-quality": ("--store jpeg:90",),
    "seq-len seq-length sequence-length max-length max-seq-length context-length block-size": (
        "--block-length N",
    ),
    "vocab vocabulary": ("--vocab-size N", "--tokenizer FILE"),
    "text-column text-key content": ("--text-field NAME",),
    "config cfg yaml": ("--recipe FILE.toml",),
    "stratify stratified": ("--split column, and a column split of the labels file",),
    "val-split validation-split test-size test-split val-size ratio": (
        "--split train=0.9,val=0.1",
    ),
    "skip-errors ignore-errors skip-bad": ("--max-rejects 100%",),
    "num-shards n-shards maxcount max-count shard-count": ("--samples-per-shard N",),
    "compress gzip zstd": ("--compression zstd",),
    "class label category filter query": ("--where 'label == \"NAME\"'",),
    "sample": ("--level quick",),
    "from": ("--source SRC",),
    "model": ("--consumer NAME",),
    "duration time": ("--seconds N",),
    "batch": ("--batch-size N", "shards have --samples-per-shard N, and the loader makes batches"),
    "input inputs input-dir src source data": (
        "the first paths are the sources, without an option",
    ),
    "image-format ext extension": ("--store jpeg:90",),
    "store": ("advise tries each way to store",),
    "recursive r": ("folders are read with all that is below them",),
    "progress": ("progress is shown; --no-progress hides it",),
    "num-classes": ("folders, labels or --classes FILE say which classes there are",),
    "random sample samples limit rows n num top first count max-samples num-samples": (
        "--head N",
        "--inputs N",
        "--images N",
        "--where CONDITION",
        "give a SRC with fewer inputs",
    ),
    "format to type output-format": ("--to FORM", "--json"),
    "output out o output-dir dst destination": (
        "--save DIR",
        "the last path is where the result goes",
    ),
    "force yes y replace": ("--overwrite", "shardctl never asks"),
    "fast quick deep thorough": ("--level quick|full|deep",),
    "fix repair": ("see `shardctl repair DST`",),
    "resume continue restart": ("the same command goes on where it stopped",),
    "mean std normalize": ("the loader normalizes: `shardctl help loader`",),
}

_OF_COMMANDS = {
    "split": "`shardctl convert --split train=0.9,val=0.1`",
    "dedup deduplicate": "`shardctl convert --duplicates exact`",
    "update sync refresh append": "`shardctl convert SRC DST --update`",
    "resize crop filter clean tokenize transform": "`shardctl convert` with its options for steps",
    "snapshot mix": "shardctl.snapshot and shardctl.mix in Python",
    "merge join concat combine": "`shardctl convert A B OUT` of several sources, or shardctl.mix in "
    "Python",
    "create build make prepare process pack write ingest run": "`shardctl convert`",
    "info stats show ls list head view describe cat": "`shardctl inspect`",
    "diff compare": "`shardctl inspect DST --diff OTHER`",
    "check validate fsck": "`shardctl verify`",
    "fix rebuild": "`shardctl repair`",
    "benchmark profile measure": "`shardctl bench`",
    "delete rm remove drop": "`shardctl prune`",
    "gc optimize defrag": "`shardctl compact`",
    "to-webdataset to-tfrecord to-parquet tar": "`shardctl export DST OUT --to webdataset`",
    "version": "`shardctl --version`",
    "push upload publish share": "`shardctl help share-a-dataset`",
    "pull download login auth": "`shardctl help stores`",
    "config configure settings": "`shardctl help recipes`",
    "train fit load read": "`shardctl help loader`",
    "encode decode": "`shardctl convert --tokenizer`",
    "init example": "`shardctl demo`",
}


def instead_of_option(typed: str, options: Collection[str]) -> str:
    """Return the end of a message about an option of other tools, for a command that has some
    options; "" if it is not known."""
    for words, answers in _OF_OPTIONS.items():
        for answer in answers if typed.lstrip("-").lower() in words.split() else ():
            if answer[:2] != "--":
                return f"; {answer}"
            if answer.split()[0] in options:
                return f"; use {answer}"
    return ""


def instead_of_command(typed: str) -> str:
    """Return the end of a message about a command of other tools; "" if it is not known."""
    use = next((use for words, use in _OF_COMMANDS.items() if typed.lower() in words.split()), "")
    return f"; see {use}" if use else ""
