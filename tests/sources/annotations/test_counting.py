"""What convert says of annotations before it begins: how much was read of them."""

from __future__ import annotations

from making import box, coco_file, converted, mask, photos, values_of


def counts(notices: tuple[str, ...]) -> list[str]:
    return [notice for notice in notices if notice.startswith("annotations: ")]


def test_objects_categories_and_images_are_counted(tmp_path, cli):
    source = photos(tmp_path / "in", "a.png", "b.png", "c.png", "d.png")
    listed = [(1, "a.png"), (2, "b.png"), (3, "c.png")]
    labels = coco_file(tmp_path / "x.json", listed, [box(1), box(1), box(3, (1, 1))])
    mask(tmp_path / "masks" / "a.png", values_of((8, 6)))
    (source / "a.txt").write_text("a caption")
    given = [
        f"--labels={each}" for each in (f"coco:{labels}", f"masks:{tmp_path}/masks", "captions:")
    ]
    ran = cli("convert", source, tmp_path / "out", "--dry-run", "--workers", "0", *given)
    assert "; annotations: objects, mask, caption; splits: " in ran.err
    assert (
        "note: annotations: 2 objects of 1 of the 2 categories in 2 images, 1 image not annotated, "
        "1 image whose annotations"
        " are wrong; mask of 1 image; caption of 1 image\n"
    ) in ran.err


def test_wrong_and_missing_objects_of_other_formats_are_counted_alike(tmp_path):
    source = photos(tmp_path / "in", "0.png", "1.png", "2.png", "3.png")
    (source / "metadata.jsonl").write_text(
        '{"file_name": "0.png", "objects": {"bbox": [[0, 0, 1, 1]], "category": ["a"]}}\n'
        '{"file_name": "1.png", "objects": {"bbox": [[0, 0, 1, 1]], "category": []}}\n'
    )
    said = converted(source, tmp_path / "1", lenient_labels=True).notices
    assert counts(said) == [
        "annotations: 1 object of 1 category in 1 image, 2 images not annotated, 1 image whose "
        "annotations are wrong"
    ]
    (source / "metadata.jsonl").unlink()
    for name, text in (("0.txt", "0 0.5 0.5 1 1\n3 0.5 0.5 1 1"), ("1.txt", "0 5 5 1 1")):
        (tmp_path / "labels").mkdir(exist_ok=True)
        (tmp_path / "labels" / name).write_text(text)
    said = converted(source, tmp_path / "2", f"yolo:{tmp_path / 'labels'}").notices
    assert counts(said) == [
        "annotations: 2 objects of 2 categories in 3 images, 1 image whose annotations are wrong"
    ]
    assert counts(converted(source, tmp_path / "3", "none").notices) == []
