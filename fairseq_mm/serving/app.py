"""ASGI application of ``fairseq-mm serve``: page, JSON API and health check."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, Optional

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fairseq_mm import __version__
from fairseq_mm.serving.batching import STOPPING, Job, ModelThread, WatchedFile
from fairseq_mm.serving.openapi import build_document
from fairseq_mm.serving.protection import Protection
from fairseq_mm.serving.requests import Limits, RefusedError
from fairseq_mm.serving.systems import KINDS, System
from fairseq_mm.serving.uploads import Body, build_query, find_system, read_body

_STATIC = Path(__file__).parent / "static"
# path -> file and type; nothing else of the disk is sent
_PAGES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/static/page.css": ("page.css", "text/css; charset=utf-8"),
    "/static/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
EVENTS = "text/event-stream"


class Server:
    """Web application that answers requests with loaded checkpoints and image indexes ("systems").

    Args:
        systems: Systems with different names.
        limits: Maximum sizes and times of requests.
        token: Token that requests must have; None for no token.

    Attributes:
        app: ASGI application.
        thread: Thread that runs the models; the caller starts and stops it.
    """

    def __init__(
        self, systems: Iterable[System], limits: Limits, *, token: Optional[str] = None
    ) -> None:
        self.systems = {system.name: system for system in systems}
        self.limits = limits
        self.thread = ModelThread()
        self.is_stopping = False
        self._num_requests = 0
        # tasks that receive the bodies of requests
        self._receiving: set[asyncio.Task[Body]] = set()
        self._about = {
            "version": __version__,
            "limits": vars(limits),
            "systems": [system.describe() for system in self.systems.values()],
        }
        document = build_document(self._about)
        self.app: ASGIApp = Protection(
            Starlette(
                routes=[
                    *(Route(path, _send_file(*page)) for path, page in _PAGES.items()),
                    Route("/health", self._health),
                    Route("/openapi.json", _send_json(document)),
                    Route("/api/systems", _send_json(self._about)),
                    *(
                        Route(kind.path, self._generate(name), methods=["POST"])
                        for name, kind in KINDS.items()
                    ),
                ],
                exception_handlers={
                    RefusedError: _answer_refusal,
                    HTTPException: _answer_http_error,
                    Exception: _answer_failure,
                },
            ),
            token=token,
        )

    def stop(self) -> None:
        """Refuse new requests, and those that are still received or wait for a model."""
        self.is_stopping = True
        self.thread.stop()
        for task in self._receiving:
            task.get_loop().call_soon_threadsafe(task.cancel)

    async def _health(self, request: Request) -> Response:
        status = "stopping" if self.is_stopping else "ok"
        return JSONResponse(
            {"status": status, "requests": self._num_requests},
            status_code=503 if self.is_stopping else 200,
        )

    def _generate(self, kind: str) -> Any:
        systems = [system for system in self.systems.values() if system.kind == kind]

        async def answer(request: Request) -> Response:
            if not systems:
                raise RefusedError(404, f"no system of {KINDS[kind].path} is loaded.")
            self._admit()
            is_left = True
            try:
                deadline = time.monotonic() + self.limits.seconds
                body, job = await self._submit(request, systems, deadline)
                if not job.sends_texts:
                    return JSONResponse(await self._wait(job, request, body))
                is_left = False
                return _EventResponse(self._events(job), partial(self._leave, job, body))
            finally:
                # a stream leaves when it has been sent
                self._num_requests -= is_left

        return answer

    def _admit(self) -> None:
        if self.is_stopping:
            raise RefusedError(503, STOPPING, retry_after=5)
        if self._num_requests >= self.limits.waiting:
            seconds = min(60, max(1, math.ceil(self.thread.seconds_per_batch)))
            raise RefusedError(
                503,
                f"{self.limits.waiting} requests are waiting already; try again in {seconds} s.",
                retry_after=seconds,
            )
        self._num_requests += 1

    async def _submit(
        self, request: Request, systems: list[System], deadline: float
    ) -> tuple[Body, Job]:
        with self.thread.receiving():
            body = await self._receive(request)
            try:
                system = find_system(body, systems)
                job = Job(
                    system,
                    build_query(body, system),
                    deadline=deadline,
                    sends_texts=EVENTS in request.headers.get("accept", ""),
                )
                for value in _list_inputs(job.query.inputs):
                    if isinstance(value, WatchedFile):
                        value.job = job
                self.thread.submit(job)
            except RefusedError:
                body.close()
                raise
        return body, job

    async def _receive(self, request: Request) -> Body:
        task = asyncio.ensure_future(read_body(request, self.limits))
        self._receiving.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if self.is_stopping:
                raise RefusedError(503, STOPPING, retry_after=5) from None
            raise
        finally:
            self._receiving.discard(task)

    async def _wait(self, job: Job, request: Request, body: Body) -> dict[str, Any]:
        """Return a job's JSON answer; raise RefusedError at its deadline or without its client."""
        gone = asyncio.ensure_future(_wait_for_disconnect(request))
        try:
            left = job.deadline - time.monotonic()
            waiting: set[asyncio.Future[Any]] = {job.record, gone}
            await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if job.record.done():
                return job.record.result()
            if gone.done():
                raise RefusedError(499, "the client has gone.")
            raise self._too_late()
        finally:
            gone.cancel()
            job.cancel()
            body.close()

    async def _events(self, job: Job) -> AsyncIterator[str]:
        """Yield a job's server-sent events: incomplete texts, then the JSON answer or an error."""
        try:
            while True:
                left = job.deadline - time.monotonic()
                text = await asyncio.wait_for(job.texts.get(), max(left, 0.001))
                if text is None:
                    break
                yield _format_event("text", {"text": text})
            yield _format_event("record", job.record.result())
        except asyncio.TimeoutError:
            yield _format_event("error", {"error": str(self._too_late())})
        except RefusedError as error:
            yield _format_event("error", {"error": str(error)})

    def _leave(self, job: Job, body: Body) -> None:
        job.cancel()
        body.close()
        self._num_requests -= 1

    def _too_late(self) -> RefusedError:
        return RefusedError(504, f"took longer than {self.limits.seconds:g} seconds.")


