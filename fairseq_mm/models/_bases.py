"""Defines base classes of encoders, decoders and models with the methods that fairseq requires, and
the pooling of image features that encoders share."""

from collections.abc import Mapping
from typing import Any, Optional

import torch
import torch.nn.functional as F
from fairseq.dataclass import ChoiceEnum
from fairseq.models import (
    FairseqEncoder,
    FairseqEncoderDecoderModel,
    FairseqIncrementalDecoder,
)
from torch import Tensor

from fairseq_mm.compat.loading import NETWORK_NAME, has_network
from fairseq_mm.compat.options import option
from fairseq_mm.errors import UserError, WeightsError
from fairseq_mm.models._provenance import MODULE_NAME, Provenance
from fairseq_mm.modules.decoding_caches import join_rows

EncoderOut = dict[str, list[Tensor]]

SCALINGS = ("root", "scale", "unit", "none")
FeatureScaling: Any = ChoiceEnum(SCALINGS)  # created at run time, so Any for type checkers
# below the smallest float16 above 0, so that features of float16 stores do not change
_LEAST_ROOT = 1e-8


class BatchFirstEncoder(FairseqEncoder):
    """Base of encoders that return a dict of lists of tensors [B, ...] for a batch of size B."""

    def __init__(self, dictionary: Any = None) -> None:
        super().__init__(dictionary)

    def reorder_encoder_out(self, encoder_out: EncoderOut, new_order: Tensor) -> EncoderOut:
        # fairseq calls this at every step, but a sampled row stays where it is at most steps; on a
        # GPU the comparison would wait for the device, and a copy costs less
        rows = next((len(x) for xs in encoder_out.values() for x in xs if x is not None), 0)
        if not new_order.is_cuda and torch.equal(
            new_order, torch.arange(rows, device=new_order.device)
        ):
            return encoder_out
        return {
            name: [x if x is None else x.index_select(0, new_order) for x in xs]
            for name, xs in encoder_out.items()
        }

    def join_encoder_out(self, encoder_out: EncoderOut, joining: EncoderOut) -> EncoderOut:
        """Append the output for other examples to ``encoder_out``; pad shorter inputs."""
        joined: EncoderOut = join_rows(encoder_out, joining)
        return joined


class IncrementalDecoder(FairseqIncrementalDecoder):
    """Base of decoders that search only once for the modules whose states must be reordered.

    fairseq asks every module of a decoder at every step whether it has a state. On a CPU this took
    a tenth of a decoding step of T5 with narrow layers.
    """

    # modules of the decoder that have states; without the decoder, which would refer to itself
    _with_state: Optional[list[Any]] = None

    def reorder_incremental_state_scripting(
        self, incremental_state: dict, new_order: Tensor
    ) -> None:
        if self._with_state is None:
            self._with_state = [
                module
                for module in self.modules()
                if module is not self and hasattr(module, "reorder_incremental_state")
            ]
        for module in (self, *self._with_state):
            module.reorder_incremental_state(incremental_state, new_order)


class FeatureDecoder(IncrementalDecoder):
    """Base of decoders. Subclasses define ``extract_features``, ``output_proj`` and ``state_key``.

    ``extract_features(prev_output_tokens, encoder_out, incremental_state)`` returns a pair: the
    inputs of ``output_proj``, [B, T, H] for T tokens, or [B, 1, H] for the last token if there is
    an incremental state; and a dict with further results, such as attention weights, or None.
    fairseq stores the state of incremental decoding, a dict of tensors [B, ...], under
    ``state_key``.
    """

    output_proj: Any
    state_key: str

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Any = None,
        incremental_state: Optional[dict] = None,
        features_only: bool = False,
        **unused: Any,
    ) -> tuple[Tensor, Any]:
        """Compute logits [B, T, V] over V words, or [B, 1, V] when decoding incrementally.

        With ``features_only``, the inputs of the output layer are returned instead. The second
        result is that of ``extract_features``.
        """
        features, extra = self.extract_features(prev_output_tokens, encoder_out, incremental_state)
        return features if features_only else self.output_layer(features), extra

    def output_layer(self, features: Tensor) -> Tensor:
        """Compute logits [..., V] over V words from features [..., H] of dimension H."""
        return self.output_proj(features)

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        saved = self.get_incremental_state(incremental_state, self.state_key)
        if saved is not None:
            reordered = {
                name: x if x is None else x.index_select(0, new_order) for name, x in saved.items()
            }
            self.set_incremental_state(incremental_state, self.state_key, reordered)

    def max_positions(self) -> int:
        return 1_000_000  # no positions limit the length of a text


_SHOWN = 2  # number of PyTorch's differences that the message quotes


