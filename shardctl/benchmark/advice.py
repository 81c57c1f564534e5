"""How to store a dataset: a few hundred inputs are converted in every way; the smallest that is
fast enough is advised."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from shardctl.benchmark.advice_options import PROOF_SECONDS, AdviceOptions, advise_options
from shardctl.benchmark.measure.consumers import check_patience, feed_paced, samples_per_s
from shardctl.benchmark.measure.result import ENOUGH
from shardctl.benchmark.measure.throughput import Throughput, open_loader
from shardctl.benchmark.network import Amount, Network, OverNetwork, over_network
from shardctl.benchmark.options import BenchOptions, find_preset
from shardctl.benchmark.peers.measuring import rate_today
from shardctl.benchmark.text_blocks import BlockAdvice, block_advice, decode_mb_per_s
from shardctl.errors import (
    NOTHING_WRITTEN,
    DatasetError,
    InputError,
    InstallError,
    TooManyRejectsError,
    UsageError,
    explaining_interrupts,
)
from shardctl.format.manifest import Manifest
from shardctl.format.names import Json
from shardctl.format.shard import Compression
from shardctl.interop.foreign import is_foreign
from shardctl.loader.dataset import open_dataset
from shardctl.loader.loader import Loader
from shardctl.making.convert import ConvertResult, convert
from shardctl.making.paths import check_sources
from shardctl.making.sampling import settled, take_inputs
from shardctl.sources.files import SourceRoot
from shardctl.system.folders import LocalFolder
from shardctl.system.machine import memory_bytes, usable_cores
from shardctl.system.options import declared_in, taken_arguments
from shardctl.system.progress import Phase, progress_of
from shardctl.system.python_names import with_options
from shardctl.system.scratch import scratch_folder
from shardctl.transforms.recipe import Recipe
from shardctl.transforms.recipe_files.overriding import DATASET, recipe_with_options
from shardctl.transforms.table import samples_per_record

IMAGE_STORES = ("source", "jpeg:90", "webp:80", "png", "raw")
RAW_COMPRESSIONS = ("none", "lz4", "zstd")
TEXT_COMPRESSIONS = ("none", "lz4", "zstd:1", "zstd:3", "zstd:9")
LOSSY = ("jpeg", "webp")

ROUNDS = 3
ROUND_SECONDS = 0.7
"""Seconds that each choice is read per turn. Taking turns spreads a slow moment of the machine over
all choices."""


ORIGINAL = {"store": "source", "compression": "none"}
"""How images are stored to which nothing is done."""

VARIANTS = 4
"""Variants of each input that are written, where the recipe says no number."""

PLACING_SECONDS = 2.0
"""Seconds that each way to do the random steps is read."""


@dataclass(frozen=True)
class Choice:
    """One way to store the samples, and what was measured. `lossless` says whether pixels are kept
    as they are.

    `sample_bytes` is the size of a sample on disk, `samples_per_s` the rate of the loader,
    `utilization` the utilisation of the consumer at that rate. `error` is the reason why this
    choice is not possible, else None. Of text and tokens, `ratio` is the size without compression /
    the size with it, and `decode_mb_per_s` how fast one core decompresses (10^6 uncompressed
    bytes/s); None where that was not measured. `network` says what a network makes of it, None
    where none was described.
    """

    store: str | None
    compression: str
    lossless: bool
    sample_bytes: float = 0.0
    samples_per_s: float = 0.0
    utilization: float = 0.0
    error: str | None = None
    ratio: float | None = None
    decode_mb_per_s: float | None = None
    network: OverNetwork | None = None

    @property
    def name(self) -> str:
        """The name of the choice, for display."""
        return (
            self.compression
            if self.store is None
            else f"{self.store} {self.compression}"
            if self.store == "raw"
            else self.store
        )

    @property
    def keeps_up(self) -> bool:
        """Whether the consumer is kept busy from local data."""
        return self.error is None and self.utilization >= ENOUGH

    @property
    def network_keeps_up_at_first(self) -> bool:
        """Whether the network, if there is one, is fast enough in the first epoch."""
        return self.network is None or self.network.first.keeps_up

    @property
    def network_keeps_up_later(self) -> bool:
        """Whether it is once the cache is filled."""
        return self.network is None or self.network.later.keeps_up

    @property
    def first_rate(self) -> float:
        """The rate of the first epoch, in samples/s."""
        return self.samples_per_s if self.network is None else self.network.first.samples_per_s

    def recipe_keys(self) -> Json:
        """Return the keys of a recipe for this choice, with their values."""
        return {**({"store": self.store} if self.store else {}), "compression": self.compression}


@dataclass(frozen=True)
class Today:
    """How fast the inputs are read as they are, shards of another tool, by its reader; no transform
    is done to them.

    `why_not` is the reason why that was not measured, else None.
    """

    library: str = ""
    how: str = ""
    samples_per_s: float = 0.0
    utilization: float = 0.0
    why_not: str | None = None


@dataclass(frozen=True)
class Placement:
    """One way to do the random steps of a recipe: at the "conversion", in its "variants", or while
    "reading".

    `samples_per_s` is the rate of a loader with one thread, and `cores` how many of these the
    consumer needs. `input_bytes` is the size of an input on disk. A training sees `views` of an
    input, None for another one in each epoch. `error` is the reason why this way is not possible,
    else None.
    """

    where: str
    store: str
    samples_per_s: float = 0.0
    cores: float = 0.0
    input_bytes: float = 0.0
    views: int | None = None
    error: str | None = None

    @property
    def keeps_up(self) -> bool:
        """Whether the cores of this machine are enough."""
        return self.error is None and self.cores <= usable_cores()


@dataclass(frozen=True)
class Advice:
    """The result of `advise`. `choices` are sorted by size; `best` is the smallest that is fast
    enough, else the fastest.

    `proven` is the measured utilisation of a consumer of `rate` samples/s (of all GPUs) that was
    fed from `best`, on this machine. `recipe` is ready for `convert`. `total_bytes` estimates all
    inputs converted. `jpeg`, `blocks`, `today` and `network` are None where they do not apply. With
    a `network`, `best` is the smallest choice that is fast enough over it in every epoch, else the
    fastest in the first epoch.
    """

    choices: tuple[Choice, ...]
    best: Choice
    proven: float
    rate: float
    inputs: int
    tried: int
    rejected: int
    total_bytes: int
    disk_mb_per_s: float
    fits_in_memory: bool
    recipe: dict[str, Any]
    jpeg: dict[str, int] | None = None
    blocks: BlockAdvice | None = None
    today: Today | None = None
    faults: tuple[str, ...] = ()
    network: Network | None = None
    placements: tuple[Placement, ...] = ()

    @property
    def keeps_up(self) -> bool:
        """Whether the recommended choice keeps the consumer busy, in the first epoch too."""
        return self.proven >= ENOUGH and self.best.network_keeps_up_at_first

    @property
    def keeps_up_later(self) -> bool:
        """Whether it does so at least in the epochs after the first one."""
        return self.proven >= ENOUGH and self.best.network_keeps_up_later


@with_options(advise_options())
@explaining_interrupts(NOTHING_WRITTEN)
def advise(
    src: str | Path | Sequence[str | Path],
    recipe: dict[str, Any] | str | Path | None = None,
    doing: Callable[[str], None] | None = None,
    *,
    progress: bool = True,
    **options: Any,
) -> Advice:
    """Try every way to store the inputs under `src`, and recommend the smallest that keeps a
    consumer busy.

    `recipe` is as in `convert`, and so are the options for reading inputs and for steps.
    AdviceOptions has the other `options`. `progress` False does not show the trials on stderr;
    `doing` is called with a description of each step instead. Raises UsageError, InputError, and
    the errors of `convert`.
    """
    with progress_of(progress, doing) as shown:
        return _advise(src, recipe, doing or (lambda what: shown.begin(Phase(what))), options)


def _advise(
    src: str | Path | Sequence[str | Path],
    recipe: Json | str | Path | None,
    doing: Callable[[str], None],
    options: Json,
) -> Advice:
    taken = taken_arguments("advise", options, advise_options())
    chosen = AdviceOptions(
        **{name: taken[name] for name in declared_in(AdviceOptions) if name in taken}
    )
    chosen.check()
    given = recipe_with_options(recipe, taken)
    for decided in ("store", "compression"):
        if given.get(decided):
            raise UsageError(f"advise itself decides {decided}; leave it out of the recipe")
    roots = check_sources([src] if isinstance(src, str | Path) else src)
    given = settled(given, roots, chosen.workers)
    with scratch_folder() as scratch:
        doing("listing")
        count, settings, unread = take_inputs(roots, given, chosen.inputs, chosen.workers, scratch)
        try:
            advice = _Trial(scratch, settings, chosen, doing).run(count)
            return replace(
                advice,
                recipe={**given, **advice.best.recipe_keys()},
                today=_today(roots, chosen, advice.rate, doing),
                faults=(*unread, *advice.faults),
            )
        except KeyboardInterrupt:
            # the message of the conversion says how to resume it, but its folder is deleted
            raise KeyboardInterrupt(NOTHING_WRITTEN) from None


def _today(
    roots: Sequence[SourceRoot], options: AdviceOptions, rate: float, doing: Callable[[str], None]
) -> Today | None:
    """Return how fast the inputs are read by the reader of another tool, if they are shards of
    one."""
    if len(roots) != 1 or roots[0].is_stored or not is_foreign(Path(roots[0].text)):
        return None
    doing("reading with their own reader")
    try:
        reading = BenchOptions(batch_size=options.batch_size, runs=ROUNDS, seconds=ROUND_SECONDS)
        facts, found = rate_today(Path(roots[0].text), options.python or sys.executable, reading)
    except (InstallError, InputError, UsageError) as error:  # the advice holds without it
        return Today(why_not=str(error))
    return Today(facts.library, facts.how, round(found, 1), min(1.0, found / rate))


@dataclass
class _Trial:
    """The choices, converted and read in a scratch folder."""

    scratch: Path
    recipe: Json
    options: AdviceOptions
    doing: Callable[[str], None]

    @cached_property
    def reading(self) -> BenchOptions:
        """How each choice is read."""
        return BenchOptions(
            batch_size=self.options.batch_size,
            threads=self.options.threads,
            shuffle=True,
            recipe=DATASET if self.recipe.get("reading") else None,
        )

    def run(self, inputs: int) -> Advice:
        """Try everything."""
        made: dict[Choice, ConvertResult] = {}
        tried: list[Choice] = []
        for choice in _choices(self.recipe, self.options.lossless):
            self.doing(f"converting {choice.name}")
            try:
                made[choice] = self._convert(
                    self._folder(choice), {**self.recipe, **choice.recipe_keys()}
                )
            except UsageError as error:
                tried.append(replace(choice, error=str(error)))
        if not made:
            raise UsageError("; ".join(sorted({str(choice.error) for choice in tried})))
        any_choice, any_made = next(iter(made.items()))
        rate = self._rate(any_choice) * self.options.gpus
        check_patience(rate, self.options.batch_size, PROOF_SECONDS)
        for choice, speed in zip(made, self._speeds(list(made)), strict=True):
            size = made[choice].bytes / made[choice].samples
            done = replace(
                choice,
                sample_bytes=size,
                samples_per_s=round(speed, 1),
                utilization=min(1.0, speed / rate),
            )
            tried.append(done if choice.store is not None else self._compressed(done, made))
        records = any_made.samples + any_made.rejected
        if any_choice.store is None:  # blocks are of several texts: as of those that were tried
            records = Manifest.load(LocalFolder(self._folder(any_choice))).inputs
            samples = inputs * any_made.samples / max(1, records)
        else:
            samples = inputs * samples_per_record(self.recipe)
        network = self.options.network
        if network is not None:
            tried = [
                choice if choice.error else _far(choice, tried, network, samples, rate)
                for choice in tried
            ]
        best, proven = self._recommend(tried, rate)
        total = int(best.sample_bytes * samples)
        return Advice(
            choices=tuple(
                sorted(tried, key=lambda choice: (choice.error is not None, choice.sample_bytes))
            ),
            best=best,
            proven=proven,
            rate=rate,
            inputs=inputs,
            tried=records,
            rejected=any_made.rejected,
            total_bytes=total,
            disk_mb_per_s=round(rate * best.sample_bytes / 1e6, 1),
            fits_in_memory=total < memory_bytes() / 2,
            recipe={**self.recipe, **best.recipe_keys()},
            jpeg=next(
                (result.jpeg for choice, result in made.items() if choice.store == "source"), None
            ),
            blocks=block_advice(self._folder(any_choice)) if any_choice.store is None else None,
            faults=tuple(f"{reject.key}: {reject.message}" for reject in any_made.examples),
            network=network,
            placements=self._placements(best, rate),
        )

    def _placements(self, best: Choice, rate: float) -> tuple[Placement, ...]:
        """Return the ways to do the random steps of a recipe of images, if it has some.

        Changed images are stored as is best; those that no step changes are kept as they came. The
        consumer takes `rate` samples/s.
        """
        once, random = cut(self.recipe) if best.store is not None else ([], [])
        if not random:
            return ()
        stored = best.recipe_keys()
        if best.store == "source":
            stored["store"] = "png" if self.options.lossless else "jpeg:90"
        ways = []
        for where, steps, views in (("conversion", [*once, *random], 1), ("reading", once, None)):
            how, reading = stored if steps else ORIGINAL, [] if views else random
            way, folder = Placement(where, how["store"], views=views), f"steps-{where}"
            keys = {**self.recipe, **how, "transform": steps, "reading": reading, "variants": 1}
            ways.append(self._placed(way, rate, self.scratch / folder, keys))
        converting, while_reading = ways
        variants = self.recipe.get("variants", 1)
        views = variants if variants > 1 else VARIANTS
        size = views * converting.input_bytes
        of_variants = replace(converting, where="variants", input_bytes=size, views=views)
        return converting, of_variants, while_reading

    def _placed(self, way: Placement, rate: float, folder: Path, recipe: Json) -> Placement:
        """Return a way to do the random steps with what was measured of it."""
        options = replace(self.reading, threads=1, recipe=DATASET if recipe["reading"] else None)
        run = Throughput()
        self.doing(f"trying {folder.name}")
        try:
            result = self._convert(folder, recipe)
            loader = open_loader(folder, options, None, drop_last=True)
            run.run(loader, PLACING_SECONDS)
        except (UsageError, InputError, DatasetError) as error:
            return replace(way, error=str(error).replace(f"{folder}/", ""))
        size = result.bytes / max(1, result.samples) * samples_per_record(recipe)
        return replace(
            way,
            samples_per_s=round(run.rate, 1),
            cores=round(rate / run.rate, 4),
            input_bytes=round(size, 1),
        )

    def _compressed(self, choice: Choice, made: dict[Choice, ConvertResult]) -> Choice:
        """Return a choice of text with what its compression does."""
        plain = next(
            (result for other, result in made.items() if other.compression == "none"), None
        )
        ratio = (
            None if plain is None else round(plain.bytes / plain.samples / choice.sample_bytes, 3)
        )
        speed = decode_mb_per_s(self._folder(choice)) if choice.compression != "none" else None
        return replace(choice, ratio=ratio, decode_mb_per_s=speed)

    def _folder(self, choice: Choice) -> Path:
        return self.scratch / choice.name.replace(" ", "-").replace(":", "-")

    def _convert(self, folder: Path, recipe: Json) -> ConvertResult:
        try:
            return convert(
                self.scratch / "inputs",
                folder,
                recipe=recipe,
                progress=False,
                labels="none",
                workers=self.options.workers,
                max_rejects="100%",
            )
        except TooManyRejectsError as error:
            # the rest names a file in the scratch folder
            why = str(error).partition("; nothing was committed")[0]
            raise InputError(
                f"none of the inputs that were tried can be converted: {why}"
            ) from error

    def _rate(self, choice: Choice) -> float:
        """Return how many samples per second one GPU takes."""
        if self.options.consumer is None:
            return float(self.options.consumer_rate or 0)
        preset = find_preset(self.options.consumer)
        return samples_per_s(open_dataset(self._folder(choice)), preset, "what was given")[0]

    def _speeds(self, choices: list[Choice]) -> list[float]:
        """Return how fast each choice is read, in samples/s: the median of the rounds."""
        rates: list[list[float]] = [[] for _ in choices]
        for _ in range(ROUNDS):
            for choice, found in zip(choices, rates, strict=True):
                self.doing(f"reading {choice.name}")
                run = Throughput()
                run.run(self._loader(choice), ROUND_SECONDS)
                found.append(run.rate)
        return [statistics.median(found) for found in rates]

    def _loader(self, choice: Choice) -> Loader:
        return open_loader(self._folder(choice), self.reading, None, drop_last=True)

    def _recommend(self, tried: list[Choice], rate: float) -> tuple[Choice, float]:
        """Return the best choice that keeps a consumer busy in a test, else the fastest one."""
        for choice in ranked(tried):
            proven = self._proof(choice, rate)
            if proven >= ENOUGH:
                return choice, proven
        fastest = max(
            (choice for choice in tried if choice.error is None),
            key=lambda choice: choice.first_rate,
        )
        return fastest, self._proof(fastest, rate)

    def _proof(self, choice: Choice, rate: float) -> float:
        self.doing(f"feeding from {choice.name}")
        with closing(iter(self._loader(choice))) as batches:  # type: ignore[type-var]  # a generator
            return round(feed_paced(batches, rate, PROOF_SECONDS).utilization, 4)


def cut(recipe: Json) -> tuple[list[Any], list[Any]]:
    """Return the steps of a recipe that are done once, and those for each epoch.

    A recipe without [[reading]] is cut before its first random step. Filters are done once.
    """
    given, reading = recipe.get("transform", []), recipe.get("reading", [])
    if reading:
        return given, reading
    made = Recipe.from_json(recipe)
    first = next((n for n, step in enumerate(made.transform) if step.random), len(given))
    filters = {n for n, step in enumerate(made.transform) if step in made.filters}
    later = [n for n in range(first, len(given)) if n not in filters]
    return [step for n, step in enumerate(given) if n not in later], [given[n] for n in later]


def ranked(choices: Sequence[Choice]) -> list[Choice]:
    """Return the choices that may keep a consumer busy, the best one first.

    Those that do so in every epoch, by their size; then those that starve it only until the cache
    is filled, the fastest first.
    """
    busy = [choice for choice in choices if choice.keeps_up]
    always = [choice for choice in busy if choice.network_keeps_up_at_first]
    later = [choice for choice in busy if choice not in always and choice.network_keeps_up_later]
    return [
        *sorted(always, key=lambda choice: choice.sample_bytes),
        *sorted(later, key=lambda choice: -choice.first_rate),
    ]


def _far(
    choice: Choice, tried: Sequence[Choice], network: Network, samples: float, rate: float
) -> Choice:
    """Return a choice with what a network makes of it."""
    plain = next(
        (
            each
            for each in tried
            if each.store == choice.store and each.compression == "none" and each.error is None
        ),
        choice,
    )
    block = (
        Compression.parse(choice.compression).block_bytes * choice.sample_bytes / plain.sample_bytes
    )
    amount = Amount.of(samples, choice.sample_bytes, block)
    return replace(choice, network=over_network(network, amount, choice.samples_per_s, rate))


def _choices(recipe: Json, lossless: bool) -> Iterator[Choice]:
    """Yield the ways to store a kind of input."""
    if recipe["kind"] != "image":
        yield from (Choice(None, compression, lossless=True) for compression in TEXT_COMPRESSIONS)
        return
    for store in IMAGE_STORES:
        keeps = not store.startswith(LOSSY)
        if keeps or not lossless:
            for compression in RAW_COMPRESSIONS if store == "raw" else ("none",):
                yield Choice(store, compression, keeps)
