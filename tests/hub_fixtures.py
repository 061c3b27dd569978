"""A loopback Hub that this process uses, and what is published there."""

import os
from collections.abc import Iterator

import huggingface_hub.constants
import pytest
from loopback_hub import TOKEN, LoopbackHub, loopback_hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """A Hub with nothing on it; this process is signed in."""
    with loopback_hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", running.url)  # ModelCard and validate-yaml read it
        monkeypatch.setattr(huggingface_hub.constants, "AGENT_HARNESSES_PATH", os.devnull)  # else in the user's home
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr("zoo.hub.PAUSES", (0.01, 0.01))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield running
