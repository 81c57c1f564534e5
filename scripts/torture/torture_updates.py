"""200 random histories of a source, each followed by `convert --update` and compared with a
conversion of the source as it is.

A history adds, removes, changes, touches and relabels inputs; half of its updates are killed at
random moments. Now and then the dataset is compacted, or a sample of it is pruned and must stay
away. A key of a field stays in its split. Run by `scripts/torture/torture.py updates`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from killing import CONVERT, SHARDCTL, count_of, killing
from samples_of import samples_of

import shardctl
from shardctl.errors import ShardctlError

STEPS = 6
"""Updates of a history."""

FLIPS = "flips.toml"
"""A recipe with a random step, in the folder for scratch."""


@dataclass(frozen=True)
class Kind:
    """A kind of source: its options, how to write an input, and whether a labels file names all of
    them."""

    name: str
    options: tuple[str, ...]
    labelled: bool = False


KINDS = (
    Kind("photos", ("--store", "raw", "--resize", "24x24")),
    Kind("photos", ("--variants", "2", "--store", "jpeg:80", "--recipe", FLIPS)),
    Kind(
        "photos",
        (
            "--shuffle",
            "3",
        ),
        True,
    ),
    Kind("lines", ()),
    Kind("lines", ("--shuffle", "5")),
    Kind("csv", ()),
    Kind("texts", ("--record", "file")),
    Kind("keyed", ("--key-field", "id")),
    Kind("keyed", ("--key-field", "id", "--shuffle", "5")),
)


class Source:
    """A source that changes at random. `photos` are files to take photos from."""

    def __init__(self, root: Path, kind: Kind, rng: random.Random, photos: list[Path]) -> None:
        self.root, self.kind, self.rng, self.photos = root, kind, rng, photos
        self.number = 0
        for _ in range(rng.randint(8, 40)):
            self.add()
        if kind.name == "photos" and not kind.labelled:
            for name in "abc":  # so that no class goes
                self._write(root / name / "always.jpg")
        self.settle()

    def files(self) -> list[Path]:
        return sorted(
            path
            for path in self.root.rglob("*")
            if path.is_file() and path.name not in ("labels.csv", "always.jpg")
        )

    def add(self) -> None:
        self.number += 1
        endings = {
            "photos": "jpg",
            "lines": "jsonl",
            "keyed": "jsonl",
            "csv": "csv",
            "texts": "txt",
        }
        folder = (
            self.rng.choice("abc")
            if self.kind.name == "photos" and not self.kind.labelled
            else "day"
        )
        self._write(
            self.root
            / folder
            / f"{self.rng.randint(0, 9999):04}-{self.number}.{endings[self.kind.name]}"
        )

    def _write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        records = range(self.rng.randint(1, 30))
        if self.kind.name == "photos":
            data = (
                self.rng.choice(self.photos).read_bytes()
                if self.rng.random() > 0.05
                else b"no photo"
            )
        elif self.kind.name == "lines":
            rows = (
                {"text": f"{self.rng.random()}", "label": self.rng.choice("ab"), "n": n}
                for n in records
            )
            data = "".join(json.dumps(row) + "\n" for row in rows).encode()
        elif self.kind.name == "keyed":
            data = "".join(json.dumps(row) + "\n" for row in self._rows_with_keys(path)).encode()
        elif self.kind.name == "csv":
            data = (
                "n,text\n" + "".join(f"{n},{self.rng.choice('xyz')}\n" for n in records)
            ).encode()
        else:
            data = f"A text of {self.rng.random()}.\n".encode()
        path.write_bytes(data)
        self._date(path)

    def _rows_with_keys(self, path: Path) -> list[dict[str, str]]:
        """Return the rows of a file, without some of them, with new ones, in another order. A key
        is there once."""
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        rows = [row for row in rows if self.rng.random() > 0.2]
        rows += [
            {"id": f"{self.rng.getrandbits(60):x}", "text": f"{self.rng.random()}"}
            for _ in range(self.rng.randint(1, 15))
        ]
        self.rng.shuffle(rows)
        return rows

    def _date(self, path: Path) -> None:
        os.utime(path, ns=(time.time_ns(), self.rng.randint(1, 10**18)))

    def change(self) -> None:
        """Make one random change."""
        files = self.files()
        what = self.rng.choice(("add", "add", "remove", "change", "touch", "rename"))
        if what == "add" or len(files) < 4:
            self.add()
        elif what == "remove":
            self.rng.choice(files).unlink()
        elif what == "change":
            self._write(self.rng.choice(files))
        elif what == "touch":
            self._date(self.rng.choice(files))
        else:
            file = self.rng.choice(files)
            file.rename(file.with_stem(f"{file.stem}-r{self.number}"))

    def settle(self) -> None:
        """Write the labels of all inputs, where a file has them: some of them have changed."""
        if self.kind.labelled:
            rows = [
                f"{path.relative_to(self.root)},{'ab'[len(path.name) % 2]},{self.rng.random() < 0.1}"
                for path in self.files()
            ]
            (self.root / "labels.csv").write_text("\n".join(["file,label,odd", *rows, ""]))


def updates(photos: list[Path], times: int, scratch: Path) -> str:
    """Run the histories."""
    (scratch / FLIPS).write_text('[[transform]]\nname = "random_crop"\nsize = 20\n')
    counts, kills = Counter[str](), Counter[str]()
    for trial in range(times):
        rng = random.Random(trial)
        kind = rng.choice(KINDS)
        source, out, fresh = (scratch / name for name in ("in", "out", "fresh"))
        for folder in (source, out, fresh):
            shutil.rmtree(folder, ignore_errors=True)
        changing = Source(source, kind, rng, photos)
        split = rng.choice((("--split", "none"), ("--split", "train=0.6,val=0.4")))
        named = [str(scratch / FLIPS) if option == FLIPS else option for option in kind.options]
        options = [*named, *split, "--samples-per-shard", str(rng.randint(3, 30))]
        # an update goes on where most changed inputs are broken
        base = [*CONVERT, str(source), "--max-rejects", "100%"]
        pruned, split_of = set[str](), dict[str, str]()
        for step in range(STEPS):
            if step:
                for _ in range(rng.randint(0, 4)):
                    changing.change()
                changing.settle()
            workers = ["--workers", rng.choice("012")]
            killing(
                [*base, str(out), "--update", *options, *workers],
                rng,
                0.6,
                rng.choice((0, 0, 1, 2)),
                kills,
            )
            if rng.random() < 0.25 and not (
                kind.name in ("lines", "keyed", "csv") and "--shuffle" in kind.options
            ):
                killing([*SHARDCTL, "compact", str(out)], rng, 0.4, rng.choice((0, 1)), kills)
                counts["compactions"] += 1
            keys = sorted({key for key, _ in samples_of(out)})
            if rng.random() < 0.15 and kind.name in ("photos", "texts") and len(keys) > 6:
                key = rng.choice(keys)
                killing(
                    [*SHARDCTL, "prune", str(out), "--key", key],
                    rng,
                    0.4,
                    rng.choice((0, 1)),
                    kills,
                )
                pruned.add(key)
                counts["prunings"] += 1
            # one that is gone may come anew
            pruned &= {str(path.relative_to(source)) for path in source.rglob("*")}
            shutil.rmtree(fresh, ignore_errors=True)
            killing([*base, str(fresh), *options, "--workers", "0"], rng, 1, 0, kills)
            where = f"history {trial} ({kind}, {options}), step {step}"
            try:
                if not shardctl.verify(out).ok:
                    raise SystemExit(f"{where}: damaged")
                expected = {
                    name: values
                    for name, values in samples_of(fresh).items()
                    if name[0] not in pruned
                }
                alike = samples_of(out) == expected
            except ShardctlError as error:
                raise SystemExit(f"{where}: {error}") from error
            if not alike:
                raise SystemExit(
                    f"{where}: has other samples than a fresh conversion ({out}, {fresh})"
                )
            one, other = (json.loads((root / "manifest.json").read_text()) for root in (out, fresh))
            names = ("samples", "rejected", "class_counts", "fields", "jpeg") if not pruned else ()
            for name in ("inputs", "fingerprint", *names):
                if one.get(name) != other.get(name):
                    raise SystemExit(
                        f"{where}: another {name} than a fresh conversion: {one.get(name)}, "
                        f"{other.get(name)}"
                    )
            for (key, _), (name, _) in samples_of(out).items() if kind.name == "keyed" else ():
                if split_of.setdefault(key, name) != name:
                    raise SystemExit(f"{where}: {key} was in {split_of[key]}, and is in {name}")
            counts["updates"] += 1
        counts["histories"] += 1
    return f"{dict(counts)}, {count_of(kills)}: all as fresh"
