"""Requests of other sites and without the token are refused before they are read."""

import time
from functools import partial

import pytest
from served import Limits, running, wait_until

TOKEN = "correct-horse-battery"


@pytest.fixture(scope="module")
def guarded(systems):
    with running(systems, Limits(), token=TOKEN) as client:
        yield client


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("127.0.0.1:5", 200),
        ("[::1]:8000", 200),
        ("evil.example:8000", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost:evil", 403),
        ("192.0.2.1", 403),
        ("", 403),
    ],
)
def test_hosts_that_a_rebound_name_would_send_are_refused(client, host, status):
    found, answer = client.get("/api/systems", Host=host)
    assert found == status
    assert ("error" in answer) == (status == 403)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 400),
        ({"Origin": "http://localhost:80"}, 400),
        ({"Origin": "https://localhost:80"}, 400),
        ({"Origin": "http://localhost:80", "Sec-Fetch-Site": "same-origin"}, 400),
        ({"Sec-Fetch-Site": "none"}, 400),
        ({"Origin": "http://localhost:81"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://localhost:80.evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403),
    ],
)
def test_requests_of_other_sites_are_refused(client, headers, status):
    assert client.post("/api/caption", {}, Host="localhost:80", **headers)[0] == status


def test_a_link_on_another_site_leads_to_the_page(client):
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client.send("GET", "/", headers=link)[0] == 200
    # but its script is not for scripts of other sites
    assert client.send("GET", "/static/page.js", headers={"Sec-Fetch-Site": "cross-site"})[0] == 403
    assert client.get("/api/systems", **link)[0] == 403


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        ("Bearer ", 401),
        ("Bearer \xe9\xff", 401),
        (f"Basic {TOKEN}", 401),
        (TOKEN, 401),
        (None, 401),
    ],
)
def test_the_token_is_needed(guarded, value, status):
    guarded.headers = {} if value is None else {"Authorization": value}
    for path in ("/api/systems", "/api/systems?token=x"):
        assert guarded.get(path)[0] == status
    for path in ("/api/caption", "/api/tell/prompt", "/api/summarize"):
        found, answer = guarded.post(path, {"prompt": "a door", "options": {"max_len_b": 3}})
        assert (found == 401) == (status == 401)
        assert status == 200 or answer == {"error": "the token is missing or wrong."}


def test_what_needs_no_token(guarded):
    guarded.headers = {}
    for path in ("/", "/health", "/openapi.json", "/static/page.js", "/static/page.css"):
        assert guarded.send("GET", path)[0] == 200
    assert guarded.send("GET", "/static/nothing")[0] == 404
    # with a token the host may have any name, but other sites are refused
    assert guarded.send("GET", "/health", headers={"Host": "server.example:8000"})[0] == 200
    headers = {"Host": "server.example", "Origin": "http://evil.example"}
    assert guarded.send("GET", "/health", headers=headers)[0] == 403


def test_the_token_is_nowhere_in_the_server(guarded):
    assert TOKEN not in repr(vars(guarded.server)) + repr(vars(guarded.server.app))


def test_too_many_requests_are_told_when_to_come_again(systems, images, gate, together):
    part = ("image", images[0].read_bytes(), "a.png")
    with running(systems, Limits(waiting=2)) as client:
        answers = []
        send = partial(lambda: answers.append(client.upload("/api/caption", part)))
        together(send)
        gate.wait()
        together(send)
        client.wait_for_requests(2)
        status, headers, content = client.send("POST", "/api/caption", b"")
        assert (status, headers["retry-after"]) == (503, "1")
        assert content == b'{"error":"2 requests are waiting already; try again in 1 s."}'
        gate.open()
        wait_until(lambda: len(answers) == 2)
        assert [status for status, _ in answers] == [200, 200]
        assert client.upload("/api/caption", part)[0] == 200


def test_a_request_that_takes_too_long_is_ended(systems, gate, images):
    with running(systems, Limits(seconds=0.3)) as client:
        start = time.monotonic()
        answer = client.upload("/api/caption", ("image", images[0].read_bytes(), "a.png"))
        assert answer == (504, {"error": "took longer than 0.3 seconds."})
        assert time.monotonic() - start < 5
        gate.open()
        # the worker has ended it as well, and goes on with the next
        assert client.get("/health") == (200, {"status": "ok", "requests": 0})


def test_a_long_generation_is_ended_at_its_next_step(systems, monkeypatch):
    """The thread of the models is free soon after the time of its only request."""
    (story,) = (system for system in systems if system.name == "story")
    slow = story.model.task.inference_step
    steps = []

    def step_slowly(generator, *arguments, **options):
        step = generator.search.step

        def wait(number, *others):
            steps.append(number)
            time.sleep(0.05)
            return step(number, *others)

        monkeypatch.setattr(generator.search, "step", wait)
        return slow(generator, *arguments, **options)

    monkeypatch.setattr(story.model.task, "inference_step", step_slowly)
    body = {"system": "story", "prompt": "a door", "options": {"min_len": 38, "max_len_b": 38}}
    with running(systems, Limits(seconds=0.5)) as client:
        assert client.post("/api/tell/prompt", body)[0] == 504
        client.wait_for_requests(0)
        time.sleep(0.2)
        count = len(steps)
        time.sleep(0.2)
        assert len(steps) == count < 30


def test_a_slow_sender_is_not_waited_for(systems):
    import socket

    with (
        running(systems, Limits(seconds=0.3)) as client,
        socket.create_connection(("127.0.0.1", client.port)) as connection,
    ):
        connection.sendall(
            b"POST /api/caption HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x\r\n"
        )
        connection.settimeout(10)
        assert connection.recv(12) == b"HTTP/1.1 408"


def test_a_client_that_goes_frees_its_place(systems, gate, images):
    import socket

    from served import form

    body, kind = form(("image", images[0].read_bytes(), "a.png"))
    with running(systems, Limits()) as client:
        for accept in ("application/json", "text/event-stream"):
            with socket.create_connection(("127.0.0.1", client.port)) as connection:
                head = f"POST /api/caption HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n"
                head += f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
                connection.sendall(head.encode() + body)
                client.wait_for_requests(1)
            client.wait_for_requests(0)
        gate.open()
        assert client.upload("/api/caption", ("image", images[0].read_bytes(), "a"))[0] == 200
        # of the two, only the one that the thread had begun was read
        assert sum(gate.sizes) <= 2
