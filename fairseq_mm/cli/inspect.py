"""Attention, gates and likelihood of a story of a prompt, or of five images, or of a video's
summary, as data and as an image.

fairseq-mm inspect DATA --checkpoint fusion --split valid --line 3 --html story.html
fairseq-mm inspect "[ WP ] A prompt" --checkpoint fusion --story "A story ." --jsonl story.jsonl
fairseq-mm inspect stories.jsonl --checkpoint checkpoint.pt --line 0 --html story.html
fairseq-mm inspect a.jpg b.jpg c.jpg d.jpg e.jpg --checkpoint transtory_full --html story.html
fairseq-mm inspect DATA --checkpoint glac_non_local --lines 1,5 --images jpg --html stories.html
fairseq-mm inspect DATA --checkpoint vg_bart --split test --gates --json a.json --html a.html
fairseq-mm inspect DATA --checkpoint vg_bart --split test --lines 0,7 --videos mp4 --html a.html

SOURCE is a data folder, a file that `fairseq-mm tell --jsonl` wrote, five images, or a prompt's
text, with --story or --story-file (of a language model: the text itself). Lines are counted from 0,
as fairseq counts them. Text that is not tokenised is tokenised as WritingPrompts is; that of
images as `fairseq-mm prepare stories` does it.

Of a story of a prompt the JSONL has an object a word: its log-probability; the gates g1 (of the
model in training) and g2 (of the pretrained model), means over channels where the word is written
(Fan et al. 2018, Figure 8); its attention to each word of the prompt, mean over layers and heads;
of each layer and head of self-attention the share of the slot that holds nothing, and how many
words back, on average, the rest lies. It goes to stdout where neither --jsonl nor --html is given.

Visual stories are those of a data folder's lines; with --generate, or of images without --story,
what the model generates (with a beam of 5). Their five sentences have <sent> or line breaks between
them; a missing image is -. The JSONL has an object a story, and in it an object a word, the ends of
sentences (<sent>, </s>) included: its log-probability and, where it is written, image_weights of
the five images (transtory_full, mean over heads in the last layer; Li et al. 2020, Figure 5) or
slice_weights of the slices of its image's vector (glac_decoder_attention); and of a model with a
non-local block (glac_non_local) positions: of each image's grid a position i, its row and column
counted from 0, and the five with the greatest f(x_i, x_j) (Figure 4), which the page draws as
arrows. Other models of visual stories have nothing to show.

Of models that summarise videos, --gates gives each video's forget gate score, the mean of the gate
over the text's positions and over its channels (Yu et al. 2021, section 5.4): the JSONL has an
object a video with id, item (its line), transcript_available, score and that of each layer; --json
has their statistics and histogram (Figure 3), and those of the videos whose transcript is not
available apart (Table 6), with their summaries of --hypotheses and references. Without --gates the
JSONL has an object a line of --lines, with the weights of the frames for each word, means over
heads and layers (with --layers also each layer's): of the transcript where the fusion is in the
encoder, of the summary where it is in the decoder, and of hierarchical attention and MFFG, which
have video_share beside, a word's weight of the video. The summary is the reference, or that of
--hypotheses. The page draws words by frames, in seconds where the store knows its frame rate or
--videos are given.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fairseq_mm.cli import arguments, inspect_images, inspect_videos
from fairseq_mm.cli.arguments import positive
from fairseq_mm.cli.likelihood import generates_visual_stories
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.analysis.story_inspection import Inspection
    from fairseq_mm.inference.loading import LoadedModels

SIDES = ("wp_source", "wp_target")


class Text(NamedTuple):
    """Words of a prompt (None where there is none) and of a story."""

    prompt: Optional[list[str]]
    story: list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        nargs="*",
        metavar="SOURCE",
        help="data folder, JSONL of tell, prompt, or five images",
    )
    parser.add_argument("--data", metavar="DIR", help="a data folder, too, instead of SOURCE")
    arguments.add(parser, "checkpoint")
    parser.add_argument("--split", help="of a data folder (default: valid)")
    parser.add_argument(
        *("--line", "--lines"),
        type=_numbers,
        metavar="N",
        help="of the split or file, from 0; of visual stories and of videos several, with "
        "commas between them (default: 0)",
    )
    parser.add_argument(
        "--side",
        choices=SIDES,
        help="of the split, for a language model (default: wp_target)",
    )
    story = parser.add_mutually_exclusive_group()
    story.add_argument("--story", metavar="TEXT", help="of the prompt or the images")
    story.add_argument("--story-file", metavar="FILE", help="a file with that text")
    parser.add_argument(
        "--words",
        type=positive,
        metavar="N",
        help="only the first N words (default: as many as the model has positions for)",
    )
    parser.add_argument(
        "--part",
        choices=("trained", "pretrained"),
        help="of a fusion model, whose attention is shown (default: trained)",
    )
    parser.add_argument(
        "--layers",
        action="store_true",
        help="also the attention to the prompt, or to the frames, of each layer",
    )
    parser.add_argument("--jsonl", metavar="FILE", help="write the data")
    parser.add_argument("--html", metavar="FILE", help="write the image: one page, by itself")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 (default: a GPU where there is one)")
    inspect_images.add_arguments(parser)
    inspect_videos.add_arguments(parser)


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a number, or several with commas between them, but is {text!r}"
        ) from None


def run(args: argparse.Namespace) -> None:
    outputs: dict[Path, str] = {}
    for option, path in (("--jsonl", args.jsonl), ("--html", args.html), ("--json", args.json)):
        if not path:
            continue
        if not Path(path).absolute().parent.is_dir():
            raise UserError(f"{option} {path}: its folder does not exist.")
        other = outputs.setdefault(Path(path).resolve(), option)
        if other != option:
            raise UserError(f"{path}: {other} and {option} must be different files.")
    if args.data is not None:
        if args.source:
            raise UserError(f"--data and {args.source[0]}: leave one of the two out.")
        if not Path(args.data).is_dir():
            raise UserError(f"--data {args.data}: is no folder.")
        args.source = [args.data]
    register_quietly()
    from fairseq_mm.inference.loading import load_states, task_class_of

    states = load_states(args.checkpoint)
    if any(task_class_of(state).input_kind == "videos" for state in states.values()):
        inspect_videos.run(args, states)
        return
    of_videos = inspect_videos.given_options(args)
    if of_videos:
        raise UserError(
            f"{of_videos[0]}: is of models that summarise videos, which {next(iter(states))} does "
            "not."
        )
    if any(map(generates_visual_stories, states.values())):
        inspect_images.run(args, states)
    else:
        _run(args, states)


def _run(args: argparse.Namespace, states: dict[str, dict[str, Any]]) -> None:
    from fairseq_mm.analysis.story_inspection import inspect_story
    from fairseq_mm.cli.score_output import write_file
    from fairseq_mm.inference.loading import load_models

    of_images = inspect_images.given_options(args)
    if of_images:
        raise UserError(
            f"{of_images[0]}: is of models of visual stories, which {next(iter(states))} is not."
        )
    if len(args.source) != 1:
        raise UserError(
            "SOURCE: give a data folder, a file or a prompt's text, but not "
            f"{len(args.source) or 'none'}."
        )
    models = load_models(args.checkpoint, device=args.device, states=states)
    text = _text_of(args, args.source[0], models)
    inspection = inspect_story(
        models, text.prompt, text.story, num_words=args.words, part=args.part or "trained"
    )
    if args.html:
        write_file(args.html, _page(inspection, models, args))
        print(f"wrote {args.html}", file=sys.stderr)
    if args.jsonl or not args.html:
        lines = [
            json.dumps(entry, ensure_ascii=False) + "\n"
            for entry in word_entries(inspection, layers=args.layers)
        ]
        if args.jsonl:
            write_file(args.jsonl, "".join(lines))
            print(f"wrote {args.jsonl}", file=sys.stderr)
        else:
            print("".join(lines), end="")


def _text_of(args: argparse.Namespace, given_source: str, models: "LoadedModels") -> Text:
    from fairseq_mm.data.story_text import check_encodable

    source = Path(given_source)
    try:
        is_path = source.exists()
    except (OSError, ValueError):  # a prompt may be longer than a file's name is allowed to be
        is_path = False
    given = args.story is not None or args.story_file is not None
    if is_path and given:
        raise UserError(f"{given_source}: --story and --story-file go with a prompt's text.")
    if is_path:
        lines = args.line or [0]
        if len(lines) > 1:
            raise UserError(f"--line: one story is inspected, but {len(lines)} lines are given.")
        if source.is_dir():
            text = _of_folder(args, given_source, lines[0], models)
        else:
            text = _of_generated(given_source, lines[0])
    else:
        text = _of_command_line(args, given_source, models, given)
    if models.are_language_models:
        text = text._replace(prompt=None)
    elif not text.prompt:
        raise UserError("the prompt has no word.")
    if not text.story:
        raise UserError("the story has no word.")
    check_encodable(" ".join([*(text.prompt or ()), *text.story]), "prompt and story")
    return text


def _of_folder(args: argparse.Namespace, folder: str, line: int, models: "LoadedModels") -> Text:
    from fairseq_mm.data.story_split import read_side, read_story_split, side_path

    split, side = args.split or "valid", args.side or SIDES[1]
    if models.are_language_models:
        texts = read_side(folder, split, side)
        _check_line(line, len(texts), side_path(folder, split, side))
        return Text(None, texts[line])
    stories = read_story_split(folder, split)
    _check_line(line, len(stories.stories), side_path(folder, split, SIDES[1]))
    return Text(stories.prompts[line], stories.stories[line])


def _check_line(line: int, total: int, path: Any) -> None:
    if not 0 <= line < total:
        raise UserError(f"--line must be from 0 to {total - 1} ({path}), but is {line} instead.")


def _of_generated(path: str, line: int) -> Text:
    """A line of what ``fairseq-mm tell`` wrote."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: must be UTF-8 text, but is not ({error}).") from None
    lines = [text for text in lines if text.strip()]
    _check_line(line, len(lines), path)
    try:
        entry = json.loads(lines[line])
        story = _words(entry["tokens"])
        prompt = entry.get("prompt_tokens")
        return Text(
            _tokenized(entry.get("prompt", "")) if prompt is None else _words(prompt), story
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            f"{path}:{line + 1}: must be a line of `fairseq-mm tell --jsonl`, with "
            "`tokens` and `prompt`."
        ) from None


