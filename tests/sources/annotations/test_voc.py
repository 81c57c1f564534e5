from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from making import converted, photos, rejects, samples

import shardctl
from shardctl.errors import InputError
from shardctl.sources.annotations.voc import _parse_quickly, _places, parse

OBJECT = """<object><name>{name}</name><pose>Left</pose><truncated>1</truncated><difficult>0</difficult>
<bndbox><xmin>{0}</xmin><ymin>{1}</ymin><xmax>{2}</xmax><ymax>{3}</ymax></bndbox>
<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part></object>"""


def voc(*objects: str, size: tuple[int, int] = (8, 6), filename: str = "x.jpg") -> str:
    width, height = size
    return f"""<?xml version="1.0"?><annotation><folder>f</folder><filename>{filename}</filename>
<size><width>{width}</width><height>{height}</height><depth>3</depth></size>{"".join(objects)}</annotation>"""


def marked(name: str, *corners: float) -> str:
    return OBJECT.format(*corners, name=name)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = photos(tmp_path / "in", "JPEGImages/a.png", "JPEGImages/b.png", "JPEGImages/c.png")
    (root / "Annotations").mkdir()
    (root / "Annotations" / "a.xml").write_text(
        voc(marked("dog", 1, 1, 8, 6), marked("cat", 2, 3.5, 4, 5))
    )
    (root / "Annotations" / "b.xml").write_text(voc())
    return root


def test_corners_count_pixels_from_1_and_the_last_one_is_within(out, source):
    said = converted(source, out, f"voc:{source}").notices
    found = {key: sample["objects"] for key, sample in samples(out).items()}
    assert found["JPEGImages/a.png"] == {
        "category": [1, 0],
        "bbox": [[0, 0, 8, 6], [1, 2.5, 3, 2.5]],
        "difficult": [False, False],
        "truncated": [True, True],
    }
    assert found["JPEGImages/b.png"]["bbox"] == []
    assert found["JPEGImages/c.png"] is None
    assert shardctl.open(out).manifest.fields["objects"]["names"] == ["cat", "dog"]
    assert "1 of 3 inputs without XML file: not annotated" in str(said)


def test_what_objects_say_beside_is_named_and_counted(tmp_path, source):
    more = "<occluded>0</occluded><attributes><attribute><name>a</name><value>1</value></attribute></attributes></object>"
    unsaid = marked("cat", 1, 1, 2, 2).replace("Left", "Unspecified").partition("<part>")[0]
    other = (
        f"{unsaid}{more}",
        f"{unsaid}<polygon><x1>1</x1><y1>2</y1></polygon></object>",
        f"{unsaid}</object>",
    )
    (source / "Annotations" / "b.xml").write_text(voc(*other))
    said = converted(source, tmp_path / "out", f"voc:{source}").notices
    (notice,) = [notice for notice in said if "left out" in notice]
    names = [
        "pose of 2 objects",
        "part of 2 objects",
        *(f"{name} of 1 object" for name in ("occluded", "attributes", "polygon")),
    ]
    assert notice.partition("left out: ")[2].split(", ") == names


def test_files_that_count_from_0_say_so_and_are_read_as_they_are(tmp_path, source):
    (source / "Annotations" / "a.xml").write_text(voc(marked("cat", 0, 2, 4, 5)))
    said = converted(source, tmp_path / "1", f"voc:{source}/Annotations").notices
    assert any(
        "1 box begins at 0" in notice and "labels='voc+zero-based:PATH'" in notice
        for notice in said
    )
    said = converted(source, tmp_path / "2", f"voc+zero-based:{source}/Annotations").notices
    assert "begins at 0" not in str(said)
    assert samples(tmp_path / "2")["JPEGImages/a.png"]["objects"]["bbox"] == [[0, 2, 4, 3]]


def test_the_name_in_a_file_counts_where_its_own_is_no_image(out, source):
    for number, name in enumerate(("c", "gone")):
        text = voc(marked("cow", 1, 1, 2, 2), filename=f"somewhere\\{name}.png")
        (source / "Annotations" / f"000{number}.xml").write_text(text)
    said = converted(source, out, f"voc:{source}").notices
    assert samples(out)["JPEGImages/c.png"]["objects"]["category"] == [1]
    assert "1 XML file without an image among the inputs (0001.xml)" in str(said)


