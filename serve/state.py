"""What the handlers of one server share."""

from dataclasses import dataclass, field
from typing import Any

from serve.engine import Engine
from serve.search import Indexes


@dataclass(frozen=True)
class State:
    """One worker's models and indexes, and the OpenAPI document of its endpoints."""

    engine: Engine
    indexes: Indexes
    document: dict[str, Any] = field(default_factory=dict)
