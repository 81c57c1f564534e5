"""At how many cores do the threads of the loader end, and what do worker processes (`processes=`)
give?

    .venv/bin/python scripts/bench/bench_cores.py [--rounds 5] [--counts 1 2 4] [--keep FOLDER]
    [--json FILE] [--only CASE …]

Python runs in one thread of a process at a time. So its lock alone ends threads at the number of
cores

    processor time of a sample / the part of it in which the thread holds Python's lock.

On 16 cores some ended earlier (docs/dev/measurements.md): handing the lock on takes time too.
The first is measured with one thread. The second is at most the processor time of the same samples
with next to nothing to do beside Python: images of 16 px and a decoder that does nothing, arrays of
16 bytes, text that is not compressed. Then come the samples/s of 1, 2 and 4 threads and of 1, 2 and
4 processes (or `--counts`), and what this process itself spends on a sample that processes have
made: that bounds them as the lock bounds threads. JPEG comes with the decoder, and with one that
does nothing, which shows on two cores what threads do to each other on many. Every round runs each
contender once, in turn; figures are medians. A contender reads more samples if it can use more
cores, so that all take about the same time.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import options_of, save

sys.path.append(str(Path(__file__).resolve().parents[1] / "data"))

FAKE = '''
"""The decoder, or one that does nothing: the rest of the loader is what is measured then."""
import importlib.machinery, importlib.util, os, sys
_path = [each for each in sys.path if os.path.abspath(each or ".") != os.path.dirname(os.path.abspath(__file__))]
_spec = importlib.machinery.PathFinder.find_spec("simplejpeg", _path)
_real = importlib.util.module_from_spec(_spec)
sys.modules["simplejpeg"], _fake = _real, sys.modules["simplejpeg"]
_spec.loader.exec_module(_real)
sys.modules["simplejpeg"] = _fake
__version__, decode_jpeg_header, encode_jpeg = _real.__version__, _real.decode_jpeg_header, _real.encode_jpeg
FREE = os.environ.get("BENCH_CORES_FREE") == "1"
_sizes = {}
def decode_jpeg(data, colorspace="RGB", *args, buffer=None, **options):
    if not FREE or buffer is None:
        return _real.decode_jpeg(data, colorspace, *args, buffer=buffer, **options)
    if len(data) not in _sizes:  # images of one length have one size here
        _sizes[len(data)] = decode_jpeg_header(data)[:2]
    height, width = _sizes[len(data)]
    return buffer[: height * width * 3].reshape(height, width, 3)
'''
"""Stands before the real module on the path of this process, and of those that it starts."""

BATCH = 256
LARGE, TINY = 256, 16
"""Pixels of a side."""

SAMPLES = 2048
LINES = 100_000
COUNTS = (1, 2, 4)


@dataclass
class Case:
    """What is read: a dataset, the same with next to nothing to do, how often in one go per core,
    and the loader's options."""

    dataset: Path
    bare: Path
    epochs: int
    options: dict[str, Any] = field(default_factory=dict)
    decodes: bool = False


def main() -> None:
    parser = options_of(__doc__, rounds=5)
    parser.add_argument(
        "--counts", type=int, nargs="+", default=COUNTS, help="numbers of threads, and of processes"
    )
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--only", nargs="*", default=[])
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        fake = Path(scratch, "fake")
        fake.mkdir()
        (fake / "simplejpeg.py").write_text(FAKE)
        sys.path.insert(0, str(fake))
        folder = (chosen.keep or Path(scratch)).resolve()
        counts, results = sorted({1, *chosen.counts}), []
        for name, make in CASES.items():
            if not chosen.only or name in chosen.only:
                results.append(measure(name, make(folder), chosen.rounds, counts))
                save(chosen.json, results)


def measure(name: str, case: Case, rounds: int, counts: Sequence[int]) -> dict[str, Any]:
    whole = Contender(case.dataset, case, {"threads": 1})
    bare = Contender(case.bare, case, {"threads": 1}, free=case.decodes)
    contenders = {}
    for free in (False, True) if case.decodes else (False,):
        also = ", decoder that does nothing" if free else ""
        for count in counts:
            contenders[f"threads {count}{also}"] = Contender(
                case.dataset, case, {"threads": count}, free
            )
        for count in counts:
            # A second question waits at each process, so that it is never without work.
            alone = {"threads": 2 * count, "processes": count}
            contenders[f"processes {count}{also}"] = Contender(case.dataset, case, alone, free)
    every = [whole, bare, *contenders.values()]
    for contender in every:
        contender.run()
    for _ in range(rounds):
        for contender in every:
            contender.run(keep=True)
    for contender in every:
        contender.loader.close()
    sample, held = whole.processor_us, bare.processor_us
    handed_over = contenders["processes 1"].processor_us
    print(
        f"{name}: {sample:.2f} us of a processor for a sample, of which at most {held:.2f} hold "
        "the lock: it ends threads at"
        f" {sample / held:.0f} cores; processes take {handed_over:.2f} us here: they end at "
        f"{sample / handed_over:.0f}"
    )
    for label, contender in contenders.items():
        print(
            f"    {label:<44} {contender.rate:>12,.0f} samples/s, {contender.together_us:>7.2f} us "
            "of processors"
        )
    sys.stdout.flush()
    return {
        "case": name,
        "sample_us": sample,
        "held_us": held,
        "cores": sample / held,
        "handed_over_us": handed_over,
        "samples_per_s": {label: contender.rate for label, contender in contenders.items()},
        "together_us": {label: contender.together_us for label, contender in contenders.items()},
    }


