"""Models of the hub: found, downloaded once, and refused in one line that shows no token."""

import os
import subprocess
import sys

import pytest
from hub_server import TOKEN

import fairseq_mm
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint_files import checkpoint_file

NAME = "alice/story"


def generated(path, **options):
    model = fairseq_mm.from_pretrained(path, device="cpu", **options)
    return [
        (x.text, x.score) for x in model.generate("You find a door", nbest=2, beam=2, max_len_b=6)
    ]


def test_a_model_of_the_hub_gives_what_its_checkpoint_gives(hub, folder, checkpoint):
    commit = hub.add(NAME, folder)
    assert generated(NAME) == generated(checkpoint)
    assert sum(path.startswith("/cdn/") for _, path in hub.requests) == 1
    assert hub.tokens == set()
    file = checkpoint_file(NAME)
    assert os.path.basename(os.path.dirname(file)) == commit
    assert os.path.islink(file)
    # a second use downloads nothing, and asks once whether there is another version
    hub.requests.clear()
    assert generated(f"{NAME}@{commit}") == generated(checkpoint)
    assert hub.requests == []
    assert generated(NAME) == generated(checkpoint)
    assert [method for method, _ in hub.requests] == ["HEAD"]
    # the card is not read
    assert not os.path.exists(os.path.join(os.path.dirname(file), "README.md"))


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub, folder, tmp_path):
    first = hub.add(NAME, folder)
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text('{"format": "fairseq_mm", "format_version": 9}')
    hub.add(NAME, other)
    for path, revision in ((NAME, None), (f"{NAME}@main", None), (NAME, "main")):
        with pytest.raises(UserError, match="and `format_version` 1; update fairseq_mm"):
            checkpoint_file(path, revision=revision)
    hub.repositories[NAME].branches["refs/pr/1"] = first
    for path, revision in ((f"{NAME}@{first}", None), (NAME, first), (f"{NAME}@refs/pr/1", None)):
        assert os.path.dirname(checkpoint_file(path, revision=revision)).endswith(first)
    with pytest.raises(UserError, match=rf"^{NAME}@none: has no such revision on {hub.url}\.$"):
        checkpoint_file(f"{NAME}@none")
    with pytest.raises(UserError, match="must be OWNER/NAME and one `revision`"):
        checkpoint_file(f"{NAME}@main", revision="main")
    with pytest.raises(UserError, match="must be OWNER/NAME and one `revision`"):
        checkpoint_file(NAME, revision="../x")


def test_a_file_or_folder_of_this_machine_comes_first(hub, folder, tmp_path, monkeypatch):
    hub.add(NAME, folder)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alice").mkdir()
    # a mistake in a path is not sent to the hub
    with pytest.raises(UserError, match=f"^{NAME}: no such checkpoint or folder"):
        checkpoint_file(NAME)
    assert checkpoint_file(f"{NAME}@main").endswith("model.safetensors")
    hub.requests.clear()
    (tmp_path / NAME).symlink_to(folder)
    assert checkpoint_file(NAME) == f"{NAME}/model.safetensors"
    with pytest.raises(UserError, match=f"`revision` is for models of the hub, but {NAME} is on"):
        fairseq_mm.from_pretrained(NAME, revision="main", device="cpu")
    for text in ("alice/none.pt", "/alice/story", "a/b/c", "../x/y", "a b/c"):
        with pytest.raises(UserError, match="no such checkpoint or folder"):
            checkpoint_file(text)
    assert hub.requests == []


def test_private_and_gated_models_need_a_token(hub, folder, monkeypatch):
    hub.add(NAME, folder, is_private=True)
    hub.add("alice/gated", folder, is_gated=True)
    for path, message in (
        (
            NAME,
            rf"{NAME}: no such checkpoint or folder, and there is no such model on {hub.url}; a",
        ),
        ("alice/gated", rf"alice/gated: is gated on {hub.url}: ask for access there"),
    ):
        with pytest.raises(UserError, match=message):
            checkpoint_file(path)
        with pytest.raises(UserError, match=message) as caught:
            checkpoint_file(path, token="hf_wrongWRONGwrong")
        assert "WRONG" not in str(caught.value)
        assert checkpoint_file(path, token=TOKEN)
    model = fairseq_mm.from_pretrained(NAME, token=TOKEN, revision="main", device="cpu")
    assert TOKEN not in repr(model)
    assert TOKEN not in str(vars(model))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.tokens.clear()
    assert checkpoint_file(NAME)
    assert hub.tokens == {TOKEN}
    assert hub.tokens_elsewhere == set()


