"""``--task``: what the data is, what is generated, how it is judged."""

from fairseq_mm.tasks import (
    hierarchical_story,
    multimodal_captioning,
    video_summarization,
    visual_storytelling,
)

__all__ = [
    "hierarchical_story",
    "multimodal_captioning",
    "video_summarization",
    "visual_storytelling",
]
