"""What docs/coming-from.md says works, on small shards as other tools write them."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from doc_snippets import ROOT, snippets
from PIL import Image

import shardctl

PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def write_tars(photos: Path, folder: Path) -> None:
    """Write tars as people do who use `tar` on an image folder and a script for the labels."""
    folder.mkdir()
    for split, part in (("train", slice(4)), ("val", slice(4, 6))):
        with tarfile.open(folder / f"{split}-00000.tar", "w") as tar:
            for label, of_class in enumerate(sorted(path for path in photos.iterdir() if path.is_dir())):
                for path in sorted(of_class.glob("*.jpg"))[part]:
                    for name, data in ((f"{path.stem}.jpg", path.read_bytes()), (f"{path.stem}.cls", b"%d" % label)):
                        info = tarfile.TarInfo(f"{split}/{name}")
                        info.size = len(data)
                        tar.addfile(info, io.BytesIO(data))


@pytest.fixture
def here(photos: Path, tmp_path: Path) -> Path:
    """tars/, mds/, tfds/, hub/ and photos/ with a few small images."""
    small = tmp_path / "photos"
    for number, path in enumerate(sorted(photos.rglob("*.jpg"))[:36]):
        target = small / f"class{number % 3}" / f"{number:03d}.jpg"
        target.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(path) as picture:
            picture.convert("RGB").resize((64, 64)).save(target, "JPEG")
    write_tars(small, tmp_path / "tars")
    shardctl.convert(small, tmp_path / "made", split="train=0.7,val=0.3", workers=0)
    for form, name in (("mds", "mds"), ("tfds", "tfds"), ("parquet", "hub")):
        shardctl.export(tmp_path / "made", tmp_path / name, form, workers=0)
        (tmp_path / name / "shardctl.json").unlink()  # another tool writes none
    (tmp_path / "hub" / "README.md").write_text("---\nlicense: mit\n---\n# A dataset card\n")
    return tmp_path


@pytest.mark.thorough
@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_works_as_it_is_written(name: str, here: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    if name == "LitData":
        shutil.copytree(here / "made", here / "out")
    for script in snippets(SECTIONS[name], "sh"):
        *commands, last = script.strip().splitlines()
        for command in (*commands, last):
            done = subprocess.run(["sh", "-c", command], cwd=here, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, f"{command}: {done.stderr}"
    for code in snippets(SECTIONS[name], "python"):
        done = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.strip() in ("(8,)", "True")
    if (here / "out").exists():
        manifest = json.loads((here / "out" / "manifest.json").read_text())
        assert manifest["rejected"] == 0
        assert [split["name"] for split in manifest["splits"]] == ["train", "val"]
