"""Whether the user forbids requests to other machines."""

import os


def is_offline() -> bool:
    """Whether `HF_HUB_OFFLINE` is set, now and not when huggingface_hub was imported."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
