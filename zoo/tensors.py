"""Writing safetensors: the library's own name for a full disk is the system's error again."""

from collections.abc import Iterator
from contextlib import contextmanager

from safetensors import SafetensorError


@contextmanager
def disk_errors() -> Iterator[None]:
    """For `save_file`, inside `zoo.files.new_file` or `new_folder`, which tell the system's errors as ours."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error
