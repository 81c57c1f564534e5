"""Pages as a browser draws them, light and dark. Skipped where no Chromium is installed."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from annotated import write_annotated
from damage import flip
from dataset_files import shards_in, tables_in
from in_this_process import convert
from PIL import Image
from places import place_of

import shardctl
from shardctl.inspection.content.statistics import GRID
from shardctl.inspection.pages.page import command, data, page, paragraph
from shardctl.system.messages import entry_for
from shardctl.system.report import Html, table

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)

CONTRASTS = """elements => elements.slice(0, 12).filter(element => element.textContent.trim()).map(element => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const light = colour => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map(v => v / 255)
      .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let behind = element;
  while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
  const style = getComputedStyle(element);
  const colour = element.closest("svg") ? style.fill : style.color;
  const [a, b] = [light(colour), light(getComputedStyle(behind).backgroundColor)].sort();
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
})"""
"""The contrasts of the first texts with what is behind them (WCAG 2.2, section 1.4.3: 4.5 is
enough)."""


DRAWN = "images => images.every(image => image.complete && image.naturalWidth > 0)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None or os.environ.get("SHARDCTL_BROWSER") != "yes":
        pytest.skip("no Chromium is installed, or SHARDCTL_BROWSER is not yes")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


class Seen:
    """A page that was opened without a network, and what it complained of or asked for."""

    def __init__(self, browser: Any, path: Path, scheme: str, width: int) -> None:
        self.context = browser.new_context(
            color_scheme=scheme, viewport={"width": width, "height": 900}, offline=True
        )
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())

    def check_charts(self) -> list[str]:
        """Check that the page fits its window, and return the titles of its charts."""
        width = self.page.evaluate("document.documentElement.scrollWidth")
        assert width <= self.page.viewport_size["width"]
        return list(self.texts("figure.chart figcaption"))

    def check_contrasts(self, *selectors: str) -> None:
        for selector in selectors:
            contrasts = self.page.locator(selector).evaluate_all(CONTRASTS)
            assert contrasts, selector
            assert min(contrasts) >= 4.5, selector

    def texts(self, selector: str) -> Any:
        return self.page.locator(selector).all_text_contents()

    def section(self, title: str) -> Any:
        return self.page.locator("section", has=self.page.locator("h2", has_text=title))


See = Callable[..., Seen]


@pytest.fixture
def see(browser: Any) -> Iterator[See]:
    """Open pages that say nothing on the console and ask for nothing but themselves, unless they
    are not `quiet`."""
    opened: list[Seen] = []

    def see(path: Path, scheme: str = "light", width: int = 1200, quiet: bool = True) -> Seen:
        opened.append(seen := Seen(browser, path, scheme, width))
        assert not quiet or (seen.complaints, seen.requests) == ([], [path.as_uri()])
        return seen

    yield see
    for seen in opened:
        seen.context.close()


@pytest.fixture(scope="module")
def bench_report(
    raw_dataset: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """A page of everything that bench can show, and the record behind it."""
    from shardctl.benchmark import measure
    from shardctl.benchmark.page import bench_page

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "SETTING_SECONDS", 0.02)
        result = measure.bench(
            raw_dataset,
            runs=2,
            seconds=0.4,
            batch_size=4,
            consumer_rate=50,
            gpus=2,
            baseline=True,
            sweep=True,
        )
    path = tmp_path_factory.mktemp("report") / "bench.html"
    path.write_text(bench_page(result, "shardctl bench out"), encoding="utf-8")
    return path, json.loads(json.dumps(result.record()))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_bench_page_is_drawn_from_nothing_but_itself(see, bench_report, scheme):
    path, record = bench_report
    seen = see(path, scheme)
    assert seen.check_charts() == [
        "Throughput over time",
        "Time from batch to batch, ms",
        "Utilisation by number of GPUs (90% is enough)",
        "Where the loader's threads spend their time",
        "An epoch",
        "Orders and threads, samples/s",
        "Batch sizes",
    ]
    orders = [point for point in record["sweep"] if point["batch_size"] == 4]
    chart = seen.page.locator("figure", has_text="Orders and threads, samples/s")
    assert chart.locator(".bar").count() == len(orders)
    best = max(
        (point for point in record["sweep"] if point["shuffle"] != "in-order"),
        key=lambda point: point["samples_per_s"],
    )
    code = seen.texts("code")
    assert f"--order {best['shuffle']} --threads {best['threads']}" in code[0]
    assert f'shuffle="{best["shuffle"]}", threads={best["threads"]})' in code[1]
    assert "{'" not in seen.page.locator("body").inner_text(), "nothing of Python's is on the page"
    busy = f"busy for {record['accelerator_utilization']:.1%} of the time"
    assert busy in seen.page.locator(".verdict").text_content()
    assert f"{record['samples_per_s']:,.0f}" in seen.page.locator(".tiles").text_content()
    assert json.loads(seen.page.locator("#record").text_content()) == record
    background = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 23, 26)"}[scheme]
    seen.check_contrasts("h1", "p", ".tile b", ".tile span", "td", "figcaption")


@pytest.fixture(scope="module")
def dataset_report(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A page of images and one of texts, rejects among them."""
    from shardctl.inspection.pages.dataset import dataset_page

    root = tmp_path_factory.mktemp("browse")
    shutil.copytree(demo / "photos", root / "photos")
    (root / "photos" / "snow" / "<b>bad.jpg").write_bytes(b"bad")
    convert(root / "photos", root / "images", split="train=0.8,val=0.2")
    convert(demo / "lines.jsonl", root / "texts")
    for name in ("images", "texts"):
        (root / f"{name}.html").write_text(dataset_page(place_of(root / name)), encoding="utf-8")
    return root / "images.html", root / "texts.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_dataset_page_can_be_browsed(see, dataset_report, scheme):
    out = dataset_report[0].with_suffix("")
    seen = see(dataset_report[0], scheme)
    assert seen.page.title() == f"shardctl inspect: {out}"
    said = [title.partition(":")[0] for title in seen.check_charts()]
    assert said == ["image width", "image height", "image, bytes", ""]
    classes = seen.section("classes: 6")
    assert classes.locator(".bar").count() == 12, "six classes in two splits"
    assert classes.locator("tbody tr").count() == 6
    assert classes.locator("td").first.text_content() == "dunes"
    pictures = seen.page.locator(".pictures img")
    assert pictures.count() == 60
    assert pictures.evaluate_all(DRAWN)
    chart = seen.page.locator(".chart").first
    assert pictures.last.bounding_box()["y"] < chart.bounding_box()["y"]
    assert seen.page.locator(".pictures figcaption").first.text_content().startswith("dunes")
    reason = seen.section("Rejected inputs").locator(".reason").text_content()
    reject = json.loads((tables_in(out) / "rejects.jsonl").read_text(encoding="utf-8"))
    assert reason.startswith(
        f"1 input, decode: not-an-imagefor instance snow/<b>bad.jpg: {reject['message']}"
    )
    known = entry_for(reject["message"])
    assert known is not None
    assert f"What to do: {known.do}" in reason, "as the table of messages says"
    rows = seen.page.locator("#samples tbody tr:visible")
    assert rows.count() == 60
    seen.page.locator("#search").fill("SNOW jpg")
    assert seen.page.locator("#found").text_content() == f"{rows.count()} of 60 shown"
    assert 0 < rows.count() < 12
    assert all("snow" in row for row in rows.all_text_contents())
    assert seen.page.locator(".pictures figure:visible").count() == rows.count(), (
        "pictures are filtered as the table is"
    )
    seen.page.locator("#search").fill("it's nowhere")
    assert rows.count() == 0
    command = f"shardctl inspect {out} --key"
    assert seen.page.locator("#one").text_content() == f"{command} 'it'\\''s nowhere'"
    seen.page.locator("#search").fill("")
    assert (rows.count(), seen.page.locator("#one").text_content()) == (60, f"{command} KEY")
    assert seen.page.get_by_text("This page has 60 of 60 samples, evenly spaced.").count() == 1
    seen.check_contrasts("p", "th", "figcaption", "#found", "code", ".copy")