def _words(value: Any) -> list[str]:
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return value
    return str.split(value)


def _tokenized(text: str) -> list[str]:
    from fairseq_mm.data.story_text import tokenize_story_text

    return tokenize_story_text(text)


def _of_command_line(
    args: argparse.Namespace, source: str, models: "LoadedModels", given: bool
) -> Text:
    if models.are_language_models:
        if given:
            raise UserError(
                f"{models.files[0]}: is a language model, which reads no prompt: give the text "
                "itself as SOURCE."
            )
        return Text(None, _tokenized(source))
    if not given:
        raise UserError(
            f"{source[:60]!r} is no file or folder; a prompt's text needs --story or --story-file."
        )
    story = args.story
    if story is None:
        try:
            story = Path(args.story_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"--story-file {args.story_file}: cannot be read ({error}).") from None
    return Text(_tokenized(source), _tokenized(story))


def _rounded(value: Any) -> Optional[float]:
    return None if math.isnan(value) else round(float(value), 6)


def word_entries(inspection: "Inspection", *, layers: bool) -> list[dict[str, Any]]:
    """An object a word, see the module's docstring."""
    entries = []
    mean = inspection.prompt_attention
    for t, word in enumerate(inspection.words):
        entry: dict[str, Any] = {
            "position": t,
            "word": word,
            "known": inspection.is_known[t],
            "log_prob": _rounded(inspection.log_probs[t]),
        }
        if inspection.gates is not None:
            g1, g2 = inspection.gates[:, t]
            entry["gates"] = {"trained": _rounded(g1), "pretrained": _rounded(g2)}
        if mean is not None:
            entry["prompt_attention"] = [
                [source, _rounded(weight)] for source, weight in zip(inspection.prompt, mean[t])
            ]
            if layers:
                entry["prompt_attention_layers"] = [
                    {"layer": layer, "weights": [_rounded(x) for x in weights[:, t].mean(0)]}
                    for layer, weights in inspection.source.items()
                ]
        if inspection.past:
            entry["self_attention"] = [
                {
                    "layer": past.layer,
                    "head": head,
                    "stride": past.strides[head],
                    "zero": _rounded(past.zero[head, t]),
                    "distance": _rounded(past.distance[head, t]),
                }
                for past in inspection.past
                for head in range(len(past.zero))
            ]
        entries.append(entry)
    return entries


