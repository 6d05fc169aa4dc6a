"""Examples become a batch of the documented keys, shapes and padding."""

import numpy as np
import torch

from fairseq_mm.data.collate import collate, pad_features

PAD, EOS = 1, 2


def example(line, rows, target, source=None, is_first=True):
    return {
        "id": line,
        "features": np.full((rows, 3), float(line), dtype=np.float32),
        "target": torch.tensor(target),
        "source": None if source is None else torch.tensor(source),
        "is_first": is_first,
    }


def test_batch_by_hand():
    batch = collate(
        [example(4, 1, [7, 8, EOS]), example(9, 2, [5, EOS], is_first=False)], pad=PAD, start=EOS
    )
    assert batch["id"].tolist() == [4, 9]
    assert (batch["nsentences"], batch["ntokens"]) == (2, 5)
    assert batch["is_first"].tolist() == [True, False]
    assert batch["target"].tolist() == [[7, 8, EOS], [5, EOS, PAD]]
    net_input = batch["net_input"]
    assert net_input["prev_output_tokens"].tolist() == [[EOS, 7, 8], [EOS, 5, PAD]]
    assert net_input["features"][:, :, 0].tolist() == [[4, 0], [9, 9]]
    assert net_input["padding_mask"].tolist() == [[False, True], [False, False]]
    assert set(net_input) == {"features", "padding_mask", "prev_output_tokens"}


def test_the_longest_source_text_comes_first_with_all_that_is_its():
    lines = [(0, [5, EOS]), (1, [6, 7, 8, EOS]), (2, [9, 6, EOS]), (3, [7, EOS])]
    batch = collate(
        [example(line, 1 + line % 2, [10 + line, EOS], source) for line, source in lines],
        pad=PAD,
        start=EOS,
        source_pad=PAD,
    )
    assert batch["id"].tolist() == [1, 2, 0, 3]
    assert batch["target"][:, 0].tolist() == [11, 12, 10, 13]
    assert batch["net_input"]["src_lengths"].tolist() == [4, 3, 2, 2]
    assert batch["net_input"]["padding_mask"].any(dim=1).tolist() == [False, True, True, False]


def test_examples_without_text_have_no_target():
    samples = [dict(example(0, 1, [2]), target=None), dict(example(1, 1, [2]), target=None)]
    batch = collate(samples, pad=PAD, start=EOS)
    assert batch["target"] is None
    assert "prev_output_tokens" not in batch["net_input"]
    assert batch["ntokens"] == 2


def test_features_keep_their_precision():
    features, _ = pad_features([np.ones((2, 3), np.float16), np.ones((1, 3), np.float16)])
    assert features.dtype == torch.float16
    assert features[1, 1].tolist() == [0, 0, 0]


def test_rows_of_missing_images_are_padding_where_they_stand():
    mask = np.array([False, True, True])
    examples = [
        dict(example(0, 3, [5, EOS]), missing=mask),
        example(1, 4, [6, EOS]),
        dict(example(2, 1, [7, EOS]), missing=None),
    ]
    padding_mask = collate(examples, pad=PAD, start=EOS)["net_input"]["padding_mask"]
    assert padding_mask.int().tolist() == [[0, 1, 1, 1], [0, 0, 0, 0], [0, 1, 1, 1]]
    _, alone = pad_features([np.zeros((3, 2))], [mask])
    assert alone.tolist() == [[False, True, True]]


def test_rows_are_shifted_each_for_itself():
    rows = [[7, 8, EOS], [EOS], [5, EOS]]
    batch = collate([example(i, 1, row) for i, row in enumerate(rows)], pad=PAD, start=3)
    shifted = [[3, 7, 8], [3, PAD, PAD], [3, 5, PAD]]
    assert batch["net_input"]["prev_output_tokens"].tolist() == shifted
    assert batch["target"].tolist() == [[7, 8, EOS], [EOS, PAD, PAD], [5, EOS, PAD]]