def test_the_page_of_texts_shows_how_they_begin(see, dataset_report):
    seen = see(dataset_report[1])
    assert seen.page.locator(".texts blockquote").count() == 24
    assert seen.page.locator("figure", has_text="text, bytes").locator(".bar").count() > 3
    assert seen.page.locator(".pictures").count() == 0


def test_what_says_nothing_is_not_drawn(tmp_path, out):
    from shardctl.inspection.pages.dataset import dataset_page

    (tmp_path / "in").mkdir()
    lines = ["filename,label,mode"]
    for number in range(6):
        Image.fromarray(np.full((8, 8 + number, 3), number, np.uint8)).save(
            tmp_path / "in" / f"{number}.png"
        )
        lines.append(f"{number}.png,class {number},{'RGB' if number else 'L'}")
    (tmp_path / "in" / "labels.csv").write_text("\n".join(lines))
    convert(tmp_path / "in", out, labels=tmp_path / "in" / "labels.csv")
    made = dataset_page(place_of(out))
    assert "classes: 6, 1 sample each" in made
    assert "mode, bytes" not in made, "how long short words are"
    assert "image width" in made
    assert "{&#x27;" not in made, "nothing of Python's"


def test_a_run_that_is_too_short_says_so_in_place_of_charts(raw_dataset):
    from shardctl.benchmark.measure import bench
    from shardctl.benchmark.page import bench_page

    made = bench_page(
        bench(raw_dataset, runs=1, epochs=1, batch_size=64), "shardctl bench out --cold"
    )
    assert "Too short to judge throughput over time and the times from batch to batch: " in made
    assert "shardctl bench out --cold --seconds 20 --batch-size 16" in made
    assert "Throughput over time" not in made
    assert "one run" in made
    assert "spread" not in made.partition('id="record"')[0]


