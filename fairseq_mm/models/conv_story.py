"""Convolutional models that write stories from prompts (``--arch conv_story_gated``, task
``hierarchical_story``).

Fan, Lewis, Dauphin. Hierarchical Neural Story Generation. ACL 2018.
https://arxiv.org/abs/1805.04833, sections 3.2 to 3.4, Tables 2 and 3.

Each model of Table 2 adds one part to the model before it:

    conv_story              convolutions and attention to the prompt
    conv_story_self_att     self-attention of one head
    conv_story_multihead    four heads
    conv_story_multiscale   each head sees every 1st, 2nd, 3rd, 4th position
    conv_story_gated        networks with gated linear units compute queries, keys and values
    conv_story_wp           equal to conv_story_gated, but with the released code's dropout of 0.1

``conv_story_fusion`` trains on top of a trained model, given by ``--pretrained-checkpoint PATH``
(sections 3.4, 5.2 and 9.4). The trained model is frozen, and learned gates join its hidden states
with the hidden states of the model in training. The resulting checkpoint contains both models.
``--pretrained True --pretrained-checkpoint PATH`` does the same for the other architectures.

The options are named as in fairseq's ``fconv_self_att``, and the models also work under fairseq's
``translation`` task.

Differs from the paper:
- In fusion, the model in training has five encoder layers of 128, 128, 512, 512 and 512 channels
  with kernels of 3, and five decoder layers of 512, 512, 512, 768 and 768 channels with kernels of
  4. These layers were not compared with the lists in section 9.4.
- The layers of the other models are the released code's: three in the encoder, seven in the
  decoder. Section 9.2 says "8 layers", and its parameter counts do not follow from its widths.
- Positions have embeddings, and the output layer is not tied to the word embeddings, as in the
  released code.

Differs from the released code (fairseq's ``fconv_self_att_wp``):
- Padding of the prompt gets no attention. The released code attends to it (``--compat released``),
  so that a story's probability depends on the prompts that share its batch.
- Decoding caches the states of earlier words; the released code computes every prefix anew.
- ``--encoder-attention`` (off in the released code) and ``--project-input False`` (which fails in
  the released code) are refused.
- In fusion, the frozen model has no dropout in training. ``--frozen-dropout`` (or ``--compat
  released``) keeps its dropout, which helps if the frozen model has overfitted. The output layer of
  the frozen model is dropped; its options and other weights are part of the checkpoint.
- ``fairseq-mm convert`` converts checkpoints of the released code, with or without fusion.
"""

import contextlib
import os
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import ARCH_MODEL_REGISTRY, FairseqEncoderDecoderModel, register_model
from omegaconf import II
from torch import Tensor, nn

from fairseq_mm.compat.literals import parse_literal
from fairseq_mm.compat.loading import is_model_folder, load_checkpoint
from fairseq_mm.compat.options import option
from fairseq_mm.errors import UserError, file_errors
from fairseq_mm.models._bases import LoadStateDictMixin
from fairseq_mm.models._conv_decoder import ConvEncoder, StoryDecoder
from fairseq_mm.models._conv_trunk import ConvTrunk
from fairseq_mm.models._fusion import Fusion, FusionDecoder, FusionEncoder
from fairseq_mm.models._presets import register_presets
from fairseq_mm.models._provenance import (
    MODULE_NAME,
    STATE_KEY,
    Provenance,
    decode_json,
    encode_json,
)

ENCODER_LAYERS = "[(128, 3)] * 2 + [(512, 3)]"
DECODER_LAYERS = "[(512, 4)] * 4 + [(768, 4)] * 2 + [(1024, 4)]"
Compat: Any = ChoiceEnum(("none", "released"))


