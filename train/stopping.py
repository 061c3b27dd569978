"""SIGTERM as a request: the step under way ends, the state is saved, and the process exits as the signal would have."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

EXIT_CODE = 128 + signal.SIGTERM  # 143, what a shell shows for a process that SIGTERM ended


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """While the block runs, SIGTERM only sets a flag. Yields the question whether it is set in any process.

    The question is a meeting of all processes on the CPU: all ask after every step, and all hear the same answer, so
    they stop after the same step. Outside the main thread, where Python allows no handlers, the answer is no.
    """
    came = threading.Event()
    several = dist.is_initialized() and dist.get_world_size() > 1
    group: Any = dist.new_group(backend="gloo") if several else None

    def anywhere() -> bool:
        if group is None:
            return came.is_set()
        flag = torch.tensor(int(came.is_set()))
        dist.all_reduce(flag, group=group)
        return bool(flag)

    if threading.current_thread() is not threading.main_thread():
        yield anywhere
        return
    earlier = signal.signal(signal.SIGTERM, lambda *_: came.set())
    try:
        yield anywhere
    finally:
        signal.signal(signal.SIGTERM, earlier)
