"""Computes the perplexity of a split's texts under a model or an ensemble, and
the best temperature of the softmax.

  fairseq-mm perplexity data-bin/flickr8k --checkpoint checkpoints/m_rnn
  fairseq-mm perplexity data-bin/wp --checkpoint a.pt:b.pt --tune-temperature
  fairseq-mm perplexity data-bin/wp --checkpoint lm/checkpoint_best.pt
  fairseq-mm perplexity data-bin/vist --checkpoint checkpoints/glac \\
      --counting transtory --shuffled-images --seed 1

The command prints three perplexities: of all tokens, as fairseq-validate prints
it; without the ends of texts and sentences; and of known words alone.
docs/metrics.md defines them, the countings and the temperatures.
"""

import argparse
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fairseq_mm.cli import arguments, likelihood
from fairseq_mm.cli.arguments import FLAG, POSITIVE, Rows
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.data.output_file import write_file
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.metrics.perplexity import LogProbability
    from fairseq_mm.retrieval.word_likelihood import TemperatureSums

OPTIONS: likelihood.Options = {
    "captions": {"features": None},
    "summaries": {"features": None},
    "prompts": {"words": None, "tune_temperature": False},
    "albums": {
        "features": None,
        "counting": "tokens",
        "shuffled_images": False,
        "tune_temperature": False,
    },
}
# row -> its title, and whether ends and unknown words are counted
ROWS = {
    "all": ("all tokens", True, True),
    "without_ends": ("without ends", False, True),
    "known_words": ("known words", False, False),
}
_OUTPUT: Rows = {
    "--tune-temperature": ("Find the best temperature of the softmax.", FLAG),
    "--top-k": (
        "The k of top-k sampling, for its best temperature (default: 10).",
        {**POSITIVE, "default": 10},
    ),
}
_STORIES: Rows = {
    "--counting": (
        "With transtory, also count as the released code of Transtory-XL (default: tokens).",
        {"choices": ("tokens", "transtory")},
    ),
    "--shuffled-images": ("Also score under the images of another album (--seed).", FLAG),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    likelihood.add_scoring_arguments(parser)
    arguments.add(parser, "json")
    arguments.add_numbers(parser, stories="Number of texts, sampled with --seed (default: all).")
    arguments.add_rows(parser, _OUTPUT)
    prompts = parser.add_argument_group("stories of prompts, and language models")
    arguments.add_numbers(prompts, words=likelihood.WORDS_HELP)
    arguments.add_rows(parser.add_argument_group("visual stories"), _STORIES)


class Counts(NamedTuple):
    """Sums of log2-probabilities of tokens, with the numbers of tokens.

    ``unknown`` words are not in the dictionary, and scored as ``<unk>``; ``ends`` are ends of texts
    and separators of sentences; ``sentences`` has a sum for each sentence with its end;
    ``truncated`` is the number of texts whose last words were not scored.
    """

    known: "LogProbability"
    unknown: "LogProbability"
    ends: "LogProbability"
    sentences: "list[LogProbability]"
    truncated: int


def run(args: argparse.Namespace) -> None:
    arguments.check_outputs({"json": args.json})
    register_quietly()
    from fairseq_mm.cli.split_texts import TEXTS, build_card, sample_lines
    from fairseq_mm.inference.checkpoint import Checkpoint
    from fairseq_mm.metrics.perplexity import GRID
    from fairseq_mm.retrieval.word_likelihood import TemperatureSums

    checkpoints = Checkpoint.open_all(args.checkpoint, data=args.data)
    likelihood.resolve_options(args, OPTIONS, checkpoints)
    texts = TEXTS[checkpoints[0].kind](args, checkpoints)
    lines = sample_lines(len(texts.texts), args.stories, args.seed)
    sums = None
    if args.tune_temperature:
        scorer = texts.likelihood
        # The k most probable tokens of an ensemble change with the temperature.
        top_k = args.top_k if len(scorer.models) == 1 else None
        sums = TemperatureSums(scorer.models, texts.dictionary, GRID, top_k=top_k)
    counts = _score(texts, lines, [texts.condition(line) for line in lines], sums)
    described = texts.describe(lines, counts)
    images = "own" if "sequences" in described else None
    result: dict[str, Any] = {
        "data": args.data,
        "split": args.split,
        "texts": len(lines),
        "texts_available": len(texts.texts),
        "words": counts.known.num_tokens + counts.unknown.num_tokens,
        "unknown_words": counts.unknown.num_tokens,
        "ends": counts.ends.num_tokens,
        **described,
        "perplexities": _perplexities(counts, images, texts, lines, args),
    }
    if args.shuffled_images:
        shuffled = shuffle_images(texts.visual_ids, texts.names, seed=args.seed)
        # The temperature is tuned with the stories' own images only, so no sums are passed.
        conditions = [texts.first[shuffled[line]] for line in lines]
        other = _score(texts, lines, conditions, None)
        result["shuffled"] = _perplexities(other, "of-another-album", texts, lines, args)
        result["ratio"] = (
            result["shuffled"]["all"]["perplexity"] / result["perplexities"]["all"]["perplexity"]
        )
    if sums is not None:
        result["temperatures"] = _find_temperatures(sums, result["perplexities"]["all"]["tokens"])
    _print(result)
    if args.json:
        names = ("words", "stories", "counting", "shuffled_images")
        result["card"] = build_card(args, texts.files, names, texts.device)
        write_file(args.json, json.dumps(result, indent=2) + "\n")


def shuffle_images(visual_ids: Sequence[str], albums: Sequence[str], *, seed: int) -> list[str]:
    """Return, for each line, an image sequence of another album than the line's own.

    The albums are shuffled, and each album gets the image sequences of the next album, repeated if
    there are too few. Lines with the same image sequence get the same new sequence.
    """
    import numpy as np

    sequences: dict[str, dict[str, None]] = {}
    for line, album in zip(visual_ids, albums):
        sequences.setdefault(album, {})[line] = None
    if len(sequences) < 2:
        raise UserError(
            "--shuffled-images: the stories are of one album, and no other has images to give them."
        )
    names = list(sequences)
    order = np.random.default_rng(seed).permutation(len(names)).tolist()
    # The order is a cycle, so that no album follows itself, as could happen in a permutation.
    following = {names[a]: names[b] for a, b in zip(order, [*order[1:], order[0]])}
    images = {}
    for album, own in sequences.items():
        other = list(sequences[following[album]])
        for number, line in enumerate(own):
            images[album, line] = other[number % len(other)]
    return [images[album, line] for line, album in zip(visual_ids, albums)]


def _score(
    texts: Any, lines: Sequence[int], conditions: Sequence[Any], sums: "Optional[TemperatureSums]"
) -> Counts:
    import torch
    from tqdm.auto import tqdm

    from fairseq_mm.metrics.perplexity import LogProbability

    pairs = [(condition, texts.tokens(line)) for condition, line in zip(conditions, lines)]
    unk, ends = texts.dictionary.unk(), torch.tensor(texts.ends)
    # columns: known words, unknown words, ends
    log_probs, numbers = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.long)
    sentences = []
    with tqdm(total=len(pairs), unit="text", desc="perplexity", disable=None) as progress:
        for batch, scores in texts.likelihood.batches(pairs, log_probs_of=sums):
            for number, natural_log_probs in zip(batch, scores):
                tokens = torch.tensor(pairs[number][1])
                # Base 2, like fairseq's losses; float64, because a split has many tokens to add.
                log2_probs = natural_log_probs.double() / math.log(2)
                is_end = torch.isin(tokens, ends)
                kind = (tokens == unk).long() + 2 * is_end.long()
                log_probs.index_add_(0, kind, log2_probs)
                numbers += torch.bincount(kind, minlength=3)
                # A truncated text has no end, so that its last words belong to no sentence.
                bounds = [0, *(torch.flatten(is_end.nonzero()) + 1).tolist()]
                sentences += [
                    LogProbability(float(log2_probs[a:b].sum()), b - a)
                    for a, b in zip(bounds, bounds[1:])
                ]
            progress.update(len(batch))
    parts = [LogProbability(*part) for part in zip(log_probs.tolist(), numbers.tolist())]
    eos = texts.dictionary.eos()
    truncated = sum(tokens[-1] != eos for _, tokens in pairs)
    return Counts(parts[0], parts[1], parts[2], sentences, truncated)


