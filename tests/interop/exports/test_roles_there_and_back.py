"""Every role of a field comes back, with every setting, from the forms that give back the same
dataset; a flip moves it."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import examples
from dataset_files import tables_in
from handmade import generation_of
from hypothesis import given
from hypothesis import strategies as st
from in_this_process import convert, export
from made import FORMS, facts_of, table
from PIL import Image as Pictures
from pyarrow import parquet

import shardctl
from shardctl.errors import InputError, UsageError
from shardctl.format.layout import ENCODED_IMAGE, Layout
from shardctl.format.roles import Image, Label, Mask, Objects, Plain, Role, Roles, Tokens
from shardctl.format.shard import Compression
from shardctl.format.tables import MADE_BY
from shardctl.images.codecs import rle
from shardctl.making.write.fields import ShardLimits
from shardctl.making.write.writer import ShardSeries, finish
from shardctl.sources.annotations.objects import ITEMS, objects_type

HEIGHT, WIDTH, SAMPLES = 6, 8, 4
POINTS = ("nose", "left ear", "right ear")


def png(values: Any, palette: bool = False) -> bytes:
    target, made = io.BytesIO(), Pictures.fromarray(values)
    if palette:
        made.putpalette([(37 * number) % 256 for number in range(768)])
    made.save(target, "PNG")
    return target.getvalue()


def numbers_of(mask: Any) -> Any:
    """Return the numbers of an encoded mask as they are stored."""
    with Pictures.open(io.BytesIO(mask["bytes"])) as picture:
        return np.asarray(picture)


@dataclass
class Column:
    """A column of a drawn dataset: its type, its role, and its values."""

    type: pa.DataType
    role: Role | None
    values: list[Any]


@st.composite
def masks(draw: Any) -> Column:
    """Draw encoded masks of 8 or 16 bits, some missing, or raw ones."""
    bits, raw = draw(st.sampled_from([8, 16])), draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    arrays = [rng.integers(0, 3, (HEIGHT, WIDTH)).astype(f"uint{bits}") for _ in range(SAMPLES)]
    classes, nothing = (draw(st.none() | st.just(value)) for value in (("sky", "sea", "land"), 255))
    role = Mask("raw" if raw else "png", None, classes, nothing, bits)
    if raw:
        return Column(
            pa.fixed_shape_tensor(pa.from_numpy_dtype(arrays[0].dtype), (HEIGHT, WIDTH)),
            role,
            arrays,
        )
    palette = bits == 8 and draw(st.booleans())
    there = draw(st.lists(st.booleans(), min_size=SAMPLES, max_size=SAMPLES))
    values = [
        (png(each, palette), "mask.png") if some else None
        for each, some in zip(arrays, there, strict=True)
    ]
    return Column(ENCODED_IMAGE, role, values)


@st.composite
def pictures(draw: Any) -> Column:
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    return Column(
        ENCODED_IMAGE,
        Image("source"),
        [(png(rng.integers(0, 9, (5, 4, 3)).astype(np.uint8)), "b.png")] * SAMPLES,
    )


@st.composite
def marked(draw: Any) -> Column:
    """Draw objects with some of the members that there are, none of them, or no annotation."""
    members = draw(st.sets(st.sampled_from(sorted(ITEMS)))) | {"category", "bbox"}
    categories = draw(st.none() | st.just(("person", "dog")))
    known: dict[str, Any] = {"names": categories}
    if categories:
        known["ids"] = draw(st.none() | st.just((18, 1)))
        known["supercategories"] = draw(st.none() | st.just(("", "animal")))
    if "keypoints" in members:
        known |= {
            "keypoints": POINTS,
            "skeleton": draw(st.none() | st.just(((0, 1), (0, 2)))),
            "flip": (0, 2, 1),
        }
    mask = np.zeros((HEIGHT, WIDTH), np.uint8)
    mask[1:3, 2:7] = 1
    whole: dict[str, Any] = {
        "id": 7,
        "category": 1,
        "bbox": [0.5, 1.0, 2.0, 3.0],
        "area": 6.0,
        "iscrowd": True,
        "difficult": None,
        "truncated": False,
        "segmentation": [[1.0, 1.0, 4.0, 1.0, 4.0, 5.0]],
        "rle": {"size": [HEIGHT, WIDTH], "counts": rle.encode(mask)},
        "keypoints": [[1.0, 2.0, 2.0], [3.0, 3.0, 1.0], [0.0, 0.0, 0.0]],
    }
    counts = draw(st.lists(st.none() | st.integers(0, 2), min_size=SAMPLES, max_size=SAMPLES))
    values = [
        None if count is None else {name: [whole[name]] * count for name in members}
        for count in counts
    ]
    return Column(objects_type(members), Objects(**known), values)


@st.composite
def tokens(draw: Any) -> Column:
    given_ = [draw(st.none() | st.just(value)) for value in (50, 0, 1, "bytes")]
    types = [pa.list_(pa.uint16()), pa.list_(pa.int32()), pa.list_(pa.uint32(), 3)]
    values = [[1, 2, number] for number in range(SAMPLES)]
    return Column(draw(st.sampled_from(types)), Tokens(*given_), values)


@st.composite
def tensors(draw: Any) -> Column:
    type_ = pa.fixed_shape_tensor(
        draw(st.sampled_from([pa.float32(), pa.int64(), pa.uint8()])),
        draw(st.sampled_from([(2, 3), (6,), (1, 3, 2)])),
    )
    first = np.arange(6, dtype=type_.value_type.to_pandas_dtype()).reshape(type_.shape)
    return Column(type_, None, [first + number for number in range(SAMPLES)])


numbers = st.lists(st.integers(0, 2), min_size=SAMPLES, max_size=SAMPLES)
texts = st.lists(st.text("aé\n", max_size=4), min_size=SAMPLES, max_size=SAMPLES)
boxes = st.just([[1.0, 2.0, 3.0, float(number)] for number in range(SAMPLES)])


def columns_of(type_: pa.DataType, role: Any, values: Any) -> Any:
    return st.builds(Column, st.just(type_), role, values)


def labels(classes: tuple[str, ...]) -> Any:
    return columns_of(pa.int64(), (st.none() | st.just(classes)).map(Label), numbers)


def plain(type_: pa.DataType, part: str, values: Any) -> Any:
    return columns_of(type_, st.just(Plain(part)), values)


COLUMNS: Mapping[str, Any] = {
    "mask": masks(),
    "depth": masks(),
    "photo": pictures(),
    "objects": marked(),
    "things": marked(),
    "label": labels(("cat", "dog", "a b")),
    "colour": labels(("black", "white", "é")),
    "text": plain(pa.string(), "text", texts),
    "caption": plain(pa.string(), "text", texts),
    "score": plain(pa.int32(), "number", numbers),
    "box": plain(pa.list_(pa.float32(), 4), "boxes", boxes),
    "points": plain(pa.list_(pa.float32()), "keypoints", boxes),
    "tokens": tokens(),
    "array": tensors(),
    "plain": columns_of(
        pa.list_(pa.int16()), st.none(), numbers.map(lambda each: [each] * SAMPLES)
    ),
}


@st.composite
def datasets(draw: Any) -> dict[str, Column]:
    """Draw columns of several roles beside an image."""
    chosen = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=6, unique=True))
    rng = np.random.default_rng(0)
    images = [
        (png(rng.integers(0, 255, (HEIGHT, WIDTH, 3)).astype(np.uint8)), f"k{number}.png")
        for number in range(SAMPLES)
    ]
    return {
        "image": Column(ENCODED_IMAGE, Image("source", (HEIGHT, WIDTH, 3)), images),
        **{name: draw(COLUMNS[name]) for name in chosen},
    }


def write(root: Path, columns: Mapping[str, Column]) -> Path:
    """Write columns as a dataset of one split."""
    fields = [
        pa.field("key", pa.string()),
        *(pa.field(name, each.type) for name, each in columns.items()),
    ]
    roles = Roles({name: each.role for name, each in columns.items() if each.role is not None})
    layout = Layout("image", pa.schema(fields), roles)
    encoding, limits = Compression.parse("none"), ShardLimits(1 << 62, 3)
    with generation_of(root) as new:
        series = ShardSeries(new.root, new.id, layout, "train", encoding, limits)
        for number in range(SAMPLES):
            series.add((f"k{number}", *(each.values[number] for each in columns.values())), 1000)
        series.close()
        finish(new, layout, series.entries, encoding, {"made_by": MADE_BY})
    return root


def as_exported(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Return columns as they come back: raw masks are PNG by then."""
    return {
        name: _encoded(each) if isinstance(each.role, Mask) and each.role.store == "raw" else each
        for name, each in columns.items()
    }


