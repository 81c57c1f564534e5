"""Run the property tests on new examples, many more than `make test` draws, until the time is over
or one fails.

After each round, images with changed headers are decoded, and memory is looked at
(fuzz_headers.py).

    python scripts/torture/fuzz.py --minutes 10 [tests/format/test_shard.py …]

A failure prints the example. Write it above its test as `@example(…)`, so that `make test` tries it
from then on.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import time
from pathlib import Path

DRAWN = {"SHARDCTL_FUZZ": "10", "SHARDCTL_THOROUGH": "yes"}
"""How many times as many examples each round draws, and that it does so for every case of a
test."""

HEADERS = Path(__file__).with_name("fuzz_headers.py")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("tests", nargs="*", default=["tests"])
    given = parser.parse_args()
    end, rounds = time.monotonic() + given.minutes * 60, 0
    while rounds == 0 or time.monotonic() < end:
        seed = random.SystemRandom().getrandbits(32)
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-m",
            "hypothesis",
            f"--hypothesis-seed={seed}",
            "-n",
            "auto",
        ]
        ended = subprocess.run([*command, *given.tests], env={**os.environ, **DRAWN})
        if ended.returncode:
            words = [*(f"{name}={value}" for name, value in DRAWN.items()), *command, *given.tests]
            sys.exit(f"round {rounds + 1} failed; again: {' '.join(words)}")
        if (
            given.tests == ["tests"]
            and subprocess.run([sys.executable, HEADERS, "--seed", str(seed)]).returncode
        ):
            sys.exit(f"round {rounds + 1} failed, with image headers: {seed} is the seed")
        rounds += 1
    print(f"{rounds} rounds, nothing found")


if __name__ == "__main__":
    main()
