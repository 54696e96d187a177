# SPDX-License-Identifier: Apache-2.0
"""A real browser, spoken to through its debugging pipe: no driver is needed."""

import json
import os
import shutil
import signal
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

fcntl = pytest.importorskip("fcntl", reason="no pipes of this kind here")
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")

_OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")
_SAID = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")


class Browser:
    """One page of a browser.

    Attributes:
        said: What the page wrote to the console, and what the browser had to say of it.
    """

    def __init__(self) -> None:
        assert BROWSER is not None
        self.said: list[dict[str, Any]] = []
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs, self._write = os.pipe()
        self._read, ours = os.pipe()
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs, ours)]
        # It reads from file 3 and writes to file 4. A fork would warn where JAX has threads.
        actions = [(os.POSIX_SPAWN_DUP2, end, at) for end, at in zip(high, (3, 4), strict=True)]
        silent = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
        command = [BROWSER, *_OPTIONS, f"--user-data-dir={self._folder.name}", "about:blank"]
        self._process = os.posix_spawn(
            BROWSER, command, os.environ, file_actions=[*actions, silent]
        )
        for end in (theirs, ours, *high):
            os.close(end)
        self._buffer, self._count, self._session = b"", 0, ""
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._write)
        os.close(self._read)
        self._folder.cleanup()

    def open(self, page: Path | str, *, width: int = 1200, scheme: str = "light") -> None:
        """Show a file or an address in a window of that width, in a light or a dark scheme."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self._call("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._call("Emulation.setEmulatedMedia", features=[feature])
        address = page if isinstance(page, str) else page.resolve().as_uri()
        self.value("window.left = true")  # the page before, which may still answer
        self._call("Page.navigate", url=address)
        while self.value("window.left || document.readyState != 'complete'"):
            pass

    def value(self, expression: str) -> Any:
        """Evaluate a JavaScript expression in the page, regardless of its policy."""
        reply = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def picture(self) -> str:
        """Return a picture of the window, as PNG in base64."""
        return str(self._call("Page.captureScreenshot", format="png")["data"])

    def press(self, key: str, code: int) -> None:
        for kind in ("rawKeyDown", "char", "keyUp"):
            text = {"text": "\r"} if kind == "char" and key == "Enter" else {}
            if kind != "char" or text:
                described = {"key": key, "code": key, "windowsVirtualKeyCode": code}
                self._call("Input.dispatchKeyEvent", type=kind, **described, **text)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._answer()
            if answer.get("method") in _SAID:
                self.said.append(answer["params"])
            if answer.get("id") == self._count:
                assert "error" not in answer, answer["error"]
                return dict(answer["result"])

    def _answer(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            read = os.read(self._read, 2**16)
            assert read, "the browser has ended"
            self._buffer += read
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))
