"""Contracts that every system keeps: one table of systems, one test a contract.

1. Incremental decoding equals the full pass, with beams reordered at every step.
2. Padding, batch composition and batch order change nothing.
3. The future does not change the past.
4. The cost of a token does not grow with the prefix.
5. float16 and bfloat16 give finite losses and gradients.
6. A checkpoint loads without any other file.
"""

import contextlib
from functools import partial

import pytest
import torch
from numerics import assert_close
from omegaconf import OmegaConf
from toy_bart import TINY_BART
from toy_data import (
    build_model,
    make_dictionary,
    story_task,
    toy_task,
    video_task,
    visual_story_task,
    write_story_checkpoint,
)

from fairseq_mm.modules import packed_weights

B, N, T, D, S = 3, 2, 7, 5, 6
V = 20
PAD, EOS = 1, 2
SEPARATOR = 20  # of the dictionary of visual stories
PREPARED = OmegaConf.create({"generation": {"beam": 2}})
# two steps of a text whose costs are compared
EARLY, LENGTH = 3, 120


class Captions:
    """Systems that read features of images."""

    options = {"embedding_dim": 4, "hidden_dim": 6, "multimodal_dim": 9}  # noqa: RUF012
    keeps_padding = False

    def __init__(self, **options):
        self.options = options or self.options

    def build(self, arch, folder):
        return build_model(arch, toy_task(), **self.options)

    def inputs(self):
        padding_mask = torch.tensor([[False, False], [False, True], [False, False]])
        return {"features": torch.randn(B, N, D), "padding_mask": padding_mask}

    def alone(self, inputs, row):
        """Inputs of a row without its padding."""
        alone = {key: x[row : row + 1] for key, x in inputs.items()}
        if "src_tokens" in inputs:
            alone["src_tokens"] = alone["src_tokens"][:, inputs["src_tokens"][row].ne(PAD)]
        if "features" in inputs and not self.keeps_padding:
            real = ~inputs["padding_mask"][row]
            alone.update({key: alone[key][:, real] for key in ("features", "padding_mask")})
        return alone

    def change_padding(self, inputs):
        if "features" not in inputs:
            pytest.skip("padding of a text has no content")
        inputs["features"][inputs["padding_mask"]] = 1e4

    def change_row(self, inputs, row):
        if "features" in inputs:
            inputs["features"][row] += 1
        if "src_tokens" in inputs:
            inputs["src_tokens"][row, -2] = 4 + (inputs["src_tokens"][row, -2] + 1) % 10


class Regions(Captions):
    """Systems that read regions of images, which an unknown extractor has found."""

    def build(self, arch, folder):
        return build_model(arch, toy_task(feature_attributes={}), **self.options)


class AttendedRegions(Captions):
    """Systems that refuse an image of a single region; an image here has three or two."""

    def build(self, arch, folder):
        return build_model(arch.partition(" ")[0], toy_task(), **self.options)

    def inputs(self):
        padding_mask = torch.zeros(B, 3, dtype=torch.bool)
        padding_mask[1, 1] = True
        return {"features": torch.randn(B, 3, D), "padding_mask": padding_mask}


class VisualStories(Captions):
    """Systems that read five images; the texts have three sentences and a beginning."""

    options = {  # noqa: RUF012
        "picture_dim": 6,
        "encoder_hidden_dim": 4,
        "glocal_dim": 9,
        "embedding_dim": 5,
        "hidden_dim": 7,
    }
    keeps_padding = True

    def __init__(self, rows_per_image=1, **options):
        self.rows_per_image = rows_per_image
        self.options = {**self.options, **options}

    def build(self, arch, folder):
        task = visual_story_task(rows_per_image=self.rows_per_image)
        return build_model(arch, task, **self.options)

    def inputs(self):
        R = self.rows_per_image
        image_padding_mask = torch.zeros(B, 5, dtype=torch.bool)
        image_padding_mask[1, [0, 3]] = True
        image_padding_mask[2, 4] = True
        padding_mask = image_padding_mask.repeat_interleave(R, dim=1)
        features = torch.randn(B, 5 * R, D).masked_fill(padding_mask.unsqueeze(-1), 0)
        return {"features": features, "padding_mask": padding_mask}

    def change_words(self, tokens):
        """Sentences begin at different places of each row."""
        for row, places in enumerate([(3, 5), (2,), (1, 2, 6)]):
            tokens[row, list(places)] = SEPARATOR


