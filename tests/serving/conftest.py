"""A server with small models of all kinds, on a free port."""

import asyncio
import contextlib
import http.client
import json
import threading
import time
import uuid
from pathlib import Path

import pytest
from toy_captioner import save_images, train_captioner
from toy_summarizer import train_video_summarizer
from toy_text_models import save_text_model
from toy_visual_stories import save_pixel_story_model

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
pytest.importorskip("python_multipart")

from fairseq_mm.serving.app import Server
from fairseq_mm.serving.loading import load_systems
from fairseq_mm.serving.requests import Limits
from fairseq_mm.serving.server import HttpServer, open_port


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Name of a system -> path of its checkpoint; and the image files of ``images``."""
    folder = tmp_path_factory.mktemp("served")
    for name in ("captions", "video"):
        (folder / name).mkdir()
    train_captioner(folder / "captions", folder / "captions" / "data")
    save_pixel_story_model(folder / "album")
    save_text_model(folder / "story" / "checkpoint_best.pt")
    save_text_model(folder / "text" / "checkpoint_best.pt", "gcnn_lm_tiny")
    pytest.importorskip("av")
    train_video_summarizer(folder / "video", folder / "video" / "data")
    return {name: folder / name for name in ("captions", "album", "story", "text", "video")}


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    return [Path(path) for path in save_images(tmp_path_factory.mktemp("pictures") / "images")]


class Client:
    """Client of a server: one connection for each request."""

    def __init__(self, port, token=None):
        self.port = port
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def wait_for_requests(self, count):
        """Wait until so many requests are being answered."""
        end = time.monotonic() + 20
        while self.get("/health")[1]["requests"] != count:
            assert time.monotonic() < end
            time.sleep(0.01)

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


@pytest.fixture
def gate(systems, monkeypatch):
    """A gate of the captioner."""
    gate = Gate(systems[0], monkeypatch)
    yield gate
    gate.open()


@pytest.fixture
def together():
    """Calls functions in threads of their own; a call returns before they end."""
    threads = []

    def start(*calls):
        new = [threading.Thread(target=call) for call in calls]
        threads.extend(new)
        for thread in new:
            thread.start()

    yield start
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def systems(models):
    names = [(name, str(path)) for name, path in models.items()]
    return list(load_systems(names, Limits(), device="cpu"))


@pytest.fixture(scope="session")
def client(systems):
    with running(systems, Limits()) as client:
        yield client
