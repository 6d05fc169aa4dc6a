"""Contracts that every system keeps: one table of systems, one test a contract.

1. Incremental decoding equals the full pass, with beams reordered at every step.
2. Padding, batch composition and batch order change nothing.
3. The future does not change the past.
4. The cost of a token does not grow with the prefix.
5. float16 and bfloat16 give finite losses and gradients.
6. A checkpoint loads without any other file.
"""

import time

import pytest
import torch
from omegaconf import OmegaConf
from toy_data import build_model, needs_float16_on_cpu, toy_task

SYSTEMS = [
    "m_rnn",
    "m_rnn_base",
    "m_rnn_no_emb_input",
    "m_rnn_one_layer_emb",
    "m_rnn_emb_one_input",
    "m_rnn_vis_in_rnn",
    "m_rnn_vis_in_rnn_both",
    "m_rnn_vis_in_rnn_both_shared",
]
SIZES = {"embedding_dim": 4, "hidden_dim": 6, "multimodal_dim": 9}
B, N, T, D = 3, 2, 7, 5
PAD, EOS = 1, 2
PREPARED = OmegaConf.create({"generation": {"beam": 2}})


@pytest.fixture(params=SYSTEMS)
def model(request):
    model = build_model(request.param, toy_task(), **SIZES)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@pytest.fixture
def batch():
    torch.manual_seed(11)
    padding_mask = torch.tensor([[False, False], [False, True], [False, False]])
    tokens = torch.randint(4, 20, (B, T))
    tokens[:, 0] = EOS
    return {
        "features": torch.randn(B, N, D),
        "padding_mask": padding_mask,
        "prev_output_tokens": tokens,
    }


def logits_of(model, batch):
    with torch.no_grad():
        return model(**batch)[0]


@pytest.mark.parametrize("is_prepared", [False, True])
def test_incremental_decoding_equals_the_full_pass_under_reordering(model, batch, is_prepared):
    if is_prepared:
        model.prepare_for_inference_(PREPARED)
    features, padding_mask = batch["features"], batch["padding_mask"]
    state: dict = {}
    order = torch.arange(B)
    tokens = batch["prev_output_tokens"].clone()
    with torch.no_grad():
        encoder_out = model.encoder(features, padding_mask)
        for step in range(1, T + 1):
            step_logits = model.decoder(tokens[:, :step], encoder_out, state)[0]
            full = model(
                features=features[order],
                padding_mask=padding_mask[order],
                prev_output_tokens=tokens[:, :step],
            )[0]
            assert step_logits.shape == (B, 1, 20)
            torch.testing.assert_close(step_logits[:, 0], full[:, -1], atol=1e-5, rtol=0)
            new_order = torch.randint(0, B, (B,))
            model.decoder.reorder_incremental_state_scripting(state, new_order)
            encoder_out = model.encoder.reorder_encoder_out(encoder_out, new_order)
            tokens, order = tokens[new_order], order[new_order]
            if step < T:
                tokens[:, step] = torch.randint(4, 20, (B,))


def test_padding_and_batch_composition_change_nothing(model, batch):
    together = logits_of(model, batch)
    for row in range(B):
        real = ~batch["padding_mask"][row]
        alone = logits_of(
            model,
            {
                "features": batch["features"][row : row + 1, real],
                "padding_mask": batch["padding_mask"][row : row + 1, real],
                "prev_output_tokens": batch["prev_output_tokens"][row : row + 1, : T - row],
            },
        )
        torch.testing.assert_close(alone[0], together[row, : T - row], atol=1e-5, rtol=0)


def test_content_of_padding_changes_nothing(model, batch):
    before = logits_of(model, batch)
    batch["features"][1, 1] = 1e4
    torch.testing.assert_close(logits_of(model, batch), before)


def test_batch_order_changes_nothing(model, batch):
    order = torch.tensor([2, 0, 1])
    shuffled = logits_of(model, {key: x[order] for key, x in batch.items()})
    torch.testing.assert_close(shuffled, logits_of(model, batch)[order], atol=1e-5, rtol=0)


def test_future_does_not_change_the_past(model, batch):
    before = logits_of(model, batch)
    batch["prev_output_tokens"][:, 4:] = torch.randint(4, 20, (B, T - 4))
    after = logits_of(model, batch)
    torch.testing.assert_close(after[:, :4], before[:, :4])
    assert not torch.allclose(after[:, 4:], before[:, 4:])


def test_words_and_image_of_another_row_do_not_leak(model, batch):
    before = logits_of(model, batch)
    batch["features"][0] += 1
    batch["prev_output_tokens"][0, 1:] = 5
    torch.testing.assert_close(logits_of(model, batch)[1:], before[1:])


def test_cost_of_a_token_does_not_grow_with_the_prefix(model):
    encoder_out = model.encoder(torch.randn(1, 1, D), torch.zeros(1, 1, dtype=torch.bool))
    tokens = torch.randint(4, 20, (1, 600))
    state: dict = {}
    durations = []
    with torch.no_grad():
        for step in range(1, 601):
            start = time.perf_counter()
            model.decoder(tokens[:, :step], encoder_out, state)
            durations.append(time.perf_counter() - start)
    early, late = (sorted(part)[len(part) // 2] for part in (durations[10:110], durations[-100:]))
    assert late < 2 * early
    assert all(x.numel() < 50 for saved in state.values() for x in saved.values())


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float16, marks=needs_float16_on_cpu), torch.bfloat16]
)
def test_half_precision_gives_finite_gradients(model, batch, dtype):
    model.train().to(dtype)
    batch["features"] = (batch["features"] * 100).to(dtype)
    logits, _ = model(**batch)
    assert logits.dtype == dtype
    lprobs = model.get_normalized_probs((logits, None), log_probs=True)
    assert lprobs.dtype == torch.float32
    lprobs.mean().backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert torch.isfinite(parameter.grad).all(), name


def test_state_dict_is_the_same_after_inference(model):
    before = model.state_dict().keys()
    model.prepare_for_inference_(PREPARED)
    assert model.state_dict().keys() == before


def test_weights_load_into_a_new_model(model, batch, request):
    arch = request.node.callspec.params["model"]
    other = build_model(arch, toy_task(), **SIZES)
    other.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(logits_of(other, batch), logits_of(model, batch))
