from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from dataset_files import shards_in, tables_in
from in_this_process import convert
from making import converted, mask, photo, photos, rejects, samples, values_of
from PIL import Image
from places import file_at
from raw_png import png

import shardctl
from shardctl.errors import DatasetError, InputError, UsageError
from shardctl.format.tables import open_table


def stored(out: Path, key: str) -> tuple[str, np.ndarray]:  # type: ignore[type-arg]
    image = Image.open(io.BytesIO(samples(out)[key]["mask"]["bytes"]))
    return image.mode, np.asarray(image)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return photos(tmp_path / "in", "images/a.jpg", "images/b.jpg")


def test_the_bytes_of_a_mask_are_kept_and_one_that_is_missing_is_null(out, source):
    path = mask(source / "masks" / "a.png", values_of((8, 6)))
    (source / "masks" / "classes.txt").write_text("sky\nroad\ncar\n")
    said = converted(source, out, f"masks+ignore=255:{source}/masks").notices
    found = {key: sample["mask"] for key, sample in samples(out).items()}
    kept = {"bytes": path.read_bytes(), "path": "a.png"}
    assert found == {"images/a.jpg": kept, "images/b.jpg": None}, "masks are no inputs"
    role = shardctl.open(out).manifest.fields["mask"]
    assert (role["store"], role["names"], role["ignore"]) == ("source", ["sky", "road", "car"], 255)
    assert "1 of 2 inputs without mask: it is null there" in str(said)
    assert shardctl.verify(out, level="deep").ok


@pytest.mark.parametrize(("mode", "most"), [("P", 3), ("L", 256), ("1", 2), ("I;16", 60000)])
@pytest.mark.parametrize("orientation", [6, 2])
def test_a_mask_of_the_stored_image_is_turned_with_it(tmp_path, out, mode, most, orientation):
    photo(tmp_path / "in" / "a.jpg", (8, 6), orientation)
    values = values_of((8, 6), most) * (255 if mode == "1" else 1)
    mask(tmp_path / "masks" / "a.png", values, mode)
    # by its size alone a mirrored one is not known
    frame = "auto" if orientation == 6 else "stored"
    converted(tmp_path / "in", out, f"masks:{tmp_path}/masks", annotation_frame=frame)
    kept, found = stored(out, "a.jpg")
    expected = np.rot90(values, -1) if orientation == 6 else values[:, ::-1]
    assert kept == mode
    assert np.array_equal(found, expected if mode != "1" else expected > 0)


def test_a_mask_of_another_size_or_of_colours_or_broken_rejects_its_image(tmp_path, out):
    source = photos(tmp_path / "in", "a.jpg", "b.jpg", "c.jpg", "d.jpg")
    mask(tmp_path / "masks" / "a.png", values_of((4, 3)))
    Image.new("RGB", (8, 6)).save(tmp_path / "masks" / "b.png")
    good = mask(tmp_path / "masks" / "d.png", values_of((8, 6))).read_bytes()
    (tmp_path / "masks" / "c.png").write_bytes(good[:50])
    converted(source, out, f"masks:{tmp_path}/masks", max_rejects="100%")
    (_, size), (error, _), (broken, _) = rejects(out).values()
    assert size == "its mask's pixels are of an image of 4x3, and it has 8x6"
    assert error == "not-a-mask"
    assert broken in ("truncated", "damaged")
    assert list(samples(out)) == ["d.jpg"]


@pytest.mark.parametrize("mode", ["L", "I;16"])
@pytest.mark.parametrize("recipe", [{}, {"transform": [{"name": "resize", "size": "4x3"}]}])
def test_numbers_without_a_name_reject_their_image(mode, recipe, tmp_path, out):
    source = photos(tmp_path / "in", "a.jpg", "b.jpg", "c.jpg", "d.jpg")
    for name, number in zip("abcd", (2, 3, 255, 254), strict=True):
        values = np.zeros((6, 8), int)
        values[5, 7] = number
        mask(tmp_path / "masks" / f"{name}.png", values, mode)
    options = {"recipe": recipe, "max_rejects": 9}
    (tmp_path / "masks" / "classes.txt").write_text("sky\nroad\ncar\n")
    converted(source, out, f"masks+ignore=255:{tmp_path}/masks", **options)
    assert list(samples(out)) == ["a.jpg", "c.jpg"]
    assert "has the number 3, and there are names for 0 to 2" in rejects(out)["b.jpg"][1]
    (tmp_path / "masks" / "classes.txt").unlink()
    named = converted(source, tmp_path / "new", f"masks:{tmp_path}/masks", **options)
    assert named.rejected == 0


