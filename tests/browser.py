"""Headless Chromium, driven by its DevTools protocol through a small client of web sockets."""

import base64
import contextlib
import http.client
import itertools
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> Optional[str]:
    return next(filter(None, map(shutil.which, NAMES)), None)


class WebSocket:
    """Client of RFC 6455: text messages, masked as clients must."""

    def __init__(self, host: str, port: int, path: str) -> None:
        self.socket = socket.create_connection((host, port), timeout=30)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = (
            f"GET {path} HTTP/1.1",
            f"Host: {host}:{port}",
            *("Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Key: {key}"),
            *("Sec-WebSocket-Version: 13", "", ""),
        )
        self.socket.sendall("\r\n".join(lines).encode())
        self.stream = self.socket.makefile("rb")
        assert b" 101 " in self.stream.readline()
        while self.stream.readline() != b"\r\n":
            pass

    def send(self, text: str) -> None:
        content, mask = text.encode(), os.urandom(4)
        size = len(content)
        head = bytes([0x81])
        if size < 126:
            head += bytes([0x80 | size])
        elif size < 1 << 16:
            head += bytes([0x80 | 126]) + size.to_bytes(2, "big")
        else:
            head += bytes([0x80 | 127]) + size.to_bytes(8, "big")
        masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(content))
        self.socket.sendall(head + mask + masked)

    def receive(self) -> str:
        content = b""
        while True:
            first, size = self.stream.read(2)
            size &= 0x7F
            if size > 125:
                size = int.from_bytes(self.stream.read(2 if size == 126 else 8), "big")
            part = self.stream.read(size)
            if first & 0x0F in (0, 1):
                content += part
                if first & 0x80:
                    return content.decode()

    def close(self) -> None:
        self.stream.close()
        self.socket.close()


class Page:
    """A tab of the browser.

    Attributes:
        problems: Errors of the page's console, and exceptions of its script.
    """

    def __init__(self, port: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("PUT", "/json/new?about:blank")
        target = json.loads(connection.getresponse().read())
        connection.close()
        path = target["webSocketDebuggerUrl"].partition(str(port))[2]
        self._socket = WebSocket("127.0.0.1", port, path)
        self._numbers = itertools.count(1)
        self.problems: list[str] = []
        for domain in ("Page", "Runtime", "Log", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.receive())
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        about = message.get("params", {})
        if message.get("method") == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.problems.append(about["entry"]["text"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(about["exceptionDetails"]))
        elif message.get("method") == "Runtime.consoleAPICalled" and about["type"] == "error":
            self.problems.append(json.dumps(about["args"]))

    def run(self, script: str) -> Any:
        """Value of a JavaScript expression; promises are awaited."""
        done = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def wait_for(self, script: str, seconds: float = 20) -> None:
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + seconds
        while not self.run(f"!!({script})"):
            if time.monotonic() > end:
                shown = self.run("document.body?.innerText")
                raise AssertionError(f"{script} is not true of:\n{shown}\n{self.problems}")
            time.sleep(0.05)

    def open(self, url: str, width: int = 1400) -> None:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def choose_files(self, selector: str, *paths: Any) -> None:
        """Choose files in a file input, as its dialog does."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in paths])

    def drop_files(self, selector: str, *paths: Any) -> None:
        """Drop files on an element, by the browser's own events of dragging."""
        place = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{place}.scrollIntoView({{block: 'center'}})")
        box = self.run(f"(r => [r.x + r.width / 2, r.y + 10])({place}.getBoundingClientRect())")
        data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=box[0], y=box[1], data=data)

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key: Tab, Enter, a space or a character."""
        codes = {"Tab": 9, "Enter": 13, " ": 32}
        about: dict[str, Any] = {"key": key, "code": "Space" if key == " " else key}
        about["windowsVirtualKeyCode"] = codes.get(key, 0)
        if shift:
            about["modifiers"] = 8
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        self.call(
            "Input.dispatchKeyEvent", type="keyDown", **about, **({"text": text} if text else {})
        )
        self.call("Input.dispatchKeyEvent", type="keyUp", **about)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def close(self) -> None:
        self._socket.close()


@contextlib.contextmanager
def chromium(program: str) -> Iterator[int]:
    """Start the browser; yield the port of its DevTools protocol."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [
            *(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-dev-shm-usage", "--remote-debugging-port=0", f"--user-data-dir={folder}"),
            "about:blank",
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            file = Path(folder, "DevToolsActivePort")
            end = time.monotonic() + 30
            while not (file.exists() and file.read_text().count("\n")):
                assert process.poll() is None
                assert time.monotonic() < end, "Chromium does not start"
                time.sleep(0.05)
            yield int(file.read_text().split()[0])
        finally:
            process.terminate()
            process.wait(20)
