"""Perplexity of a split's texts under a model or an ensemble, and the softmax's best temperature.

fairseq-mm perplexity DATA --checkpoint checkpoints/checkpoint_best.pt --split valid
fairseq-mm perplexity DATA --checkpoint a.pt:b.pt --tune-temperature
fairseq-mm perplexity DATA --checkpoint lm/checkpoint_best.pt --side wp_target

The first figure is fairseq-validate's: over all tokens, the end of each text and unknown words
(scored as <unk>) included. The others leave out ends, and unknown words. Texts are read from
DATA/text; words are looked up in the checkpoint's own dictionary.

--tune-temperature: the temperature at which the same tokens are most likely. With top-k sampling
no temperature gives a real text a probability other than 0, so the temperature for it is that at
which those tokens that are among the k likeliest at their place (<unk> is none of them) are most
likely among those k. An ensemble, where the k depend on the temperature, has none.

Models of visual stories (--task visual_storytelling):

fairseq-mm perplexity DATA --checkpoint checkpoints/checkpoint_best.pt --counting transtory
fairseq-mm perplexity DATA --checkpoint checkpoints/checkpoint_best.pt --shuffled-images --seed 1

All tokens are words, the separators between sentences and the end of the story; the figures
without ends leave separators out as well. --counting transtory adds the figure that the released
code of Transtory-XL would report, which is lower: the mean within each sentence, which begins with
a token that costs nothing, then over sentences. --shuffled-images adds the perplexity of the same
stories under the images of another album: the more a model follows its images, the higher.
"""

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from fairseq_mm.cli.likelihood_options import (
    add_likelihood_arguments,
    build_likelihood,
    card_of,
    check_seed,
    chosen_lines,
    encode_prompts,
    generates_visual_stories,
    positive,
    words_to_score,
)
from fairseq_mm.cli.run_set_up import register_quietly
from fairseq_mm.errors import UserError

if TYPE_CHECKING:
    from fairseq_mm.inference.loading import LoadedModels
    from fairseq_mm.retrieval.story_likelihood import Pair, StoryLikelihood

SIDES = ("wp_source", "wp_target")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", metavar="DATA", help="data folder")
    add_likelihood_arguments(parser)
    parser.add_argument(
        "--side",
        choices=SIDES,
        help="what a language model is of: prompts (wp_source) or stories (wp_target) (default: "
        "that whose dictionary it has)",
    )
    parser.add_argument(
        "--stories", type=positive, metavar="N", help="only N texts, drawn (default: all)"
    )
    parser.add_argument("--seed", type=int, default=1, help="of what is drawn (default: 1)")
    parser.add_argument(
        "--tune-temperature", action="store_true", help="find the softmax's best temperature"
    )
    parser.add_argument(
        "--top-k",
        type=positive,
        default=10,
        metavar="K",
        help="of the second temperature (default: 10)",
    )
    parser.add_argument(
        "--counting",
        choices=("tokens", "transtory"),
        default="tokens",
        help="transtory: also as Transtory-XL's released code counts (default: tokens)",
    )
    parser.add_argument(
        "--shuffled-images",
        action="store_true",
        help="also under the images of another album, drawn with --seed",
    )
    parser.add_argument("--json", metavar="FILE", help="write figures and card as JSON")


class Counts(NamedTuple):
    """Natural log-probabilities and tokens of a text's parts."""

    known: tuple[float, int]
    unknown: tuple[float, int]
    ends: tuple[float, int]
    texts: int
    cut: int


