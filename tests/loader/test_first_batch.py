"""What a training script waits for before its first batch."""

from __future__ import annotations

import subprocess
import sys

FIRST_BATCH = (
    "import sys, shardctl; next(iter(shardctl.open(sys.argv[1]).loader(batch_size=8, "
    "shuffle=True)))"
)


def test_the_first_batch_imports_no_large_module_that_it_does_not_need(raw_dataset):
    """Each of these takes 10 to 30 ms. One import at the top of a module brings it into every
    training script."""
    command = [sys.executable, "-X", "importtime", "-c", FIRST_BATCH, raw_dataset]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    imported = {
        line.rpartition("|")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert {"pyarrow", "shardctl.loader.loader"} <= imported
    assert imported.isdisjoint(
        {"pyarrow.compute", "numpy.ma", "click", "shardctl.transforms.base", "shardctl.making"}
    )
