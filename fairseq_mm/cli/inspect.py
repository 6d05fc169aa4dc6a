"""Records attention, gates and likelihood of a text, word by word, as JSON and
as a page.

  fairseq-mm inspect DATA --checkpoint conv_story_fusion --html story.html
  fairseq-mm inspect told.jsonl --checkpoint transtory_full
  fairseq-mm inspect DATA --checkpoint glac_non_local --lines 1,5 --html a.html
  fairseq-mm inspect DATA --checkpoint vg_bart --gates --html gates.html

SOURCE is a data folder, or a file written by `fairseq-mm tell --jsonl`. Without
--html the JSON goes to standard output.

Stories of prompts have an object for each word: its log-probability; the
gates g1 (of the model in training) and g2 (of the pretrained model), averaged
over the feature dimension (Fan et al. 2018, Figure 8); its attention to each
word of the prompt, averaged over layers and heads; and for each layer and head
of self-attention the weight of the zero slot (an additional position whose key
and value are zeros) and the mean distance, in words, to the attended words.

Each visual story has one object. For each word, it has the log-probability and
image_weights, the attention to the five images (transtory_full, averaged over
the heads of the last layer; Li et al. 2020, Figure 5), or slice_weights, the
attention to the vectors (slices) that are computed from the image's feature
vector (glac_decoder_attention). For a model with a non-local block
(glac_non_local), the object also has, for the position of each image's grid whose
similarities vary most, the five positions that are most similar to it (Li et al.
2020, Figure 4); the page draws arrows to them.

Summaries of videos have an object for each line of the split: the weights of
the frames for each word of the transcript or of the summary, averaged over heads
and layers. With --gates they have an object for each video: its forget gate
score, the mean of the gate over the text's tokens and the feature dimension
(Yu et al. 2021, section 5.4). The page then has a histogram of the scores
(Figure 3 there), and lists the videos without a transcript (Table 6 there).
"""

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

from fairseq_mm.cli import arguments
from fairseq_mm.cli.arguments import FLAG, REPEATED, Rows, Rule
from fairseq_mm.cli.inspect_output import (
    Inspection,
    Part,
    check_line,
    read_told_lines,
    write_inspection,
)
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.inference.checkpoint import Checkpoint, LoadedModels

# words of a prompt (None without one) and of a story
Text = tuple[Optional[list[str]], list[str]]

# Kind of input -> options that not all kinds have. All options are in one parser, because only the
# checkpoint tells the kind.
OPTIONS = {
    "prompts": ("words", "layers"),
    "images": ("features", "weights", "images"),
    "videos": ("features", "layers", "gates", "hypotheses", "videos", "json", "batch_size"),
}

_RULES = (
    Rule("split", needs=("data",)),
    Rule("images", needs=("html",)),
    Rule("videos", needs=("html",), excludes=("gates",)),
    Rule("json", needs=("gates",)),
    Rule("layers", excludes=("gates",), because="scores of gates have their layers in any case"),
)

_PROMPTS: Rows = {
    "--words": (
        "Maximum number of words (default: as many as the model has positions for).",
        {"metavar": "N", "type": arguments.positive},
    ),
    "--layers": ("Also write the attention of each layer to the prompt or to the frames.", FLAG),
}
_IMAGES: Rows = {
    "--images": (
        "Folder or .tar of a store's images, for the page; may be given again.",
        {"metavar": "FOLDER", **REPEATED},
    ),
}
_VIDEOS: Rows = {
    "--gates": (
        "Write forget gate scores, of all videos or of --lines, not the attention.",
        FLAG,
    ),
    "--hypotheses": (
        "Generated summaries that take the place of the references: fairseq-generate's output, "
        "JSONL, or one a line.",
        {"metavar": "FILE"},
    ),
    "--videos": (
        "Folder or .tar of the videos, whose frames and seconds the page shows; may be given "
        "again.",
        {"metavar": "DIR", **REPEATED},
    ),
}


def _parse_numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a number, or several with commas between them, but is {text!r}"
        ) from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = "Data folder, or JSON lines of `fairseq-mm tell`."
    parser.add_argument("source", nargs="?", metavar="SOURCE", help=source)
    arguments.add(
        parser,
        *("data", "checkpoint", "split", "output", "html", "device", "features"),
        data={"help": "Data folder, instead of SOURCE."},
        checkpoint={"help": "Checkpoint, or folder with checkpoint_best.pt."},
        split={"help": "Split of the data folder (default: valid)."},
        output={"help": "Write the JSON lines to this file."},
        html={"help": "Write a page that loads nothing to this file."},
    )
    parser.add_argument(
        *("--lines", "--line"),
        type=_parse_numbers,
        metavar="N,...",
        help="Lines of the split or file, counted from 0; one of stories of prompts (default: 0).",
    )
    arguments.add_rows(parser.add_argument_group("stories of prompts"), _PROMPTS)
    images = parser.add_argument_group("visual stories")
    arguments.add(images, "weights")
    arguments.add_rows(images, _IMAGES)
    videos = parser.add_argument_group("summaries of videos")
    arguments.add_rows(videos, _VIDEOS)
    arguments.add(
        videos,
        *("json", "batch_size"),
        json={"help": "Write the statistics and the histogram of --gates as JSON to this file."},
        batch_size={
            "type": arguments.positive,
            "help": "Number of videos per batch (default: 8; 32 on a GPU).",
        },
    )


