"""Computes the perplexity of given texts, and the softmax temperature at which they are likeliest.

Mao et al. 2015 (m-RNN), equation 5: ``log2 PPL(s) = -1/L sum_n log2 P(w_n | w_1..n-1, image)``. The
length L includes the end token, which the model predicts as well; the paper does not say this.
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Optional

import numpy as np

from fairseq_mm.errors import UserError
from fairseq_mm.metrics.hypotheses import GeneratedOutput, parse_generated, read_text
from fairseq_mm.metrics.score_rows import Row, signature

# temperatures at which the log-likelihood of a text is computed
GRID = tuple(3.0 ** (i / 4) for i in range(-4, 5))
_STEPS = 4000
NAMED = 5  # lines in a message, which would otherwise list thousands


class LogProbability(NamedTuple):
    """Sum of a text's token log2-probabilities, and the number of tokens, end token included."""

    log2_sum: float
    num_tokens: int


def mean_sentence_perplexity(texts: Iterable[LogProbability]) -> float:
    """Compute the mean of the texts' perplexities (equation 5), with equal weights."""
    values = [2 ** (-text.log2_sum / text.num_tokens) for text in texts]
    return sum(values) / len(values)


def corpus_perplexity(texts: Iterable[LogProbability]) -> float:
    """Compute the perplexity of all texts as one text, so that every token has the same weight (Mao
    et al. 2015, equation 6)."""
    texts = list(texts)
    num_tokens = sum(text.num_tokens for text in texts)
    # fsum is exact, so that the order of the lines does not change the result
    return 2 ** (-math.fsum(text.log2_sum for text in texts) / num_tokens)


def transtory_perplexity(sentences: Iterable[LogProbability]) -> float:
    """Compute the perplexity as in the released code of Li et al. 2020 (Transtory-XL).

    This perplexity is too low: the start token of each sentence is counted, although it is not
    predicted. The mean is taken within sentences and then over sentences: ``exp(mean_s(loss_s /
    (tokens_s + 1)))``, where ``loss_s`` is the sum of the cross entropy over sentence s.
    """
    losses = [-sentence.log2_sum / (sentence.num_tokens + 1) for sentence in sentences]
    return 2 ** (math.fsum(losses) / len(losses))


def read_log_probabilities(path: str) -> tuple[dict[int, LogProbability], GeneratedOutput]:
    """Read the output of ``fairseq-generate --score-reference``, whose ``P-`` lines have the
    log2-probability of every token of a reference, the end token last.

    Returns the sum and the number of tokens of each reference, by line of the split, and the parsed
    output.
    """
    text = read_text(path)
    output = parse_generated(path, text)
    texts = {}
    for number, (values, *others) in output.positional.items():
        try:
            scores = list(map(float, values.split()))
        except ValueError:
            scores = []
        if others or not scores or not all(map(math.isfinite, scores)):
            break
        texts[number] = LogProbability(math.fsum(scores), len(scores))
    # the last number of a file that was cut short may have lost digits and still be a number
    if not texts or len(texts) < len(output.positional) or not text.endswith("\n"):
        number = next((x for x in output.positional if x not in texts), max(texts, default=0))
        raise UserError(
            f"{path}: must end with a line break and have lines P-NUMBER, each once, with finite "
            f"log2-probabilities, as fairseq-generate prints them; look at P-{number}."
        )
    # Generated texts may equal references by chance, and a detokenizer may change some references.
    pairs = [
        (output.targets[i][1], x[0][1])
        for i, x in output.detokenised.items()
        if i in output.targets
    ]
    # fairseq prints an unknown word of a target as <<unk>>, of a text as <unk>
    differing = sum(target.replace("<<unk>>", "<unk>") != found for target, found in pairs)
    if output.scores_references is False or differing > len(output.targets) / 2:
        raise UserError(
            f"{path}: scores the model's own texts ({differing} of {len(output.targets)} differ "
            "from their T- lines); perplexity needs fairseq-generate --score-reference."
        )
    return texts, output


