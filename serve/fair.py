"""A queue that shares its consumer fairly: among clients, and among the requests of each client."""

from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar, final

CLIENT: ContextVar[str] = ContextVar("client", default="")  # who sent the request that is being answered
Item = TypeVar("Item")


class Owner(NamedTuple):
    """Whose turn an item uses up."""

    client: str
    request: int


@dataclass
class _Request(Generic[Item]):
    used: float
    items: deque[tuple[Item, float]] = field(default_factory=deque)  # each with its cost


@dataclass
class _Client(Generic[Item]):
    used: float
    requests: dict[int, _Request[Item]] = field(default_factory=dict)


@final
class FairQueue(Generic[Item]):
    """Items come out in the order in which their owners have used the least.

    The next item is of the client that has used the least since it began to wait, and of that client's request that has
    used the least. One cheap request passes many expensive ones. Equal owners are served first come, first served.
    """

    def __init__(self) -> None:
        self._clients: dict[str, _Client[Item]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def put(self, owner: Owner, item: Item, *, cost: float = 1.0) -> None:
        client = self._clients.get(owner.client)
        if client is None:  # starts at the level of those that wait: the past is neither held against it nor for it
            client = self._clients[owner.client] = _Client(_least(self._clients))
        request = client.requests.get(owner.request)
        if request is None:
            request = client.requests[owner.request] = _Request(_least(client.requests))
        request.items.append((item, cost))
        self._length += 1

    def get(self) -> Item:
        """Raises ValueError when the queue is empty."""
        name, client = min(self._clients.items(), key=lambda pair: pair[1].used)
        number, request = min(client.requests.items(), key=lambda pair: pair[1].used)
        item, cost = request.items.popleft()
        client.used += cost
        request.used += cost
        if not request.items:
            del client.requests[number]
        if not client.requests:
            del self._clients[name]
        self._length -= 1
        return item


def _least(waiting: "dict[str, _Client[Item]] | dict[int, _Request[Item]]") -> float:
    return min((each.used for each in waiting.values()), default=0.0)
