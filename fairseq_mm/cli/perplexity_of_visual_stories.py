"""``fairseq-mm perplexity`` of models that tell stories of five images."""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fairseq_mm.cli.likelihood_options import card_of, chosen_lines, open_visual_stories
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.cli.likelihood_options import VisualStories
    from fairseq_mm.metrics.perplexity import LogProbability

# row -> its title, and whether ends (and separators) and unknown words are counted
ROWS = {
    "all": ("all tokens", True, True),
    "without_ends": ("without ends", False, True),
    "known_words": ("known words", False, False),
}


class Counts(NamedTuple):
    """Log2-probabilities and tokens of a split's parts, and of each sentence with its end."""

    known: "LogProbability"
    unknown: "LogProbability"
    ends: "LogProbability"
    sentences: "list[LogProbability]"


def run(args: argparse.Namespace, states: Mapping[str, dict[str, Any]]) -> None:
    """
    Args:
        args: of ``fairseq-mm perplexity``.
        states: the checkpoints.

    Raises:
        UserError: if files or options do not fit.
    """
    for option in ("words", "side"):
        if getattr(args, option) is not None:
            raise UserError(f"--{option}: models of visual stories have no such option.")
    if args.tune_temperature:
        raise UserError("--tune-temperature: is no option of models of visual stories.")
    to_score = open_visual_stories(args, states)
    split = to_score.split
    lines = chosen_lines(len(split.stories), args.stories, args.seed)
    images_of = {"own": split.visual_ids}
    if args.shuffled_images:
        images_of["shuffled"] = shuffled_images(
            split.visual_ids, split.albums, seed=args.seed, data=args.data
        )
    counts = {name: _score(to_score, lines, images_of[name], name) for name in images_of}
    result = _result_of(counts, args, to_score, lines)
    _print(result)
    if args.json:
        from fairseq_mm.cli.score_output import write_file

        options = ("split", "stories", "seed", "counting", "shuffled_images", "precision")
        files = to_score.card_files(args.data, args.split)
        result["card"] = card_of(args, files, options, to_score.device)
        write_file(args.json, json.dumps(result, indent=2) + "\n")


def shuffled_images(
    visual_ids: Sequence[str], albums: Sequence[str], *, seed: int, data: str
) -> list[str]:
    """For each line the images of another album, the same for all lines of a photo sequence.

    Albums stand in a circle, in an order drawn with the seed, and each gets the next one's photo
    sequences: the first for its first, and so on, from the beginning where they run out.

    Raises:
        UserError: if there is but one album.
    """
    import numpy as np

    sequences: dict[str, dict[str, None]] = {}
    for line, album in zip(visual_ids, albums):
        sequences.setdefault(album, {})[line] = None
    if len(sequences) < 2:
        raise UserError(
            f"--shuffled-images: the stories of {data} are of one album, and no other has "
            "images to give them."
        )
    names = list(sequences)
    order = np.random.default_rng(seed).permutation(len(names)).tolist()
    following = {names[a]: names[b] for a, b in zip(order, [*order[1:], order[0]])}
    given = {}
    for album, own in sequences.items():
        other = list(sequences[following[album]])
        for number, line in enumerate(own):
            given[album, line] = other[number % len(other)]
    return [given[album, line] for line, album in zip(visual_ids, albums)]


def _score(
    to_score: "VisualStories", lines: Sequence[int], images_of: Sequence[str], name: str
) -> Counts:
    import torch
    from tqdm import tqdm

    from fairseq_mm.data.visual_story_text import SEPARATOR
    from fairseq_mm.metrics.perplexity import LogProbability

    likelihood = to_score.likelihood
    dictionary = likelihood.dictionary
    separator, unk, eos = dictionary.index(SEPARATOR), dictionary.unk(), dictionary.eos()
    pairs = [
        (images_of[line], likelihood.encode_story(to_score.split.stories[line])) for line in lines
    ]
    # columns: known words, unknown words, separators and ends
    sums, numbers = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.long)
    sentences = []
    with tqdm(total=len(pairs), unit="story", desc=f"{name} images", disable=None) as progress:
        for batch, found in likelihood.batches(pairs):
            for number, log_probs in zip(batch, found):
                story = torch.tensor(pairs[number][1])
                log2_probs = log_probs.double() / math.log(2)
                is_end = (story == separator) | (story == eos)
                kind = (story == unk).long() + 2 * is_end.long()
                sums.index_add_(0, kind, log2_probs)
                numbers += torch.bincount(kind, minlength=3)
                lengths = torch.diff(
                    torch.flatten(is_end.nonzero()), prepend=torch.tensor([-1])
                ).tolist()
                sentences += [
                    LogProbability(float(part.sum()), len(part))
                    for part in log2_probs.split(lengths)
                ]
            progress.update(len(batch))
    parts = [LogProbability(*part) for part in zip(sums.tolist(), numbers.tolist())]
    return Counts(parts[0], parts[1], parts[2], sentences)


