"""What all formats of framed records promise, and small files of theirs as the real writers of
other tools wrote them."""

from __future__ import annotations

import base64
import gzip
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from reading import READING, Everything, cut, read, types_of, units_of

from shardctl.errors import Rejection
from shardctl.sources.formats.found_values import Container
from shardctl.sources.formats.framed import Framed

INTEROP = Path(__file__).resolve().parents[2] / "interop" / "samples"


def expected(name: str) -> dict[str, list[Any]]:
    """Return what the real reader reads in each file of a folder of tests/interop/samples."""
    found: dict[str, list[Any]] = json.loads(
        (INTEROP / "expected" / f"{name}.json").read_text(), object_hook=_with_bytes
    )
    return found


def _with_bytes(value: dict[str, Any]) -> Any:
    return base64.b64decode(value["base64"]) if value.keys() == {"base64"} else value


def errors(found: Everything) -> list[tuple[int, str]]:
    return [(number, error) for number, error, _ in found.rejects]


class Promises:
    """The tests that every such format passes. A subclass says what its files are made of.

    `records` gives the bytes of so many records, each by itself; `whole` puts them together.
    """

    form: type[Container]
    suffix: str

    def whole(self, count: int) -> bytes:
        """Return a file with so many records."""
        raise NotImplementedError

    def starts(self, count: int) -> list[int]:
        """Return where the records of such a file begin, and where the last one ends."""
        raise NotImplementedError

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / f"a{self.suffix}"
        path.write_bytes(self.whole(20))
        return path

    @pytest.fixture
    def format_(self) -> Framed:
        return Framed(self.form)

    @pytest.mark.parametrize("unit_bytes", [1, 700, 1 << 20])
    def test_units_of_any_size_give_the_same_records(self, path, format_, unit_bytes):
        small = Framed(self.form, unit_bytes=unit_bytes)
        found, whole = read(small, path), read(format_, path)
        assert found.numbers == whole.numbers == list(range(1, 21))
        assert found.rows == whole.rows
        assert (len(cut(small, path)) > 1) == (unit_bytes < 1 << 20)

    def test_parts_of_a_unit_give_the_same_records_in_any_order(self, path, format_):
        schema, whole = types_of(format_, path).found(), read(format_, path)
        (unit,) = units_of(cut(format_, path))
        parts = [
            unit._replace(skip=skip, first=1 + skip, records=min(7, 20 - skip))
            for skip in (14, 0, 7)
        ]
        found = read(format_, path, schema=schema, units=parts)
        assert found.numbers == [*range(15, 21), *range(1, 15)]
        assert found.rows == whole.rows[14:] + whole.rows[:14]

    def test_only_the_chosen_records_come_out(self, path, format_):
        whole = read(format_, path)
        found = read(format_, path, choose=lambda numbers: numbers % 3 == 0)
        assert found.numbers == [3, 6, 9, 12, 15, 18]
        assert found.rows == whole.rows[2::3]
        assert found.digests == whole.digests

    def test_the_digest_is_that_of_every_byte_of_the_records(self, path, format_):
        good, units = path.read_bytes(), units_of(cut(format_, path))
        schema = types_of(format_, path).found()
        digests, starts = read(format_, path).digests, self.starts(20)
        for place in np.random.default_rng(1).integers(starts[0], starts[-1], 20).tolist():
            data = bytearray(good)
            data[place] ^= 1
            path.write_bytes(data)
            with suppress(Rejection):
                found = read(
                    format_, path, schema=schema, units=units, choose=lambda rows: rows < 0
                )
                assert found.digests != digests, place

    @pytest.mark.parametrize("compress", [gzip.compress, zstandard.compress])
    def test_a_compressed_file_has_the_same_records(self, path, format_, compress):
        plain = read(format_, path)
        path.write_bytes(compress(path.read_bytes()))
        found = read(format_, path)
        assert (found.numbers, found.rows, found.rejects) == (plain.numbers, plain.rows, [])

    def test_a_file_that_is_cut_off_keeps_the_records_before(self, path, format_):
        data, schema = path.read_bytes(), types_of(format_, path).found()
        for whole, at in self._cuts(self.starts(20)):
            path.write_bytes(data[:at])
            found = read(format_, path, schema=schema)
            assert found.numbers == list(range(1, whole + 1)), at
            ((number, error, message),) = found.rejects
            assert number == whole + 1, at
            assert error in ("truncated", "damaged"), at
            assert "ends within" in message or "damaged at byte" in message, message

    def _cuts(self, starts: list[int]) -> Iterator[tuple[int, int]]:
        """Yield how many records are whole where a file is cut, and the place."""
        for whole, (start, end) in enumerate(pairwise(starts)):
            yield from ((whole, at) for at in {start + 1, (start + end) // 2 + 1} if whole)

    def test_a_compressed_file_that_is_cut_off_keeps_the_records_before(self, path, format_):
        data, schema = path.read_bytes(), types_of(format_, path).found()
        path.write_bytes(gzip.compress(data, 0)[: self.starts(20)[10] + 100])
        found = read(format_, path, schema=schema)
        count = len(found.numbers)
        assert found.numbers == list(range(1, count + 1))
        assert count in (9, 10, 11)
        ((number, error, message),) = found.rejects
        assert (number, error) == (count + 1, "truncated")
        assert f"after {count} records; they are kept" in message
        packed = zstandard.ZstdCompressor(level=-100).compress(data)
        path.write_bytes(packed[: len(packed) // 3])
        with suppress(Rejection):  # zstd may have given nothing yet
            assert errors(read(format_, path, schema=schema))[-1][1] == "truncated"

    def test_nothing_is_used_of_a_compressed_file_with_a_wrong_checksum(self, path, format_):
        """It is at the very end, behind what the records need."""
        data = bytearray(gzip.compress(path.read_bytes() + bytes(50)))
        data[-5] ^= 1
        path.write_bytes(data)
        with pytest.raises(Rejection, match="gzip data is damaged") as caught:
            cut(format_, path)
        assert caught.value.error == "damaged"

    @pytest.mark.parametrize(
        "data", [b"long enough to be a header of whatever it may be. " * 20, b"\0" * 3]
    )
    def test_a_file_of_something_else_is_refused(self, path, format_, data):
        path.write_bytes(data)
        try:
            cuts = cut(format_, path)
        except Rejection as rejection:
            assert rejection.error.startswith(("not-", "truncated"))  # noqa: PT017
        else:
            assert [each.fault is not None for each in cuts] == [True]

    def test_flipped_bits_end_in_named_errors(self, path, format_):
        good, random = path.read_bytes(), np.random.default_rng(2)
        for _ in range(60):
            data = bytearray(good)
            data[int(random.integers(len(data)))] ^= 1 << int(random.integers(8))
            path.write_bytes(data)
            with suppress(Rejection):
                found = read(format_, path)
                assert len(found.numbers) + len(found.rejects) <= 21

    def test_a_record_over_the_limit_is_a_reject_and_stays_out_of_memory(
        self, path, format_, monkeypatch
    ):
        limit = int(np.median(np.diff(self.starts(20))))
        self.limit(monkeypatch, limit)
        for packed in (path.read_bytes(), gzip.compress(path.read_bytes())):
            path.write_bytes(packed)
            found = read(format_, path)
            large = [number for number, error in errors(found) if error == "too-large"]
            assert 5 < len(large) < 15
            assert found.numbers == [number for number in range(1, 21) if number not in large]

    def limit(self, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
        """Let records have at most so many bytes."""
        monkeypatch.setattr(sys.modules[self.form.__module__], "RECORD_BYTES", size)


__all__ = ["INTEROP", "READING", "Promises", "errors", "expected"]
