"""YOLO: a text file for each image, with a line for each object: boxes, polygons, keypoints, or
turned boxes."""

from __future__ import annotations

import math
from codecs import BOM_UTF8
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from shardctl.errors import InputError, UsageError
from shardctl.format.roles import Objects
from shardctl.images.defaults import TASKS
from shardctl.sources.annotations.base import AnnotationRule, Annotations, Source
from shardctl.sources.annotations.inputs import (
    AT_ONCE,
    NAMES,
    YAML,
    PathTable,
    Place,
    ToldSplits,
    reading,
    stem,
)
from shardctl.sources.annotations.objects import BEYOND, Marked, ObjectsWriter
from shardctl.sources.annotations.per_image import (
    LARGEST,
    Digest,
    match_all,
    match_files,
    names_of_classes,
    read_objects,
    said_of_others,
    walked,
)
from shardctl.sources.files import exists, is_folder, read_small, resolved
from shardctl.sources.walk import FoundFile, suffix_of
from shardctl.system.locations import join, name_of, normal, parent_of, path_below
from shardctl.system.packages import needed
from shardctl.system.text import composed, printable, some

SPLITS = ("train", "val", "test", "minival")

KEYS = ("path", "names", "nc", "task", "download")
"""What a data.yaml has beside the folders of its splits."""


MOST_VALUES = 1_000_000
"""Values that a data.yaml may have."""

OVERSHOOT = 0.01
"""How far places may lie outside of 0 to 1. Tools write roundings such as 1.0000001; Ultralytics
takes up to 0.01, too."""


@dataclass(frozen=True)
class Setup:
    """What is known of the labels beside the lines. `points` are how many keypoints an object has,
    of how many numbers each.

    `missing` are folders of labels that are not there, of images that are; `absent` all places that
    were looked for and are not there. `splits` are those of a
    data.yaml.
    """

    folders: Sequence[str]
    names: tuple[str, ...] | None = None
    task: str | None = None
    points: tuple[int, int] | None = None
    flip: tuple[int, ...] | None = None
    point_names: tuple[str, ...] | None = None
    missing: Sequence[str] = ()
    absent: Sequence[str] = ()
    splits: ToldSplits | None = None


def read(
    sources: Sequence[Source], inputs: PathTable, rule: AnnotationRule, scratch: Path
) -> Annotations:
    """Read the lines of all images. A wrong one rejects its image; an image without a file has
    no objects."""
    given, digest = sources[0].path, Digest()
    is_yaml = suffix_of(name_of(given)) in YAML
    if not is_yaml and rule.task == "pose":
        raise UsageError(
            "--yolo-task pose needs a data.yaml with kpt_shape: --labels yolo:data.yaml"
        )
    setup = _read_yaml(given, digest, rule) if is_yaml else Setup((given,), task=rule.task)
    found = {folder: walked(folder, (".txt", ".names"), "labels") for folder in setup.folders}
    known = {} if setup.names is None else {given: setup.names}
    setup = replace(
        setup, names=names_of_classes(chain(*found.values()), setup.folders, digest, known)
    )
    labelled = {
        folder: [f for f in files if f.suffix == ".txt" and f.name not in NAMES]
        for folder, files in found.items()
    }

    @cache
    def begin_of(folder: str) -> str:
        is_split = name_of(parent_of(folder)) == "labels"
        return f"{name_of(folder)}/" if is_split else ""

    def called(labels: FoundFile) -> str:
        # their path from their folder on, with its name if it is of a split, labels/val
        folder = labels.opened.removesuffix(labels.path).rstrip("/")
        return f"{begin_of(folder)}{labels.path}"

    files = list(chain(*labelled.values()))
    match = partial(match_files, called=called)
    matched, lost = match_all(files, inputs, given, "labels", ".txt", match)
    absent = list(setup.absent)
    if is_yaml:
        others = set(range(len(inputs))).difference(matched)
        absent += _refuse_unread(inputs, sorted(others), setup.folders, printable(given))

    def parsed(row: int, data: bytes) -> tuple[Marked, None]:
        return parse(data, setup, matched[row]), None

    rows = np.arange(len(inputs))
    writer = ObjectsWriter(scratch / "yolo.arrow", rule, relative=True)
    all_plain = partial(_all_plain, setup=setup)
    faults = read_objects(writer, rows.tolist(), matched, digest, parsed, all_plain)
    notices = said_of_others(lost, matched, inputs, "label file", "background, with no object")
    empty = [*(folder for folder in labelled if not labelled[folder]), *setup.missing]
    if empty:
        notices.append(
            f"no labels in {some(empty)}: the images of this split are background, with no object"
        )
    if not is_yaml and exists(told := join(given, "data.yaml")):
        notices.append(f"{printable(told)} is not read, as its folder is given")
    role = Objects(setup.names, keypoints=setup.point_names, flip=setup.flip)
    return writer.finish(
        rows,
        role,
        digests=(digest.hex(),),
        faults=faults,
        notices=notices,
        splits=setup.splits,
        places=(given, *setup.folders, *absent),
    )


