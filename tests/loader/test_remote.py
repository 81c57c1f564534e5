"""Datasets on a store are read as local ones are: the same batches, and each block comes over the
network once."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dataset_files import shard_in, tables_in
from format_2 import as_format_2
from programs import run_python
from remote_datasets import (
    all_same,
    assert_each_block_once,
    block_reads,
    blocks_of,
    is_shard,
    key_of,
    make,
    same,
    upload,
)

import shardctl
from shardctl.errors import DatasetError, StoreError, UsageError
from shardctl.format.manifest import Manifest
from shardctl.format.names import MANIFEST
from shardctl.loader.dataset import Dataset
from shardctl.system import fetching
from shardctl.system.folders import LocalFolder
from shardctl.system.scratch import SCRATCH
from shardctl.system.stores import open_store


@pytest.fixture(scope="module", params=["none", "zstd"])
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("local") / "out", request.param)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("plain") / "out")


@pytest.fixture
def url(plain: Path, bucket: str) -> str:
    """Where `plain` is on a store."""
    return upload(plain, f"{bucket}/out")


@pytest.fixture(params=[False, True], ids=["memory", "cache"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Path | bool:
    return tmp_path / "cache" if request.param else False


def both(root: Path, bucket: str, **options: Any) -> tuple[Dataset, Dataset]:
    """Open a dataset on a store, where it is put, and here."""
    return shardctl.open(upload(root, f"{bucket}/out"), **options), shardctl.open(root)


def keys_of(loader: Any) -> list[str]:
    return [key for batch in loader for key in batch["key"]]


@pytest.mark.thorough(after=1)
def test_batches_are_those_of_a_local_dataset(root, bucket, cache):
    local, url = shardctl.open(root, split="train"), upload(root, f"{bucket}/out")
    remote = shardctl.open(url, split="train", cache=cache)
    for shuffle in (False, "window", "block", "global"):
        for world_size in (1, 3):
            for rank in range(world_size):
                order = {"shuffle": shuffle, "seed": 5, "world_size": world_size, "rank": rank}
                assert all_same(*(each.loader(8, threads=3, **order) for each in (remote, local)))
    again = shardctl.open(url, split="train", cache=cache)
    assert all_same(
        again.loader(8, shuffle="window", repeat=2), local.loader(8, shuffle="window", repeat=2)
    )


@pytest.mark.thorough(after=1)
def test_everything_that_a_dataset_has(root, bucket, cache):
    remote, local = both(root, bucket, cache=cache)
    for made in (
        len,
        lambda ds: ds.identity,
        lambda ds: [ds[7], ds[-1], ds.take([3, 119, 4, 3])],
        list,
        lambda ds: list(ds[10:90:7]),
        lambda ds: list(ds.filter("label == 3 and width > 3").loader(4)),
        lambda ds: list(shardctl.mix([ds, ds.limit(30)], [3, 1]).loader(16, shuffle="window")),
        lambda ds: list(ds.loader(9, columns=["wide"], decode=False)),
    ):
        assert same(made(remote), made(local))
    assert remote.schema == local.schema
    assert f"'{bucket}/out'" in repr(remote)
    assert remote.location == f"{bucket}/out"


def test_a_dataset_that_is_opened_again_is_asked_for_with_the_variables_of_now(url, monkeypatch):
    """A person who has mended the credentials in a notebook need not start it anew."""
    with monkeypatch.context() as wrong:
        wrong.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        wrong.setenv("SHARDCTL_STORE_RETRY", "0")
        with pytest.raises(StoreError, match="the connection was refused"):
            shardctl.open(url, cache=False)
    assert len(shardctl.open(url, cache=False)) == 120


def test_a_loader_goes_on_where_a_local_one_stopped(plain, bucket, cache):
    remote, local = (
        ds.loader(8, shuffle="window", seed=2) for ds in both(plain, bucket, cache=cache)
    )
    keys_of(itertools.islice(local, 4))
    state = local.state_dict()
    local.load_state_dict(state)
    remote.load_state_dict(json.loads(json.dumps(state)))
    assert all_same(remote, local)
    assert remote.state_dict() == local.state_dict()


def test_shuffle_true_reads_whole_blocks(plain, bucket):
    remote, local = (ds.loader(8, shuffle=True) for ds in both(plain, bucket, cache=False))
    orders = [loader.state_dict()["order"]["shuffle"] for loader in (local, remote)]
    assert orders == ["global", "window"]
    with pytest.raises(UsageError, match="another dataset, seed, shuffle or steps"):
        remote.load_state_dict(local.state_dict())


@pytest.mark.thorough(after=1)
def test_processes_make_the_same_batches(plain, bucket, cache, object_server):
    local, url = shardctl.open(plain), upload(plain, f"{bucket}/out")
    object_server.clear()
    loader = shardctl.open(url, cache=cache).loader(
        8, shuffle="window", seed=1, processes=2, threads=4
    )
    try:
        assert all_same(loader, local.loader(8, shuffle="window", seed=1))
        assert loader.stats().network_blocks >= blocks_of(plain)
    finally:
        loader.close()
    if cache:
        assert_each_block_once(object_server, plain)


def test_a_dataset_goes_to_another_process(url, cache, object_server):
    remote = shardctl.open(url, cache=cache)
    object_server.clear()
    there = pickle.loads(pickle.dumps(remote[5:9]))
    assert [sample["key"] for sample in there] == ["k005", "k006", "k007", "k008"]
    assert not [r for r in object_server.log() if not is_shard(r["key"])], (
        "the tables are here already"
    )


def test_each_block_comes_once_and_only_once_in_an_epoch(root, bucket, object_server):
    remote = shardctl.open(upload(root, f"{bucket}/out"), cache=False)
    object_server.clear()
    loader = remote.loader(8, threads=3)
    assert len(keys_of(loader)) == 120
    assert_each_block_once(object_server, root)
    stats = loader.stats()
    assert (stats.network_blocks, stats.cached_blocks) == (blocks_of(root), 0)
    # the first footer was read before
    assert stats.requests == len([r for r in object_server.log() if is_shard(r["key"])]) + 1


@pytest.mark.thorough
def test_a_rank_reads_its_own_part_of_the_shards(out, bucket, object_server):
    remote = shardctl.open(upload(make(out, samples=1200), f"{bucket}/out"), cache=False)
    object_server.clear()
    keys_of(remote.loader(4, shuffle="block", rank=0, world_size=4))
    assert 0 < len(block_reads(object_server, out)) < blocks_of(out) / 2


def test_blocks_are_requested_before_they_are_needed(url, plain, object_server):
    remote = shardctl.open(url, cache=False)
    object_server.clear()
    loader = remote.loader(4, threads=1, prefetch=1)
    batches = iter(loader)
    next(batches)
    while (
        len(block_reads(object_server, plain)) < 4
    ):  # more than one batch needs; they come without another one being asked for
        pass
    object_server.fault("403", method="GET")  # what was not asked for yet does not come
    with pytest.raises(StoreError):
        keys_of(batches)
    assert loader.stats().batches > 2


def test_a_filter_and_plain_iteration_request_ahead(url, plain, object_server):
    object_server.clear()
    assert len(list(shardctl.open(url, cache=False))) == 120
    assert_each_block_once(object_server, plain)
    object_server.clear()
    assert len(shardctl.open(url, cache=False).filter("label == 3")) == 17
    assert_each_block_once(object_server, plain)


def test_an_abandoned_epoch_leaves_nothing_behind(url, plain, object_server):
    remote = shardctl.open(url, cache=False)
    loader = remote.loader(4, shuffle="window", threads=2)
    for _ in range(3):
        batches = iter(loader)
        next(batches)
        batches.close()
    loader.set_epoch(0)
    object_server.clear()
    assert all_same(loader, shardctl.open(plain).loader(4, shuffle="window"))
    assert sum(block_reads(object_server, plain).values()) < 2 * blocks_of(plain)


def test_a_small_window_of_requests_is_enough(plain, bucket, monkeypatch):
    monkeypatch.setattr(fetching, "AHEAD_BYTES", 1)
    monkeypatch.setattr(fetching, "AT_ONCE", 2)
    loaders = [ds.loader(8, shuffle="global", threads=4) for ds in both(plain, bucket, cache=False)]
    assert all_same(*loaders)


def test_a_dataset_of_format_2_in_a_folder_below_its_manifest(plain, out, bucket, cache):
    url = upload(as_format_2(plain, out, "abc123/"), f"{bucket}/out")
    assert all_same(shardctl.open(url, cache=cache), shardctl.open(plain))
    assert all_same(shardctl.open(f"{url}/abc123", cache=cache), shardctl.open(plain))


@pytest.mark.parametrize("base", ["../", "a/b/", "abc", "/"])
def test_no_folder_leads_elsewhere(plain, out, bucket, base):
    manifest = Manifest.load(LocalFolder(as_format_2(plain, out)))
    forged = replace(manifest, base=base).to_json().encode()
    open_store(bucket).put(f"out/{MANIFEST}", forged)
    with pytest.raises(DatasetError, match="help format"):
        shardctl.open(f"{bucket}/out", cache=False)


def test_faults_of_a_network_change_nothing(plain, bucket, cache, object_server):
    opened = both(plain, bucket, cache=cache)
    object_server.fault("503", method="GET", share=0.2, times=8)
    object_server.fault("cut", method="GET", share=0.2, times=8, size=1000)
    object_server.fault("reset", method="*", share=0.2, times=4)
    assert all_same(*(ds.loader(8, shuffle="window", seed=3) for ds in opened))
    assert any(r["status"] != 206 for r in object_server.log() if r["method"] == "GET")


def test_a_store_that_refuses_is_an_error_and_no_skipped_sample(url, object_server):
    remote = shardctl.open(url, cache=False)
    object_server.fault("403", method="GET", key="*train-00001*")
    with pytest.raises(StoreError, match=r"train-00001-\w+\.arrow"):
        keys_of(remote.loader(8, on_error="skip"))


def test_a_shard_that_is_replaced_while_it_is_read(url, plain, tmp_path, cache):
    remote = shardctl.open(url, cache=cache)
    remote.take([40, 79])  # of the second shard, and its footer
    other = make(tmp_path / "other", seed=1000)
    open_store(url).put(key_of(plain), shard_in(other, "train-00001"))
    for on_error in ("raise", "skip"):
        with pytest.raises(DatasetError, match=rf"{url}/{key_of(plain)}: (replaced|\d+ bytes)"):
            keys_of(remote.loader(8, on_error=on_error))


def test_a_shard_that_is_not_there_or_not_whole(url, plain, cache):
    gone, cut = (key_of(plain, name) for name in ("train-00001", "train-00002"))
    open_store(url).delete([gone])
    open_store(url).put(cut, (plain / cut).read_bytes()[:-8])
    remote = shardctl.open(url, cache=cache)
    for loader, said in (
        (remote[40:].loader(8), f"{gone}: no such shard"),
        (remote[80:].loader(8), rf"{cut}: \d+ bytes where"),
        (remote.loader(8, on_error="skip"), f"{gone}: no such shard"),
    ):
        with pytest.raises(DatasetError, match=f"{url}/{said}"):
            keys_of(loader)


@pytest.mark.thorough(after=1)
@pytest.mark.parametrize("kind", ["page", "short", "garbled", "cut"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_wrong_answer_is_asked_for_once_more(root, bucket, cache, object_server, kind, method):
    """Of each object, one: of the manifest, the table, the ends of shards and the blocks."""
    url = upload(root, f"{bucket}/out")
    for path in filter(Path.is_file, root.rglob("*")):
        key = f"out/{path.relative_to(root).as_posix()}"
        object_server.fault(kind, method=method, key=key, times=1, size=7)
    remote = shardctl.open(url, cache=cache)
    assert all_same(remote.loader(8), shardctl.open(root).loader(8))
    object_server.fault(kind, key=f"*{key_of(root)}", times=1, size=7)
    assert all_same(
        shardctl.open(url, cache=False).loader(8, threads=1), shardctl.open(root).loader(8)
    )
    assert {entry["fault"] for entry in object_server.log()} == {"", kind}


@pytest.mark.parametrize("kind", ["page", "short"])
def test_a_proxy_that_sends_something_else_is_told_of(url, object_server, kind):
    object_server.fault(kind, method="GET", key="*manifest.json", size=30)
    with pytest.raises(DatasetError, match=rf"{url}/manifest\.json: .*a proxy"):
        shardctl.open(url, cache=False)
    object_server.clear()
    remote = shardctl.open(url, cache=False)
    object_server.fault(kind, method="GET", key="*train-00001*", size=30)
    with pytest.raises(StoreError, match=r"train-00001-\w+\.arrow.*, twice; .* a proxy"):
        keys_of(remote.loader(8, on_error="skip"))


def test_a_footer_that_claims_more_than_any_has_is_not_fetched(
    url, plain, object_server, monkeypatch
):
    monkeypatch.setattr("shardctl.format.stretches.MOST_FOOTER", 20_000)
    data = bytearray((shard_in(plain, "train-00001")).read_bytes())
    data[-10:-6] = (len(data) - 20).to_bytes(4, "little")
    open_store(url).put(key_of(plain), bytes(data))
    with pytest.raises(DatasetError, match=rf"{key_of(plain)}: not a readable Arrow file"):
        shardctl.open(url, cache=False).take([40])
    asked = [r["range"] or "" for r in object_server.log() if r["key"].endswith(key_of(plain))]
    ranges = re.findall(r"bytes=(\d+)-(\d+)", " ".join(asked))
    assert 0 < max(int(last) - int(first) for first, last in ranges) < 20_000 < len(data)


@pytest.mark.thorough(after=1)
def test_a_damaged_block_is_named_or_skipped(root, bucket, cache):
    url = upload(root, f"{bucket}/out")
    data = bytearray((shard_in(root, "train-00001")).read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(byte ^ 255 for byte in data[middle : middle + 64])
    open_store(url).put(key_of(root), bytes(data))
    remote = shardctl.open(url, cache=cache)
    with pytest.raises(DatasetError, match=f"{url}/{key_of(root)}"):
        keys_of(remote.loader(8))
    kept = keys_of(remote.loader(8, on_error="skip", shuffle="window"))
    assert 110 <= len(kept) < 120


def test_what_is_no_dataset(bucket, url, plain):
    for place, said in (("none", "no dataset"), ("empty", "not the manifest")):
        if place == "empty":
            open_store(bucket).put(f"{place}/{MANIFEST}", b"{}")
        with pytest.raises(DatasetError, match=rf"{bucket}/{place}.*: {said}"):
            shardctl.open(f"{bucket}/{place}", cache=False)
    with pytest.raises(UsageError, match="no split 'val'; it has train"):
        shardctl.open(url, split="val", cache=False)
    table = f"{tables_in(plain).relative_to(plain).as_posix()}/shards.arrow"
    open_store(url).put(table, b"another table")
    with pytest.raises(DatasetError, match=rf"{url}/{table}: not the file"):
        shardctl.open(url, cache=False)


@pytest.mark.thorough
def test_the_tables_go_with_the_process(url, tmp_path):
    code = """
