"""Compares files of stories by variety, fluency and fit to the images.

  python judge_stories.py data-bin/vist-mini stories.jsonl other.jsonl \\
      --judge checkpoints/transtory_decoder/checkpoint_best.pt

The files are written by fairseq-mm tell --jsonl. For each file, the script prints a line:

- the number of stories and of words a story;
- distinct-2: different pairs of words of all stories, as a share of all pairs;
- seq-rep-4: share of a story's sequences of four words that repeat an earlier one;
- the perplexity of the sentences under an n-gram model (Kneser-Ney, order 3) of the sentences of
  the training split, which people wrote;
- how often a story is most likely under its own images among the images of 9 other albums, by the
  model --judge. Each story is scored under --others albums, and the mean is over all sets of 9.

A model that chooses stories by likelihood must not be the judge.
"""

import argparse
import math
import sys
from pathlib import Path

import numpy as np
import torch

import fairseq_mm
from fairseq_mm.cli.script import run_script
from fairseq_mm.data.feature_store import FeatureStores, open_folder_features
from fairseq_mm.data.input_files import read_objects
from fairseq_mm.data.records import open_split
from fairseq_mm.data.story_text import SEPARATOR
from fairseq_mm.errors import UserError
from fairseq_mm.metrics.text_scores import distinct_n, repeated_ngrams
from fairseq_mm.ngrams.kneser_ney import estimate_kneser_ney

COMPARED = 9  # other albums in a ranking


def people_model(data: Path):
    """Estimate the n-gram model of the training split's sentences."""
    lines = (" ".join(words) for words in open_split(data, "train").iterate_tokens())
    sentences = [part.split() for line in lines for part in line.split(SEPARATOR)]
    return estimate_kneser_ney(sentences, order=3)


def read_examples(store: FeatureStores, sequences: list[str], model) -> list:
    """Read the images of each sequence, a line of keys separated by tabs."""
    features = [
        [store.read(key) if key in store else None for key in sequence.split("\t")]
        for sequence in sequences
    ]
    return model.read(features, None)


def first_share(model, stories: list[str], examples: list, albums: list[str], args) -> float:
    """Compute how often a story ranks its own images first, as a share of the stories.

    Raises:
        UserError: If a story has fewer than 9 other albums.
    """
    rng = np.random.default_rng(args.seed)
    targets, conditions, own = [], [], []
    for row, story in enumerate(stories):
        others = [i for i, album in enumerate(albums) if album != albums[row]]
        chosen = rng.permutation(others)[: args.others]
        if len(chosen) < COMPARED:
            raise UserError(
                f"--others: must be {COMPARED} or more, with stories of as many other albums, but "
                f"only {len(chosen)} can be compared."
            )
        own.append(len(targets))
        tokens = [*map(model.dictionary.index, story.split()), model.dictionary.eos()]
        targets += [torch.tensor(tokens)] * (1 + len(chosen))
        conditions += [examples[i] for i in (row, *chosen)]
    scored = model.score_tokens(targets, conditions, batch_size=64)
    sums = [sum(hypothesis.positional_scores) for hypothesis in scored]
    shares = []
    for start, end in zip(own, [*own[1:], len(sums)]):
        worse = sum(x < sums[start] for x in sums[start + 1 : end])
        # share of the sets of 9 in which no other album is as likely
        shares.append(math.comb(worse, COMPARED) / math.comb(end - start - 1, COMPARED))
    return float(np.mean(shares))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, help="Data folder.")
    parser.add_argument("stories", nargs="+", type=Path, help="Files of tell --jsonl.")
    parser.add_argument("--judge", required=True, help="Checkpoint that computes likelihoods.")
    parser.add_argument("--split", default="valid", help="Split of the stories.")
    parser.add_argument("--others", type=int, default=30, help="Number of other albums.")
    parser.add_argument("--seed", type=int, default=1, help="Seed for choosing them.")


def run(args: argparse.Namespace) -> int:
    torch.set_num_threads(1)

    language_model = people_model(args.data)
    model = fairseq_mm.from_pretrained(args.judge)
    store = open_folder_features(str(args.data), None)
    split = open_split(args.data, args.split)
    album_of = dict(zip(split.items, split.field("album")))
    heading = "file  stories  words  distinct-2  seq-rep-4  perplexity  own album first of 10\n"
    for path in args.stories:
        records = [record for _, record in read_objects(path)]
        stories = [record["hypothesis"] for record in records]
        sequences = [record["id"] for record in records]
        words = [[x for x in story.split() if x != SEPARATOR] for story in stories]
        sentences = [part.split() for story in stories for part in story.split(SEPARATOR)]
        repeated = [repeated_ngrams(tokens, 4) for tokens in words]
        total = language_model.log_probs(sentences).sum()
        perplexity = math.exp(-total / sum(len(sentence) + 1 for sentence in sentences))
        examples = read_examples(store, sequences, model)
        first = first_share(model, stories, examples, [album_of[x] for x in sequences], args)
        print(
            f"{heading}{path}  {len(stories)}  {np.mean([len(x) for x in words]):.1f}  "
            f"{distinct_n(words, 2):.3f}  {np.mean([x for x in repeated if x is not None]):.4f}  "
            f"{perplexity:.1f}  {100 * first:.1f} %"
        )
        heading = ""
    return 0


if __name__ == "__main__":
    sys.exit(run_script(__doc__, [add_arguments], run))
