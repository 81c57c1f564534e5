"""Is a GPU kept busy by the loader, and how fast do batches come into its memory? Beside the same
without a loader, and peers.

    python scripts/bench/bench_gpu.py [CORPUS] [--rounds 3] [--share 1] [--json FILE] [--only PART …]

Needs an NVIDIA GPU, PyTorch, torchvision and webdataset. CORPUS is a folder with photos/ (default:
$SHARDCTL_CORPUS, else ../shared/data; without it, photos that `shardctl demo` draws), repeated
through links to some 4,000. The parts:

`resnet50`: torchvision's model in the training step of shardctl.benchmark.models (bfloat16,
channels last, SGD). The limit is
    the same step with one batch that stays on the GPU.
`memory`: instead of a model, only the normalisation of pixels on the GPU: what do the loaders give
when nothing holds them up? `copy`: raw batches into the memory of the GPU, by shardctl.torch.Loader
and by `.to(device)`. The limit is one batch in pinned memory, copied again and again.
`vit_b16`: as `resnet50`, without the peers.

Batches of 256 random crops of 224 px, uint8. shardctl reads raw pixels of 224 px, the same with
zstd, and `jpeg:90` of 256 px, cut and mirrored at load time. Two peers have a worker process of
PyTorch's DataLoader for each core: a folder of the photos (Pillow, RandomResizedCrop), and
WebDataset with the JPEGs of 256 px (Pillow, RandomCrop). Both pin their batches.

Every round runs each contender once, in turn: some batches that do not count, then those that do.
Figures are medians. `next` is the time in which the training loop waits for a batch. Five minutes
on 16 cores.
"""

from __future__ import annotations

import io
import itertools
import random
import statistics
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torchvision
from bench_convert import MANY
from bench_loader import convert
from harness import folders, images, options_of, repeated, save, scratch, warm
from PIL import Image
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision.transforms import v2

import shardctl
from shardctl.benchmark.models import Step
from shardctl.system.machine import usable_cores
from shardctl.torch import Loader, synchronizer

BATCH, SIDE, STORED = 256, 224, 256
TARS = 64
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
"""Of ImageNet, of pixels from 0 to 255."""

AUGMENTED = {"crop": SIDE, "crop_from": "random", "flip": True}

Images = torch.Tensor
"""(batch, height, width, 3) uint8 on the device."""


@dataclass
class Contender:
    """A way to get batches: `begin(n)` gives n of them. `warm_up` batches do not count, the next
    `count` do."""

    begin: Callable[[int], Iterable[Images]]
    warm_up: int
    count: int
    rates: list[float] = field(default_factory=list)
    next_ms: list[float] = field(default_factory=list)

    def run(self, step: Callable[[Images], Any], finish: Callable[[], None]) -> None:
        """Take all batches, and keep the samples/s and the time that it took to get one."""
        batches, samples, waited = iter(self.begin(self.warm_up + self.count)), 0, 0.0
        for batch in itertools.islice(batches, self.warm_up):
            step(batch)
        finish()
        began = time.perf_counter()
        for _ in range(self.count):
            asked = time.perf_counter()
            batch = next(batches)
            waited += time.perf_counter() - asked
            samples += len(batch)
            step(batch)
        finish()
        self.rates.append(samples / (time.perf_counter() - began))
        self.next_ms.append(1e3 * waited / self.count)
        # a peer's workers end with their epoch, and not while others are measured
        for _ in batches:
            pass


def main() -> None:
    parser = options_of(__doc__, corpus=True, rounds=3, share=1.0)
    parser.add_argument("--only", nargs="*", default=list(PARTS))
    options = parser.parse_args()
    with scratch() as folder:
        bench = Bench(folder, options)
        bench.check()
        for name in options.only:
            PARTS[name](bench)


