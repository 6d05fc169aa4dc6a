"""Mixes the probabilities of generating words of the vocabulary and of copying source words."""

import torch.nn.functional as F
from torch import Tensor

# Log of the probability, 1e-10, of a word that can only be copied but is not in the source. It is
# not 0 because label smoothing and float16 cannot handle the logarithm of 0.
_LEAST_SHARE_LOG = -23.0


def first_positions(tokens: Tensor) -> Tensor:
    """Return the position at which each token of a source first occurs: [B, S] -> [B, S]."""
    # argmax returns the first maximum; it does not support bool
    return (tokens.unsqueeze(2) == tokens.unsqueeze(1)).char().argmax(dim=2)


def mixture_logits(
    logits: Tensor,
    write_score: Tensor,
    attention: Tensor,
    tokens: Tensor,
    places: Tensor,
    only_copied: Tensor,
) -> Tensor:
    """Compute logits whose softmax is equation 9 of See et al. 2017::

        P(w) = p_gen P_vocab(w) + (1 - p_gen) sum_{i: w_i = w} a_i

    where p_gen is the probability of generating a word, P_vocab the softmax over the vocabulary,
    and a_i the attention weight of word i of the source, w_i.

    The returned logits differ from ``logits`` only at words that occur in the source, so no second
    distribution over the vocabulary is built. Let l_w be the entries of ``logits``, Z the sum of
    their exponentials, and z the logit of p_gen. The returned logit of a word w of the source is
    ``log(e^l_w + Z e^-z sum_{i: w_i = w} a_i)``.

    Args:
        logits: [B, T, V] logits l_w of generating each word of the vocabulary.
        write_score: [B, T] logits z, whose sigmoid is p_gen.
        attention: [B, T, S] float32 weights a_i of the source's words, 0 at padding.
        tokens: [B, S] words of the source, as indices of the vocabulary.
        places: [B, S] first position at which each word of ``tokens`` occurs in its row, see
            :func:`first_positions`.
        only_copied: [N] indices of the words that can be copied but not generated: P_vocab is 0 for
            them.

    Returns:
        Logits of the mixture, [B, T, V] with the dtype of ``logits``.
    """
    B, T, _ = logits.shape
    if len(only_copied):
        logits = logits.index_fill(2, only_copied, float("-inf"))
    # After -inf, not before: a word that can only be copied has no share of the sum of P_vocab.
    log_total = logits.float().logsumexp(dim=2, keepdim=True)  # [B, T, 1]
    if len(only_copied):
        # Only now: with -inf, the gain of a copied word would be infinity minus infinity.
        least = (log_total + _LEAST_SHARE_LOG).to(logits.dtype)
        logits = logits.index_copy(2, only_copied, least.expand(B, T, len(only_copied)))
    index = tokens.unsqueeze(1).expand(B, T, -1)  # [B, T, S]
    copied = attention.new_zeros(attention.shape)
    # All weights of a word are summed at its first position, because the softmax of the mixture has
    # one entry for each word.
    copied = copied.scatter_add(2, places.unsqueeze(1).expand(B, T, -1), attention)
    # Clamped, because the gradient of log(0) is infinite, and the mask below would turn it into
    # NaN.
    log_copied = copied.clamp(min=1e-30).log() + log_total - write_score.float().unsqueeze(2)
    # what the sum of two exponentials adds to the first one's logarithm
    gain = F.softplus(log_copied - logits.gather(2, index).float())
    # a word that stands several times gains once; padding, whose weights are 0, gains nothing
    gain = gain.masked_fill(copied == 0, 0.0)
    return logits.scatter_add(2, index, gain.to(logits.dtype))
