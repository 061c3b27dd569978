"""Writing safetensors: the library's own name for a full disk is the system's error again."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file


@contextmanager
def disk_errors() -> Iterator[None]:
    """For `save_file`, inside `zoo.files.new_file` or `new_folder`, which tell the system's errors as ours."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """A file of weights inside `zoo.files.new_folder`, for everybody to read, which safetensors leaves to its owner."""
    with disk_errors():
        save_file(dict(tensors), path, metadata={"format": "pt"})
    path.chmod(0o644)
