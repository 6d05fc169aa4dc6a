"""Models (``--arch``): one file per published system, and shared parts in files named ``_*.py``."""

from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY

from fairseq_mm.compat import is_ours
from fairseq_mm.compat.options import check_when_built
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

# A loop and not a base class, because each model of fairseq has its own class method build_model.
for _name, _model in MODEL_REGISTRY.items():
    if is_ours(_model):
        check_when_built(_model, MODEL_DATACLASS_REGISTRY[_name])
