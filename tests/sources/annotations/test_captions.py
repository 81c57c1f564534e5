from __future__ import annotations

import json
from pathlib import Path

import pytest
from making import converted, photos, rejects, samples

from shardctl.errors import InputError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return photos(tmp_path / "in", "a.png", "b.png", "deep/c.png")


def test_text_files_beside_images_are_their_captions(out, source):
    (source / "a.txt").write_text("  two words\nand more \n", "utf-8")
    (source / "b.txt").write_text("\n")
    (source / "deep" / "c.json").write_text('{"caption": "ein Bär", "width": 8}', "utf-8")
    converted(source, out, "captions:")
    found = {key: sample["caption"] for key, sample in samples(out).items()}
    assert found == {"a.png": "two words\nand more", "b.png": None, "deep/c.png": "ein Bär"}


@pytest.mark.parametrize(
    "value", [["one", "two"], {"captions": ["one", "two"]}, {"caption": ["one", "two"]}]
)
def test_several_captions_of_one_image_make_lists_of_all(tmp_path, out, source, value):
    folder = tmp_path / "captions"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "c.json").write_text(json.dumps(value))
    (folder / "b.txt").write_text("alone")
    said = converted(source, out, f"captions:{folder}").notices
    found = {key: sample["captions"] for key, sample in samples(out).items()}
    assert found == {"a.png": None, "b.png": ["alone"], "deep/c.png": ["one", "two"]}
    assert "1 of 3 inputs without caption" in str(said)


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.txt", b"caf\xe9", "not UTF-8 at byte 3"),
        ("a.json", b"{", "not JSON"),
        ("a.json", b'["x", 1]', "it has no caption"),
        ("a.json", b'"\\ud800"', "half of a surrogate pair"),
    ],
)
def test_a_wrong_caption_rejects_its_image_alone(out, source, name, data, says):
    (source / "b.txt").write_text("good")
    (source / name).write_bytes(data)
    converted(source, out, "captions:")
    ((key, (error, message)),) = rejects(out).items()
    assert (key, error) == ("a.png", "bad-annotation")
    assert says in message
    assert samples(out)["b.png"]["caption"] == "good"


def test_a_caption_of_two_images_is_refused(tmp_path, source):
    photos(source, "a.jpg")
    (source / "a.txt").write_text("which?")
    with pytest.raises(InputError, match=r"name a, which may be a.jpg and a.png"):
        converted(source, tmp_path / "out", "captions:")


LISTS = {
    "Flickr8k.token.txt": 'a.png#0\tA cat, asleep .\na.png#1\tIt is "a cat" .\nb.png#2\tA dog .\n'
    "gone.png#3\tNobody .\nb.png#4\tDogs\n",
    "captions.txt": 'image,caption\r\na.png,"A cat, asleep ."\r\na.png,"It is ""a cat"" ."\r\n'
    "b.png,A dog .\r\ngone.png,Nobody .\r\nb.png,Dogs\r\n",
    "results.csv": "image_name| comment_number| comment\na.png| 0| A cat, asleep .\n"
    'a.png| 1| It is "a cat" .\nb.png| 2| A dog .\ngone.png| 3| Nobody .\nb.png| 4| Dogs\n',
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("bom", ["", "\ufeff"])
def test_one_file_may_have_several_captions_of_each_image(tmp_path, out, name, bom):
    photos(tmp_path / "in", "Images/a.png", "Images/b.png", "Images/c.png")
    (tmp_path / name).write_text(bom + LISTS[name], encoding="utf-8", newline="")
    said = str(converted(tmp_path / "in", out, f"captions:{tmp_path / name}").notices)
    assert [sample["captions"] for sample in samples(out).values()] == [
        ["A cat, asleep .", 'It is "a cat" .'],
        ["A dog .", "Dogs"],
        None,
    ]
    assert "1 of 3 images are not among the inputs, or are of another split (gone.png)" in said
    assert "1 of 3 inputs without caption" in said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a.png| 0| x\n", "its first line has neither file_name"),
        (
            "image_name| comment_number| comment\na.png| 0| x\na.png| 1   A dog\n",
            "line 3: 2 cells, and the first line has 3",
        ),
        ("image,caption\nz.png,x\n", "no image of it is among the inputs"),
        ("", "its first line has neither file_name"),
    ],
)
def test_a_file_of_captions_that_is_wrong_is_refused(tmp_path, source, text, says):
    (tmp_path / "list.txt").write_text(text)
    with pytest.raises(InputError, match=says):
        converted(source, tmp_path / "out", f"captions:{tmp_path / 'list.txt'}")


def test_what_json_says_beside_captions_is_named(out, source):
    more = {
        "a": {"captions": ["long", "other"], "url": "u", "exif": {}},
        "b": {"url": "v", "score": 0},
    }
    for name, each in more.items():
        (source / f"{name}.json").write_text(json.dumps({"caption": "short", **each}))
    said = converted(source, out, "captions:").notices
    found = {key: sample["captions"] for key, sample in samples(out).items()}
    assert (found["a.png"], found["b.png"]) == (["long", "other"], ["short"])
    assert "JSON files: left out: caption of 1 image, url of 2 images, score of 1 image" in said


def test_the_usual_names_of_columns_come_before_others(tmp_path, out):
    photos(tmp_path / "in", "a.png")
    table = tmp_path / "all.csv"
    table.write_text("text,image,comment,file_name,caption\nno,b.png,no,a.png,yes\n")
    converted(tmp_path / "in", out, f"captions:{table}")
    assert samples(out)["a.png"]["caption"] == "yes"