def _encoded(column: Column) -> Column:
    assert isinstance(column.role, Mask)
    return Column(
        ENCODED_IMAGE,
        replace(column.role, store="png"),
        [(png(each), None) for each in column.values],
    )


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("form", FORMS)
@examples(15)
@given(datasets())
def test_every_role_comes_back_with_its_settings(form, columns):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "dataset", columns)
        export(folder / "dataset", folder / "out", form, on_loss="json")
        assert convert(folder / "out", folder / "back").rejected == 0
        expected = write(folder / "expected", as_exported(columns))
        before, after = facts_of(expected), facts_of(folder / "back")
        assert (after["schema"], after["fields"]) == (before["schema"], before["fields"])
        rows = zip(table(folder / "back").to_pylist(), table(expected).to_pylist(), strict=True)
        for row, wanted in rows:
            for field, value in wanted.items():
                role = columns[field].role if field in columns else None
                if isinstance(role, Mask) and role.store == "raw":  # the export encodes it
                    assert np.array_equal(numbers_of(row[field]), numbers_of(value))
                else:
                    assert repr(row[field]) == repr(value), field
        assert shardctl.verify(folder / "back", level="deep").findings == ()


def a_bit_of_all() -> dict[str, Column]:
    """Return masks of 8 and 16 bits, one of them with missing values, and objects with all that can
    be moved."""
    ramp = np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH)
    one = np.zeros((HEIGHT, WIDTH), np.uint8)
    one[1:3, 2:7] = 1
    objects = {
        "category": [1],
        "bbox": [[0.5, 1.0, 2.0, 3.0]],
        "segmentation": [[[1.0, 1.0, 4.0, 1.0, 4.0, 5.0]]],
        "rle": [{"size": [HEIGHT, WIDTH], "counts": rle.encode(one)}],
        "keypoints": [[[1.0, 2.0, 2.0], [3.0, 3.0, 1.0], [0.0, 0.0, 0.0]]],
    }
    nothing = {name: [] for name in objects}
    role = Objects(("person", "dog"), (18, 1), None, POINTS, ((0, 1),), (0, 2, 1))
    shown = Image("source", (HEIGHT, WIDTH, 3))
    image = (png(np.repeat(ramp[..., None], 3, axis=2).astype(np.uint8)), "k.png")
    mask = (png((ramp % 3).astype(np.uint8), palette=True), "m.png")
    deep = (png(ramp.astype(np.uint16) + 1000), "m.png")
    classes = Mask("png", None, ("a", "b", "c"), 255)
    return {
        "image": Column(ENCODED_IMAGE, shown, [image] * SAMPLES),
        "mask": Column(ENCODED_IMAGE, classes, [mask, None] * 2),
        "deep": Column(ENCODED_IMAGE, Mask("png", None, None, 9, 16), [deep] * SAMPLES),
        "things": Column(objects_type(objects), role, [objects, None, objects, nothing]),
    }


