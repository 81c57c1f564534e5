"""How fast blocks of tokens are read at random, beside np.take on a memory-mapped file (nanoGPT)
and what other libraries do.

    .venv/bin/python scripts/bench/bench_tokens.py [--blocks 50000] [--runs 7] [--compression]
    [--json FILE]

Every contender reads the same blocks of 2,048 uint16 tokens, in batches of 64 in a new random order
each time, in one process, with a warm page cache. Each round runs each contender once, in turn;
figures are medians, the ratio is that of the medians. datasets, array_record, litdata and
mosaicml-streaming take part where they are installed. --compression also measures what zstd costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from harness import in_turn, medians_of, options_of, save, scratch

import shardctl

LENGTH = 2048
BATCH = 64
SECONDS = 1.0

Indices = npt.NDArray[np.int64]
Read = Callable[[Indices], Any]


def main() -> None:
    parser = options_of(__doc__, blocks=50_000, runs=7)
    parser.add_argument("--compression", action="store_true")
    options = parser.parse_args()
    with scratch() as folder:
        blocks = written_blocks(folder, options.blocks)
        contenders, missing = found_contenders(folder, blocks, options.compression)
        in_turn(contenders, 1)
        rates = in_turn(contenders, options.runs)
    medians = medians_of(rates)
    bare = medians["np.take on a memmap"]
    for name, rate in medians.items():
        print(f"{name:36} {rate:12,.0f} blocks/s  {rate / bare:6.3f} of np.take", flush=True)
    save(options.json, {"blocks_per_s": medians, "all": rates, "missing": missing})


def written_blocks(folder: Path, count: int) -> npt.NDArray[np.uint16]:
    """Write the blocks as nanoGPT has them, and return them mapped: (count, LENGTH)."""
    path = folder / "train.bin"
    generator = np.random.default_rng(0)
    # Few tokens are frequent, as in text: so that compression has something to do.
    np.minimum(generator.zipf(1.2, count * LENGTH), 49_999).astype(np.uint16).tofile(path)
    blocks = np.memmap(path, np.uint16, "r", shape=(count, LENGTH))
    int(blocks.sum())
    return blocks


def found_contenders(
    folder: Path, blocks: npt.NDArray[np.uint16], compression: bool
) -> tuple[dict[str, Callable[[], float]], dict[str, str]]:
    """Return those that can be measured, and why others cannot."""
    count, missing = len(blocks), {}
    contenders = {"np.take on a memmap": reading(count, lambda some: np.take(blocks, some, axis=0))}
    ours = packed(folder, blocks, "none")
    contenders["shardctl"] = loading(ours)
    contenders["shardctl, int64"] = loading(ours, dtype={"tokens": "int64"})
    if compression:
        compressed = packed(folder, blocks, "zstd:3")
        contenders["shardctl, zstd, global"] = loading(compressed, shuffle="global")
        contenders["shardctl, zstd, window"] = loading(compressed)
    for add in (hugging_face, array_record, litdata, mds):
        try:
            name, read = add(folder, blocks)
        except ImportError as error:
            missing[add.__name__] = str(error)
            print(f"{add.__name__}: {error}", flush=True)
            continue
        contenders[name] = reading(count, read)
    return contenders, missing


def orders(count: int) -> Iterator[Indices]:
    """Yield the indices of batches, without end."""
    generator = np.random.default_rng()
    while True:
        order = generator.permutation(count)
        yield from (order[first : first + BATCH] for first in range(0, count - BATCH, BATCH))


def reading(count: int, read: Read) -> Callable[[], float]:
    """Return what reads batches for a second, and returns the rate. Finding the order is not part
    of it."""
    batches = orders(count)

    def run() -> float:
        some = [next(batches) for _ in range(max(1, 4 * count // BATCH))]
        return rate_of(len(read(indices)) for indices in some)

    return run


def loading(path: Path, shuffle: bool | str = True, **options: Any) -> Callable[[], float]:
    """Return the same for a loader, which finds its order itself."""
    loader = shardctl.open(path).loader(BATCH, shuffle=shuffle, repeat=4, **options)
    return lambda: rate_of(len(batch["tokens"]) for batch in loader)


def rate_of(sizes: Iterable[int]) -> float:
    """Read batches for a second, or all of them, and return the blocks/s."""
    began, done = time.perf_counter(), 0
    for size in sizes:
        done += size
        if time.perf_counter() - began > SECONDS:
            break
    return done / (time.perf_counter() - began)


def packed(folder: Path, blocks: npt.NDArray[np.uint16], compression: str) -> Path:
    """Pack the tokens, as documents of 700 tokens on average, without an end of their own."""
    out = folder / f"shardctl-{compression.partition(':')[0]}"
    total = blocks.size
    cuts = np.sort(np.random.default_rng(1).choice(total - 1, total // 700, replace=False)) + 1
    edges = np.concatenate([[0], cuts, [total]])
    source = folder / "documents.parquet"
    with pq.ParquetWriter(source, pa.schema([("tokens", pa.list_(pa.uint16()))])) as writer:
        for first in range(0, len(edges) - 1, 20_000):
            some = edges[first : first + 20_001]
            values = pa.array(blocks.reshape(-1)[some[0] : some[-1]])
            writer.write(
                pa.table(
                    {
                        "tokens": pa.ListArray.from_arrays(
                            pa.array((some - some[0]).astype(np.int32)), values
                        )
                    }
                )
            )
    recipe = {
        "compression": compression,
        "transform": [{"name": "pack", "length": LENGTH, "eos": False}],
    }
    shardctl.convert(source, out, recipe=recipe)
    source.unlink()
    return out


def hugging_face(folder: Path, blocks: npt.NDArray[np.uint16]) -> tuple[str, Read]:
    import datasets

    path = folder / "hf"
    values = pa.FixedSizeListArray.from_arrays(pa.array(blocks.reshape(-1)), LENGTH)
    datasets.Dataset(pa.table({"tokens": values})).save_to_disk(path)
    loaded = datasets.load_from_disk(path).with_format("numpy")
    return f"HF datasets {datasets.__version__}", lambda some: loaded[some.tolist()]["tokens"]


def array_record(folder: Path, blocks: npt.NDArray[np.uint16]) -> tuple[str, Read]:
    from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

    path = folder / "blocks.array_record"
    writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for block in blocks:
        writer.write(block.tobytes())
    writer.close()
    reader = ArrayRecordReader(str(path), "readahead_buffer_size:0,max_parallelism:0")
    return "ArrayRecord", lambda some: np.frombuffer(
        b"".join(reader.read(some.tolist())), np.uint16
    ).reshape(-1, LENGTH)


def litdata(folder: Path, blocks: npt.NDArray[np.uint16]) -> tuple[str, Read]:
    import torch
    from litdata import StreamingDataset, TokensLoader
    from litdata.streaming.writer import BinaryWriter

    path = folder / "litdata"
    loader = TokensLoader(block_size=LENGTH)
    writer = BinaryWriter(str(path), chunk_size=1024 * LENGTH, item_loader=loader)
    for number in range(0, len(blocks), 1024):
        writer[number // 1024] = torch.from_numpy(
            blocks[number : number + 1024].reshape(-1).astype(np.int16)
        )
    writer.done()
    writer.merge(1)
    stream = StreamingDataset(str(path), item_loader=TokensLoader(block_size=LENGTH))
    size = len(stream)
    return "LitData TokensLoader", lambda some: torch.stack(
        [stream[int(place) % size] for place in some]
    )


def mds(folder: Path, blocks: npt.NDArray[np.uint16]) -> tuple[str, Read]:
    from streaming import MDSWriter, StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    path = folder / "mds"
    with MDSWriter(out=str(path), columns={"tokens": f"ndarray:uint16:{LENGTH}"}) as writer:
        for block in blocks:
            writer.write({"tokens": np.asarray(block)})
    clean_stale_shared_memory()
    stream = StreamingDataset(local=str(path), batch_size=BATCH)
    return "MDS", lambda some: np.stack([stream[int(place)]["tokens"] for place in some])


if __name__ == "__main__":
    main()
