"""What other libraries must be told before they are imported: no usage reports, no files in the user's home folder."""

import os
from contextlib import suppress
from pathlib import Path

from zoo.errors import ZooError
from zoo.files import zoo_home

NO_REPORTS = {
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime would write a device id and a queue of events as it is imported
    "BENTOML_DO_NOT_TRACK": "True",
}


def configure_libraries() -> None:
    """Set the environment variables of libraries, where the user has not set them.

    The packages above `zoo.hub` call it before any of their modules imports anything; child processes inherit it.
    """
    for variable, value in NO_REPORTS.items():
        os.environ.setdefault(variable, value)
    with suppress(ZooError, RuntimeError):  # without a home folder matplotlib takes a temporary one
        own = (Path.home() / ".config/matplotlib", Path.home() / ".cache/matplotlib")
        if not any(folder.exists() for folder in own):  # matplotlib's cache of fonts
            os.environ.setdefault("MPLCONFIGDIR", str(zoo_home() / "matplotlib"))
