"""Which of the processes of a training job this one is."""

from __future__ import annotations

import os

from shardctl.errors import UsageError
from shardctl.system.arguments import whole_number

LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),  # torchrun, accelerate, deepspeed: https://docs.pytorch.org/docs/stable/elastic/run.html
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH, Intel MPI
    ("SLURM_PROCID", "SLURM_NTASKS"),  # srun; last, since torchrun may run inside of it
)
"""The environment variables in which launchers say the rank and the world size."""


def rank_of(rank: int | None, world_size: int | None) -> int:
    """Return the rank: as given, else as the environment says it, else 0. Raises UsageError for one that cannot be."""
    if rank is None and world_size is not None:
        raise UsageError("world_size needs a rank; give both, or neither")
    if rank is None:
        return _of_environment()
    whole_number("rank", rank, 0)
    ranks = rank + 1 if world_size is None else whole_number("world_size", world_size, 1)
    if rank >= ranks:
        raise UsageError(f"rank {rank} must be below world_size ({ranks})")
    return rank


def _of_environment() -> int:
    for name, size in LAUNCHERS:
        rank, ranks = os.environ.get(name), os.environ.get(size)
        if rank is not None and ranks is not None:
            if not rank.isdecimal() or not ranks.isdecimal() or int(rank) >= int(ranks):
                raise UsageError(
                    f"the environment says {name}={rank!r} and {size}={ranks!r}, which is not a valid rank; give rank="
                )
            return int(rank)
    return 0
