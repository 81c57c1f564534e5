"""Inputs that the tests make themselves, and the ways to call the product."""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from kept_servers import KeptServers
from object_stores import azurite, bucket, container, object_server, started_server  # noqa: F401 (fixtures)
from PIL import Image
from xdist.scheduler import LoadFileScheduling

import shardctl
from shardctl.cli import run
from shardctl.sources.demo import make_demo
from shardctl.system.machine import usable_cores

FUZZ = int(os.environ.get("SHARDCTL_FUZZ", "0"))
"""How many times as many examples property tests draw, anew in each run (`make fuzz`). 0: the same
examples in every run."""

THOROUGH = os.environ.get("SHARDCTL_THOROUGH") == "yes"
"""Whether to run what takes long, and shows again, in more places, what other tests show: `.ci/run`
does."""

os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="shardctl-tests-cache-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)
"""What tests remember of tokenizers is not for the user who runs them, nor what that one remembers
for the tests."""

settings.register_profile(
    "shardctl",
    derandomize=not FUZZ,
    database=None,
    deadline=None,  # the first example of a test pays for imports, and other work may run beside it
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    print_blob=bool(FUZZ),
)
settings.load_profile("shardctl")


gc.set_threshold(20_000, 20, 50)
"""Thousands of tests are many objects that stay: to look through them as often as usual takes 5 %
of the time."""


def examples(count: int) -> settings:
    """Return the settings of a property test with so many examples, a third of them where tests are
    to be quick."""
    return settings(max_examples=count * FUZZ or (count if THOROUGH else max(5, count // 3)))


def pytest_xdist_auto_num_workers() -> int:
    """Run three tests at a time on two cores: many of them wait for a process, a time limit or the
    disk."""
    return usable_cores() * 3 // 2


def is_page(nodeid: str) -> bool:
    """Say whether a test runs a page of the docs, which takes as long as a file of other tests."""
    return "test_a_page_shows" in nodeid


class _Scheduling(LoadFileScheduling):
    """A worker runs all tests of a file, as their fixtures are shared; a page of the docs is a
    piece of work of its own."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid if is_page(nodeid) else str(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Give the workers the tests in their order. xdist would end with the files of few tests: the
    slow ones."""
    if config.option.dist != "loadfile":
        return None
    config.option.loadscopereorder = False
    return _Scheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put pages first: they take longest. Leave out what is marked thorough where tests are to be
    quick.

    Of `thorough(after=N)` the first N cases run.
    """
    items.sort(key=lambda item: not is_page(item.nodeid))
    if THOROUGH:
        return
    cases: Counter[str] = Counter()
    for item in items:
        if mark := item.get_closest_marker("thorough"):
            function = item.nodeid.partition("[")[0]
            cases[function] += 1
            if cases[function] > mark.kwargs.get("after", 0):
                item.add_marker(pytest.mark.skip(reason="SHARDCTL_THOROUGH is not yes"))


CROP = {"store": "raw", "transform": [{"name": "resize", "size": 40}, {"name": "crop", "size": 32}]}


@pytest.fixture
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `advise` read each store for a moment."""
    monkeypatch.setattr("shardctl.benchmark.advice.ROUND_SECONDS", 0.2)
    monkeypatch.setattr("shardctl.benchmark.advice.PLACING_SECONDS", 0.2)


@pytest.fixture(scope="session", autouse=True)
def fork_servers() -> Iterator[KeptServers]:
    kept = KeptServers()
    with kept.used():
        yield kept


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/ (60 images in 6 class folders), texts/, lines.jsonl. Tests only read it: all
    processes of pytest share it."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared-demo"
    shared.mkdir(exist_ok=True)
    with open(shared / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "made").exists():
            make_demo(shared / "demo", images=60, texts=50)
            _make_smaller(shared / "demo" / "photos")
            (shared / "made").touch()
    return shared / "demo"


def _make_smaller(photos: Path) -> None:
    """Halve the sides of photos, in files of the same kind: thousands of tests decode them."""
    for path in sorted(photos.rglob("*.*")):
        with Image.open(path) as photo:
            exif = photo.getexif()
            half = photo.resize((photo.width // 2, photo.height // 2))
        half.save(path, exif=exif, quality=88)


@pytest.fixture(scope="session")
def photos(demo: Path) -> Path:
    return demo / "photos"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where a test makes its dataset: nothing is there before."""
    return tmp_path / "out"


@pytest.fixture
def source(photos: Path, tmp_path: Path) -> Path:
    """60 photos in 6 class folders, which a test may change."""
    return Path(shutil.copytree(photos, tmp_path / "in"))


@pytest.fixture(scope="session")
def raw_dataset(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset that tests only read."""
    out = tmp_path_factory.mktemp("raw") / "out"
    shardctl.convert(photos, out, recipe=CROP, workers=0, split="train=0.7,val=0.3", shuffle=1)
    return out


@pytest.fixture(scope="session")
def whole_dataset(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `dataset` is a copy of."""
    out = tmp_path_factory.mktemp("whole") / "out"
    shardctl.convert(photos, out, recipe=CROP, workers=0)
    return out


@pytest.fixture
def dataset(whole_dataset: Path, tmp_path: Path) -> Path:
    """A dataset that a test may damage."""
    return Path(shutil.copytree(whole_dataset, tmp_path / "out"))


@pytest.fixture(scope="session")
def corpus() -> Path:
    folder = os.environ.get("SHARDCTL_CORPUS")
    if not folder:
        pytest.skip("SHARDCTL_CORPUS does not name the folder of real files")
    return Path(folder)


@pytest.fixture(scope="session")
def torchvision() -> Any:
    """torchvision, where it is installed. PyPI's is built for CUDA: a torch without lacks the names
    of two operators."""
    torch = pytest.importorskip("torch")
    if torch.version.cuda is None and "torchvision" not in sys.modules:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return pytest.importorskip("torchvision")


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads(self.out)
        return record


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Any:
    """Run a command in this process: cli("verify", path) gives its exit code, stdout and stderr."""

    def call(*arguments: object) -> Ran:
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        assert "Traceback" not in captured.err, captured.err
        return Ran(code, captured.out, captured.err)

    return call


def without_privileges(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that may read only what its permissions allow, as root may not
    without these rights."""
    command = [sys.executable, "-m", "shardctl", *(str(argument) for argument in arguments)]
    if os.geteuid() == 0:
        if not shutil.which("setpriv"):
            pytest.skip("root without setpriv may read everything")
        rights = "-dac_override,-dac_read_search"
        command = ["setpriv", "--bounding-set", rights, "--inh-caps", rights, *command]
    return subprocess.run(command, capture_output=True, text=True)