import os, shardctl, signal, sys
ds = shardctl.open(sys.argv[1], cache=False)
assert ds[3]["key"] == "k003" and len(os.listdir(os.environ["TMPDIR"])) == 1
os.kill(os.getpid(), int(sys.argv[2]))
"""
    # a killed one leaves its tables, which the next one removes
    for number, left in ((0, 0), (signal.SIGKILL, 1), (0, 0)):
        ran = run_python(code, url, number, env={**os.environ, "TMPDIR": str(tmp_path)})
        assert ran.returncode == -number
        assert [path.name.startswith(SCRATCH) for path in tmp_path.iterdir()] == [True] * left


@pytest.mark.thorough
def test_a_forked_process_says_why_it_cannot(url):
    code = """
import os, shardctl, sys
ds = shardctl.open(sys.argv[1], cache=False)
ds[0]
if os.fork() == 0:
    try:
        ds[100]
    except shardctl.errors.StoreError as error:
        os._exit(7 if "spawn" in str(error) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
"""
    run_python(code, url, check=True)


@pytest.mark.thorough
def test_bench_says_what_came_over_the_network(url, plain, tmp_path):
    list(shardctl.open(url, cache=tmp_path / "cache").loader(8))
    cached, without = (
        shardctl.bench(url, epochs=1, runs=1, batch_size=8, cache=cache)
        for cache in (tmp_path / "cache", False)
    )
    assert (cached.network.blocks, cached.network.from_cache) == (0, 1)
    network = without.network
    assert network.requests >= network.blocks >= blocks_of(plain)
    assert network.from_cache == 0 < network.bytes
    assert without.record()["network"]["mb_per_s"] > 0
    for option in ("baseline", "cold"):
        with pytest.raises(UsageError, match=option):
            shardctl.bench(url, **{option: True})


def test_packed_tokens_and_their_tokenizer(demo, out, bucket, cache):
    recipe = {
        "kind": "text",
        "record": "line",
        "transform": [{"name": "tokenize", "tokenizer": "bytes"}, {"name": "pack", "length": 64}],
    }
    shardctl.convert(demo / "lines.jsonl", out, recipe=recipe, workers=0)
    opened = both(out, bucket, cache=cache)
    assert all_same(*(ds.loader(8, shuffle="window", seed=4) for ds in opened))
    remote, local = (ds.tokenizer.decode(ds[3]["tokens"]) for ds in opened)
    assert remote == local


def test_an_earlier_generation(url):
    opened: Dataset = shardctl.open(url, generation=1, cache=False)
    assert len(opened) == 120
    with pytest.raises(DatasetError, match=rf"{url}: generation 2 is not there, only 1; "):
        shardctl.open(url, generation=2, cache=False)
