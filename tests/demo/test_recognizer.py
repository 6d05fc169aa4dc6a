"""The small network: labels by hand, loss by loops, and features that `extract` would compute."""

import math

import torch
from drawings import recognizer
from drawings.recognizer import (
    build_network,
    draw_examples,
    label_loss,
    normalize,
    train_recognizer,
)

from fairseq_mm.extract.extractor import build_extractor

# classes of the labels: 3 arrangements, 2 grounds, then 2 sizes, 6 colours, 4 shapes of two things,
# then 2 sizes, 6 colours and 5 places of 4 shapes, or none
CLASSES = [3, 2] + [2, 6, 4] * 2 + [3, 7, 6] * 4


def test_the_loss_is_the_sum_of_the_labels_cross_entropies():
    torch.manual_seed(0)
    logits = torch.randn(3, sum(CLASSES))
    labels = torch.tensor(
        [
            [2, 1, 0, 0, 0, 1, 3, 3, 1, 1, 4, 0, 0, 0, 0, 0, 0, 2, 4, 5],
            [1, 0, 1, 5, 2, 0, 4, 1, 0, 0, 0, 1, 5, 3, 2, 6, 2, 0, 0, 0],
            [0, 0, 1, 4, 2, -100, -100, -100, 0, 0, 0, 0, 0, 0, 2, 5, 1, 0, 0, 0],
        ]
    )
    expected = 0.0
    for row, own in zip(logits.tolist(), labels.tolist()):
        start = 0
        for size, label in zip(CLASSES, own):
            part = row[start : start + size]
            start += size
            if label >= 0:
                expected += math.log(sum(map(math.exp, part))) - part[label]
    torch.testing.assert_close(label_loss(logits, labels), torch.tensor(expected / 3))


def test_training_learns_and_then_leaves_the_first_layers_as_they_are(monkeypatch):
    losses, weights = [], []
    loss, train = recognizer.label_loss, recognizer._train

    def train_and_copy(network, *arguments, **options):
        train(network, *arguments, **options)
        weights.append((network.layer1[0].conv1.weight.clone(), network.fc.weight.clone()))

    monkeypatch.setattr(
        recognizer, "label_loss", lambda *args: losses.append(loss(*args)) or losses[-1]
    )
    monkeypatch.setattr(recognizer, "_train", train_and_copy)
    shown = []
    network, accuracy = train_recognizer(close_ups=320, images=64, seed=1, show=shown.append)
    assert [line.partition(",")[0] for line in shown] == [
        *(f"close-ups: {share}%" for share in (20, 40, 60, 80, 100)),
        *(f"whole images: {share}%" for share in (50, 100)),
    ]
    assert 0 <= accuracy <= 1
    assert not network.training
    assert sum(losses[5:10]) < 0.85 * sum(losses[:5])
    (first_close, last_close), (first_whole, last_whole) = weights
    assert torch.equal(first_close, first_whole)
    assert not torch.equal(last_close, last_whole)


def test_extract_computes_the_features_that_were_trained(tmp_path):
    torch.manual_seed(1)
    network = build_network().eval()
    torch.save(network.state_dict(), tmp_path / "recognizer.pt")
    images, _ = draw_examples(2, "seed")
    trained = {}
    network.avgpool.register_forward_hook(lambda *args: trained.update(features=args[2].flatten(1)))
    with torch.no_grad():
        network(normalize(images))
    extractor = build_extractor(
        recognizer.MODEL,
        weights=str(tmp_path / "recognizer.pt"),
        layer=recognizer.LAYER,
        size=64,
        resize_size=64,
        device="cpu",
    )
    assert extractor.dim == 256
    rows = torch.from_numpy(extractor.rows(images.permute(0, 2, 3, 1).contiguous().numpy()))
    # a quarter of the sum of 4 x 4 positions
    torch.testing.assert_close(4 * rows[:, 0], trained["features"], rtol=1e-4, atol=1e-4)
