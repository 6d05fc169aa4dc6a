"""Uploads: one commit with the export's files alone, and errors of one line without tokens."""

import json

import pytest
import torch
from hub_server import TOKEN

import fairseq_mm
from fairseq_mm.cli.push import push_folder
from fairseq_mm.errors import UserError

NAME = "alice/story"


def test_a_pushed_model_is_loaded_by_its_name(hub, own, checkpoint):
    (own / "notes.txt").write_text("not for everybody")
    pushed = push_folder(str(own), NAME, token=TOKEN)
    assert pushed.left_out == ["notes.txt"]
    assert pushed.url == f"{hub.url}/{NAME}/commit/{pushed.commit}"
    assert not pushed.has_licence
    repository = hub.repositories[NAME]
    assert not repository.is_private
    assert list(repository.commits)[1:] == [pushed.commit]
    files = repository.commits[pushed.commit]
    assert files.pop(".gitattributes") == b""
    assert sorted(files) == pushed.files
    assert pushed.files == sorted({path.name for path in own.iterdir()} - {"notes.txt"})
    for name, content in files.items():
        if name != "README.md":
            assert content == (own / name).read_bytes()
    # the card names the model in its commands
    card = files["README.md"].decode()
    assert "OWNER/NAME" not in card
    assert f'fairseq_mm.from_pretrained("{NAME}")' in card
    weights = fairseq_mm.from_pretrained(NAME, device="cpu").models[0].state_dict()
    for name, weight in torch.load(checkpoint)["model"].items():
        if isinstance(weight, torch.Tensor) and name in weights:
            assert torch.equal(weights[name], weight)


def test_a_second_push_adds_a_commit_and_a_branch_is_created(hub, own):
    first = push_folder(str(own), NAME, token=TOKEN, private=True)
    assert hub.repositories[NAME].is_private
    (own / "README.md").write_text("---\nlicense: mit\n---\nmine\n")
    second = push_folder(str(own), NAME, token=TOKEN)
    assert second.has_licence
    third = push_folder(str(own), NAME, token=TOKEN, revision="v2")
    repository = hub.repositories[NAME]
    assert repository.is_private
    assert repository.branches == {"main": second.commit, "v2": third.commit}
    assert first.commit != second.commit
    (own / "README.md").unlink()
    assert not push_folder(str(own), "alice/bare", token=TOKEN).has_licence
    assert "README.md" not in [*hub.repositories["alice/bare"].commits.values()][-1]


def test_a_damaged_folder_is_not_uploaded(hub, own):
    config = json.loads((own / "config.json").read_text())
    config["weights"]["sha256"] = "0" * 64
    (own / "config.json").write_text(json.dumps(config))
    for path, message in (
        (own, r"model\.safetensors: cannot be read .is damaged or was changed"),
        (own / "none", r"none: cannot be read .No such file"),
        (own.parent, r"config.json: cannot be read .No such file"),
    ):
        with pytest.raises(UserError, match=message):
            push_folder(str(path), NAME, token=TOKEN)
    for name in ("story", "alice/story@v2", "a/b/c", "alice/", "alice/../x"):
        with pytest.raises(UserError, match="must be OWNER/NAME"):
            push_folder(str(own), name, token=TOKEN)
    assert hub.requests == []


@pytest.mark.parametrize(
    ("broken", "status", "message"),
    [
        ("/api/repos/create", 403, r"refuses it \(status 403\): log in .* with write access"),
        ("/api/repos/create", 500, r"cannot be reached, or fails \(HfHubHTTPError: "),
        ("/preupload/", 400, r"cannot be reached, or fails \(BadRequestError: "),
        (
            "/upload/",
            400,
            r"cannot be reached, or fails \(RuntimeError: Error while uploading 'mod",
        ),
        ("/commit/", 409, r"cannot be reached, or fails \(HfHubHTTPError: "),
    ],
)
def test_a_failed_upload_is_one_line_without_the_token(hub, own, broken, status, message):
    hub.broken[broken] = status
    with pytest.raises(UserError, match=f"^{NAME}: {hub.url} {message}") as caught:
        push_folder(str(own), NAME, token=TOKEN)
    assert TOKEN not in str(caught.value)
    assert caught.value.__suppress_context__
    hub.broken.clear()
    # nothing of it is visible on the hub
    assert all(len(repository.commits) == 1 for repository in hub.repositories.values())


def test_the_command_reports_what_it_uploads(hub, own, run_command, monkeypatch):
    (own / "notes.txt").write_text("mine")
    status, out, err = run_command("push", own, NAME)
    assert (status, out) == (2, "")
    assert err.startswith(f"fairseq-mm push: {NAME}: {hub.url} refuses it (status 401): log in (hf")
    assert err.count("\n") == 1
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    status, out, err = run_command("push", own, NAME, "--private", "--revision", "v1")
    assert status == 0
    assert out.startswith(f"{hub.url}/{NAME}/commit/")
    assert out.endswith("README.md, config.json, dict.source.txt, dict.txt, model.safetensors\n")
    assert f"{own}: not uploaded: notes.txt\n" in err
    assert f"{own}: README.md names no licence; add it" in err
    assert hub.repositories[NAME].is_private
    assert TOKEN not in out + err