class LoadStateDictMixin:
    """Mixin with a ``load_state_dict`` whose error explains in one line why weights do not fit.

    It must precede fairseq's class in the model's list of base classes.
    """

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        if not hasattr(self, NETWORK_NAME) and has_network(state_dict):
            raise WeightsError(
                "contains the image network that it was trained with (--photos): separate the two "
                "with fairseq-mm export CHECKPOINT FOLDER --separate-network, and take the "
                "checkpoint of that folder."
            )
        model: Any = super()
        try:
            return model.load_state_dict(state_dict, *args, **kwargs)
        # For any other error, the trainer of fairseq prints forty lines and says only that the
        # architectures must match; a UserError is shown as it is.
        except RuntimeError as error:
            lines = [line.strip() for line in str(error).splitlines()[1:]] or [str(error)]
            # The first line of PyTorch only repeats the name of the class, so the lines after it
            # are quoted.
            shown = " ".join(x if len(x) <= 200 else f"{x[:197]}..." for x in lines[:_SHOWN])
            more = f" ({len(lines) - _SHOWN} more lines)" if len(lines) > _SHOWN else ""
            cfg = kwargs.get("model_cfg")  # fairseq passes it in some of its calls
            arch = "the model" if cfg is None else f"--arch {cfg._name}"
            raise WeightsError(
                f"its weights do not fit {arch}: {shown.rstrip('.')}{more}; the checkpoint was "
                "trained with other options."
            ) from None


class EncoderDecoderModel(LoadStateDictMixin, FairseqEncoderDecoderModel):
    """Base of models with an encoder and a decoder, whose state dict contains the provenance."""

    def __init__(self, encoder: Any, decoder: Any, provenance: Provenance) -> None:
        super().__init__(encoder, decoder)
        self.add_module(MODULE_NAME, provenance)

    def forward(self, prev_output_tokens: Tensor, **inputs: Any) -> tuple[Tensor, Any]:
        """Compute logits [B, T, V] from words [B, T], and further results of the decoder.

        All other arguments are passed to the encoder.
        """
        return self.decoder(prev_output_tokens, self.encoder(**inputs))


class ImageModel(EncoderDecoderModel):
    """Base of models that read features [B, N, D] of N regions, padded along N."""

    def forward(  # type: ignore[override]
        self, features: Tensor, padding_mask: Tensor, prev_output_tokens: Tensor
    ) -> tuple[Tensor, Any]:
        return self.decoder(prev_output_tokens, self.encoder(features, padding_mask))


class TextModel(EncoderDecoderModel):
    """Base of models that read a source text."""

    def forward(  # type: ignore[override]
        self,
        src_tokens: Tensor,
        src_lengths: Optional[Tensor],
        prev_output_tokens: Tensor,
        **inputs: Any,
    ) -> tuple[Tensor, Any]:
        encoder_out = self.encoder(src_tokens, src_lengths, **inputs)
        return self.decoder(prev_output_tokens, encoder_out)


def check_one_dictionary(task: Any) -> None:
    """Check that source and target of a task share one dictionary, since they share embeddings."""
    if task.source_dictionary != task.target_dictionary:
        raise UserError(
            f"source and target must have one dictionary, but have two, of "
            f"{len(task.source_dictionary)} and {len(task.target_dictionary)} words: prepare with "
            "--joined-dictionary."
        )


def feature_scaling_option() -> Any:
    return option(
        "scale",
        "Scaling of the feature vector: to a mean square of one (scale), the same of its "
        "centred signed square roots (root), to unit length (unit), or none.",
    )


def masked_mean(features: Tensor, padding_mask: Tensor) -> Tensor:
    """Average features [B, N, D] of N regions per image without padding: [B, D] float32.

    ``padding_mask`` is [B, N] bool, True at padding; each image has at least one real region.
    """
    features = features.float()
    if features.size(1) == 1:
        return features[:, 0]  # a single region is never padding
    valid_mask = (~padding_mask).unsqueeze(-1)
    return (features * valid_mask).sum(1) / valid_mask.sum(1)


def check_has_regions(task: Any, option: str) -> None:
    """Raise UserError if ``option`` needs regions, but the task has one vector per image."""
    # a task that is built from a checkpoint has no store
    features = getattr(task, "features", None)
    if features is not None and all(features.count_rows(key) == 1 for key in features.ids):
        raise UserError(
            f"{option} reads the regions of images, but the features are pooled (1 region an "
            "image): extract with --grid."
        )


def check_regions(features: Tensor, reads_grid: Optional[bool]) -> None:
    """Raise UserError if features [B, N, D] are a grid but must not be, or the reverse."""
    count = features.size(1)
    if reads_grid is not None and reads_grid != (count > 1):
        trained, remedy = ("a grid", "with") if reads_grid else ("one region", "without")
        raise UserError(
            f"the model was trained on {trained} of each image, but is given {count} regions: "
            f"extract {remedy} --grid."
        )


def scale_vectors(x: Tensor, scaling: str) -> Tensor:
    """Scale vectors [..., D] float32; zero vectors stay zero.

    ``scaling`` is ``scale`` to divide by the root mean square; ``root`` to replace each number by
    its signed square root, subtract the mean and divide by the root mean square; ``unit`` to scale
    to unit length; ``none`` for no scaling.
    """
    if scaling == "none":
        return x
    if scaling == "unit":
        return F.normalize(x, dim=-1)
    if scaling == "root":
        # Activations after a ReLU have a large common mean and a few large values, which would hide
        # the others from a linear layer.
        size = x.abs()
        if size.requires_grad:
            # the gradient of the root is infinite at 0, and NaN if multiplied by the sign's 0
            size = size.clamp(min=_LEAST_ROOT)
        x = x.sign() * size.sqrt()
        x = x - x.mean(-1, keepdim=True)
    return x * x.pow(2).mean(-1, keepdim=True).clamp(min=1e-12).rsqrt()
