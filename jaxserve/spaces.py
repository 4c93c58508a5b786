"""Bounds of actions and observations, and the one place where an action from outside is checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxserve.arrays.convert import on_device
from jaxserve.errors import InputError
from jaxserve.fields import Entry, Knob, descriptions
from jaxserve.types import ServeAction, ServeObservation

KNOB_FIELDS: dict[str, Knob] = descriptions(ServeAction)
KNOBS = tuple(KNOB_FIELDS)
ACTION_BOUNDS = {name: knob.bound for name, knob in KNOB_FIELDS.items()}
DEFAULT_ACTION = {name: knob.default for name, knob in KNOB_FIELDS.items()}
"""Knobs of an operator who turns none; also the values of knobs that a task locks."""
REQUIRED_KNOBS = tuple(name for name, knob in KNOB_FIELDS.items() if not knob.optional)
"""Knobs that every action names and every deployment has; the others need a fleet."""
RESTART_KNOBS = tuple(name for name, knob in KNOB_FIELDS.items() if knob.restarts)
"""Knobs whose change takes GPUs away for seconds."""

OBSERVATION_FIELDS: dict[str, Entry] = descriptions(ServeObservation)
OBSERVATION_BOUNDS = {name: entry.bound for name, entry in OBSERVATION_FIELDS.items()}
"""Every observation is clipped to these, so they hold under any overload."""


def make_action(**knobs: float) -> ServeAction:
    """A checked action of scalars; knobs left out take their default.

    Raises:
      InputError: an unknown knob, a value that is no finite number, not whole where it must be,
        or out of range.
    """
    return validate_action({**DEFAULT_ACTION, **knobs})


def validate_action(action: ServeAction | Mapping[str, object]) -> ServeAction:
    """Checks an action that comes from outside.

    Args:
      action: all knobs but optional ones, numbers or arrays of one shape (checked element by
        element).

    Raises:
      InputError: as ``make_action``; also a missing knob, or knobs of different shapes.
    """
    checked = check_knobs(action)
    return ServeAction(
        **{knob: on_device(value, ACTION_BOUNDS[knob].dtype) for knob, value in checked.items()}
    )


def check_knobs(action: ServeAction | Mapping[str, object]) -> dict[str, NDArray[np.float64]]:
    """``validate_action`` before anything is sent to a device: float64 arrays by knob."""
    if isinstance(action, ServeAction):
        action = vars(action)
    if not isinstance(action, Mapping):
        raise InputError(
            f"action is a {type(action).__name__}; it must map the knobs {', '.join(KNOBS)}"
        )
    unknown = sorted(set(action) - set(KNOBS), key=str)
    if unknown:
        raise InputError(f"unknown knob {unknown[0]!r}; the knobs are {', '.join(KNOBS)}")
    missing = [knob for knob in REQUIRED_KNOBS if knob not in action]
    if missing:
        raise InputError(
            f"knob {missing[0]!r} is missing; an action names {', '.join(REQUIRED_KNOBS)}"
        )
    checked = {knob: _checked(knob, action[knob]) for knob in KNOBS if knob in action}
    shape = checked[KNOBS[0]].shape
    left_out = {knob: np.full(shape, DEFAULT_ACTION[knob]) for knob in KNOBS if knob not in checked}
    for knob, value in checked.items():
        if value.shape != shape:
            raise InputError(
                f"{knob} has shape {value.shape}; it must be that of {KNOBS[0]}, {shape}"
            )
    return checked | left_out


def check_single(action: object) -> None:
    """Checks an action while a program is traced, when values are not known yet.

    Raises:
      InputError: no ServeAction, or a knob that is not one number.
    """
    if not isinstance(action, ServeAction):
        raise InputError(
            f"action is a {type(action).__name__}; it must be a ServeAction, which "
            "jaxserve.make_action builds"
        )
    for knob in KNOBS:
        given = getattr(action, knob)
        value = given if isinstance(given, jax.Array) else np.asarray(given)
        if not (jnp.issubdtype(value.dtype, np.number) or value.dtype == np.bool_):
            raise InputError(f"{knob} is {given!r:.60}; it must be a number")
        if value.shape:
            raise InputError(
                f"{knob} has shape {value.shape}; an action is one number for each knob, and "
                "jax.vmap takes many actions"
            )


def clip_action(action: ServeAction) -> ServeAction:
    """Inside jit: out-of-range values are clipped, reals rounded, NaN becomes the lower bound."""

    def clip(knob: str, value: jax.Array) -> jax.Array:
        bound = ACTION_BOUNDS[knob]
        # Narrow and unsigned integers cannot hold every bound; a float32 holds them all exactly.
        value = jnp.nan_to_num(jnp.asarray(value).astype(jnp.float32), nan=bound.low)
        value = jnp.clip(value, bound.low, bound.high)
        return jnp.round(value).astype(jnp.int32) if bound.integer else value

    return ServeAction(**{knob: clip(knob, getattr(action, knob)) for knob in KNOBS})


def clip_observation(observation: ServeObservation) -> ServeObservation:
    """Makes every entry a finite float32 inside its bound."""

    def clip(name: str, value: jax.Array) -> jax.Array:
        bound = OBSERVATION_BOUNDS[name]
        value = jnp.nan_to_num(
            jnp.asarray(value, jnp.float32), nan=bound.low, posinf=bound.high, neginf=bound.low
        )
        return jnp.clip(value, bound.low, bound.high)

    return ServeObservation(
        **{name: clip(name, getattr(observation, name)) for name in OBSERVATION_BOUNDS}
    )


def _checked(knob: str, value: object) -> NDArray[np.float64]:
    bound = ACTION_BOUNDS[knob]
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        raise InputError(
            f"{knob} is a {type(value).__name__}; it must be {bound.allowed}"
        ) from None
    # True and False are how JSON and Python spell a switch, but no batch cap.
    switch = array.dtype == np.bool_ and (bound.low, bound.high) == (0, 1)
    if array.size == 0 or not (switch or jnp.issubdtype(array.dtype, np.number)):
        raise InputError(f"{knob} is {value!r:.60}; it must be {bound.allowed}")
    if np.iscomplexobj(array):
        raise InputError(f"{knob} is complex; it must be {bound.allowed}")
    array = array.astype(np.float64)
    # A float32 bound that went through JSON may be off by its rounding.
    slack = 0.0 if bound.integer else 1e-6
    bad = ~np.isfinite(array) | (array < bound.low - slack) | (array > bound.high + slack)
    if bound.integer:
        bad |= array != np.round(array)
    if np.any(bad):
        raise InputError(f"{knob} is {array[bad].flat[0]:g}; it must be {bound.allowed}")
    return array


def action_text(action: ServeAction, shown: Iterable[bool]) -> str:
    """An action in words, as "batch_cap 64, speculation_depth 2".

    Args:
      shown: which of the ``KNOBS`` are named, in their order.
    """
    return ", ".join(
        f"{knob} {float(getattr(action, knob)):g}"
        for knob, named in zip(KNOBS, shown, strict=True)
        if named
    )
