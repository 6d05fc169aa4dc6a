"""The systems whose behaviour is kept: one small checkpoint of each, and what it is trained on."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from golden_files import DATA

CAPTIONER, EMBEDDING, STRUCTURED = "captioner", "embedding", "structured"
VISUAL_STORY, STORY, LANGUAGE_MODEL = "visual_story", "story", "language_model"
SUMMARIZER = "summarizer"
FAMILIES = ("captions", "stories", "prompts", "videos")

TASKS = {
    CAPTIONER: "--task multimodal_captioning --criterion cross_entropy",
    EMBEDDING: "--task multimodal_captioning --criterion pairwise_ranking",
    STRUCTURED: "--task multimodal_captioning --criterion cross_entropy",
    VISUAL_STORY: "--task visual_storytelling --criterion cross_entropy",
    STORY: "--task hierarchical_story --criterion sliced_cross_entropy "
    "--max-source-positions 24 --max-target-positions 160",
    LANGUAGE_MODEL: "--task language_modeling --criterion sliced_cross_entropy "
    "--sample-break-mode eos --tokens-per-sample 62",
    SUMMARIZER: "--task video_summarization --criterion cross_entropy "
    "--max-source-positions 16 --max-target-positions 24 --max-frames 8",
}
_CONV = "--encoder-embed-dim 8 --decoder-embed-dim 8 --decoder-out-embed-dim 8 "
_OPTIONS = {
    "M_RNN": "--embedding-dim 6 --hidden-dim 8 --multimodal-dim 10",
    "VSE": "--word-dim 6 --embed-dim 8",
    "GLAC": "--picture-dim 6 --encoder-hidden-dim 4 --glocal-dim 8 --embedding-dim 5 "
    "--hidden-dim 7 --encoder-layers 1",
    "CONV": f"{_CONV}--encoder-layers [(8,3)]*2 --decoder-layers [(8,4)]*2",
    "FUSED": f"{_CONV.replace('8', '12')}--encoder-layers [(12,3)] --decoder-layers [(12,4)]*2",
    "GCNN": "--decoder-embed-dim 8 --decoder-out-embed-dim 8 --decoder-layers [(8,4)]+[(12,3)]",
    "LSTM": "--encoder-embed-dim 8 --encoder-hidden-size 8 --encoder-layers 1 "
    "--decoder-embed-dim 8 --decoder-hidden-size 8 --decoder-layers 1 --decoder-out-embed-dim 8",
    "TRANSFORMER": "--encoder-embed-dim 8 --decoder-embed-dim 8 --encoder-layers 1 "
    "--decoder-layers 1 --encoder-attention-heads 2 --decoder-attention-heads 2 "
    "--encoder-ffn-embed-dim 8 --decoder-ffn-embed-dim 8",
    "HIERARCHICAL": "--text-positions 24 --video-positions 12 --summary-positions 24",
    "PLAIN": "--forget-gate off --video-encoder-layers 0",
    # features have the 512 channels of the networks that see images and videos themselves
    "CLIPS": "--fusion dot_product --fusion-encoder-layers 2 --forget-gate off "
    "--video-encoder-layers 0 --encoder-embed-dim 8",
}
# In the order in which they are trained: some are trained on others. A row is
#
#   family and kind
#     name @data folder, if it is not that of the family: architecture and options of fairseq-train
_TABLE = """
captions captioner
    m_rnn: m_rnn_tiny
    m_rnn_base: m_rnn_base {M_RNN}
    m_rnn_no_emb_input: m_rnn_no_emb_input {M_RNN}
    m_rnn_one_layer_emb: m_rnn_one_layer_emb {M_RNN}
    m_rnn_emb_one_input: m_rnn_emb_one_input {M_RNN}
    m_rnn_vis_in_rnn: m_rnn_vis_in_rnn {M_RNN}
    m_rnn_vis_in_rnn_both: m_rnn_vis_in_rnn_both {M_RNN}
    m_rnn_vis_in_rnn_both_shared: m_rnn_vis_in_rnn_both_shared {M_RNN}
    m_rnn_images @captions_images: m_rnn {M_RNN} --feature-scaling root
    transformer_captioner: transformer_captioner_tiny
    transformer_captioner_images @captions_images: transformer_captioner_tiny --encoder-layers 0
    lbl: lbl_tiny
    mlbl_b: mlbl_b_tiny
    mlbl_f: mlbl_f_tiny
captions embedding
    vse_lstm: vse_lstm {VSE}
    vse_lstm_diagonal: vse_lstm {VSE} --diagonal-peepholes --sentence-signs both
    vse_gru: vse_gru {VSE}
    vse_bow: vse_bow {VSE} --image-norm evaluation
    vse_images @captions_images: vse_lstm {VSE}
captions captioner
    mlbl_b_vectors @captions_vectors: mlbl_b_tiny
captions structured
    sc_nlm @captions_vectors: sc_nlm_tiny