def run(args: argparse.Namespace) -> None:
    arguments.check_outputs({name: getattr(args, name) for name in ("output", "html", "json")})
    if args.source is not None and args.data is not None:
        raise UserError(f"--data {args.data}: leave out {args.source}.")
    if args.source is None and args.data is None:
        raise UserError("SOURCE: give a data folder, or what `fairseq-mm tell --jsonl` wrote.")
    if args.data is None and os.path.isdir(args.source):
        args.data = args.source
    arguments.check(args, _RULES)
    register_quietly()
    from fairseq_mm.inference.checkpoint import Checkpoint

    checkpoints = Checkpoint.open_all(args.checkpoint)
    kinds = {checkpoint.input_kind for checkpoint in checkpoints}
    # If one of several checkpoints is of videos, the inspection of videos refuses them by name.
    kind = "videos" if "videos" in kinds else checkpoints[0].input_kind
    for name in dict.fromkeys(name for names in OPTIONS.values() for name in names):
        if arguments.is_given(args, name) and name not in OPTIONS[kind]:
            raise UserError(
                f"{arguments.flag(name)}: is no option of models of {kind}, such as "
                f"{checkpoints[0].path}."
            )
    if kind == "videos":
        from fairseq_mm.cli.inspect_videos import inspect
    elif kind == "images":
        from fairseq_mm.cli.inspect_images import inspect
    else:
        inspect = _inspect_prompts
    write_inspection(args, inspect(args, checkpoints))


def _inspect_prompts(args: argparse.Namespace, checkpoints: "Sequence[Checkpoint]") -> Inspection:
    """Compute gates, attention and likelihood of a story or of a language model's text."""
    from fairseq_mm.analysis.story_inspection import inspect_story
    from fairseq_mm.data.story_text import check_encodable
    from fairseq_mm.inference.checkpoint import build_models
    from fairseq_mm.report.inspection import make_story_sections

    models = build_models(checkpoints, args.device)
    prompt, story = _read_text(args, models)
    prompt = None if models.are_language_models else prompt
    for name, words in (("prompt", prompt), ("story", story)):
        if words is not None and not words:
            raise UserError(f"the {name} has no word.")
    check_encodable(" ".join([*(prompt or ()), *story]), "prompt and story")
    inspected = inspect_story(models, prompt, story, num_words=args.words)
    of_part = "" if inspected.gates is None else ", attention of its trained part"
    number = len(inspected.words)
    subtitle = f"{models.architectures[0]}, {models.files[0]}{of_part}; {number} words"
    # The last token of the prompt is </s>; the text of a language model has no prompt.
    title = " ".join(inspected.prompt[:-1]) or " ".join(inspected.words[:12])
    records = inspected.records(layers=args.layers)
    part_of_page = Part(records, lambda: make_story_sections(inspected))
    return Inspection(title, subtitle, iter([part_of_page]))


def _read_text(args: argparse.Namespace, models: "LoadedModels") -> Text:
    from fairseq_mm.data.split_text import TARGET, read_side, read_story_split, side_path

    lines = args.lines or [0]
    if len(lines) > 1:
        raise UserError(f"--lines: one story is inspected, but {len(lines)} lines are given.")
    if not args.data:
        needed = ", with `tokens` and `prompt`."
        ((_, text),) = read_told_lines(args.source, lines, _parse_told, needed)
        return text
    split, (line,) = args.split or "valid", lines
    if models.are_language_models:
        texts = read_side(args.data, split, TARGET)
        check_line(line, len(texts), side_path(args.data, split, TARGET))
        return None, texts[line]
    stories = read_story_split(args.data, split)
    check_line(line, len(stories.stories), side_path(args.data, split, TARGET))
    return stories.prompts[line], stories.stories[line]


def _parse_told(record: Any) -> Text:
    from fairseq_mm.data.story_text import tokenize_story_text

    story, prompt = _split_words(record["tokens"]), record.get("prompt_tokens")
    if prompt is None:
        return tokenize_story_text(record.get("prompt", "")), story
    return _split_words(prompt), story


def _split_words(value: Any) -> list[str]:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return value
    return str.split(value)  # str.split raises a TypeError for other types
