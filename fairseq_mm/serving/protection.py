"""Checks host, origin and token of every request, and adds security headers to answers."""

import hashlib
import hmac
from typing import Any, Optional

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
# paths that need no token: the page asks the user for it, and a monitor has no token
_OPEN_PATHS = ("/", "/health", "/openapi.json")
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' blob: data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


def _hide(text: str) -> bytes:
    """Return a digest of a token, to compare tokens of any length in constant time."""
    return hashlib.sha256(text.encode()).digest()


class Protection:
    """ASGI middleware that refuses requests from pages of other sites, or without the token.

    Without a token, the host of a request must be ``localhost`` or a loopback address. Otherwise, a
    page of another site could read the server by changing the address of its own host name (DNS
    rebinding). With a token, any host is accepted, because such a page does not know the token.

    Args:
        app: Application that answers the accepted requests.
        token: Token that requests must have; None for no token.
    """

    def __init__(self, app: ASGIApp, *, token: Optional[str] = None) -> None:
        self.app = app
        self._token = None if token is None else _hide(token)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(token={'no' if self._token is None else 'yes'})"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # uvicorn's own messages at start and end; the server accepts no web sockets
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._refuse(scope)
        await (answer or self.app)(scope, receive, send_with_headers)

    def _refuse(self, scope: Scope) -> Optional[JSONResponse]:
        """Return the answer to a request that is refused; None for other requests."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._token is None and _host_name(host) not in _LOOPBACK_NAMES:
            return _error(403, f"`Host` must be localhost, but is {host[:80]!r}.")
        if not _is_own_site(headers, host, scope):
            return _error(403, "requests of other sites are refused.")
        path = scope["path"]
        if self._token is not None and path not in _OPEN_PATHS and not path.startswith("/static/"):
            kind, _, value = headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer" or not hmac.compare_digest(_hide(value), self._token):
                return _error(401, "the token is missing or wrong.", {"WWW-Authenticate": "Bearer"})
        return None


def _host_name(host: str) -> str:
    """Return the value of a ``Host`` header without its port, in lower case."""
    name, colon, port = host.lower().rpartition(":")
    # of any port: the server may be reached through a tunnel
    return name if colon and port.isdecimal() else host.lower()


def _is_own_site(headers: Headers, host: str, scope: Scope) -> bool:
    """Return False if a browser says that a page of another site has made the request."""
    origin = headers.get("origin")
    # without a scheme: a proxy may speak https to the browser, and http to this server
    if origin is not None and origin.lower().partition("://")[2] != host.lower():
        return False
    site = headers.get("sec-fetch-site", "none")
    # a link on another site may lead to the page, which cannot be framed
    is_visit = headers.get("sec-fetch-mode") == "navigate" and scope["method"] == "GET"
    return site in ("none", "same-origin") or (is_visit and scope["path"] == "/")


def _error(status: int, message: str, headers: Any = None) -> JSONResponse:
    return JSONResponse({"error": message}, status_code=status, headers=headers)