@dataclass
class ConvStoryConfig(FairseqDataclass):
    """Options of the convolutional story model.

    Default sizes follow fairseq's ``fconv_self_att_wp``, the code of Fan et al. 2018; the default
    dropout follows the paper's section 9.2.
    """

    dropout: float = option(0.3, "Dropout probability of embeddings and of layers' inputs.")
    encoder_embed_dim: int = option(256, "Dimension of the prompt's token embeddings.")
    encoder_layers: str = option(
        ENCODER_LAYERS, "Encoder layers as a list of (channels, kernel width)."
    )
    decoder_embed_dim: int = option(256, "Dimension of the story's token embeddings.")
    decoder_layers: str = option(
        DECODER_LAYERS, "Decoder layers as a list of (channels, kernel width)."
    )
    decoder_out_embed_dim: int = option(256, "Input dimension of the output layer.")
    decoder_attention: str = option(
        "True", "Whether layers attend to the prompt: True, False or a list of one per layer."
    )
    multihead_attention_nheads: int = option(
        1, "Number of heads of the attention to the prompt.", least=1, divides="decoder_embed_dim"
    )
    self_attention: str = option(
        "False", "Whether layers attend to the story: True, False or a list of one per layer."
    )
    multihead_self_attention_nheads: int = option(
        1, "Number of heads of self-attention.", least=1, divides="decoder_embed_dim"
    )
    gated_attention: str = option(
        "False", "Compute queries, keys and values of self-attention by networks with gates."
    )
    downsample: str = option(
        "False", "Let head n of the self-attention attend only to every nth position."
    )
    encoder_attention: str = option("False", "Option of fairseq's fconv_self_att; must be False.")
    encoder_attention_nheads: int = option(1, "Option of fairseq's fconv_self_att; must be 1.")
    project_input: str = option("True", "Option of fairseq's fconv_self_att; must be True.")
    pretrained: str = option(
        "False",
        "Train on top of a pretrained model, which stays frozen.",
        needs="pretrained_checkpoint",
    )
    pretrained_checkpoint: str = option(
        "",
        "Checkpoint of the pretrained model; it is read only in training.",
        needs="pretrained=True",
    )
    frozen_dropout: bool = option(
        False, "Keep the frozen model's dropout on in training, as fairseq's fconv_self_att does."
    )
    compat: Compat = option(
        "none",
        "Compute as fairseq's fconv_self_att does (released): attend to padding of the prompt, "
        "and keep a frozen model's dropout.",
    )
    # two rows of a table of positions belong to padding and to the symbol before it
    max_source_positions: int = field(
        default=II("task.max_source_positions"), metadata={"least": 3}
    )
    max_target_positions: int = field(
        default=II("task.max_target_positions"), metadata={"least": 3}
    )


_LAYERS = "a list of (channels, width), such as '[(512, 4)] * 4 + [(768, 4)] * 2'"


def parse_layers(text: str, option: str) -> list[tuple[int, int]]:
    """Parse an option's value as a list of layers: pairs ``(channels, kernel width)``."""

    # type() and not isinstance(), because True is an int. The bound refuses sizes that would
    # exhaust the memory.
    def is_layer(x: Any) -> bool:
        return type(x) is tuple and len(x) == 2 and all(type(n) is int and 0 < n < 2**20 for n in x)

    return _parse(
        text, option, _LAYERS, lambda x: type(x) is list and len(x) > 0 and all(map(is_layer, x))
    )


def parse_flags(text: str, option: str, num_layers: int) -> list[bool]:
    """Parse an option's value, True, False or a list of flags, as one flag per layer."""
    flags = _parse(
        str(text),
        option,
        f"True, False or a list of them for each of the {num_layers} layers, such as "
        "'[True] + [False] * 5'",
        lambda x: (
            type(x) is bool
            or (type(x) is list and len(x) == num_layers and all(type(flag) is bool for flag in x))
        ),
    )
    return [flags] * num_layers if type(flags) is bool else flags


def parse_flag(text: str, option: str) -> bool:
    return _parse(str(text), option, "True or False", lambda x: type(x) is bool)


def _parse(text: str, option: str, expected: str, is_right: Callable[[Any], bool]) -> Any:
    with contextlib.suppress(ValueError):
        value = parse_literal(text)
        if is_right(value):
            return value
    raise UserError(f"{option} must be {expected}, but is {str(text)[:100]!r} instead.")


# fairseq's moving average of weights skips names that contain "version"
FROZEN_MODULE = "frozen_version"
FROZEN_STATE_KEY = f"{FROZEN_MODULE}._extra_state"

# Options that a fusion's checkpoint records for the frozen part, because they decide the shapes of
# its weights and how it computes.
PART_OPTIONS = (
    *("encoder_embed_dim", "encoder_layers", "max_source_positions"),
    *("decoder_embed_dim", "decoder_layers", "decoder_out_embed_dim", "max_target_positions"),
    *("decoder_attention", "multihead_attention_nheads"),
    *("self_attention", "multihead_self_attention_nheads", "gated_attention", "downsample"),
    *("dropout", "compat"),
)


class StoryParts(NamedTuple):
    """Encoder and trunk (decoder without output layer) of a story model.

    With ``masks_padding``, padding of the prompt gets no attention.
    """

    encoder: ConvEncoder
    trunk: ConvTrunk
    masks_padding: bool