def run(args: argparse.Namespace) -> None:
    if args.json and not Path(args.json).absolute().parent.is_dir():
        raise UserError(f"--json {args.json}: its folder does not exist.")
    check_seed(args.seed)
    register_quietly()
    from fairseq_mm.data.story_split import read_side, side_path
    from fairseq_mm.inference.loading import load_models, load_states

    states = load_states(args.checkpoint)
    if any(map(generates_visual_stories, states.values())):
        from fairseq_mm.cli import perplexity_of_visual_stories

        perplexity_of_visual_stories.run(args, states)
        return
    _check_text_options(args, states)
    models = load_models(args.checkpoint, data=args.data, device=args.device, states=states)
    likelihood = build_likelihood(models, args)
    side = _side_of(models, args)
    num_words = words_to_score(likelihood, args.words)
    texts = read_side(args.data, args.split, side)
    lines = chosen_lines(len(texts), args.stories, args.seed)
    prompts: dict[int, Any] = dict.fromkeys(lines)
    if not models.are_language_models:
        from fairseq_mm.data.story_split import read_story_split

        all_prompts = read_story_split(args.data, args.split).prompts
        path = side_path(args.data, args.split, SIDES[0])
        prompts = encode_prompts(likelihood, {i: all_prompts[i] for i in lines}, path)
    pairs = [
        (prompts[line], likelihood.encode_story(texts[line], num_words=num_words)) for line in lines
    ]
    counts, tuned = _score(likelihood, pairs, args)
    result = _result_of(counts, tuned, args, side, len(texts), len(models.files))
    _print(result)
    if args.json:
        from fairseq_mm.cli.score_output import write_file

        files = {f"checkpoint_{i}": file for i, file in enumerate(models.files)}
        files["text"] = str(side_path(args.data, args.split, side))
        options = ("split", "words", "stories", "seed", "precision")
        result["card"] = card_of(args, files, options, models.device)
        write_file(args.json, json.dumps(result, indent=2) + "\n")


def _check_text_options(args: argparse.Namespace, states: "dict[str, dict[str, Any]]") -> None:
    file, state = next(iter(states.items()))
    for option, is_given in (
        ("features", args.features is not None),
        ("counting", args.counting != "tokens"),
        ("shuffled-images", args.shuffled_images),
    ):
        if is_given:
            raise UserError(
                f"--{option}: is for models of visual stories, but {file} was trained "
                f"with --task {state['cfg']['task']['_name']}."
            )


def _side_of(models: "LoadedModels", args: argparse.Namespace) -> str:
    if not models.are_language_models:
        if args.side == SIDES[0]:
            raise UserError(
                f"--side {args.side}: {models.files[0]} generates stories, not prompts."
            )
        return SIDES[1]
    if args.side:
        return str(args.side)
    from fairseq_mm.data.story_split import side_path
    from fairseq_mm.models._provenance import words_of
    from fairseq_mm.prepare.data_folder import read_dictionary_words

    words = set(words_of(models.dictionary))
    found = []
    for side in SIDES:
        path = side_path(args.data, args.split, side).parents[1] / f"dict.{side}.txt"
        if path.is_file() and words == set(read_dictionary_words(path)):
            found.append(side)
    if len(found) != 1:
        raise UserError(
            f"{models.files[0]}: its dictionary ({len(words)} words) is that of "
            f"{'both sides' if found else 'neither side'} of {args.data}: give --side."
        )
    return found[0]


def _score(
    likelihood: "StoryLikelihood", pairs: "list[Pair]", args: argparse.Namespace
) -> tuple[Counts, dict[str, Any]]:
    import torch
    from tqdm import tqdm

    from fairseq_mm.metrics.temperature import GRID
    from fairseq_mm.retrieval.tempered_likelihood import TemperatureSums

    score: Any = likelihood
    if args.tune_temperature:
        top_k = args.top_k if len(likelihood.models) == 1 else None
        score = TemperatureSums(likelihood, GRID, top_k=top_k)
    unk, eos = likelihood.dictionary.unk(), likelihood.dictionary.eos()
    # columns: known words, unknown words, ends
    sums, numbers = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.long)
    cut = sum(story[-1] != eos for _, story in pairs)
    with tqdm(total=len(pairs), unit="text", desc="perplexity", disable=None) as progress:
        for batch in likelihood.batches(pairs):
            for number, log_probs in zip(batch, score([pairs[i] for i in batch])):
                story = torch.tensor(pairs[number][1])
                kind = (story == unk).long() + 2 * (story == eos).long()
                sums.index_add_(0, kind, log_probs.double())
                numbers += torch.bincount(kind, minlength=3)
            progress.update(len(batch))
    parts = list(zip(sums.tolist(), numbers.tolist()))
    counts = Counts(*parts, len(pairs), cut)
    if not math.isfinite(float(sums.sum())):
        raise UserError(f"{args.checkpoint}: gives a word a probability that is no number.")
    return counts, _tuned(score, args) if args.tune_temperature else {}


