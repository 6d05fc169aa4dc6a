"""The systems whose behaviour is kept: one small checkpoint of each, and what it is trained on."""

from pathlib import Path
from typing import NamedTuple

from golden_files import DATA

CAPTIONER, EMBEDDING, STRUCTURED = "captioner", "embedding", "structured captioner"
VISUAL_STORY, STORY, LANGUAGE_MODEL, SUMMARIZER = (
    "visual story",
    "story",
    "language model",
    "summarizer",
)
KINDS = (CAPTIONER, EMBEDDING, STRUCTURED, VISUAL_STORY, STORY, LANGUAGE_MODEL, SUMMARIZER)


class System(NamedTuple):
    """
    Attributes:
        name: of its folder of checkpoints and of its outputs.
        family: of the file that holds it: ``captions``, ``stories``, ``prompts``, ``videos``.
        kind: one of ``KINDS``.
        data: data folder that it is trained and evaluated on.
        options: of fairseq-train, beside those of its family. ``{root}`` is the folder with the
            data folders and checkpoints.
    """

    name: str
    family: str
    kind: str
    data: str
    options: str


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

_M_RNN = "--embedding-dim 6 --hidden-dim 8 --multimodal-dim 10"
_VSE = "--word-dim 6 --embed-dim 8"
_GLAC = (
    "--picture-dim 6 --encoder-hidden-dim 4 --glocal-dim 8 --embedding-dim 5 --hidden-dim 7 "
    "--encoder-layers 1"
)
_CONV = (
    "--encoder-embed-dim 8 --decoder-embed-dim 8 --decoder-out-embed-dim 8 "
    "--encoder-layers [(8,3)]*2 --decoder-layers [(8,4)]*2"
)
_FUSED_CONV = _CONV.replace("8", "12").replace("(12,3)]*2", "(12,3)]")
_GCNN = "--decoder-embed-dim 8 --decoder-out-embed-dim 8 --decoder-layers [(8,4)]+[(12,3)]"
_LSTM = (
    "--arch lstm --encoder-embed-dim 8 --encoder-hidden-size 8 --encoder-layers 1 "
    "--decoder-embed-dim 8 --decoder-hidden-size 8 --decoder-layers 1 --decoder-out-embed-dim 8"
)
_TRANSFORMER = (
    "--encoder-embed-dim 8 --decoder-embed-dim 8 --encoder-layers 1 --decoder-layers 1 "
    "--encoder-attention-heads 2 --decoder-attention-heads 2 --encoder-ffn-embed-dim 8 "
    "--decoder-ffn-embed-dim 8"
)
_HIERARCHICAL = "--text-positions 24 --video-positions 12 --summary-positions 24"
_PLAIN = "--forget-gate off --video-encoder-layers 0"
# features of 512 channels, as the networks give them that see the images and videos themselves
_CLIPS = (
    "--fusion dot_product --fusion-encoder-layers 2 --forget-gate off --video-encoder-layers 0 "
    "--encoder-embed-dim 8"
)


def _family(name: str, rows: list[tuple[str, str, str, str]]) -> list[System]:
    return [System(system, name, kind, data, options) for system, kind, data, options in rows]


