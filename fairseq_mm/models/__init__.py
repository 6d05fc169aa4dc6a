"""``--arch``: one published system a file; shared parts begin with an underscore."""

from fairseq_mm.models import (
    conv_story,
    conv_story_fusion,
    gcnn_lm,
    glac,
    m_rnn,
    transtory_decoder,
    transtory_full,
    transtory_xl,
)

__all__ = [
    "conv_story",
    "conv_story_fusion",
    "gcnn_lm",
    "glac",
    "m_rnn",
    "transtory_decoder",
    "transtory_full",
    "transtory_xl",
]
