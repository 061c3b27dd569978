"""Whether a request may begin: estimates how long it would wait, and refuses early what would wait too long."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from serve.fair import Owner
from serve.limits import MAX_WAIT
from serve.refusal import Refused

LONGEST_RETRY = 8  # seconds; the client's own bound


@final
class Rate:
    """Seconds per unit of work, averaged over recent work."""

    def __init__(self, first: float) -> None:
        """first: seconds per unit until there are measurements."""
        self._seconds, self._units = first, 1.0

    def measured(self, seconds: float, units: float) -> None:
        self._seconds = 0.95 * self._seconds + seconds
        self._units = 0.95 * self._units + units

    def seconds(self, units: float) -> float:
        return self._seconds / self._units * units


@final
class Admission:
    """The accepted work that is not done yet, in seconds, by client and request."""

    def __init__(self) -> None:
        self._left: dict[str, dict[int, float]] = {}

    def wait(self, client: str, seconds: float) -> float:
        """Seconds that a request of so much work would wait for others under the turns of `FairQueue`.

        Until it is done, each other request of its client gets at most as much as it does, and each other client at
        most as much as its client does.
        """
        own = self._left.get(client, {})
        before = sum(min(left, seconds) for left in own.values())
        others = (sum(left.values()) for name, left in self._left.items() if name != client)
        return before + sum(min(left, before + seconds) for left in others)

    @property
    def overloaded(self) -> bool:
        """Whether some client could not even send a small request now."""
        return any(self.wait(client, 0.01) > MAX_WAIT for client in self._left)

    @contextmanager
    def admitted(self, owner: Owner, seconds: float) -> Iterator[None]:
        """The time in which a request is answered. Raises Refused (503) when it would wait longer than MAX_WAIT."""
        if (wait := self.wait(owner.client, seconds)) > MAX_WAIT:
            raise Refused(
                503,
                f"about {wait:.0f} seconds of work are waiting; at most {MAX_WAIT:g} may. Try again later",
                retry_after=min(math.ceil(wait - MAX_WAIT), LONGEST_RETRY),
            )
        self._left.setdefault(owner.client, {})[owner.request] = seconds
        try:
            yield
        finally:
            requests = self._left[owner.client]
            del requests[owner.request]
            if not requests:
                del self._left[owner.client]

    def done(self, owner: Owner, seconds: float) -> None:
        """Part of a request's work is done."""
        left = self._left.get(owner.client, {})
        if owner.request in left:
            left[owner.request] = max(0.0, left[owner.request] - seconds)
