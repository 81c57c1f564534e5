"""Which of the processes of a training job this one is."""

from __future__ import annotations

import os

from shardctl.arguments import whole_number
from shardctl.errors import UsageError

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
    most = None if world_size is None else whole_number("world_size", world_size, 1)
    if not 0 <= whole_number("rank", rank) < (rank + 1 if most is None else most):
        raise UsageError(f"rank {rank} is not one of a world of {most or 'any size'}")
    return rank


def _of_environment() -> int:
    for name, size in LAUNCHERS:
        if name in os.environ and size in os.environ:
            if (
                not os.environ[name].isdecimal()
                or not os.environ[size].isdecimal()
                or int(os.environ[name]) >= int(os.environ[size])
            ):
                said = f"{name}={os.environ[name]!r} and {size}={os.environ[size]!r}"
                raise UsageError(f"the environment says {said}, which is no rank of a job; give rank=")
            return int(os.environ[name])
    return 0
