"""Against the real packages, where they are installed: `make setup` installs them where it can."""

from __future__ import annotations

import copy
import itertools
import multiprocessing
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from handmade import write_dataset
from programs import run_python

import shardctl
from shardctl.errors import UsageError

SAMPLES = 120


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    columns = pa.schema(
        {
            "key": pa.string(),
            "n": pa.int64(),
            "x": pa.fixed_shape_tensor(pa.uint8(), [2, 3]),
            "tokens": pa.list_(pa.int32()),
            "boxes": pa.list_(pa.list_(pa.float32())),
        }
    )
    rows = (
        (f"k{n}", n, np.full((2, 3), n, np.uint8), list(range(n % 4 + 1)), boxes(n))
        for n in range(SAMPLES)
    )
    path = tmp_path_factory.mktemp("frameworks") / "out"
    write_dataset(path, columns, rows, 40, sample_bytes=400_000)
    return path


def boxes(n: int) -> list[list[float]]:
    return [[float(n), 1.0, 2.0][: n % 2 + row + 1] for row in range(n % 3)]


def numbers(batches: Any) -> list[int]:
    return [int(n) for batch in batches for n in batch["n"]]


def late(begin: Any, worker: int) -> None:
    """Begin a worker when it may."""
    assert begin.wait(60)


def workers(dataset: Any, count: int, **options: Any) -> Any:
    """Read a dataset in worker processes of PyTorch's."""
    from torch.utils.data import DataLoader

    return DataLoader(dataset, batch_size=None, num_workers=count, **options)


