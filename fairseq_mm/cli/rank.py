"""Ranks images against sentences, or stories under their own prompts or images
against others.

  fairseq-mm rank data-bin/flickr8k --checkpoint checkpoints/m_rnn \\
      --split valid --top 5
  fairseq-mm rank data-bin/flickr8k --checkpoint checkpoints/vse_bow \\
      --split test --folds 5
  fairseq-mm rank data-bin/wp --checkpoint a.pt:b.pt --stories 1000 --draws 20 \\
      --seed 1
  fairseq-mm rank data-bin/vist --checkpoint checkpoints/glac --candidates 10

The checkpoint decides what is ranked, and by what:

Captions (m_rnn, mlbl_f): by likelihood (Mao et al. 2015, section 5), images by
P(sentence | image), sentences by P(sentence | image) / P(sentence), where
P(sentence) is the mean over sampled training images. With --marginal mean_image
sentences are ranked by their perplexity under the mean of all training images,
divided by their perplexity under the image, the ranking of Kiros et al. 2014b as
that section describes it. Image-sentence embeddings (vse_lstm, vse_gru,
vse_bow): by the cosine of vectors. Ties count against the model; Med r is
rounded down. The output folder gets ranks.json (figures, card) and ranks.jsonl
(a query a line), of likelihoods also recall_curve.csv and .svg, log_probs.npy
[sentences, images] and log_marginals.npy [sentences], the sums of log
probabilities that a repeated run reads, and scores.json, which says of what.

Stories of prompts: how often a story is likeliest under its own prompt (Fan et
al. 2018, section 5.5, Figure 6); visual stories: how often under its own
images, whether the model follows them. Each story competes under its own
against 9 others, drawn from those of the chosen stories; --draws such draws.
Of another album it is the first image sequence. Ties are shared between
prompts, and count against the model between albums. Intervals are by
bootstrap. The output folder gets ranking.json (figures, card), stories.jsonl
(a story a line) and likelihoods.jsonl (a pair a line); a pair is computed
once, and further draws, seeds or stories are added to what is there.

An interrupted run continues when started again.
"""

import argparse

from fairseq_mm.cli import arguments, likelihood
from fairseq_mm.cli.run_set_up import register_quietly

_STORIES = {
    "stories": 1000,
    "draws": 20,
    "candidates": 10,
    "all_pairs": False,
    "batch_tokens": None,
}
OPTIONS: likelihood.Options = {
    "captions": {
        "marginal": "sampled",
        "marginal_images": 100,
        "shortlist": None,
        "max_images": None,
        "top": None,
        "block_rows": None,
        "features": None,
    },
    "vectors": {"max_images": None, "folds": 1, "top": None, "features": None},
    "prompts": {**_STORIES, "words": None},
    "albums": {**_STORIES, "features": None},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    speed = likelihood.add_scoring_arguments(parser)
    arguments.add_numbers(
        speed,
        block_rows="Number of words of captions whose probabilities over the vocabulary are in "
        "memory at once (default: 1024 on a CPU, 65536 on a GPU).",
    )
    parser.add_argument(
        "--output", metavar="DIR", help="Folder to write (default: CHECKPOINT.rank-SPLIT)."
    )
    images = parser.add_argument_group("images and sentences")
    images.add_argument(
        "--marginal",
        choices=("sampled", "mean_image", "none"),
        help="Likelihood that a sentence's own is divided by: its mean over sampled training "
        "images, that under the mean training image (a word on average), or none (default: "
        "sampled).",
    )
    arguments.add_numbers(
        images,
        marginal_images="Number of training images to sample (default: 100).",
        shortlist="Also rank only the sentences of the N images nearest to the query in feature "
        "space (100 in section 9.2 of the paper).",
        max_images="Rank only the first N images (default: all).",
        top="Write the N best of each query to ranks.jsonl: ids, captions as published and scores "
        "(default: none).",
        folds="Rank by vectors within each of N equal parts of the images and take the means, as "
        "in the 5 x 1k of COCO (default: 1).",
    )
    stories = parser.add_argument_group("stories")
    arguments.add_numbers(
        stories,
        stories="Number of stories drawn from the split; all if it has fewer (default: 1000).",
        candidates="Number of prompts, or albums, that a story competes under, its own included "
        "(default: 10).",
        draws="Number of draws of the other candidates (default: 20).",
        words=likelihood.WORDS_HELP,
    )
    stories.add_argument(
        "--all-pairs",
        action="store_true",
        help="Score each story under all candidates, and print the mean over all possible draws.",
    )


def run(args: argparse.Namespace) -> None:
    register_quietly()
    from fairseq_mm.inference.checkpoint import Checkpoint

    checkpoints = Checkpoint.open_all(args.checkpoint, data=args.data)
    kind = likelihood.resolve_options(args, OPTIONS, checkpoints)
    if kind in ("captions", "vectors"):
        from fairseq_mm.cli.rank_images import rank_images

        rank_images(args, checkpoints, kind)
    else:
        from fairseq_mm.cli.rank_stories import rank_stories

        rank_stories(args, checkpoints, kind)