def _refuse_unread(
    inputs: PathTable, rows: Iterable[int], folders: Sequence[str], shown: str
) -> list[str]:
    """Raise InputError if one of some inputs has a file of labels in none of the folders that were
    read. Return where these would be."""
    known, looked_for = list(map(resolved, folders)), list[str]()

    @lru_cache(AT_ONCE)
    def unread(root: int, folder: str) -> str:
        labels = _labels_of(join(inputs.bases[root], folder))
        looked_for.append(labels)
        return (
            labels
            if is_folder(labels) and all(path_below(labels, each) is None for each in known)
            else ""
        )

    paths, roots = inputs.table["path"], inputs.table["root"]
    for row in rows:
        image = paths[row].as_py()
        folder = unread(roots[row].as_py(), parent_of(image))
        if folder and exists(labels := join(folder, f"{stem(name_of(image))}.txt")):
            raise InputError(
                f"{shown}: names no folder with {printable(image)}, whose labels are "
                f"{printable(labels)}; add it"
            )
    return looked_for


# --- lines ---


def parse(data: bytes, setup: Setup, file: str = "") -> Marked:
    """Return the objects of one image, places as shares of its size.

    Raises ValueError, the end of a message; InputError for a line that may be a polygon of four
    points, or a turned box: it takes a task to tell.
    """
    objects: Marked = {name: [] for name in ("category", "bbox", "segmentation", "keypoints")}
    try:
        lines = _lines_of(data)
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start}: not UTF-8; recode the file") from None
    if boxes := _all_plain([data], setup):
        return boxes[0]
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                category, *values = _numbers_in(line, setup)
                places = _places(values, setup, f"{file}: line {number}")
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from None
            for items, item in zip(objects.values(), (int(category), *places), strict=True):
                items.append(item)
    return {
        name: items for name, items in objects.items() if name in ("category", "bbox") or any(items)
    }


def _lines_of(data: bytes) -> list[str]:
    return data.removeprefix(BOM_UTF8).decode().splitlines()


def _all_plain(files: Sequence[bytes], setup: Setup) -> tuple[Marked, None, list[int]] | None:
    """Return the objects of some images, no size, and the number of objects of each, if all lines
    are boxes, and right, as in most files; None for others."""
    if setup.task not in (None, "detect"):
        return None
    try:
        lines = [list(filter(str.strip, _lines_of(data))) for data in files]
        words, counts = " ; ".join(chain.from_iterable(lines)).split(), list(map(len, lines))
        if words[5::6] != [";"] * (sum(counts) - 1) or len(words) != sum(counts) * 6 - 1:
            return None
        del words[5::6]
        values = np.fromiter(map(float, words), np.float64).reshape(-1, 5)
    except ValueError:
        return None
    if not np.abs(values).max() < BEYOND:  # or one is no number
        return None
    category, sides, most = values[:, 0], values[:, 3:], len(setup.names or ()) or BEYOND
    low = values[:, 1:3] - sides / 2
    places, high = low + sides / 2, 1 + OVERSHOOT
    if (
        (category != np.floor(category)).any()
        or not 0 <= category.min() <= category.max() < most
        or not -OVERSHOOT <= places.min() <= places.max() <= high
        or not 0 <= sides.min() <= sides.max() <= high
    ):
        return None
    boxes = np.hstack([low, sides]).tolist()
    return {"category": category.astype(int).tolist(), "bbox": boxes}, None, counts


def _numbers_in(line: str, setup: Setup) -> list[float]:
    """Return the numbers of a line, the first of which is that of a class. Raises ValueError."""
    try:
        values = list(map(float, line.split()))
    except ValueError:
        shown = printable(line.strip()[:60])
        raise ValueError(f"it has something else than numbers ({shown})") from None
    if not (math.isfinite(sum(values)) and max(map(abs, values)) < BEYOND):
        raise ValueError("a number is not finite, or beyond any image")
    most = math.inf if setup.names is None else len(setup.names)
    if not values[0].is_integer() or not 0 <= values[0] < most:
        known = f"; the classes are 0 to {most - 1}" if setup.names is not None else ""
        raise ValueError(f"{line.split()[0]} is not the number of a class{known}")
    return values


