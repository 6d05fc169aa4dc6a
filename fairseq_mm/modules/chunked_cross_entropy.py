"""Cross-entropy of a linear output layer that never holds the logits of all tokens in memory.

For N tokens with features x of dimension E, a vocabulary of V types with weights W and biases b,
targets t and label smoothing s (PyTorch's, which smooths over all types including the target):

    logits l = W x + b,  p = softmax(l),  loss = -(1 - s) log p[t] - s / V sum over v of log p[v]
    dloss/dl[v] = p[v] - s / V for v other than t,  dloss/dl[t] = p[t] - s / V - (1 - s)

The direct computation holds the [N, V] logits, their log-softmax and the gradients of both. This
module computes the logits in chunks of rows (tokens). The gradients of a chunk are computed
together with its loss, so no product is computed twice (except in float16, see
:class:`_Recomputed`).

Most of the time is spent on three matrix products, 6 N V E operations: the logits and the gradients
of x and W. To save memory bandwidth, each chunk is computed in tiles of a few types, whose logits
fit into the processor's cache. Each tile updates three values of each row: the maximum of the
logits, the sum of their exponentials, and the gradient of the features. If the maximum changes, the
other two are rescaled (Milakov, Gimelshein 2018, https://arxiv.org/abs/1805.02867). After the last
tile, the softmax's denominator is known for each row. For the gradient of W, the features are
divided by the denominator, which is cheaper than dividing the exponentials. A GPU computes a chunk
at once (:class:`_WholeChunk`), because each tile would start some thirty small operations. See
``benchmarks/chunked_cross_entropy.py`` for measurements.
"""

import math
from collections.abc import Iterator
from typing import Any, Optional, Union

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_BYTES = 128 * 2**20
_MIN_COLUMNS = 64
# Maximum bytes of a tile's float32 logits: a tile should fit into a CPU's cache.
_TILE_BYTES = 2 * 2**20


