"""Converts weights of fairseq's ``fconv_self_att`` to names and shapes of ``conv_story``.

Both models compute the same function, but their parameters differ in three ways. ``conv_story``
stacks the linear layers of all heads, so that one matrix product computes all heads. The weights of
its convolutions have PyTorch's order of axes. If a model is trained on top of a frozen model
(fusion), the frozen model in ``conv_story`` has no output layer.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fairseq_mm.modules.multi_scale_self_attention import MultiScaleSelfAttention

FROZEN_ENCODER = "encoder.pretrained."
FROZEN_DECODER = "decoder.pretrained_decoder."
_KINDS = ("q", "k", "v")

# Prefix in conv_story -> prefix in fairseq's model. Longer prefixes first: the first match counts.
_PARTS = (
    ("encoder.trained.", "encoder.encoder."),
    ("encoder.frozen.", f"{FROZEN_ENCODER}encoder."),
    ("encoder.", "encoder.encoder."),
    ("decoder.trunk.", "decoder."),
    ("decoder.frozen.", FROZEN_DECODER),
)
_OUTPUT = (
    ("decoder.output_proj.", "decoder.fc3."),
    ("decoder.fusion.trained_gate.", "decoder.gate1.0."),
    ("decoder.fusion.frozen_gate.", "decoder.gate2.0."),
    ("decoder.fusion.joining.", "decoder.joining."),
)
# Patterns of names within encoder and trunk -> fairseq's names. M stands for attention_module, to
# keep the lines short.
_LAYERS = tuple(
    (re.compile(old), new)
    for old, new in (
        (r"embedding\.tokens\.", "embed_tokens."),
        (r"embedding\.positions\.", "embed_positions."),
        (r"input_proj\.", "fc1."),
        (r"output_proj\.", "fc2."),
        (r"residual_projs\.(\d+)\.", r"projections.\1."),
        (r"convolutions\.(\d+)\.", r"convolutions.\1."),
        (r"layers\.(\d+)\.residual_proj\.", r"projections.\1."),
        (r"layers\.(\d+)\.convolution\.", r"convolutions.\1."),
        (r"layers\.(\d+)\.source_attention\.hidden_proj\.", r"attproj.\1."),
        (r"layers\.(\d+)\.source_attention\.query_proj\.", r"attention.\1.M.in_proj_q."),
        (r"layers\.(\d+)\.source_attention\.key_proj\.", r"attention.\1.M.in_proj_k.0."),
        (r"layers\.(\d+)\.source_attention\.value_proj\.", r"attention.\1.M.in_proj_v.0."),
        (r"layers\.(\d+)\.source_attention\.output_proj\.", r"attention.\1.M.out_proj."),
    )
)
_SELF_ATTENTION = re.compile(r"(.*layers\.(\d+)\.self_attention)\.([a-z_]+)\.(?:(\d+)\.)?(\w+)")
_INPUT_PROJECTION = re.compile(
    r"(?:^|\.)(?:self)?attention\.\d+\.(?:attention\.)?attention_module\.in_proj_[qkv]\."
)


class Recipe(NamedTuple):
    """Rule that makes a tensor of ``conv_story`` from the tensors ``names`` of fairseq's model.

    ``same`` copies one tensor. ``convolution`` permutes [width, in, out] to [out, in, width].
    ``concatenated`` joins tensors along the first axis, ``stacked`` along a new first axis.
    ``identity`` makes an identity projection with weight normalisation.
    """

    names: tuple[str, ...]
    kind: str = "same"

    def source_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that each fairseq tensor must have for a result of ``shape``."""
        if self.kind == "convolution":
            return shape[::-1]
        if self.kind == "concatenated":
            return (shape[0] // len(self.names), *shape[1:])
        return shape[1:] if self.kind == "stacked" else shape

    def make(self, name: str, shape: tuple[int, ...], weights: Mapping[str, Tensor]) -> Tensor:
        if self.kind == "identity":
            if name.endswith(".weight_v"):
                return torch.eye(shape[-1]).expand(shape).clone()
            return torch.ones(shape) if name.endswith(".weight_g") else torch.zeros(shape)
        # Weights may be half precision, but a new checkpoint is float32.
        tensors = [weights[source].float() for source in self.names]
        if self.kind == "convolution":
            return tensors[0].permute(2, 1, 0).contiguous()
        if self.kind == "concatenated":
            return torch.cat(tensors)
        return torch.stack(tensors) if self.kind == "stacked" else tensors[0]


class Conversion(NamedTuple):
    """Result of :func:`convert_weights`.

    Attributes:
        weights: Converted tensors, by their names in ``conv_story``.
        used: Names of fairseq's tensors that are needed and have the right shape.
        left_out: Names of fairseq's tensors that ``conv_story`` does not need, by reason.
        missing: Names of fairseq's tensors that are needed but do not exist.
        unexpected: Names of fairseq's tensors that are unknown to the conversion.
        mismatched: (name, shape, expected shape) of fairseq's tensors with a wrong shape.
    """

    weights: dict[str, Tensor]
    used: list[str]
    left_out: dict[str, list[str]]
    missing: list[str]
    unexpected: list[str]
    mismatched: list[tuple[str, tuple[int, ...], tuple[int, ...]]]

    @property
    def fits(self) -> bool:
        return not self.missing and not self.mismatched


def convert_weights(
    model: nn.Module,
    weights: Mapping[str, Tensor],
    *,
    projects_input: bool = True,
    frozen_projects_input: bool = True,
) -> Conversion:
    """Convert the weights, or gradients, of fairseq's ``FConvModelSelfAtt`` to ``model``'s.

    Without ``projects_input`` (``--project-input False``), fairseq's model has projections of
    queries, keys and values that it does not use; here they become identities.
    ``frozen_projects_input`` is this option of a fusion's frozen model.
    """
    # PyTorch 2 saves weight-normalised tensors under other names if the model uses the new
    # parametrization.
    weights = {current_name(name): x for name, x in weights.items()}
    left_out: dict[str, list[str]] = {}
    for name in weights:
        reason = _reason_to_leave_out(name, projects_input, frozen_projects_input, weights)
        if reason:
            left_out.setdefault(reason, []).append(name)
    out_of_use = {name for names in left_out.values() for name in names}

    result = Conversion({}, [], left_out, [], [], [])
    for name, parameter in model.named_parameters():
        recipe = _recipe(name, model)
        is_frozen = name.startswith(("encoder.frozen.", "decoder.frozen."))
        projects = frozen_projects_input if is_frozen else projects_input
        # With --project-input False, fairseq builds projections but does not apply them: identities
        # compute the same.
        if not projects and all(_INPUT_PROJECTION.search(x) for x in recipe.names):
            recipe = Recipe((), "identity")
        shape = tuple(parameter.shape)
        expected = recipe.source_shape(shape)
        fits = True
        for source in recipe.names:
            if source not in weights or source in out_of_use:
                result.missing.append(source)
                fits = False
                continue
            shape_there = tuple(weights[source].shape)
            if shape_there == expected:
                result.used.append(source)
            else:
                result.mismatched.append((source, shape_there, expected))
                fits = False
        if fits:
            result.weights[name] = recipe.make(name, shape, weights)
    known = {*result.used, *out_of_use, *(name for name, *_ in result.mismatched)}
    result.unexpected.extend(name for name in weights if name not in known)
    return result


def current_name(name: str) -> str:
    name = name.replace(".parametrizations.weight.original0", ".weight_g")
    return name.replace(".parametrizations.weight.original1", ".weight_v")


def _recipe(name: str, model: nn.Module) -> Recipe:
    for here, there in _OUTPUT:
        if name.startswith(here):
            return Recipe((there + name[len(here) :],))
    here, there = next(pair for pair in _PARTS if name.startswith(pair[0]))
    match = _SELF_ATTENTION.fullmatch(name)
    if match:
        path, layer, place, number, leaf = match.groups()
        prefix = f"{there}selfattention.{layer}."
        attention = model.get_submodule(path)
        assert isinstance(attention, MultiScaleSelfAttention)
        return _self_attention_recipe(attention, prefix, place, number, leaf)
    rest = name[len(here) :]
    for pattern, replacement in _LAYERS:
        if pattern.match(rest):
            source = there + pattern.sub(replacement, rest).replace(".M.", ".attention_module.")
            is_convolution = "convolution" in rest and rest.endswith(".weight")
            return Recipe((source,), "convolution" if is_convolution else "same")
    raise AssertionError(f"no tensor of fairseq's is known for {name}")


def _self_attention_recipe(
    attention: MultiScaleSelfAttention, prefix: str, place: str, number: Any, leaf: str
) -> Recipe:
    is_multi_scale = attention.head_proj is not None
    heads = [f"{prefix}attention.attention_module"]
    if is_multi_scale:
        heads = [f"{prefix}attention.{head}" for head in range(attention.num_heads)]
    if place == "input_proj":
        return Recipe(tuple(f"{prefix}in_proj_{kind}.{leaf}" for kind in _KINDS), "concatenated")
    if place == "norm":
        return Recipe((f"{prefix}ln.{leaf}",))
    if place == "head_proj":
        return Recipe(tuple(f"{head}.out_proj.{leaf}" for head in heads), "stacked")
    if place == "output_proj":
        head = f"{prefix}attention" if is_multi_scale else heads[0]
        return Recipe((f"{head}.out_proj.{leaf}",))
    # a gated network is a list with gated linear units at its odd places
    layer = f".{2 * int(number)}" if attention.is_gated else ""
    names = []
    for kind in _KINDS:
        # keys and values stand in a list, behind the subsampling where there is one
        place_in_list = "" if kind == "q" else f".{int(is_multi_scale)}"
        names += [f"{head}.in_proj_{kind}{place_in_list}{layer}.{leaf}" for head in heads]
    return Recipe(tuple(names), "stacked")


def _reason_to_leave_out(
    name: str, projects_input: bool, frozen_projects_input: bool, weights: Mapping[str, Tensor]
) -> str:
    """Return the reason why ``conv_story`` does not need a tensor; '' if the tensor is needed."""
    # Buffers and caches of fairseq that hold no weights.
    if name.endswith(("_linearized_weight", "decoder.version", "._float_tensor")):
        return "no weight"
    if name.startswith("pretrained_encoder."):
        # fairseq registers the frozen encoder under two names. Only equal copies are dropped:
        # another tensor must be reported.
        twin = FROZEN_ENCODER + name[len("pretrained_encoder.") :]
        if twin in weights and torch.equal(weights[twin], weights[name]):
            return f"the same as {FROZEN_ENCODER}*"
    if name.startswith(f"{FROZEN_DECODER}fc3."):
        return "the frozen part's output layer, of which nothing is computed"
    is_frozen = name.startswith((FROZEN_DECODER, FROZEN_ENCODER))
    projects = frozen_projects_input if is_frozen else projects_input
    if not projects and _INPUT_PROJECTION.search(name):
        return "--project-input False: projections without use"
    return ""


def options_of_weights(weights: Mapping[str, Any], *, frozen: bool) -> dict[str, Any]:
    """Infer the options of fairseq's model, or of the frozen part of a fusion, from its tensors.

    The heads of the self-attention can be counted only if each head has its own layers
    (``--downsample True``). Dropout, ``--project-input`` and the number of heads of the attention
    to the prompt cannot be inferred.

    Raises:
        KeyError: if the weights belong to another model than ``fconv_self_att``.
    """
    shapes = {current_name(name): tuple(x.shape) for name, x in weights.items()}
    encoder = f"{FROZEN_ENCODER}encoder." if frozen else "encoder.encoder."
    decoder = FROZEN_DECODER if frozen else "decoder."
    options: dict[str, Any] = {}
    for part, prefix, texts in (("encoder", encoder, "source"), ("decoder", decoder, "target")):
        options[f"{part}_embed_dim"] = shapes[f"{prefix}embed_tokens.weight"][1]
        options[f"max_{texts}_positions"] = shapes[f"{prefix}embed_positions.weight"][0]
        layers: list[tuple[int, int]] = []
        while f"{prefix}convolutions.{len(layers)}.weight" in shapes:
            width, _, channels = shapes[f"{prefix}convolutions.{len(layers)}.weight"]
            layers.append((channels // 2, width))
        if not layers:
            raise KeyError(f"{prefix}convolutions.0.weight")
        options[f"{part}_layers"] = format_list(layers)
    options["decoder_out_embed_dim"] = shapes[f"{decoder}fc2.weight"][0]
    for option, module in (("decoder_attention", "attention"), ("self_attention", "selfattention")):
        flags = [
            any(name.startswith(f"{decoder}{module}.{layer}.") for name in shapes)
            for layer in range(len(layers))
        ]
        options[option] = str(flags[0]) if len(set(flags)) == 1 else format_list(flags)
    # Heads share their layers without downsampling, and no shape depends on their number.
    head = re.compile(rf"{re.escape(decoder)}selfattention\.\d+\.attention\.(\d+)\.out_proj\.bias")
    heads = {match.group(1) for match in map(head.fullmatch, shapes) if match}
    gate = re.compile(rf"{re.escape(decoder)}selfattention\..*\.in_proj_q\.4\.bias")
    options["downsample"] = str(bool(heads))
    options["gated_attention"] = str(any(map(gate.fullmatch, shapes)))
    if heads:
        options["multihead_self_attention_nheads"] = len(heads)
    return options


def format_list(items: list[Any]) -> str:
    """Format a list with repetitions: ``[a, a, b]`` is ``[a] * 2 + [b]``."""
    runs: list[list[Any]] = []
    for item in items:
        if runs and runs[-1][0] == item:
            runs[-1][1] += 1
        else:
            runs.append([item, 1])
    return " + ".join(f"[{item}] * {times}" if times > 1 else f"[{item}]" for item, times in runs)
