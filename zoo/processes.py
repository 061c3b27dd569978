"""Several processes of `accelerate launch`: whether as many were started as were asked for."""

import os

from zoo.errors import ZooError


def check_launch(processes: int) -> None:
    """Raises ZooError where the launcher has started fewer processes than were asked for: it says nothing itself.

    processes: as accelerate counts them in this one.
    """
    asked = int(os.environ.get("WORLD_SIZE", 1))
    alone = "WORLD_SIZE" not in os.environ and {"MASTER_ADDR", "ACCELERATE_USE_CPU"} <= os.environ.keys()
    if asked != processes or (alone and processes == 1):
        raise ZooError(
            f"several processes were asked for, and this one would work as one of {processes}: accelerate launches "
            "them on a CPU only with --multi_gpu or distributed_type: MULTI_GPU, and without --cpu"
        )