class Bench:
    """The datasets, the loaders, and what was measured so far."""

    def __init__(self, folder: Path, options: Any) -> None:
        self.folder, self.options, self.device = folder, options, torch.device("cuda")
        self.finish = synchronizer(self.device)
        self.results: dict[str, Any] = {}
        photos, _ = folders(options.corpus, folder)
        self.photos = repeated(photos, folder / "many", -(-MANY // len(images(photos))))
        cut = ("--resize", str(STORED), "--crop", str(SIDE), "--store", "raw")
        self.raw = self.converted("raw", *cut)
        self.zstd = self.converted("raw-zstd", *cut, "--compression", "zstd")
        self.jpeg = self.converted(
            "jpeg", "--resize", str(STORED), "--crop", str(STORED), "--store", "jpeg:90"
        )
        self._peers: dict[str, Any] = {}

    def converted(self, name: str, *options: str) -> Path:
        path = self.folder / name
        convert(self.photos, path, *options)
        warm(path)
        return path

    def check(self) -> None:
        """Fail unless the batches on the device are those of the loader, after later ones were
        copied there too."""
        for path, how in ((self.raw, {}), (self.jpeg, AUGMENTED)):
            some = [
                batch["image"]
                for batch in itertools.islice(Loader(self.batches(path, **how), self.device), 32)
            ]
            for there, here in zip(some, self.batches(path, **how)):  # noqa: B905 - the second has no end
                assert torch.equal(there.cpu(), torch.from_numpy(here["image"])), (
                    "the batches differ"
                )

    def measure(
        self,
        part: str,
        contenders: dict[str, Contender],
        step: Callable[[Images], Any],
    ) -> None:
        """Run all contenders of a part in turn, and print the medians: the limit is the first."""
        for turn in range(self.options.rounds):
            for name, contender in list(contenders.items()):
                try:
                    contender.run(step, self.finish)
                except Exception:  # noqa: BLE001 - the others are measured all the same
                    traceback.print_exc()
                    del contenders[name]
            last = ", ".join(
                f"{name} {contender.rates[-1]:,.0f}" for name, contender in contenders.items()
            )
            print(f"{part}, round {turn + 1}: {last}", flush=True)
            self.results[part] = {
                name: {"samples_per_s": contender.rates, "next_ms": contender.next_ms}
                for name, contender in contenders.items()
            }
            save(self.options.json, self.results)
        limit = statistics.median(next(iter(contenders.values())).rates)
        print(f"{part}: medians of {self.options.rounds} rounds, batches of {BATCH}")
        for name, contender in contenders.items():
            rate = statistics.median(contender.rates)
            print(
                f"  {name:<48} {rate:>10,.0f} samples/s, {rate / limit:7.1%} of the limit,"
                f" next {statistics.median(contender.next_ms):7.2f} ms",
                flush=True,
            )

    def contender(
        self, begin: Callable[[int], Iterable[Images]], warm_up: int, count: int, waves: int = 1
    ) -> Contender:
        """Return a contender; with its numbers rounded to multiples of `waves`, in which worker
        processes give batches."""
        some = [
            waves * max(1, round(number * self.options.share / waves))
            for number in (warm_up, count)
        ]
        return Contender(begin, *some)

    # --- ways to get batches

    def still(self, count: int) -> Iterator[Images]:
        """Return one batch again and again, which stays on the device."""
        shape = (BATCH, SIDE, SIDE, 3)
        batch = torch.randint(0, 255, shape, dtype=torch.uint8, device=self.device)
        return itertools.repeat(batch, count)

    def shardctl(self, path: Path, **options: Any) -> Callable[[int], Iterator[Images]]:
        loader = self.batches(path, **options)
        moved = Loader(loader, self.device)
        return lambda count: (batch["image"] for batch in itertools.islice(moved, count))

    def batches(self, path: Path, **options: Any) -> Any:
        """Return the loader without a device."""
        return shardctl.open(path).loader(
            BATCH,
            shuffle=True,
            columns=["image"],
            repeat=None,
            drop_last=True,
            **options,
        )

    def augmented(self, **options: Any) -> Callable[[int], Iterator[Images]]:
        return self.shardctl(self.jpeg, **AUGMENTED, **options)

    def of_workers(
        self, name: str, make: Callable[[int], DataLoader[Any]]
    ) -> Callable[[int], Iterator[Images]]:
        """Return what gives the batches (batch, 3, height, width) of a DataLoader whose workers
        live on."""

        def begin(count: int) -> Iterator[Images]:
            if (name, count) not in self._peers:
                self._peers[name, count] = make(count)
            for batch in self._peers[name, count]:
                yield batch.to(self.device, non_blocking=True).permute(0, 2, 3, 1)

        return begin

    def folder_of_photos(self, count: int) -> DataLoader[Any]:
        photos = Photos(images(self.photos))
        chosen = RandomSampler(photos, replacement=True, num_samples=count * BATCH)
        return DataLoader(photos, BATCH, sampler=chosen, **self.in_workers())

    def webdataset(self, count: int) -> Any:
        import webdataset as wds

        tars = self.folder / "tars"
        if not tars.exists():
            tars.mkdir()
            stored = shardctl.open(self.jpeg)
            encoded = stored.take(range(len(stored)), columns=["image"], decode=False)["image"]
            with wds.ShardWriter(
                str(tars / "%05d.tar"), maxcount=-(-len(encoded) // TARS), verbose=0
            ) as writer:
                for number, data in enumerate(encoded):
                    writer.write({"__key__": f"{number:07d}", "jpg": data})
        warm(tars)
        urls = sorted(map(str, tars.glob("*.tar")))
        data = (
            wds.WebDataset(urls, shardshuffle=False, resampled=True)
            .shuffle(1000)
            .to_tuple("jpg")
            .map_tuple(Augment(v2.RandomCrop(SIDE)))
        )
        collated = data.batched(BATCH, collation_fn=stacked).with_epoch(count // usable_cores())
        return wds.WebLoader(collated, batch_size=None, **self.in_workers())

    def in_workers(self) -> dict[str, Any]:
        return {
            "num_workers": usable_cores(),
            "pin_memory": True,
            "persistent_workers": True,
        }


class Augment:
    """Decodes a photo with Pillow, cuts it, and mirrors half of them."""

    def __init__(self, crop: Any) -> None:
        self._steps = v2.Compose([crop, v2.RandomHorizontalFlip(), v2.PILToTensor()])

    def __call__(self, data: bytes) -> torch.Tensor:
        made: torch.Tensor = self._steps(Image.open(io.BytesIO(data)).convert("RGB"))
        return made


class Photos(Dataset[torch.Tensor]):
    """Photos of a folder."""

    def __init__(self, paths: list[str]) -> None:
        self._paths, self._augment = paths, Augment(v2.RandomResizedCrop(SIDE))

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._augment(Path(self._paths[index]).read_bytes())


def stacked(samples: list[tuple[torch.Tensor]]) -> torch.Tensor:
    return torch.stack([pixels for (pixels,) in samples])


# --- the parts


def train(
    bench: Bench, name: str, make: Callable[[], torch.nn.Module], count: int, peers: bool
) -> None:
    """Train a model."""
    step = Step(lambda height, width: make())
    contenders = {
        "the step alone": bench.contender(bench.still, 4, count),
        "shardctl, raw": bench.contender(bench.shardctl(bench.raw), 6, count),
        "shardctl, jpeg, random crop and flip": bench.contender(bench.augmented(), 6, count),
        "shardctl, raw zstd": bench.contender(bench.shardctl(bench.zstd), 6, count),
    }
    if peers:
        contenders |= peer_contenders(bench, 2)
    bench.measure(name, contenders, lambda batch: step({"image": batch}))


def peer_contenders(bench: Bench, waves: int) -> dict[str, Contender]:
    """Return the peers. Every worker gives one batch that does not count, and then so many that
    do."""
    cores = usable_cores()
    return {
        f"DataLoader, {cores} workers, folder of photos": bench.contender(
            bench.of_workers("photos", bench.folder_of_photos), cores, 2 * cores, cores
        ),
        f"WebDataset, {cores} workers, jpeg, random crop": bench.contender(
            bench.of_workers("webdataset", bench.webdataset), cores, waves * cores, cores
        ),
    }


def memory(bench: Bench) -> None:
    """Only normalise the pixels on the device."""
    mean, std = (torch.tensor(each, device=bench.device).view(1, 3, 1, 1) for each in (MEAN, STD))
    some = usable_cores() // 2
    contenders = {
        "no loader": bench.contender(bench.still, 20, 400),
        "shardctl, raw": bench.contender(bench.shardctl(bench.raw), 60, 400),
        "shardctl, jpeg, random crop and flip": bench.contender(bench.augmented(), 40, 200),
        f"jpeg, {some} processes": bench.contender(bench.augmented(processes=some), 40, 200),
        "shardctl, raw zstd": bench.contender(bench.shardctl(bench.zstd), 40, 200),
        f"raw zstd, {some} processes": bench.contender(
            bench.shardctl(bench.zstd, processes=some), 40, 200
        ),
        **peer_contenders(bench, 4),
    }
    bench.measure(
        "memory",
        contenders,
        lambda batch: batch.permute(0, 3, 1, 2).to(torch.float32).sub_(mean).div_(std),
    )


def copy(bench: Bench) -> None:
    """Only copy raw batches to the device."""
    loader = bench.batches(bench.raw)
    pinned = torch.from_numpy(next(iter(loader))["image"]).pin_memory()
    ways: dict[str, Callable[[int], Iterable[Any]]] = {
        "one batch, pinned, to the device": lambda count: (
            pinned.to(bench.device, non_blocking=True) for _ in range(count)
        ),
        "shardctl.torch.Loader": bench.shardctl(bench.raw),
        "not pinned": lambda count: (
            torch.from_numpy(batch["image"]).to(bench.device)
            for batch in itertools.islice(loader, count)
        ),
    }
    contenders = {name: bench.contender(begin, 40, 200) for name, begin in ways.items()}
    bench.measure("copy", contenders, lambda batch: None)


PARTS: dict[str, Callable[[Bench], None]] = {
    "resnet50": lambda bench: train(bench, "resnet50", torchvision.models.resnet50, 32, peers=True),
    "memory": memory,
    "copy": copy,
    "vit_b16": lambda bench: train(bench, "vit_b16", torchvision.models.vit_b_16, 16, peers=False),
}


if __name__ == "__main__":
    random.seed(0)
    torch.manual_seed(0)
    main()
