"""Bad requests are answered with a status of 400 to 499 and one line of JSON, never with 500."""

import io
import json
import socket
import struct
import zlib
from functools import partial

import numpy as np
import pytest
from PIL import Image
from served import Limits, form, running, wait_until


def jpeg(width=64, height=48):
    stream = io.BytesIO()
    noise = np.random.default_rng(1).integers(0, 255, (height, width, 3), dtype=np.uint8)
    Image.fromarray(noise).save(stream, "JPEG", quality=90)
    return stream.getvalue()


def bomb(side=60_000):
    """A PNG of few bytes that declares and has side * side pixels."""

    def chunk(name, content):
        check = zlib.crc32(name + content)
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)

    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    # 100 rows are compressed once: their block does not depend on the blocks before it
    size = 100 * (1 + side // 8)
    rows = zlib.compressobj(9, wbits=-15)
    block = rows.compress(bytes(size)) + rows.flush(zlib.Z_FULL_FLUSH)
    repeats = side // 100
    checksum = struct.pack(">HH", size * repeats % 65521, 1)  # Adler-32 of zeros
    data = b"\x78\xda" + block * repeats + rows.flush() + checksum
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def npy(array, **options):
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


FORM = "multipart/form-data; boundary=x"
DISPOSITION = b"Content-Disposition: form-data"
FLOATS, INTEGERS = np.ones((2, 3), "f4"), np.ones((2, 512), "i4")
NAN = np.full((2, 512), np.nan, "f4")
IMAGE = ("image", b"1", "a")


def check(answer, status, message):
    assert answer == (status, {"error": message})


@pytest.fixture(scope="module")
def strict(systems):
    """A server with small limits."""
    limits = Limits(upload_bytes=200_000, words=20, seconds=20)
    before = [system.limits for system in systems]
    for system in systems:
        system.limits = Limits(**{**vars(limits), "pixels": 1_000_000})
        vars(system).get("_choices", {}).clear()
    with running(systems, limits) as client:
        yield client
    for system, old in zip(systems, before):
        system.limits = old
        vars(system).get("_choices", {}).clear()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a text file\n", "a.jpg: is not an image, or its format is not supported."),
        (b"", "a.jpg: is empty."),
        (
            jpeg()[:-400],
            "a.jpg: cannot be decoded: image file is truncated",
        ),
        (
            bomb(),
            "a.jpg: has 60000 x 60000 pixels, more than the 32,000,000 that are decoded "
            "(--max-pixels 3600000000 allows it).",
        ),
    ],
    ids=["text", "empty", "truncated", "bomb"],
)
def test_files_that_are_no_images(client, content, message):
    status, answer = client.upload("/api/caption", ("image", content, "a.jpg"))
    assert status == 422
    assert answer["error"].startswith(message[:60])
    files = [("images", jpeg(), "b.jpg")] * 4 + [("images", content, "a.jpg")]
    if content:
        status, answer = client.upload("/api/tell/images", *files)
        assert status == 422
        assert answer["error"].startswith(f"image 5: {message[7:40]}")


def test_bad_images_do_not_hurt_good_ones(client, images, gate, together):
    """The three that wait are in one batch."""
    answers = {}
    good = images[0].read_bytes()
    sent = {"first.png": good, "bad.png": b"no image", "good.png": good, "cut.jpg": jpeg()[:-400]}

    def send(name):
        answers[name] = client.upload("/api/caption", ("image", sent[name], name))[0]

    together(partial(send, "first.png"))
    gate.wait()
    together(*(partial(send, name) for name in [*sent][1:]))
    client.wait_for_requests(4)
    gate.open()
    wait_until(lambda: len(answers) == 4)
    assert gate.sizes == [1, 3]
    assert answers == {"first.png": 200, "bad.png": 422, "good.png": 200, "cut.jpg": 422}


