"""The page of ``fairseq-mm serve``: through gradio's client, and in headless Chromium."""

import contextlib
import json
import os
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from argparse import Namespace

import numpy as np
import pytest
from toy_captioner import save_images
from toy_summarizer import train_video_summarizer
from toy_text_models import save_text_model
from toy_videos import frames_of, write_video
from toy_visual_stories import save_pixel_story_model
from websockets.sync.client import connect

import fairseq_mm
from fairseq_mm.cli import serve
from fairseq_mm.inference.image_index import ImageIndex

pytest.importorskip("gradio")
gradio_client = pytest.importorskip("gradio_client")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
NAMES = {
    "captions": "m_rnn_tiny",
    "album": "glac_tiny",
    "story": "conv_story_tiny",
    "video": "vg_bart_tiny",
    "features": "m_rnn_tiny_5",
    "photos": "photos",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory, trained_captioner):
    """Name of a system -> its checkpoint."""
    folder = tmp_path_factory.mktemp("served")
    save_pixel_story_model(folder / "album")
    save_text_model(folder / "story" / "checkpoint_best.pt")
    (folder / "video").mkdir()
    train_video_summarizer(folder / "video", folder / "video" / "data")
    names = {name: folder / name for name in ("album", "story", "video")}
    # without its weights file, the extractor is unknown
    (folder / "bare").mkdir()
    checkpoint = trained_captioner / "checkpoint_best.pt"
    (folder / "bare" / "checkpoint_best.pt").symlink_to(checkpoint)
    return {"captions": trained_captioner, **names, "features": folder / "bare"}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return save_images(tmp_path_factory.mktemp("pictures") / "images")