def _places(
    values: list[float], setup: Setup, where: str
) -> tuple[list[float], list[list[float]], list[list[float]]]:
    """Return the box (x, y, width, height), the polygon, if any, and the keypoints of a line, whose
    class has been taken off. Raises ValueError, InputError.

    A corner of a turned box may lie far outside of the image: for these the box around it counts,
    as for Ultralytics.
    """
    count, task, takes = len(values), setup.task, ""
    number, each = setup.points or (0, 0)
    if task == "pose":
        if count != 4 + number * each:
            takes = (
                f"task pose takes {5 + number * each} numbers (a class, a box and {number} "
                f"keypoints of {each})"
            )
    elif task == "obb":
        if count != 8:
            takes = "task obb takes 9 (a class and four corners)"
    elif task == "detect" and count != 4:
        takes = "it takes 5 (a class and a box)"
    elif count != 4 and (count % 2 or count < 6):
        takes = "it takes 5 (a box), or an odd number from 7 on (a polygon)"
    if takes:
        pose = f"; {NO_SHAPE}" if takes.startswith("it") and count > 4 and not setup.points else ""
        raise ValueError(f"{count + 1} numbers, and {takes}{pose}")
    if count == 8 and task is None:
        raise InputError(
            f"{printable(where)}: nine numbers may be a polygon of four points or a turned box; give "
            "--yolo-task segment or --yolo-task obb"
        )
    points = []
    if task == "pose" or count == 4:
        x, y, width, height = values[:4]
        bbox, polygon = [x - width / 2, y - height / 2, width, height], []
        for place in range(4, count, each or 1):
            x, y, *seen = values[place : place + each]
            seen = seen or [2.0 if x or y else 0.0]  # one of two numbers is there unless both are 0
            points.append([x, y, *seen] if seen[0] > 0 else [0.0, 0.0, 0.0])
    else:
        xs, ys, polygon = values[::2], values[1::2], [values]
        bbox = [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]
    x, y, width, height = bbox
    whole = not polygon or task == "obb"
    places = [x + width / 2, y + height / 2] if whole else values
    places = places + [place for point in points if point[2] > 0 for place in point[:2]]
    odd = stray_share(places, [width, height] if whole else [])
    if odd is not None:
        # Points that are read as a polygon may be a box with keypoints, whose v is 2.
        pose = f"; {NO_SHAPE}" if polygon and task is None and count > 8 else ""
        raise ValueError(
            f"{odd:g} is not a share of the image's size, 0 to 1, as all numbers of YOLO are{pose}"
        )
    return bbox, polygon, points


NO_SHAPE = "if it has keypoints, give a data.yaml that says kpt_shape"
"""What to do about a line of keypoints that was read as something else."""


def stray_share(places: Sequence[float], lengths: Sequence[float]) -> float | None:
    """Return the first place or length that cannot be a share of the image's size, None if all
    can."""
    odd = [place for place in places if not -OVERSHOOT <= place <= 1 + OVERSHOOT]
    odd += [length for length in lengths if not 0 <= length <= 1 + OVERSHOOT]
    return odd[0] if odd else None


# --- what is known beside the lines ---


def _read_yaml(file: str, digest: Digest, rule: AnnotationRule) -> Setup:
    """Read a data.yaml. Raises InputError."""
    yaml = needed("yaml", "yolo", "a data.yaml")
    shown = printable(file)
    with reading(file):
        data = read_small(file, LARGEST)
    digest.add(name_of(file), data)
    try:
        # All values are the texts that they are: a class may be called no, or 012. Only << is more.
        resolvers = {"<": yaml.SafeLoader.yaml_implicit_resolvers["<"]}
        loader = type("Texts", (yaml.SafeLoader,), {"yaml_implicit_resolvers": resolvers})
        said = loader(data).get_single_data()
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"{shown}: not YAML ({' '.join(str(error).split())})") from None
    if not isinstance(said, dict):
        raise InputError(f"{shown}: not a data.yaml, which has names, train and val")
    if not _is_small(said):
        raise InputError(
            f"{shown}: has over {MOST_VALUES:,} values (aliases count each time); make it smaller"
        )
    said = {
        name: value for name, value in said.items() if str(value).lower() not in ("", "~", "null")
    }
    names = _names_of(said.get("names"), shown)
    if names is not None and said.get("nc", str(len(names))) != str(len(names)):
        raise InputError(
            f"{shown}: nc is {printable(said['nc'])}, and there are {len(names):,} names"
        )
    points, flip = _shape_of(said.get("kpt_shape"), said.get("flip_idx"), shown)
    task = rule.task or said.get("task") or ("pose" if points else None)
    if task is not None and task not in TASKS:
        raise InputError(f"{shown}: the task {printable(task)} is not one of {', '.join(TASKS)}")
    if task == "pose" and points is None:
        raise InputError(f"{shown}: task pose needs kpt_shape, for instance [17, 3]")
    given = said.get("kpt_names")
    if isinstance(given, dict):  # by class: those of the only or first one
        given = next(iter(given.values()), None)
    point_names = tuple(map(str, given if isinstance(given, list) else ()))
    if points and not len(set(point_names)) == len(point_names) == points[0]:
        point_names = tuple(map(str, range(points[0])))
    folders, missing, absent, places = _folders_of(said, file, shown)
    return Setup(
        folders,
        names,
        task,
        points,
        flip,
        point_names if points else None,
        missing,
        absent,
        ToldSplits(shown, places),
    )