@pytest.fixture(scope="module")
def marked_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of images with objects and masks."""
    from shardctl.inspection.pages.dataset import dataset_page

    root = tmp_path_factory.mktemp("marked")
    write_annotated(root / "out")
    (root / "out.html").write_text(dataset_page(place_of(root / "out")), encoding="utf-8")
    return root / "out.html"


def test_the_page_shows_what_is_marked_in_images(see, marked_report):
    seen = see(marked_report, "dark")
    objects = seen.section("objects: 12")
    assert "not annotated: 4 images" in objects.text_content()
    titles = {title.partition(":")[0] for title in seen.check_charts()}
    assert {"objects in an image", "side of a box as a share of the image's"} <= titles
    assert "Where the centres of the boxes of objects are, up to 4 boxes" in titles
    categories = objects.locator("figure", has_text="category")
    assert categories.locator(".bar").count() == 4, "two categories in two splits"
    assert seen.page.locator(".map td").count() == GRID * GRID
    masks = seen.section("mask: pixels")
    assert masks.locator("td").first.text_content() == "background"
    assert "4 samples have no mask" in masks.text_content()
    captions = seen.texts(".pictures figcaption")
    assert captions[0] == "image1 person\u20021 dogk00.png"
    assert captions[2] == "imageno objectsk01.png"
    assert captions[4] == "imagenot annotatedk02.png"
    chips = seen.page.locator(".pictures figcaption i")
    assert (
        chips.first.evaluate("chip => getComputedStyle(chip).backgroundColor") == "rgb(255, 0, 0)"
    )
    record = json.loads(seen.page.locator("script#objects").text_content())
    assert [(each["field"], each["objects"]) for each in record] == [("objects", 12)]
    seen.check_contrasts("figcaption", ".chart td")


CONVERT = "shardctl convert in out --crop 32 --flip 0.5"


@pytest.fixture(scope="module")
def preview_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A preview of images with objects, one of them broken."""
    from shardctl.making.preview import make_preview
    from shardctl.making.preview.page import preview_page

    root = tmp_path_factory.mktemp("preview")
    (root / "in").mkdir()
    lines = []
    names = [f"{number}{'-long' * 20}.png" for number in range(4)]
    for number, name in enumerate(names[:3]):
        picture = np.random.default_rng(number).integers(0, 256, (48, 64, 3), np.uint8)
        Image.fromarray(picture).save(root / "in" / name)
        lines.append(
            {
                "file_name": name,
                "objects": {"bbox": [[0, 0, 8, 8], [30, 20, 10, 10]], "category": [0, 1]},
            }
        )
    (root / "in" / names[3]).write_bytes(b"bad")
    lines.append({"file_name": names[3], "objects": {"bbox": [], "category": []}})
    (root / "in" / "metadata.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    recipe = {"transform": [{"name": "crop", "size": 32}, {"name": "hflip", "p": 0.5}]}
    page = preview_page(
        make_preview([root / "in"], recipe, 8, workers=0), [str(root / "in")], CONVERT
    )
    (root / "p.html").write_text(page, encoding="utf-8")
    return root / "p.html"


@pytest.mark.parametrize(("scheme", "width"), [("light", 1400), ("dark", 390)])
def test_the_preview_shows_samples_with_and_without_annotations(see, preview_report, scheme, width):
    seen = see(preview_report, scheme, width)
    assert seen.page.locator(".input").count() == 4
    assert seen.page.locator(".row img").evaluate_all(DRAWN)
    drawn, bare = (
        seen.page.locator(".row img.drawn:visible"),
        seen.page.locator(".row img:not(.drawn):visible"),
    )
    assert (drawn.count(), bare.count()) == (15, 15), (
        "each of three inputs, and four samples of it, and what is over them"
    )
    for below, above in zip(bare.all(), drawn.all(), strict=True):
        assert above.bounding_box() == below.bounding_box()
    seen.page.locator(".switch").click()
    assert (drawn.count(), bare.count()) == (0, 15)
    seen.page.keyboard.press("Space")
    assert (drawn.count(), bare.count()) == (15, 15), "by the keyboard too"
    assert seen.check_charts() == ["Objects of an image that are kept"]
    kept = seen.texts(".chart tbody tr")
    assert [said for said in kept if not said.endswith("0")] == ["to 50%12"], "one of two in each"
    assert seen.page.locator("code").first.text_content() == CONVERT
    captions = seen.texts(".row figcaption")
    assert captions[0].startswith("source64x48, ")
    assert captions[1].endswith("1 of 2 objects kept")
    assert "rejected, decode: not-an-image" in seen.page.locator(".input").last.text_content()
    first, second = (
        seen.page.locator(".row figure").nth(number).bounding_box() for number in (0, 1)
    )
    assert (first["y"] == second["y"]) is (width > 390), (
        "in a narrow window the source has a row of its own"
    )
    seen.check_contrasts("figcaption", ".tile span", "td", ".soft", ".switch", ".bad")


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize(
    ("store", "side", "anew"), [("jpeg:80", 64, False), ("raw", 64, False), ("raw", 400, True)]
)
def test_a_sample_on_the_preview_is_as_stored_or_said_to_be_encoded_anew(
    tmp_path, store, side, anew
):
    from shardctl.making.preview import make_preview
    from shardctl.making.preview.page import ANEW, preview_page

    (tmp_path / "in").mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (400, 400, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "in" / "a.png")
    made = make_preview(
        [tmp_path / "in"],
        {"store": store, "transform": [{"name": "crop", "size": side}]},
        1,
        workers=0,
    )
    shown = preview_page(made, [str(tmp_path / "in")])
    kind, content = re.findall(r'src="data:image/(\w+);base64,([^"]*)"', shown)[1]
    stored = made.inputs[0].samples[0].values["image"]
    assert (ANEW in shown) is anew
    if store == "raw":
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))
        assert np.array_equal(pixels, stored) is not anew
    else:
        assert (kind, base64.b64decode(content)) == ("jpeg", stored["bytes"])


