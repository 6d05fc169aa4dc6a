"""VG-T5: what fusions change and leave, as released and from text-only checkpoints."""

import pytest
import torch
from toy_data import build_model, video_task

from fairseq_mm.models.vg_t5 import fuse_at_unit_scale
from fairseq_mm.modules.video_fusion import VideoFusion

B, S, T, M, D = 3, 6, 5, 4, 5


@pytest.fixture
def batch():
    torch.manual_seed(0)
    padding_mask = torch.tensor([[False] * 4, [False, False, True, True], [False] * 3 + [True]])
    previous = torch.randint(4, 20, (B, T))
    previous[:, 0] = 1
    return {
        "src_tokens": torch.randint(4, 20, (B, S)),
        "src_lengths": torch.full((B,), S),
        "features": torch.randn(B, M, D).masked_fill(padding_mask.unsqueeze(-1), 0),
        "padding_mask": padding_mask,
        "prev_output_tokens": previous,
    }


def text_of(batch):
    return {key: x for key, x in batch.items() if key not in ("features", "padding_mask")}


def make(**options):
    return build_model("vg_t5_tiny", video_task(), **options)


def test_fusion_is_of_the_stream_at_unit_scale():
    torch.manual_seed(0)
    fusion = VideoFusion(6, D, kind="dot_product").eval()
    text, video = torch.randn(B, S, 6) * 50 + 20, torch.randn(B, M, D)
    out = fuse_at_unit_scale(fusion, text, fusion.project(video), None, None)
    for b in range(B):
        for n in range(S):
            root = (sum(float(x) ** 2 for x in text[b, n]) / 6) ** 0.5
            unit = (text[b : b + 1, n : n + 1]) / root
            expected = fusion(unit, fusion.project(video[b : b + 1])) * root
            torch.testing.assert_close(out[b, n], expected[0, 0], atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("layers", [("2,3", ""), ("", "1,2"), ("1,3", "2")])
def test_identity_fusions_leave_every_digit_of_the_text_model(batch, layers):
    model = make(
        fusion_encoder_layers=layers[0], fusion_decoder_layers=layers[1], fusion_identity_init=True
    )
    text_only = build_model("t5_tiny", video_task())
    model.load_state_dict(text_only.state_dict())
    assert torch.equal(model(**batch)[0], text_only(**text_of(batch))[0])


def test_released_fuses_after_the_last_norm_without_video_encoder(batch):
    model = make(compat="released", fusion_encoder_layers="3", fusion="dot_product")
    assert model.encoder.video.encoder is None
    text_only = build_model("t5_tiny", video_task())
    model.load_state_dict(text_only.state_dict())
    normed = text_only.encoder(batch["src_tokens"])["encoder_out"][0].transpose(0, 1)
    fusion = model.encoder.fusions["3"]
    # zeros up to the task's 9 frames are attended
    video = torch.cat([batch["features"], torch.zeros(B, 9 - M, D)], dim=1)
    expected = fusion(normed, fusion.project(video))
    found = model.encoder(
        batch["src_tokens"], features=batch["features"], padding_mask=batch["padding_mask"]
    )
    torch.testing.assert_close(found["encoder_out"][0].transpose(0, 1), expected)


def test_text_only_weights_load_and_video_weights_load_as_they_are(batch):
    model, text_only = make(), build_model("t5_tiny", video_task())
    with torch.no_grad():
        for parameter in text_only.parameters():
            parameter.add_(0.5)
    first = {name: x.clone() for name, x in model.state_dict().items()}
    model.load_state_dict(text_only.state_dict(), strict=True)
    state = model.state_dict()
    for name, x in text_only.named_parameters():
        assert torch.equal(state[name], x)
    new = [name for name, x in model.named_parameters() if hasattr(x, "param_group")]
    assert new
    assert all(torch.equal(state[name], first[name]) for name in new)
    assert set(new) == set(dict(model.named_parameters())) - set(dict(text_only.named_parameters()))
    other = make()
    other.load_state_dict(state, strict=True)
    assert torch.equal(other(**batch)[0], model(**batch)[0])


def test_fusion_is_in_the_last_two_encoder_layers_by_default():
    assert set(make().encoder.fusions) == {"2", "3"}
    assert set(make(encoder_layers=1).encoder.fusions) == {"1"}
    assert set(make(encoder_layers=5).encoder.fusions) == {"4", "5"}
    assert (
        set(make(fusion_encoder_layers="none", fusion_decoder_layers="2").encoder.fusions) == set()
    )