def _result_of(
    counts: Mapping[str, Counts],
    args: argparse.Namespace,
    to_score: "VisualStories",
    lines: list[int],
) -> dict[str, Any]:
    own = counts["own"]
    missing = to_score.likelihood.images.missing
    sequences = {to_score.split.visual_ids[line] for line in lines}
    result: dict[str, Any] = {
        "data": args.data,
        "split": args.split,
        "stories": len(lines),
        "stories_available": len(to_score.split.stories),
        "sentences": len(own.sentences),
        "words": own.known.num_tokens + own.unknown.num_tokens,
        "unknown_words": own.unknown.num_tokens,
        "ends": own.ends.num_tokens,
        "sequences": len(sequences),
        "sequences_with_missing_images": sum(
            not missing.isdisjoint(line.split("\t")) for line in sequences
        ),
    }
    figures = {name: _perplexities(found, name, args, to_score) for name, found in counts.items()}
    result["perplexities"] = figures["own"]
    if "shuffled" in figures:
        result["shuffled"] = figures["shuffled"]
        first, second = (figures[name]["all"]["perplexity"] for name in ("own", "shuffled"))
        result["ratio"] = second / first
    return result


def _perplexities(
    counts: Counts, images: str, args: argparse.Namespace, to_score: "VisualStories"
) -> dict[str, Any]:
    from fairseq_mm.metrics.perplexity import corpus_perplexity, transtory_perplexity
    from fairseq_mm.metrics.signature import signature

    is_drawn = args.stories is not None and args.stories < len(to_score.split.stories)
    models = len(to_score.files)

    def entry(
        value: Optional[float], tokens: int, ends: bool, unknown: bool, **counting: str
    ) -> dict[str, Any]:
        return {
            "perplexity": value,
            "tokens": tokens,
            "signature": signature(
                "ppl",
                **counting,
                unit="dictionary-token",
                ends="counted" if ends else "left-out",
                unk="counted" if unknown else "left-out",
                images=images if images == "own" else "of-another-album",
                models=models if models > 1 else None,
                prec=args.precision,
                seed=args.seed if is_drawn or images != "own" else None,
            ),
        }

    rows = {}
    for name, (_, ends, unknown) in ROWS.items():
        parts = [counts.known] + [counts.unknown] * unknown + [counts.ends] * ends
        tokens = sum(part.num_tokens for part in parts)
        value = corpus_perplexity(parts) if tokens else None
        rows[name] = entry(value, tokens, ends, unknown, counting="tokens")
    if args.counting == "transtory":
        tokens = sum(sentence.num_tokens for sentence in counts.sentences)
        value = transtory_perplexity(counts.sentences)
        rows["transtory"] = entry(
            value, tokens, True, True, counting="transtory", mean="sentences", free="1-a-sentence"
        )
    return rows


def _print(result: dict[str, Any]) -> None:
    words, unknown = result["words"], result["unknown_words"]
    print(
        f"{result['split']}: {result['stories']:,} of {result['stories_available']:,} stories, "
        f"{result['sentences']:,} sentences, {words:,} words, {unknown:,} of them unknown "
        f"({unknown / max(1, words):.1%}), {result['sequences']:,} photo sequences, "
        f"{result['sequences_with_missing_images']:,} with missing images"
    )
    titles = {name: title for name, (title, _, _) in ROWS.items()}
    titles["transtory"] = "transtory counting"
    for images in ("perplexities", "shuffled"):
        for name, row in result.get(images, {}).items():
            title = titles[name] + (", shuffled" if images == "shuffled" else "")
            shown = "-" if row["perplexity"] is None else f"{row['perplexity']:.2f}"
            print(
                f"perplexity, {title:<29} {shown:>10} {row['tokens']:>10,} tokens  "
                f"{row['signature']}"
            )
    if "ratio" in result:
        print(f"under other albums' images / under their own: {result['ratio']:.4f}")