class Stories(Captions):
    """Systems that read a prompt."""

    options = {  # noqa: RUF012
        "encoder_embed_dim": 8,
        "decoder_embed_dim": 8,
        "decoder_out_embed_dim": 10,
        "encoder_layers": "[(6, 3)] + [(7, 2)]",
        "decoder_layers": "[(6, 4)] * 2 + [(9, 3)]",
        "max_source_positions": 12,
        "max_target_positions": LENGTH + 2,
    }

    def build(self, arch, folder):
        options = dict(self.options)
        if "fusion" in arch:
            options["pretrained_checkpoint"] = write_story_checkpoint(
                folder / "pretrained.pt", "conv_story_gated", self.options
            )
        return build_model(arch, story_task(), **options)

    def inputs(self):
        tokens = torch.randint(4, V, (B, S))
        tokens[:, -1] = EOS
        tokens[1, :2] = PAD
        return {"src_tokens": tokens, "src_lengths": torch.tensor([S, S - 2, S])}


class StructuredCaptions(Captions):
    """Systems that read a content vector and the tags of the words to write."""

    def build(self, arch, folder):
        return build_model(arch, toy_task(structure_dictionary=make_dictionary()), **self.options)

    def inputs(self):
        return {**super().inputs(), **Stories.inputs(self)}


class Transcripts(Stories):
    """Systems that read a transcript alone."""

    options = {}  # noqa: RUF012

    def build(self, arch, folder):
        return build_model(arch, video_task(), **self.options)


class Videos(Transcripts):
    """Systems that read a transcript and the frames of a video."""

    def inputs(self):
        padding_mask = torch.tensor([[False] * 4, [False, False, True, True], [False] * 3 + [True]])
        features = torch.randn(B, 4, D).masked_fill(padding_mask.unsqueeze(-1), 0)
        return {**super().inputs(), "features": features, "padding_mask": padding_mask}


class Language(Captions):
    """Language models: the words before are all their input."""

    options = {  # noqa: RUF012
        "decoder_embed_dim": 8,
        "decoder_out_embed_dim": 10,
        "decoder_layers": "[(6, 4)] + [(9, 1)] + [(9, 3)]",
        "tokens_per_sample": LENGTH,
    }

    def inputs(self):
        return {}


