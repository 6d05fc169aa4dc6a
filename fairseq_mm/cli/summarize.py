"""Videos with transcripts to summaries, by a trained model; or transcripts alone.

  fairseq-mm summarize a.mp4 --transcript a.srt --model checkpoints/vg_bart
  fairseq-mm summarize a.mp4 b.mp4 --transcripts a.srt b.txt --model best.pt --weights resnext.pth
  fairseq-mm summarize data.jsonl --model checkpoints/vg_bart --output summaries.jsonl
  fairseq-mm summarize test.transcripts.jsonl --features features.h5 --model checkpoints/vg_bart
  fairseq-mm summarize --transcript a.srt --model checkpoints/t5
  fairseq-mm summarize --transcript a.srt --model checkpoints/bart --data data/videos

Prints a line a video, path, tab, summary, in the order of the inputs. A JSONL file has an object a
line as fairseq-mm prepare videos reads them, {"video": "a.mp4", "transcript": text or file}, or
those of a data folder's SPLIT.transcripts.jsonl, {"id": ..., "transcript": ...}. A video without a
transcript has "transcript not available". The extractor is the one that the model was trained with;
its weights file is looked for beside the checkpoint, and known by its content. Transcripts and
videos are cut as in training, and what is cut is said on stderr. A video or transcript that cannot
be read is named there too, the others are summarised all the same, and the exit status is 2.

The summaries are those of fairseq-generate: no <unk> unless --allow-unk is given (indexed OOV
tokens stand for words of the transcript, and are replaced by them), and with --sampling the draws
of a video depend on --seed and its place among the inputs alone. Text goes through --tokenizer
before it becomes the model's subwords; by default as the training data did, as far as that is
known. How2's text is lower-cased and split already, which other text is by --tokenizer words.
"""

import argparse
import os
import sys
from typing import Any

from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.errors import EXIT_STATUS, UserError
from fairseq_mm.generation.defaults import ALLOW_UNK_HELP, SAMPLING_BEAM, SEED, SUMMARIES