@pytest.mark.parametrize("token", ["", "hf_abc def", "hf_abcdefgh\nX: y", "hf_ä123456", 7, b"hf_x"])
def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(hub, token):
    with pytest.raises(UserError, match=r"^`token` must be the text of an access token,"):
        fairseq_mm.from_pretrained(NAME, token=token)
    assert hub.requests == []


def test_errors_of_the_library_are_one_line_without_tokens(hub, folder, monkeypatch):
    import huggingface_hub

    secret = "s3cretWithoutPrefix"

    def fail(*unused, **options):
        raise RuntimeError(f"Illegal header value b'Bearer {TOKEN}'\nand {secret}\n{options}")

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", fail)
    message = (
        rf"^{NAME}: no such .*{hub.url} cannot be reached, or fails \(RuntimeError: Illegal head"
    )
    with pytest.raises(UserError, match=message) as caught:
        checkpoint_file(NAME, token=secret)
    for hidden in (TOKEN, secret, "\n"):
        assert hidden not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_model_that_is_no_model_of_ours_is_refused(hub, folder, tmp_path):
    for name, files in (
        ("none", {"README.md": "empty"}),
        ("weights", {"config.json": (folder / "config.json").read_text()}),
        ("theirs", {"config.json": '{"model_type": "bart"}'}),
        ("text", {"config.json": "{"}),
    ):
        place = tmp_path / name
        place.mkdir()
        for file, text in files.items():
            (place / file).write_text(text)
        hub.add(f"alice/{name}", place)
    for name, message in (
        ("none", "alice/none: is no model of fairseq_mm: a file is missing"),
        ("weights", "alice/weights: is no model of fairseq_mm: a file is missing"),
        ("theirs", "must have `format` 'fairseq_mm' .*for transformers"),
        ("text", r"config\.json: not JSON"),
    ):
        with pytest.raises(UserError, match=message):
            checkpoint_file(f"alice/{name}")


def test_without_network_the_cache_is_used(hub, folder, monkeypatch):
    from huggingface_hub import constants

    hub.add(NAME, folder)
    file = checkpoint_file(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert checkpoint_file(NAME) == file
    message = r"^alice/other: no such .*has no such model, or only .* \(HF_HUB_OFFLINE is set\)\.$"
    with pytest.raises(UserError, match=message):
        checkpoint_file("alice/other")
    assert hub.requests == []


def test_commands_take_a_name_of_the_hub(hub, folder, checkpoint, run_command, tmp_path):
    hub.add(NAME, folder)
    arguments = (
        "--prompt",
        "You find a door",
        "--max-len-b",
        6,
        "--jsonl",
        "--output",
        tmp_path / "o.jsonl",
    )
    outputs = []
    for path in (checkpoint, NAME, f"{NAME}@main", f"{checkpoint}{os.pathsep}{NAME}"):
        status, _, err = run_command("tell", "--checkpoint", path, *arguments)
        assert (status, "Traceback" in err) == (0, False)
        outputs.append((tmp_path / "o.jsonl").read_text())
    assert outputs[0] == outputs[1] == outputs[2]
    status, out, err = run_command("doctor", "--checkpoint", NAME)
    assert "--arch conv_story_tiny, --task translation" in out
    status, out, err = run_command("tell", "--checkpoint", "alice/none", *arguments)
    assert status == 2
    assert err.startswith("fairseq-mm tell: alice/none: no such checkpoint or folder, and there")
    assert err.count("\n") == 1


def test_a_fresh_process_reads_the_variables_of_huggingface_hub(hub, folder, tmp_path):
    hub.add(NAME, folder)
    code = (
        "import sys\n"
        "from fairseq_mm.inference.checkpoint_files import checkpoint_file\n"
        "from fairseq_mm.errors import UserError\n"
        "try:\n"
        f"    print(checkpoint_file({NAME!r}))\n"
        "except UserError as error:\n"
        "    print(error)\n"
        "print('torch' in sys.modules, 'fairseq' in sys.modules)\n"
    )
    variables = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}

    def run(**more):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env={**variables, "HF_HUB_OFFLINE": "0", **more},
        )
        return done.stdout.splitlines()

    # a port that was free a moment ago: nothing answers there
    nobody = "http://127.0.0.1:9"
    first, light = run(HF_ENDPOINT=nobody)
    assert first.startswith(f"{NAME}: no such checkpoint or folder, and {nobody} cannot be reached")
    found, light = run(HF_ENDPOINT=hub.url)
    assert found.startswith(str(tmp_path / "home"))
    assert light == "False False"
    assert run(HF_ENDPOINT=nobody)[0] == found
    assert run(HF_ENDPOINT=nobody, HF_HUB_OFFLINE="1")[0] == found
