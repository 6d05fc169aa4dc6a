"""Base classes of visual storytelling: encoders of five images, decoders and models."""

from dataclasses import dataclass
from typing import Any, Optional

import torch
from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from fairseq_mm.compat.options import option
from fairseq_mm.models._bases import BatchFirstEncoder, FeatureDecoder, ImageModel
from fairseq_mm.models._provenance import Provenance
from fairseq_mm.modules.linear import float32_linear, normal_linear
from fairseq_mm.modules.packed_rnn import SkippingLSTM


class MaskedBatchNorm(nn.Module):
    """Batch normalisation (Ioffe and Szegedy 2015) with statistics over valid positions only.

    The running statistics are the mean over the first ``1 / momentum`` batches, then a moving
    average. The layer computes in float32. A batch with a single valid row has no variance and is
    normalised with the running statistics.
    """

    def __init__(self, channels: int, momentum: float = 0.01) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.running_mean: Tensor
        self.running_var: Tensor
        self.num_batches: Tensor
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches", torch.zeros(()))
        self.momentum = momentum
        self.eps = 1e-5

    def _apply(self, *args: Any, **kwargs: Any) -> "MaskedBatchNorm":
        super()._apply(*args, **kwargs)
        self._keep_float32()
        return self

    def _keep_float32(self) -> None:
        # Half precision cannot resolve the small updates of running statistics, so they stay
        # float32 when fairseq casts the model.
        if self.running_mean.dtype != torch.float32:
            for name in ("running_mean", "running_var", "num_batches"):
                setattr(self, name, getattr(self, name).float())

    def forward(self, x: Tensor, valid_mask: Tensor) -> Tensor:
        """Normalise x [..., D]; outputs are undefined where ``valid_mask`` [...] is False."""
        self._keep_float32()  # fairscale's sharding casts buffers without calling _apply
        mean, variance = self.running_mean, self.running_var
        values = x.float()
        if self.training:
            # Weights, because a selection by the mask would wait for a GPU.
            mask = valid_mask.unsqueeze(-1)
            dims = tuple(range(x.dim() - 1))
            count = mask.sum()
            weights = mask / count.clamp(min=1)
            real = torch.where(mask, values, torch.zeros_like(values))
            batch_mean = (real * weights).sum(dim=dims)
            batch_variance = ((real - batch_mean).square() * weights).sum(dim=dims)
            # A single row has no variance.
            is_enough = count > 1
            mean = torch.where(is_enough, batch_mean, mean)
            with torch.no_grad():
                # As in PyTorch, a batch is normalised with its biased variance, and the running
                # statistics have the unbiased variance.
                correction = count / (count - 1).clamp(min=1)
                self.num_batches += is_enough
                # A moving average from the start would stay close to its initial 0 and 1 for
                # epochs, and normalise features of another scale wrongly in evaluation.
                share = self.num_batches.reciprocal().clamp(min=self.momentum, max=1) * is_enough
                self.running_mean.lerp_(batch_mean, share)
                self.running_var.lerp_(batch_variance * correction, share)
            variance = torch.where(is_enough, batch_variance, variance)
        scale = (variance + self.eps).rsqrt() * self.weight.float()
        return ((values - mean) * scale + self.bias.float()).to(x.dtype)


NUM_IMAGES = 5


@dataclass
class GlocalConfig(FairseqDataclass):
    """Sizes of :class:`GlocalEncoder`. The defaults follow GLAC's released code."""

    picture_dim: int = option(1024, "Dimension of an image's projected features.")
    encoder_hidden_dim: int = option(
        1024, "Hidden size of the LSTM over the images, in each direction."
    )
    encoder_layers: int = option(2, "Number of layers of the LSTM over the images.")
    glocal_dim: int = option(
        2048, "Dimension of glocal vectors, which combine an image with the other images."
    )


