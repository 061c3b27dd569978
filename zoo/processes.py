"""Processes and their launcher: how many were asked for, whether as many were started, why they cannot start, how many
threads each gets, and whether the launcher, or any parent, has gone."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from zoo.errors import ZooError

MPI_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")  # where mpirun writes how many it has started
LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE")
LAUNCHER_FLAG = "num_cpu_threads_per_process"  # accelerate's; it takes hyphens, too
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


class Threads(NamedTuple):
    """How many threads a process computes with on the CPU, and why so many."""

    number: int
    reason: str


def cpu_threads(asked: int | None = None, *, processes: int) -> Threads:
    """The threads of this process, one of `processes`: as `asked`, else as the user's environment or the launcher's
    command line says, else the cores of this machine divided by the processes on it.

    `accelerate launch` and `torchrun` set OMP_NUM_THREADS=1 where nothing else was asked for, which leaves all other
    cores idle; that 1 is not taken for the user's.
    """
    if asked:
        return Threads(asked, "--threads")
    variable = os.environ.get("OMP_NUM_THREADS", "")
    if variable.isdecimal() and int(variable) > 0 and not _set_by_launcher(variable):
        return Threads(int(variable), "OMP_NUM_THREADS")
    cores = usable_cores()
    local = next((int(os.environ[name]) for name in LOCAL_SIZES if os.environ.get(name, "").isdecimal()), processes)
    shared = f"{cores} cores" if local == 1 else f"{cores} cores for {local} processes"
    return Threads(max(1, cores // max(1, local)), f"{shared}; --threads N takes another number")


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _set_by_launcher(threads: str) -> bool:
    """Whether OMP_NUM_THREADS is a launcher's default rather than what the user has set or asked the launcher for."""
    launched = any(key.startswith(("ACCELERATE_", "TORCHELASTIC_")) for key in os.environ)
    if threads != "1" or not launched:
        return False
    try:
        environment = Path(f"/proc/{BORN[1]}/environ").read_bytes().split(b"\0")  # as the launcher itself was started
        words = Path(f"/proc/{BORN[1]}/cmdline").read_bytes().decode(errors="replace").replace("-", "_").split("\0")
    except OSError:  # no such place on macOS, and the launcher may be gone
        return True
    flagged = any(word.strip("_").split("=")[0] == LAUNCHER_FLAG for word in words)
    return not flagged and not any(entry.startswith(b"OMP_NUM_THREADS=") for entry in environment)
