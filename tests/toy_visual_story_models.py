"""Small models of visual stories with random weights, as fairseq-train saves them."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from toy_data import build_model, visual_story_task


def random_story_model(arch: str, *, seed: int = 7, **task: Any) -> Any:
    """A model whose words depend on their images, in evaluation mode."""
    import fairseq_mm

    fairseq_mm.register()
    model = build_model(arch, visual_story_task(**task))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.4)
    return model


def write_story_checkpoint(path: Path, arch: str, *, seed: int = 7, **task: Any) -> str:
    """A checkpoint of such a model, with what loading it reads."""
    from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

    model = random_story_model(arch, seed=seed, **task)
    cfg = Namespace()
    ARCH_CONFIG_REGISTRY[arch](cfg)
    fields = ARCH_MODEL_REGISTRY[arch].__dataclass.__dataclass_fields__
    defaults = {name: field.default for name, field in fields.items()}
    state = {
        "args": None,
        "cfg": {
            "model": {**defaults, **vars(cfg), "_name": arch},
            "task": {"_name": "visual_storytelling"},
        },
        "model": model.state_dict(),
        "optimizer_history": [
            {"optimizer_name": "Adam", "lr_scheduler_state": {}, "num_updates": 1}
        ],
        "extra_state": {"train_iterator": {"epoch": 1}},
    }
    torch.save(state, path)
    return str(path)