stories visual_story
    glac: glac {GLAC}
    glac_non_local @stories_grid: glac_non_local {GLAC}
    glac_non_local_norm @stories_grid: glac_non_local {GLAC} --non-local-norm
    glac_decoder_attention: glac_decoder_attention {GLAC}
    glac_images @stories_images: glac {GLAC}
    transtory_decoder: transtory_decoder_tiny
    transtory_full: transtory_full_tiny
    transtory_full_released: transtory_full_tiny --compat released
    transtory_xl: transtory_xl_tiny
    transtory_xl_released: transtory_xl_tiny --compat released
prompts story
    conv_story: conv_story {CONV}
    conv_story_self_att: conv_story_self_att {CONV}
    conv_story_multihead: conv_story_multihead {CONV}
    conv_story_multiscale: conv_story_multiscale {CONV}
    conv_story_gated: conv_story_gated {CONV}
    conv_story_wp: conv_story_wp {CONV}
    conv_story_released: conv_story_wp {CONV} --compat released
    conv_story_fusion: conv_story_fusion {FUSED}
        --pretrained-checkpoint {root}/prompts/conv_story_gated/checkpoint_best.pt
    conv_story_translation: conv_story_gated {CONV} --task translation
    story_lstm: lstm {LSTM}
prompts language_model
    gcnn_lm @prompts/prompts: gcnn_lm {GCNN}
    gcnn_lm_self_att @prompts/prompts: gcnn_lm_self_att {GCNN}
    gcnn_lm_stories @prompts/stories: gcnn_lm_self_att {GCNN}
videos summarizer
    vg_bart: vg_bart_tiny
    vg_bart_plain: vg_bart_tiny --fusion multi_head {PLAIN}
    vg_bart_dot_product: vg_bart_tiny --fusion dot_product {PLAIN}
    vg_bart_dot_product_projected: vg_bart_tiny --fusion dot_product_projected {PLAIN}
    vg_bart_decoder: vg_bart_tiny --fusion-encoder-layers none --fusion-decoder-layers 1,2
    vg_bart_one_head: vg_bart_tiny --fusion-heads 1 --fusion-encoder-layers 2
    vg_bart_identity: vg_bart_tiny --fusion-identity-init
    vg_bart_released: vg_bart_tiny --compat released
    vg_bart_clips @videos_clips: vg_bart_tiny {CLIPS}
    vg_t5: vg_t5_tiny
    vg_t5_dot_product: vg_t5_tiny --fusion dot_product {PLAIN} --fusion-decoder-layers 2
    t5: t5_tiny
    t5_gated: t5_tiny --feed-forward gated_gelu --untied-output
    pointer_generator @videos_unknowns: pointer_generator_tiny
    pointer_generator_coverage @videos_unknowns: pointer_generator_tiny --coverage
        --criterion coverage_cross_entropy
    hierarchical_attention_rnn: hierarchical_attention_rnn_tiny
    hierarchical_attention_transformer: hierarchical_attention_transformer_tiny {HIERARCHICAL}
    mffg_rnn: mffg_rnn_tiny
    mffg_transformer: mffg_transformer_tiny {HIERARCHICAL}
    summary_lstm: lstm {LSTM}
    summary_transformer: transformer {TRANSFORMER}
    bart: bart_base {TRANSFORMER}
"""
# fairseq's own architectures: their checkpoints have no dictionary
WITHOUT_DICTIONARY = ("story_lstm", "summary_lstm", "summary_transformer", "bart")
VECTORS = "captions_vectors"  # whose features are the vectors of its captions


class System(NamedTuple):
    name: str  # of its folder of checkpoints and of its outputs
    family: str  # of the archive and of the file of outputs
    kind: str  # key of ``TASKS``
    data: str  # data folder that it is trained and evaluated on
    options: str  # of fairseq-train; ``{root}`` is the folder with data folders and checkpoints


def _read_systems() -> Iterator[System]:
    family = kind = ""
    for row in re.sub(r"\n {8}", " ", _TABLE.strip()).split("\n"):
        if not row.startswith(" "):
            family, kind = row.split()
            continue
        name, data, options = re.fullmatch(r" +(\w+)(?: @(\S+))?: (.*)", row).groups()
        options = options.format_map({**_OPTIONS, "root": "{root}"})
        yield System(name, family, kind, data or family, f"--arch {options}")


SYSTEMS = {system.name: system for system in _read_systems()}


def training_options(root: Path, system: System) -> list[str]:
    """Return the options of fairseq-train that define a system: data, task, criterion and model;
    ``root`` is the folder with the data folders and checkpoints."""
    options = [*TASKS[system.kind].split(), *system.options.format(root=root).split()]
    if system.data == VECTORS:
        vectors = root / DATA / VECTORS
        options += ["--features", f"{vectors}/train.h5:{vectors}/valid.h5"]
    return [str(root / DATA / system.data), *options]
