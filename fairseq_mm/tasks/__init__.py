"""``--task``: what the data is, what is generated, how it is judged."""

from fairseq_mm.tasks import multimodal_captioning

__all__ = ["multimodal_captioning"]
