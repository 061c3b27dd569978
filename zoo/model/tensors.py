"""Writing safetensors files: contiguous arrays, and a full disk reported as an `OSError`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file


@contextmanager
def disk_errors() -> Iterator[None]:
    """Turn safetensors' errors about the disk into `OSError`, which `zoo.files.new_file` and `new_folder` report."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write a safetensors file that everybody may read, inside `zoo.files.new_file` or `new_folder`.

    safetensors copies the memory of an array as it lies, so that a strided view would be stored wrongly: every array is
    made contiguous first.
    """
    contiguous = {key: np.asarray(value, order="C") for key, value in tensors.items()}
    with disk_errors():
        save_file(contiguous, path, metadata={"format": "pt"})
    path.chmod(0o644)