FLIP = {"store": "png", "transform": [{"name": "hflip", "p": 1}]}


@pytest.mark.parametrize("form", FORMS)
def test_a_recipe_that_mirrors_an_export_moves_all_that_is_in_the_images(form, tmp_path, out):
    write(tmp_path / "dataset", a_bit_of_all())
    export(tmp_path / "dataset", out, form, on_loss="json")
    assert convert(out, tmp_path / "back", recipe=FLIP).rejected == 0
    rows = table(tmp_path / "back").to_pylist()
    for row, before in zip(rows, table(tmp_path / "dataset").to_pylist(), strict=True):
        for name in ("image", "deep", "mask"):
            assert (row[name] is None) == (before[name] is None)
            if row[name] is not None:
                assert np.array_equal(numbers_of(row[name]), numbers_of(before[name])[:, ::-1])
    things = rows[0]["things"]
    assert things["bbox"] == [[5.5, 1.0, 2.0, 3.0]]
    assert things["keypoints"] == [[[7.0, 2.0, 2.0], [0.0, 0.0, 0.0], [5.0, 3.0, 1.0]]]
    assert things["segmentation"][0][0][::2] == [7.0, 4.0, 4.0]
    columns = rle.decode(things["rle"][0]["counts"], (HEIGHT, WIDTH)).any(axis=0)
    assert np.flatnonzero(columns).tolist() == [1, 2, 3, 4, 5]
    assert [row["things"] and len(row["things"]["bbox"]) for row in rows] == [1, None, 1, 0]