SYSTEMS = {
    "m_rnn": Captions(),
    "m_rnn_base": Captions(),
    "m_rnn_no_emb_input": Captions(),
    "m_rnn_one_layer_emb": Captions(),
    "m_rnn_emb_one_input": Captions(),
    "m_rnn_vis_in_rnn": Captions(),
    "m_rnn_vis_in_rnn_both": Captions(),
    "m_rnn_vis_in_rnn_both_shared": Captions(),
    "m_rnn_tiny": Captions(recurrent_activation="sigmoid", recurrent_input="concatenation"),
    "m_rnn attention": AttendedRegions(**Captions.options, attention="soft"),
    "transformer_captioner": Regions(
        embed_dim=8, encoder_layers=2, ffn_dim=10, attention_heads=2, feature_dropout=0.0
    ),
    "transformer_captioner_tiny": Regions(encoder_layers=0),
    "lbl": Captions(embedding_dim=6, context_length=4),
    "mlbl_b": Captions(embedding_dim=6, context_length=4),
    "mlbl_f": Captions(embedding_dim=6, context_length=4, num_factors=8),
    "sc_nlm": StructuredCaptions(
        embedding_dim=6, context_length=4, num_factors=8, attribute_dim=7, structure_length=2
    ),
    "glac": VisualStories(),
    "glac_non_local": VisualStories(rows_per_image=4),
    "glac_decoder_attention": VisualStories(),
    "transtory_decoder": VisualStories(embedding_dim=8, decoder_ffn_dim=10),
    "transtory_full": VisualStories(
        picture_dim=12, embedding_dim=8, decoder_ffn_dim=10, encoder_ffn_dim=9
    ),
    "transtory_xl": VisualStories(
        embedding_dim=5,
        model_dim=8,
        decoder_attention_heads=2,
        head_dim=3,
        decoder_ffn_dim=10,
        memory_length=7,
        segment_length=4,
    ),
    "conv_story": Stories(),
    "conv_story_self_att": Stories(),
    "conv_story_multihead": Stories(),
    "conv_story_multiscale": Stories(),
    "conv_story_gated": Stories(),
    "conv_story_wp": Stories(),
    "conv_story_fusion": Stories(),
    "gcnn_lm": Language(),
    "gcnn_lm_self_att": Language(),
    "hierarchical_attention_rnn": Videos(embedding_dim=6, encoder_hidden_dim=4, hidden_dim=7),
    "hierarchical_attention_transformer": Videos(
        embed_dim=8,
        encoder_layers=2,
        video_encoder_layers=2,
        decoder_layers=2,
        ffn_dim=10,
        attention_heads=2,
    ),
    "mffg_rnn": Videos(embedding_dim=6, encoder_hidden_dim=4, hidden_dim=7),
    "mffg_transformer": Videos(
        embed_dim=8, encoder_layers=2, decoder_layers=2, ffn_dim=10, attention_heads=2
    ),
    "t5_tiny": Transcripts(),
    "pointer_generator": Transcripts(embedding_dim=5, hidden_dim=7, attention_dim=9),
    "pointer_generator_tiny": Transcripts(coverage=True),
    "vg_bart": Videos(
        **TINY_BART,
        fusion="dot_product",
        fusion_encoder_layers="",
        fusion_decoder_layers="2",
        forget_gate="off",
        fusion_identity_init=True,
        video_encoder_layers=0,
    ),
    "vg_bart_dot_product_fg_vtf": Videos(
        **TINY_BART,
        fusion_encoder_layers="2",
        video_encoder_layers=2,
        video_encoder_heads=1,
        video_encoder_ffn_dim=7,
    ),
    "vg_bart_tiny": Videos(fusion_decoder_layers="1"),
    "vg_t5_tiny": Videos(fusion_decoder_layers="1"),
}


@pytest.fixture(params=SYSTEMS)
def arch(request):
    return request.param


@pytest.fixture
def kind(arch):
    return SYSTEMS[arch]


