"""The API answers with the records that the commands write, for each kind of system."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from served import Limits, load_systems, running, wait_until
from toy_videos import frames_of, write_video

import fairseq_mm
from fairseq_mm.cli.main import main

SHORT = {"min_len": 3, "max_len_b": 8}


def without_system(answer):
    status, record = answer
    assert status == 200, record
    return {name: value for name, value in record.items() if name != "system"}


def record_of(capsys, *arguments):
    """The record that a command prints."""
    capsys.readouterr()
    assert main([*map(str, arguments), "--device", "cpu"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    return json.loads(line)


def test_captions_are_those_of_the_command(client, models, images, capsys):
    command = ("caption", images[1], "--checkpoint", models["captions"], "--nbest", 2, "--jsonl")
    expected = record_of(capsys, *command)
    parts = [("image", images[1].read_bytes(), "a/photo.png"), ("options", '{"nbest": 2}')]
    record = without_system(client.upload("/api/caption", *parts))
    assert record == {**expected, "id": "photo.png"}
    assert len(record["hypotheses"]) == 2


def test_stories_of_images_are_those_of_the_command(client, models, images, capsys):
    files = [*images[:2], "-", *images[3:]]
    options = ("--max-words-per-sentence", 4, "--beam", 2)
    command = ("tell", *files, "--checkpoint", models["album"], "--jsonl", *options)
    expected = record_of(capsys, *command)
    parts = [("images", b"" if x == "-" else x.read_bytes(), getattr(x, "name", "")) for x in files]
    options = {"max_words_per_sentence": 4, "beam": 2}
    parts.append(("options", json.dumps(options)))
    record = without_system(client.upload("/api/tell/images", *parts))
    names = [getattr(file, "name", "-") for file in files]
    assert record == {**expected, "id": "\t".join(names), "images": names}
    assert len(record["sentences"]) == 5


def test_stories_of_prompts_are_those_of_the_command(client, models, capsys):
    prompt = "[WP] You find a dragon ."
    lengths = ("--min-len", 3, "--max-len-b", 8, "--seed", 4, "--first-id", 2, "--sampling")
    command = ("tell", "--prompt", prompt, "--checkpoint", models["story"], "--jsonl", *lengths)
    expected = record_of(capsys, *command)
    body = {"prompt": prompt, "index": 2, "options": {**SHORT, "seed": 4, "sampling": True}}
    assert without_system(client.post("/api/tell/prompt", body)) == expected
    assert expected["unknown_words"] == ["dragon"]


def test_language_models_tell_without_a_prompt(client, models, capsys):
    options = ("--min-len", 3, "--max-len-b", 8)
    expected = record_of(capsys, "tell", "--checkpoint", models["text"], "--jsonl", *options)
    body = {"system": "text", "options": SHORT}
    assert without_system(client.post("/api/tell/prompt", body)) == expected
    status, answer = client.post("/api/tell/prompt", {**body, "prompt": "a door"})
    assert (status, answer["error"]) == (400, "text is a language model, which reads no `prompt`.")


def test_summaries_are_those_of_the_command(client, models, tmp_path, capsys):
    video = write_video(tmp_path / "video.mp4", frames_of(40, 40, 50))
    (tmp_path / "a.srt").write_text("1\n00:00:01,000 --> 00:00:02,500\nThe dog\nruns on grass\n")
    command = ("summarize", video, "--transcript", tmp_path / "a.srt", "--jsonl")
    expected = record_of(capsys, *command, "--checkpoint", models["video"], "--max-len-b", 9)
    content = (tmp_path / "video.mp4").read_bytes()
    parts = [
        ("video", content, "video.mp4"),
        ("transcript", (tmp_path / "a.srt").read_bytes(), "a.srt"),
        ("options", '{"max_len_b": 9}'),
    ]
    record = without_system(client.upload("/api/summarize", *parts))
    assert record == {**expected, "id": "video.mp4"}
    assert (record["frames"], record["frames_cut"]) == (6, True)
    as_text = ("transcript", "The dog runs on grass")
    assert without_system(client.upload("/api/summarize", parts[0], as_text, parts[2])) == record


def test_features_take_the_place_of_a_video(client, models, tmp_path):
    features = np.random.default_rng(3).normal(size=(4, 512)).astype(np.float32)
    np.save(tmp_path / "a.npy", features)
    model = fairseq_mm.from_pretrained(models["video"], device="cpu")
    (expected,) = model.generate({"video": features, "transcript": "the dog"}, max_len_b=9)
    parts = [("video", (tmp_path / "a.npy").read_bytes(), "a.npy"), ("transcript", "the dog")]
    status, record = client.upload("/api/summarize", *parts, ("options", '{"max_len_b": 9}'))
    assert (status, record["hypothesis"]) == (200, expected.text)
    assert (record["id"], record["frames"]) == ("a.npy", 4)


def test_the_server_limits_the_frames_of_a_video(models, tmp_path):
    video = write_video(tmp_path / "video.mp4", frames_of(40, 40, 50))
    np.save(tmp_path / "a.npy", np.ones((3, 512), np.float32))
    limits = Limits(frames=2)
    systems = load_systems([("", str(models["video"]))], limits, device="cpu")
    with running(systems, limits) as client:
        for file in (video, tmp_path / "a.npy"):
            parts = [("video", Path(file).read_bytes(), Path(file).name), ("transcript", "a dog")]
            status, record = client.upload("/api/summarize", *parts)
            assert (status, record["frames"], record["frames_cut"]) == (200, 2, True)


def test_the_options_of_a_record_give_the_record_again(client, images):
    parts = [("images", image.read_bytes(), image.name) for image in images]
    options = {"preset": "sampling", "max_words_per_sentence": 5, "seed": 9}
    _, first = client.upload("/api/tell/images", *parts, ("options", json.dumps(options)))
    again = ("options", json.dumps(first["options"]))
    assert client.upload("/api/tell/images", *parts, again) == (200, first)


def test_a_client_chooses_the_system_and_the_id(client, systems, models):
    body = {"system": "story", "id": 17, "prompt": "a door", "options": SHORT}
    status, record = client.post("/api/tell/prompt", body)
    assert (status, record["system"], record["id"]) == (200, "story", 17)
    status, answer = client.post("/api/tell/prompt", {**body, "system": "captions"})
    assert (status, answer["error"]) == (
        404,
        "`system` must be one of story, text, but is 'captions'.",
    )
    _, about = client.get("/api/systems")
    assert [system["name"] for system in about["systems"]] == [system.name for system in systems]
    # where the files are is nobody's business
    assert str(models["story"].parent) not in json.dumps(about)


def test_a_folder_is_searched_as_by_the_command(client, album, images, capsys):
    for query, sent in (
        (["a dog", "--count", 3], {"query": "a dog"}),
        (["--image", images[2], "--count", 3], {"image": images[2]}),
    ):
        capsys.readouterr()
        assert main(["search", str(album), *map(str, query), "--jsonl"]) == 0
        expected = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        if "query" in sent:
            status, record = client.post("/api/search", {**sent, "options": {"count": 3}})
        else:
            parts = [("image", images[2].read_bytes(), "b.png"), ("options", '{"count": 3}')]
            status, record = client.upload("/api/search", *parts)
            # the image is in the folder itself
            assert record["images"][0]["id"] == images[2].name
        assert (status, record["system"], record["stale"]) == (200, "photos", 0)
        found = [{name: line[name] for name in ("id", "score", "rank")} for line in expected]
        assert record["images"] == found


def test_a_search_says_what_it_leaves_out(client):
    body = {"query": "a zebra", "options": {"thumbnails": True}}
    status, record = client.post("/api/search", body)
    assert (status, record["unknown_words"], len(record["images"])) == (200, ["zebra"], 5)
    assert all(x["thumbnail"].startswith("data:image/jpeg;base64,") for x in record["images"])
    for body, status, message in (
        ({"query": "zebra"}, 422, "zebra"),
        ({"query": " "}, 422, "a query must be a sentence or a word, but is empty."),
        ({}, 400, "`query` must be text, but is missing."),
        ({"image": "a.png"}, 400, "`image` must be a file, but is missing."),
        ({"query": "a", "options": {"count": 101}}, 422, "`count` must be from 1 to 100, but is"),
        ({"query": "a", "options": {"beam": 1}}, 422, "`beam` is no option of a search."),
    ):
        found, answer = client.post("/api/search", body)
        assert found == status
        assert message in answer["error"]


def events_of(client, body):
    """(name, data) of each event of a stream."""
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    content = json.dumps(body).encode()
    status, about, answer = client.send("POST", "/api/tell/prompt", content, headers)
    assert (status, about["content-type"]) == (200, "text/event-stream; charset=utf-8")
    for event in answer.decode().split("\n\n")[:-1]:
        name, data = event.split("\n")
        yield name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def test_a_story_is_streamed_while_it_is_written(client, monkeypatch):
    monkeypatch.setattr("fairseq_mm.serving.batching._BETWEEN_TEXTS", 0)
    body = {"prompt": "You find a door .", "options": {"min_len": 12, "max_len_b": 20}}
    *texts, (last, record) = events_of(client, body)
    assert {name for name, _ in texts} == {"text"}
    words = [len(data["text"].split()) for _, data in texts]
    assert words == sorted(words)
    assert len(set(words)) > 5
    assert last == "record"
    assert (200, record) == client.post("/api/tell/prompt", body)
    ((name, data),) = events_of(client, {"prompt": "zebra"})
    assert name == "error"
    assert data["error"] == "prompt 'zebra': none of its words is in the vocabulary of story."


def test_requests_that_wait_share_a_batch(client, images, gate, together):
    answers = {}

    def send(number, **options):
        image = images[number % len(images)]
        parts = [("image", image.read_bytes(), image.name), ("options", json.dumps(options))]
        answers[number] = client.upload("/api/caption", *parts)

    together(partial(send, 0))
    gate.wait()
    together(*(partial(send, number) for number in range(1, 10)), partial(send, 10, beam=1))
    client.wait_for_requests(11)
    gate.open()
    wait_until(lambda: len(answers) == 11)
    # the first alone, those that came meanwhile together, and the one with other options
    assert gate.sizes[0] == 1
    assert sorted(gate.sizes[1:]) == [1, 9]
    for number in range(5):
        assert answers[number][0] == 200
        assert answers[number] == answers[number + 5]
    assert answers[10][1]["options"]["beam"] == 1


@pytest.mark.parametrize("path", ["/", "/static/page.css", "/static/page.js", "/openapi.json"])
def test_pages_are_sent_with_headers_of_security(client, path):
    status, headers, content = client.send("GET", path)
    assert status == 200
    assert content
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    # nothing of another site, and no script in the page
    assert b"http://" not in content.replace(b"http://localhost", b"")
    assert b"https://" not in content
    assert b"<script>" not in content
    assert "server" not in headers


def test_the_document_of_the_api_is_valid(client):
    validator = pytest.importorskip("openapi_spec_validator")
    status, document = client.get("/openapi.json")
    assert status == 200
    validator.validate(document)
    assert set(document["paths"]) == {
        *("/health", "/api/systems", "/api/caption", "/api/tell/images", "/api/tell/prompt"),
        *("/api/summarize", "/api/search"),
    }


def test_records_and_errors_are_as_the_document_says(client, images):
    jsonschema = pytest.importorskip("jsonschema")
    _, document = client.get("/openapi.json")
    image = images[0]
    sent = {
        "/api/caption": [("image", image.read_bytes(), image.name)],
        "/api/tell/images": [("images", image.read_bytes(), image.name)] * 5,
    }
    for path, operations in document["paths"].items():
        method = next(iter(operations))
        content = operations[method]["responses"]["200"]["content"]["application/json"]
        schema = {**content["schema"], "components": document["components"]}
        if path == "/api/search":
            status, answer = client.post(path, {"query": "a dog", "options": {"thumbnails": True}})
        elif path in sent:
            status, answer = client.upload(path, *sent[path])
        elif path == "/api/tell/prompt":
            status, answer = client.post(path, {"prompt": "a door", "options": SHORT})
        elif path == "/api/summarize":
            continue  # needs a video
        else:
            status, answer = client.get(path)
        assert status == 200
        jsonschema.validate(answer, schema)
    _, answer = client.get("/nothing")
    assert list(answer) == ["error"]


def test_the_document_has_every_option(client):
    _, document = client.get("/openapi.json")
    post = document["paths"]["/api/tell/images"]["post"]
    schema = post["requestBody"]["content"]["multipart/form-data"]["schema"]
    options = schema["properties"]["options"]["properties"]
    assert {"beam", "repetition_penalty", "prefix", "preset"} <= set(options)
    assert options["preset"]["enum"] == ["beam", "greedy", "paper", "sampling"]