@pytest.mark.parametrize(
    ("parts", "status", "message"),
    [
        ([], 400, "`image` must be a file, but is missing."),
        ([("image", "text")], 400, "`image` must be a file, but is missing."),
        (
            [IMAGE, ("image", b"2", "b")],
            400,
            "`image` must be a file, but there are 2.",
        ),
        ([("picture", b"1", "a.jpg")], 400, "there is no field 'picture'."),
        ([("id", "1"), ("id", "2")], 400, "`id` must be given once."),
        ([IMAGE, ("image", "1")], 400, "`image` must be a text or a file, but is both."),
        ([IMAGE, ("options", b"{}", "a.json")], 400, "`options` must be text, but is a file."),
        ([IMAGE, ("id", "x" * 201)], 400, "`id` must be a number or a text of at"),
        (
            [IMAGE, ("options", "beam")],
            400,
            "`options` must be JSON, but is malformed",
        ),
        ([IMAGE, ("options", "[1]")], 400, "`options` must be a JSON object."),
        (
            [IMAGE, ("options", "[" * 9999)],
            400,
            "`options` must be JSON",
        ),
        ([IMAGE, ("index", "-1")], 400, "`index` must be an integer of 0 or more."),
        ([IMAGE, ("index", "1.5")], 400, "`index` must be an integer of 0 or more."),
        (
            [IMAGE, ("options", '{"beam": NaN}')],
            400,
            "`options` must be JSON",
        ),
        (
            [IMAGE, ("options", '{"beam": 2.5}')],
            422,
            "`beam` must be an integer, but",
        ),
        (
            [IMAGE, ("options", '{"beam": 21}')],
            422,
            "`beam` must be at most 19, the",
        ),
        (
            [IMAGE, ("options", '{"width": 2}')],
            422,
            "`width` is no option of generat",
        ),
        (
            [IMAGE, ("options", '{"weights_dtype": "int8"}')],
            422,
            "`weights_dtype` must be float32, as the server was started, but is 'int8'.",
        ),
        (
            [IMAGE, ("options", '{"prefix": {"a": 1}}')],
            422,
            "`prefix` must be a str",
        ),
    ],
)
def test_wrong_fields(client, parts, status, message):
    found, answer = client.upload("/api/caption", *parts)
    assert (found, answer["error"][: len(message)]) == (status, message)
    assert "\n" not in answer["error"]


def test_too_many_fields_and_files(client):
    fields = [(f"field{i}", "x") for i in range(10_000)]
    message = "malformed form: Too many fields. Maximum number of fields is 16."
    check(client.upload("/api/caption", *fields), 400, message)
    files = [("image", b"x", "a.jpg")] * 1000
    message = "malformed form: Too many files. Maximum number of files is 8."
    check(client.upload("/api/caption", *files), 400, message)


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"", "", 415),
        (b"", "multipart/form-data", 400),
        (b"", FORM, 400),
        (b"rubbish", FORM, 400),
        (b"--x\r\n" + DISPOSITION + b"; name=image; filename=a\r\n\r\nabc", FORM, 400),
        (b"--x\r\n" + DISPOSITION + b"\r\n\r\nabc\r\n--x--\r\n", FORM, 400),
        (b"image=1", "application/x-www-form-urlencoded", 415),
        (b"\xff\xd8", "image/jpeg", 415),
        (b"{}", "text/plain", 415),
        (b"", "application/json", 400),
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"\xff", "application/json", 400),
        (b'{"image": "/etc/passwd"}', "application/json", 400),
    ],
)  # fmt: skip
def test_malformed_bodies(client, body, kind, status):
    headers = {"Content-Type": kind} if kind else {}
    found, _, content = client.send("POST", "/api/caption", body, headers)
    assert found == status, content
    assert list(json.loads(content)) == ["error"]


def test_a_form_that_was_cut_off_loses_no_option_silently(client, images):
    options = ("options", json.dumps({"beam": 2}))
    body, kind = form(("image", images[0].read_bytes(), "a.png"), options)
    for size in (len(body) - 5, len(body) - 60):
        status, _, content = client.send(
            "POST", "/api/caption", body[:size], {"Content-Type": kind}
        )
        check(
            (status, json.loads(content)),
            400,
            "malformed form: it ends before its last boundary.",
        )
    # what follows the last boundary has no meaning
    status, _, content = client.send("POST", "/api/caption", body + b"\r\n", {"Content-Type": kind})
    assert (status, json.loads(content)["options"]["beam"]) == (200, 2)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 400, "`prompt` must be text, but is missing."),
        ({"prompt": 5}, 400, "`prompt` must be text, but is int."),
        ({"prompt": ""}, 422, "the prompt is empty."),
        (
            {"prompt": "\ud800 a door"},
            400,
            "a text has half of a surrogate",
        ),
        ({"prompt": "a door " * 3000}, 413, "`prompt` must have at most 5000 words, but has 6000."),
        ({"prompt": "a door " * 30}, 422, "prompt 'a door a door"),
        ({"prompt": "a door", "options": {"max_len_b": 6000}}, 422, "`max_len_b` must be at most"),
        ({"prompt": "a door", "options": {"beam": 25, "x": "\udc00"}}, 400, "a text has half of a"),
        ({"prompt": "a door", "options": {"\ud800": 1}}, 400, "a text has half of a"),
    ],
)
def test_wrong_prompts(client, body, status, message):
    found, answer = client.post("/api/tell/prompt", body)
    assert (found, answer["error"][: len(message)]) == (status, message)
    # the server's files are not named
    assert "checkpoint_best.pt" not in answer["error"]