def build_parts(options: Any, source_dictionary: Any, target_dictionary: Any) -> StoryParts:
    """Build encoder and trunk from an object with the options ``PART_OPTIONS`` as attributes."""
    if options.encoder_embed_dim != options.decoder_embed_dim:
        raise UserError(
            f"--encoder-embed-dim ({options.encoder_embed_dim}) and --decoder-embed-dim "
            f"({options.decoder_embed_dim}) must be equal."
        )
    trunk = build_trunk(options, target_dictionary)
    attending = sum(layer.source_attention is not None for layer in trunk.layers)
    encoder = ConvEncoder(
        source_dictionary,
        parse_layers(options.encoder_layers, "--encoder-layers"),
        embed_dim=options.encoder_embed_dim,
        dropout=options.dropout,
        table_rows=options.max_source_positions,
        num_attention_layers=attending,
    )
    return StoryParts(encoder, trunk, str(options.compat) != "released")


def build_trunk(options: Any, dictionary: Any, *, has_source: bool = True) -> ConvTrunk:
    """Build the trunk of a story model, or of a language model, which attends to no prompt."""
    layers = parse_layers(options.decoder_layers, "--decoder-layers")
    attends = [False] * len(layers)
    if has_source:
        attends = parse_flags(options.decoder_attention, "--decoder-attention", len(layers))
    self_attention = parse_flags(options.self_attention, "--self-attention", len(layers))
    return ConvTrunk(
        len(dictionary),
        dictionary.pad(),
        layers,
        embed_dim=options.decoder_embed_dim,
        out_dim=options.decoder_out_embed_dim,
        dropout=options.dropout,
        table_rows=options.max_target_positions,
        source_attention=attends,
        source_heads=options.multihead_attention_nheads if has_source else 1,
        self_attention=self_attention,
        self_heads=options.multihead_self_attention_nheads,
        is_gated=parse_flag(options.gated_attention, "--gated-attention"),
        is_multi_scale=parse_flag(options.downsample, "--downsample"),
    )


