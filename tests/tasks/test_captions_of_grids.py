"""Captions of grids: trained from a data folder, generated from a checkpoint, refused if pooled."""

import numpy as np
import pytest
from toy_data import EXTRACTOR, make_captions_folder, run_fairseq, write_store

import fairseq_mm
from fairseq_mm.errors import UserError

D, REGIONS = 5, 4
TRAIN = (
    *("--task", "multimodal_captioning", "--criterion", "cross_entropy", "--optimizer", "adam"),
    *("--cpu", "--max-update", "2", "--batch-size", "12", "--num-workers", "0"),
    *("--log-format", "none", "--no-epoch-checkpoints"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data folder with a grid of 2 x 2 for each image."""
    folder = make_captions_folder(tmp_path_factory.mktemp("grids") / "data", dim=D)
    keys = [
        f"{split}{i}.jpg" for split, count in (("train", 12), ("valid", 7)) for i in range(count)
    ]
    (folder / "features.h5").unlink()
    attributes = {**EXTRACTOR, "grid": 1}
    write_store(folder / "features.h5", keys, dim=D, rows=REGIONS, attributes=attributes)
    return folder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--arch", "transformer_captioner_tiny"), "trained on a grid of each image"),
        (("--arch", "m_rnn_tiny", "--attention", "soft"), "trained on a grid of each image"),
    ],
)
def test_a_model_of_grids_writes_captions_of_grids_only(
    folder, tmp_path, monkeypatch, options, message
):
    run_fairseq(monkeypatch, "train", folder, *TRAIN, *options, "--save-dir", tmp_path / "saved")
    model = fairseq_mm.from_pretrained(tmp_path / "saved", device="cpu")
    rng = np.random.default_rng(3)
    grids = rng.normal(size=(3, REGIONS, D)).astype(np.float32)
    together = model.generate(list(grids), beam=2, max_len_b=6)
    alone = [model.generate([grid], beam=2, max_len_b=6)[0] for grid in grids]
    assert [best.text for best, *_ in together] == [best.text for best, *_ in alone]
    with pytest.raises(UserError, match=message):
        model.generate([grids[0, :1]])
