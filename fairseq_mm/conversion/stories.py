"""Converts checkpoints of fairseq's own story model (``fconv_self_att``) to ``--arch conv_story``.

The sizes of the layers are read from the checkpoint's options, because the same ``--arch`` has had
different sizes in different versions of fairseq. A fusion model contains a frozen pretrained model,
which the options of its checkpoint do not describe. The sizes of the frozen model are inferred from
the weights.
"""

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

from fairseq.data import Dictionary
from fairseq.dataclass.configs import FairseqConfig
from fairseq.tasks.translation import TranslationConfig
from omegaconf import OmegaConf
from torch import Tensor

from fairseq_mm.conversion.foreign_checkpoint import checkpoint_config
from fairseq_mm.conversion.new_checkpoint import (
    checkpoint_of_config,
    config_defaults,
    resolve_config,
)
from fairseq_mm.data.binarised_text import load_dictionary
from fairseq_mm.errors import UserError, file_errors
from fairseq_mm.models._fairseq_stories import (
    FROZEN_DECODER,
    Conversion,
    convert_weights,
    options_of_weights,
)
from fairseq_mm.models._provenance import MODULE_NAME, Provenance, list_words
from fairseq_mm.models.conv_story import (
    ConvStoryConfig,
    ConvStoryModel,
    parse_flag,
    parse_flags,
    parse_layers,
)

# Options that the weights do not show, or not always. The values are the defaults of fairseq's
# first architecture, for checkpoints whose options lack them.
_WITHOUT_TRACE = {
    "dropout": 0.1,
    "multihead_attention_nheads": 1,
    "multihead_self_attention_nheads": 1,
    "project_input": "True",
}
_LAYER_LISTS = ("encoder_layers", "decoder_layers")
_FLAG_LISTS = ("decoder_attention", "self_attention")
# path of the frozen model in the new checkpoint's options: no file, so that none is looked for
_CARRIED = "in this checkpoint"
# heads, multi-scale, gated -> architecture with these settings
_RUNGS = {
    (1, False, False): "conv_story_self_att",
    (4, False, False): "conv_story_multihead",
    (4, True, False): "conv_story_multiscale",
}


class FairseqStories(NamedTuple):
    """Content of a checkpoint of fairseq's ``fconv_self_att``: options of the task and the model,
    and weights by fairseq's names."""

    path: str
    arch: str
    options: dict[str, Any]
    weights: dict[str, Tensor]
    num_updates: int

    @property
    def is_fusion(self) -> bool:
        return any(name.startswith(FROZEN_DECODER) for name in self.weights)

    @property
    def types(self) -> tuple[int, int]:
        """Sizes of the dictionaries of prompts and of stories, special symbols included."""
        # the encoder is wrapped once more, because the fusion model has a second one beside it
        source = self.weights["encoder.encoder.embed_tokens.weight"]
        return len(source), len(self.weights["decoder.embed_tokens.weight"])

    @property
    def languages(self) -> tuple[str, str]:
        """Suffixes of the data files of prompts and of stories (``--source-lang``,
        ``--target-lang``)."""
        source, target = self.options.get("source_lang"), self.options.get("target_lang")
        return str(source or "wp_source"), str(target or "wp_target")


@dataclass
class ConvertedStories:
    """Result of the conversion of a story model."""

    arch: str
    options: dict[str, Any]
    # options of a fusion model's pretrained model; None without fusion
    frozen_options: Optional[dict[str, Any]]
    parameters: int  # number of weights
    state: dict[str, Any]  # content of the new checkpoint
    notes: list[str]  # assumptions of the conversion, one sentence each


def fairseq_stories(path: str, state: Mapping[str, Any]) -> FairseqStories:
    """Read options and weights in the content of a checkpoint of ``fconv_self_att``."""
    options: dict[str, Any] = {}
    cfg = checkpoint_config(state)
    # the languages are options of the task, the layers of the model; before fairseq 0.10 all are in
    # args
    for part in (cfg.get("task"), cfg.get("model"), state.get("args")):
        if isinstance(part, (Namespace, dict)):
            options.update(vars(part) if isinstance(part, Namespace) else part)
    arch = str(options.get("_name") or options.get("arch"))
    problem = f"must be a checkpoint of fairseq's fconv_self_att, but is of --arch {arch}"
    with file_errors(path, problem):
        weights = {name: x.detach() for name, x in state["model"].items() if isinstance(x, Tensor)}
        # the name of the architecture proves nothing: see the head of this file
        options_of_weights(weights, frozen=False)
        if not options:
            raise ValueError("it has no options")
    history = state.get("optimizer_history") or [{}]
    return FairseqStories(path, arch, options, weights, int(history[-1].get("num_updates", 0)))


