"""Uploads a model folder to the Hugging Face hub.

  fairseq-mm push DIR alice/captioner
  fairseq-mm push DIR alice/captioner --private --revision v2

DIR is a folder of fairseq-mm export, which is checked before the upload. The model
is created if it does not exist. Only the files of the export are uploaded, in one
commit. In the uploaded model card, the model's name replaces OWNER/NAME.

Afterwards the model is used by its name: --checkpoint alice/captioner, or
--checkpoint alice/captioner@v2 for a branch, tag or commit.

huggingface_hub finds the access token: log in with hf auth login, or set the
variable HF_TOKEN. The token is never printed.
"""

import argparse
import os
import sys
from typing import Any, NamedTuple, Optional

from fairseq_mm.cli import arguments
from fairseq_mm.data.input_files import decoded, read_bytes
from fairseq_mm.data.model_folder import (
    CARD_FILE,
    CONFIG_FILE,
    PLACEHOLDER,
    WEIGHTS_FILE,
    read_model_folder,
)
from fairseq_mm.errors import file_errors
from fairseq_mm.inference.checkpoint_files import (
    check_token,
    import_hub,
    named_hub_errors,
    parse_repository,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    rows: arguments.Rows = {
        "folder": ("Model folder, made by fairseq-mm export.", {"metavar": "DIR"}),
        "repository": ("Name of the model on the hub.", {"metavar": "OWNER/NAME"}),
        "--private": ("Create the model as a private one.", arguments.FLAG),
        "--revision": ("Branch to upload to, if needed a new one.", {"metavar": "NAME"}),
    }
    arguments.add_rows(parser, rows)


def run(args: argparse.Namespace) -> None:
    pushed = push_folder(args.folder, args.repository, private=args.private, revision=args.revision)
    print(f"{pushed.url}: {', '.join(pushed.files)}")
    if pushed.left_out:
        print(f"{args.folder}: not uploaded: {', '.join(pushed.left_out)}", file=sys.stderr)
    if not pushed.has_licence:
        print(
            f"{args.folder}: README.md names no licence; add it (license: NAME) and push again",
            file=sys.stderr,
        )


class PushedModel(NamedTuple):
    """Result of an upload: address and hash of the commit, files that were uploaded and left out,
    and True if the model card names a licence."""

    url: str
    commit: str
    files: list[str]
    left_out: list[str]
    has_licence: bool


def push_folder(
    folder: str,
    repository: str,
    *,
    private: bool = False,
    revision: Optional[str] = None,
    token: Optional[str] = None,
) -> PushedModel:
    """Upload a model folder in one commit; the model is created on the hub if it does not exist.

    Only files that :func:`.export_checkpoint` writes are uploaded. In the model card, the model's
    name replaces ``OWNER/NAME``.

    Args:
        folder: Model folder; the same checks as for loading are made before the upload.
        repository: Name of the model, ``OWNER/NAME``.
        private: True to create a private model; an existing model stays as it is.
        revision: Branch to commit to, created if it does not exist (default: main).
        token: Access token (default: the token that huggingface_hub finds).
    """
    parse_repository(repository)
    check_token(token)
    hub: Any = import_hub("fairseq-mm push")
    with file_errors(folder):
        others = set(os.listdir(folder))
    config = read_model_folder(folder).config
    card, path = None, os.path.join(folder, CARD_FILE)
    if os.path.isfile(path):
        card = decoded(read_bytes(path), path).replace(PLACEHOLDER, repository)
    names = [CONFIG_FILE, *config["files"], WEIGHTS_FILE]
    contents: dict[str, Any] = {name: os.path.join(folder, name) for name in names}
    if card is not None:
        contents[CARD_FILE] = card.encode()
    with named_hub_errors(repository, token):
        api = hub.HfApi(token=token, library_name="fairseq_mm")
        api.create_repo(repository, private=private or None, exist_ok=True)
        if revision is not None:
            api.create_branch(repository, branch=revision, exist_ok=True)
        commit = api.create_commit(
            repository,
            [
                hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=content)
                for name, content in contents.items()
            ],
            commit_message=f"Upload {config['architecture']}",
            revision=revision,
        )
    # the hub reads the licence from the fields between the first two lines of dashes
    fields = card.split("---")[1] if card is not None and card.startswith("---") else ""
    has_licence = any(line.startswith("license:") for line in fields.splitlines())
    return PushedModel(
        str(commit.commit_url),
        str(commit.oid),
        sorted(contents),
        sorted(others - set(contents)),
        has_licence,
    )
