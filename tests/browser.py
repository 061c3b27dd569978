"""A headless Chromium, driven through its DevTools protocol."""

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from httpx_ws import WebSocketSession, connect_ws

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page:
    """One tab."""

    def __init__(self, socket: WebSocketSession) -> None:
        self._socket = socket
        self._number = 0
        self.events: list[dict[str, Any]] = []  # what the tab told unasked

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command of the protocol."""
        self._number += 1
        self._socket.send_text(json.dumps({"id": self._number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.receive_text(timeout=30))
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, script: str, seconds: float = 20) -> None:
        end = time.monotonic() + seconds
        while not self.run(script):
            assert time.monotonic() < end, f"never: {script}; the page says {self.run('document.body.innerText')}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """Press a key of the keyboard, where the focus is."""
        codes = {"Tab": 9, "Enter": 13, "ArrowDown": 40}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **text)

    def choose_files(self, selector: str, paths: list[Path]) -> None:
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])


@contextmanager
def opened(url: str, profile: Path) -> Iterator[Page]:
    """A tab at `url` of a fresh browser; ended afterwards."""
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    options += ["--disable-background-networking", "--remote-debugging-port=0", f"--user-data-dir={profile}"]
    assert CHROMIUM is not None
    with (profile.parent / "chromium.log").open("wb") as log:
        browser = subprocess.Popen([CHROMIUM, *options, "about:blank"], stdout=log, stderr=log)
    try:
        port = _port(profile / "DevToolsActivePort", browser)
        target = httpx.put(f"http://127.0.0.1:{port}/json/new?about:blank", timeout=30).json()
        with connect_ws(target["webSocketDebuggerUrl"], max_message_size_bytes=2**24) as socket:
            page = Page(socket)
            for domain in ("Page", "Network", "Log", "Runtime", "Accessibility"):
                page.call(f"{domain}.enable")
            page.call("Page.navigate", url=url)
            yield page
    finally:
        browser.kill()
        browser.wait()


def _port(file: Path, browser: "subprocess.Popen[bytes]") -> int:
    for _ in range(600):
        if file.is_file() and file.read_text():
            return int(file.read_text().splitlines()[0])
        assert browser.poll() is None, "the browser died"
        time.sleep(0.05)
    raise AssertionError("the browser did not start within 30 seconds")