def convert_stories(
    checkpoint: FairseqStories,
    source_dictionary: Dictionary,
    target_dictionary: Dictionary,
    *,
    compat: str = "released",
    pretrained: Optional[FairseqStories] = None,
) -> ConvertedStories:
    """Convert a checkpoint of ``fconv_self_att`` to ``conv_story``.

    Args:
        compat: ``released`` for a model that computes exactly what fairseq's model computes;
            ``none`` for a model that does not attend to the prompt's padding.
        pretrained: Checkpoint of the model that a fusion model contains, for options that weights
            do not show, such as dropout; by default the fusion model's own options.
    """
    notes: list[str] = []
    options = _options(checkpoint, notes, layers_from_weights=False)
    frozen = None
    projects = [_projects_input(checkpoint)] * 2  # model, frozen part
    if checkpoint.is_fusion:
        other = checkpoint if pretrained is None else pretrained
        frozen = _frozen_options(checkpoint, other, options, notes)
        projects[1] = _projects_input(other)
    # fairseq evaluates the option as Python, so that it may be a text or a bool
    elif pretrained is not None or str(checkpoint.options.get("pretrained")) == "True":
        raise UserError(f"{checkpoint.path}: is no fusion model: it has no {FROZEN_DECODER}*.")
    for part, is_projecting in zip((options, frozen), projects):
        if part is not None:
            part["compat"] = compat
            if not is_projecting:
                part["gated_attention"] = "False"  # fairseq's gates are part of the projections
    if not all(projects):
        notes.append(
            "--project-input False: queries, keys and values get projections that change nothing."
        )
    dictionaries = source_dictionary, target_dictionary
    model, conversion = _convert(checkpoint.weights, options, frozen, dictionaries, projects)
    wrong = [
        *(f"{name} is missing" for name in conversion.missing),
        *(f"{name} has no place" for name in conversion.unexpected),
        *(
            f"{name} is {list(shape)} in the checkpoint, {list(expected)} by its options"
            for name, shape, expected in conversion.mismatched
        ),
    ]
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise UserError(f"{checkpoint.path}: cannot be converted: {wrong[0]}{more}.")
    for reason, names in conversion.left_out.items():
        notes.append(f"{len(names)} tensors are left out: {reason}.")
    arch = architecture_name(options)
    weights = {**model.state_dict(), **conversion.weights}
    state = _state(checkpoint, arch, options, frozen, weights)
    parameters = sum(x.numel() for x in conversion.weights.values())
    return ConvertedStories(arch, options, frozen, parameters, state, notes)


def architecture_name(options: Mapping[str, Any]) -> str:
    """Return the ``--arch`` of the model ``conv_story`` whose self-attention ``options`` describe.

    The candidates are the architectures that Fan et al. 2018 compare; if none matches, the result
    is ``conv_story_wp``.
    """
    layers = len(parse_layers(options["decoder_layers"], "--decoder-layers"))
    attends = parse_flags(options["self_attention"], "--self-attention", layers)
    if not any(attends):
        return "conv_story"
    rung = (
        options["multihead_self_attention_nheads"],
        parse_flag(options["downsample"], "--downsample"),
        parse_flag(options["gated_attention"], "--gated-attention"),
    )
    return _RUNGS.get(rung, "conv_story_wp")


def _options(
    checkpoint: FairseqStories, notes: list[str], *, layers_from_weights: bool
) -> dict[str, Any]:
    of_weights = options_of_weights(checkpoint.weights, frozen=False)
    options = {**_WITHOUT_TRACE, **of_weights}
    del options["project_input"]
    for name in options:
        value = checkpoint.options.get(name)
        # rows are counted in the tables: the task's option of this name is the longest text
        if value is None or name.endswith("_positions"):
            continue
        if name in of_weights and layers_from_weights:
            continue
        # bool is a subclass of int, but conv_story's flags are texts, as fairseq's were
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        options[name] = value if is_number else str(value)
        try:
            if name in _LAYER_LISTS:
                parse_layers(options[name], f"--{name.replace('_', '-')}")
            elif name in _FLAG_LISTS:
                layers = parse_layers(options["decoder_layers"], "--decoder-layers")
                parse_flags(options[name], f"--{name.replace('_', '-')}", len(layers))
        except UserError as error:
            # fairseq evaluated any expression, such as range(7); here only literals are read
            options[name] = of_weights[name]
            notes.append(f"{error} The weights say {of_weights[name]}.")
    return options


