"""Models (``--arch``): one file per published system, and shared parts in files named ``_*.py``."""

import functools
from typing import Any

from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY

from fairseq_mm.compat import activate, is_ours
from fairseq_mm.compat.options import check_sizes
from fairseq_mm.errors import UserError
from fairseq_mm.models import (  # noqa: F401
    conv_story,
    gcnn_lm,
    glac,
    hierarchical_attention_rnn,
    hierarchical_attention_transformer,
    lbl,
    m_rnn,
    mffg_rnn,
    mffg_transformer,
    mlbl_b,
    mlbl_f,
    pointer_generator,
    sc_nlm,
    t5,
    transformer_captioner,
    transtory_decoder,
    transtory_full,
    transtory_xl,
    vg_bart,
    vg_t5,
    vse,
)


def _prepare_building(model: Any, config: type) -> None:
    """Let ``model.build_model`` first patch fairseq and check the options of ``config``."""
    # Importing the package must not change fairseq for models of other packages, so the repairs
    # are applied when a model of this package is built.
    build = model.build_model.__func__

    @functools.wraps(build)
    def build_model(cls: Any, cfg: Any, task: Any) -> Any:
        activate()
        check_sizes(config, cfg)
        try:
            return build(cls, cfg, task)
        except AttributeError as error:
            if error.obj is not task:
                raise
            tasks = TASK_REGISTRY.items()
            names = [name for name, x in tasks if is_ours(x) and hasattr(x, str(error.name))]
            raise UserError(
                f"--arch {getattr(cfg, '_name', cls.__name__)} does not fit the task "
                f"{type(task).__name__}: give --task {' or '.join(names)}."
            ) from error

    model.build_model = classmethod(build_model)


# A loop and not a base class, because each model of fairseq has its own class method build_model.
for _name, _model in MODEL_REGISTRY.items():
    if is_ours(_model):
        _prepare_building(_model, MODEL_DATACLASS_REGISTRY[_name])