# lines are printed after so many videos
PIECE = 8
# middle frames of a video on the page
PAGE_IMAGES = 6


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from fairseq_mm.data.transcript_text import TOKENIZERS
    from fairseq_mm.extract.images import MAX_PIXELS
    from fairseq_mm.prepare.jsonl import KEYS

    parser.add_argument(
        "videos",
        nargs="*",
        metavar="VIDEO",
        help="video, folder (with its subfolders) or .tar of videos, or .jsonl with their "
        "transcripts; with --features an id of the store or .jsonl",
    )
    parser.add_argument(
        "--transcript",
        action="append",
        default=[],
        dest="transcripts",
        metavar="FILE",
        help="what is said in a video: .srt, .vtt, or text; once for each video, in their order",
    )
    parser.add_argument(
        "--transcripts",
        action="extend",
        nargs="+",
        metavar="FILE",
        help="the same, several at once",
    )
    parser.add_argument(
        "--model",
        required=True,
        metavar="PATH",
        help="folder with checkpoint_best.pt or else checkpoint_last.pt, or a checkpoint; several, "
        f"separated by {os.pathsep!r}, are an ensemble",
    )
    parser.add_argument(
        "--weights", metavar="FILE", help="state dict file of the extractor that made the features"
    )
    parser.add_argument(
        "--features",
        metavar="STORE",
        help="summarise items of a feature store instead of videos: those named, or all",
    )
    parser.add_argument(
        "--ids",
        choices=KEYS,
        help="what is printed of a video, and its id in --features: its file's name, the same "
        "without the ending, or its path (default: path; name in .jsonl)",
    )
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="data folder whose dictionary and subwords a --model of fairseq's own has, such as "
        "--arch bart_base; other checkpoints carry theirs",
    )
    parser.add_argument(
        "--tokenizer",
        choices=TOKENIZERS,
        help="as in fairseq-mm prepare videos: none, lower, or words (lower case, split into words "
        "and punctuation)",
    )
    search = parser.add_argument_group("search")
    search.add_argument(
        "--beam", type=int, help=f"width of the beam (default: {SUMMARIES['beam']})"
    )
    search.add_argument(
        "--max-len",
        type=int,
        metavar="N",
        help=f"longest summary in tokens, its end not counted (default: {SUMMARIES['max_len_b']})",
    )
    search.add_argument(
        "--min-len",
        type=int,
        default=SUMMARIES["min_len"],
        metavar="N",
        help="shortest summary in tokens, its end not counted (default: %(default)s)",
    )
    search.add_argument(
        "--lenpen",
        type=float,
        default=SUMMARIES["lenpen"],
        help="above 1 favours long summaries (default: %(default)s)",
    )
    search.add_argument(
        "--no-repeat-ngram",
        type=int,
        default=SUMMARIES["no_repeat_ngram_size"],
        metavar="N",
        help="no N tokens occur twice in turn; 0 allows it (default: %(default)s)",
    )
    search.add_argument("--sampling", action="store_true", help="draw the tokens instead")
    search.add_argument(
        "--topk", type=int, default=0, metavar="K", help="draw from the K most probable tokens"
    )
    search.add_argument(
        "--topp",
        type=float,
        default=1.0,
        metavar="P",
        help="draw from the most probable tokens that have together this share of the probability",
    )
    search.add_argument("--temperature", type=float, default=1.0, help="default: 1.0")
    search.add_argument(
        "--seed", type=int, default=SEED, help="seed of the draws (default: %(default)s)"
    )
    search.add_argument("--allow-unk", action="store_true", help=ALLOW_UNK_HELP)
    output = parser.add_argument_group("output")
    output.add_argument(
        "--jsonl",
        action="store_true",
        help="an object a line: id, hypothesis (the summary), score (mean log-probability of a "
        "token), transcript_tokens, transcript_tokens_cut, frames (clips that were looked at), "
        "frames_cut, extractor, checkpoint (SHA-256), options",
    )
    output.add_argument(
        "--output",
        metavar="FILE",
        help="write there instead of to the screen; .jsonl means --jsonl",
    )
    output.add_argument(
        "--html", metavar="FILE", help="a page of the summaries, with frames of the videos"
    )
    run_options = parser.add_argument_group("run")
    run_options.add_argument("--device", help="cpu, cuda, cuda:1 (default: a GPU if there is one)")
    run_options.add_argument(
        "--batch-size",
        type=int,
        metavar="N",
        help="clips that the extractor gets at a time (default: 8 on a CPU, 64 elsewhere)",
    )
    run_options.add_argument(
        "--keep-damaged",
        action="store_true",
        help="take what can be decoded of truncated and damaged videos",
    )
    run_options.add_argument(
        "--max-pixels",
        type=int,
        default=MAX_PIXELS,
        metavar="N",
        help="larger frames are refused (default: %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    _check_arguments(args)
    register_quietly()

    from fairseq_mm.cli.summarize_inputs import list_inputs
    from fairseq_mm.inference import video_summarizer
    from fairseq_mm.inference.summary_search import Search

    names = ("max_len", "min_len", "lenpen", "no_repeat_ngram", "sampling", "topk", "topp")
    names += ("allow_unk",)
    beam = SUMMARIES["beam"] if args.beam is None else args.beam
    search = Search(
        beam=SAMPLING_BEAM if args.sampling else beam,
        temperature=args.temperature,
        seed=args.seed,
        **{name: getattr(args, name) for name in names},
    )
    summarizer = video_summarizer.from_pretrained(
        args.model, weights=args.weights, data=args.data, device=args.device
    )
    summarizer.check_search(search)
    inputs = list_inputs(args)
    read = _Reader(args, summarizer, inputs)
    return _summarize(args, summarizer, search, read.inputs, read)


def _summarize(
    args: argparse.Namespace, summarizer: Any, search: Any, inputs: list[Any], read: "_Reader"
) -> int:
    from fairseq_mm.cli.summarize_output import Description, Notes, progress_bar
    from fairseq_mm.cli.tell_output import opened

    notes = Notes(summarizer)
    description = Description(args, summarizer, search)
    failed = 0
    with opened(args.output) as file, progress_bar(len(inputs)) as bar:
        for start in range(0, len(inputs), PIECE):
            found, numbers = [], []
            for number, item in enumerate(inputs[start : start + PIECE], start):
                try:
                    found.append(read(item))
                    numbers.append(number)
                except UserError as error:
                    failed += 1
                    if len(inputs) == 1:
                        raise UserError(f"{item.name}: {error}") from None
                    bar.clear()
                    print(f"fairseq-mm summarize: {item.name}: {error}", file=sys.stderr)
                bar.update()
            features = [entry.rows for entry in found] if summarizer.reads_video else None
            transcripts = [entry.transcript for entry in found]
            summaries = summarizer.summarize_features(features, transcripts, search, items=numbers)
            for entry, summary in zip(found, summaries):
                notes.add(entry)
                print(description.of_summary(entry, summary), file=file)
            file.flush()
        if failed == len(inputs):
            raise UserError(f"none of the {failed} could be read.")
    if args.html:
        description.write_page(args.html)
    for line in notes.lines():
        print(line, file=sys.stderr)
    done = f"{len(inputs) - failed} " + ("summary" if len(inputs) - failed == 1 else "summaries")
    for path in (args.output, args.html):
        if path:
            print(f"wrote {path}: {done}", file=sys.stderr)
    if failed:
        print(f"{failed} of {len(inputs)} could not be read", file=sys.stderr)
    return EXIT_STATUS if failed else 0


class _Reader:
    """Reads what the models read of an input.

    Attributes:
        inputs: as they stand on the command line; all items of a feature store if it is empty.
    """

    def __init__(self, args: argparse.Namespace, summarizer: Any, inputs: list[Any]) -> None:
        self.args = args
        self.summarizer = summarizer
        self.store: Any = None
        self.inputs = inputs
        file = f"{summarizer.files[0]} (--arch {summarizer.architectures[0]})"
        if not summarizer.reads_video:
            if args.features:
                raise UserError(f"--features: is for models of videos, but {file} reads none.")
            if any(item.video is not None for item in inputs):
                print(f"{file} reads no video: transcripts alone are summarised", file=sys.stderr)
        elif args.features:
            self._open_store()
        else:
            without = next((x for x in inputs if x.video is None and x.error is None), None)
            if without is not None:
                raise UserError(
                    f"{without.name}: has no video, which {file} reads: give it, or its features "
                    "(--features STORE)."
                )
            summarizer.extractor  # noqa: B018  one that cannot be rebuilt is named first

    def _open_store(self) -> None:
        from fairseq_mm.cli.summarize_inputs import stored_inputs
        from fairseq_mm.data.feature_store import open_features

        self.store = open_features(self.args.features.split(os.pathsep))
        self.summarizer.check_features(self.store.attributes, self.store.dim, self.store.path)
        self.inputs = stored_inputs(self.inputs, self.store)

    def __call__(self, item: Any) -> Any:
        """
        Raises:
            UserError: why it cannot be read, without its name.
        """
        from fairseq_mm.cli.summarize_output import Entry

        if item.error is not None:
            raise item.error
        if item.transcript is None and not self.summarizer.reads_video:
            raise UserError("has no transcript, and the model reads no video.")
        transcript = self.summarizer.encode_transcript(
            item.transcript, tokenizer=self.args.tokenizer
        )
        if not self.summarizer.reads_video:
            return Entry(item.name, transcript)
        if self.store is not None:
            rows, limit = self.store.read(item.name), self.summarizer.max_frames
            return Entry(item.name, transcript, rows[:limit], len(rows) > limit)
        seen = self.summarizer.read_video(
            item.video,
            batch_size=self.args.batch_size,
            keep_damaged=self.args.keep_damaged,
            max_pixels=self.args.max_pixels,
            num_images=PAGE_IMAGES if self.args.html else 0,
        )
        return Entry(item.name, transcript, seen.rows, seen.is_cut, seen.images)


def _check_arguments(args: argparse.Namespace) -> None:
    from fairseq_mm.cli.tell_output import check_folder

    if not args.videos and not args.transcripts and not args.features:
        raise UserError("no videos: give files, or transcripts (--transcript), or --features.")
    lists = [path for path in args.videos if path.lower().endswith(".jsonl")]
    if lists and args.transcripts:
        raise UserError(f"--transcript: {lists[0]} brings its own; leave one of the two out.")
    if args.features:
        if args.transcripts and not args.videos:
            raise UserError("--transcript: name the item of --features that each belongs to.")
        for name in ("weights", "keep_damaged", "batch_size"):
            if getattr(args, name):
                option = f"--{name.replace('_', '-')}"
                raise UserError(f"{option}: with --features no video is read; leave one of the "
                                "two out.")  # fmt: skip
    if args.sampling and args.beam is not None:
        raise UserError("--beam and --sampling: draws have no beam; leave one of the two out.")
    if args.batch_size is not None and args.batch_size < 1:
        raise UserError(f"--batch-size must be 1 or more, but is {args.batch_size} instead.")
    for option, path in (("--output", args.output), ("--html", args.html)):
        check_folder(option, path)
        if path and os.path.isdir(path):
            raise UserError(f"{option} {path}: is a folder; give the file's name in it.")
    if args.html and args.html == args.output:
        raise UserError("--html and --output name one file; give two.")
