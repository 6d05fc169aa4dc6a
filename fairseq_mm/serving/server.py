"""Runs the HTTP server: opens its port, sets its temporary folder, and stops on signals."""

import asyncio
import contextlib
import ipaddress
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any, Optional

import uvicorn

from fairseq_mm.errors import UserError
from fairseq_mm.serving.app import Server

# seconds in which answers are sent after the last text was generated
_SENDING = 5.0


def is_loopback(host: str) -> bool:
    """Return True if all addresses of a host are loopback addresses."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise UserError(f"--host {host}: has no address on this machine.") from None
    return all(ipaddress.ip_address(str(x[4][0]).partition("%")[0]).is_loopback for x in found)


def open_port(host: str, port: int) -> socket.socket:
    """Open the port on which the server listens; 0 means any free port."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=128)
    except (OSError, UnicodeError, OverflowError) as error:
        # Python appends the address
        reason = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        raise UserError(f"--host {host} --port {port}: cannot be opened ({reason}).") from None


@contextlib.contextmanager
def own_temporary_folder() -> Iterator[str]:
    """Context with an own folder for temporary files, which is then removed."""
    before = tempfile.tempdir
    try:
        holder = tempfile.TemporaryDirectory(prefix="fairseq-mm-serve-")
    except OSError as error:
        raise UserError(f"there is no place for temporary files ({error.strerror}).") from None
    with holder as folder:
        tempfile.tempdir = folder
        try:
            yield folder
        finally:
            tempfile.tempdir = before


class HttpServer(uvicorn.Server):
    """HTTP server that finishes the texts that are being generated before it ends.

    Args:
        server: Web application.
        url: Address for the line that is printed when requests are accepted.
    """

    def __init__(self, server: Server, url: str) -> None:
        self.server = server
        self.url = url
        config = uvicorn.Config(
            server.app,
            log_level="warning",
            # a line per request would have the addresses of clients
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=int(server.limits.seconds + _SENDING),
        )
        super().__init__(config)

    def capture_signals(self) -> Any:
        # uvicorn would raise the signal again at the end, and the exit status would be its number
        return contextlib.nullcontext()

    async def startup(self, sockets: Optional[list[socket.socket]] = None) -> None:
        await super().startup(sockets)
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, self.stop)
        print(f"serving {', '.join(self.server.systems)} at {self.url}", flush=True)

    def stop(self) -> None:
        """Refuse waiting requests and finish the current texts; a second call interrupts them."""
        if self.server.is_stopping:
            self.server.thread.abort()
        self.server.stop()
        self.should_exit = True


def run(server: Server, listener: socket.socket, *, host: str) -> None:
    """Serve until SIGTERM or SIGINT, see :meth:`HttpServer.stop`.

    Args:
        server: Web application.
        listener: Open port.
        host: Host name in the address that is printed.
    """
    name = f"[{host}]" if ":" in host else host
    http = HttpServer(server, f"http://{name}:{listener.getsockname()[1]}/")
    with own_temporary_folder():
        server.thread.start()
        try:
            asyncio.run(http.serve(sockets=[listener]))
        finally:
            server.thread.abort()
            has_ended = server.thread.join(_SENDING)
    if not has_ended:
        # it decodes a file, which has no step to stop at. Python cannot end a thread in PyTorch,
        # and may crash when it exits beside it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