def test_masks_count_for_what_the_dataset_is_made_of(tmp_path, out, source):
    path = mask(tmp_path / "masks" / "a.png", values_of((8, 6)))
    spec = f"masks:{tmp_path}/masks"
    converted(source, out, spec)
    assert converted(source, out, spec).status == "up-to-date"
    columns = open_table(*file_at(tables_in(out) / "files.arrow"))["columns"].to_pylist()
    assert columns[0]["shardctl.mask"]["path"] == "../masks/a.png", "from the source on"
    before = path.read_bytes()
    mask(path, 2 - values_of((8, 6)))
    with pytest.raises(DatasetError, match="labels"):
        converted(source, out, spec)
    shard = next(iter(shards_in(out)))
    intact = shard.read_bytes()
    shard.write_bytes(b"x")
    assert shardctl.repair(out).status == "damaged", "the mask has changed"
    path.write_bytes(before)
    shardctl.repair(out)
    assert shard.read_bytes() == intact
    shard.write_bytes(b"x")
    mask(path, 2 - values_of((8, 6)))
    shardctl.repair(out, drop_lost=True)
    assert list(samples(out)) == ["images/b.jpg"]
    assert rejects(out)["images/a.jpg"][0] == "lost"


def test_wrong_masks_are_refused_before_anything_is_written(tmp_path, out, source):
    with pytest.raises(InputError, match="masks: no such file or folder"):
        converted(source, out, f"masks:{tmp_path}/masks")
    (tmp_path / "masks").mkdir()
    with pytest.raises(InputError, match="holds no masks"):
        converted(source, out, f"masks:{tmp_path}/masks")
    mask(tmp_path / "masks" / "x.png", values_of((8, 6)))
    with pytest.raises(InputError, match="none of the 1 masks is called as an input"):
        converted(source, out, f"masks:{tmp_path}/masks")
    with pytest.raises(UsageError, match="it is 0 to 65535"):
        converted(source, out, f"masks+ignore=-1:{tmp_path}/masks")


def test_only_the_folder_of_the_masks_is_left_out_and_not_that_of_another_source(
    tmp_path,
    out,
):
    one, two = photos(tmp_path / "one", "a.png"), photos(tmp_path / "two", "masks/z.png")
    mask(one / "masks" / "a.png", values_of((8, 6)))
    convert([one, two], out, labels=f"masks:{one}/masks")
    assert set(samples(out)) == {"a.png", "masks/z.png"}


@pytest.mark.parametrize("own", [3, 6])
def test_a_mask_that_exif_turns_itself_is_upright_whatever_the_others_are(tmp_path, out, own):
    values, exif = values_of((8, 6)), Image.Exif()
    orientations = {"own": own, "stored": 6, "half": 3}
    for name, orientation in orientations.items():
        photo(tmp_path / "in" / f"{name}.jpg", (8, 6), orientation)
        path = mask(tmp_path / "masks" / f"{name}.png", values)
        if name == "own":
            exif[0x0112] = own
            Image.open(path).save(path, exif=exif)
    converted(tmp_path / "in", out, f"masks:{tmp_path}/masks")
    for name, orientation in orientations.items():
        kept, found = stored(out, f"{name}.jpg")
        assert kept == "P"
        assert np.array_equal(found, np.rot90(values, -1 if orientation == 6 else 2)), name
    image = Image.open(io.BytesIO(samples(out)["own.jpg"]["mask"]["bytes"]))
    assert image.getexif().get(0x0112, 1) == 1


@pytest.mark.parametrize(
    ("where", "option"), [("in", "masks+suffix=_mask"), ("masks", "masks+suffix=_mask+ignore=255")]
)
def test_masks_may_have_an_end_of_their_own(tmp_path, out, where, option):
    photos(tmp_path / "in", "a.png", "x/a.png", "b_mask.png.jpg")
    for name in ("a", "x/a"):
        mask(tmp_path / where / f"{name}_mask.png", values_of((8, 6)))
    converted(tmp_path / "in", out, f"{option}:{tmp_path / where}")
    found = {key: sample["mask"] is not None for key, sample in samples(out).items()}
    assert found == {"a.png": True, "x/a.png": True, "b_mask.png.jpg": False}


def test_masks_and_images_of_cityscapes(tmp_path, out):
    source = photos(tmp_path / "leftImg8bit", "val/ulm/1_leftImg8bit.png")
    for name in ("val/ulm/1", "val/ulm/2"):
        for end in ("labelIds", "color"):
            mask(tmp_path / "gtFine" / f"{name}_gtFine_{end}.png", values_of((8, 6)))
    option = f"masks+suffix=_gtFine_labelIds+image-suffix=_leftImg8bit:{tmp_path}/gtFine"
    said = converted(source, out, option).notices
    assert [sample["mask"]["path"] for sample in samples(out).values()] == ["1_gtFine_labelIds.png"]
    unused = "1 mask without an image among the inputs (val/ulm/2_gtFine_labelIds.png)"
    assert unused in str(said)
    with pytest.raises(InputError, match=r"gtFine: holds no masks \(_mask.png\)"):
        converted(source, tmp_path / "other", f"masks+suffix=_mask:{tmp_path}/gtFine")


def test_a_grey_mask_of_four_bits_keeps_its_numbers_when_it_is_turned(tmp_path, out):
    photo(tmp_path / "in" / "a.jpg", (8, 6), 6)
    values = values_of((8, 6), 14)
    (tmp_path / "masks").mkdir()
    (tmp_path / "masks" / "a.png").write_bytes(png(values, 4))
    converted(tmp_path / "in", out, f"masks:{tmp_path}/masks")
    assert np.array_equal(stored(out, "a.jpg")[1], np.rot90(values, -1))
