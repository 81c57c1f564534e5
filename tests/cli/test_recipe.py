"""`shardctl recipe`, and how options and the recipe of a file join."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardctl
from shardctl.format.dataset_folder import dataset_in
from shardctl.format.manifest import Manifest

RECIPE = """\
store = "png"
seed = 3
kind = "image"
[[transform]]
name = "resize"
size = 40
side = "long"
[[transform]]
name = "maybe"
p = 0.4
steps = [{ name = "hflip", p = 0.2 }]
[[transform]]
name = "crop"
size = 24
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path / "recipe.toml"


def test_check_says_what_a_recipe_does(cli, recipe):
    ran = cli("recipe", "check", recipe)
    assert ran.code == 0
    for line in (
        f"{recipe}: no problems found",
        "  for images, images stored as png, compression none",
        "  1. resize: One number: a side becomes that long, the shape is kept.",
        "     size 40, side long",
        "     steps hflip (p 0.2), p 0.4; random",
        "  images that come out: 24x24 pixels",
        "  from each input: 1 sample",
        "  random: yes, seed 3",
        "  annotations that move with the images: boxes, keypoints, masks, polygons",
    ):
        assert line in ran.out
    record = cli("recipe", "check", recipe, "--json").json
    assert (record["ok"], record["problems"], record["size"]) == (True, [], [24, 24])
    assert record["samples_per_input"] == 1
    assert [step["name"] for step in record["steps"]] == ["resize", "maybe", "crop"]
    assert record["steps"][1]["settings"]["steps"] == [{"name": "hflip", "p": 0.2}]
    assert record["moves"] == ["boxes", "keypoints", "masks", "polygons"]


def test_check_names_what_cannot_move_with_the_images(cli, recipe):
    recipe.write_text(
        '[[transform]]\nname = "five_crop"\nsize = 8\n[[transform]]\nname = "elastic"\n'
    )
    said = cli("recipe", "check", recipe).out
    assert "boxes (elastic), polygons (elastic), keypoints (elastic)" in said
    assert "from each input: 5 samples" in said


def test_check_prints_all_problems_and_exits_with_one(cli, recipe):
    recipe.write_text('seed = "x"\n[[transform]]\nname = "crop"\nsize = 0\n')
    ran = cli("recipe", "check", recipe)
    assert ran.code == 1
    first, second, last = ran.out.splitlines()
    assert first.startswith(f"{recipe}:1: seed must be a whole number from 0 to {2**63 - 1}")
    assert second.startswith(f"{recipe}:4: step 1 (crop): size must be 224, or 320x240")
    assert last == f"2 problems in {recipe}"
    record = cli("recipe", "check", recipe, "--json").json
    assert record["ok"] is False
    found = [(each["line"], each["column"], each["key"]) for each in record["problems"]]
    assert found == [(1, 1, "seed"), (4, 1, "transform[0].size")]


def test_show_prints_a_recipe_that_makes_the_same_dataset(cli, recipe, photos, tmp_path, out):
    options = ("--workers", 0, "--split", "train=0.5,val=0.5", "--shuffle", 3)
    assert cli("convert", photos, out, "--recipe", recipe, *options).code == 0
    shown = cli("recipe", "show", out)
    assert (shown.code, shown.err) == (0, "")
    first, second = shown.out.splitlines()[:2]
    assert first.startswith(f"# The recipe of {tmp_path}/out, made 20")
    assert second.startswith("# Again: shardctl convert ")
    assert second.endswith(" DST --recipe FILE --split train=0.5,val=0.5 --shuffle 3")
    recipe.write_text(shown.out)
    ran = cli("convert", photos, out, "--recipe", recipe, *options)
    assert (ran.code, "is up to date" in ran.out) == (0, True)
    record = cli("recipe", "show", out, "--json").json
    assert record["toml"] == shown.out
    assert record["recipe"]["transform"][1] == {
        "name": "maybe",
        "steps": [{"name": "hflip", "p": 0.2}],
        "p": 0.4,
    }


def test_the_schema_is_one_json_object(cli):
    ran = cli("recipe", "schema")
    assert json.loads(ran.out)["properties"]["seed"]["type"] == "integer"
    assert cli("recipe", "schema", "--json").json == json.loads(ran.out)


def test_an_option_wins_over_the_file(cli, recipe, photos, out):
    options = "--resize 48 --flip 1 --crop 16x8 --kind auto --store jpeg:70 --seed 9 --workers 0"
    steps = ("--step", "vflip p=1", "--step", "random_rotation degrees=5")
    assert cli("convert", photos, out, "--recipe", recipe, *options.split(), *steps).code == 0
    made = Manifest.load(dataset_in(out)).recipe
    assert (made["kind"], made["store"], made["seed"]) == ("image", "jpeg:70", 9)
    *steps, rotation = made["transform"]
    assert steps == [
        {"name": "resize", "size": 48, "side": "long"},
        {"name": "maybe", "steps": [{"name": "hflip", "p": 1.0}], "p": 0.4},
        {"name": "crop", "size": "16x8"},
        {"name": "vflip", "p": 1.0},
    ]
    assert (rotation["name"], rotation["degrees"]) == ("random_rotation", [-5.0, 5.0])


def test_a_ready_recipe_is_used_by_its_name_wherever_a_file_is(cli, photos, tmp_path, out):
    listed = cli("recipe", "list", "--json").json["recipes"]
    assert "@imagenet" in listed
    lines = cli("recipe", "list").out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("@")] == list(listed)
    options = "--variants 1 --random-crop 8 --workers 0".split()
    assert cli("convert", photos, out, "--recipe", "@imagenet", *options).code == 0
    again = shardctl.convert(photos, tmp_path / "again", recipe="@imagenet", workers=0)
    assert again.samples == shardctl.open(out).manifest.samples
    assert cli("recipe", "check", "@detection").out.startswith("@detection: no problems found")


def test_a_ready_recipe_can_be_taken_as_a_file(cli, tmp_path):
    (tmp_path / "recipe.toml").write_text(cli("recipe", "show", "@simclr").out)
    mine, ready = (
        cli("recipe", "check", name, "--json").json["recipe"]
        for name in (tmp_path / "recipe.toml", "@simclr")
    )
    assert mine == ready
