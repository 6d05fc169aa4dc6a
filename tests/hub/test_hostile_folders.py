"""Folders from anybody: what is wrong is named in one line, and nothing outside is read or run."""

import hashlib
import json
import os
import shutil
import struct
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from fairseq_mm.data.model_folder import read_model_folder
from fairseq_mm.errors import UserError
from fairseq_mm.inference.checkpoint import Checkpoint, load_models

DIGEST = "0" * 64


def change(folder, *names, to, **others):
    """Sets a field of ``config.json``, named by its path, and further fields of the top level."""
    config = json.loads((folder / "config.json").read_text())
    place = config
    for name in names[:-1]:
        place = place[name]
    if to is None and names[-1] in place and place[names[-1]] is not None:
        del place[names[-1]]
    else:
        place[names[-1]] = to
    config.update(others)
    (folder / "config.json").write_text(json.dumps(config))


def replace_weights(folder, content):
    """Writes other weights, with a record that fits them."""
    path = folder / "model.safetensors"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        save_file(content, path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    change(folder, "weights", "sha256", to=digest)
    change(folder, "weights", "bytes", to=path.stat().st_size)


def refusal(folder):
    with pytest.raises(UserError) as caught:
        load_models(folder, device="cpu")
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 1000
    return text


@pytest.mark.parametrize(
    ("names", "value", "message"),
    [
        (("format",), "bart", "must have `format` 'fairseq_mm'"),
        (("format_version",), 2, "must have `format` 'fairseq_mm' and `format_version` 1; update"),
        (
            ("architecture",),
            7,
            "`architecture` must be a string of at most 200 characters, but is 7",
        ),
        (("task_state",), "x", "`task_state` must be an object, but is 'x'"),
        (("training", "num_updates"), -1, "`training.num_updates` must be a number of 0 or more"),
        (("extractor",), {"extractor": "x"}, "was trained with another `extractor` than config"),
        (("feature_dim",), True, "`feature_dim` must be a number of 0 or more, but is True"),
        (("feature_dim",), 10**12, "was trained with another `feature_dim` than config"),
        (("weights", "sha256"), DIGEST, "is damaged or was changed"),
        (("weights", "shared"), {"a": 7}, "`weights.shared` must be an object of strings"),
        (("weights", "shared"), {"a": "b"}, "model.safetensors: cannot be read (KeyError: 'b'"),
        (("files",), ["dict.txt"], "`files` must be an object of at most 20 plain file names"),
        (("files",), {"dict.txt": DIGEST}, "dict.txt: cannot be read (is damaged or was changed"),
        (("files",), {"none.txt": DIGEST}, "none.txt: cannot be read"),
        (("files",), {f"{i}.txt": DIGEST for i in range(30)}, "of at most 20 plain file names"),
        *(
            (("files",), {name: DIGEST}, "`files` must be an object of at most 20 plain file names")
            for name in (
                *("../own/dict.txt", "/etc/passwd", "a/b", "..", ".", "", "a\0", "config.json"),
                *("model.safetensors", "README.md", ".hidden", "x" * 200, "a\n"),
            )
        ),
        # options are those of a checkpoint
        (
            ("model_options", "encoder_layers"),
            "__import__('os')",
            "--encoder-layers must be a list",
        ),
        (("model_options", "encoder_embed_dim"), "x", "(x) and --decoder-embed-dim ("),
        (
            ("model_options", "decoder_out_embed_dim"),
            9,
            "its weights do not fit --arch conv_story_t",
        ),
        (("model_options", "dropout"), float("nan"), "`model_options.dropout` must be plain JSON"),
        *(
            (("task_options", "data"), path, "`task_options` must not name paths outside of the fo")
            for path in ("/etc", "../x", "a:/b", "~/x", "a/../../b", "..", ["/x"], {"a": "../x"})
        ),
        (("task_state",), {"x": "/etc/passwd"}, "`task_state` must not name paths outside"),
        (
            ("task_state",),
            {"max_source_positions": "7"},
            "`max_source_positions` must be like 1024",
        ),
    ],
)
def test_a_wrong_config_is_named_in_one_line(own, names, value, message):
    change(own, *names, to=value)
    assert message in refusal(own)


def test_text_that_is_no_config_is_refused(own):
    for text, message in (
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("{" * 3, "not JSON"),
        ('"text"', "config.json: cannot be read"),
        ('{"model_type": "bart"}', "use fairseq-mm convert for transformers"),
        ('{"format": "fairseq_mm", "format_version": ' + "9" * 5000 + "}", "not JSON"),
        ("\xff", "must be UTF-8 text"),
    ):
        (own / "config.json").write_bytes(text.encode("latin1"))
        assert message in refusal(own)
    with (own / "config.json").open("wb") as file:
        file.truncate(1 << 40)  # a file of zeros that takes no space
    assert "config.json: cannot be read (must be a file of at most 16 MiB" in refusal(own)
    (own / "config.json").unlink()
    assert "config.json: cannot be read (No such file or directory)" in refusal(own)


@pytest.mark.parametrize("place", [0, 8, 100, -1])
def test_a_flipped_byte_of_the_weights_is_refused(own, place):
    path = own / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    assert "model.safetensors: cannot be read (is damaged or was changed" in refusal(own)


def test_weights_of_another_model_are_refused(own):
    weights = load_file(own / "model.safetensors")
    first = next(name for name, x in weights.items() if x.dim() == 2)
    for changed, message in (
        ({**weights, "extra": torch.ones(2)}, "do not fit --arch conv_story_tiny: .*extra"),
        ({x: weights[x] for x in weights if x != first}, "do not fit --arch conv_story_tiny"),
        ({**weights, first: torch.ones(2, 2)}, "do not fit --arch conv_story_tiny"),
        ({**weights, "data_version._extra_state": torch.ones(3)}, "of the training data cannot"),
        ({"a": torch.ones(1)}, "carries no dictionary|far larger|do not fit|no model"),
    ):
        replace_weights(own, changed)
        with pytest.raises(UserError, match=message):
            load_models(own, device="cpu")
        refusal(own)


def header(content, *, size=None):
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 7,
        header({}, size=2**63),
        header({}, size=1 << 30),
        header(b"[" * 1000),
        header({"a": {"dtype": "F32", "shape": [10**18, 10**18], "data_offsets": [0, 4]}}),
        header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}) + b"\0" * 4,
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 10**15]}}),
        header(
            {
                "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
            }
        )
        + b"\0" * 4,
        b"PK\3\4" + b"\0" * 100,
    ],
)
def test_files_that_are_no_safetensors_are_refused(own, content):
    replace_weights(own, content)
    assert "model.safetensors: cannot be read (" in refusal(own)