def _tuned(score: Any, args: argparse.Namespace) -> dict[str, Any]:
    import numpy as np

    from fairseq_mm.metrics.temperature import GRID, best_temperature

    tuned = {"softmax": (best_temperature(np.array(GRID), score.sums), None)}
    if score.top_k is not None and score.top_words:
        found = best_temperature(np.array(GRID), score.top_sums)
        tuned[f"top_{score.top_k}"] = (found, score.top_words)
    return tuned


def _result_of(
    counts: Counts,
    tuned: dict[str, Any],
    args: argparse.Namespace,
    side: str,
    available: int,
    num_models: int,
) -> dict[str, Any]:
    from fairseq_mm.metrics.signature import signature

    rows = {
        "all": ((counts.known, counts.unknown, counts.ends), "counted", "counted"),
        "without_ends": ((counts.known, counts.unknown), "left out", "counted"),
        "known_words": ((counts.known,), "left out", "left out"),
    }
    perplexities = {}
    for name, (parts, ends, unknown) in rows.items():
        log_likelihood, tokens = (sum(column) for column in zip(*parts))
        perplexities[name] = {
            "perplexity": _perplexity(log_likelihood, tokens),
            "tokens": tokens,
            "signature": signature(
                "ppl",
                unit="dictionary-token",
                eos=ends.replace(" ", "-"),
                unk=unknown.replace(" ", "-"),
                words=args.words,
                models=num_models if num_models > 1 else None,
                prec=args.precision,
                seed=args.seed if counts.texts < available else None,
            ),
        }
    result = {
        "data": args.data,
        "split": args.split,
        "side": side,
        "texts": counts.texts,
        "texts_available": available,
        "texts_cut": counts.cut,
        "words": counts.known[1] + counts.unknown[1],
        "unknown_words": counts.unknown[1],
        "ends": counts.ends[1],
        "perplexities": perplexities,
    }
    tokens = perplexities["all"]["tokens"]
    for name, (found, covered) in tuned.items():
        result.setdefault("temperatures", {})[name] = {
            "temperature": found.temperature,
            "perplexity": _perplexity(found.log_likelihood, covered or tokens),
            "tokens": covered or tokens,
            "is_inside": found.is_inside,
        }
    return result


def _perplexity(log_likelihood: float, tokens: int) -> Optional[float]:
    return math.exp(min(-log_likelihood / tokens, 700.0)) if tokens else None


def _print(result: dict[str, Any]) -> None:
    words, unknown = result["words"], result["unknown_words"]
    print(
        f"{result['split']}.{result['side']}: {result['texts']:,} of {result['texts_available']:,} "
        f"texts, {words:,} words, {unknown:,} of them unknown ({unknown / max(1, words):.1%}), "
        f"{result['ends']:,} ends, {result['texts_cut']:,} texts cut"
    )
    titles = {
        "all": "all tokens",
        "without_ends": "without ends",
        "known_words": "known words",
    }
    for name, title in titles.items():
        entry = result["perplexities"][name]
        value = entry["perplexity"]
        shown = "-" if value is None else f"{value:.2f}"
        print(
            f"perplexity, {title:<14} {shown:>12} {entry['tokens']:>12,} tokens  "
            f"{entry['signature']}"
        )
    for name, entry in result.get("temperatures", {}).items():
        share = entry["tokens"] / result["perplexities"]["all"]["tokens"]
        title = name.replace("_", " ")
        edge = "" if entry["is_inside"] else ", at the end of what was tried"
        print(
            f"temperature, {title:<13} {entry['temperature']:>12.3f} {entry['tokens']:>12,} tokens "
            f"({share:.1%}), perplexity {entry['perplexity']:.2f} there{edge}"
        )
