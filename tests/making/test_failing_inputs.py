"""Inputs of which most cannot be converted: the conversion stops before it writes anything, and
says what to do."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from in_this_process import convert
from PIL import Image
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
    ("text", "encoding", "guessed"),
    [
        (CHINESE, "gbk", "gb18030"),
        (TRADITIONAL, "big5", "big5"),
        (JAPANESE, "shift_jis", "cp932"),
        (JAPANESE, "euc_jp", "euc_jp"),
        (KOREAN, "euc_kr", "cp949"),
        (RUSSIAN, "cp1251", "cp1251"),
        (RUSSIAN, "koi8_r", "koi8_r"),
        (FRENCH, "cp1252", "cp1252"),
        (GERMAN, "latin_1", "cp1252"),
        (GERMAN, "utf-16-le", "utf-16-le"),
        (GERMAN, "utf-16-be", "utf-16-be"),
        (CHINESE, "utf-16", "utf-16-le"),
    ],
)
def test_the_encoding_of_a_text_is_guessed(text, encoding, guessed):
    data = (text + "\n").encode(encoding)
    found = guess_encoding(data)
    assert found is not None
    assert found.name == guessed
    # and of the beginning of a file, which may be half a character
    data = data * 2 if encoding == "utf-16" else data * 20
    found = guess_encoding(data[: len(data) - 3])
    assert found is not None
    assert found.name == guessed


def test_nothing_is_guessed_of_bytes_that_are_no_text():
    assert guess_encoding(bytes(range(256)) * 8) is None
    assert guess_encoding(b"") is None
    assert guess_encoding(b"plain ASCII") is None


@pytest.mark.parametrize("options", [[], ["--dry-run"], ["--part", "1/2"]])
def test_lines_in_another_encoding_stop_the_conversion(cli, tmp_path, out, options):
    source = lines(tmp_path / "in.txt", CHINESE, "gbk")
    ran = cli("convert", source, out, "--record", "line", "--workers", 0, *options)
    assert (ran.code, ran.out) == (1, "")
    assert (
        "40 of the 40 inputs that were tried cannot be converted, and nothing was written"
        in ran.err
    )
    assert (
        "For instance in.txt#1: not UTF-8 at byte 0 of the line. The file looks like GBK "
        "(Chinese): add --encoding" in ran.err
    )
    assert f"--encoding gb18030. A line reads then: '{CHINESE}0'. To convert" in ran.err
    assert not list(out.glob("*"))
    assert (
        cli(
            "convert",
            source,
            out,
            "--record",
            "line",
            "--workers",
            0,
            "--encoding",
            "gb18030",
        ).code
        == 0
    )


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.jsonl", json.dumps({"text": CHINESE}, ensure_ascii=False).encode("gbk") + b"\n"),
        (
            "a.jsonl.gz",
            gzip.compress(json.dumps({"text": CHINESE}, ensure_ascii=False).encode("gbk") + b"\n"),
        ),
        ("a.json", json.dumps([{"text": CHINESE}], ensure_ascii=False).encode("gbk")),
        ("a.csv", f"title,text\n1,{CHINESE}\n".encode("gbk")),
        ("b.csv", f"标题,正文\n1,{CHINESE}\n".encode("gbk")),
        ("a.txt", CHINESE.encode("gbk")),
    ],
)
def test_the_encoding_is_said_of_all_forms_of_text(tmp_path, out, name, data):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(
        TooManyRejectsError,
        match=r"1 of the 1 input .* looks like GBK \(Chinese\): add encoding='gb18030'",
    ):
        convert(tmp_path / name, out)
    assert convert(tmp_path / name, out, {"encoding": "gb18030"}).samples == 1


def test_json_lines_in_utf_16_are_told_from_what_is_no_json(tmp_path, out):
    (tmp_path / "a.jsonl").write_bytes('{"a": 1}\n{"a": 2}\n'.encode("utf-16-le"))
    with pytest.raises(TooManyRejectsError, match="looks like UTF-16-LE: add encoding='utf-16-le'"):
        convert(tmp_path / "a.jsonl", out)
    (tmp_path / "b.jsonl").write_text("no JSON\n" * 3 + '{"a": 1}\n')
    with pytest.raises(
        TooManyRejectsError, match=r"3 of the 4 inputs .* b.jsonl#1: not a line of JSON"
    ) as raised:
        convert(tmp_path / "b.jsonl", out)
    assert "encoding" not in str(raised.value)


def test_images_that_do_not_decode_stop_the_conversion_where_they_are_more_than_half(
    tmp_path,
    out,
):
    (tmp_path / "in").mkdir()
    Image.new("RGB", (4, 4)).save(tmp_path / "in" / "1.png")
    (tmp_path / "in" / "2.png").write_bytes(b"bad")
    assert convert(tmp_path / "in", tmp_path / "half").rejected == 1
    (tmp_path / "in" / "3.png").write_bytes(b"")
    (tmp_path / "in" / "4.png").write_bytes(b"bad, too")
    with pytest.raises(TooManyRejectsError) as raised:
        shardctl.convert(tmp_path / "in", out, workers=1)
    assert str(raised.value).startswith(
        "3 of the 4 inputs that were tried cannot be converted, and nothing was written. Most "
        "frequent (2): decode:"
        " not-an-image. For instance 2.png: not an image"
    )
    assert not out.exists()
    result = convert(tmp_path / "in", out, max_rejects=3)
    assert (result.samples, result.rejected) == (1, 3)


def test_what_filters_leave_out_does_not_stop_a_conversion(tmp_path):
    (tmp_path / "in.jsonl").write_text(
        "".join(f'{{"text": "{"x" * size}"}}\n' for size in (1, 1, 1, 1, 100))
    )
    recipe = {"transform": [{"name": "filter_length", "min_chars": 50}]}
    result = convert(tmp_path / "in.jsonl", tmp_path / "out", recipe)
    assert (result.samples, result.rejected) == (1, 4)
    assert result.warnings[0].startswith(
        "4 inputs of 5 rejected, more than half. Most frequent (4): filter:"
    )


def test_a_conversion_that_was_begun_goes_on(tmp_path, out):
    """It was begun with --max-rejects, which a second run may leave out."""
    source = lines(tmp_path / "in.jsonl", "no JSON", "ascii", 3)
    source.write_bytes(source.read_bytes() + b'{"a": 1}\n')
    with pytest.raises(TooManyRejectsError, match="so far, more than max_rejects allows"):
        convert(source, out, max_rejects=1)
    assert convert(source, out).samples == 1


def test_an_update_goes_on_and_says_how_many_new_inputs_failed(tmp_path, out):
    """One broken photo of a day must not keep the others out for ever."""
    (tmp_path / "in").mkdir()
    lines(tmp_path / "in" / "a.txt", "good", "ascii", 200)
    options: dict[str, Any] = {"recipe": {"record": "line"}, "workers": 0}
    shardctl.convert(tmp_path / "in", out, **options)
    lines(tmp_path / "in" / "b.txt", CHINESE, "gbk", 4)
    result = shardctl.convert(tmp_path / "in", out, update=True, **options)
    assert (result.status, result.samples) == ("updated", 200)
    (warning,) = result.warnings
    assert warning.startswith("4 of 4 new or changed inputs were rejected")
    assert "no sample comes of b.txt. Most frequent (4): decode: not-utf8" in warning


FOLLOWING: dict[str, Any] = {"recipe": {"record": "line"}, "workers": 0, "update": True}


def days(source: Path, count: int = 30) -> Path:
    source.mkdir()
    for day in range(count):
        lines(source / f"day{day:02}.txt", f"{day} good", "ascii", 100)
    return source


@pytest.mark.parametrize("split", ["none", "train=0.5,val=0.5"])
def test_an_update_names_a_changed_file_of_which_all_records_are_lost(tmp_path, out, split):
    """Among all inputs they are few, and the number of inputs is as it was."""
    source, options = days(tmp_path / "in"), {**FOLLOWING, "split": split}
    shardctl.convert(source, out, **options)
    lines(source / "day03.txt", CHINESE, "gbk", 100)
    result = shardctl.convert(source, out, max_rejects="100%", **options)
    assert (result.samples, result.rejected) == (2900, 100)
    (warning,) = [each for each in result.warnings if "another split" not in each]
    assert warning.startswith("100 of 100 new or changed inputs were rejected")
    assert "no sample comes of day03.txt. Most frequent (100)" in warning
    assert shardctl.convert(source, out, **options).status == "up-to-date"


def test_an_update_that_would_lose_samples_stops_where_most_changed_inputs_fail(cli, tmp_path):
    source, out = days(tmp_path / "in", 20), tmp_path / "out"
    command = [
        "convert",
        source,
        out,
        "--record",
        "line",
        "--workers",
        0,
        "--samples-per-shard",
        300,
        "--update",
    ]
    assert cli(*command).code == 0
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    for day in range(19):
        lines(source / f"day{day:02}.txt", CHINESE, "gbk", 100)
    for _ in range(2):
        ran = cli(*command)
        assert ran.code == 1
        assert (
            "1,900 of 1,900 new or changed inputs could not be converted, and 1,900 samples of "
            "changed files would be lost."
            " Most frequent (1,900): decode: not-utf8" in ran.err
        )
        assert "The dataset is as it was before. To update it anyway: --max-rejects 100%" in ran.err
        assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    assert cli(*command, "--max-rejects", "100%").code == 0
    assert len(shardctl.open(out)) == 100
    assert shardctl.verify(out).findings == ()
    assert (
        cli("convert", source, tmp_path / "fresh", *command[3:-1], "--max-rejects", "100%").code
        == 0
    )
    keys = [[sample["key"] for sample in shardctl.open(each)] for each in (out, tmp_path / "fresh")]
    assert keys[0] == keys[1]


def test_an_update_stops_too_where_each_changed_file_keeps_a_few_samples(tmp_path, out):
    source = days(tmp_path / "in", 5)
    shardctl.convert(source, out, **FOLLOWING)
    for day in range(3):
        lines(source / f"day{day:02}.txt", CHINESE, "gbk", 90)
        with open(source / f"day{day:02}.txt", "ab") as file:
            file.write(b"good\n" * 10)
    with pytest.raises(
        TooManyRejectsError,
        match=r"270 of 300 new or changed .* 270 samples of changed files would be lost",
    ):
        shardctl.convert(source, out, **FOLLOWING)
    assert len(shardctl.open(out)) == 500


def test_an_update_counts_new_inputs_and_not_the_difference(tmp_path, out):
    source = days(tmp_path / "in")
    shardctl.convert(source, out, **FOLLOWING)
    (source / "day00.txt").unlink()
    lines(source / "day30.txt", CHINESE, "gbk", 60)
    with open(source / "day30.txt", "ab") as file:
        file.write(b"good\n" * 40 + b"\n" * 100)
    result = shardctl.convert(source, out, **FOLLOWING)
    assert (result.samples, result.rejected) == (2940, 60)
    (warning,) = result.warnings
    assert warning.startswith(
        "60 of 100 new or changed inputs were rejected. Most frequent (60): decode: not-utf8"
    )
    (source / "day01.txt").unlink()
    lines(source / "day31.txt", "good", "ascii", 200)
    assert shardctl.convert(source, out, **FOLLOWING).warnings == (), (
        "what failed before is not new"
    )


def test_an_update_names_a_new_file_that_is_one_reject_and_an_emptied_one(tmp_path, out):
    source = days(tmp_path / "in")
    shardctl.convert(source, out, **FOLLOWING)
    lines(source / "day30.txt", "good", "ascii", 100)
    lines(source / "day31.txt", "good", "utf-16", 100)
    (source / "day05.txt").write_bytes(b"\n")
    result = shardctl.convert(source, out, **FOLLOWING)
    (warning,) = result.warnings
    assert "no sample comes of day05.txt, day31.txt. Most frequent (1): plan: not-utf8" in warning


def test_an_update_that_was_stopped_says_it_too(tmp_path, out, monkeypatch):
    source = days(tmp_path / "in", 3)
    shardctl.convert(source, out, **FOLLOWING)
    lines(source / "day01.txt", CHINESE, "gbk", 100)

    def stops(*_: Any) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as stopped:
        stopped.setattr("shardctl.making.convert.run.build", stops)
        with pytest.raises(KeyboardInterrupt):
            shardctl.convert(source, out, **FOLLOWING)
    result = shardctl.convert(source, out, max_rejects="100%", **FOLLOWING)
    assert result.status == "resumed"
    assert any("no sample comes of day01.txt" in each for each in result.warnings)


def test_an_update_says_nothing_of_changed_files_that_a_filter_leaves_out(tmp_path, out):
    source = days(tmp_path / "in", 5)
    options = {
        **FOLLOWING,
        "recipe": {"record": "line", "transform": [{"name": "filter_length", "min_chars": 4}]},
    }
    shardctl.convert(source, out, **options)
    lines(source / "day01.txt", "", "ascii", 100)
    lines(source / "day02.txt", "2 good", "ascii", 300)
    result = shardctl.convert(source, out, **options)
    assert (result.rejected, result.warnings) == (100, ())


def test_an_update_names_a_photo_that_was_good_before(tmp_path, out):
    (tmp_path / "in").mkdir()
    for number in range(8):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(tmp_path / "in" / f"{number}.png")
    convert(tmp_path / "in", out)
    for number in (2, 3):
        (tmp_path / "in" / f"{number}.png").write_bytes(b"bad")
    Image.new("RGB", (5, 5)).save(tmp_path / "in" / "4.png")
    result = convert(tmp_path / "in", out, update=True, max_rejects="100%")
    said = "no sample comes of 2.png, 3.png. Most frequent (2): decode:"
    assert any(said in each for each in result.warnings)


def test_what_is_appended_and_wholly_rejected_is_said_with_the_reason(tmp_path, out, cli):
    source = days(tmp_path / "in", 3)
    assert cli("convert", source, out, "--record", "line", "--workers", 0).code == 0
    (tmp_path / "more").mkdir()
    lines(tmp_path / "more" / "a.txt", RUSSIAN, "cp1251", 10)
    ran = cli(
        "convert",
        tmp_path / "more",
        out,
        "--record",
        "line",
        "--workers",
        0,
        "--append",
        "-q",
    )
    assert ran.code == 0
    assert "no sample comes of a.txt. Most frequent (10): decode: not-utf8" in ran.err


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
def test_nul_bytes_alone_make_no_text_utf_16(tmp_path, data):
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.txt").write_bytes(data * (number + 1))
    assert convert(tmp_path / "in", tmp_path / "out").samples == 3


@pytest.mark.thorough
def test_what_a_file_begins_with_does_not_refuse_what_follows(tmp_path):
    source = tmp_path / "a.jsonl.gz"
    rows = [f"# comment {number}" for number in range(2000)] + [
        json.dumps({"number": number}) for number in range(9000)
    ]
    source.write_bytes(gzip.compress("\n".join(rows).encode()))
    for split in ({}, {"split": "train=0.8,val=0.2"}):
        result = convert(source, tmp_path / f"out{len(split)}", **split)
        assert (result.samples, result.rejected) == (9000, 2000)
        assert result.warnings[0].startswith("2,000 of 11,000 inputs")
    # the plan depends on the inputs alone
    result = shardctl.convert(source, tmp_path / "parts", workers=2)
    sums = [(tmp_path / name / "SHA256SUMS").read_bytes() for name in ("out0", "parts")]
    assert sums[0] == sums[1]


def test_images_at_the_beginning_of_a_table_do_not_refuse_the_others(tmp_path):
    held = io.BytesIO()
    Image.new("RGB", (4, 4)).save(held, "PNG")
    table = pa.table({"image": [b"bad"] * 100 + [held.getvalue()] * 300})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert convert(tmp_path / "a.parquet", tmp_path / "out").samples == 300
    parquet.write_table(table.slice(20, 140), tmp_path / "b.parquet")
    with pytest.raises(
        TooManyRejectsError, match=r"of the \d+ inputs that were tried cannot be converted"
    ):
        convert(tmp_path / "b.parquet", tmp_path / "refused")


def test_files_in_another_encoding_that_are_fewer_than_half_are_rejected(tmp_path):
    """The first, the last and one between them are, which a few tries may meet."""
    (tmp_path / "in").mkdir()
    for number in range(10):
        encoding = "gbk" if number in (0, 3, 6, 9) else "utf-8"
        lines(tmp_path / "in" / f"{number}.txt", CHINESE, encoding, 50)
    result = convert(tmp_path / "in", tmp_path / "out", {"record": "line"})
    assert (result.samples, result.rejected) == (300, 200)


@pytest.mark.parametrize(
    ("text", "encoding", "guessed"),
    [
        ("Eskişehir, İzmir, Muğla ve Çanakkale şehirlerinde yağmurlu bir gün.", "cp1254", "cp1254"),
        (
            "Øll menniskju eru fødd fræls og jøvn til virðingar og mannarættindi.",
            "latin_1",
            "cp1252",
        ),
        (
            "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق وقد وهبوا عقلا وضميرا",
            "iso8859_6",
            "iso8859_6",
        ),
        (
            "Minden emberi lény egyenlő méltósága és joga, árvíztűrő tükörfúrógép",
            "iso8859_2",
            "iso8859_2",
        ),
        ("北京 上海 广州 深圳 杭州 南京 成都 武汉 西安 重庆 天津 苏州 长沙 郑州", "gbk", "gb18030"),
        ("臺北 高雄 臺中 臺南 桃園 新竹 基隆 嘉義 屏東 花蓮 宜蘭", "big5", "big5"),
    ],
)
def test_languages_and_lists_of_names_are_told_apart(text, encoding, guessed):
    found = guess_encoding((text + "\n").encode(encoding))
    assert found is not None
    assert found.name == guessed
    assert text.startswith(found.line.rstrip("…"))


def test_the_line_of_a_message_is_short_and_printable(tmp_path):
    (tmp_path / "a.txt").write_bytes((f"\x1b[31m{'x' * 500}" + CHINESE * 20 + "\n").encode("gbk"))
    found = guess_encoding((tmp_path / "a.txt").read_bytes())
    assert found is not None
    assert CHINESE[:30] in found.line
    assert len(found.line) < 80
    assert found.line.isprintable()
