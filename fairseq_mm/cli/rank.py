"""Ranks images for sentences and sentences for images, or tests whether stories
fit their own prompt or images better than others.

  fairseq-mm rank data-bin/flickr8k --checkpoint checkpoints/m_rnn \\
      --split valid --top 5
  fairseq-mm rank data-bin/flickr8k --checkpoint checkpoints/vse_bow \\
      --split test
  fairseq-mm rank data-bin/wp --checkpoint a.pt:b.pt --stories 1000 --draws 20 \\
      --seed 1
  fairseq-mm rank data-bin/vist --checkpoint checkpoints/glac --candidates 10

The kind of the checkpoint decides what the command ranks:

Models of captions (m_rnn, mlbl_f) rank by likelihood (Mao et al. 2015, section
5): images by P(sentence | image), sentences by P(sentence | image) /
P(sentence), where P(sentence) is the mean over sampled training images. With
--marginal mean_image, sentences are ranked by their perplexity under the mean
of all training images, divided by their perplexity under the image; this is the
ranking of Kiros et al. 2014b as Mao et al. 2015 describe it. Image-sentence
embeddings (vse_lstm, vse_gru, vse_bow) rank by the cosine of vectors. Ties
count against the model; Med r is rounded down. The output folder gets
ranks.json (results, and a card: command, options, hashes of files, versions) and
ranks.jsonl (one query per line). Models of captions also write recall_curve.csv
and .svg, and the files that a repeated run reuses: log_probs.npy [sentences,
images], log_marginals.npy [sentences] and scores.json, the settings with which
these two were computed.

Models of stories are tested on each story's own prompt (Fan et al. 2018, section
5.5, Figure 6) or own images: how often is the story more likely under these than
under the prompts or images of 9 other stories? They are sampled from the prompts
or albums of the selected stories; --draws repeats the sampling. Other albums are
represented by their first image sequence. Ties count half for prompts, and
against the model for albums. Confidence intervals are computed by bootstrap. The
output folder gets ranking.json (results and card), stories.jsonl (one story per
line) and likelihoods.jsonl (one pair of a story and a prompt or album per line).
Each pair is computed once; runs with other draws, seeds or stories add their
pairs to the file.

An interrupted run continues when started again.
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
        help="Divide the likelihood of a sentence by its mean likelihood over sampled training "
        "images, by its likelihood under the mean training image (per word), or not at all "
        "(default: sampled).",
    )
    arguments.add_numbers(
        images,
        marginal_images="Number of training images to sample (default: 100).",
        shortlist="Also rank only the sentences of the N images that are nearest to the query in "
        "feature space (100 in section 9.2 of the paper).",
        max_images="Rank only the first N images (default: all).",
        top="Write the N best of each query to ranks.jsonl: ids, captions as published and scores "
        "(default: none).",
    )
    stories = parser.add_argument_group("stories")
    arguments.add_numbers(
        stories,
        stories="Number of stories sampled from the split; all if it has fewer (default: 1000).",
        candidates="Number of prompts or albums that are compared for each story, its own included "
        "(default: 10).",
        draws="Number of times that the other candidates are sampled (default: 20).",
        words=likelihood.WORDS_HELP,
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
