"""Servers in threads of the tests' process, and a client of them."""

import asyncio
import contextlib
import http.client
import json
import threading
import time
import uuid

import pytest

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("python_multipart")

from fairseq_mm.serving.app import Server
from fairseq_mm.serving.loading import load_indexes, load_systems  # noqa: F401
from fairseq_mm.serving.requests import Limits  # noqa: F401
from fairseq_mm.serving.server import HttpServer, open_port


class Client:
    """Client of a server: one connection for each request."""

    def __init__(self, port, token=None):
        self.port = port
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def wait_for_requests(self, count):
        """Wait until so many requests are being answered."""
        wait_until(lambda: self.get("/health")[1]["requests"] == count)

    def send(self, method, path, body=None, headers=None):
        """Status, headers and content of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, path, body, {**self.headers, **(headers or {})})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()

    def get(self, path, **headers):
        status, _, content = self.send("GET", path, headers=headers)
        return status, json.loads(content)

    def post(self, path, body, **headers):
        """Status and JSON of the answer to a JSON object."""
        headers = {"Content-Type": "application/json", **headers}
        status, _, content = self.send("POST", path, json.dumps(body).encode(), headers)
        return status, json.loads(content)

    def upload(self, path, *parts):
        """Status and JSON of the answer to a form.

        Each part is (name, value) or, for a file, (name, content, name of the file).
        """
        body, kind = form(*parts)
        status, _, content = self.send("POST", path, body, {"Content-Type": kind})
        return status, json.loads(content)


def form(*parts):
    """Body of a form, and its type."""
    boundary = uuid.uuid4().hex
    body = b""
    for name, value, *file in parts:
        about = f'form-data; name="{name}"' + "".join(f'; filename="{x}"' for x in file)
        value = value.encode() if isinstance(value, str) else value
        body += f"--{boundary}\r\nContent-Disposition: {about}\r\n\r\n".encode() + value + b"\r\n"
    return body + f"--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


@contextlib.contextmanager
def running(systems, limits, token=None):
    """A client of a server that runs in a thread; ``server`` is an attribute of the client."""
    server = Server(systems, limits, token=token)
    listener = open_port("127.0.0.1", 0)
    port = listener.getsockname()[1]
    http_server = HttpServer(server, f"http://127.0.0.1:{port}/")
    server.thread.start()
    thread = threading.Thread(target=lambda: asyncio.run(http_server.serve([listener])))
    thread.start()
    try:
        client = Client(port, token)
        client.server, client.http_server = server, http_server
        client.get("/health", **{"Host": "localhost"})
        yield client
    finally:
        http_server.stop()
        http_server.stop()
        thread.join(30)
        assert server.thread.join(10)
        listener.close()
        assert not thread.is_alive()


def wait_until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


class Gate:
    """Holds the first batch of a system until it is opened, so that others wait meanwhile.

    Attributes:
        sizes: Number of jobs of each batch.
    """

    def __init__(self, system, monkeypatch):
        self.sizes = []
        self._read = system.read
        self._is_held, self._is_open = threading.Event(), threading.Event()
        monkeypatch.setattr(system, "read", self.read)

    def read(self, queries, choice):
        self.sizes.append(len(queries))
        self._is_held.set()
        assert self._is_open.wait(20)
        return self._read(queries, choice)

    def wait(self):
        """Wait until a batch is held."""
        assert self._is_held.wait(20)

    def open(self):
        self._is_open.set()
