"""The same conversion in four places, each disturbed: is SHA256SUMS the same?

    python scripts/torture/same_bytes.py PHOTOS [--faults 0.01]

Here; on a Ray cluster of three nodes on this machine, one of which is removed in the middle (needs
the extra ray); in three parts, one of which is killed and run again; and to an S3 server of which a
share of the answers is 503, cut or lost.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from shardctl.system.stores import open_store

sys.path.append(str(Path(__file__).resolve().parents[1] / "data"))
from object_server import ObjectServer

RECIPE = [
    "--resize",
    "256",
    "--random-crop",
    "224",
    "--flip",
    "0.5",
    "--variants",
    "2",
    "--store",
    "jpeg:90",
]
RECIPE += [
    "--split",
    "train=0.9,val=0.1",
    "--shuffle",
    "1",
    "--seed",
    "7",
    "--samples-per-shard",
    "16",
    "--quiet",
]


def shardctl(*words: str, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "shardctl", *words]
    return subprocess.Popen(
        command,
        env={**os.environ, **variables},
        text=True,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[str]) -> None:
    _, err = process.communicate()
    if process.returncode:
        raise SystemExit(f"exit code {process.returncode}: {err}")


def markers(out: Path) -> int:
    return len(list(out.glob(".shardctl/*/done/*.arrow")))


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.01)


def here(photos: Path, folder: Path) -> str:
    finish(shardctl("convert", str(photos), str(folder / "here"), *RECIPE))
    return digest((folder / "here" / "SHA256SUMS").read_bytes())


def on_ray(photos: Path, folder: Path) -> str:
    out = folder / "ray"
    with cluster() as (made, doomed):
        process = shardctl(
            "convert", str(photos), str(out), *RECIPE, "--engine", f"ray:{made.address}"
        )
        wait_for(lambda: markers(out) >= 3 or process.poll() is not None)
        print(f"  a node is removed after {markers(out)} shards", flush=True)
        made.remove_node(doomed, allow_graceful=False)
        finish(process)
    return digest((out / "SHA256SUMS").read_bytes())


@contextlib.contextmanager
def cluster() -> Iterator[tuple[object, object]]:
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    small = {"object_store_memory": 80 << 20, "include_dashboard": False}
    quick = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 500,
        "health_check_failure_threshold": 3,
    }
    made = Cluster(True, head_node_args={"num_cpus": 0, "_system_config": quick, **small})
    try:
        nodes = [made.add_node(num_cpus=1, **small) for _ in range(3)]
        yield made, nodes[1]
    finally:
        made.shutdown()


def in_parts(photos: Path, folder: Path) -> str:
    out = folder / "parts"

    def part(name: str) -> subprocess.Popen[str]:
        return shardctl("convert", str(photos), str(out), *RECIPE, "--workers", "1", "--part", name)

    killed = part("2/3")
    wait_for(lambda: markers(out) >= 2 or killed.poll() is not None)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    print(f"  a part is killed after {markers(out)} shards", flush=True)
    for process in [part(name) for name in ("3/3", "1/3", "2/3")]:
        finish(process)
    finish(shardctl("finish", str(out)))
    return digest((out / "SHA256SUMS").read_bytes())


def to_store(photos: Path, faults: float) -> str:
    with ObjectServer() as server:
        url = f"s3://{server.make_bucket('bucket')}/out"
        for seed, kind in enumerate(("503", "cut", "lost")):
            server.fault(kind, share=faults, seed=seed, size=100)
        finish(shardctl("convert", str(photos), url, *RECIPE, **server.environment))
        log = server.log()
        failed = sum(entry["status"] in (None, 503) for entry in log)
        print(
            f"  of {len(log)} requests {failed} were refused or not answered, and others cut",
            flush=True,
        )
        server.clear()
        os.environ.update(server.environment)
        store = open_store(url)
        (sums,) = [
            entry.name
            for page in store.pages()
            for entry in page
            if entry.name.endswith("/SHA256SUMS")
        ]
        base, data = sums.removesuffix("SHA256SUMS"), store.get(sums).to_pybytes()
        for line in data.decode().splitlines():
            wanted, name = line.split("  ", 1)
            assert digest(store.get(base + name).to_pybytes()) == wanted, name
        return digest(data)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("photos", type=Path)
    parser.add_argument("--faults", type=float, default=0.01)
    given = parser.parse_args()
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        places: dict[str, Callable[[], str]] = {
            "here": lambda: here(given.photos, folder),
            "three parts, one killed and repeated": lambda: in_parts(given.photos, folder),
            f"S3, {given.faults:.0%} each of 503, cut, lost": lambda: to_store(
                given.photos, given.faults
            ),
            "Ray, three nodes, one removed": lambda: on_ray(given.photos, folder),
        }
        for place, make in places.items():
            began = time.monotonic()
            found[place] = make()
            print(f"{place}: {found[place][:16]} in {time.monotonic() - began:.1f} s", flush=True)
    if len(set(found.values())) > 1:
        raise SystemExit("the datasets differ")
    print("SHA256SUMS is the same in all")


if __name__ == "__main__":
    main()
