"""Reading annotations that are one file for each image, beside a loop that reads the same files.

    python scripts/bench/bench_annotations.py [--files 20000] [--runs 5] [--json FILE]

VOC, YOLO and captions, five boxes in each file. Both are in one process, in turn. Nothing is
converted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
from harness import in_turn, medians_of, options_of, save, scratch, seconds, tell

from shardctl.sources.annotations import AnnotationRule, PathTable, Source, read_annotations
from shardctl.sources.files import SourceRoot

BOX = (
    "<object><name>{}</name><truncated>0</truncated><bndbox><xmin>{}</xmin><ymin>{}</ymin>"
    "<xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"
)
VOC = "<annotation><filename>{}.jpg</filename><size><width>640</width><height>480</height></size>{}</annotation>"


def write(folder: Path, files: int) -> None:
    """Write the files of all formats."""
    rng = np.random.default_rng(0)
    for form in FORMATS:
        (folder / form).mkdir()
    for number in range(files):
        boxes = rng.integers(1, 200, (5, 4)).tolist()
        marked = [BOX.format("abc"[x % 3], x, y, x + w, y + h) for x, y, w, h in boxes]
        shares = [f"{x % 3} {x / 640} {y / 480} {w / 640} {h / 480}\n" for x, y, w, h in boxes]
        name = f"{number:06d}"
        (folder / "voc" / f"{name}.xml").write_text(VOC.format(name, "\n".join(marked)))
        (folder / "yolo" / f"{name}.txt").write_text("".join(shares))
        (folder / "captions" / f"{name}.txt").write_text(f"picture {number} of some things\n")


def texts(folder: Path) -> Iterator[str]:
    for name in sorted(os.listdir(folder)):
        with open(f"{folder}/{name}") as file:
            yield file.read()


def read_voc(folder: Path) -> object:
    found = []
    for text in texts(folder):
        for each in ElementTree.XML(text).iter("object"):
            box = each.find("bndbox")
            assert box is not None, "all have one"
            found.append((each.findtext("name"), [float(side.text or "") for side in box]))
    return found


def read_yolo(folder: Path) -> object:
    return [[[*map(float, line.split())] for line in text.splitlines()] for text in texts(folder)]


def read_captions(folder: Path) -> object:
    return [text.strip() for text in texts(folder)]


FORMATS = {"voc": read_voc, "yolo": read_yolo, "captions": read_captions}


def main() -> None:
    options = options_of(__doc__, files=20_000, runs=5).parse_args()
    found = {}
    with scratch() as folder:
        write(folder, options.files)
        paths = pa.array([f"{number:06d}.jpg" for number in range(options.files)])
        root = pa.array(np.zeros(options.files, np.int32))
        table, roots = pa.table({"path": paths, "root": root}), (SourceRoot(str(folder)),)

        def timed(form: str) -> dict[str, list[float]]:
            place, bare = folder / form, FORMATS[form]

            def ours() -> object:
                source, inputs = Source(form, str(place)), PathTable(roots, table)
                return read_annotations([source], inputs, AnnotationRule(), folder)

            of = {
                f"{form}, bare": lambda: seconds(lambda: bare(place)),
                form: lambda: seconds(ours),
            }
            return in_turn(of, options.runs)

        for form in FORMATS:
            took = timed(form)
            tell(took)
            bare, ours = medians_of(took).values()
            print(f"{'':44} {ours / bare:12.2f} of bare", flush=True)
            found[form] = medians_of(took)
    save(options.json, found)


if __name__ == "__main__":
    main()
