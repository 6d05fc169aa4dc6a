"""Whatever order a search has, each row reads its own item."""

import pytest
import torch

from fairseq_mm.models._vg_bart_parts import ROWS, SharedMemory, reorder_items
from fairseq_mm.modules.video_fusion import VideoFusion

B, S, C, M, D = 3, 4, 6, 5, 7


@pytest.fixture
def fusion():
    torch.manual_seed(1)
    return VideoFusion(C, D, common_dim=8, num_heads=2).eval()


@pytest.fixture
def video():
    torch.manual_seed(2)
    return torch.randn(B, M, D)


def memory_of(fusion, video, rows):
    text, mask = torch.arange(B).float().view(1, B, 1).expand(S, B, C), torch.zeros(B, S).bool()
    video_mask = torch.zeros(B, M, dtype=torch.bool)
    video_mask[1, 3:] = True
    return SharedMemory(text, mask, {"2": fusion.project(video)}, video_mask, rows)


ORDERS = {
    "as they are": [0, 1, 2],
    "beams": [0, 0, 1, 1, 2, 2],
    "beams of fewer items": [1, 1, 1, 2, 2, 2],
    "uneven": [0, 0, 2],
    "mixed": [2, 0, 1, 0],
    "one item": [1, 1],
}


@pytest.mark.parametrize("first", ORDERS)
@pytest.mark.parametrize("second", ["kept", "turned", "fewer"])
def test_each_row_reads_its_item(fusion, video, first, second):
    rows = torch.tensor(ORDERS[first])
    memory = memory_of(fusion, video, rows)
    order = torch.arange(len(rows))
    order = {"kept": order, "turned": order.flip(0), "fewer": order[1:]}[second]
    memory.reorder(order)
    rows = rows[order]
    x = torch.randn(len(rows), 1, C)
    with torch.no_grad():
        found = memory.fuse(fusion, "2", x)
        for row, item in enumerate(rows.tolist()):
            frames = video[item : item + 1, : 3 if item == 1 else M]
            expected = fusion(x[row : row + 1], fusion.project(frames))
            torch.testing.assert_close(found[row : row + 1], expected)
    items = memory.text[0, :, 0].repeat_interleave(memory.size)
    assert items.tolist() == rows.tolist()


def test_an_order_of_orders_notes_the_items():
    out = {"encoder_out": [torch.zeros(S, B, C)], ROWS: []}
    beams = reorder_items(out, torch.tensor([0, 0, 1, 1, 2, 2]), B)
    assert beams["encoder_out"][0] is out["encoder_out"][0]
    kept = reorder_items(beams, torch.tensor([5, 4, 3]), B)
    assert kept[ROWS][0].tolist() == [2, 2, 1]