class Contender:
    """A loader, and what it took in each round."""

    def __init__(self, dataset: Path, case: Case, how: dict[str, int], free: bool = False) -> None:
        import shardctl
        from shardctl.system.machine import usable_cores

        self._free = free
        epochs = case.epochs * min(how["threads"], usable_cores())
        self.loader = shardctl.open(dataset).loader(
            BATCH, shuffle=True, repeat=epochs, **how, **case.options
        )
        self._rates: list[float] = []
        self._processor: list[float] = []
        self._elsewhere: list[float] = []

    def run(self, keep: bool = False) -> None:
        """Read once; the figures count if they are to be kept."""
        import simplejpeg

        simplejpeg.FREE = self._free
        os.environ["BENCH_CORES_FREE"] = "01"[self._free]
        self.loader.start()
        elsewhere = self.loader.stats().processes_cpu_s
        used, began, samples = time.process_time(), time.perf_counter(), 0
        for batch in self.loader:
            samples += len(next(iter(batch.values())))
        if keep:
            self._rates.append(samples / (time.perf_counter() - began))
            self._processor.append((time.process_time() - used) / samples * 1e6)
            self._elsewhere.append(
                (self.loader.stats().processes_cpu_s - elsewhere) / samples * 1e6
            )

    @property
    def rate(self) -> float:
        """Samples per second."""
        return statistics.median(self._rates)

    @property
    def processor_us(self) -> float:
        """Processor time of this process for a sample, in microseconds."""
        return statistics.median(self._processor)

    @property
    def together_us(self) -> float:
        """Processor time of all processes together for a sample, in microseconds."""
        return self.processor_us + statistics.median(self._elsewhere)


def jpeg(folder: Path) -> Case:
    """JPEG of 256 px, 4:2:0, quality 90."""
    return Case(jpegs(folder, LARGE), jpegs(folder, TINY), 1, {"columns": ["image"]}, decodes=True)


def raw(folder: Path) -> Case:
    """Pixels of 224 px."""
    return Case(arrays(folder, 224 * 224 * 3), arrays(folder, 16), 4, {"columns": ["x"]})


def compressed(folder: Path) -> Case:
    """The same, compressed: every process decompresses every block."""
    return Case(
        arrays(folder, 224 * 224 * 3, compression="zstd"), arrays(folder, 16), 2, {"columns": ["x"]}
    )


def tokens(folder: Path) -> Case:
    """Blocks of 2,048 tokens, made int64."""
    return Case(
        arrays(folder, 2048, 16),
        arrays(folder, 16, 16),
        2,
        {"columns": ["x"], "dtype": {"x": "int64"}},
    )


def text(folder: Path) -> Case:
    """Lines of text, compressed."""
    return Case(lines(folder, "zstd"), lines(folder, "none"), 1, {"columns": ["text"]})


CASES: dict[str, Callable[[Path], Case]] = {
    "jpeg": jpeg,
    "raw": raw,
    "raw zstd": compressed,
    "tokens": tokens,
    "text": text,
}


def jpegs(folder: Path, side: int) -> Path:
    import numpy as np
    import pyarrow as pa
    import simplejpeg
    from handmade import write_dataset

    from shardctl.format.layout import ENCODED_IMAGE

    path = folder / f"jpeg-{side}"
    if not path.exists():
        numbers = np.random.default_rng(0)
        some = []
        for _ in range(64):
            coarse = (
                numbers.integers(0, 255, (side // 8, side // 8, 3))
                .repeat(8, axis=0)
                .repeat(8, axis=1)
            )
            noisy = np.clip(coarse + numbers.normal(0, 12, coarse.shape), 0, 255).astype(np.uint8)
            some.append(simplejpeg.encode_jpeg(noisy, 90, "RGB", "420"))
        rows = ((f"k{n}", (some[n % 64], "x.jpg")) for n in range(SAMPLES))
        columns = pa.schema([("key", pa.string()), ("image", ENCODED_IMAGE)])
        write_dataset(
            path, columns, rows, SAMPLES // 4, sample_bytes=len(some[0]), shape=(side, side, 3)
        )
    return path


def arrays(folder: Path, width: int, times: int = 1, compression: str = "none") -> Path:
    import numpy as np
    import pyarrow as pa
    from handmade import write_dataset

    path = folder / f"arrays-{width}-{times}-{compression}"
    if not path.exists():
        dtype = np.uint8 if times == 1 else np.uint16
        numbers = np.random.default_rng(0)
        some = [numbers.integers(0, 24, width).astype(dtype) for _ in range(64)]
        columns = pa.schema(
            [
                ("key", pa.string()),
                ("x", pa.fixed_shape_tensor(pa.from_numpy_dtype(dtype), [width])),
            ]
        )
        rows: Iterator[tuple[Any, ...]] = ((f"k{n}", some[n % 64]) for n in range(SAMPLES * times))
        write_dataset(
            path, columns, rows, SAMPLES * times // 4, compression, sample_bytes=some[0].nbytes
        )
    return path


def lines(folder: Path, compression: str) -> Path:
    import numpy as np
    import pyarrow as pa
    from handmade import write_dataset

    path = folder / f"lines-{compression}"
    if not path.exists():
        numbers = np.random.default_rng(0)
        words = [f"word{n}" for n in range(5000)]
        columns = pa.schema([("key", pa.string()), ("text", pa.string())])
        rows = (
            (
                f"k{n}",
                " ".join(words[place] for place in numbers.integers(0, 5000, 8 + n % 40).tolist()),
            )
            for n in range(LINES)
        )
        write_dataset(path, columns, rows, LINES // 4, compression, sample_bytes=250)
    return path


if __name__ == "__main__":
    main()