@pytest.mark.parametrize(
    ("parts", "status", "message"),
    [
        ([], 422, "video: --arch vg_bart_tiny reads videos: give `video`, a file or features."),
        ([("video", b"no video", "a.mp4")], 422, "a.mp4: "),
        ([("video", "a.mp4")], 400, "`video` must be one file, but is missing."),
        ([("video", b"x", "a.npy")], 422, "a.npy: is no numpy file, or is cut short: "),
        ([("video", npy(FLOATS), "a.npy")], 422, "a.npy: features must be [frames, 512]"),
        ([("video", npy(np.float32(1)), "a.npy")], 422, "a.npy: features must be [frames, 512]"),
        ([("video", npy(INTEGERS), "a.npy")], 422, "a.npy: features must be floats, but"),
        ([("video", npy(NAN), "a.npy")], 422, "a.npy: features must be finite, but some"),
        (
            [("video", npy(np.array([{}]), allow_pickle=True), "a.npy")],
            422,
            "a.npy: holds pickled Python objects",
        ),
        ([("transcript", b"%PDF", "a.pdf")], 415, "a.pdf: a transcript must be text or .srt"),
        ([("transcript", b"\xff\xfa", "a.txt")], 422, "a.txt: not UTF-8 text"),
        ([("transcript", b"no times", "a.srt")], 422, "a.srt: has no subtitle; a line such as"),
        ([("transcript", "")], 422, "video: "),
    ],
)  # fmt: skip
def test_wrong_videos(client, parts, status, message):
    found, answer = client.upload("/api/summarize", *parts)
    assert (found, answer["error"][: len(message)]) == (status, message), answer


def test_options_that_only_some_systems_have(client, images):
    parts = [("images", image.read_bytes(), image.name) for image in images]
    options = ("options", '{"repetition_penalty": 1e308}')
    message = "a score is not finite: an option is too large."
    check(client.upload("/api/tell/images", *parts, options), 422, message)
    body = {"transcript": "a dog", "options": {"tokenizer": {"a": 1}}}
    message = "`tokenizer` must be a string, but is {'a': 1}."
    check(client.post("/api/summarize", body), 422, message)
    body = {**body, "options": {"max_len_a": 1e308}}
    message = "`max_len_a` must be at most 0 on this server, but is 1e+308."
    check(client.post("/api/summarize", body), 422, message)
    body["options"] = {"tokenizer": "other"}
    status, answer = client.post("/api/summarize", body)
    assert (status, answer["error"][:27]) == (422, "`tokenizer` must be one of ")


def test_limits_of_a_request(strict, images):
    big = ("image", bytes(300_000), "a.jpg")
    check(
        strict.upload("/api/caption", big),
        413,
        "the request is larger than the 0.190735 MiB that are accepted.",
    )
    small = ("image", images[0].read_bytes(), "a.png")
    assert strict.upload("/api/caption", small)[0] == 200
    body = {"prompt": "a door " * 11}
    message = "`prompt` must have at most 20 words, but has 22."
    check(strict.post("/api/tell/prompt", body), 413, message)
    status, answer = strict.post("/api/tell/prompt", {"prompt": "a door"})
    # the default is 150 words, or as many as the server allows
    assert (status, answer["options"]["max_len_b"], answer["words"]) == (200, 20, 20)
    parts = [("images", image.read_bytes(), image.name) for image in images]
    status, answer = strict.upload("/api/tell/images", *parts)
    assert (status, answer["options"]["max_words_per_sentence"]) == (200, 4)
    option = ("options", '{"max_words_per_sentence": 5}')
    message = "`max_words_per_sentence` must be at most 4 on this server, but is 5."
    check(strict.upload("/api/tell/images", *parts, option), 422, message)
    # the size is counted, whatever the header says
    body, kind = form(big)
    with socket.create_connection(("127.0.0.1", strict.port)) as connection:
        head = f"POST /api/caption HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        connection.sendall(f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 413"


def test_other_methods_and_paths(client):
    check(client.get("/api/caption"), 405, "GET /api/caption: Method Not Allowed.")
    check(client.get("/static/../app.py"), 404, "GET /static/../app.py: Not Found.")
    check(client.get("/static/%2e%2e/app.py"), 404, "GET /static/../app.py: Not Found.")
    check(client.get("/etc/passwd"), 404, "GET /etc/passwd: Not Found.")
    assert client.post("/health", {})[0] == 405


def test_addresses_of_the_own_machine_are_known():
    from fairseq_mm.serving.server import is_loopback

    assert is_loopback("127.0.0.1")
    assert is_loopback("::1")
    assert is_loopback("localhost")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("192.0.2.1")
