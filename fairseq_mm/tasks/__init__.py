"""Tasks (``--task``): each defines the data, the generated text and its evaluation."""

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
