"""Builds and loads the parts of a convolutional story model: encoder and trunk.

A fusion model has both of them twice: trained, and frozen from a pretrained checkpoint.
"""

from typing import Any, NamedTuple

from fairseq.models import ARCH_MODEL_REGISTRY
from torch import Tensor, nn

from fairseq_mm.compat.model_folders import load_checkpoint
from fairseq_mm.errors import UserError
from fairseq_mm.models._conv_decoder import ConvEncoder
from fairseq_mm.models._conv_trunk import ConvTrunk
from fairseq_mm.models._options import parse_flag, parse_flags, parse_layers
from fairseq_mm.models._provenance import STATE_KEY, Provenance, decode_json, encode_json

# fairseq's moving average of weights skips names that contain "version"
MODULE_NAME = "frozen_version"
FROZEN_STATE_KEY = f"{MODULE_NAME}._extra_state"

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
    """Build encoder and trunk from ``options``, an object with the attributes ``PART_OPTIONS``."""
    if options.encoder_embed_dim != options.decoder_embed_dim:
        raise UserError(
            f"--encoder-embed-dim ({options.encoder_embed_dim}) and --decoder-embed-dim "
            f"({options.decoder_embed_dim}) must be equal: the decoder's attention joins the two."
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
    """Module that saves the options of a fusion's frozen model in the state dict."""

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
    try:
        state = load_checkpoint(file)
        cfg = state["cfg"]["model"]
        arch = cfg._name  # fairseq's older models leave a Namespace here
    except UserError:
        raise
    except Exception as error:  # torch and fairseq raise nearly anything on other files
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0][:200] if lines else ''}"
        raise UserError(f"is no fairseq checkpoint ({reason})") from None
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
