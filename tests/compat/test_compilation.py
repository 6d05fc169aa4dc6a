"""--compile: the same training as without it, and errors of one line."""

import pytest
import torch
from toy_data import make_captions_folder
from toy_training_states import train_until

from fairseq_mm.tasks.multimodal_task import without_cudnn_attention

TRAINING = ("--task", "multimodal_captioning", "--arch", "m_rnn_tiny")


def test_a_compiled_training_ends_with_the_same_weights(tmp_path, monkeypatch):
    compiled = []

    def compile_by_tracing(model):  # without the C++ compiler, which takes half a minute
        compiled.append(type(model).__name__)
        original(model, backend="eager")

    original = torch.nn.Module.compile
    make_captions_folder(tmp_path / "data")
    plain = train_until(tmp_path / "data", tmp_path / "plain", 3, *TRAINING)
    assert not compiled
    monkeypatch.setattr(torch.nn.Module, "compile", compile_by_tracing)
    other = train_until(tmp_path / "data", tmp_path / "other", 3, *TRAINING, "--compile")
    assert compiled == ["MRnnModel"]
    for name, weights in plain["model"].items():
        torch.testing.assert_close(other["model"][name], weights)


def test_attention_of_a_search_is_not_computed_by_cudnn(monkeypatch):
    backends = torch.backends.cuda
    if not hasattr(backends, "enable_cudnn_sdp"):
        pytest.skip("this PyTorch has no attention by cuDNN")
    before = backends.cudnn_sdp_enabled()
    with without_cudnn_attention():  # without a GPU, nothing is changed
        assert backends.cudnn_sdp_enabled() == before
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    try:
        backends.enable_cudnn_sdp(True)
        with without_cudnn_attention():
            assert not backends.cudnn_sdp_enabled()
        assert backends.cudnn_sdp_enabled()
    finally:
        backends.enable_cudnn_sdp(before)
