"""What a pass of each system asks of a GPU, as counted on a CPU: few launches, and no waiting.

The functions for a GPU, which the counting runs on a CPU, compute what the functions for a CPU do.
"""

import sys
from pathlib import Path

import pytest
import torch
from numerics import assert_close
from test_contracts import SYSTEMS, B, Captions, T, V
from toy_data import build_model, toy_task

if not hasattr(torch.nn.functional, "rms_norm"):
    pytest.skip("this PyTorch cannot count launches", allow_module_level=True)
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from _launch_counting import counted, phase

from fairseq_mm.criterions.pairwise_ranking import info_nce_loss, pairwise_ranking_loss
from fairseq_mm.modules.chunked_cross_entropy import chunked_cross_entropy

# system -> most launches of a forward and a backward pass, and calls in the package that wait.
# The launches are some more than today's; a change that adds a loop over words adds hundreds.
CASES = {
    "conv_story_gated": (200, 310, []),
    "conv_story_fusion": (400, 340, []),
    "transtory_xl": (360, 650, ["models/transtory_xl.py cpu"]),
    # PyTorch moves the order of the rows to the GPU if an image is missing
    "glac": (130, 130, ["modules/packed_rnn.py copy from the CPU", "modules/packed_rnn.py cpu"]),
    "m_rnn_tiny": (55, 65, []),
    "sc_nlm": (55, 60, []),
    "vg_bart_tiny": (245, 430, []),
    "vg_t5_tiny": (260, 430, []),
}


def calls(counts):
    """Files and calls of the synchronisations in the package."""
    places = [x.removeprefix("fairseq_mm/").split(" ", 1) for x in counts.waits(ours=True)]
    return sorted({f"{place.partition(':')[0]} {call}" for place, call in places})


@pytest.mark.parametrize("name", CASES)
def test_a_pass_is_few_launches_that_nobody_waits_for(tmp_path, name):
    forward, backward, waits = CASES[name]
    kind = SYSTEMS[name]
    torch.manual_seed(11)
    model, batch = kind.build(name, tmp_path), kind.inputs()
    tokens = torch.randint(4, V, (B, T))
    if hasattr(kind, "change_words"):
        kind.change_words(tokens)
    batch["prev_output_tokens"] = tokens
    expected = model(**batch)[0]
    grad = torch.randn(expected.shape)
    parameters = [x for x in model.parameters() if x.requires_grad]
    gradients = torch.autograd.grad((expected * grad).sum(), parameters, allow_unused=True)
    with counted() as counts:
        with phase("forward"):
            out = model(**batch)[0]
        with phase("backward"):
            (out * grad).sum().backward()
    assert_close(out, expected)
    for parameter, gradient in zip(parameters, gradients):
        if gradient is not None:
            torch.testing.assert_close(parameter.grad, gradient, atol=1e-4, rtol=1e-4)
    assert calls(counts) == waits
    found = counts.launches["forward"], counts.launches["backward"]
    # at least half, so that the numbers above are brought down when launches are saved
    assert forward / 2 < found[0] < forward, found
    assert backward / 2 < found[1] < backward, found


@pytest.mark.parametrize(
    ("arch", "pooling", "launches"),
    [
        ("vse_gru", "encoder", (50, 150)),
        ("vse_bow", "encoder", (50, 150)),
        ("vse_bow", "max", (80, 170)),
        ("vse_gru", "gpo", (150, 300)),
    ],
)
def test_embedding_and_its_losses_wait_for_nothing(arch, pooling, launches):
    model = build_model(arch, toy_task(), word_dim=6, embed_dim=8, sentence_pooling=pooling)
    inputs, tokens = Captions().inputs(), torch.randint(4, V, (B, T))
    tokens[:, -2:] = model.sentence_encoder.pad  # two columns that a CPU does not read
    tokens[0, 1:] = model.sentence_encoder.end
    expected = model(**inputs, tokens=tokens)
    with counted() as counts:
        images, sentences = model(**inputs, tokens=tokens)
        is_negative = ~torch.eye(B, dtype=torch.bool, device=tokens.device)
        options = {"margin": 0.2} if pooling == "encoder" else {"temperature": 0.1}
        compute_loss = pairwise_ranking_loss if pooling == "encoder" else info_nce_loss
        compute_loss(images, sentences, is_negative, **options).loss.backward()
    for found, vectors in zip((images, sentences), expected):
        assert_close(found, vectors)
    assert calls(counts) == []
    assert launches[0] < counts.launches.total() < launches[1]


def test_the_loss_over_a_large_vocabulary_waits_for_nothing():
    features = torch.randn(30, 8, requires_grad=True)
    weight = torch.randn(5000, 8, requires_grad=True)
    target = torch.randint(1, 5000, (30,))
    target[7] = 0
    options = {"ignore_index": 0, "chunk_bytes": 4 * 5000 * 10, "num_valid": 29}
    expected = chunked_cross_entropy(features, weight, None, target, **options)[0]
    with counted() as counts:
        loss = chunked_cross_entropy(features, weight, None, target, **options)[0]
        loss.backward()
    torch.testing.assert_close(loss, expected)
    assert calls(counts) == []
    assert 40 < counts.launches.total() < 80  # three chunks


def test_what_waits_and_what_does_not_is_told_apart():
    x = torch.arange(6.0)
    with counted() as counts:
        host = x.cpu()
        bool(host.sum() > 0)  # on the CPU already
        host.nonzero()
        back = host.to(x.device, non_blocking=True)
        back.sum().item()
        x[x > 2]
        x[x > 2] = 0  # a constant is written without counting the elements
        torch.arange(3, device=x.device)
    found = sorted(place.split(" ", 1)[1] for place in counts.waits())
    assert found == ["cpu", "indexing by a mask", "item"]
    # copy to the GPU, sum, two comparisons, selection, filling, arange
    assert 7 <= counts.launches.total() <= 9