def _perplexities(
    counts: Counts,
    images: Optional[str],
    texts: Any,
    lines: Sequence[int],
    args: argparse.Namespace,
) -> dict[str, Any]:
    from fairseq_mm.metrics.perplexity import corpus_perplexity, transtory_perplexity
    from fairseq_mm.metrics.score_rows import signature

    # The signature names the seed only if something was sampled.
    is_drawn = len(lines) < len(texts.texts) or images == "of-another-album"
    models = sum(role.startswith("checkpoint") for role in texts.files)

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
                words=args.words,
                images=images,
                models=models if models > 1 else None,
                prec=args.precision,
                seed=args.seed if is_drawn else None,
            ),
        }

    rows = {}
    for name, (_, ends, unknown) in ROWS.items():
        parts = [counts.known] + [counts.unknown] * unknown + [counts.ends] * ends
        tokens = sum(part.num_tokens for part in parts)
        value = corpus_perplexity(parts) if tokens else None  # there may be no known word
        rows[name] = entry(value, tokens, ends, unknown, counting="tokens")
    if args.counting == "transtory":
        # The released code scores <start> with 10,000, so that each sentence counts one token whose
        # loss is 0. It averages over sentences.
        tokens = sum(sentence.num_tokens for sentence in counts.sentences)
        value = transtory_perplexity(counts.sentences)
        rows["transtory"] = entry(
            value, tokens, True, True, counting="transtory", mean="sentences", free="1-a-sentence"
        )
    return rows


