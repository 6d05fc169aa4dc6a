"""Stories of prompts by fusion with a trained story model (``--arch conv_story_fusion``).

Fan, Lewis, Dauphin. Hierarchical Neural Story Generation. ACL 2018.
https://arxiv.org/abs/1805.04833, sections 3.4, 5.2 and 9.4.

    --arch conv_story_fusion --pretrained-checkpoint checkpoints/conv_story_gated/checkpoint_best.pt

The trained model is frozen. Learned gates join its hidden states with the hidden states of the
model in training. The resulting checkpoint contains both models.

Not compared with the lists in 9.4: the second model has five encoder layers of 128, 128, 512, 512
and 512 channels and five decoder layers of 512, 512, 512, 768 and 768, with kernels of 3 and 4. For
the differences from the released code see ``conv_story.py``.
"""

from fairseq_mm.models._presets import register_presets
from fairseq_mm.models.conv_story import GATED

ENCODER_LAYERS = "[(128, 3)] * 2 + [(512, 3)] * 3"
DECODER_LAYERS = "[(512, 4)] * 3 + [(768, 4)] * 2"


register_presets(
    "conv_story",
    {
        "conv_story_fusion": {
            **GATED,
            "encoder_layers": ENCODER_LAYERS,
            "decoder_layers": DECODER_LAYERS,
            "pretrained": "True",
        },
    },
)
