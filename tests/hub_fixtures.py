"""A loopback Hub that this process uses, and what is published there."""

from collections.abc import Iterator

import huggingface_hub.constants
import huggingface_hub.utils._detect_agent
import pytest
from loopback_hub import TOKEN, LoopbackHub, loopback_hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackHub]:
    """A Hub with nothing on it; this process is signed in."""
    with loopback_hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(huggingface_hub.utils._detect_agent, "_registry", {})  # else it asks the real Hub
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path_factory.mktemp("hf-cache")))
        monkeypatch.setattr("zoo.hub.hub_api.PAUSES", (0.01, 0.01))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield running