def test_a_button_copies_a_command(see, tmp_path):
    said, path = "shardctl inspect 'a b' --key \"<i>\"", tmp_path / "page.html"
    path.write_text(page("commands", command(said)), encoding="utf-8")
    seen = see(path)
    seen.context.grant_permissions(["clipboard-read", "clipboard-write"])
    seen.page.get_by_role("button", name="copy the command").click()
    seen.page.get_by_role("button", name="copied").wait_for()
    assert seen.page.evaluate("navigator.clipboard.readText()") == said
    assert (seen.complaints, seen.requests) == ([], [path.as_uri()])


def test_a_page_runs_no_script_but_its_own(see, tmp_path):
    path = tmp_path / "page.html"
    intruder = Html(
        "<script>document.title = 'owned'</script><img src=x onerror=\"document.title = 'owned'\">"
    )
    path.write_text(page("a page", intruder, script="document.body.id = 'own'"), encoding="utf-8")
    seen = see(path, quiet=False)
    assert (seen.page.title(), seen.page.locator("body").get_attribute("id")) == ("a page", "own")
    assert seen.complaints, "the policy of the page has refused the other one"


SIZES = """root => [...root.querySelectorAll("*")].filter(element => element.offsetWidth &&
  [...element.childNodes].some(node => node.nodeType === 3 && node.textContent.trim()))
  .map(element => parseFloat(getComputedStyle(element).fontSize))"""
