"""Small models that summarise videos, with random weights, as fairseq-train saves them."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from toy_data import build_model

import fairseq_mm


def data_task(data: Path) -> Any:
    """The task of a data folder."""
    fairseq_mm.register()
    from fairseq_mm.tasks.video_summarization import (
        VideoSummarizationConfig,
        VideoSummarizationTask,
    )

    return VideoSummarizationTask.setup_task(VideoSummarizationConfig(data=str(data), seed=1))


def random_summarizer(arch: str, task: Any, **options: Any) -> Any:
    """A model whose words depend on their videos, in evaluation mode."""
    if task.features is None:
        task.open_features()
    model = build_model(arch, task, **options)
    task.start_index = getattr(model, "start_index", task.start_index)  # as its build_model does
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return model


def write_video_summarizer(path: Path, arch: str, data: Path, **options: Any) -> Path:
    """A checkpoint of such a model, with what loading it reads."""
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    task = data_task(data)
    model = random_summarizer(arch, task, **options)
    cfg = Namespace(**options)
    ARCH_CONFIG_REGISTRY[arch](cfg)
    fields = ARCH_MODEL_REGISTRY[arch].__dataclass.__dataclass_fields__
    defaults = {name: field.default for name, field in fields.items()}
    state = {
        "args": None,
        "cfg": {
            "model": {**defaults, **vars(cfg), "_name": arch},
            "task": {"_name": "video_summarization", "source_lang": "tran", "target_lang": "desc"},
        },
        "model": model.state_dict(),
        "task_state": task.state_dict(),
        "optimizer_history": [
            {"optimizer_name": "Adam", "lr_scheduler_state": {}, "num_updates": 1}
        ],
        "extra_state": {"train_iterator": {"epoch": 1}},
    }
    torch.save(state, path)
    return path
