"""Computes MAUVE from the vectors of texts, by the authors' package ``mauve-text``.

Pillutla, Swayamdipta, Zellers, Thickstun, Welleck, Choi, Harchaoui. MAUVE: Measuring the Gap
Between Neural Text and Human Text using Divergence Frontiers. NeurIPS 2021.
https://arxiv.org/abs/2102.01454, section 2.
"""

import numpy as np

from fairseq_mm.errors import UserError, first_line, import_extra

# defaults of the package
SCALING, SEED = 5, 25
# the package makes a cluster for ten texts, and k-means needs two clusters
MIN_TEXTS = 20


def mauve_score(people: np.ndarray, system: np.ndarray) -> float:
    """Compute MAUVE, 0 to 1; 1 if the texts of the system and of people have the same distribution.

    The package clusters the vectors, with one cluster for ten texts, and compares how often texts
    of people and of the system are in each cluster.

    Args:
        people: ``[N, D]`` vectors of texts that people wrote.
        system: ``[M, D]`` vectors of generated texts.
    """
    mauve = import_extra("mauve", extra="mauve", purpose="--metrics mauve")
    if min(len(people), len(system)) < MIN_TEXTS:
        raise UserError(
            f"needs {MIN_TEXTS} texts of people and of the system, but there are {len(people)} "
            f"and {len(system)}"
        )
    try:
        result = mauve.compute_mauve(
            p_features=people,
            q_features=system,
            num_buckets=count_buckets(len(people), len(system)),
            mauve_scaling_factor=SCALING,
            seed=SEED,
            verbose=False,
        )
    except Exception as error:  # of faiss and scikit-learn, such as for vectors that are all equal
        raise UserError(f"the texts cannot be clustered: {first_line(error)}") from None
    return float(result.mauve)


def count_buckets(people: int, system: int) -> int:
    """Return the number of clusters for ``people`` and ``system`` texts, the package's default."""
    return max(2, round(min(people, system) / 10))
