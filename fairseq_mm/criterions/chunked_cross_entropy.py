"""Cross-entropy for large vocabularies (``--criterion chunked_cross_entropy``).

The loss, gradients and log equal fairseq's ``cross_entropy`` and, with ``--label-smoothing``, its
``label_smoothed_cross_entropy``. The logits of all tokens are never in memory at once, see
``modules/chunked_cross_entropy.py``. Checkpoints from before version 0.2.0 name the criterion
``sliced_cross_entropy``.

The criterion trains every model whose logits are ``F.linear`` of the input of its decoder's
``output_layer``; the model needs no change. During the model's own forward pass, the output layer
is replaced by the identity, so the pass returns the features. The weight and bias are found by
calling the real output layer with a tensor that records ``F.linear``. A model that does anything
else with its logits is refused.
"""

import contextlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Callable, NamedTuple, Optional

import torch
import torch.nn.functional as F
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel
from omegaconf import II
from torch import Tensor, nn

from fairseq_mm.errors import UserError
from fairseq_mm.modules.chunked_cross_entropy import CHUNK_BYTES, chunked_cross_entropy

_MEGABYTE = 2**20


@dataclass
class ChunkedCrossEntropyConfig(FairseqDataclass):
    label_smoothing: float = field(
        default=0.0, metadata={"help": "Epsilon of label smoothing; 0 for no smoothing."}
    )
    chunk_megabytes: int = field(
        default=CHUNK_BYTES // _MEGABYTE,
        metadata={"help": "Maximum memory for the logits that are held at once, in MiB."},
    )
    sentence_avg: bool = II("optimization.sentence_avg")


@register_criterion("chunked_cross_entropy", dataclass=ChunkedCrossEntropyConfig)
class ChunkedCrossEntropyCriterion(FairseqCriterion):
    """Cross-entropy that never holds the logits of all tokens in memory.

    Args:
        label_smoothing: Epsilon as in fairseq, which smooths over all types except the target.

    Raises:
        UserError: if an option is out of its range.
    """

    def __init__(
        self, task: Any, sentence_avg: bool, label_smoothing: float, chunk_megabytes: int
    ) -> None:
        super().__init__(task)
        if not 0 <= label_smoothing < 1:
            raise UserError(f"--label-smoothing must be in [0, 1), but is {label_smoothing}.")
        if chunk_megabytes < 1:
            raise UserError(f"--chunk-megabytes must be 1 or more, but is {chunk_megabytes}.")
        self.sentence_avg = sentence_avg
        self.label_smoothing = label_smoothing
        self.chunk_bytes = chunk_megabytes * _MEGABYTE
        # Weak, so that the criterion does not keep a model alive.
        self.checked: weakref.WeakSet = weakref.WeakSet()

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Compute the loss summed over tokens, the divisor of gradients, and sums for the log.

        ``model`` may be wrapped for several processes, as by DistributedDataParallel. ``sample`` is
        a batch as fairseq's datasets collate it. ``reduce`` must be True.

        Raises:
            UserError: if the logits are not a linear map of the decoder's features.
            ValueError: if ``reduce`` is False.
        """
        if not reduce:
            raise ValueError("`reduce` must be True: chunked_cross_entropy sums over tokens.")
        module = _unwrap(model)
        own_forward = module.forward

        def forward(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            return self._losses(module, sample, lambda: own_forward(*args, **kwargs))

        # Inside the forward pass, so that DistributedDataParallel sees the loss as output of the
        # model and averages gradients as usual.
        with _replaced(module, "forward", forward):
            loss, nll = model(**sample["net_input"])
        target = sample["target"]
        sample_size = target.size(0) if self.sentence_avg else sample["ntokens"]
        logging_output = {
            "loss": loss.data,
            "nll_loss": nll.data,
            "ntokens": sample["ntokens"],
            "nsentences": target.size(0),
            "sample_size": sample_size,
        }
        return loss, sample_size, logging_output

    def _losses(
        self, module: BaseFairseqModel, sample: dict[str, Any], run: Callable[[], Any]
    ) -> tuple[Tensor, Tensor]:
        """Return the sums of the loss and of the negative log-likelihood over the target tokens.

        ``run`` is a function without arguments that runs the forward pass of the model ``module``.
        """
        net_output, linear = _extract_features(module, run)
        features = net_output[0]
        V = len(linear.weight)
        if module not in self.checked:
            _check_probabilities(module, net_output, linear)
            self.checked.add(module)
        target = module.get_targets(sample, net_output)
        # fairseq's datasets count the targets without padding
        num_valid = sample["ntokens"]
        return chunked_cross_entropy(
            features.flatten(0, -2),
            linear.weight,
            linear.bias,
            target.flatten(),
            ignore_index=self.padding_idx,
            # fairseq spreads epsilon over all types except the target, PyTorch over all types
            label_smoothing=self.label_smoothing * V / (V - 1) if V > 1 else 0.0,
            chunk_bytes=self.chunk_bytes,
            num_valid=num_valid if isinstance(num_valid, int) else None,
        )

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict[str, Any]]) -> None:
        """Log loss and nll_loss in bits, and perplexity, as fairseq does."""
        LabelSmoothedCrossEntropyCriterion.reduce_metrics(logging_outputs)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        return True


@dataclass
class SlicedCrossEntropyConfig(FairseqDataclass):
    label_smoothing: float = field(
        default=0.0, metadata={"help": "Epsilon of label smoothing; 0 for no smoothing."}
    )
    slice_megabytes: int = field(
        default=CHUNK_BYTES // _MEGABYTE, metadata={"help": "The old name of --chunk-megabytes."}
    )
    sentence_avg: bool = II("optimization.sentence_avg")


@register_criterion("sliced_cross_entropy", dataclass=SlicedCrossEntropyConfig)
class SlicedCrossEntropyCriterion(ChunkedCrossEntropyCriterion):
    """Criterion ``chunked_cross_entropy`` under its old name.

    A checkpoint records the class and option names of its criterion, and fairseq requires the same
    names to resume its training.
    """

    def __init__(
        self, task: Any, sentence_avg: bool, label_smoothing: float, slice_megabytes: int
    ) -> None:
        super().__init__(task, sentence_avg, label_smoothing, slice_megabytes)


class _Linear(NamedTuple):
    """Weight and bias of a decoder's output layer."""

    weight: Tensor
    bias: Optional[Tensor]


