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
import sys

from fairseq_mm.cli import arguments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add_rows(
        parser,
        {
            "folder": ("Model folder, made by fairseq-mm export.", {"metavar": "DIR"}),
            "repository": ("Name of the model on the hub.", {"metavar": "OWNER/NAME"}),
            "--private": ("Create the model as a private one.", arguments.FLAG),
            "--revision": (
                "Branch to upload to, which is created if it does not exist (default: main).",
                {"metavar": "NAME"},
            ),
        },
    )


def run(args: argparse.Namespace) -> None:
    from fairseq_mm.hub.push import push_folder

    pushed = push_folder(args.folder, args.repository, private=args.private, revision=args.revision)
    print(f"{pushed.url}: {', '.join(pushed.files)}")
    if pushed.left_out:
        print(f"{args.folder}: not uploaded: {', '.join(pushed.left_out)}", file=sys.stderr)
    if not pushed.has_licence:
        print(
            f"{args.folder}: README.md names no licence; add it (license: NAME) and push again",
            file=sys.stderr,
        )
