"""Index a folder of your own images, to search it with fairseq-mm search.

  fairseq-mm index photos --checkpoint checkpoints/vse_bow
  fairseq-mm index photos
  fairseq-mm search photos "a dog in the snow"

Embeds all images of the folder and its subfolders with an image-sentence embedding
(vse_bow, vse_gru, ...) and writes their vectors to a feature store,
FOLDER/.fairseq_mm/index.h5. Features are extracted with the network that the
checkpoint was trained on; its weights file is searched next to the checkpoint.

Run the command again to update the index: it reads new and changed images only,
and images that have vanished leave the index. --checkpoint is then not needed,
because the index records it. If a run is interrupted, run the same command again
to continue it. Delete the index to make it with another checkpoint.

Images that cannot be read are reported at the end, one line each, and are not in
the index. They are tried again in the next run. The exit status is 2 only if no
image can be read.
"""

import argparse
import sys

from fairseq_mm.cli import arguments
from fairseq_mm.cli.records import counted
from fairseq_mm.cli.run_set_up import register_quietly


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="Folder of images, with its subfolders.")
    arguments.add(
        parser,
        *("checkpoint", "weights", "output", "device", "batch_size"),
        checkpoint={"required": False, "help": "Embedding (default: the one that made the index)."},
        output={"help": "Index to write or update (default: .fairseq_mm/index.h5 in FOLDER)."},
    )


def run(args: argparse.Namespace) -> int:
    arguments.check(args)
    register_quietly()
    from fairseq_mm.inference.image_index import index_folder

    try:
        summary = index_folder(
            args.folder,
            args.checkpoint,
            weights=args.weights,
            index=args.output,
            device=args.device,
            batch_size=args.batch_size,
            show_progress=True,
        )
    except KeyboardInterrupt:
        print("\ninterrupted: the same command continues.", file=sys.stderr)
        return 130  # as a shell reports SIGINT
    for path, reason in summary.unreadable:
        # a name may contain line breaks
        shown = path if path.isprintable() else ascii(path)
        print(f"fairseq-mm index: {shown}: {reason}", file=sys.stderr)
    print(
        f"{summary.path}: {counted(summary.num_images, 'image')}, {summary.num_new:,} new, "
        f"{summary.num_changed:,} changed, {summary.num_removed:,} removed, "
        f"{len(summary.unreadable):,} unreadable."
    )
    return 0