class FrozenOptions(nn.Module):
    """Module that saves the options of a fusion model's frozen part in the state dict."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        self.options = options

    def get_extra_state(self) -> Tensor:
        # Stored among the weights, so that a fusion model can be built again when the pretrained
        # checkpoint is gone.
        return encode_json(self.options)

    def set_extra_state(self, state: Tensor) -> None:
        self.options = decode_json(state)


def part_options(cfg: Any) -> dict[str, Any]:
    """Return the options ``PART_OPTIONS`` of a config as a dict of numbers and strings."""
    values = {name: getattr(cfg, name) for name in PART_OPTIONS}
    # OmegaConf nodes and enums become plain text, because the options are stored as JSON.
    return {k: v if isinstance(v, (int, float)) else str(v) for k, v in values.items()}


def load_pretrained(file: str, model_class: type, provenance: Provenance) -> dict[str, Any]:
    """Load the checkpoint of a trained story model that will be the frozen part of a fusion model.

    The model must be a ``model_class`` and have been trained with the dictionaries of
    ``provenance``. Returns a dict with ``options``, the result of :func:`part_options`, and
    ``model``, the state dict.
    """
    with file_errors(file, "is no fairseq checkpoint"):
        state = load_checkpoint(file)
        cfg = state["cfg"]["model"]
        arch = cfg._name  # fairseq's older models leave a Namespace here
    is_story_model = ARCH_MODEL_REGISTRY.get(arch) is model_class and STATE_KEY in state["model"]
    if not is_story_model or FROZEN_STATE_KEY in state["model"]:
        hint = ", a fusion model itself" if is_story_model else ""
        if str(arch).startswith("fconv_self_att"):
            hint = f"; convert it first: fairseq-mm convert {file} OUTPUT --data DIR"
        raise UserError(
            f"must be of --arch conv_story or one of its sizes, but is of {arch}{hint}."
        )
    # This check raises the message about dictionaries: both models read the same tokens.
    provenance.set_extra_state(state["model"][STATE_KEY])
    return {"options": part_options(cfg), "model": state["model"]}


def copy_weights(module: nn.Module, weights: dict[str, Tensor], prefix: str) -> None:
    """Load the weights whose names begin with ``prefix`` into a module, without the prefix."""
    own = {name[len(prefix) :]: x for name, x in weights.items() if name.startswith(prefix)}
    # strict, because a missing weight would leave a random layer in a model that is never trained.
    module.load_state_dict(own, strict=True)


def freeze(module: nn.Module) -> None:
    """Switch off a module's gradients, and its dropout until the module's ``train()`` is called."""
    module.eval()
    for parameter in module.parameters():
        parameter.requires_grad_(False)


@register_model("conv_story", dataclass=ConvStoryConfig)
class ConvStoryModel(LoadStateDictMixin, FairseqEncoderDecoderModel):
    """Convolutional story model, which may be fused with a frozen story model.

    ``frozen_options`` are the options of the frozen model by name; None for a model without fusion.
    """

    def __init__(
        self,
        cfg: Any,
        source_dictionary: Any,
        target_dictionary: Any,
        frozen_options: Optional[dict[str, Any]] = None,
    ) -> None:
        parts = build_parts(cfg, source_dictionary, target_dictionary)
        options: dict[str, Any] = {"dropout": cfg.dropout, "masks_padding": parts.masks_padding}
        if frozen_options is None:
            super().__init__(parts.encoder, StoryDecoder(target_dictionary, parts.trunk, **options))
        else:
            frozen = build_parts(Namespace(**frozen_options), source_dictionary, target_dictionary)
            super().__init__(
                FusionEncoder(parts.encoder, frozen.encoder),
                FusionDecoder(
                    target_dictionary,
                    parts.trunk,
                    frozen.trunk,
                    frozen_masks_padding=frozen.masks_padding,
                    **options,
                ),
            )
            self.add_module(FROZEN_MODULE, FrozenOptions(frozen_options))
        self.cfg = cfg
        # A checkpoint is loaded by its own config, which may be older than the option.
        wants_dropout = getattr(cfg, "frozen_dropout", False)
        self.has_frozen_dropout = wants_dropout or str(cfg.compat) == "released"
        self._set_frozen()

    @classmethod
    def build_model(cls, cfg: Any, task: Any) -> "ConvStoryModel":
        _check_fixed_options(cfg)
        is_fusion = parse_flag(cfg.pretrained, "--pretrained")
        path = cfg.pretrained_checkpoint
        dictionaries = task.source_dictionary, task.target_dictionary
        provenance = Provenance.of_task(task, has_source=True)
        if is_fusion:
            data = getattr(getattr(task, "cfg", None), "data", None)
            missing: Optional[UserError] = None
            try:
                # relative to the working directory or to the data folder
                folders = ["", *(data.split(os.pathsep)[:1] if data else [])]
                files = [os.path.join(folder, path) for folder in folders]
                file = next((x for x in files if os.path.isfile(x) or is_model_folder(x)), None)
                if file is None:
                    raise UserError("no such file.")
                pretrained = load_pretrained(file, cls, provenance)
                model = cls(cfg, *dictionaries, pretrained["options"])
                # all weights of the trained model, except for its output layer
                copy_weights(model.encoder.frozen, pretrained["model"], "encoder.")
                copy_weights(model.decoder.frozen, pretrained["model"], "decoder.trunk.")
            except UserError as error:
                message = str(error).removeprefix(f"{file}: ")
                missing = UserError(f"--pretrained-checkpoint {path}: {message}")
            # not within `except`: a wrong option would be taken for this error
            if missing is not None:
                build_parts(cfg, *dictionaries)
                # Any frozen part will do until the state dict describes the real one.
                model = cls(cfg, *dictionaries, part_options(cfg))
                # Raised later, by max_positions(): a trained fusion model contains its frozen part,
                # so that loading it must not depend on the file at that path.
                model.pretrained_error = missing
        else:
            model = cls(cfg, *dictionaries)
        model.add_module(MODULE_NAME, provenance)
        return model

    # Kept until a state dict provides the frozen part, see build_model().
    pretrained_error: Optional[UserError] = None

    @property
    def is_fusion(self) -> bool:
        return isinstance(self.decoder, FusionDecoder)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor],
        prev_output_tokens: Tensor,
        **unused: Any,
    ) -> tuple[Tensor, None]:
        """Compute logits [B, T, V] from prompts [B, S] and stories [B, T], and None."""
        self._check_frozen()
        return self.decoder(prev_output_tokens, self.encoder(src_tokens, src_lengths))

    def train(self, mode: bool = True) -> "ConvStoryModel":
        super().train(mode)
        self._set_frozen()
        return self

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Rebuild the frozen model with the options that ``state_dict`` records."""
        super().upgrade_state_dict_named(state_dict, name)
        if "encoder.encoder.embed_tokens.weight" in state_dict:
            raise UserError(
                "the checkpoint is of fairseq's fconv_self_att; convert it first: fairseq-mm "
                "convert CHECKPOINT OUTPUT --data DIR"
            )
        state = state_dict.get(FROZEN_STATE_KEY)
        if state is None or not self.is_fusion:
            return
        options = decode_json(state)
        carrier = getattr(self, FROZEN_MODULE)
        # The state dict decides, not the file of --pretrained-checkpoint: gates were trained with
        # this frozen part.
        if options != carrier.options:
            self._replace_frozen(options)
            carrier.options = options
        self.pretrained_error = None

    def _replace_frozen(self, options: dict[str, Any]) -> None:
        parts = build_parts(Namespace(**options), self.encoder.dictionary, self.decoder.dictionary)
        dims = parts.trunk.out_dim, self.decoder.frozen.out_dim
        if dims[0] != dims[1] and torch.distributed.is_initialized():
            # DistributedDataParallel would keep averaging the gradients of the old parameters
            raise UserError(
                f"the frozen part has --decoder-out-embed-dim {dims[0]}, but the model was built "
                f"for {dims[1]}: to go on training, several processes need the "
                "--pretrained-checkpoint that it was trained with."
            )
        parameter = next(self.parameters())
        self.encoder.frozen = parts.encoder.to(parameter)
        trunk = parts.trunk.to(parameter)
        if dims[0] != dims[1]:
            # new fusion layers; the model may already be on a GPU or in half precision
            fusion = Fusion(self.decoder.trunk.out_dim, trunk.out_dim)
            self.decoder.fusion = fusion.to(next(self.decoder.fusion.parameters()))
        self.decoder.frozen = trunk
        self.decoder.frozen_masks_padding = parts.masks_padding
        self._set_frozen()

    def max_positions(self) -> tuple[int, int]:
        # fairseq's trainer asks for this after it has loaded a checkpoint and before the first step
        self._check_frozen()
        return self.encoder.max_positions(), self.decoder.max_positions()

    def _check_frozen(self) -> None:
        if self.pretrained_error is not None:
            raise self.pretrained_error

    def _set_frozen(self) -> None:
        if not self.is_fusion:
            return
        for module in (self.encoder.frozen, self.decoder.frozen):
            freeze(module)
            # fairseq calls train() at every step, which reaches the frozen part as well.
            module.train(self.training and self.has_frozen_dropout)