"""The sizes of all texts that can be seen, in pixels."""


def test_pages_fit_a_telephone(see, bench_report, dataset_report, marked_report, preview_report):
    for path in (bench_report[0], *dataset_report, marked_report, preview_report):
        for width in (390, 1280):
            seen = see(path, width=width)
            assert seen.check_charts(), path
            assert min(seen.page.locator("body").evaluate(SIZES)) >= 11, path


def test_nothing_in_the_data_becomes_part_of_the_page(see, tmp_path):
    nasty = (
        "</script><script>document.title = 'owned'</script><img src=x "
        'onerror="document.title '
        "= 'owned'\">"
    )
    content = page(
        f"a {nasty}",
        paragraph(nasty),
        table([(nasty, 1)], (nasty, "n")),
        data("record", {"key": nasty}),
    )
    path = tmp_path / "page.html"
    path.write_text(content, encoding="utf-8")
    seen = see(path)
    assert seen.page.title() == f"a {nasty}"
    assert seen.page.locator("td").first.text_content() == nasty
    assert seen.page.locator("img").count() == 0
    assert json.loads(seen.page.locator("#record").text_content()) == {"key": nasty}


def test_a_page_and_a_contact_sheet_are_written_together(cli, raw_dataset, tmp_path):
    page, sheet = tmp_path / "out.html", tmp_path / "sheet.png"
    found = cli(
        "inspect", raw_dataset, "--split", "val", "--html", page, "--images", sheet, "--json"
    )
    samples = len(shardctl.open(raw_dataset, split="val"))
    written = {"file": str(page), "page": str(page), "sheet": str(sheet)}
    assert found.json == {**written, "images": samples}
    assert sheet.read_bytes().startswith(b"\x89PNG")
    content = page.read_text(encoding="utf-8")
    assert "split val" in content
    assert f": {samples} image samples in" in content, "the page is that of the split"


NOTEBOOK = {"light": ("#ffffff", "#000000"), "dark": ("#111111", "#dddddd")}
"""Colours of paper and text that a notebook has of its own."""


@pytest.mark.parametrize("scheme", NOTEBOOK)
def test_what_a_notebook_shows_can_be_read_on_light_and_dark(see, dataset, tmp_path, scheme):
    flip(next(iter(shards_in(dataset))))
    (dataset / "extra.txt").touch()
    paper, ink = NOTEBOOK[scheme]
    results = (shardctl.open, shardctl.inspect, shardctl.verify, shardctl.repair)
    body = "".join(result(dataset)._repr_html_() for result in results)
    path = tmp_path / "notebook.html"
    path.write_text(
        f'<!doctype html><meta charset="utf-8"><body style="background:{paper};color:{ink}">{body}',
        encoding="utf-8",
    )
    seen = see(path, scheme, quiet=False)
    asked = [url for url in seen.requests if not url.startswith("data:image/")]
    assert (seen.complaints, asked) == ([], [path.as_uri()])
    seen.check_contrasts("b", "th", "td", "span")
    assert seen.page.locator("img").evaluate_all(DRAWN)
