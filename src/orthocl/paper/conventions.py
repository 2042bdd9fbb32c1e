"""The authors' regularisation coefficients, converted to the strengths of the methods here.

Each method here follows its own paper. The authors of the OGD paper ran the baselines with other scalings, so their
coefficient c means something else. With B the batch size, C the outputs of a head, sums over all mini-batches of the
training set, and gradients g of the batch mean in eval mode:

    EWC   theirs  c sum_i F_i d_i^2,             F = mean over batches of B g^2,   g of the mean log-likelihood
          here    (strength / 2) sum_i F_i d_i^2, F = mean over batches of g^2      (fisher_batch = B)
    MAS   theirs  c sum_i O_i d_i^2,             O = mean over batches of |g|,     g of the mean over batch AND outputs
          here    strength sum_i O_i d_i^2,      O = mean over batches of |g|,     g of the mean over the batch of the
                                                 sum over outputs                  (importance_batch = B)
    SI    theirs  c sum_i O_i d_i^2,             O += path / (displacement^2 + 0.1), never clipped at zero
          here    the same with clip=False, damping=0.1
"""

from __future__ import annotations


def ewc_strength(coefficient: float, batch_size: int) -> float:
    """The `strength` of EWC, with `fisher_batch=batch_size`, that equals the authors' coefficient.

    >>> ewc_strength(100.0, batch_size=32)
    6400.0
    """
    return 2.0 * batch_size * coefficient


def mas_strength(coefficient: float, outputs: int) -> float:
    """The `strength` of MAS, with `importance_batch` the training batch, that equals the authors' coefficient.

    >>> mas_strength(1.0, outputs=10)
    0.1
    """
    return coefficient / outputs


def si_strength(coefficient: float) -> float:
    """The `strength` of SI, with `clip=False`, that equals the authors' coefficient: the same number."""
    return coefficient