def _numbers(given: Any) -> list[int]:
    """Return a list of texts as whole numbers, none for anything else."""
    try:
        return list(map(int, given)) if isinstance(given, list) else []
    except (TypeError, ValueError):
        return []


def _is_small(said: Any) -> bool:
    """Return whether there are not too many values: aliases of aliases may stand for billions, or
    for themselves."""
    left, count = [said], 0
    while left:
        value = left.pop()
        count += 1
        if isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, list | tuple | set):
            left += value
        if count + len(left) > MOST_VALUES:
            return False
    return True


def _names_of(given: Any, shown: str) -> tuple[str, ...] | None:
    if given is None:
        return None
    if isinstance(given, dict):
        if set(given) != set(map(str, range(len(given)))):
            raise InputError(f"{shown}: names must be numbered 0 to {len(given) - 1} without gaps")
        given = [given[str(number)] for number in range(len(given))]
    given = given if isinstance(given, list) else []
    names = [composed(name) for name in given if isinstance(name, str)]
    if not names or len({"", *names}) <= len(given):
        raise InputError(f"{shown}: names are a list of different names, or numbers with names")
    return tuple(names)


def _shape_of(
    shape: Any, flip: Any, shown: str
) -> tuple[tuple[int, int] | None, tuple[int, ...] | None]:
    if shape is None:
        return None, None
    points, *each = _numbers(shape) or [0]
    if not 0 < points < 2**16 or each not in ([2], [3]):
        raise InputError(
            f"{shown}: kpt_shape is a number of keypoints and 2 or 3, for instance [17, 3]"
        )
    numbers = _numbers(flip)
    if flip is not None and sorted(numbers) != list(range(points)):
        raise InputError(f"{shown}: flip_idx has each of the {points} keypoints once")
    return (points, each[0]), tuple(numbers) or None


def _folders_of(
    said: dict[str, Any], file: str, shown: str
) -> tuple[list[str], list[str], list[str], dict[str, list[Place]]]:
    """Return the folders of labels, by those of the images: `images` in their paths is `labels`;
    those that are missing; all places that are not there; and where the images of each split
    are."""
    base = above = parent_of(file)
    if isinstance(said.get("path"), str):
        base = next(filter(is_folder, (join(base, said["path"]), normal(said["path"]))), base)

    def places_of(place: str) -> list[str]:
        # Roboflow writes ../train/images for what is right beside the file
        return [join(base, place), join(above, place), join(above, place.removeprefix("../"))]

    folders, tried = list[str](), list[str]()
    missing, absent = list[str](), list[str]()
    places: dict[str, list[Place]] = {}
    for split in (*SPLITS, *(name for name in said if name not in (*SPLITS, *KEYS))):
        given = said.get(split)
        if split not in SPLITS:  # that of a split with a name of its own is a folder
            is_split = isinstance(given, str) and any(map(is_folder, places_of(given)))
            given = given if is_split else None
        for place in map(str, given if isinstance(given, list) else [given] if given else []):
            tried.append(place)
            images = next(
                (each for each in places_of(place) if exists(each) or is_folder(each)), None
            )
            if images is None:
                missing.append(f"{place} (not there)")
                absent += places_of(place)
                continue
            if split != "minival":  # a part of val
                places.setdefault(split, []).append(images)
            found = [images]
            if not is_folder(images):  # a text file that lists images
                with reading(images):
                    lines = read_small(images, LARGEST).decode("utf-8", "replace").splitlines()
                found = [parent_of(join(base, line.strip())) for line in lines if line.strip()]
            folders += map(_labels_of, dict.fromkeys(found))
    folders = list(dict.fromkeys(folders))
    lost = [folder for folder in folders if not is_folder(folder)]
    missing += lost
    absent += lost
    folders = list(filter(is_folder, folders))
    if not folders:
        named = f" ({', '.join(map(printable, tried))})" if tried else ""
        raise InputError(f"{shown}: its train, val and test lead to no folder of labels{named}")
    outer = [
        folder
        for folder in folders
        if not any(other != folder and path_below(folder, other) is not None for other in folders)
    ]
    return outer, missing, absent, places


def _labels_of(images: str) -> str:
    above, there, below = f"/{images}/".rpartition("/images/")
    return f"{above}/labels/{below}"[1:-1] if there else images
