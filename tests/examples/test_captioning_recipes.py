"""Recipes of captions and embeddings give one batch, whatever the number of GPUs."""

from pathlib import Path

import pytest
from fairseq import options

EXAMPLE = Path(__file__).parents[2] / "examples" / "multimodal_captioning"


def parsed(call):
    command, *arguments = call
    assert command == "fairseq-train"
    return options.parse_args_and_arch(options.get_training_parser(), arguments)


@pytest.mark.parametrize("recipe", ["train_m_rnn", "train_vse"])
def test_any_number_of_gpus_gives_the_same_batch(run_recipe, recipe):
    for gpus in (1, 2, 16, 64):
        (call,) = run_recipe(EXAMPLE, recipe, "data", "saved", GPUS=str(gpus))
        args = parsed(call)
        assert args.distributed_world_size == gpus
        assert gpus * args.batch_size == 128


def test_sentences_are_embedded_by_one_process(run_recipe):
    """Several would write the same files."""
    variables = {"GPUS": "2", "SLURM_NTASKS": "2"}
    stderr = run_recipe(
        EXAMPLE, "train_sc_nlm", "data", "saved", "embedding", status=2, **variables
    )
    assert stderr.startswith("train_sc_nlm.sh embeds the sentences before it trains: start it once")
    assert stderr.count("\n") == 1


def test_a_number_that_does_not_divide_the_batch_is_refused_in_a_line(run_recipe):
    stderr = run_recipe(EXAMPLE, "train_vse", "data", "saved", GPUS="3", status=2)
    assert stderr == "GPUS must divide 128, the number of pairs in an update, but is 3.\n"
