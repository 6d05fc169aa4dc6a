"""Hierarchical attention and multistage fusion: what a step costs, what is said of mistakes, and
that they learn from the video."""

import pytest
import torch
from toy_data import build_model, video_task

from fairseq_mm.errors import UserError
from fairseq_mm.models._hierarchical_transformer import FramePositions

SYSTEMS = [
    "hierarchical_attention_rnn",
    "hierarchical_attention_transformer",
    "mffg_rnn",
    "mffg_transformer",
]
TRANSFORMERS = [name for name in SYSTEMS if "transformer" in name]
B, S, M, D, T, V = 3, 11, 13, 5, 4, 20
PAD, EOS = 1, 2
MANY = {"max_frames": 0}


@pytest.fixture(params=SYSTEMS)
def arch(request):
    return request.param


def make_batch(rows=B, words=S, frames=M):
    torch.manual_seed(2)
    tokens = torch.randint(4, V, (rows, words))
    tokens[:, -1] = EOS
    tokens[-1, :3] = PAD
    padding_mask = torch.zeros(rows, frames, dtype=torch.bool)
    padding_mask[0, -4:] = True
    return {
        "src_tokens": tokens,
        "src_lengths": tokens.ne(PAD).sum(1),
        "features": torch.randn(rows, frames, D).masked_fill(padding_mask.unsqueeze(-1), 0),
        "padding_mask": padding_mask,
    }


def test_attention_over_words_frames_and_modalities_is_given(arch):
    model = build_model(f"{arch}_tiny", video_task(**MANY))
    batch = make_batch()
    words = torch.randint(4, V, (B, T))
    with torch.no_grad():
        extra = model(**batch, prev_output_tokens=words)[1]
    attention, frames = extra["attn"][0], extra["frame_attention"]
    assert attention.shape == (B, T, S)
    assert frames.shape == (B, T, M)
    assert extra["modality_attention"].shape == (B, T, 2)
    for weights in (attention, frames, extra["modality_attention"]):
        torch.testing.assert_close(weights.sum(-1), torch.ones(B, T))
    assert not attention.transpose(1, 2)[batch["src_tokens"].eq(PAD)].any()
    assert not frames.transpose(1, 2)[batch["padding_mask"]].any()


def test_embeddings_that_the_papers_tie_are_one_tensor(arch):
    model = build_model(f"{arch}_tiny", video_task())
    encoder, decoder = model.encoder.embedding, model.decoder.embedding
    if "transformer" in arch:
        assert encoder.tokens.weight is decoder.tokens.weight
        assert model.decoder.output_proj.weight is not decoder.tokens.weight
        assert not encoder.tokens.weight[PAD].any()
    else:
        assert model.decoder.output_proj.weight is decoder.weight
        assert encoder.weight is not decoder.weight


@pytest.mark.parametrize("arch", TRANSFORMERS)
def test_more_frames_than_positions_is_one_line(arch):
    model = build_model(f"{arch}_tiny", video_task(**MANY), video_positions=12)
    with pytest.raises(UserError, match=r"13 frames, .* 12: .*--video-positions, or .*max-frames"):
        model.encoder(**make_batch())


def test_positions_of_frames_count_real_ones():
    positions = FramePositions(4, D)
    padding_mask = torch.tensor([[True, False, False, True, False], [False] * 4 + [True]])
    x = torch.randn(2, 5, D)
    added = positions(x, padding_mask) - x
    table = positions.table.weight
    torch.testing.assert_close(added[0, [1, 2, 4]], table[:3])
    torch.testing.assert_close(added[1, :4], table)