def perplexity_rows(
    texts: Optional[Mapping[int, LogProbability]], expected: Optional[int] = None
) -> list[Row]:
    """Return two lines of the score table: perplexity over tokens, and mean over sentences.

    Args:
        texts: Log-probabilities by line number of the split, see :func:`read_log_probabilities`.
            With None, the values are missing, and a note says that --reference-scores is missing.
        expected: Number of lines of the split; None if it is not known. Lines that ``texts`` lacks
            are counted in a note.
    """
    note = "needs --reference-scores" if texts is None else ""
    missing = [n for n in range(expected or 0) if n not in (texts or ())]
    if missing:
        note = f"{len(missing)} of {expected} lines not scored, such as {missing[:NAMED]}"
    rows = []
    for name, mean, perplexity in (
        ("perplexity", "tokens", corpus_perplexity),
        ("perplexity_sentence", "sentences", mean_sentence_perplexity),
    ):
        value = None if texts is None else perplexity(texts.values())
        sign = signature("ppl", mean=mean, eq=5, unit="dictionary-token", eos="counted")
        rows.append(Row(name, value, sign, len(texts or ()), note, expected=expected))
    return rows


class BestTemperature(NamedTuple):
    """Temperature with the highest log-likelihood of a text."""

    temperature: float  # the temperature
    log_likelihood: float  # sum of the words' log-probabilities at this temperature
    # False if the temperature is the lowest or the highest that was tried, so that the maximum may
    # lie outside
    is_inside: bool


def best_temperature(temperatures: np.ndarray, sums: np.ndarray) -> BestTemperature:
    """Find the softmax temperature with the highest log-likelihood (Fan et al. 2018, section 5.4).

    "For each model, we tune a temperature parameter for the softmax at generation time"; the paper
    does not say how. Here the values and derivatives at two neighbouring temperatures define a
    polynomial of degree 5, whose maximum is searched.

    Args:
        temperatures: ``[G]`` temperatures in ascending order.
        sums: ``[3, G]``: sum of the words' log-probabilities at each temperature, and the first and
            second derivative of this sum by 1 / temperature.
    """
    # as functions of 1 / T, which multiplies the logits, so that the derivatives are simple
    inverse = 1 / temperatures[::-1]
    values, slopes, curvatures = sums[:, ::-1]
    best = int(values.argmax())
    highest, at = float(values[best]), float(inverse[best])
    # for one model the log-likelihood is concave in 1 / T: its maximum lies next to the best point
    for i in (best - 1, best):
        if not 0 <= i < len(inverse) - 1:
            continue
        h = inverse[i + 1] - inverse[i]
        t = np.linspace(0, 1, _STEPS + 1)
        curve = _hermite(t, values[i : i + 2], h * slopes[i : i + 2], h * h * curvatures[i : i + 2])
        top = int(curve.argmax())
        if curve[top] > highest:
            highest, at = float(curve[top]), float(inverse[i] + h * t[top])
    return BestTemperature(1 / at, highest, bool(inverse[0] < at < inverse[-1]))


def _hermite(
    t: np.ndarray, value: np.ndarray, slope: np.ndarray, curvature: np.ndarray
) -> np.ndarray:
    """Evaluate a polynomial of degree 5 at each point of ``t``, which are between 0 and 1.

    The polynomial is defined by its ``value``, first derivative ``slope`` and second derivative
    ``curvature`` at 0 and at 1, ``[2]`` each.
    """
    t3, t4, t5 = t**3, t**4, t**5
    step = 10 * t3 - 15 * t4 + 6 * t5
    return (
        value[0] * (1 - step)
        + value[1] * step
        + slope[0] * (t - 6 * t3 + 8 * t4 - 3 * t5)
        + slope[1] * (-4 * t3 + 7 * t4 - 3 * t5)
        + curvature[0] * (t**2 - 3 * t3 + 3 * t4 - t5) / 2
        + curvature[1] * (t3 - 2 * t4 + t5) / 2
    )
