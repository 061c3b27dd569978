"""Processes and their launcher: how many were asked for, whether as many were started, why they cannot start, and
whether the launcher, or any parent, has gone."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from zoo.errors import ZooError

MPI_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")  # where mpirun writes how many it has started
BORN = (os.getpid(), os.getppid())  # taken here, because loading torch gives a launcher seconds to die in


def processes_asked_for() -> str:
    """How many processes a launcher has been asked for: a number, or "several" where it says no more."""
    launched = {"ACCELERATE_USE_CPU", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    mpi = (os.environ[name] for name in MPI_SIZES if os.environ.get(name, "1") != "1")
    return os.environ.get("WORLD_SIZE") or next(mpi, "several" if launched else "1")


def check_launch(processes: int) -> None:
    """Raises ZooError where the launcher has started fewer processes than were asked for: it says nothing itself.

    processes: as accelerate counts them in this one.
    """
    asked = processes_asked_for()
    if asked != str(processes):
        raise ZooError(
            f"{asked} processes were asked for, and this one would work as one of {processes}: accelerate launches "
            "several on a CPU only with --multi_gpu or distributed_type: MULTI_GPU, and without --cpu. If one is "
            "meant, unset WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        )


@contextmanager
def starting() -> Iterator[None]:
    """While the block runs, what keeps accelerate from starting is a ZooError that says what to do."""
    try:
        yield
    except ValueError as error:
        then = "start with accelerate launch, torchrun or mpirun, or unset RANK, LOCAL_RANK and WORLD_SIZE"
        if "precision" in str(error):
            then = "choose another --mixed_precision"
        raise ZooError(f"accelerate cannot start ({error}): {then}") from error


def launcher_gone() -> bool:
    """Whether accelerate's launcher has started this process and has ended since."""
    return any(key.startswith("ACCELERATE_") for key in os.environ) and parent_gone()


def parent_gone() -> bool:
    """Whether the process that started this one has ended since; a fork is not asked."""
    return BORN[0] == os.getpid() and BORN[1] != os.getppid()
