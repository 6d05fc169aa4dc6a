"""Finds the features and the linear output layer from which a model computes its logits.

During the model's own forward pass, the output layer is replaced by the identity, so the pass
returns the features. The weight and bias are found by calling the real output layer with a tensor
that records ``F.linear``. This supports every model whose decoder computes logits by ``F.linear``
of the input of its ``output_layer``.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Callable, NamedTuple, Optional, TypeVar

import torch
import torch.nn.functional as F
from fairseq.models import BaseFairseqModel
from torch import Tensor, nn

from fairseq_mm.errors import UserError

Result = TypeVar("Result")


class NonlinearOutputError(Exception):
    """Error: log-probabilities are not the log-softmax of a linear map of the features."""


class Linear(NamedTuple):
    weight: Tensor
    bias: Optional[Tensor]


class _Watched(Tensor):
    """Tensor that records weight and bias if ``F.linear`` is called on it, and computes nothing."""

    is_features = False
    linear: Optional[Linear] = None

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple = (), kwargs: Optional[dict] = None
    ) -> Any:
        if func is F.linear:
            given = {**dict(zip(("input", "weight", "bias"), args)), **(kwargs or {})}
            input, weight = given["input"], given["weight"]
            if isinstance(input, cls) and input.is_features:
                # Empty memory: nobody reads the values, but code after the product may ask for the
                # shape.
                result = weight.new_empty(*input.shape[:-1], len(weight)).as_subclass(cls)
                result.linear = Linear(weight, given.get("bias"))
                return result
        return super().__torch_function__(func, types, args, kwargs)


def _watch(output_layer: Callable[..., Any], features: Tensor) -> Optional[Linear]:
    """Return the weight and bias of an output layer if it computes ``F.linear`` of its input, else
    None.

    ``features`` [..., D] are an example of its input; only their shape, dtype and device matter.
    """
    # several tokens, because models may treat a single token as a generation step
    several = features.new_zeros((2,) * (features.dim() - 1) + features.shape[-1:])
    watched = several.as_subclass(_Watched)
    watched.is_features = True
    before = watched._version
    result = output_layer(watched)
    if not isinstance(result, _Watched) or result.linear is None:
        return None
    # Operations in place leave the record on the tensor; only its version shows them.
    changed = watched._version > before or result._version > 0
    return None if changed else result.linear


def unwrap(model: nn.Module, criterion: str, *, generates: bool = False) -> BaseFairseqModel:
    """Return the model inside fairseq's and PyTorch's wrappers for several processes.

    ``generates`` is True if the criterion generates texts, outside of the wrappers' forward pass.
    """
    module: Any = model
    while not isinstance(module, BaseFairseqModel):
        if generates and "FullySharded" in type(module).__name__:
            raise UserError(
                f"--criterion {criterion}: cannot generate texts with weights that are spread over "
                "the processes; use another --ddp-backend."
            )
        module = module.module
    return module


@contextlib.contextmanager
def replaced(owner: nn.Module, name: str, function: Callable) -> Iterator[None]:
    """Replace the attribute ``name`` of one module by ``function`` in a ``with`` block."""
    attributes = vars(owner)
    before = {key: x for key, x in attributes.items() if key == name}
    attributes[name] = function
    try:
        yield
    finally:
        del attributes[name]
        attributes.update(before)


def run_on_features(
    model: nn.Module,
    module: BaseFairseqModel,
    net_input: Mapping[str, Any],
    compute: Callable[[Any, Linear], Result],
) -> Result:
    """Run the forward pass of ``model``, which wraps ``module``, and replace its output.

    The output becomes the result of ``compute``, a function of the features and the output layer,
    see :func:`extract_features`.
    """
    own_forward = module.forward

    def forward(*args: Any, **kwargs: Any) -> Result:
        return compute(*extract_features(module, lambda: own_forward(*args, **kwargs)))

    # Inside the forward pass, so that DistributedDataParallel sees the result as output of the
    # model and averages gradients as usual.
    with replaced(module, "forward", forward):
        return model(**net_input)


def extract_features(module: BaseFairseqModel, run: Callable[[], Any]) -> tuple[Any, Linear]:
    """Run a forward pass of the model ``module`` with an identity as the decoder's output layer.

    Returns the model's output, which has the features in place of the logits, and the weight and
    bias of the output layer. Raises NonlinearOutputError if the logits are not a linear map of the
    decoder's features.
    """
    decoder: Any = getattr(module, "decoder", None)
    if not hasattr(decoder, "output_layer"):
        raise NonlinearOutputError("it has no decoder with an output_layer")
    # An adaptive softmax has its own loss and no single matrix of types.
    if getattr(decoder, "adaptive_softmax", None) is not None:
        raise NonlinearOutputError("it has an adaptive softmax")
    own_output_layer = decoder.output_layer
    inputs: list[Tensor] = []
    linears: list[Linear] = []

    def output_layer(features: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        # At each step, because a weight may be cast, replaced, or computed anew by weight
        # normalisation.
        linear = _watch(lambda watched: own_output_layer(watched, *args, **kwargs), features)
        if linear is None:
            raise NonlinearOutputError("its output_layer is something else")
        inputs.append(features)
        linears.append(linear)
        return features

    with replaced(decoder, "output_layer", output_layer):
        net_output = run()
    if len(inputs) != 1:
        raise NonlinearOutputError(f"its forward pass calls output_layer {len(inputs)} times")
    if not isinstance(net_output, (tuple, list)) or net_output[0] is not inputs[0]:
        raise NonlinearOutputError("its forward pass changes what output_layer gives")
    return net_output, linears[0]


@torch.no_grad()
def check_probabilities(module: BaseFairseqModel, net_output: Any, linear: Linear) -> None:
    """Raise NonlinearOutputError if log-probabilities are not the log-softmax of the logits.

    The first three tokens of the batch are compared. ``net_output`` has the features in place of
    the logits.
    """
    features = net_output[0][:1, :3].detach()
    logits = F.linear(features, linear.weight, linear.bias)
    rest = net_output[1:]
    expected = module.get_normalized_probs((logits, *rest), log_probs=True)
    log_probs = F.log_softmax(logits.float(), dim=-1)
    if not torch.allclose(log_probs, expected.float(), atol=1e-3, rtol=1e-3, equal_nan=True):
        raise NonlinearOutputError("its log-probabilities are no log-softmax of it")