@pytest.fixture(scope="module")
def url(models, indexed, tmp_path_factory):
    """Address of a server with all kinds of systems."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("uploads")))
        patch.setenv("GRADIO_ANALYTICS_ENABLED", "False")
        args = Namespace(
            checkpoint=[str(path) for path in models.values()],
            index=[str(indexed)],
            **{"weights": [], "embedding": None, "data": None, "device": "cpu"},
        )
        systems = serve.load_systems(args)
        assert [system.name for system in systems] == list(NAMES.values())
        page = serve.open_page(systems, "127.0.0.1", max_upload=1)
        yield page.local_url
        page.close(verbose=False)


@pytest.fixture(scope="module")
def client(url):
    return gradio_client.Client(url, verbose=False, analytics_enabled=False)


def load(path):
    return fairseq_mm.from_pretrained(path, device="cpu")


def call(client, name, *inputs, **options):
    return client.predict(*inputs, **options, api_name=f"/{NAMES[name]}")


def test_captions(client, models, images):
    shown = call(client, "captions", gradio_client.handle_file(images[1]))
    (expected,) = load(models["captions"]).generate(images[1])
    assert shown["data"] == [[expected.text, round(expected.score, 4)]]


def test_stories_of_five_images(client, models, images):
    files = [{"image": gradio_client.handle_file(path), "caption": None} for path in images]
    (expected,) = load(models["album"]).generate(list(images))
    assert call(client, "album", files) == "\n".join(expected.sentences)
    with pytest.raises(
        gradio_client.exceptions.AppError, match="a story has 5 images, but there are 4"
    ):
        call(client, "album", files[:4])


def test_stories_are_streamed(client, models):
    job = client.submit("You find a door", api_name=f"/{NAMES['story']}")
    final = job.result()
    texts = job.outputs()
    (expected,) = load(models["story"]).generate("You find a door")
    assert final == texts[-1] == expected.text
    assert len(texts) >= 2


def test_summaries_of_videos_and_features(client, models, tmp_path):
    video = write_video(tmp_path / "video.mp4", frames_of(40, 40, 50))
    features = np.random.default_rng(3).normal(size=(4, 512)).astype(np.float32)
    np.save(tmp_path / "a.npy", features)
    model = load(models["video"])
    for path, value in ((video, video), (tmp_path / "a.npy", features)):
        (expected,) = model.generate({"video": value, "transcript": "the dog"})
        shown = call(client, "video", gradio_client.handle_file(path), "the dog")
        assert shown["data"][0][0] == expected.text


def test_a_folder_is_searched(client, indexed, images):
    (result,) = ImageIndex.open(indexed).search(["a dog"], 3)
    shown = call(client, "photos", "a dog", None, 3)
    assert [x["caption"] for x in shown] == [
        f"{hit.rank}. {hit.id} ({hit.score:.4f})" for hit in result.images
    ]
    shown = call(client, "photos", "", gradio_client.handle_file(images[2]), 1)
    assert shown[0]["caption"].startswith(f"1. {os.path.basename(images[2])} (1.0000")


def test_without_an_extractor_features_are_accepted(client, models, tmp_path):
    dim = load(models["captions"]).loaded.feature_dim
    features = np.random.default_rng(3).normal(size=(1, dim)).astype(np.float32)
    np.save(tmp_path / "a.npy", features)
    (expected,) = load(models["captions"]).generate(features)
    shown = call(client, "features", gradio_client.handle_file(tmp_path / "a.npy"))
    assert shown["data"][0][0] == expected.text


@pytest.mark.parametrize(
    ("system", "name", "content", "message"),
    [
        ("captions", "a.jpg", b"a text", "is not an image"),
        ("video", "a.mp4", b"a text", "is no video"),
        ("video", "a.exe", b"a text", "Invalid file type"),
        ("features", "a.npy", b"a text", "^a.npy: "),
        ("captions", "big.jpg", b"x" * (1 << 21), "413|exceed|Payload"),
    ],
)
def test_bad_uploads_are_refused(client, tmp_path, system, name, content, message):
    (tmp_path / name).write_bytes(content)
    inputs = [gradio_client.handle_file(tmp_path / name), *(["a dog"] if system == "video" else [])]
    with pytest.raises(Exception, match=message):
        call(client, system, *inputs)


def test_pickled_arrays_run_no_code(client, tmp_path):
    class Bomb:
        def __reduce__(self):
            return open, (str(tmp_path / "ran"), "w")

    np.save(tmp_path / "a.npy", np.array([Bomb()]), allow_pickle=True)
    with pytest.raises(gradio_client.exceptions.AppError, match=r"^a.npy: .*Python objects"):
        call(client, "features", gradio_client.handle_file(tmp_path / "a.npy"))
    assert not (tmp_path / "ran").exists()


def test_other_host_names_are_refused(url):
    request = urllib.request.Request(f"{url}config", headers={"Host": "evil.example"})
    with pytest.raises(urllib.error.HTTPError, match="400"):
        urllib.request.urlopen(request)


def test_no_files_of_the_machine_are_sent(url, models, indexed):
    files = ["/etc/passwd", os.path.abspath("setup.py"), f"{models['captions']}/checkpoint_best.pt"]
    for path in [*files, str(indexed / "image1.png")]:
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(f"{url}gradio_api/file={path}")
        assert error.value.code in (403, 404)
        data = json.dumps({"data": [{"path": path, "meta": {"_type": "gradio.FileData"}}]})
        headers = {"Content-Type": "application/json"}
        start = f"{url}gradio_api/call/{NAMES['captions']}"
        request = urllib.request.Request(start, data.encode(), headers)
        number = json.load(urllib.request.urlopen(request))["event_id"]
        answer = urllib.request.urlopen(f"{start}/{number}").read()
        assert answer.startswith(b"event: error")


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@contextlib.contextmanager
def chromium(url, folder):
    """Open a page in headless Chromium; yield a function for commands of its DevTools protocol."""
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu"]
    command += ["--disable-dev-shm-usage", "--remote-debugging-port=0", f"--user-data-dir={folder}"]
    with subprocess.Popen([*command, url], stderr=subprocess.DEVNULL) as browser:
        file = folder / "DevToolsActivePort"
        wait_for(lambda: file.exists() and "\n" in file.read_text())
        port = file.read_text().split()[0]
        tabs = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json"))
        address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
        with connect(address, max_size=None) as socket:

            def call(method, **parameters):
                socket.send(json.dumps({"id": 1, "method": method, "params": parameters}))
                return json.loads(socket.recv(timeout=30))["result"]

            yield call
        browser.terminate()


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_dropped_image_gets_its_caption_in_the_browser(url, models, images, tmp_path):
    # first: PyTorch cannot build one extractor while another is running
    (expected,) = load(models["captions"]).generate(images[1])
    with chromium(url, tmp_path) as call:

        def run(script):
            done = call("Runtime.evaluate", expression=script, returnByValue=True)
            return done["result"].get("value")

        button = "document.querySelector('input[type=file]')?.closest('button')"
        wait_for(lambda: run(f"!!{button}"))
        x, y = run(f"(r => [r.x + r.width / 2, r.y + 10])({button}.getBoundingClientRect())")
        data = {"items": [], "files": [str(images[1])], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            call("Input.dispatchDragEvent", type=kind, x=x, y=y, data=data)
        wait_for(lambda: expected.text in run("document.body.innerText"))
        loaded = run("performance.getEntriesByType('resource').map(x => x.name)")
        assert {urllib.parse.urlsplit(name).hostname for name in loaded} == {"127.0.0.1"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to serve: give a --checkpoint"),
        (("--checkpoint", "a", "--host", "0.0.0.0"), "is needed for a --host that other"),
        (("--checkpoint", "a", "--auth-file", "users.txt"), "must have lines NAME:PASSWORD,"),
    ],
)
def test_wrong_command_lines(run_command, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "users.txt").write_text("ann\n")
    status, _, err = run_command("serve", *arguments)
    assert status == 2
    assert message in err