def _frozen_options(
    checkpoint: FairseqStories, other: FairseqStories, own: Mapping[str, Any], notes: list[str]
) -> dict[str, Any]:
    """Return the options of the frozen pretrained model in a fusion model."""
    of_weights = options_of_weights(checkpoint.weights, frozen=True)
    if other is checkpoint:
        notes.append(
            "The frozen part's dropout and heads (where its weights do not show them) are taken "
            "to be those of the model on top; --pretrained-checkpoint FILE has its own."
        )
    else:
        own = _options(other, notes, layers_from_weights=True)
        for name, value in of_weights.items():
            if own[name] != value:
                raise UserError(
                    f"{other.path}: is not the model that {checkpoint.path} was trained on: its --"
                    f"{name.replace('_', '-')} is {own[name]}, that of the frozen part {value}."
                )
    without_trace = {name: own[name] for name in _WITHOUT_TRACE if name in own}
    return {**without_trace, **of_weights}


def _projects_input(checkpoint: FairseqStories) -> bool:
    return parse_flag(str(checkpoint.options.get("project_input", "True")), "--project-input")


def _convert(
    weights: Mapping[str, Tensor],
    options: Mapping[str, Any],
    frozen_options: Optional[dict[str, Any]],
    dictionaries: tuple[Dictionary, Dictionary],
    projects_input: list[bool],
) -> tuple[ConvStoryModel, Conversion]:
    model = ConvStoryModel(Namespace(**options), *dictionaries, frozen_options)
    source_words, target_words = map(list_words, dictionaries)
    # with its dictionaries, the checkpoint generates without a data folder
    model.add_module(MODULE_NAME, Provenance(target_words, {}, 0, source_words))
    conversion = convert_weights(
        model, weights, projects_input=projects_input[0], frozen_projects_input=projects_input[1]
    )
    return model, conversion


def _state(
    checkpoint: FairseqStories,
    arch: str,
    options: Mapping[str, Any],
    frozen_options: Optional[Mapping[str, Any]],
    weights: Mapping[str, Tensor],
) -> dict[str, Any]:
    """Build the content of the new checkpoint, for generation and for further training."""
    model_options = {**config_defaults(ConvStoryConfig), **options, "_name": arch}
    if frozen_options is not None:
        model_options.update(pretrained="True", pretrained_checkpoint=_CARRIED)
    source, target = checkpoint.languages
    cfg = _default_config(FairseqConfig)
    cfg["model"] = model_options
    cfg["criterion"] = {"_name": "cross_entropy", "sentence_avg": False}
    cfg["task"] = {
        **_default_config(TranslationConfig),
        "_name": "translation",
        "source_lang": source,
        "target_lang": target,
        # fairseq takes the smaller of the task's and the model's limits
        **{name: x for name, x in options.items() if name.endswith("_positions")},
    }
    # references such as ${common.seed} can be resolved only in the whole config
    return checkpoint_of_config(
        resolve_config(OmegaConf.create(cfg), checkpoint.path),
        weights,
        optimizer="FairseqNAG",
        num_updates=checkpoint.num_updates,
    )


def _default_config(config: type) -> dict[str, Any]:
    """Return the defaults of one of fairseq's config classes as a dictionary."""
    plain: Any = OmegaConf.to_container(OmegaConf.structured(config), enum_to_str=True)
    return plain


def load_story_dictionaries(
    files: tuple[str, str], types: tuple[int, int], checkpoint: str
) -> tuple[Dictionary, Dictionary]:
    """Load the dictionaries of prompts and stories; ``types`` are their sizes in the model, special
    symbols included."""
    source, target = map(load_dictionary, files)
    for file, dictionary, expected in zip(files, (source, target), types):
        if len(dictionary) != expected:
            raise UserError(
                f"{file}: has {len(dictionary)} words (special symbols included), but {checkpoint} "
                f"was trained with {expected}: prepare it from the same text with the same "
                "--thresholdsrc, --thresholdtgt and --padding-factor (the published prompts have "
                "19,025 types, the published stories, of 1000 words each, 104,960)."
            )
    return source, target