class NonLocalBlock(nn.Module):
    """Non-local block: self-attention between the positions of a grid, without softmax.

    Wang et al. 2018, https://arxiv.org/abs/1711.07971, in the form of Li et al. 2020, section 3.2:
    dot products (equation 3) are divided by the number of positions, nothing is subsampled, and the
    result, batch-normalised in the code of Li et al. (``has_batch_norm``), is added to the grid
    (equation 4). The block is initialised as the identity.
    """

    def __init__(self, channels: int, *, has_batch_norm: bool = False) -> None:
        super().__init__()
        inner_dim = max(channels // 2, 1)
        self.theta = nn.Linear(channels, inner_dim)
        self.phi = nn.Linear(channels, inner_dim)
        self.g = nn.Linear(channels, inner_dim)
        self.output = nn.Linear(inner_dim, channels)
        self.norm = MaskedBatchNorm(channels, momentum=0.1) if has_batch_norm else None
        # With the last layer at zero the block is the identity at first. The released code does
        # this to the batch norm.
        last = self.norm if self.norm is not None else self.output
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def similarities(self, grid: Tensor) -> Tensor:
        """Compute f(x_i, x_j) = theta(x_i) . phi(x_j), equation 3: [B, R, C] -> [B, R, R]."""
        # float32: the output grows with the third power of the values of the grid, which half
        # precision does not hold.
        theta, phi = float32_linear(self.theta, grid), float32_linear(self.phi, grid)
        return torch.matmul(theta, phi.transpose(-1, -2))

    def forward(self, grid: Tensor, valid_mask: Tensor) -> Tensor:
        """Compute the output [B, R, C] float32 for grids [B, R, C] of R positions with C channels.

        ``valid_mask`` is [B] bool, False for grids of missing images.
        """
        num_positions = grid.size(1)
        # Divided before the second product, which keeps the numbers smaller.
        values = torch.matmul(self.similarities(grid) / num_positions, float32_linear(self.g, grid))
        update = float32_linear(self.output, values)
        if self.norm is not None:
            update = self.norm(update, valid_mask.unsqueeze(1).expand(-1, num_positions))
        return grid + update


class ImageVectors(nn.Module):
    """Module that computes one vector per image.

    The features of an image's regions, after an optional non-local block, are averaged, projected
    and batch-normalised. ``rows_per_image`` is 1, or the number of positions of a grid.
    """

    def __init__(
        self,
        feature_dim: int,
        output_dim: int,
        rows_per_image: int,
        *,
        non_local: bool = False,
        non_local_norm: bool = False,
    ) -> None:
        super().__init__()
        self.rows_per_image = rows_per_image
        self.non_local = None
        if non_local:
            self.non_local = NonLocalBlock(feature_dim, has_batch_norm=non_local_norm)
        self.proj = normal_linear(feature_dim, output_dim, 0.02)
        self.norm = MaskedBatchNorm(output_dim)

    def grids(self, features: Tensor, padding_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Split features [B, 5 R, D] of each story into grids [B, 5, R, D] float32 of its five
        images.

        ``padding_mask`` [B, 5 R] is True at missing images, whose grids are zero. The second result
        is a mask [B, 5], True at missing images.
        """
        shape = (len(features), NUM_IMAGES, self.rows_per_image)
        is_padding = padding_mask.view(shape)
        grids = features.reshape(*shape, -1).float()
        # Zeros, because features of missing images are undefined, and NaN times a mask of 0 would
        # stay NaN.
        return grids.masked_fill(is_padding.unsqueeze(-1), 0), is_padding.all(dim=2)

    def forward(self, features: Tensor, padding_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Compute image vectors [B, 5, output_dim], zero for missing images, and a mask [B, 5], see
        :meth:`grids`.
        """
        grids, image_padding_mask = self.grids(features, padding_mask)
        if self.non_local is not None:
            grids = self.non_local(grids.flatten(0, 1), ~image_padding_mask.flatten()).view_as(
                grids
            )
        pooled = grids.mean(dim=2)
        # cast after normalisation, because features of any scale may leave the range of float16
        vectors = self.norm(float32_linear(self.proj, pooled), ~image_padding_mask)
        vectors = vectors.masked_fill(image_padding_mask.unsqueeze(-1), 0)
        return vectors.to(self.proj.weight.dtype), image_padding_mask


class GlocalEncoder(BatchFirstEncoder):
    """Encoder of GLAC, which computes one vector per image from all five images.

    Kim et al. 2018, https://arxiv.org/abs/1805.10973; Li et al. 2020, section 3.1. A bidirectional
    LSTM reads the vectors of all five images. A linear layer maps each image's vector and the
    LSTM's output to the "glocal" vector, and a second one maps this to the output vector.
    """

    def __init__(self, images: ImageVectors, cfg: Any, output_dim: int) -> None:
        super().__init__()
        # The name is in the keys of every checkpoint, so it stays.
        self.pictures = images
        hidden_dim, dropout = cfg.encoder_hidden_dim, cfg.encoder_dropout
        self.lstm = SkippingLSTM(cfg.picture_dim, hidden_dim, cfg.encoder_layers, dropout)
        self.glocal_proj = nn.Linear(cfg.picture_dim + 2 * hidden_dim, cfg.glocal_dim)
        self.glocal_norm = MaskedBatchNorm(cfg.glocal_dim)
        self.output_proj = nn.Linear(cfg.glocal_dim, output_dim)
        # N(0, 0.02) and zero biases, as in the released code.
        for layer in (self.glocal_proj, self.output_proj):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor, padding_mask: Tensor) -> dict[str, list[Tensor]]:
        """Encode features [B, 5 R, D] of five images with R regions each.

        ``padding_mask`` is [B, 5 R] bool, True at missing images. Returns a dict of lists of one
        tensor: ``vectors`` [B, 5, output_dim] and ``image_padding_mask`` [B, 5].
        """
        local, image_padding_mask = self.pictures(features, padding_mask)
        glocal = torch.cat([local, self.lstm(local, image_padding_mask)], dim=-1)
        # A missing image has a vector as well, but it must not enter the batch statistics.
        glocal = self.glocal_norm(self.dropout(self.glocal_proj(glocal)), ~image_padding_mask)
        vectors = torch.relu(self.dropout(self.output_proj(glocal)))
        return {"vectors": [vectors], "image_padding_mask": [image_padding_mask]}


class StoryModel(ImageModel):
    """Base of the models that write a story from five images.

    The encoder must return a dict with ``vectors``, the vectors of the images, and
    ``image_padding_mask``.
    """

    def __init__(self, encoder: BatchFirstEncoder, decoder: FeatureDecoder, task: Any) -> None:
        super().__init__(encoder, decoder, Provenance.of_task(task))


def encoder_output(encoder_out: Optional[dict[str, list[Tensor]]]) -> tuple[Tensor, Tensor]:
    assert encoder_out is not None
    return encoder_out["vectors"][0], encoder_out["image_padding_mask"][0]
