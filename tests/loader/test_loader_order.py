"""Which samples come when, and to whom."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from conftest import examples
from handmade import write_dataset
from hypothesis import given
from hypothesis import strategies as st
from programs import run_python
from token_samples import packed_blocks, write_packed, write_ragged

import shardctl
from shardctl.errors import DatasetError, UsageError
from shardctl.loader.order import MODES, Ordering, OrderOptions
from shardctl.system.permutation import Orders, Permutation, mix64

SAMPLES = 1000
ORDERS = (False, True, *MODES)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,000 numbered samples in 5 shards of 20 compressed blocks."""
    root = tmp_path_factory.mktemp("numbers") / "out"
    columns = pa.schema({"key": pa.string(), "number": pa.int64()})
    samples = ((f"k{number}", number) for number in range(SAMPLES))
    write_dataset(root, columns, samples, 200, "zstd", sample_bytes=100_000)
    return root


def worlds(source: Any, batch: int, ranks: int, **options: Any) -> list[Any]:
    """Return the loaders of all ranks."""
    return [source.loader(batch, rank=rank, world_size=ranks, **options) for rank in range(ranks)]


def joined(lists: Iterable[list[Any]]) -> list[Any]:
    return list(itertools.chain.from_iterable(lists))


def read(loader: Any) -> list[list[int]]:
    return [batch["number"].tolist() for batch in loader]


@examples(100)
@given(size=st.integers(0, 3000), seed=st.integers(0, 2**63 - 1), epoch=st.integers(0, 100))
def test_every_element_comes_once(size, seed, epoch):
    order = Permutation(size, seed, epoch)(np.arange(size))
    assert np.array_equal(np.sort(order), np.arange(size))


def test_keys_give_different_orders():
    orders = {
        tuple(Permutation(50, seed, epoch)(np.arange(50)))
        for seed in range(10)
        for epoch in range(10)
    }
    assert len(orders) == 100


def test_the_order_is_the_same_for_ever():
    assert Permutation(10, 1)(np.arange(10)).tolist() == [7, 9, 4, 5, 8, 3, 6, 0, 1, 2]


starts = st.lists(st.integers(1, 60), min_size=1, max_size=60).map(
    lambda rows: np.cumsum([0, *rows])
)
options = st.builds(
    OrderOptions,
    st.sampled_from([None, *MODES]),
    st.integers(0, 2**40),
    lanes=st.integers(1, 70),
    interleave=st.integers(1, 70),
)


