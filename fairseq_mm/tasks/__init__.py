"""Tasks (``--task``): each defines its data, the text that it generates, and the evaluation."""

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
