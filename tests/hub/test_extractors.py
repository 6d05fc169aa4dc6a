"""Networks that timm downloads from the hub."""

from pathlib import Path

import pytest
import torch
from hub_server import Repository

from fairseq_mm.errors import UserError
from fairseq_mm.extract.extractor import build_extractor, build_extractor_from_identity

timm = pytest.importorskip("timm")
safetensors = pytest.importorskip("safetensors.torch")


def test_weights_of_timm_are_downloaded_and_refused_if_they_have_changed(hub, tmp_path):
    repository = hub.repositories["timm/test_vit.r160_in1k"] = Repository()
    torch.manual_seed(1)
    state = timm.create_model("test_vit").state_dict()

    def publish():
        safetensors.save_file(state, tmp_path / "w")
        repository.commit("main", {"model.safetensors": Path(tmp_path / "w").read_bytes()})

    publish()
    one = build_extractor("timm:test_vit")
    assert one.identity["weights"] == "timm:r160_in1k"
    assert build_extractor_from_identity(one.identity).identity == one.identity
    state["norm.bias"] = state["norm.bias"] + 1
    publish()
    with pytest.raises(UserError, match="were made with weights_digest = "):
        build_extractor_from_identity(one.identity)