def test_masks_that_are_not_those_of_the_export_are_rejects(tmp_path, out):
    write(tmp_path / "dataset", a_bit_of_all())
    export(tmp_path / "dataset", out, "parquet")
    (path,) = (out / "data").glob("train-00000*")
    table = parquet.read_table(path)
    wrong = [((HEIGHT, WIDTH, 3), np.uint8), ((HEIGHT, WIDTH), np.uint16), ((3, 3), np.uint8)]
    masks = [png(np.zeros(shape, dtype)) for shape, dtype in wrong]
    values = pa.array([{"bytes": each, "path": None} for each in masks], ENCODED_IMAGE)
    parquet.write_table(table.set_column(table.column_names.index("mask"), "mask", values), path)
    described = out / "shardctl.json"
    said = json.loads(described.read_text())
    said["files"][f"data/{path.name}"]["bytes"] = path.stat().st_size
    described.write_text(json.dumps(said))
    made = convert(out, tmp_path / "back", recipe=FLIP, max_rejects=10)
    rejects = (tables_in(tmp_path / "back") / "rejects.jsonl").read_text()
    assert made.rejected == 3
    assert "this is an image of mode RGB" in rejects
    assert "its mask is of 3x3, and the image has 8x6" in rejects


def test_boxes_and_keypoints_by_role_are_no_objects_and_are_refused(tmp_path, out):
    regions = Column(pa.list_(pa.float32()), Plain("boxes"), [[1.0, 2.0, 3.0, 4.0]] * SAMPLES)
    columns = {"image": a_bit_of_all()["image"], "regions": regions}
    write(tmp_path / "dataset", columns)
    with pytest.raises(UsageError, match="flip moves the content of the images, but not regions: "):
        shardctl.open(tmp_path / "dataset").loader(1, flip=True)
    export(tmp_path / "dataset", out, "parquet")
    with pytest.raises(UsageError, match="hflip moves the content of the images, but not regions"):
        convert(out, tmp_path / "back", recipe=FLIP)


def unchanged(sample: dict[str, Any]) -> dict[str, Any]:
    return dict(sample)


@pytest.mark.parametrize("form", ["parquet", "webdataset"])
def test_tensors_stay_tensors_beside_functions(form, tmp_path, out, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent)
    type_ = pa.fixed_shape_tensor(pa.float32(), (2, 3))
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3) + number for number in range(SAMPLES)]
    write(tmp_path / "dataset", {"array": Column(type_, None, arrays)})
    export(tmp_path / "dataset", out, form)
    steps = [{"name": "custom", "target": "test_roles_there_and_back:unchanged"}]
    convert(out, tmp_path / "back", recipe={"transform": steps})
    back = shardctl.open(tmp_path / "back")
    assert back.schema.field("array").type == type_
    assert np.array_equal([sample["array"] for sample in back], arrays)


def test_exports_of_two_datasets_are_refused_where_they_say_different_things(tmp_path, out):
    columns = a_bit_of_all()
    write(tmp_path / "one", columns)
    columns["mask"].role = Mask("png", None, ("c", "b", "a"), 255)
    write(tmp_path / "other", columns)
    for name in ("one", "other"):
        export(tmp_path / name, out / name, "parquet")
    with pytest.raises(
        InputError, match=r"exports that differ in mask \(shardctl.json\); convert each"
    ):
        convert(out, tmp_path / "back", split="none")