@pytest.fixture
def model(arch, kind, tmp_path):
    model = kind.build(arch, tmp_path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@pytest.fixture
def batch(kind):
    torch.manual_seed(11)
    inputs = kind.inputs()
    tokens = torch.randint(4, V, (B, T))
    if hasattr(kind, "change_words"):
        kind.change_words(tokens)
    tokens[:, 0] = EOS
    return {**inputs, "prev_output_tokens": tokens}


def full_pass(model, batch):
    if not hasattr(model, "encoder"):
        return model(batch["prev_output_tokens"])[0]
    return model(**batch)[0]


def logits_of(model, batch):
    with torch.no_grad():
        return full_pass(model, batch)


def encode(model, batch):
    if not hasattr(model, "encoder"):
        return None
    return model.encoder(**{key: x for key, x in batch.items() if key != "prev_output_tokens"})


def rows_of(batch, order):
    return {key: x[order] for key, x in batch.items()}


@pytest.mark.parametrize("preparation", ["none", "fairseq's", "packed weights"])
def test_incremental_decoding_equals_the_full_pass_under_reordering(
    model, batch, preparation, monkeypatch
):
    if preparation != "none":
        model.prepare_for_inference_(PREPARED)
    if preparation == "packed weights":
        # tiny weights as well
        monkeypatch.setattr(packed_weights, "_MIN_ELEMENTS", 1)
        full_before = logits_of(model, batch)
        packed_weights.pack_weights(model)
        assert_close(logits_of(model, batch), full_before)
    state: dict = {}
    order = torch.arange(B)
    tokens = batch["prev_output_tokens"].clone()
    with torch.no_grad():
        encoder_out = encode(model, batch)
        for step in range(1, T + 1):
            step_logits = model.decoder(tokens[:, :step], encoder_out, state)[0]
            now = {**rows_of(batch, order), "prev_output_tokens": tokens[:, :step]}
            full = full_pass(model, now)
            assert step_logits.shape == (B, 1, len(model.decoder.dictionary))
            assert_close(step_logits[:, 0], full[:, -1])
            new_order = torch.randint(0, B, (B,))
            model.decoder.reorder_incremental_state_scripting(state, new_order)
            if encoder_out is not None:
                encoder_out = model.encoder.reorder_encoder_out(encoder_out, new_order)
            tokens, order = tokens[new_order], order[new_order]
            if step < T:
                words = torch.randint(4, V, (B,))
                tokens[:, step] = words.where(tokens[:, step] != SEPARATOR, tokens[:, step])


def test_rows_that_are_finished_can_leave_while_decoding(model, batch):
    state: dict = {}
    kept = torch.tensor([0, 2])
    tokens = batch["prev_output_tokens"]
    with torch.no_grad():
        encoder_out = encode(model, batch)
        for step in range(1, 4):
            model.decoder(tokens[:, :step], encoder_out, state)
        model.decoder.reorder_incremental_state_scripting(state, kept)
        if encoder_out is not None:
            encoder_out = model.encoder.reorder_encoder_out(encoder_out, kept)
        left = model.decoder(tokens[kept, :4], encoder_out, state)[0][:, 0]
    full = logits_of(model, {**batch, "prev_output_tokens": tokens[:, :4]})[kept, -1]
    assert_close(left, full)


@pytest.mark.parametrize("arch", [arch for arch in SYSTEMS if arch.startswith(("conv_", "gcnn_"))])
def test_rows_with_fewer_tokens_can_join_while_decoding(model, batch, kind):
    """Inputs 1 and 2 join after 2 and 3 tokens; inputs 1 and 0 leave after 5 and 6 tokens."""
    assert model.decoder.can_join
    rows = [
        {**kind.alone(batch_inputs(batch), row), "prev_output_tokens": tokens[None]}
        for row, tokens in enumerate(batch["prev_output_tokens"])
    ]
    # number of steps of the first row at which a row joins
    begins, states, encoded = {0: 0, 1: 2, 2: 3}, [{} for _ in rows], [None] * B

    def decode(state, encoder_out, numbers):
        width = max(numbers.values())
        tokens = torch.full((len(numbers), width), PAD)
        for place, (row, number) in enumerate(numbers.items()):
            tokens[place, width - number :] = batch["prev_output_tokens"][row, :number]
        logits = model.decoder(tokens, encoder_out, state)[0]
        for place, (row, number) in enumerate(numbers.items()):
            now = {**rows[row], "prev_output_tokens": rows[row]["prev_output_tokens"][:, :number]}
            assert_close(logits[place, -1], full_pass(model, now)[0, -1])

    def reorder(state, encoder_out, order):
        order = torch.tensor(order)
        model.decoder.reorder_incremental_state_scripting(state, order)
        if encoder_out is not None:
            encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)
        return encoder_out

    with torch.no_grad():
        numbers: dict = {}
        for step in range(T + 2):
            for row in [row for row, begin in begins.items() if begin == step]:
                encoded[row] = encode(model, rows[row])
                decode(states[row], encoded[row], {row: 1})
                if row:
                    model.decoder.join_incremental_state(states[0], states[row])
                    if encoded[0] is not None:
                        encoded[0] = model.encoder.join_encoder_out(encoded[0], encoded[row])
                numbers[row] = 1
            if step == 5:
                del numbers[1]
                encoded[0] = reorder(states[0], encoded[0], [0, 2])
            if step == 6:  # the longest row leaves, and beams change places
                del numbers[0]
                encoded[0] = reorder(states[0], encoded[0], [1])
            numbers = {row: number + 1 for row, number in numbers.items()}
            decode(states[0], encoded[0], numbers)


def test_padding_and_batch_composition_change_nothing(model, batch, kind):
    together = logits_of(model, batch)
    for row in range(B):
        tokens = batch["prev_output_tokens"][row : row + 1, : T - row]
        alone = logits_of(
            model, {**kind.alone(batch_inputs(batch), row), "prev_output_tokens": tokens}
        )
        assert_close(alone[0], together[row, : T - row])


