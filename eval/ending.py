"""How a command of this layer ends: with its output, or with one line that says why not."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from zoo.errors import ZooError


@contextmanager
def in_one_line(then: str) -> Iterator[None]:
    """While the block runs, errors that a user can mend, and Ctrl-C, end the process without a traceback.

    then: what to do after Ctrl-C.
    """
    try:
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        print(f"stopped; {then}", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # whoever read our output has seen enough
        _drop_output()
    except (ZooError, OSError) as error:
        _drop_output()
        sys.exit(f"error: {error}")
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        first = str(error).partition("\n")[0]
        sys.exit(f"error: out of memory ({first}). Measure on fewer images, or with fewer other programs running")


def _drop_output() -> None:
    """Flush what was printed; where it cannot be written, the interpreter's own last flush must not complain again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _out_of_memory(error: Exception) -> bool:
    """torch has a class for a GPU's memory alone; on a CPU only the words tell."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