def test_a_large_header_is_not_parsed(own):
    entry = b'"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},'
    bomb = b"{" + b"".join(entry % i for i in range(400_000)) + b'"__metadata__":{}}'
    assert len(bomb) > 1 << 24
    replace_weights(own, header(bomb))
    assert "its header must have at most 16 MiB" in refusal(own)


def test_links_that_lead_out_of_the_folder_are_refused(own, tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    for name in ("config.json", "model.safetensors", "dict.txt", "notes.txt"):
        path = own / name
        outside = secret / name
        if path.exists():
            shutil.move(path, outside)
        else:
            outside.write_text("secret")
        path.symlink_to(outside)
        text = refusal(own)
        assert f"{name}: is a link that leads out of the folder; copy the file." in text
        path.unlink()
        if name != "notes.txt":
            shutil.move(outside, path)
    (own / "more").symlink_to("/")
    assert "more: is a link that leads out of the folder" in refusal(own)
    (own / "more").unlink()
    # a link to a file of the folder, and the folder itself by a link, are harmless
    os.rename(own / "dict.txt", own / "words.txt")
    (own / "dict.txt").symlink_to("words.txt")
    (tmp_path / "link").symlink_to(own)
    assert load_models(tmp_path / "link", device="cpu")


def test_links_of_a_cache_are_followed_to_its_files_alone(own, tmp_path):
    store = tmp_path / "hub" / "models--alice--story"
    snapshot = store / "snapshots" / "abc"
    (store / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in own.iterdir():
        shutil.copy(path, store / "blobs" / f"{path.name}.1")
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}.1")
    assert load_models(snapshot, device="cpu")
    outside = tmp_path / "outside"
    shutil.move(store / "blobs" / "dict.txt.1", outside)
    (store / "blobs" / "dict.txt.1").symlink_to(outside)
    assert "dict.txt: is a link that leads out of the folder" in refusal(snapshot)


def test_devices_and_pipes_are_not_opened(own):
    for name in ("dict.txt", "config.json", "model.safetensors"):
        os.rename(own / name, own / "kept")
        os.mkfifo(own / name)
        if name == "model.safetensors":
            # no folder with weights: nothing is taken for a checkpoint
            assert "nor model.safetensors" in refusal(own)
            with pytest.raises(UserError, match="must be a file of at most"):
                read_model_folder(str(own))
        else:
            assert f"{name}: cannot be read (must be a file of at most" in refusal(own)
        (own / name).unlink()
        os.rename(own / "kept", own / name)


def test_a_plugin_is_named_and_not_imported(own, tmp_path, monkeypatch):
    package = tmp_path / "their_plugin"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    change(own, "architecture", to="their_arch", plugin="their_plugin")
    text = refusal(own)
    assert "--arch their_arch (--task translation) is not known: load its plugin" in text
    assert "trained with --user-dir 'their_plugin'." in text
    assert "their_plugin" not in sys.modules
    change(own, "plugin", to="os")
    assert "trained with --user-dir 'os'" in refusal(own)


def test_a_folder_of_a_plugin_names_it(checkpoint, tmp_path, monkeypatch):
    from fairseq.models import ARCH_MODEL_REGISTRY

    from fairseq_mm.hub.export import export_checkpoint

    opened = Checkpoint.open(checkpoint)
    theirs = type("Theirs", (ARCH_MODEL_REGISTRY[opened.arch],), {"__module__": "their.models"})
    with monkeypatch.context() as patch:
        patch.setitem(ARCH_MODEL_REGISTRY, opened.arch, theirs)
        export_checkpoint(opened, str(tmp_path / "out"))
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["plugin"] == "their"
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| package that defines it | `their` |" in card
    assert "Load the package that defines the model first" in card


@pytest.mark.parametrize(
    "arguments",
    [
        ("tell", "--prompt", "You", "--checkpoint"),
        ("generate", os.devnull, "--checkpoint"),
        ("export",),
        ("rank", "data", "--checkpoint"),
    ],
)
def test_commands_end_with_status_2_and_one_line(own, run_command, tmp_path, arguments):
    change(own, "weights", "sha256", to=DIGEST)
    more = [tmp_path / "x"] if arguments == ("export",) else []
    status, out, err = run_command(*arguments, own, *more)
    assert (status, out) == (2, "")
    assert "is damaged or was changed" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "x").exists()