def _find_temperatures(sums: "TemperatureSums", tokens: int) -> dict[str, Any]:
    import numpy as np

    from fairseq_mm.metrics.perplexity import GRID, best_temperature

    kinds = {"softmax": (sums.sums, tokens)}
    if sums.top_k is not None and sums.top_words:
        kinds[f"top_{sums.top_k}"] = (sums.top_sums, sums.top_words)
    tuned = {}
    for name, (values, covered) in kinds.items():
        best = best_temperature(np.array(GRID), values)
        tuned[name] = {
            "temperature": best.temperature,
            # math.exp overflows above 709.
            "perplexity": math.exp(min(-best.log_likelihood / covered, 700.0)),
            "tokens": covered,
            "is_inside": best.is_inside,
        }
    return tuned


def _print(result: dict[str, Any]) -> None:
    words, unknown = result["words"], result["unknown_words"]
    name = result["split"] + (f".{result['side']}" if "side" in result else "")
    head = f"{name}: {result['texts']:,} of {result['texts_available']:,} texts, "
    if "sentences" in result:
        head += f"{result['sentences']:,} sentences, "
    head += f"{words:,} words, {unknown:,} of them unknown ({unknown / max(1, words):.1%}), "
    if "sequences" in result:
        head += f"{result['sequences']:,} image sequences, "
        head += f"{result['sequences_with_missing_images']:,} with missing images"
    else:
        head += f"{result['ends']:,} ends"
    if "texts_cut" in result:
        head += f", {result['texts_cut']:,} texts truncated"
    print(head)
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
    for name, entry in result.get("temperatures", {}).items():
        share = entry["tokens"] / result["perplexities"]["all"]["tokens"]
        edge = "" if entry["is_inside"] else ", at the end of what was tried"
        print(
            f"temperature, {name.replace('_', ' '):<28} {entry['temperature']:>10.3f} "
            f"{entry['tokens']:>10,} tokens ({share:.1%}), perplexity {entry['perplexity']:.2f} "
            f"there{edge}"
        )