class _Watched(Tensor):
    """Tensor that records weight and bias if ``F.linear`` is called on it, and computes nothing."""

    is_features = False
    linear: Optional[_Linear] = None

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple = (), kwargs: Optional[dict] = None
    ) -> Any:
        if func is F.linear:
            input, weight, bias = _linear_arguments(*args, **(kwargs or {}))
            if isinstance(input, cls) and input.is_features:
                # Empty memory: nobody reads the values, but code after the product may ask for the
                # shape.
                result = weight.new_empty(*input.shape[:-1], len(weight)).as_subclass(cls)
                result.linear = _Linear(weight, bias)
                return result
        return super().__torch_function__(func, types, args, kwargs)


def _watch(output_layer: Callable[..., Any], features: Tensor) -> Optional[_Linear]:
    """Return the weight and bias of an output layer that computes ``F.linear`` of its input.

    Return None if ``output_layer`` computes anything else. ``features`` [..., D] are an example of
    its input; only their shape, dtype and device matter.
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


def _linear_arguments(
    input: Tensor, weight: Tensor, bias: Optional[Tensor] = None
) -> tuple[Tensor, Tensor, Optional[Tensor]]:
    return input, weight, bias


def _unwrap(model: nn.Module) -> BaseFairseqModel:
    """Return the model inside fairseq's and PyTorch's wrappers for several processes."""
    module: Any = model
    while not isinstance(module, BaseFairseqModel):
        if not hasattr(module, "module"):
            raise UserError(
                f"--criterion chunked_cross_entropy: {type(module).__name__} is no model whose "
                "output layer it can see; use --criterion cross_entropy."
            )
        module = module.module
    return module


@contextlib.contextmanager
def _replaced(owner: nn.Module, name: str, function: Callable) -> Iterator[None]:
    """Replace the attribute ``name`` of the module ``owner`` by ``function`` in a ``with`` block.

    Other modules of the same class keep the attribute.
    """
    attributes = vars(owner)
    missing = object()
    before = attributes.get(name, missing)
    attributes[name] = function
    try:
        yield
    finally:
        if before is missing:
            del attributes[name]
        else:
            attributes[name] = before


def _refuse(module: nn.Module, reason: str) -> UserError:
    return UserError(
        "--criterion chunked_cross_entropy needs a model with a linear output layer, but is given "
        f"{type(module).__name__}: {reason}. Use --criterion cross_entropy or the model's own."
    )


def _extract_features(module: BaseFairseqModel, run: Callable[[], Any]) -> tuple[Any, _Linear]:
    """Run a forward pass of the model ``module`` with an identity as the decoder's output layer.

    Returns the model's output, which has the features in place of the logits, and the weight and
    bias of the output layer. ``run`` is a function without arguments that runs the forward pass.
    """
    decoder: Any = getattr(module, "decoder", None)
    if not hasattr(decoder, "output_layer"):
        raise _refuse(module, "it has no decoder with an output_layer")
    # An adaptive softmax has its own loss and no single matrix of types.
    if getattr(decoder, "adaptive_softmax", None) is not None:
        raise _refuse(module, "it has an adaptive softmax")
    own_output_layer = decoder.output_layer
    inputs: list[Tensor] = []
    linears: list[_Linear] = []

    def output_layer(features: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        # At each step, because a weight may be cast, replaced, or computed anew by weight
        # normalisation.
        linear = _watch(lambda watched: own_output_layer(watched, *args, **kwargs), features)
        if linear is None:
            raise _refuse(module, "its output_layer is something else")
        inputs.append(features)
        linears.append(linear)
        return features

    with _replaced(decoder, "output_layer", output_layer):
        net_output = run()
    if len(inputs) != 1:
        raise _refuse(module, f"its forward pass calls output_layer {len(inputs)} times")
    if not isinstance(net_output, (tuple, list)) or net_output[0] is not inputs[0]:
        raise _refuse(module, "its forward pass changes what output_layer gives")
    return net_output, linears[0]


@torch.no_grad()
def _check_probabilities(module: BaseFairseqModel, net_output: Any, linear: _Linear) -> None:
    """Check that the log-probabilities of the model ``module`` are the log-softmax of the logits.

    Raises UserError if they are not. The first three tokens of the batch are checked.
    ``net_output`` is the output of the forward pass, with the features in place of the logits;
    ``linear`` computes the logits from the features.
    """
    features = net_output[0][:1, :3].detach()
    logits = F.linear(features, linear.weight, linear.bias)
    rest = net_output[1:]
    expected = module.get_normalized_probs((logits, *rest), log_probs=True)
    log_probs = F.log_softmax(logits.float(), dim=-1)
    if not torch.allclose(log_probs, expected.float(), atol=1e-3, rtol=1e-3, equal_nan=True):
        raise _refuse(module, "its log-probabilities are no log-softmax of it")
