"""Stories of mixed lengths in batches that inputs leave and join, for ``run.py``.

The lengths are geometrically distributed: the model's output weights are zero, and the bias of the
end is set to the mean length. Texts are those of fixed batches.
"""

from argparse import Namespace
from typing import Any

import numpy as np
import torch
from conv_story import SOURCE_TYPES, TASK, build

from fairseq_mm.inference import generator as engine
from fairseq_mm.inference.checkpoint import LoadedModels
from fairseq_mm.tasks.hierarchical_story import HierarchicalStoryConfig, HierarchicalStoryTask

TOPK = 100


def build_generator(arch: str, mean_length: int, device: str = "cpu") -> engine.Generator:
    """Return a generator with random weights whose texts have ``mean_length`` words on average."""
    place = torch.device(device)
    task = HierarchicalStoryTask(
        HierarchicalStoryConfig(seed=1), TASK.source_dictionary, TASK.target_dictionary
    )
    model = build(arch)
    set_unigrams(model.decoder.output_proj.bias, task.target_dictionary, mean_length)
    loaded = LoadedModels(task, [model.eval().to(place)], [arch], [arch], {}, 0, place)
    return engine.Generator(loaded)


def set_unigrams(bias: torch.Tensor, words: Any, mean_length: int) -> None:
    """Set a bias [V] to the logits of a unigram distribution, see the module's docstring."""
    ranks = torch.arange(1, len(words) - words.nspecial + 1).float()
    with torch.no_grad():
        bias[words.nspecial :] = -ranks.log()
        total = bias[words.nspecial : words.nspecial + TOPK].logsumexp(dim=0)
        bias[words.eos()] = total - np.log(mean_length)


def draw_prompts(count: int) -> list[str]:
    """Return prompts of 5 to 60 words."""
    draws = np.random.default_rng(1)
    return [
        " ".join(f"w{word}" for word in draws.integers(0, SOURCE_TYPES - 4, length))
        for length in draws.integers(5, 61, count)
    ]


def write_texts(
    generator: engine.Generator, inputs: list[Any], args: Namespace, *, is_continuous: bool
) -> list[Any]:
    """Return the texts of the inputs, written in one continuous batch or in fixed batches."""
    options = {"sampling": True, "sampling_topk": TOPK, "max_len_b": 5 * args.mean_length}
    can_join = engine.can_join
    if not is_continuous:
        engine.can_join = lambda *others: False
    try:
        return generator.generate(
            inputs, batch_size=args.batch_size, min_len=args.min_len, **options
        )
    finally:
        engine.can_join = can_join
