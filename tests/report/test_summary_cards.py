"""Cards of summaries show what was read, and text is never markup."""

import base64
import io
import re

import numpy as np
from PIL import Image

from fairseq_mm.report.html_page import render_page
from fairseq_mm.report.item_gallery import SummaryCard, cards_section


def test_a_card_has_frames_summary_and_transcript():
    frames = [np.full((6, 9, 3), level, np.uint8) for level in (40, 200)]
    cards = [
        SummaryCard("a & b.mp4", "<b>x", "i <3 it", {"score": -1.5, "frames_cut": True}, frames),
        SummaryCard("c.mp4", "y", "z", {}),
    ]
    page = render_page("Summaries", [cards_section(cards)])
    assert "&lt;b&gt;x" in page
    assert "i &lt;3 it" in page
    assert "a &amp; b.mp4: score -1.5, frames cut True" in page
    assert page.count('<article class="video">') == 2
    uris = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', page)
    images = [np.asarray(Image.open(io.BytesIO(base64.b64decode(uri)))) for uri in uris]
    assert [image.shape for image in images] == [(6, 9, 3)] * 2
    assert [int(image.mean().round()) for image in images] == [40, 200]
