"""Poisson counts by inverting the distribution function at one uniform number per count.

``jax.random.poisson`` spends hundreds of nanoseconds a count in a rejection loop that a whole batch
waits for. Here every count costs the same short straight line of arithmetic, and because it is an
inversion, a larger uniform or a larger rate does not give a smaller count.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

EXACT_RATE = 16.0
"""Up to this rate the inversion is exact; above it, it is a Cornish-Fisher expansion."""

MAX_RATE = 1e6
"""Larger rates count as this one: float32 holds whole numbers exactly only up to 2**24."""

# A float32 sum of probabilities stalls up to 5e-7 short of 1, and a uniform beyond it would count
# all terms however small the rate. Nothing above this uniform is told apart.
_MAX_UNIFORM = 1.0 - 2.0**-20
_MIN_UNIFORM = 2.0**-24

# P(count > 40 | rate 16) is 2e-7, less than 1 - _MAX_UNIFORM.
_TERMS = 40

# Normal quantile in single precision: coefficients of Giles, "Approximating the erfinv function"
# (GPU Computing Gems, Jade edition, 2012), table 5; highest power first.
_CENTRE = (
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
_TAIL = (
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)


def poisson_from_uniform(uniform: jax.Array, rate: jax.Array) -> jax.Array:
    """The Poisson quantile: the smallest n whose cumulative probability exceeds ``uniform``.

    Rates up to ``EXACT_RATE`` are exact to float32 rounding. Above, the total variation distance to
    the Poisson distribution is below 1e-4 and the mean is right to 1e-5 (relative).

    Args:
      uniform: float32, uniform on [0, 1); outside values are clamped, NaN counts as the largest.
      rate: float32, expected count; negative and NaN rates count as 0, rates above ``MAX_RATE`` as
        ``MAX_RATE``. Broadcasts with ``uniform``, and a smaller shape (one rate for several
        uniforms) saves time.

    Returns:
      float32 of the broadcast shape, whole numbers from 0, never NaN. Non-decreasing in both
      arguments, up to the rounding of cumulative probabilities (1e-6).
    """
    uniform = jnp.asarray(uniform, jnp.float32)
    rate = jnp.asarray(rate, jnp.float32)
    # Selects rather than min and max: those would let a NaN through.
    uniform = jnp.where(uniform < _MAX_UNIFORM, uniform, _MAX_UNIFORM)
    rate = jnp.where(rate > 0.0, jnp.where(rate < MAX_RATE, rate, MAX_RATE), 0.0)

    exact = _invert_sum(uniform, jnp.minimum(rate, EXACT_RATE))
    expanded = _cornish_fisher(
        normal_quantile(jnp.maximum(uniform, _MIN_UNIFORM)), jnp.maximum(rate, EXACT_RATE)
    )
    # At a rate above EXACT_RATE ``exact`` is the count at EXACT_RATE, a lower bound.
    return jnp.where(rate > EXACT_RATE, jnp.maximum(exact, expanded), exact)


def normal_quantile(uniform: jax.Array) -> jax.Array:
    """Standard normal quantile, float32 with absolute error below 3e-6.

    Several times faster than ``jax.scipy.special.ndtri`` where XLA fuses it with what follows.

    Args:
      uniform: float32 in [2**-24, 1 - 2**-24].
    """
    half_width = 2.0 * uniform - 1.0
    depth = -jnp.log(4.0 * uniform * (1.0 - uniform))
    central = depth < 5.0
    x = jnp.where(central, depth - 2.5, jnp.sqrt(depth) - 3.0)
    value = jnp.where(central, _CENTRE[0], _TAIL[0])
    for centre, tail in zip(_CENTRE[1:], _TAIL[1:], strict=True):
        value = value * x + jnp.where(central, centre, tail)
    return np.float32(np.sqrt(2.0)) * half_width * value


def _invert_sum(uniform: jax.Array, rate: jax.Array) -> jax.Array:
    """Counts the n with P(count <= n) <= uniform. Needs 0 <= rate <= EXACT_RATE."""
    probability = jnp.exp(-rate)
    cumulative = probability
    count = jnp.zeros(jnp.broadcast_shapes(uniform.shape, rate.shape), jnp.int32)
    for n in range(1, _TERMS + 1):
        count = count + (uniform >= cumulative)
        probability = probability * (rate * np.float32(1.0 / n))
        cumulative = cumulative + probability
    return count.astype(jnp.float32)


def _cornish_fisher(normal: jax.Array, rate: jax.Array) -> jax.Array:
    """Whole part of the quantile's expansion in powers of rate**-0.5 (continuity-corrected).

    The terms are those of Giles, "Algorithm 955: approximation of the inverse Poisson cumulative
    distribution function" (ACM TOMS 42, 2016), equation 8.
    """
    # sqrt and a division vectorise on CPUs; rsqrt does not.
    root = jnp.sqrt(rate)
    inverse = 1.0 / root
    square = normal * normal
    quantile = (
        rate
        + root * normal
        + (1 / 3 + square * (1 / 6))
        - normal * (1 / 36 + square * (1 / 72)) * inverse
        + (-8 / 405 + square * (7 / 810 + square * (1 / 270))) * (inverse * inverse)
    )
    return jnp.maximum(jnp.floor(quantile), 0.0)