class TestTorch:
    @pytest.fixture(autouse=True)
    def torch(self) -> Any:
        return pytest.importorskip("torch")

    @pytest.fixture
    def dataset(self, root: Path, torch: Any) -> Any:
        """Make a dataset of PyTorch's with batches of 16 samples."""
        from shardctl.torch import IterableDataset

        def make(batch: int = 16, **options: Any) -> Any:
            return IterableDataset(shardctl.open(root), batch, **{"threads": 1, **options})

        return make

    def test_batches_are_tensors_that_can_be_written_to(self, root, torch):
        from shardctl.torch import Loader

        ds = shardctl.open(root)
        plain, loader = ds.loader(32), Loader(ds.loader(32))
        assert len(loader) == 4
        for found, expected in zip(loader, plain, strict=True):
            assert found["x"].dtype == torch.uint8
            assert np.array_equal(found["x"].numpy(), expected["x"])
            assert found["key"] == expected["key"]
            found["x"] += 1  # views of the file are copied

    def test_tokens_are_int64_unless_another_type_was_asked_for(self, tmp_path, torch):
        from shardctl.torch import IterableDataset, Loader

        blocks, rows = pa.schema({"tokens": pa.list_(pa.uint16())}), [{"tokens": [1, 65535]}] * 3
        shardctl.write(tmp_path / "out", rows, blocks, roles={"tokens": "tokens"})
        ds, pad = shardctl.open(tmp_path / "out"), {"tokens": 0}
        for batches in (
            Loader(ds.loader(2, pad=pad)),
            Loader(shardctl.mix([ds, ds], [1, 1]).loader(2, pad=pad)),
            IterableDataset(ds, 2, pad=pad),
        ):
            tokens = next(iter(batches))["tokens"]
            assert tokens.dtype == torch.int64
            assert tokens.tolist() == [[1, 65535]] * 2
        assert next(iter(Loader(ds.loader(2))))["tokens"][0].dtype == np.int64
        asked = next(iter(Loader(ds.loader(2, pad=pad, dtype={"tokens": "uint16"}))))
        assert asked["tokens"].dtype == torch.uint16
        assert set(next(iter(Loader(ds.loader(2, columns=["key"]))))) == {"key"}

    def test_wrong_arguments_are_refused_when_it_is_made(self, root, torch):
        from shardctl import torch as adapter

        ds = shardctl.open(root)
        for make, answer in (
            (lambda: adapter.Loader(ds), r"takes no Dataset; write .*Loader\(ds.loader\(256\)\)"),
            (lambda: adapter.Loader(ds, batch_size=8), r"Loader\(ds.loader\(batch_size=…\)\)"),
            (lambda: adapter.Loader(ds.loader(8), pin_memory=True), 'device="cuda"'),
            (lambda: adapter.IterableDataset(ds.loader(8)), "takes no Loader; write"),
            (lambda: next(iter(adapter.Loader(ds.loader(8).map(list)))), "map returned a list"),
        ):
            with pytest.raises(UsageError, match=answer):
                make()
        with pytest.raises(AttributeError, match=r"shardctl\.torch\.Loader"):
            adapter.DataLoader  # noqa: B018
        with pytest.raises(TypeError, match="stands for the DataLoader of PyTorch"):
            next(iter(torch.utils.data.DataLoader(ds.loader(8))))

    @pytest.mark.thorough
    def test_an_iteration_that_is_open_when_python_ends_says_nothing(self, root):
        code = (
            f"import shardctl, torch; batches = iter(shardctl.open({str(root)!r}).loader(8, "
            "threads=1)); next(batches)"
        )
        done = run_python(code, check=True)
        assert (done.stdout, done.stderr) == ("", "")

    @pytest.mark.thorough(after=2)
    @pytest.mark.parametrize(
        "options", [{"count": 0}, {"count": 2}, {"count": 2, "multiprocessing_context": "spawn"}]
    )
    def test_in_a_data_loader_with_workers_each_sample_comes_once(self, dataset, options):
        assert sorted(numbers(workers(dataset(shuffle=True), **options))) == list(range(SAMPLES))

    def test_a_worker_that_begins_late_reads_the_epoch_that_was_set_before_it(self, root, dataset):
        begin, read = multiprocessing.Event(), dataset(shuffle=True)
        loader = workers(read, 2, worker_init_fn=partial(late, begin))
        first = iter(loader)
        read.set_epoch(7)
        begin.set()
        assert sorted(numbers(first)) == list(range(SAMPLES))
        alone = shardctl.open(root).loader(16, shuffle=True, threads=1)
        alone.set_epoch(7)
        seventh = numbers(loader)
        assert sorted(seventh) == list(range(SAMPLES))
        assert seventh[:16] == numbers(alone)[:16]

    @pytest.mark.thorough(after=1)
    @pytest.mark.parametrize("persistent", [False, True])
    def test_each_iteration_with_workers_is_the_next_epoch_or_the_one_that_is_set(
        self, root, dataset, persistent
    ):
        read = dataset(shuffle=True)
        loader, of_copy, resumed = (
            workers(each, 2, persistent_workers=persistent)
            for each in (read, copy.deepcopy(read), dataset(shuffle=True))
        )
        assert numbers(of_copy) != numbers(of_copy)
        plain = shardctl.open(root).loader(16, shuffle=True, threads=1)
        epochs = [numbers(loader) for _ in range(3)]
        assert [sorted(epoch) for epoch in epochs] == [list(range(SAMPLES))] * 3
        # the first batch is of the first worker's first share
        assert [epoch[:16] for epoch in epochs] == [numbers(plain)[:16] for _ in range(3)]
        read.set_epoch(5)
        next(iter(loader))
        read.set_epoch(1)
        assert numbers(loader) == epochs[1]
        assert numbers(loader) == epochs[2]
        state = shardctl.open(root).loader(32, shuffle=True).state_dict()
        resumed.dataset.load_state_dict(state | {"epoch": 1, "samples": 32})
        assert numbers(resumed) == epochs[1][32:]
        assert numbers(resumed) == epochs[2], "and not the rest of the state once more"
        list(workers(resumed.dataset, 1))
        anew = numbers(workers(resumed.dataset, 2))
        assert sorted(anew) == list(range(SAMPLES)), "after another number of workers"
        with pytest.raises(UsageError, match="reuse=True"):
            next(iter(dataset(reuse=True)))

    # of torchdata's, by torch
    @pytest.mark.thorough(after=1)
    @pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
    @pytest.mark.parametrize("count", [0, 2])
    def test_torchdata_resumes_after_any_batch(self, dataset, count):
        stateful = pytest.importorskip("torchdata.stateful_dataloader")

        def make() -> Any:
            read = dataset(24, shuffle=True, seed=4)
            return stateful.StatefulDataLoader(read, batch_size=None, num_workers=count)

        loader = make()
        whole, states = [], []
        for batch in loader:
            whole.append(batch["n"].tolist())
            states.append(loader.state_dict())
        assert sorted(itertools.chain.from_iterable(whole)) == list(range(SAMPLES))
        for done, state in enumerate(states, 1):
            resumed = make()
            resumed.load_state_dict(state)
            assert [batch["n"].tolist() for batch in resumed] == whole[done:], f"after {done}"

    @pytest.mark.parametrize("kind", ["Loader", "IterableDataset"])
    def test_an_iteration_after_a_broken_off_one_is_the_next_epoch(self, root, dataset, kind):
        from shardctl.torch import Loader

        plain = shardctl.open(root).loader(16, shuffle=True)
        epochs = [numbers(plain) for _ in range(3)]
        broken = dataset(shuffle=True)
        if kind == "Loader":
            broken = Loader(shardctl.open(root).loader(16, shuffle=True))
        assert numbers(itertools.islice(broken, 2)) == epochs[0][:32]
        state = broken.state_dict()
        assert (state["epoch"], state["samples"]) == (0, 32)
        assert numbers(broken) == epochs[1]
        assert numbers(itertools.islice(broken, 1)) == epochs[2][:16]
        broken.load_state_dict(state)
        assert numbers(broken) == epochs[0][32:]
        assert numbers(broken) == epochs[1]
        broken.load_state_dict(state)
        broken.set_epoch(0)
        assert numbers(broken) == epochs[0][32:]
        broken.load_state_dict(state)
        with pytest.warns(UserWarning, match="leaves the loaded state"):
            broken.set_epoch(1)
        assert numbers(broken) == epochs[1]
        broken.load_state_dict(state | {"samples": SAMPLES})
        broken.set_epoch(1)  # nothing is left: no warning, which would be an error here
        assert numbers(broken) == epochs[1]

    def test_worker_processes_divide_the_part_of_a_rank_that_was_given(self, dataset):
        options = {"world_size": 2, "remainder": "uneven"}
        read = [numbers(workers(dataset(8, rank=rank, **options), 2)) for rank in range(2)]
        assert len(read[0]) == len(read[1]) == SAMPLES // 2
        assert sorted(read[0] + read[1]) == list(range(SAMPLES))

    def test_an_iterable_dataset_has_a_length(self, dataset):
        read = dataset()
        assert len(read) == len(workers(read, 0)) == len(list(read)) == 8
        assert len(dataset(rank=1, world_size=2)) == 4

    @pytest.mark.thorough(after=1)
    @pytest.mark.parametrize("samples", [SAMPLES, SAMPLES - 9, 1])
    def test_two_ranks_of_distributed_data_parallel_end_together(self, root, tmp_path, samples):
        """Two real processes train a real model; each must have the other's gradients, and all
        samples come: where they do not divide, the first of the epoch again, and no rank waits."""
        printed = in_two_ranks(root, tmp_path, f"SAMPLES = {samples}{TRAIN}")
        read = [list(map(int, lines[0].split())) for lines in printed]
        assert len(read[0]) == len(read[1]) == -(-samples // 20) * 10
        assert set(read[0] + read[1]) == set(range(samples))
        assert printed[0][1] == printed[1][1], "the same weights after averaging gradients"
        steps = -(-samples // 20)
        assert printed[0][2] == printed[1][2] == f"{steps} {samples}", (
            "batches of a rank of a loader that was made before the group; samples of rank 0 of 1"
        )


def in_two_ranks(root: Path, folder: Path, code: str) -> list[list[str]]:
    """Run a program as two ranks of a gloo process group, and return the lines that each prints."""
    script = folder / "ranks.py"
    script.write_text(code)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    ranks = [
        subprocess.Popen(
            [sys.executable, script, root],
            env={**os.environ, **address, "WORLD_SIZE": "2", "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    printed = [rank.communicate(timeout=120)[0].splitlines() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    return printed


TRAIN = """
import os, sys, torch, shardctl
from torch.nn.parallel import DistributedDataParallel
from shardctl.torch import IterableDataset, Loader
ds = shardctl.open(sys.argv[1]).limit(SAMPLES)
before = Loader(ds.loader(10))
torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(6, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
read = []
for batch in IterableDataset(ds, 10, shuffle=True, seed=1):
    loss = (model(batch["x"].reshape(-1, 6).float()) - batch["n"][:, None]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    read += batch["n"].tolist()
print(*read)
print(*(value for p in model.parameters() for value in p.flatten().tolist()))
print(sum(1 for batch in before), sum(len(batch["n"]) for batch in Loader(ds.loader(10, rank=0, world_size=1))))
# A process of torch 2.13 ends now and then by SIGABRT, without shardctl too: with a model that has the group still, and rarely
# while the interpreter is taken down.
del model, optimizer, loss
torch.distributed.barrier()
torch.distributed.destroy_process_group()
sys.stdout.flush()
os._exit(0)
"""


def test_tensorflow_gets_a_dataset_with_the_right_specs(root):
    """In a process of its own: TensorFlow and PyTorch do not always bear each other."""
    if not _has("tensorflow"):
        pytest.skip("TensorFlow is not installed")
    ran = run_python(TENSORFLOW, root, timeout=300)
    assert ran.returncode == 0, ran.stderr


TENSORFLOW = """
import sys, shardctl, shardctl.tensorflow, tensorflow as tf
ds = shardctl.open(sys.argv[1])
data = shardctl.tensorflow.dataset(ds.loader(32, shuffle=True, seed=3))
assert data.element_spec == {
    "key": tf.TensorSpec((None,), tf.string), "n": tf.TensorSpec((None,), tf.int64),
    "x": tf.TensorSpec((None, 2, 3), tf.uint8), "tokens": tf.RaggedTensorSpec((None, None), tf.int32, 1),
    "boxes": tf.RaggedTensorSpec((None, None, None), tf.float32, 2),
}, data.element_spec
found = list(data.prefetch(2))
expected = list(ds.loader(32, shuffle=True, seed=3))
assert len(found) == len(expected) == 4
for mine, plain in zip(found, expected):
    assert (mine["x"].numpy() == plain["x"]).all() and mine["n"].numpy().tolist() == plain["n"].tolist()
    assert [key.decode() for key in mine["key"].numpy()] == plain["key"]
    assert mine["tokens"].to_list() == [tokens.tolist() for tokens in plain["tokens"]]
    assert mine["boxes"].to_list() == [[list(row) for row in boxes] for boxes in plain["boxes"]]
first = [batch["n"].numpy().tolist() for batch in data.take(1)]
again = [batch["n"].numpy().tolist() for batch in data]
loader = ds.loader(32, shuffle=True, seed=3)
epochs = [[batch["n"].tolist() for batch in loader] for _ in range(3)]
assert first == epochs[1][:1] and again == epochs[2], "the next epoch, also after a break"
try:
    shardctl.tensorflow.dataset(ds.loader(32, reuse=True))
    raise AssertionError("TensorFlow may keep what it is given")
except shardctl.errors.UsageError:
    pass
padded = shardctl.tensorflow.dataset(ds.loader(32, pad={"tokens": -1, "boxes": 0}))
assert padded.element_spec["boxes"] == tf.TensorSpec((None, None, None), tf.float32)
assert padded.element_spec["tokens"] == tf.TensorSpec((None, None), tf.int32)
assert sum(len(batch["n"]) for batch in padded) == 120
filled = shardctl.tensorflow.dataset(ds.loader(32, remainder="pad", repeated=True))
assert filled.element_spec["repeated"] == tf.TensorSpec((None,), tf.bool)
assert [int(tf.math.count_nonzero(batch["repeated"])) for batch in filled] == [0, 0, 0, 8]
"""


def test_jax_gets_arrays_and_grain_a_source(root):
    if not _has("jax"):
        pytest.skip("JAX is not installed")
    ran = run_python(JAX, root, _has("grain"), timeout=300)
    assert ran.returncode == 0, ran.stderr


JAX = """
import sys, jax, shardctl, shardctl.jax
ds = shardctl.open(sys.argv[1])
for mine, plain in zip(shardctl.jax.batches(ds.loader(32, shuffle=True)), ds.loader(32, shuffle=True), strict=True):
    assert isinstance(mine["x"], jax.Array) and (mine["x"] == plain["x"]).all() and mine["key"] == plain["key"]
filled = shardctl.jax.batches(ds.loader(32, remainder="pad", repeated=True))
assert [int(batch["repeated"].sum()) for batch in filled] == [0, 0, 0, 8]
loader = ds.loader(32, shuffle=True)
epochs = [[batch["n"].tolist() for batch in loader] for _ in range(2)]
loader.set_epoch(0)
assert next(shardctl.jax.batches(loader))["n"].tolist() == epochs[0][0]
assert [batch["n"].tolist() for batch in shardctl.jax.batches(loader)] == epochs[1], "the next epoch, also after a break"
try:
    next(shardctl.jax.batches(ds.loader(32, reuse=True)))
    raise AssertionError("JAX may keep what it is given")
except shardctl.errors.UsageError:
    pass
if sys.argv[2] == "True":
    import grain
    import grain.python
    source = shardctl.jax.Source(ds)
    assert isinstance(source, grain.python.RandomAccessDataSource)
    data = grain.MapDataset.source(source).shuffle(seed=1).map(lambda sample: sample["n"]).batch(10)
    read = sorted(int(n) for batch in data for n in batch)
    assert read == list(range(120)), read
    assert ds.identity["content"] in repr(source) and sys.argv[1] not in repr(source), "wherever it lies"
"""


def _has(package: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(package) is not None
