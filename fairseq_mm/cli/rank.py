"""Ranks images for sentences and sentences for images, or tests whether stories
fit their own prompt or images better than others.

  fairseq-mm rank data-bin/flickr8k --checkpoint checkpoints/m_rnn \\
      --split valid --top 5
  fairseq-mm rank data-bin/wp --checkpoint a.pt:b.pt --draws 20 --seed 1
  fairseq-mm rank data-bin/vist --checkpoint checkpoints/glac --candidates 10

The checkpoint decides what is ranked: models of captions (m_rnn, mlbl_f) rank by
likelihood, image-sentence embeddings (vse_bow, ...) by the cosine of vectors. For
a model of stories, the command counts how often a story is more likely under its
own prompt or images than under those of other stories. docs/metrics.md defines the
figures. The output folder gets ranks.json, ranks.jsonl (for stories ranking.json,
stories.jsonl), and the likelihoods with which the next run continues.
"""

import argparse

from fairseq_mm.cli import arguments, likelihood
from fairseq_mm.cli.run_set_up import register_quietly

_STORIES = {
    "stories": 1000,  # number of stories and candidates as in Fan et al. 2018
    "draws": 20,  # the paper has one draw, which is noisy
    "candidates": 10,
}
OPTIONS: likelihood.Options = {
    "captions": {
        "marginal": "sampled",
        "marginal_images": 100,
        "shortlist": None,
        "max_images": None,
        "top": None,
        "features": None,
    },
    "vectors": {"max_images": None, "top": None, "features": None},
    "prompts": {**_STORIES, "words": None},
    "albums": {**_STORIES, "features": None},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    likelihood.add_scoring_arguments(parser)
    parser.add_argument(
        "--output", metavar="DIR", help="Folder to write (default: CHECKPOINT.rank-SPLIT)."
    )
    images = parser.add_argument_group("images and sentences")
    images.add_argument(
        "--marginal",
        choices=("sampled", "mean_image", "none"),
        help="Divide the likelihood of a sentence by its mean over training images, by the one "
        "under the mean training image, or not at all (default: sampled).",
    )
    arguments.add_numbers(
        images,
        marginal_images="Number of training images to sample (default: 100).",
        shortlist="Also rank only the sentences of the N images nearest to the query.",
        max_images="Rank only the first N images (default: all).",
        top="Write the N best of each query to ranks.jsonl (default: none).",
    )
    stories = parser.add_argument_group("stories")
    arguments.add_numbers(
        stories,
        stories="Number of stories sampled from the split (default: 1000).",
        draws="Number of samples of candidates (default: 20).",
        words=likelihood.WORDS_HELP,
    )
    stories.add_argument(
        "--candidates",
        type=arguments.at_least(2),
        metavar="N",
        help="Prompts or albums compared for a story, its own included (default: 10).",
    )


def run(args: argparse.Namespace) -> None:
    register_quietly()
    from fairseq_mm.inference.checkpoint import Checkpoint

    checkpoints = Checkpoint.open_all(args.checkpoint, data=args.data)
    # Each of the two modules imports a large part of the package, and only one is needed.
    if "draws" in OPTIONS[likelihood.resolve_options(args, OPTIONS, checkpoints)]:
        from fairseq_mm.cli.rank_stories import rank_stories

        rank_stories(args, checkpoints)
    else:
        from fairseq_mm.cli.rank_images import rank_images

        rank_images(args, checkpoints)