@examples(100)
@given(starts=starts, options=options, epoch=st.integers(0, 50), data=st.data())
def test_ranks_share_any_stretch_evenly(starts, options, epoch, data):
    order, size = Ordering(starts, options).epoch(epoch), int(starts[-1])
    assert np.array_equal(np.sort(order.samples(np.arange(size))), np.arange(size))
    first = data.draw(st.integers(0, size - 1))
    count, ranks = data.draw(st.integers(1, size - first)), data.draw(st.integers(1, 9))
    parts = [order.share(first, count, rank, ranks) for rank in range(ranks)]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(first, first + count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("mode", ["window", "block"])
def test_a_rank_reads_mostly_its_own_blocks_and_the_same_in_every_epoch(mode):
    starts = np.arange(0, 100_001, 50)
    ordering = Ordering(starts, OrderOptions(mode, 3, lanes=16, interleave=16))
    blocks: list[set[int]] = []
    for epoch in (0, 1):
        order = ordering.epoch(epoch)
        for rank in range(4):
            own = np.concatenate(
                [order.share(first, 800, rank, 4) for first in range(0, 100_000, 800)]
            )
            blocks.append(set((order.samples(own) // 50).tolist()))
    assert sum(map(len, blocks[:4])) <= 2000 + 16
    assert blocks[:4] == blocks[4:]


@pytest.mark.parametrize(("mode", "most"), [("window", 2 * 48), ("block", 2 * 16)])
def test_a_window_draws_from_a_bounded_number_of_blocks(mode, most):
    starts = np.arange(0, 200_001, 100)
    order = Ordering(starts, OrderOptions(mode, 3, lanes=16, interleave=48)).epoch(0)
    blocks = order.samples(np.arange(200_000)) // 100
    _, first = np.unique(blocks, return_index=True)
    _, last = np.unique(blocks[::-1], return_index=True)
    begun, over = (np.bincount(at, minlength=200_000) for at in (first, 199_999 - last))
    assert 16 <= (np.cumsum(begun) - np.cumsum(over)).max() <= most
    assert len(set(blocks[:256].tolist())) >= 16, "a batch comes from many blocks"


def test_randomness_of_each_order():
    """Rank correlation with the stored order, and the mean distance of neighbours: 0 and 1/3 of the
    size are ideal."""
    size = 40_000
    starts = np.arange(0, size + 1, 20)
    measured = {}
    for mode in MODES:
        order = Ordering(starts, OrderOptions(mode, 1)).epoch(0).samples(np.arange(size))
        correlation = abs(np.corrcoef(order, np.arange(size))[0, 1])
        measured[mode] = correlation, np.abs(np.diff(order)).mean() / size
    for correlation, distance in measured.values():
        assert correlation < 0.05
        assert distance == pytest.approx(1 / 3, rel=0.05)


@pytest.mark.parametrize("size", [10**9, 10**12])
def test_a_global_order_over_a_billion_samples_and_more_needs_no_table(size):
    order = Ordering(np.array([0, size]), OrderOptions("global", 3)).epoch(7)
    some = order.samples(np.arange(size - 1000, size))
    assert len(np.unique(some)) == 1000
    assert 0 <= some.min() <= some.max() < size
    assert np.abs(np.diff(some)).mean() == pytest.approx(size / 3, rel=0.1)


@pytest.mark.parametrize("beside", [12, 2**40])
def test_each_sample_of_a_small_window_comes_at_each_place_equally_often(beside):
    size, windows = 12, 50_000
    every = Orders.of(
        np.array([size] * windows + [beside]), mix64(np.arange(windows + 1, dtype=np.uint64))
    )
    which, places = np.repeat(np.arange(windows), size), np.tile(np.arange(size), windows)
    orders = every.at(which).elements(places).reshape(windows, size)
    assert (np.sort(orders, axis=1) == np.arange(size)).all()
    counts = np.array([np.bincount(orders[:, place], minlength=size) for place in range(size)])
    chi_squared = ((counts - windows / size) ** 2 / (windows / size)).sum()
    # (size - 1)^2 degrees of freedom, four standard deviations
    assert chi_squared < 121 + 4 * np.sqrt(2 * 121)


def test_the_orders_are_the_same_for_ever():
    starts = np.array([0, 4, 6, 9, 12])
    orders = [
        Ordering(starts, OrderOptions(mode, 1)).epoch(2).samples(np.arange(12)).tolist()
        for mode in MODES
    ]
    assert orders == [
        [0, 5, 9, 11, 4, 2, 7, 1, 8, 6, 3, 10],
        [1, 11, 3, 5, 4, 7, 10, 8, 0, 6, 2, 9],
        [4, 5, 11, 9, 10, 3, 1, 0, 2, 8, 6, 7],
    ]


KEYS = [f"k{n:02}" for n in range(60)]


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 samples with lists of different lengths, in 3 shards of 5 blocks."""
    root = tmp_path_factory.mktemp("rows") / "out"
    columns = pa.schema({"key": pa.string(), "n": pa.list_(pa.int32())})
    samples = ((key, [n] * (n % 7)) for n, key in enumerate(KEYS))
    write_dataset(root, columns, samples, 20, "zstd", sample_bytes=250_000)
    return root


LAST = ({"remainder": "uneven"}, {"remainder": "pad"}, {"remainder": "drop"}, {"drop_last": True})
WORLDS = {1: (1,), 6: (1, 2, 3, 6), 8: (2, 4), 12: (1, 4, 12)}
"""Samples of a global batch, and the world sizes that read it."""


@examples(80)
@given(
    samples=st.integers(1, 60),
    together=st.sampled_from(list(WORLDS)),
    last=st.sampled_from(LAST),
    shuffle=st.sampled_from(ORDERS),
    kind=st.sampled_from(["dataset", "filter", "bucket", "mix"]),
    epoch=st.integers(0, 2),
    data=st.data(),
)
def test_resumed_anywhere_by_any_world_nothing_is_lost_or_repeated(
    rows, samples, together, last, shuffle, kind, epoch, data
):
    ds = shardctl.open(rows)
    ds = ds.filter(f"key in {KEYS[:samples]}") if kind == "filter" else ds.limit(samples)
    source: Any = shardctl.mix([ds, ds], [1, 2], samples) if kind == "mix" else ds
    options: dict[str, Any] = {"shuffle": shuffle, "seed": 3}
    options |= data.draw(st.sampled_from([{}, {"pad": {"n": -1}}]))
    if kind == "bucket":
        options["bucket"] = {"n": 2}

    def world() -> list[Any]:
        ranks = data.draw(st.sampled_from(WORLDS[together]))
        threads = data.draw(st.integers(1, 3))
        return worlds(source, together // ranks, ranks, threads=threads, **last, **options)

    plain = source.loader(together, remainder="uneven", **options)
    plain.set_epoch(epoch)
    order = joined(batch["key"] for batch in plain)
    assert kind == "mix" or sorted(order) == sorted(KEYS[:samples])
    expected = [order[first : first + together] for first in range(0, samples, together)]
    if samples % together and last == {"remainder": "pad"}:
        expected[-1] = (expected[-1] + order * together)[:together]
    elif samples % together and last != {"remainder": "uneven"}:
        expected.pop()
    running, later = world(), world()
    for loader in running:
        loader.set_epoch(epoch)
    parts = [iter(loader) for loader in running]
    stop = data.draw(st.integers(0, samples // together))
    found = [joined(next(part)["key"] for part in parts) for _ in range(stop)]
    state, *others = (loader.state_dict() for loader in running)
    assert others == [state] * len(others)
    if stop == len(expected):
        assert (state["epoch"], state["samples"]) == (epoch + bool(stop), 0)
    else:
        rest = []
        for loader in later:
            loader.load_state_dict(state)
            rest.append([batch["key"] for batch in loader])
            assert len(rest[-1]) == loader.stats().batches == len(loader) - stop
        if last != {"remainder": "uneven"}:
            assert {len(keys) for part in rest for keys in part} == {together // len(later)}
        found += [joined(step) for step in itertools.zip_longest(*rest, fillvalue=[])]
    if len(running) > 1 or len(later) > 1:
        found, expected = ([sorted(keys) for keys in batches] for batches in (found, expected))
    assert found == expected


@pytest.mark.parametrize("shuffle", ORDERS)
def test_global_batches_are_the_same_for_any_world(numbers, shuffle):
    ds, options = shardctl.open(numbers), {"shuffle": shuffle, "remainder": "uneven"}
    alone, *others = (
        [
            sorted(joined(parts))
            for parts in itertools.zip_longest(
                *map(read, worlds(ds, 48 // ranks, ranks, **options)), fillvalue=[]
            )
        ]
        for ranks in (1, 2, 3, 8)
    )
    assert others == [alone] * 3


@pytest.mark.parametrize("last", LAST)
def test_the_length_of_a_loader_is_the_number_of_its_batches(rows, last):
    for ranks, batch in ((1, 7), (4, 9), (7, 5)):
        for loader in worlds(shardctl.open(rows), batch, ranks, repeat=2, **last):
            assert sum(1 for _ in loader) == loader.stats().batches == 2 * len(loader)


@pytest.mark.parametrize("derive", [[], ["labels", "document_ids"], ["cu_seqlens", "position_ids"]])
def test_a_rank_without_a_sample_has_no_batch_whatever_is_derived(tmp_path, derive):
    ragged = shardctl.open(write_ragged(tmp_path / "ragged", {"a": "text", "b": ""}))
    packed = shardctl.open(
        write_packed(tmp_path / "packed", packed_blocks({"a": "text", "b": "more"}))
    )
    for ds, pad in ((ragged, {"tokens": 0}), (packed, None)):
        few = worlds(ds.limit(1), 2, 3, remainder="uneven", pad=pad, derive=derive)
        assert [len(list(loader)) for loader in few] == [0, 0, 1]


@pytest.mark.filterwarnings("ignore:the last batch of each epoch is filled up")
@pytest.mark.parametrize(("ranks", "sizes"), [(1, [2, 2, 2, 1]), (2, [2, 2]), (3, [2, 2])])
def test_several_ranks_get_equally_many_batches_unless_another_rule_is_given(rows, ranks, sizes):
    for loader in worlds(shardctl.open(rows).limit(7), 2, ranks):
        assert [len(batch["key"]) for batch in loader] == sizes
        assert len(loader) == len(sizes)


def test_samples_that_come_twice_are_said_once_by_one_rank(rows):
    """Where nothing is filled up, or where it was asked for, there is nothing to say."""
    ran = run_python(SAID, rows)
    assert (ran.returncode, ran.stdout) == (0, "")
    said = [line for line in ran.stderr.splitlines() if "Warning" in line]
    assert len(said) == 1
    assert (
        "<string>:8: UserWarning: the last batch of each epoch is filled up with its first samples"
        in said[0]
    )


SAID = """
import sys, warnings, shardctl
warnings.simplefilter("always")
ds = shardctl.open(sys.argv[1]).limit(7)
quiet = [ds.loader(2), ds.limit(4).loader(2, world_size=2), ds.loader(2, rank=1, world_size=2)]
for loader in [*quiet, *(ds.loader(2, world_size=2, remainder=each) for each in ("pad", "drop", "uneven"))]:
    list(loader)
for batch in ds.loader(2, world_size=2):
    pass
for loader in [ds.loader(2, world_size=2), ds.loader(3, world_size=3, repeat=2)]:
    list(loader)
"""


@pytest.mark.parametrize("samples", [1, 33])
def test_a_rank_of_a_mixture_without_a_part_of_the_last_batch_ends_before_it(numbers, samples):
    ds = shardctl.open(numbers)
    mix = shardctl.mix([ds, ds], [1, 1], samples)
    uneven = {"prefetch": 1, "remainder": "uneven"}
    sizes = [[len(batch) for batch in read(loader)] for loader in worlds(mix, 8, 4, **uneven)]
    whole = [8] * (samples // 32)
    assert sizes == [whole, whole, whole, [*whole, 1]]


def test_repeat_goes_on_into_the_next_epochs(numbers):
    ds = shardctl.open(numbers)
    loader = ds.loader(300, shuffle=True)
    epochs = joined(read(loader) for _ in range(3))
    thrice, endless = (ds.loader(300, shuffle=True, repeat=repeat) for repeat in (3, None))
    assert read(thrice) == read(itertools.islice(endless, 12)) == epochs
    for options, said in (
        ({"drop_last": True, "repeat": None}, "no batch of 2,000"),
        ({"remainder": "drop", "world_size": 2, "rank": 0}, "each of 2 ranks"),
    ):
        with pytest.warns(UserWarning, match=said):
            assert read(ds.loader(2000, **options)) == []


def test_what_is_no_state_is_refused(numbers):
    loader = shardctl.open(numbers).loader(10)
    whole = loader.state_dict()
    for broken in (
        None,
        {},
        {"epoch": 0, "samples": 0},
        {**whole, "samples": SAMPLES + 1},
        {**whole, "samples": 3.5},
        {**whole, "epoch": "1"},
        {**whole, "order": 7},
    ):
        with pytest.raises(UsageError):
            loader.load_state_dict(broken)
    loader.load_state_dict(whole | {"epoch": np.int64(1), "samples": np.int64(20)})


def test_a_mapped_loader_is_a_loader_at_the_same_place(numbers):
    ds = shardctl.open(numbers)
    plain, loader, other = (ds.loader(64, shuffle=True) for _ in range(3))
    whole = [read(plain) for _ in range(4)]
    mapped = loader.map(lambda batch: batch["number"]).map(lambda column: column.tolist())
    assert [list(mapped), list(mapped)] == whole[:2]
    assert len(mapped) == len(loader) == len(whole[0])
    assert read(loader) == whole[2], "they are at the same place"
    assert list(itertools.islice(mapped, 3)) == whole[3][:3]
    assert mapped.state_dict() == loader.state_dict()
    assert mapped.stats().samples == 3 * 64
    resumed = other.map(lambda batch: batch["number"].tolist())
    resumed.load_state_dict(mapped.state_dict())
    assert list(resumed) == whole[3][3:]
    resumed.set_epoch(1)
    assert list(resumed) == whole[1]
    with pytest.raises(UsageError, match="a function"):
        loader.map(None)


@pytest.mark.parametrize(
    ("samples", "batch", "ranks", "options"),
    [
        (1000, 7, 3, {}),
        (5, 4, 3, {"shuffle": "global"}),
        (1000, 64, 1, {"shuffle": "window", "processes": 1}),
    ],
)
def test_samples_that_fill_up_a_batch_say_so(numbers, samples, batch, ranks, options):
    ds = shardctl.open(numbers).limit(samples)
    seen: list[int] = []
    for loader in worlds(ds, batch, ranks, remainder="pad", repeated=True, **options):
        for each in loader:
            assert each["repeated"].shape == each["number"].shape == (batch,)
            seen += each["number"][~each["repeated"]].tolist()
        assert loader.specs()["repeated"].dtype == bool
    assert sorted(seen) == list(range(samples)), "without the repeated ones each comes once"


def test_no_sample_is_repeated_where_no_batch_is_filled_up(numbers, out):
    ds = shardctl.open(numbers)
    assert "repeated" not in next(iter(ds.loader(64, remainder="pad")))
    assert not any(batch["repeated"].any() for batch in ds.loader(64, repeated=True))
    shardctl.write(out, [{"repeated": True}])
    with pytest.raises(UsageError, match="repeated=True adds a field"):
        shardctl.open(out).loader(1, repeated=True)


def test_masks_are_mixed_where_their_numbers_mean_the_same(tmp_path):
    def dataset(name: str, **role: Any) -> Any:
        samples = [{"image": np.zeros((4, 4, 3), np.uint8), "mask": np.ones((4, 4), np.uint8)}]
        roles = {"mask": {"role": "mask", "ignore": 255, **role}}
        shardctl.write(tmp_path / name, samples, store="raw", roles=roles)
        return shardctl.open(tmp_path / name)

    names = ["ground", "pet"]
    pets = dataset("pets", names=names)
    assert len(list(shardctl.mix([pets, dataset("same", names=names)], [1, 1]).loader(1))) == 2
    for name, role, said in (
        ("other", {"names": names[::-1]}, "class 0 is 'ground'.*'pet'"),
        ("more", {"names": [*names, "sky"]}, "class 2 is None"),
        ("nameless", {}, "class 0 is 'ground'.*None"),
        ("ignoring", {"names": names, "ignore": 0}, "ignore is 255"),
    ):
        mixed = shardctl.mix([pets, dataset(name, **role)], [1, 1])
        with pytest.raises(UsageError, match=said):
            mixed.loader(1)
        assert len(list(mixed.loader(1, columns=["image"]))) == 2


def test_filter_and_limit(numbers):
    ds = shardctl.open(numbers)
    some = ds.filter((pc.field("number") < 143) | (pc.field("key") == "k777"))
    assert [sample["number"] for sample in some] == [*range(143), 777]
    assert [sample["number"] for sample in some.limit(5)] == list(range(5))
    assert some[-1]["number"] == 777
    assert read(ds.filter(pc.field("key") == "absent").loader(4, shuffle="window")) == []
    with pytest.raises(UsageError, match="the columns key, number"):
        ds.filter(pc.field("colour") == 3)
    for wrong in (-1, 2.5):
        with pytest.raises(UsageError, match="limit must be"):
            ds.limit(wrong)


def test_a_mixture_keeps_its_weights_and_resumes(numbers):
    ds = shardctl.open(numbers)
    few, many = ds.filter(pc.field("number") < 200), ds.filter(pc.field("number") >= 200)
    mix = shardctl.mix([few, many], [3, 1], samples=4096)
    loader, resumed = (mix.loader(64, shuffle=True, seed=9) for _ in range(2))
    batches = read(itertools.islice(loader, 10))
    resumed.load_state_dict(loader.state_dict())
    batches += read(resumed)
    counts = Counter(joined(batches))
    assert counts.total() == 4096
    assert sum(counts[number] for number in range(200)) == 3072
    assert {counts[number] for number in range(200)} <= {15, 16}
    assert all(len({n < 200 for n in batch}) == 2 for batch in batches), "both are in every batch"


def test_an_iteration_after_a_broken_off_one_is_the_next_epoch_from_its_beginning(numbers):
    ds = shardctl.open(numbers)
    epochs = ds.loader(100, shuffle=True)
    whole = [read(epochs) for _ in range(4)]
    loader, resumed = (ds.loader(100, shuffle=True) for _ in range(2))
    for epoch in range(3):
        assert read(itertools.islice(loader, epoch + 1)) == whole[epoch][: epoch + 1]
        state = loader.state_dict()
        assert (state["epoch"], state["samples"]) == (epoch, 100 * (epoch + 1))
    for each in (loader, resumed):
        each.load_state_dict(state)
        assert read(each) == whole[2][3:]
        assert read(each) == whole[3]
    loader.set_epoch(1)
    assert read(loader) == whole[1]
    loader.load_state_dict(state)
    loader.set_epoch(2)  # as a loop that sets each epoch does
    assert loader.state_dict()["samples"] == state["samples"]
    assert read(loader) == whole[2][3:]
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match=r"leaves the loaded state \(epoch 2, 300 samples"):
        loader.set_epoch(1)
    assert loader.state_dict()["samples"] == 0
    assert read(loader) == whole[1]
    endless = ds.loader(500, shuffle=True, repeat=None)
    assert joined(read(itertools.islice(endless, 3))) == joined(whole[0] + whole[1][:5])
    assert joined(read(itertools.islice(endless, 2))) == joined(whole[2])


def test_a_rank_is_taken_only_where_none_was_given(numbers):
    ds = shardctl.open(numbers)
    whole = read(ds.loader(100, shuffle=True))
    loaders = [ds.loader(50, shuffle=True) for _ in range(2)]
    for rank, loader in enumerate(loaders):
        assert len(loader) == 20
        loader.assign(rank, 2)
        assert len(loader) == 10
    both = zip(*map(read, loaders), strict=True)
    assert [sorted(joined(parts)) for parts in both] == [sorted(batch) for batch in whole]
    given = ds.loader(50, shuffle=True, rank=0, world_size=1)
    given.assign(1, 2)
    assert joined(read(given)) == joined(whole), "what was given wins"
    with pytest.raises(UsageError, match="rank must be 0 to 1"):
        ds.loader(50, world_size=2).assign(3, 4)


@pytest.mark.parametrize("epoch", [-1, 1.5, True])
def test_an_epoch_is_a_whole_number(numbers, epoch):
    with pytest.raises(UsageError, match="epoch must be"):
        shardctl.open(numbers).loader(50).set_epoch(epoch)


LABELLED = pa.schema({"key": pa.string(), "label": pa.int64()})


def labelled(root: Path, name: str, classes: tuple[str, ...] | None, labels: list[int]) -> Any:
    write_dataset(
        root / name,
        LABELLED,
        ((f"{name}{n}", label) for n, label in enumerate(labels)),
        100,
        classes=classes,
    )
    return shardctl.open(root / name)


@pytest.mark.parametrize("dtype", [None, {"label": "uint8"}])
def test_labels_of_a_mixture_are_numbered_by_their_names(tmp_path, dtype):
    pets = labelled(tmp_path, "pets", ("cat", "dog"), [0, 1, 1, 0] * 25)
    farm = labelled(tmp_path, "farm", ("cow", "dog", "hen"), [0, 1, 2] * 30)
    wanted = {row["key"]: ds.classes[row["label"]] for ds in (pets, farm) for row in ds}
    mix = shardctl.mix([pets, farm], [1, 1])
    assert mix.classes == ("cat", "dog", "cow", "hen")
    assert len(mix) == len(mix.loader(1)) == 190
    for batch in mix.loader(32, shuffle=True, dtype=dtype):
        assert batch["label"].dtype == ("uint8" if dtype else "int64")
        names = [mix.classes[label] for label in batch["label"]]
        assert names == [wanted[key] for key in batch["key"]]
    state = shardctl.mix([pets, farm], [1, 1], samples=7).loader(4).state_dict()
    assert state["order"]["samples"] == 7


def test_labels_that_cannot_be_brought_together_are_refused(tmp_path):
    named = labelled(tmp_path, "named", ("cat", "dog"), [0, 1] * 20)
    bare = labelled(tmp_path, "bare", None, [0, 1] * 20)
    wrong = labelled(tmp_path, "wrong", ("hen", "dog"), [0, 5] * 20)
    mix, other, same = (
        shardctl.mix(both, [1, 1]) for both in ([named, bare], [named, wrong], [bare, bare])
    )
    assert mix.classes is None
    with pytest.raises(UsageError, match=r"bare have no names.*columns="):
        mix.loader(4)
    assert set(next(iter(mix.loader(4, columns=["key"])))) == {"key"}
    with pytest.raises(DatasetError, match=r"key 'wrong1': label 5"):
        list(other.loader(80))
    assert same.loader(4)


def one_column(root: Path, name: str, type_: pa.DataType, value: Any) -> Any:
    columns = pa.schema({"key": pa.string(), "x": type_})
    write_dataset(root / name, columns, ((f"{name}{n}", value) for n in range(20)), 20)
    return shardctl.open(root / name)


def test_columns_of_a_mixture_that_differ_are_refused_by_name(tmp_path):
    types = (pa.int32(), pa.int64(), pa.string(), pa.date32(), pa.struct({"a": pa.int8()}))
    small, large, text, date, pair = (
        one_column(tmp_path, str(place), type_, None) for place, type_ in enumerate(types)
    )
    for both in ([small, large], [small, text], [small, date], [date, pair]):
        with pytest.raises(UsageError, match="column x is"):
            shardctl.mix(both, [1, 1]).loader(4)
    mix = shardctl.mix([small, large], [1, 1])
    for batch in mix.loader(4, dtype={"x": "int64"}, fill={"x": 0}):
        assert batch["x"].dtype == np.int64


def test_arrays_of_different_shapes_are_lists_in_every_batch_of_a_mixture(tmp_path):
    vectors = [
        one_column(tmp_path, f"{size}-", pa.fixed_shape_tensor(pa.uint8(), [size]), values)
        for size, values in ((3, np.ones(3, np.uint8)), (2, np.zeros(2, np.uint8)))
    ]
    for batch in shardctl.mix(vectors, [5, 1]).loader(1):
        (key,), (value,) = batch["key"], batch["x"]
        assert isinstance(batch["x"], list)
        assert value.shape == (int(key[0]),)


def test_impossible_mixtures_are_refused(numbers):
    ds: Any = shardctl.open(numbers)
    two = [ds, ds]
    for arguments, said in (
        ((two, [1, float("nan")]), "finite"),
        ((two, [1, 0]), "above 0"),
        ((two, [1e308, 1e308]), "above 0"),
        ((two, [1]), "2 datasets"),
        ((two, [1, 1], 0), "samples"),
        ((two, [1, 1], 2.5), "samples"),
        (([str(numbers)], [1]), "list of datasets"),
        ((ds, ds), "datasets takes a list"),
        (([ds[0]], [1]), "dict"),
        (([], []), "0 datasets"),
        (([ds, ds.limit(0)], [1, 1]), "without samples"),
    ):
        with pytest.raises(UsageError, match=said):
            shardctl.mix(*arguments)
