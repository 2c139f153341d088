"""A headless Chromium, driven over its debugging pipe (no package, no port): what a page looks like to a reader."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip
_PATIENCE_S = 90.0


class Browser:
    """One tab. `seen` keeps every event that the browser told."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._rest = b""
        self._last = 0
        self._session: str | None = None
        self.seen: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask for something, and wait for the answer."""
        self._last += 1
        asked = {"id": self._last, "method": method, "params": params}
        if self._session:
            asked["sessionId"] = self._session
        os.write(self._write, json.dumps(asked).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == self._last:
                assert "error" not in told, f"{method}: {told['error']}"
                return dict(told.get("result", {}))
            self.seen.append(told)

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE_S
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser has not answered in time"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser is gone"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def show(self, page: Path | str, width: int, *, dark: bool = False) -> None:
        """Load a page, a file or an address, in a window of this width."""
        self.seen.clear()
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.call("Page.navigate", url=page if isinstance(page, str) else page.absolute().as_uri())
        while not any(told.get("method") == "Page.loadEventFired" for told in self.seen):
            self.seen.append(self._next())

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page."""
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def wait_for(self, promise: str) -> Any:
        """The value that an expression promises."""
        told = self.call("Runtime.evaluate", expression=promise, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def wait_until(self, condition: str, timeout_s: float = 30.0) -> None:
        """Look until an expression is true."""
        end = time.monotonic() + timeout_s
        while not self.ask(condition):
            assert time.monotonic() < end, f"not within {timeout_s:g} s: {condition}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """Press a key."""
        codes = {"Tab": 9, "Enter": 13}
        about = {"key": key, "windowsVirtualKeyCode": codes[key], "text": "\r" if key == "Enter" else ""}
        self.call("Input.dispatchKeyEvent", type="keyDown", **about)
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def press_until(self, wanted: str, expression: str) -> None:
        """Press Tab until the value of an expression is the one that is wanted."""
        seen = []
        for _ in range(200):
            self.press("Tab")
            seen.append(self.ask(expression))
            if seen[-1] == wanted:
                return
        raise AssertionError(f"no {wanted!r} among {seen}")

    def complaints(self) -> list[str]:
        """Whatever the page made the browser say: errors, warnings, refusals."""
        kinds = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [json.dumps(told["params"]) for told in self.seen if told.get("method") in kinds]

    def requests(self) -> list[str]:
        """The addresses that were asked for, the page's own among them."""
        asked = [told for told in self.seen if told.get("method") == "Network.requestWillBeSent"]
        return [str(told["params"]["request"]["url"]) for told in asked]

    def picture(self, file: Path) -> None:
        """The whole page as PNG."""
        told = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(told["data"]))

    def print_to(self, file: Path) -> None:
        """The page as a PDF."""
        told = self.call(
            "Page.printToPDF", printBackground=True, preferCSSPageSize=True, paperWidth=8.27, paperHeight=11.69
        )
        file.write_bytes(base64.b64decode(told["data"]))


@contextlib.contextmanager
def browser(profile: Path, flags: Sequence[str] = ()) -> Iterator[Browser]:
    """A browser of its own, closed afterwards."""
    assert CHROMIUM is not None
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    command = [CHROMIUM, *_FLAGS, *flags, f"--user-data-dir={profile}"]
    started = subprocess.Popen(  # the pipes must be its descriptors 3 and 4
        ["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{from_write}', "bash", *command],
        pass_fds=(to_read, from_write),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(from_write)
    try:
        yield Browser(to_write, from_read)
    finally:
        os.close(to_write)
        os.close(from_read)
        started.terminate()
        try:
            started.wait(20)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