def _check_fixed_options(cfg: Any) -> None:
    """Refuse options that only fairseq's ``fconv_self_att`` supports."""
    num_layers = len(parse_layers(cfg.encoder_layers, "--encoder-layers"))
    attends = parse_flags(cfg.encoder_attention, "--encoder-attention", num_layers)
    projects = parse_flag(cfg.project_input, "--project-input")
    if any(attends) or cfg.encoder_attention_nheads != 1 or not projects:
        raise UserError(
            "--encoder-attention must be False, --encoder-attention-nheads 1 and --project-input "
            "True: this system has nothing else."
        )


def _attention(heads: int, *, multi_scale: bool, gated: bool) -> dict[str, Any]:
    return {
        "self_attention": "True",
        "multihead_self_attention_nheads": heads,
        "downsample": str(multi_scale),
        "gated_attention": str(gated),
    }


GATED = _attention(4, multi_scale=True, gated=True)
WP = {**GATED, "dropout": 0.1}  # the dropout of fairseq's fconv_self_att_wp
register_presets(
    "conv_story",
    {
        "conv_story_self_att": _attention(1, multi_scale=False, gated=False),
        "conv_story_multihead": _attention(4, multi_scale=False, gated=False),
        "conv_story_multiscale": _attention(4, multi_scale=True, gated=False),
        "conv_story_gated": GATED,
        "conv_story_wp": WP,
        "conv_story_fusion": {
            **GATED,
            "encoder_layers": "[(128, 3)] * 2 + [(512, 3)] * 3",
            "decoder_layers": "[(512, 4)] * 3 + [(768, 4)] * 2",
            "pretrained": "True",
        },
        "conv_story_tiny": {
            **WP,
            "encoder_embed_dim": 16,
            "decoder_embed_dim": 16,
            "decoder_out_embed_dim": 12,
            "encoder_layers": "[(8, 3)] + [(20, 3)]",
            "decoder_layers": "[(20, 4)] * 2 + [(24, 4)]",
        },
    },
)
