"""Log-bilinear models equal equations 7 to 11 of Kiros et al. 2014, written as loops."""

import math

import pytest
import torch
from numerics import assert_close
from omegaconf import OmegaConf
from toy_data import build_model, make_dictionary, toy_task

from fairseq_mm.errors import UserError

D, K, L, F, G, FORWARD = 5, 6, 3, 4, 7, 2  # L is n-1, FORWARD k
EOS, PAD = 2, 1
SENTENCE = [EOS, 7, 4, 19, 7, 3, 9]  # the start token, and words
TAGS = [6, 5, 11, 4, EOS]
SIZES = {"embedding_dim": K, "context_length": L, "feature_scaling": "none"}
ARCHS = {
    "lbl": {"embedding_dim": K, "context_length": L},
    "mlbl_b": SIZES,
    "mlbl_f": {**SIZES, "num_factors": F},
    "sc_nlm": {**SIZES, "num_factors": F, "attribute_dim": G, "structure_length": FORWARD},
}


def build(arch, **options):
    task = toy_task(structure_dictionary=make_dictionary(reverse=True))
    model = build_model(arch, task, **{**ARCHS[arch], **options})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def inputs_of(arch):
    inputs = {"features": torch.randn(1, 1, D), "padding_mask": torch.zeros(1, 1).bool()}
    if arch == "sc_nlm":
        inputs["src_tokens"] = torch.tensor([TAGS])
    return inputs


def log_softmax_by_loops(logits):
    return [x - math.log(sum(math.exp(y) for y in logits)) for x in logits]


def predicted_by_loops(decoder, vector_of):
    """Equations 7 and 10: r for each place of the sentence."""
    rows = []
    for t in range(len(SENTENCE)):
        r = torch.zeros(K)
        for i in range(1, L + 1):
            place = t - L + i
            word = SENTENCE[place] if place >= 0 else EOS
            C = decoder.context.weight[:, (i - 1) * K : i * K]
            r = r + C @ vector_of(word)
        rows.append(r)
    return rows


def additive_by_loops(model, term):
    """Equation 8, with a term that is added to r."""
    R, b = model.decoder.table.weight, model.decoder.output_bias
    lprobs = []
    for r in predicted_by_loops(model.decoder, lambda word: R[word]):
        logits = [float((r + term) @ R[i] + b[i]) for i in range(len(R))]
        lprobs.append(log_softmax_by_loops(logits))
    return torch.tensor(lprobs)


def factored_by_loops(model, gates):
    """Equations 9 and 10; ``gates`` are W^fd times each place's attribute vector."""
    W_fk, W_fv = model.decoder.factor_weight, model.decoder.table.weight.t()
    E = W_fk.t() @ W_fv
    b = model.decoder.output_bias
    lprobs = []
    for t, r in enumerate(predicted_by_loops(model.decoder, lambda word: E[:, word])):
        # softmax of T^u r + b, with T^u = (W^fv)' diag(W^fd u) W^fk
        T_u = W_fv.t() @ torch.diag(gates[t]) @ W_fk
        lprobs.append(log_softmax_by_loops((T_u @ r + b).tolist()))
    return torch.tensor(lprobs)


def attributes_by_loops(encoder, u):
    """Equation 11 for each place of the sentence: STOP beyond the last tag."""
    rows = []
    for n in range(len(SENTENCE)):
        x = encoder.structure_bias + encoder.content.weight @ u
        for i in range(FORWARD + 1):
            tag = TAGS[n + i] if n + i < len(TAGS) else EOS
            T_i = encoder.structure.weight[:, i * K : (i + 1) * K]
            x = x + T_i @ encoder.tag_embedding.weight[tag]
        rows.append(torch.tensor([max(value, 0.0) for value in x.tolist()]))
    return rows


def by_loops(arch, model, u):
    encoder = model.encoder
    if arch == "lbl":
        return additive_by_loops(model, torch.zeros(K))
    if arch == "mlbl_b":
        return additive_by_loops(model, encoder.content.weight @ u)
    if arch == "mlbl_f":
        return factored_by_loops(model, [encoder.content.weight @ u] * len(SENTENCE))
    gates = [encoder.factor_proj.weight @ x for x in attributes_by_loops(encoder, u)]
    return factored_by_loops(model, gates)


@pytest.mark.parametrize("arch", ARCHS)
def test_equals_the_equations_written_as_loops(arch):
    model = build(arch)
    inputs = inputs_of(arch)
    with torch.no_grad():
        logits, _ = model(**inputs, prev_output_tokens=torch.tensor([SENTENCE]))
        expected = by_loops(arch, model, inputs["features"][0, 0])
    lprobs = model.get_normalized_probs((logits, None), log_probs=True)[0]
    assert_close(lprobs, expected)


@pytest.mark.parametrize("arch", ARCHS)
def test_folded_steps_equal_the_equations(arch):
    model = build(arch)
    model.prepare_for_inference_(OmegaConf.create({"generation": {"beam": 2}}))
    inputs = inputs_of(arch)
    with torch.no_grad():
        expected = by_loops(arch, model, inputs["features"][0, 0])
        encoder_out = model.encoder(**inputs)
        state: dict = {}
        for t in range(1, len(SENTENCE) + 1):
            out = model.decoder(torch.tensor([SENTENCE[:t]]), encoder_out, state)
            lprobs = model.get_normalized_probs(out, log_probs=True)[0, 0]
            assert_close(lprobs, expected[t - 1])


def test_tags_may_be_padded_at_either_side():
    model = build("sc_nlm")
    tokens = torch.tensor([SENTENCE])
    inputs = inputs_of("sc_nlm")
    expected = model(**inputs, prev_output_tokens=tokens)[0]
    for tags in ([PAD, PAD, *TAGS], [*TAGS, PAD], [PAD, *TAGS, PAD], TAGS[:-1]):
        inputs["src_tokens"] = torch.tensor([tags])
        assert_close(model(**inputs, prev_output_tokens=tokens)[0], expected)


def test_default_sizes_are_those_of_the_paper():
    task = toy_task(feature_dim=300, structure_dictionary=make_dictionary())
    model = build_model("sc_nlm", task)
    V = len(make_dictionary())
    shapes = {name: tuple(x.shape) for name, x in model.named_parameters()}
    assert shapes == {
        "encoder.content.weight": (300, 300),  # T^(u)
        "encoder.tag_embedding.weight": (V, 300),
        "encoder.structure.weight": (300, 4 * 300),  # T^(n) ... T^(n+3)
        "encoder.structure_bias": (300,),
        "encoder.factor_proj.weight": (100, 300),  # W^fd
        "decoder.table.weight": (V, 100),  # W^fv
        "decoder.factor_weight": (100, 300),  # W^fk
        "decoder.context.weight": (300, 5 * 300),  # C^(1) ... C^(5)
        "decoder.output_bias": (V,),
    }
    shapes = {name: tuple(x.shape) for name, x in build_model("lbl", task).named_parameters()}
    assert shapes == {
        "decoder.table.weight": (V, 300),
        "decoder.context.weight": (300, 5 * 300),
        "decoder.output_bias": (V,),
    }


def test_checkpoint_carries_the_tags():
    model = build("sc_nlm")
    other = build_model(
        "sc_nlm", toy_task(structure_dictionary=make_dictionary()), **ARCHS["sc_nlm"]
    )
    with pytest.raises(UserError, match=r"source dictionary .*: the same words in another order"):
        other.load_state_dict(model.state_dict())