CAPTIONS = _family(
    "captions",
    [
        ("m_rnn", CAPTIONER, "captions", "--arch m_rnn_tiny"),
        ("m_rnn_base", CAPTIONER, "captions", f"--arch m_rnn_base {_M_RNN}"),
        ("m_rnn_no_emb_input", CAPTIONER, "captions", f"--arch m_rnn_no_emb_input {_M_RNN}"),
        ("m_rnn_one_layer_emb", CAPTIONER, "captions", f"--arch m_rnn_one_layer_emb {_M_RNN}"),
        ("m_rnn_emb_one_input", CAPTIONER, "captions", f"--arch m_rnn_emb_one_input {_M_RNN}"),
        ("m_rnn_vis_in_rnn", CAPTIONER, "captions", f"--arch m_rnn_vis_in_rnn {_M_RNN}"),
        ("m_rnn_vis_in_rnn_both", CAPTIONER, "captions", f"--arch m_rnn_vis_in_rnn_both {_M_RNN}"),
        (
            "m_rnn_vis_in_rnn_both_shared",
            CAPTIONER,
            "captions",
            f"--arch m_rnn_vis_in_rnn_both_shared {_M_RNN}",
        ),
        (
            "m_rnn_images",
            CAPTIONER,
            "captions_images",
            f"--arch m_rnn {_M_RNN} --feature-scaling root",
        ),
        (
            "transformer_captioner",
            CAPTIONER,
            "captions",
            "--arch transformer_captioner_tiny",
        ),
        (
            "transformer_captioner_images",
            CAPTIONER,
            "captions_images",
            "--arch transformer_captioner_tiny --encoder-layers 0",
        ),
        ("lbl", CAPTIONER, "captions", "--arch lbl_tiny"),
        ("mlbl_b", CAPTIONER, "captions", "--arch mlbl_b_tiny"),
        ("mlbl_f", CAPTIONER, "captions", "--arch mlbl_f_tiny"),
        ("vse_lstm", EMBEDDING, "captions", f"--arch vse_lstm {_VSE}"),
        (
            "vse_lstm_diagonal",
            EMBEDDING,
            "captions",
            f"--arch vse_lstm {_VSE} --diagonal-peepholes --sentence-signs both",
        ),
        ("vse_gru", EMBEDDING, "captions", f"--arch vse_gru {_VSE}"),
        ("vse_bow", EMBEDDING, "captions", f"--arch vse_bow {_VSE} --image-norm evaluation"),
        ("vse_images", EMBEDDING, "captions_images", f"--arch vse_lstm {_VSE}"),
        ("mlbl_b_vectors", CAPTIONER, "captions_vectors", "--arch mlbl_b_tiny"),
        ("sc_nlm", STRUCTURED, "captions_vectors", "--arch sc_nlm_tiny"),
    ],
)
STORIES = _family(
    "stories",
    [
        ("glac", VISUAL_STORY, "stories", f"--arch glac {_GLAC}"),
        ("glac_non_local", VISUAL_STORY, "stories_grid", f"--arch glac_non_local {_GLAC}"),
        (
            "glac_non_local_norm",
            VISUAL_STORY,
            "stories_grid",
            f"--arch glac_non_local {_GLAC} --non-local-norm",
        ),
        (
            "glac_decoder_attention",
            VISUAL_STORY,
            "stories",
            f"--arch glac_decoder_attention {_GLAC}",
        ),
        ("glac_images", VISUAL_STORY, "stories_images", f"--arch glac {_GLAC}"),
        ("transtory_decoder", VISUAL_STORY, "stories", "--arch transtory_decoder_tiny"),
        ("transtory_full", VISUAL_STORY, "stories", "--arch transtory_full_tiny"),
        (
            "transtory_full_released",
            VISUAL_STORY,
            "stories",
            "--arch transtory_full_tiny --compat released",
        ),
        ("transtory_xl", VISUAL_STORY, "stories", "--arch transtory_xl_tiny"),
        (
            "transtory_xl_released",
            VISUAL_STORY,
            "stories",
            "--arch transtory_xl_tiny --compat released",
        ),
    ],
)
PROMPTS = _family(
    "prompts",
    [
        ("conv_story", STORY, "prompts", f"--arch conv_story {_CONV}"),
        ("conv_story_self_att", STORY, "prompts", f"--arch conv_story_self_att {_CONV}"),
        ("conv_story_multihead", STORY, "prompts", f"--arch conv_story_multihead {_CONV}"),
        ("conv_story_multiscale", STORY, "prompts", f"--arch conv_story_multiscale {_CONV}"),
        ("conv_story_gated", STORY, "prompts", f"--arch conv_story_gated {_CONV}"),
        ("conv_story_wp", STORY, "prompts", f"--arch conv_story_wp {_CONV}"),
        (
            "conv_story_released",
            STORY,
            "prompts",
            f"--arch conv_story_wp {_CONV} --compat released",
        ),
        (
            "conv_story_fusion",
            STORY,
            "prompts",
            f"--arch conv_story_fusion {_FUSED_CONV} "
            "--pretrained-checkpoint {root}/prompts/conv_story_gated/checkpoint_best.pt",
        ),
        (
            "conv_story_translation",
            STORY,
            "prompts",
            f"--arch conv_story_gated {_CONV} --task translation",
        ),
        ("story_lstm", STORY, "prompts", _LSTM),
        ("gcnn_lm", LANGUAGE_MODEL, "prompts/prompts", f"--arch gcnn_lm {_GCNN}"),
        ("gcnn_lm_self_att", LANGUAGE_MODEL, "prompts/prompts", f"--arch gcnn_lm_self_att {_GCNN}"),
        ("gcnn_lm_stories", LANGUAGE_MODEL, "prompts/stories", f"--arch gcnn_lm_self_att {_GCNN}"),
    ],
)
VIDEOS = _family(
    "videos",
    [
        ("vg_bart", SUMMARIZER, "videos", "--arch vg_bart_tiny"),
        (
            "vg_bart_plain",
            SUMMARIZER,
            "videos",
            f"--arch vg_bart_tiny --fusion multi_head {_PLAIN}",
        ),
        (
            "vg_bart_dot_product",
            SUMMARIZER,
            "videos",
            f"--arch vg_bart_tiny --fusion dot_product {_PLAIN}",
        ),
        (
            "vg_bart_dot_product_projected",
            SUMMARIZER,
            "videos",
            f"--arch vg_bart_tiny --fusion dot_product_projected {_PLAIN}",
        ),
        (
            "vg_bart_decoder",
            SUMMARIZER,
            "videos",
            "--arch vg_bart_tiny --fusion-encoder-layers none --fusion-decoder-layers 1,2",
        ),
        (
            "vg_bart_one_head",
            SUMMARIZER,
            "videos",
            "--arch vg_bart_tiny --fusion-heads 1 --fusion-encoder-layers 2",
        ),
        (
            "vg_bart_identity",
            SUMMARIZER,
            "videos",
            "--arch vg_bart_tiny --fusion-identity-init",
        ),
        (
            "vg_bart_released",
            SUMMARIZER,
            "videos",
            "--arch vg_bart_tiny --compat released",
        ),
        ("vg_bart_clips", SUMMARIZER, "videos_clips", f"--arch vg_bart_tiny {_CLIPS}"),
        ("vg_t5", SUMMARIZER, "videos", "--arch vg_t5_tiny"),
        (
            "vg_t5_dot_product",
            SUMMARIZER,
            "videos",
            f"--arch vg_t5_tiny --fusion dot_product {_PLAIN} --fusion-decoder-layers 2",
        ),
        ("t5", SUMMARIZER, "videos", "--arch t5_tiny"),
        (
            "t5_gated",
            SUMMARIZER,
            "videos",
            "--arch t5_tiny --feed-forward gated_gelu --untied-output",
        ),
        ("pointer_generator", SUMMARIZER, "videos_unknowns", "--arch pointer_generator_tiny"),
        (
            "pointer_generator_coverage",
            SUMMARIZER,
            "videos_unknowns",
            "--arch pointer_generator_tiny --coverage --criterion coverage_cross_entropy",
        ),
        (
            "hierarchical_attention_rnn",
            SUMMARIZER,
            "videos",
            "--arch hierarchical_attention_rnn_tiny",
        ),
        (
            "hierarchical_attention_transformer",
            SUMMARIZER,
            "videos",
            f"--arch hierarchical_attention_transformer_tiny {_HIERARCHICAL}",
        ),
        ("mffg_rnn", SUMMARIZER, "videos", "--arch mffg_rnn_tiny"),
        ("mffg_transformer", SUMMARIZER, "videos", f"--arch mffg_transformer_tiny {_HIERARCHICAL}"),
        ("summary_lstm", SUMMARIZER, "videos", _LSTM),
        ("summary_transformer", SUMMARIZER, "videos", f"--arch transformer {_TRANSFORMER}"),
        ("bart", SUMMARIZER, "videos", f"--arch bart_base {_TRANSFORMER}"),
    ],
)
# in the order in which they are trained: some are trained on others
SYSTEMS = {system.name: system for system in (*CAPTIONS, *STORIES, *PROMPTS, *VIDEOS)}
FAMILIES = ("captions", "stories", "prompts", "videos")
# fairseq's own architectures: their checkpoints have no dictionary
WITHOUT_DICTIONARY = ("story_lstm", "summary_lstm", "summary_transformer", "bart")
VECTORS = "captions_vectors"  # whose features are the vectors of its captions


def training_options(root: Path, system: System) -> list[str]:
    """Those of fairseq-train that make a system: its data, task, criterion and model.

    Args:
        root: with the data folders and checkpoints.
        system: one of ``SYSTEMS``.
    """
    options = [*TASKS[system.kind].split(), *system.options.format(root=root).split()]
    if system.data == VECTORS:
        vectors = root / DATA / VECTORS
        options += ["--features", f"{vectors / 'train.h5'}:{vectors / 'valid.h5'}"]
    return [str(root / DATA / system.data), *options]
