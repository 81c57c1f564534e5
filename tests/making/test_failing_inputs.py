"""Inputs of which most cannot be converted: the conversion stops before it writes anything, and
says what to do."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest
from dataset_facts import expect_whole, keys
from dataset_files import tables_in
from followed_sources import digests_of, write, write_lines
from image_files import image, images
from in_this_process import convert
from pyarrow import parquet

import shardctl
from shardctl.errors import TooManyRejectsError
from shardctl.sources.formats.encodings import guess_encoding

CHINESE = "今天的天气很好，我们一起去公园看看。她说这是最近一个月里最好的一天，大家都很高兴。"
TRADITIONAL = "今天的天氣很好，我們一起去公園看看。她說這是最近一個月裡最好的一天，大家都很高興。"
JAPANESE = (
    "今日はとても天気がいいので、みんなで公園へ行きました。コーヒーを飲みながら話をしました。"
)
KOREAN = "오늘은 날씨가 아주 좋아서 우리는 함께 공원에 가기로 했다. 그녀는 이번 달에서 가장 좋은 날이라고 말했다."
RUSSIAN = (
    "Сегодня очень хорошая погода, и мы все вместе пошли гулять в парк. Она сказала, что "
    "это "
    "лучший день."
)
FRENCH = (
    "Il fait très beau aujourd’hui, nous sommes allés au parc où les élèves préféraient déjà "
    "s’asseoir à l’ombre."
)
GERMAN = (
    "Heute ist schönes Wetter, und wir gehen mit großer Freude über die Brücke in den Park, "
    "wo die Vögel fröhlich sind."
)


def lines(path: Path, text: str, encoding: str, count: int = 40) -> Path:
    path.write_bytes("".join(f"{text}{number}\n" for number in range(count)).encode(encoding))
    return path


@pytest.mark.parametrize(
    ("guessed", "encoding", "text"),
    [
        ("gb18030", "gbk", CHINESE),
        ("big5", "big5", TRADITIONAL),
        ("cp932", "shift_jis", JAPANESE),
        ("euc_jp", "euc_jp", JAPANESE),
        ("cp949", "euc_kr", KOREAN),
        ("cp1251", "cp1251", RUSSIAN),
        ("koi8_r", "koi8_r", RUSSIAN),
        ("cp1252", "cp1252", FRENCH),
        ("cp1252", "latin_1", GERMAN),
        ("utf-16-le", "utf-16-le", GERMAN),
        ("utf-16-be", "utf-16-be", GERMAN),
        ("utf-16-le", "utf-16", CHINESE),
        ("cp1254", "cp1254", "Eskişehir, İzmir, Muğla ve Çanakkale şehirlerinde yağmurlu bir gün."),
        (
            "cp1252",
            "latin_1",
            "Øll menniskju eru fødd fræls og jøvn til virðingar og mannarættindi.",
        ),
        (
            "iso8859_6",
            "iso8859_6",
            "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق وقد وهبوا عقلا",
        ),
        (
            "iso8859_2",
            "iso8859_2",
            "Minden emberi lény egyenlő méltósága és joga, árvíztűrő tükörfúrógép",
        ),
        ("gb18030", "gbk", "北京 上海 广州 深圳 杭州 南京 成都 武汉 西安 重庆 天津 苏州 长沙 郑州"),
        ("big5", "big5", "臺北 高雄 臺中 臺南 桃園 新竹 基隆 嘉義 屏東 花蓮 宜蘭"),
    ],
)
def test_the_encoding_of_a_text_is_guessed(text, encoding, guessed):
    """And that of the beginning of a file, which may be half a character; also of lists of names."""
    data = (text + "\n").encode(encoding)
    more = data * (2 if encoding == "utf-16" else 20)
    for part in (data, more[: len(more) - 3]):
        found = guess_encoding(part)
        assert found is not None
        assert found.name == guessed
        assert text.startswith(found.line.rstrip("…"))


def test_nothing_is_guessed_of_bytes_that_are_no_text():
    for data in (bytes(range(256)) * 8, b"", b"plain ASCII"):
        assert guess_encoding(data) is None


@pytest.mark.parametrize("options", [[], ["--dry-run"], ["--part", "1/2"]])
def test_lines_in_another_encoding_stop_the_conversion(cli, tmp_path, out, options):
    source = lines(tmp_path / "in.txt", CHINESE, "gbk")
    command = ("convert", source, out, "--record", "line", "--workers", 0)
    ran = cli(*command, *options)
    assert (ran.code, ran.out) == (1, "")
    for said in (
        "40 of the 40 inputs that were tried cannot be converted, and nothing was written",
        "For instance in.txt#1: not UTF-8 at byte 0 of the line. The file looks like GBK (Chinese)",
        f"--encoding gb18030. A line reads then: '{CHINESE}0'.",
    ):
        assert said in ran.err
    assert not list(out.glob("*"))
    assert cli(*command, "--encoding", "gb18030").code == 0


OBJECT = json.dumps({"text": CHINESE}, ensure_ascii=False)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", f"{OBJECT}\n"),
        ("a.jsonl.gz", f"{OBJECT}\n"),
        ("a.json", f"[{OBJECT}]"),
        ("a.csv", f"title,text\n1,{CHINESE}\n"),
        ("b.csv", f"标题,正文\n1,{CHINESE}\n"),
        ("a.txt", CHINESE),
    ],
)
def test_the_encoding_is_said_of_all_forms_of_text(tmp_path, out, name, text):
    source = write(tmp_path / name, text.encode("gbk"))
    said = r"1 of the 1 input .* looks like GBK \(Chinese\): add encoding='gb18030'"
    with pytest.raises(TooManyRejectsError, match=said):
        convert(source, out)
    assert convert(source, out, {"encoding": "gb18030"}).samples == 1


def test_json_lines_in_utf_16_are_told_from_what_is_no_json(tmp_path, out):
    source = write(tmp_path / "a.jsonl", '{"a": 1}\n{"a": 2}\n'.encode("utf-16-le"))
    with pytest.raises(TooManyRejectsError, match="looks like UTF-16-LE: add encoding='utf-16-le'"):
        convert(source, out)
    source = write_lines(tmp_path / "b.jsonl", ["no JSON"] * 3 + [{"a": 1}])
    with pytest.raises(TooManyRejectsError, match=r"3 of the 4 inputs .* not a line of JSON") as no:
        convert(source, out)
    assert "encoding" not in str(no.value)


def test_images_that_do_not_decode_stop_the_conversion_where_they_are_more_than_half(tmp_path, out):
    source = images(tmp_path / "in", "1.png")
    write(source / "2.png", "bad")
    assert convert(source, tmp_path / "half").rejected == 1
    write(source / "3.png", "")
    write(source / "4.png", "bad, too")
    said = r"^3 of the 4 inputs that were tried .* Most frequent \(2\): decode: not-an-image"
    with pytest.raises(TooManyRejectsError, match=said):
        shardctl.convert(source, out, workers=1)
    assert not out.exists()
    result = convert(source, out, max_rejects=3)
    assert (result.samples, result.rejected) == (1, 3)


def test_what_filters_leave_out_does_not_stop_a_conversion(tmp_path, out):
    source = write_lines(tmp_path / "in.jsonl", ({"text": "x" * n} for n in (1, 1, 1, 1, 100)))
    result = convert(source, out, {"transform": [{"name": "filter_length", "min_chars": 50}]})
    assert (result.samples, result.rejected) == (1, 4)
    assert result.warnings[0].startswith("4 inputs of 5 rejected, more than half.")


def test_a_conversion_that_was_begun_goes_on(tmp_path, out):
    """It was begun with --max-rejects, which a second run may leave out."""
    source = write_lines(tmp_path / "in.jsonl", ["no JSON"] * 3 + [{"a": 1}])
    with pytest.raises(TooManyRejectsError, match="so far, more than max_rejects allows"):
        convert(source, out, max_rejects=1)
    assert convert(source, out).samples == 1


def follow(source: Path, out: Path, **options: Any) -> Any:
    return convert(source, out, **{"recipe": {"record": "line"}, "update": True, **options})


def days(source: Path, count: int = 30) -> Path:
    for day in range(count):
        day_of(source, day)
    return source


def day_of(source: Path, day: int, text: str = "", count: int = 100, more: str = "") -> None:
    """Write a good day, or one with lines in another encoding and more good ones."""
    encoded = f"{text}\n".encode("gbk") * count if text else f"{day} good\n".encode() * count
    write(source / f"day{day:02}.txt", encoded + more.encode())


@pytest.mark.parametrize("split", ["none", "train=0.5,val=0.5"])
def test_an_update_names_a_changed_file_of_which_all_records_are_lost(tmp_path, out, split):
    """Among all inputs they are few, and the number of inputs is as it was."""
    source = days(tmp_path / "in")
    follow(source, out, split=split)
    day_of(source, 3, CHINESE)
    result = follow(source, out, max_rejects="100%", split=split)
    assert (result.samples, result.rejected) == (2900, 100)
    (warning,) = [each for each in result.warnings if "another split" not in each]
    assert warning.startswith("100 of 100 new or changed inputs were rejected")
    assert "no sample comes of day03.txt. Most frequent (100): decode: not-utf8" in warning
    assert follow(source, out, split=split).status == "up-to-date"


def test_an_update_that_would_lose_samples_stops_where_most_changed_inputs_fail(tmp_path, out):
    source = days(tmp_path / "in", 20)
    follow(source, out)
    before = digests_of(out)
    for day in range(19):
        day_of(source, day, CHINESE)
    for _ in range(2):
        said = (
            r"1,900 of 1,900 new or changed inputs .* 1,900 samples of changed files would be lost"
        )
        with pytest.raises(TooManyRejectsError, match=f"{said}.* The dataset is as it was before"):
            follow(source, out)
        assert digests_of(out) == before
    assert follow(source, out, max_rejects="100%").samples == 100
    expect_whole(out)
    follow(source, tmp_path / "fresh", max_rejects="100%")
    assert keys(out) == keys(tmp_path / "fresh")


def test_an_update_stops_too_where_each_changed_file_keeps_a_few_samples(tmp_path, out):
    source = days(tmp_path / "in", 5)
    follow(source, out)
    for day in range(3):
        day_of(source, day, CHINESE, 90, "good\n" * 10)
    said = r"270 of 300 new or changed .* 270 samples of changed files would be lost"
    with pytest.raises(TooManyRejectsError, match=said):
        follow(source, out)
    assert len(shardctl.open(out)) == 500


def test_an_update_counts_new_inputs_and_not_the_difference(tmp_path, out):
    source = days(tmp_path / "in")
    follow(source, out)
    (source / "day00.txt").unlink()
    day_of(source, 30, CHINESE, 60, "good\n" * 40 + "\n" * 100)
    result = follow(source, out)
    assert (result.samples, result.rejected) == (2940, 60)
    (warning,) = result.warnings
    assert warning.startswith("60 of 100 new or changed inputs were rejected. Most frequent (60):")
    (source / "day01.txt").unlink()
    day_of(source, 31, count=200)
    assert follow(source, out).warnings == (), "what failed before is not new"


def test_an_update_names_a_new_file_that_is_one_reject_and_an_emptied_one(tmp_path, out):
    source = days(tmp_path / "in")
    follow(source, out)
    day_of(source, 30)
    lines(source / "day31.txt", "good", "utf-16", 100)
    write(source / "day05.txt", "\n")
    (warning,) = follow(source, out).warnings
    assert "no sample comes of day05.txt, day31.txt. Most frequent (1): plan: not-utf8" in warning


def test_an_update_that_was_stopped_says_it_too(tmp_path, out, monkeypatch):
    source = days(tmp_path / "in", 3)
    follow(source, out)
    day_of(source, 1, CHINESE)
    with monkeypatch.context() as stopped:
        stopping = Mock(side_effect=KeyboardInterrupt)
        stopped.setattr("shardctl.making.convert.run.build_shards", stopping)
        with pytest.raises(KeyboardInterrupt):
            follow(source, out)
    result = follow(source, out, max_rejects="100%")
    assert result.status == "resumed"
    assert any("no sample comes of day01.txt" in each for each in result.warnings)


def test_an_update_says_nothing_of_changed_files_that_a_filter_leaves_out(tmp_path, out):
    source = days(tmp_path / "in", 5)
    steps = [{"name": "filter_length", "min_chars": 4}]
    options = {"recipe": {"record": "line", "transform": steps}}
    follow(source, out, **options)
    write(source / "day01.txt", "no\n" * 100)
    day_of(source, 2, count=300)
    result = follow(source, out, **options)
    assert (result.rejected, result.warnings) == (100, ())


def test_an_update_names_a_photo_that_was_good_before(tmp_path, out):
    source = images(tmp_path / "in", *(f"{number}.png" for number in range(8)))
    convert(source, out)
    for number in (2, 3):
        write(source / f"{number}.png", "bad")
    image(source / "4.png", (5, 5))
    result = convert(source, out, update=True, max_rejects="100%")
    said = "no sample comes of 2.png, 3.png. Most frequent (2): decode:"
    assert any(said in each for each in result.warnings)


def test_what_is_appended_and_wholly_rejected_is_said_with_the_reason(tmp_path, out):
    follow(days(tmp_path / "in", 3), out)
    more = lines(tmp_path / "a.txt", RUSSIAN, "cp1251", 10)
    (warning,) = follow(more, out, append=True, update=False).warnings
    assert "no sample comes of a.txt. Most frequent (10): decode: not-utf8" in warning


@pytest.mark.thorough(after=6)
@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
@pytest.mark.parametrize("text", ["text", "текст"])
@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("a.csv", "file"),
        ("a.csv.gz", "file"),
        ("a.txt", "file"),
        ("a.txt", "line"),
        ("a.txt", "paragraph"),
        ("a.jsonl", "file"),
        ("a.json", "file"),
    ],
)
def test_utf_16_without_a_mark_is_no_utf_8(tmp_path, out, name, encoding, record, text):
    """Nearly all of its bytes are valid UTF-8, with NUL bytes between the letters."""
    rows = f"{text},label\n" + "".join(f"{text} {number},{number % 2}\n" for number in range(50))
    objects = "".join(
        json.dumps({text: f"{text} {number}"}, ensure_ascii=False) + "\n" for number in range(50)
    )
    data = (objects if "json" in name else rows).encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    with pytest.raises(TooManyRejectsError, match=rf"1 of the 1 input .*add encoding='{encoding}'"):
        convert(tmp_path / name, out, {"record": record})
    recipe = {"record": record, "encoding": encoding}
    assert convert(tmp_path / name, out, recipe).rejected == 0


@pytest.mark.parametrize(
    "data", [b"abc\0def\0\n", b"some \0 text\n", b"\0" * 40 + b"\n", b"a\0\n", b"abc\0"]
)
def test_nul_bytes_alone_make_no_text_utf_16(tmp_path, out, data):
    for number in range(3):
        write(tmp_path / "in" / f"{number}.txt", data * (number + 1))
    assert convert(tmp_path / "in", out).samples == 3


@pytest.mark.thorough
def test_what_a_file_begins_with_does_not_refuse_what_follows(tmp_path):
    rows = [f"# comment {n}" for n in range(2000)] + [{"number": n} for n in range(9000)]
    source = write_lines(tmp_path / "a.jsonl.gz", rows)
    for split in ("none", "train=0.8,val=0.2"):
        result = convert(source, tmp_path / split, split=split)
        assert (result.samples, result.rejected) == (9000, 2000)
        assert result.warnings[0].startswith("2,000 of 11,000 inputs")
    # the plan depends on the inputs alone
    shardctl.convert(source, tmp_path / "parts", workers=2, split="none")
    one, other = (
        (tables_in(tmp_path / name) / "SHA256SUMS").read_bytes() for name in ("none", "parts")
    )
    assert one == other


def test_images_at_the_beginning_of_a_table_do_not_refuse_the_others(tmp_path, out):
    good = image(tmp_path / "good.png").read_bytes()
    table = pa.table({"image": [b"bad"] * 100 + [good] * 300})
    for name, rows in (("a", table), ("b", table.slice(20, 140))):
        parquet.write_table(rows, tmp_path / f"{name}.parquet")
    assert convert(tmp_path / "a.parquet", out).samples == 300
    with pytest.raises(TooManyRejectsError, match="inputs that were tried cannot be converted"):
        convert(tmp_path / "b.parquet", tmp_path / "refused")


def test_files_in_another_encoding_that_are_fewer_than_half_are_rejected(tmp_path, out):
    """The first, the last and one between them are, which a few tries may meet."""
    for number in range(10):
        day_of(tmp_path / "in", number, CHINESE * (number % 3 == 0), 50)
    result = follow(tmp_path / "in", out)
    assert (result.samples, result.rejected) == (300, 200)


def test_the_line_of_a_message_is_short_and_printable():
    found = guess_encoding((f"\x1b[31m{'x' * 500}" + CHINESE * 20 + "\n").encode("gbk"))
    assert found is not None
    assert CHINESE[:30] in found.line
    assert len(found.line) < 80
    assert found.line.isprintable()