DOCTYPE = '<!DOCTYPE annotation [<!ENTITY a "aaaa">]>'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            voc().replace("<annotation>", f"\n{DOCTYPE}<annotation>"),
            "line 2: it has a DOCTYPE, which is not read",
        ),
        ("<annotation><size></annotation>", "line 1: not XML (mismatched tag)"),
        ("", "line 1: not XML (no element found)"),
        (voc("<object><bndbox/></object>"), "an object has no name"),
        (voc("<object><name>cat</name></object>"), "'cat' has no bndbox of four numbers"),
        (voc(marked("cat", 1, 1, float("nan"), 2)), "is beyond any image"),
        (voc("<object><name>cat</name><name>dog</name></object>"), "more than one name"),
        (voc("<object><name>cat</name><bndbox/><bndbox/></object>"), "more than one bndbox"),
        ("<annotation>" * 40 + "</annotation>" * 40, "nested deeper than 32 levels"),
    ],
)
def test_a_wrong_file_rejects_its_image_alone(out, source, text, says):
    (source / "Annotations" / "a.xml").write_text(text)
    converted(source, out, f"voc:{source}")
    ((key, (error, message)),) = rejects(out).items()
    assert (key, error) == ("JPEGImages/a.png", "bad-annotation")
    assert "a.xml: " in message
    assert says in message
    assert "JPEGImages/b.png" in samples(out)


def test_two_files_of_one_image_are_named(tmp_path, source):
    for name in ("y", "z"):
        (source / "Annotations" / f"{name}.xml").write_text(voc(filename="c.png"))
    with pytest.raises(
        InputError, match=r"y.xml and .*z.xml are both of the input JPEGImages/c.png; keep one"
    ):
        converted(source, tmp_path / "new", f"voc:{source}")


@pytest.mark.parametrize("folder", ["nowhere", "JPEGImages"])
def test_a_folder_without_xml_is_refused(tmp_path, source, folder):
    with pytest.raises(InputError, match=folder):
        converted(source, tmp_path / "out", f"voc:{source / folder}")


def test_a_turned_box_is_a_polygon_and_the_box_around_it(out, source):
    turned = "<cx>4</cx><cy>3</cy><w>4</w><h>2</h><angle>{}</angle>"
    of = f"<object><name>cat</name><robndbox>{turned}</robndbox></object>"
    objects = [of.format(angle) for angle in (0, np.pi / 2, np.pi / 6)]
    (source / "Annotations" / "b.xml").write_text(voc(*objects))
    converted(source, out, f"voc:{source}")
    found = {key: sample["objects"] for key, sample in samples(out).items()}
    assert np.allclose(found["JPEGImages/b.png"]["bbox"][:2], [[2, 2, 4, 2], [3, 1, 2, 4]])
    (polygon,) = found["JPEGImages/b.png"]["segmentation"][2]
    assert np.allclose(np.reshape(polygon, (4, 2))[1], [6.232, 3.134], atol=1e-3), (
        "to the right: the corner on the right is lower"
    )
    assert found["JPEGImages/a.png"]["segmentation"] == [[], []]


PIECES = (
    "&amp;|<!-- <a> -->|<![CDATA[<object>]]>|<?p q?>|<name/>|<a b='>'/>|<a b='/'>t</a>|<object|"
    "</object>|<object>|>|\r\n|\x0b|\uffff|\xa0|x"
).split("|")


@pytest.mark.parametrize("piece", PIECES)
def test_what_is_read_quickly_of_a_file_is_what_the_parser_says(piece):
    _places.cache_clear()
    whole, found = voc(marked("cät", 1, 1, 8, 6)), 0
    for begin in ("", "\ufeff", " ", "<?xml version='1.0' encoding='latin-1'?>"):
        text = begin + (whole.partition("?>")[2] if "latin" in begin else whole)
        for place in (
            at + after for at, mark in enumerate(text) if mark in "<>" for after in (0, 1)
        ):
            data = f"{text[:place]}{piece}{text[place:]}".encode()
            try:
                quick = _parse_quickly(data)
            except ValueError:
                continue
            said, records = parse(data)
            assert quick == (said, [(0, record) for _, record in records])
            found += 1
    assert found or piece != "x"
