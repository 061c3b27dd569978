"""An orderly end: requests in flight are answered, new ones are refused, probes are answered until the last moment."""

import asyncio
import signal
import threading
from types import FrameType
from typing import Any, final

from serve.limits import TIMEOUT

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@final
class Draining:
    """Whether this worker is ending, and how many requests it still answers.

    uvicorn stops accepting when it gets the signal, while BentoML's main process keeps the port open: connections made
    meanwhile would hang. So the signal is held back until nothing is in flight.
    """

    def __init__(self) -> None:
        self.started = False
        self.in_flight = 0
        self._held: dict[int, Any] = {}

    def hold_signals(self) -> None:
        """Put the drain before the present handlers of SIGTERM and SIGINT; in another than the main thread, do nothing.

        There nobody could have put a handler either.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            self._held[number] = signal.getsignal(number)
            signal.signal(number, lambda number, frame: self._signalled(loop, number, frame))

    def release_signals(self) -> None:
        for number, handler in self._held.items():
            signal.signal(number, handler)
        self._held = {}

    def _signalled(self, loop: asyncio.AbstractEventLoop, number: int, frame: FrameType | None) -> None:
        if self.started:
            if number == signal.SIGINT:  # a second Ctrl-C
                self._pass_on(number, frame)
            return
        self.started = True
        loop.call_soon_threadsafe(lambda: loop.create_task(self._drain(number, frame)))

    async def _drain(self, number: int, frame: FrameType | None) -> None:
        deadline = asyncio.get_running_loop().time() + TIMEOUT
        while self.in_flight and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.05)
        self._pass_on(number, frame)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        handler = self._held.get(number)
        if callable(handler):
            handler(number, frame)
