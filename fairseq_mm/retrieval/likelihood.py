"""Computes log P(sentence | image) of many sentences and many images (Mao et al. 2015, section 5).

The output layer dominates the cost: M x V multiplications for each word, sentence and image (M:
units of the multimodal layer, V: words of the vocabulary). :class:`FactoredLikelihood` makes the
cost of all other layers small. It needs a decoder with the following methods and attributes of the
m-RNN of Mao et al. 2015 (B: batch size, T: words, D: features of an image, H: recurrent units):

    image_terms(image [B, D]) -> (to_multimodal [B, M] or None, None)
    language_terms(tokens [B, T], None, initial [B, H]) -> (terms [B, T, M], states [B, T, H])
        initial: recurrent state before the first token, states: recurrent state after each token
    hidden_dim: H
    output_proj: the linear layer M -> V
    logits of the next word: output_proj(1.7159 tanh(2/3 (terms + to_multimodal)))   (eq. 3, 4)
    encoder(features, padding_mask)["image"][0]: the argument [B, D] of image_terms

The second result of ``image_terms``, which an m-RNN can add to its embedding layer II, must be
None, so that the recurrent layer does not depend on the image. This layer is then computed once for
each beginning of a sentence, and sentences with the same beginning share it. For all other models
of fairseq, :func:`decoder_likelihood` calls encoder and decoder as in training. Both
hold only blocks of logits in memory.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Callable, Optional

import numpy as np
import torch
from torch import Tensor

from fairseq_mm.errors import UserError

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}

# exp(4/3 x) of a term beyond this leaves float32, where a product with another term's is no number
_LARGEST_TERM = 60.0
# A sum of exponentials below this may have lost terms that float32 cannot hold.
_SMALLEST_SUM = 1e-25

ImageReader = Callable[[int, int], tuple[Tensor, Tensor]]


class PrefixTree:
    """Tree of all beginnings (prefixes) of sentences, so that equal beginnings are computed once.

    A node is a beginning; node 0 is the empty beginning. Nodes are numbered by depth, and nodes of
    equal depth in the order of their parents. A parent thus precedes its children, and siblings are
    adjacent.

    Attributes:
        parent: [nodes] parent of each node; 0 for node 0.
        token: [nodes] last token of each node's beginning; -1 for node 0.
        level_starts: [depths + 1] first node of each depth, then the number of nodes.
        leaf: [sentences] node of each whole sentence.
        inner: [inner] nodes that have children, in ascending order.
        child_starts: [inner + 1] first child of each node in ``inner``, then the number of nodes.
        inner_of_parent: [nodes] index in ``inner`` of each node's parent.
    """

    def __init__(self, sentences: Sequence[Sequence[int]]) -> None:
        # sorted, so that the children of consecutive nodes get consecutive numbers
        order = sorted(range(len(sentences)), key=lambda i: tuple(sentences[i]))
        parent, token, level_starts = [0], [-1], [0]
        nodes = [0] * len(sentences)
        for depth in range(max(len(sentence) for sentence in sentences)):
            level_starts.append(len(parent))
            known: dict[tuple[int, int], int] = {}
            for i in order:
                if depth >= len(sentences[i]):
                    continue
                key = (nodes[i], int(sentences[i][depth]))
                if key not in known:
                    known[key] = len(parent)
                    parent.append(key[0])
                    token.append(key[1])
                nodes[i] = known[key]
        self.parent = np.array(parent)
        self.token = np.array(token)
        self.level_starts = np.array([*level_starts, len(parent)])
        self.leaf = np.array(nodes)
        # children of a node are adjacent, so that the first index of a parent is its first child
        self.inner, first = np.unique(self.parent[1:], return_index=True)
        self.child_starts = np.append(first + 1, len(parent))
        self.inner_of_parent = np.searchsorted(self.inner, self.parent)

    def __len__(self) -> int:
        return len(self.parent)


class FactoredLikelihood:
    """Function that computes log P(sentence | image) if only the multimodal layer reads the image.

    Logits are computed for blocks of pairs of a sentence's beginning and an image. Two identities
    make this faster. (1) The activation of the multimodal layer is tanh(2/3 (a + b)), where a
    depends on the words and b on the image. It equals ``1 - 2 / (1 + exp(4/3 a) exp(4/3 b))``,
    whose exponentials are computed once per beginning and once per image. (2) With the multimodal
    layer m, and weights W and biases c of the output layer, ``sum_v exp(W_v m + c_v)`` is the
    product of ``exp(W m)`` with the vector ``exp(c)``. If a value leaves the range of floating
    point, the block is computed with tanh and logsumexp instead.

    Args:
        decoder: Decoder with the methods in the docstring of this module, in evaluation mode and
            float32.
        to_multimodal: [I, M] summand b of each of I images for the M units of the multimodal layer;
            None if the decoder uses no image.
        num_images: Number I of images.
        start: Index of the start token, which precedes the first word.
        precision: ``float32`` or ``bfloat16`` for the products of the output layer. All other
            values, also the logits of the sentences' own words, are float32.
        block_rows: Number of pairs of a beginning and an image whose logits are in memory at once.
    """

    def __init__(
        self,
        decoder: Any,
        to_multimodal: Optional[Tensor],
        num_images: int,
        *,
        start: int,
        precision: str = "float32",
        block_rows: int = 1024,
    ) -> None:
        self.decoder = decoder
        self.start = start
        self.num_images = num_images
        weight = decoder.output_proj.weight.float()
        bias = decoder.output_proj.bias
        V, M = weight.shape
        # without an image all columns are the same one
        self.image_terms = (
            weight.new_zeros(1, M) if to_multimodal is None else to_multimodal.float()
        )
        self.image_exps = _exps(self.image_terms)
        # the multimodal layer is m = -2 (s - 1/2) with s = 1 / (1 + exp(4/3 x))
        self.weight = weight * (-2 * 1.7159)
        self.bias = weight.new_zeros(V) if bias is None else bias.float()
        dtype = PRECISIONS[precision]
        self.product_weight = self.weight.to(dtype).t()
        self.largest_bias = float(self.bias.max())
        self.exp_bias = (self.bias - self.largest_bias).exp().to(dtype)

        columns = len(self.image_terms)
        # equal chunks instead of full ones and a small rest, whose products would be slow
        chunks = -(-columns // block_rows)
        self.images_at_once = -(-columns // chunks)
        self.nodes_at_once = max(1, block_rows // self.images_at_once)
        rows = self.nodes_at_once * self.images_at_once
        # buffers of all blocks: allocating 1024 x V floats anew would touch new pages each time
        self.multimodal = weight.new_empty(rows, M)
        self.rounded = self.multimodal.to(dtype) if dtype != torch.float32 else None
        self.logits = torch.empty(rows, V, dtype=dtype, device=weight.device)

    @torch.no_grad()
    def __call__(self, sentences: Sequence[Sequence[int]]) -> Tensor:
        """Return log P(sentence | image) of all pairs, [sentences, images] float32.

        ``sentences`` are token indices with the end token, whose probability is included.
        """
        tree = PrefixTree(sentences)
        terms = self._language_terms(tree)  # [inner, M]
        columns = len(self.image_terms)
        log_probs = terms.new_zeros(len(tree), columns)
        tokens = torch.from_numpy(tree.token).to(terms.device)
        for first in range(0, columns, self.images_at_once):
            images = slice(first, min(first + self.images_at_once, columns))
            for i in range(0, len(tree.inner), self.nodes_at_once):
                starts = tree.child_starts[i : i + self.nodes_at_once + 1]
                children = slice(int(starts[0]), int(starts[-1]))
                log_probs[children, images] = self._next_words(
                    terms[i : i + len(starts) - 1], images, tokens[children], starts - starts[0]
                )
        # a node's parent is in the level before, whose sums are complete
        for first, end in zip(tree.level_starts[1:-1], tree.level_starts[2:]):
            log_probs[first:end] += log_probs[torch.from_numpy(tree.parent[first:end])]
        log_probs = log_probs[torch.from_numpy(tree.leaf)]
        return log_probs.expand(len(sentences), self.num_images)

    def _language_terms(self, tree: PrefixTree) -> Tensor:
        """Compute the words' term of the multimodal layer at each inner node, [inner, M]."""
        like = self.decoder.output_proj.weight
        terms = like.new_empty(len(tree.inner), self.weight.size(1), dtype=torch.float32)
        states = like.new_zeros(len(tree.inner), self.decoder.hidden_dim, dtype=torch.float32)
        bounds = np.searchsorted(tree.inner, tree.level_starts)
        for depth, (i, j) in enumerate(zip(bounds[:-1], bounds[1:])):
            if i == j:
                continue
            nodes = tree.inner[i:j]
            words = tree.token[nodes] if depth else np.array([self.start])
            # zeros at the root, which is its own parent and has not been written yet
            initial = states[torch.from_numpy(tree.inner_of_parent[nodes])]
            terms_of_level, states_of_level = self.decoder.language_terms(
                torch.from_numpy(words).to(like.device).unsqueeze(1), None, initial
            )
            terms[i:j], states[i:j] = terms_of_level[:, 0], states_of_level[:, 0]
        return terms

    def _next_words(
        self, terms: Tensor, images: slice, words: Tensor, starts: np.ndarray
    ) -> Tensor:
        """Compute log-probabilities [E, I'] of E words that follow n beginnings, for I' images.

        Args:
            terms: [n, M] summand of the multimodal layer that depends on each beginning.
            words: [E] indices of the words; those that follow the same beginning are adjacent.
            starts: [n + 1] index in ``words`` of each beginning's first word, then E.
        """
        n, num_images = len(terms), images.stop - images.start
        rows = n * num_images
        flat = self.multimodal[:rows]
        m = flat.view(n, num_images, -1)
        term_exps = _exps(terms)
        if term_exps is not None and self.image_exps is not None:
            torch.mul(term_exps.unsqueeze(1), self.image_exps[images], out=m)
            m.add_(1).reciprocal_().sub_(0.5)
        else:
            torch.add(terms.unsqueeze(1), self.image_terms[images], out=m)
            m.mul_(2 / 3).tanh_().mul_(-0.5)

        weight = self.weight[words]  # [E, M]
        # in float32 at any precision: a rounded logit of the word itself would go into the result
        # as it is
        own = weight.new_empty(len(words), num_images)
        for node, (first, end) in enumerate(zip(starts[:-1], starts[1:])):
            torch.mm(weight[first:end], m[node].t(), out=own[first:end])
        own += self.bias[words].unsqueeze(1)  # [E, I']

        logits = self.logits[:rows]
        multimodal = flat if self.rounded is None else self.rounded[:rows].copy_(flat)
        torch.mm(multimodal, self.product_weight, out=logits)
        sums = torch.mv(logits.exp_(), self.exp_bias).float()
        if bool(((sums > _SMALLEST_SUM) & (sums < float("inf"))).all()):
            log_sums = sums.log_().add_(self.largest_bias)
        else:
            log_sums = torch.logsumexp(torch.addmm(self.bias, flat, self.weight.t()), 1)
        parents = torch.from_numpy(np.repeat(np.arange(n), np.diff(starts)))
        return own - log_sums.view(n, num_images)[parents.to(own.device)]


