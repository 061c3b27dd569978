"""Several processes of `accelerate launch`: whether as many were started as were asked for."""

import os

from zoo.errors import ZooError


def check_launch(processes: int) -> None:
    """Raises ZooError where the launcher has started fewer processes than were asked for: it says nothing itself.

    processes: as accelerate counts them in this one.
    """
    launched = {"ACCELERATE_USE_CPU", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    asked = os.environ.get("WORLD_SIZE", "several" if launched else "1")
    if asked != str(processes):
        raise ZooError(
            f"{asked} processes were asked for, and this one would work as one of {processes}: accelerate launches "
            "several on a CPU only with --multi_gpu or distributed_type: MULTI_GPU, and without --cpu. If one is "
            "meant, unset WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
        )