def _page(inspection: "Inspection", models: "LoadedModels", args: argparse.Namespace) -> str:
    import numpy as np

    from fairseq_mm.report.html_page import render_page
    from fairseq_mm.report.story_sections import (
        gates_section,
        likelihood_section,
        past_section,
        prompt_section,
    )

    words, is_known = inspection.words, inspection.is_known
    sections = []
    if inspection.gates is not None:
        sections.append(gates_section(words, is_known, inspection.gates))
    sections.append(likelihood_section(words, is_known, inspection.log_probs))
    mean = inspection.prompt_attention
    if mean is not None:
        sections.append(prompt_section(words, inspection.prompt, mean))
    rows = []
    for past in inspection.past:
        for head in range(len(past.zero)):
            far = past.distance[head][~np.isnan(past.distance[head])]
            rows.append(
                {
                    "layer": past.layer,
                    "head": head,
                    "stride": past.strides[head],
                    "zero": float(past.zero[head].mean()),
                    "distance": float(far.mean()) if len(far) else None,
                }
            )
    if rows:
        sections.append(past_section(rows))
    title = " ".join(inspection.prompt[:-1]) or " ".join(words[:12])
    part = (
        f", attention of its {args.part or 'trained'} part" if inspection.gates is not None else ""
    )
    subtitle = f"{models.architectures[0]}, {models.files[0]}{part}; {len(words)} words"
    return render_page(title, sections, subtitle=subtitle)