def _exps(terms: Tensor) -> Optional[Tensor]:
    """Return ``exp(4/3 x)`` of each element x; None if a product of two results could overflow."""
    if bool((terms.abs() > _LARGEST_TERM).any()):
        return None
    return terms.mul(4 / 3).exp_()


@torch.no_grad()
def decoder_likelihood(
    sentences: Sequence[Sequence[int]],
    *,
    model: Any,
    read_images: ImageReader,
    num_images: int,
    start: int,
    precision: str,
    block_rows: int,
) -> Tensor:
    """Return log P(sentence | image) [sentences, images] by the ``forward`` of any fairseq model.

    The arguments are those of :func:`build_likelihood`.
    """
    device = next(model.parameters()).device
    # equal sentences are scored once, so that their scores are equal to the last bit
    rows: dict[tuple[int, ...], int] = {}
    order = [rows.setdefault(tuple(map(int, sentence)), len(rows)) for sentence in sentences]
    log_probs = torch.empty(len(rows), num_images, device=device)
    images_at_once = max(1, block_rows // max(len(words) for words in rows))
    is_bfloat16 = precision == "bfloat16"
    for first in range(0, num_images, images_at_once):
        images = slice(first, min(first + images_at_once, num_images))
        # images outside, sentences inside: each image is encoded only once
        features, padding_mask = (x.to(device) for x in read_images(images.start, images.stop))
        B = len(features)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=is_bfloat16):
            encoder_out = model.encoder(features=features, padding_mask=padding_mask)
            for words, row in rows.items():
                shifted = torch.tensor([start, *words[:-1]], device=device)
                logits, extra = model.decoder(shifted.expand(B, -1), encoder_out=encoder_out)
                lprobs = model.get_normalized_probs((logits.float(), extra), log_probs=True)
                target = torch.tensor(words, device=device).view(1, -1, 1).expand(B, -1, 1)
                log_probs[row, images] = lprobs.gather(2, target).sum((1, 2))
    return log_probs[torch.tensor(order)]


