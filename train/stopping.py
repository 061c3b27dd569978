"""How a training run ends early.

SIGTERM is a request: the step under way ends, the state is saved, and the process exits as the signal would have. What
a user can mend, and Ctrl-C, end the command in one line. accelerate's launcher dies of SIGTERM without a word to the
process that it has started, which therefore takes its end as the same request.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from zoo.errors import ZooError
from zoo.processes import launcher_gone

EXIT_CODE = 128 + signal.SIGTERM  # 143, what a shell shows for a process that SIGTERM ended
PEER_GONE = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """While the block runs, SIGTERM only sets a flag. Yields the question whether any process has to stop: its flag is
    set, or its launcher has gone.

    The question is a meeting of all processes on the CPU: all ask after every step, and all hear the same answer, so
    they stop after the same step. Outside the main thread, where Python allows no handlers, the answer is no.
    """
    came = threading.Event()
    several = dist.is_initialized() and dist.get_world_size() > 1
    group: Any = dist.new_group(backend="gloo") if several else None

    def anywhere() -> bool:
        here = came.is_set() or launcher_gone()
        if group is None:
            return here
        flag = torch.tensor(int(here))
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


@contextmanager
def exit_on_user_error() -> Iterator[None]:
    """While the block runs, errors that a user can mend, and Ctrl-C, end the process with one line, no traceback."""
    try:
        yield
    except (ZooError, OSError) as error:
        sys.exit(report_end(f"error: {error}"))
    except (MemoryError, RuntimeError) as error:
        if _other_process_gone(error):
            sys.exit("error: another process of this training has ended; what it said last is the reason")
        if not _out_of_memory(error):
            raise
        first = str(error).partition("\n")[0]
        told = (
            f"error: out of memory ({first}). Lower --batch-size, or keep it and give --chunk, which sends that many "
            "images at a time through the encoder; check that no other number is far too large"
        )
        sys.exit(report_end(told))
    except KeyboardInterrupt:
        print("stopped; the same command goes on from the last checkpoint, if there is one", file=sys.stderr)
        sys.exit(130)


def report_end(line: str) -> str:
    """Write the line to the file in which torch's launcher of several processes looks for the reason of a failure, so
    that the launcher's own report, which comes after everything printed here, ends with it. Returns the line."""
    reason = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if reason:
        with suppress(OSError):  # as on a full disk, which may be what the line says
            Path(reason).write_text(json.dumps({"message": line, "timestamp": int(time.time())}))
    return line


def _out_of_memory(error: Exception) -> bool:
    """torch has a class for a GPU's memory alone; on a CPU only the words tell."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _other_process_gone(error: Exception) -> bool:
    """Whether a meeting broke up; torch has no class for that alone, only words."""
    return any(words in str(error) for words in PEER_GONE)