def _ranges(total: int, size: int) -> Iterator[tuple[int, int]]:
    """Split ``range(total)`` into pairs (start, end) of about equal length, at most ``size``."""
    parts = max(1, math.ceil(total / max(1, size)))
    bounds = [total * i // parts for i in range(parts + 1)]
    return zip(bounds[:-1], bounds[1:])


class _Problem:
    """Inputs of the loss, without ignored rows (tokens), in the dtype of the matrix products."""

    def __init__(
        self,
        features: Tensor,
        weight: Tensor,
        bias: Optional[Tensor],
        target: Tensor,
        *,
        ignore_index: int,
        smoothing: float,
        dtype: torch.dtype,
        num_valid: Optional[int],
    ) -> None:
        self.rows = _find_rows(target.ne(ignore_index), num_valid)
        if self.rows is not None:
            features, target = features[self.rows], target[self.rows]
        self.features = features.to(dtype)  # [R, E]
        self.weight = weight.to(dtype)
        self.bias = None if bias is None else bias.to(dtype)
        self.target = target
        self.smoothing = smoothing
        # Sums over a vocabulary or over chunks would lose most of their terms in half precision.
        self.sum_dtype = torch.promote_types(dtype, torch.float32)

    def logits(
        self, features: Tensor, start: int, end: int, *, out: Optional[Tensor] = None
    ) -> Tensor:
        """Compute the logits [rows, end - start] of the vocabulary entries from ``start`` on.

        The logits are rounded as by ``F.linear``, and written to ``out`` if it is not None.
        """
        weight = self.weight[start:end].t()
        if self.bias is None:
            return torch.mm(features, weight, out=out)
        # addmm rounds once, like F.linear; mm and a separate addition would round twice in half
        # precision.
        return torch.addmm(self.bias[start:end], features, weight, out=out)

    def losses(self, normalizer: Tensor, target_logit: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sums of the loss and of the negative log-likelihood over all rows.

        ``normalizer`` is the logsumexp of each row's logits.
        """
        nll = (normalizer - target_logit).sum()
        if not self.smoothing:
            return nll, nll.clone()
        V = len(self.weight)
        # the sum of all logits needs only the sum of the features and the sum of W's rows
        logit_sum = self.features.sum(0, dtype=self.sum_dtype).dot(
            self.weight.sum(0, dtype=self.sum_dtype)
        )
        if self.bias is not None:
            logit_sum = logit_sum + len(self.features) * self.bias.sum(dtype=self.sum_dtype)
        uniform = normalizer.sum() - logit_sum / V
        return (1 - self.smoothing) * nll + self.smoothing * uniform, nll

    def spread(self, grad_features: Tensor, like: Tensor) -> Tensor:
        """Return ``grad_features`` with the shape and dtype of ``like``; ignored rows get zeros."""
        if self.rows is None:
            return grad_features.to(like.dtype)
        spread = like.new_zeros(like.shape)
        spread[self.rows] = grad_features.to(like.dtype)
        return spread


def _find_rows(valid_mask: Tensor, num_valid: Optional[int]) -> Optional[Tensor]:
    """Return the indices of the rows where ``valid_mask`` [N] is True; None for all rows."""
    if num_valid is None or valid_mask.device.type == "cpu":
        return None if bool(valid_mask.all()) else valid_mask.nonzero().squeeze(1)
    # nonzero() would wait for the GPU, and so would reading whether the number is right.
    message = "`ntokens` of a batch must be the number of its targets without padding."
    torch._assert_async(valid_mask.sum() == num_valid, message)
    if num_valid == len(valid_mask):
        return None
    return (~valid_mask).byte().sort(stable=True).indices[:num_valid]


def _target_in(target: Tensor, start: int, end: int) -> tuple[Tensor, Tensor]:
    """Return each row's target column [R, 1] in a tile, and a mask [R, 1], True if it is there."""
    column = (target - start).unsqueeze(1)
    inside = (column >= 0) & (column < end - start)
    return column.clamp(0, end - start - 1), inside


class _Tiles:
    """Ranges of vocabulary entries, and the memory for their logits, which all chunks share."""

    def __init__(self, problem: _Problem, num_rows: int, *, keeps: bool, is_whole: bool) -> None:
        V = len(problem.weight)
        size = V if is_whole else max(_MIN_COLUMNS, _TILE_BYTES // (4 * max(1, num_rows)))
        self.ranges = list(_ranges(V, size))
        self.keeps = keeps
        columns = max(end - start for start, end in self.ranges)
        dtype, sum_dtype = problem.features.dtype, problem.sum_dtype
        # allocated once, because the system needs longer to provide new memory than a pass over it
        self.memory = problem.features.new_empty(num_rows * (V if keeps else columns))
        self.wide = None
        if dtype != sum_dtype:
            self.wide = problem.features.new_empty(num_rows * columns, dtype=sum_dtype)

    def product_memory(self, num_rows: int, start: int, end: int) -> Tensor:
        """Return a view [num_rows, end - start] of the memory that holds a tile's logits."""
        first = num_rows * start if self.keeps else 0
        return self.memory[first : first + num_rows * (end - start)].view(num_rows, end - start)

    def widened(self, logits: Tensor) -> Tensor:
        if self.wide is None:
            return logits
        return self.wide[: logits.numel()].view(logits.shape).copy_(logits)


class _Chunk:
    """Softmax over the vocabulary for a chunk of rows, computed tile by tile."""

    def __init__(
        self, problem: _Problem, rows: slice, tiles: _Tiles, *, needs_features: bool
    ) -> None:
        self.problem, self.tiles = problem, tiles
        self.features, self.target = problem.features[rows], problem.target[rows]
        dtype = problem.sum_dtype
        R, E = self.features.shape
        # finite, so that a first tile with only -inf logits does not produce NaN
        largest = self.features.new_full((R, 1), torch.finfo(dtype).min, dtype=dtype)
        total = self.features.new_zeros((R, 1), dtype=dtype)
        self.target_logit = self.features.new_zeros((R, 1), dtype=dtype)
        grad = self.features.new_zeros((R, E), dtype=dtype) if needs_features else None
        self.largest: list[Tensor] = []  # running maximum after each tile
        for start, end in tiles.ranges:
            logits = tiles.product_memory(R, start, end)
            powers = tiles.widened(problem.logits(self.features, start, end, out=logits))
            column, inside = _target_in(self.target, start, end)
            self.target_logit += powers.gather(1, column).masked_fill_(~inside, 0)
            before, largest = largest, torch.maximum(largest, powers.amax(1, keepdim=True))
            self.largest.append(largest)
            powers.sub_(largest).exp_()
            shrink = (before - largest).exp_()
            total.mul_(shrink).add_(powers.sum(1, keepdim=True))
            if grad is None and not tiles.keeps:
                continue
            # the target's gradient p - 1 is added separately: for p close to 1, the rounding error
            # of a half-precision product would be larger than p - 1
            powers.scatter_(1, column, powers.gather(1, column).masked_fill_(inside, 0))
            if powers is not logits:
                logits.copy_(powers)
            if grad is not None:
                _add_product(grad.mul_(shrink), logits, problem.weight[start:end])
        self.normalizer = largest + total.log()
        # p - 1 + s at the target; expm1 is accurate for p close to 1
        self.target_grad = torch.expm1(self.target_logit - self.normalizer) + problem.smoothing
        if grad is not None:
            grad.mul_((largest - self.normalizer).exp_())
            grad.addcmul_(problem.weight[self.target].to(dtype), self.target_grad)
        self.grad_features = grad

    def add_weight_gradient(
        self, grad_weight: Optional[Tensor], grad_bias: Optional[Tensor], *, beta: int
    ) -> None:
        """Add this chunk's gradients to ``beta`` times ``grad_weight`` [V, E] and ``grad_bias``
        [V].

        The term ``-s / V`` of label smoothing is left out, because :class:`_InForward` adds it for
        all chunks at once.
        """
        features, dtype = self.features, self.problem.sum_dtype
        R = len(features)
        wide = features.to(dtype)
        for (start, end), largest in zip(self.tiles.ranges, self.largest):
            powers = self.tiles.product_memory(R, start, end).t()
            factor = (largest - self.normalizer).exp_()  # [R, 1]
            if grad_weight is not None:
                scaled = (wide * factor).to(features.dtype)
                _add_product(grad_weight[start:end], powers, scaled, beta=beta)
            if grad_bias is not None:
                _add_product(
                    grad_bias[start:end, None], powers, factor.to(features.dtype), beta=beta
                )
        if grad_weight is not None:
            grad_weight.index_add_(0, self.target, wide * self.target_grad)
        if grad_bias is not None:
            grad_bias.index_add_(0, self.target, self.target_grad.squeeze(1))


class _WholeChunk:
    """Softmax over the vocabulary for a chunk of rows, computed at once; see :class:`_Chunk`."""

    def __init__(
        self, problem: _Problem, rows: slice, tiles: _Tiles, *, needs_features: bool
    ) -> None:
        self.features, dtype = problem.features[rows], problem.sum_dtype
        column = problem.target[rows].unsqueeze(1)
        logits = tiles.product_memory(len(self.features), 0, len(problem.weight))
        powers = tiles.widened(problem.logits(self.features, 0, len(problem.weight), out=logits))
        largest = powers.amax(1, keepdim=True)
        self.target_logit = powers.gather(1, column)
        total = powers.sub_(largest).exp_().sum(1, keepdim=True)
        self.normalizer = largest + total.log()
        self.gradient, self.grad_features = logits, None
        if not needs_features and not tiles.keeps:
            return
        # p - 1 + s at the target; expm1 is accurate for p close to 1
        target_grad = torch.expm1(self.target_logit - self.normalizer) + problem.smoothing
        powers.div_(total).scatter_(1, column, target_grad)
        if powers is not logits:
            logits.copy_(powers)
        if needs_features:
            self.grad_features = torch.mm(logits, problem.weight).to(dtype)

    def add_weight_gradient(
        self, grad_weight: Optional[Tensor], grad_bias: Optional[Tensor], *, beta: int
    ) -> None:
        if grad_weight is not None:
            _add_product(grad_weight, self.gradient.t(), self.features, beta=beta)
        if grad_bias is not None:
            total = self.gradient.sum(0, dtype=grad_bias.dtype)
            grad_bias.copy_(total + grad_bias if beta else total)


def _add_product(result: Tensor, first: Tensor, second: Tensor, *, beta: int = 1) -> None:
    """Compute ``result = beta result + first @ second``; the factors may have lower precision."""
    if result.dtype == first.dtype:
        torch.addmm(result, first, second, beta=beta, out=result)
    elif beta:
        result += torch.mm(first, second)
    else:
        result.copy_(torch.mm(first, second))


def _is_whole(device: torch.device) -> bool:
    return device.type != "cpu"


def _chunks(
    problem: _Problem, chunk_bytes: int, *, needs_features: bool, keeps: bool
) -> Iterator[tuple[slice, Union[_Chunk, _WholeChunk]]]:
    N, V = len(problem.features), len(problem.weight)
    is_whole = _is_whole(problem.weight.device)
    size = problem.features.element_size()
    if is_whole and problem.features.dtype != problem.sum_dtype:
        size += 4  # the logits are in memory in both precisions
    ranges = list(_ranges(N, chunk_bytes // (V * size)))
    most = max(end - start for start, end in ranges)
    tiles = _Tiles(problem, most, keeps=keeps, is_whole=is_whole)
    for start, end in ranges:
        rows = slice(start, end)
        chunk = _WholeChunk if is_whole else _Chunk
        yield rows, chunk(problem, rows, tiles, needs_features=needs_features)


def _compute_loss(problem: _Problem, chunk_bytes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, the negative log-likelihood, and the logsumexp of each row's logits."""
    chunks = [
        (part.normalizer, part.target_logit)
        for _, part in _chunks(problem, chunk_bytes, needs_features=False, keeps=False)
    ]
    normalizer, target_logit = (torch.cat(column) for column in zip(*chunks))
    return *problem.losses(normalizer, target_logit), normalizer


def _refuse_double_backward() -> None:
    """Raise RuntimeError if the backward pass runs with ``create_graph=True``."""
    # PyTorch's own check, once_differentiable, misses this: it treats the gradients as constants if
    # the incoming gradient needs no gradient, as the gradient of a loss.
    if torch.is_grad_enabled():
        raise RuntimeError("chunked_cross_entropy cannot be differentiated twice.")


class _InForward(torch.autograd.Function):
    """Loss whose gradients are computed in the forward pass; the backward pass scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Optional[Tensor],
        target: Tensor,
        options: dict[str, Any],
        chunk_bytes: int,
        needs: tuple[bool, bool, bool],
    ) -> tuple[Tensor, Tensor]:
        problem = _Problem(features, weight, bias, target, **options)
        needs_features, needs_weight, needs_bias = needs
        V, dtype, smoothing = len(weight), problem.sum_dtype, problem.smoothing
        grad_features = torch.empty_like(problem.features, dtype=dtype) if needs_features else None
        grad_weight = torch.empty_like(weight, dtype=dtype) if needs_weight else None
        grad_bias = weight.new_empty(V, dtype=dtype) if needs_bias else None
        keeps = needs_weight or needs_bias
        normalizers, target_logits = [], []
        for rows, part in _chunks(problem, chunk_bytes, needs_features=needs_features, keeps=keeps):
            normalizers.append(part.normalizer)
            target_logits.append(part.target_logit)
            if grad_features is not None and part.grad_features is not None:
                grad_features[rows] = part.grad_features
            if keeps:
                # The first chunk (rows.start is 0) overwrites the empty gradients, which saves
                # filling them with zeros.
                part.add_weight_gradient(grad_weight, grad_bias, beta=min(1, rows.start))
        if smoothing:
            # the term -s / V is equal for all types, the target included
            if grad_features is not None:
                grad_features -= problem.weight.sum(0, dtype=dtype) * (smoothing / V)
            if grad_weight is not None:
                grad_weight -= problem.features.sum(0, dtype=dtype) * (smoothing / V)
            if grad_bias is not None:
                grad_bias -= len(problem.features) * smoothing / V
        ctx.gradients = [
            None if grad_features is None else problem.spread(grad_features, features),
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None or bias is None else grad_bias.to(bias.dtype),
        ]
        loss, nll = problem.losses(torch.cat(normalizers), torch.cat(target_logits))
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _: Any) -> tuple[Optional[Tensor], ...]:
        _refuse_double_backward()
        if ctx.gradients is None:
            # the gradients of the first pass were scaled in place
            raise RuntimeError("chunked_cross_entropy allows one backward pass through a loss.")
        gradients, ctx.gradients = ctx.gradients, None
        # reading the factor from a GPU would wait for it
        if grad_loss.device.type != "cpu" or grad_loss.item() != 1:
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(grad_loss)
        return (*gradients, None, None, None, None)


class _Recomputed(torch.autograd.Function):
    """Loss in float16, whose logits are computed again in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Optional[Tensor],
        target: Tensor,
        options: dict[str, Any],
        chunk_bytes: int,
        needs: tuple[bool, bool, bool],
    ) -> tuple[Tensor, Tensor]:
        problem = _Problem(features, weight, bias, target, **options)
        # Gradients must be multiplied by the loss scale before they are rounded to float16, because
        # most probabilities are 1e-8 or less. The scale is known only in the backward pass.
        loss, nll, normalizer = _compute_loss(problem, chunk_bytes)
        ctx.save_for_backward(features, weight, bias, target, normalizer)
        ctx.settings = options, chunk_bytes, needs
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor, _: Any) -> tuple[Optional[Tensor], ...]:
        _refuse_double_backward()
        features, weight, bias, target, normalizer = ctx.saved_tensors
        options, chunk_bytes, (needs_features, needs_weight, needs_bias) = ctx.settings
        problem = _Problem(features, weight, bias, target, **options)
        N, V, smoothing = len(problem.features), len(weight), problem.smoothing
        dtype = problem.sum_dtype
        grad_features = torch.zeros_like(problem.features, dtype=dtype) if needs_features else None
        grad_weight = torch.empty_like(weight) if needs_weight else None
        grad_bias = torch.empty_like(bias) if needs_bias else None
        # Tiles contain all rows here, because the normalizers are already known.
        # 8 bytes per logit: the logits, and their gradient in both precisions
        size = max(_MIN_COLUMNS, chunk_bytes // (8 * max(1, N)))
        for start, end in _ranges(V, size):
            grad = problem.logits(problem.features, start, end).to(dtype)  # [R, C]
            grad.sub_(normalizer).exp_()
            if smoothing:
                grad -= smoothing / V
            column, inside = _target_in(problem.target, start, end)
            grad.scatter_add_(1, column, inside.to(dtype) * (smoothing - 1))
            grad.mul_(grad_loss)
            if grad_bias is not None:
                grad_bias[start:end] = grad.sum(0)
            grad = grad.to(problem.features.dtype)
            if grad_features is not None:
                _add_product(grad_features, grad, problem.weight[start:end])
            if grad_weight is not None:
                grad_weight[start:end] = torch.mm(grad.t(), problem.features)
        if grad_features is not None:
            grad_features = problem.spread(grad_features, features)
        return grad_features, grad_weight, grad_bias, None, None, None, None


def chunked_cross_entropy(
    features: Tensor,
    weight: Tensor,
    bias: Optional[Tensor],
    target: Tensor,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    chunk_bytes: int = CHUNK_BYTES,
    num_valid: Optional[int] = None,
) -> tuple[Tensor, Tensor]:
    """Compute ``F.cross_entropy(F.linear(features, weight, bias), target, reduction="sum")``.

    The rows are processed in chunks, so that the logits of all rows are never in memory at once.
    The matrix products have the dtype that autocast gives ``F.linear``. The softmax and all sums
    over chunks are in float32 at least. The forward pass also computes the gradients that are
    needed. The backward pass can run only once, and not with ``create_graph``.

    Args:
        features: [N, E] inputs of the output layer.
        weight: [V, E] weights of the output layer.
        bias: [V] biases of the output layer, or None.
        target: [N] int64 index of each row's correct type, 0 to V - 1.
        ignore_index: Target of the rows to ignore.
        label_smoothing: s in 0 to 1, as in ``F.cross_entropy``: all V types share s equally.
        chunk_bytes: Maximum bytes of logits in memory, but a chunk has at least one row.
        num_valid: Number of rows that are not ignored; None to count them, which waits for a GPU.

    Returns:
        The sum of the losses in float32 (float64 for float64 inputs), and the same sum without
            label smoothing, which has no gradient.
    """
    # a product of one element finds the dtype that autocast chooses, and raises F.linear's errors
    with torch.no_grad():
        dtype = F.linear(features.new_zeros(1, 1), weight.new_zeros(1, 1)).dtype
    options: dict[str, Any] = {
        "ignore_index": ignore_index,
        "smoothing": label_smoothing,
        "dtype": dtype,
        "num_valid": num_valid,
    }
    needs = tuple(
        torch.is_grad_enabled() and tensor is not None and tensor.requires_grad
        for tensor in (features, weight, bias)
    )
    # The dtype is chosen above; autocast would also cast the float32 sums that enter products.
    with torch.autocast(features.device.type, enabled=False):
        if not any(needs):
            with torch.no_grad():
                problem = _Problem(features, weight, bias, target, **options)
                return _compute_loss(problem, chunk_bytes)[:2]
        function = _Recomputed if dtype == torch.float16 else _InForward
        return function.apply(features, weight, bias, target, options, chunk_bytes, needs)
