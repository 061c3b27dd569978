"""Whether a request may begin: estimates how long it would wait, and refuses early what would wait too long."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import final

from serve.fair import Owner
from serve.limits import MAX_WAIT
from serve.refusal import Refused

REQUEST = 0.001  # estimated seconds that every request costs, whatever its images
MEMORY = 4.0  # seconds of the clock over which throughput is averaged
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


@dataclass
class Work:
    """Estimated seconds of decoding and inference for one request."""

    owner: Owner
    left: float


@final
class Admission:
    """The accepted work that is not done yet, by client and request.

    Estimates are of decoding and inference alone; how many of those seconds are done in a second of the clock is
    measured, so that HTTP, a shared processor and several threads count as well.
    """

    def __init__(self) -> None:
        self._works: dict[str, dict[int, Work]] = {}
        self._done, self._busy = 1.0, 1.0  # estimated seconds done in seconds of the clock, recent ones
        self._last = 0.0  # clock when a request last began or ended

    def wait(self, owner: Owner, seconds: float) -> float:
        """Seconds of the clock that a request of so much work would wait for others under the turns of `FairQueue`.

        Until it is done, each other request of its client gets at most as much as it does, and each other client at
        most as much as its client does.
        """
        own = sum(
            min(work.left, seconds)
            for number, work in self._works.get(owner.client, {}).items()
            if number != owner.request
        )
        others = 0.0
        for client, works in self._works.items():
            if client != owner.client:
                others += min(sum(work.left for work in works.values()), own + seconds)
        return (own + others) * self._busy / self._done

    @property
    def overloaded(self) -> bool:
        """Whether some client could hardly send a small request now."""
        return any(self.wait(Owner(client, -1), REQUEST) > 0.9 * MAX_WAIT for client in self._works)

    @contextmanager
    def admitted(self, owner: Owner, seconds: float) -> Iterator[Work]:
        """The time in which a request is answered. Raises Refused (503) when it would wait longer than MAX_WAIT."""
        work = Work(owner, 0.0)
        self.add(work, seconds + REQUEST)
        self._count_time()
        self._works.setdefault(owner.client, {})[owner.request] = work
        try:
            yield work
            self.progress(work, work.left)
        finally:
            self._count_time()
            del self._works[owner.client][owner.request]
            if not self._works[owner.client]:
                del self._works[owner.client]

    def add(self, work: Work, seconds: float) -> None:
        """Raise the estimate of a request. Raises Refused (503) when it would now wait longer than MAX_WAIT."""
        if (wait := self.wait(work.owner, work.left + seconds)) > MAX_WAIT:
            raise Refused(
                503,
                f"about {wait:.0f} seconds of work are waiting; at most {MAX_WAIT:g} may. Try again later",
                retry_after=min(math.ceil(wait - MAX_WAIT), LONGEST_RETRY),
            )
        work.left += seconds

    def progress(self, work: Work, seconds: float) -> None:
        """Part of a request's work is done."""
        work.left -= seconds
        self._count_time()
        self._done += seconds

    def _count_time(self) -> None:
        """Count the time since the last call, if there was work in it."""
        now = perf_counter()
        if self._works:
            kept = math.exp((self._last - now) / MEMORY)
            self._done, self._busy = kept * self._done, kept * self._busy + now - self._last
        self._last = now