def batch_inputs(batch):
    return {key: x for key, x in batch.items() if key != "prev_output_tokens"}


def test_content_of_padding_changes_nothing(model, batch, kind):
    before = logits_of(model, batch)
    kind.change_padding(batch)
    torch.testing.assert_close(logits_of(model, batch), before)


def test_batch_order_changes_nothing(model, batch):
    order = torch.tensor([2, 0, 1])
    shuffled = logits_of(model, rows_of(batch, order))
    assert_close(shuffled, logits_of(model, batch)[order])


def test_future_does_not_change_the_past(model, batch):
    before = logits_of(model, batch)
    batch["prev_output_tokens"][:, 4:] = torch.randint(4, V, (B, T - 4))
    after = logits_of(model, batch)
    torch.testing.assert_close(after[:, :4], before[:, :4])
    assert not torch.allclose(after[:, 4:], before[:, 4:])


def test_words_and_input_of_another_row_do_not_leak(model, batch, kind):
    before = logits_of(model, batch)
    kind.change_row(batch, 0)
    batch["prev_output_tokens"][0, 1:] = 5
    after = logits_of(model, batch)
    torch.testing.assert_close(after[1:], before[1:])
    assert not torch.allclose(after[0], before[0])


@contextlib.contextmanager
def cost_of(is_counted):
    """Count the operations of PyTorch within, and the bytes that they allocate."""
    cost = {}
    if not is_counted:
        yield cost
        return
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        yield cost
    cost["operations"] = len(profile.events())
    cost["bytes"] = sum(max(0, event.self_cpu_memory_usage) for event in profile.events())


def test_cost_of_a_token_does_not_grow_with_the_prefix(model, batch, kind):
    alone = kind.alone(batch_inputs(batch), 0)
    tokens = torch.randint(4, V, (1, LENGTH))
    state: dict = {}
    costs = {}
    with torch.no_grad():
        encoder_out = encode(model, alone)
        for step in range(1, LENGTH + 1):
            with cost_of(step in (EARLY, LENGTH)) as cost:
                model.decoder(tokens[:, :step], encoder_out, state)
            costs[step] = cost
    early, late = costs[EARLY], costs[LENGTH]
    assert late["operations"] < 1.1 * early["operations"]
    # attention over the prefix adds at most 0.07 of that for each of its tokens; a decoder that
    # computes the prefix again adds 1 / EARLY
    assert late["bytes"] - early["bytes"] < 0.15 * early["bytes"] * (LENGTH - EARLY)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_finite_gradients(model, batch, dtype):
    model.train().to(dtype)
    if "features" in batch:
        batch["features"] = (batch["features"] * 100).to(dtype)
    logits = full_pass(model, batch)
    assert logits.dtype == dtype
    lprobs = model.get_normalized_probs((logits, None), log_probs=True)
    assert lprobs.dtype == torch.float32
    lprobs.mean().backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert torch.isfinite(parameter.grad).all(), name


def test_every_parameter_learns_but_the_frozen_ones(model, batch):
    full_pass(model, batch).logsumexp(-1).sum().backward()
    still = {
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and (parameter.grad is None or not parameter.grad.any())
    }
    assert not still, still


def test_state_dict_is_the_same_after_inference(model):
    before = model.state_dict().keys()
    model.prepare_for_inference_(PREPARED)
    assert model.state_dict().keys() == before


def test_weights_load_into_a_new_model(model, batch, arch, kind, tmp_path):
    other = kind.build(arch, tmp_path)
    other.load_state_dict(model.state_dict(), strict=True)
    assert torch.equal(logits_of(other, batch), logits_of(model, batch))


def test_a_dictionary_in_another_order_is_refused(model, arch, kind, tmp_path, monkeypatch):
    state = model.state_dict()
    monkeypatch.setattr("toy_data.make_dictionary", partial(make_dictionary, reverse=True))
    other = kind.build(arch.replace("conv_story_fusion", "conv_story_gated"), tmp_path)
    with pytest.raises(Exception, match="the same words in another order"):
        other.load_state_dict(
            {key: x for key, x in state.items() if key in other.state_dict()}, strict=False
        )