Likelihood = Callable[[Sequence[Sequence[int]]], Tensor]


@torch.no_grad()
def build_likelihood(
    model: Any,
    read_images: ImageReader,
    num_images: int,
    *,
    start: int,
    precision: str = "float32",
    block_rows: int = 1024,
) -> Likelihood:
    """Build a function that computes log P(sentence | image) [sentences, images].

    It is a :class:`FactoredLikelihood` if possible, else :func:`decoder_likelihood`.

    Args:
        model: Encoder-decoder model in evaluation mode.
        read_images: Function that maps ``(first, end)`` to features [end - first, N, D] of N
            regions per image, and their padding mask [end - first, N].
        num_images: Number of images.
        start: Index of the start token, which precedes the first word.
        precision: ``float32``, or ``bfloat16`` for the products of the output layer or to run the
            network under autocast.
        block_rows: Number of words whose logits are in memory at once.
    """
    options: dict[str, Any] = {"start": start, "precision": precision, "block_rows": block_rows}
    through_decoder = partial(
        decoder_likelihood, model=model, read_images=read_images, num_images=num_images, **options
    )
    device = next(model.parameters()).device
    contract = ("image_terms", "language_terms", "output_proj", "hidden_dim")
    # with attention, what the image adds depends on the words before
    attends = getattr(model.decoder, "region_attention", None) is not None
    if attends or not all(hasattr(model.decoder, name) for name in contract):
        return through_decoder
    terms = []
    for first in range(0, num_images, 256):
        features, padding_mask = read_images(first, min(first + 256, num_images))
        encoder_out = model.encoder(
            features=features.to(device), padding_mask=padding_mask.to(device)
        )
        to_multimodal, to_word = model.decoder.image_terms(encoder_out["image"][0])
        # the recurrent part depends on the image: beginnings cannot be shared between images
        if to_word is not None:
            return through_decoder
        if to_multimodal is None:
            break
        terms.append(to_multimodal)
    all_terms = torch.cat(terms) if terms else None
    return FactoredLikelihood(model.decoder, all_terms, num_images, **options)


def log_marginal(log_probs: np.ndarray) -> np.ndarray:
    """Compute log P(sentence) [sentences], float64: the mean of P(sentence | image) over a sample
    of images (Mao et al. 2015, equation 7), from ``log_probs`` [sentences, images]."""
    log_probs = np.asarray(log_probs, dtype=np.float64)
    # If all images have the same value, the result is exactly this value, so that a model that
    # ignores images produces ties.
    largest = log_probs.max(1, keepdims=True)
    return largest[:, 0] + np.log(np.exp(log_probs - largest).mean(1))


def check_finite(log_probs: Tensor, what: str = "a sentence") -> None:
    """Raise UserError if a log-probability is not finite; ``what`` names the text in messages."""
    if not bool(torch.isfinite(log_probs).all()):
        raise UserError(
            f"the checkpoint gives {what} a probability that is no number: its weights hold NaN or "
            "infinite values."
        )