class _EventResponse(StreamingResponse):
    """Response of server-sent events; ``leave`` is called when it ends or the client has gone."""

    def __init__(self, events: AsyncIterator[str], leave: Callable[[], None]) -> None:
        super().__init__(events, media_type=EVENTS)
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # not in the generator of the events: if a client goes before the first event, Python never
        # enters the generator, and leaves out its `finally`
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


def _list_inputs(inputs: Any) -> Iterable[Any]:
    if isinstance(inputs, dict):
        return inputs.values()
    return inputs if isinstance(inputs, list) else [inputs]


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _format_event(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


def _send_file(name: str, media_type: str) -> Any:
    content = (_STATIC / name).read_bytes()

    async def send(request: Request) -> Response:
        return Response(content, media_type=media_type)

    return send


def _send_json(content: Any) -> Any:
    async def send(request: Request) -> Response:
        return JSONResponse(content)

    return send


def _answer_refusal(request: Request, error: Any) -> Response:
    headers = {} if error.retry_after is None else {"Retry-After": str(error.retry_after)}
    return JSONResponse({"error": str(error)}, status_code=error.status, headers=headers)


def _answer_http_error(request: Request, error: Any) -> Response:
    # of starlette: no such path, or another method
    detail = f"{request.method} {request.url.path[:200]}: {error.detail}."
    return JSONResponse({"error": detail}, status_code=error.status_code, headers=error.headers)


def _answer_failure(request: Request, error: Any) -> Response:
    return JSONResponse({"error": "the server failed; its log has the reason."}, status_code=500)
