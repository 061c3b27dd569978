"""Which licences a user accepts: `ZOO_COMMERCIAL=1` refuses weights that must not be used commercially."""

import os
import re

from zoo.errors import LicenceRefused, ZooError

VARIABLE = "ZOO_COMMERCIAL"


def noncommercial(licence: str) -> bool:
    """Whether a licence, an SPDX identifier, forbids commercial use."""
    return re.search(r"(?i)\bNC\b|noncommercial", licence) is not None


def check_licence(name: str, licence: str) -> None:
    """Raises LicenceRefused if the licence forbids commercial use and `ZOO_COMMERCIAL` is set."""
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "0", "1"):
        raise ZooError(f"{VARIABLE}={value!r}; allowed: 1 (refuse what forbids commercial use), 0")
    if value == "1" and noncommercial(licence):
        raise LicenceRefused(
            f"{name} has the licence {licence}, which forbids commercial use, and {VARIABLE}=1 refuses that. "
            f"Unset {VARIABLE} for research, or choose another model: `zoo list` shows the licences"
        )
