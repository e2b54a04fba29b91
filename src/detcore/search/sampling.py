"""Sample the hyperparameters of the k-th trial, and list the points of a grid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from detcore.config import ranges, resolve_constants, trial_seed
from detcore.contract.errors import SearchError


def sample(hyperparameters: Mapping[str, object], *, seed: int, index: int) -> dict[str, Any]:
    """Draw the hyperparameters of a trial.

    They depend only on the arguments, not on previous trials or the machine.

    Args:
        hyperparameters: The search space.
        seed: The experiment's seed.
        index: Number of previous draws; >= 0.
    """
    return resolve_constants(hyperparameters, seed=_derive_seed(seed, index))


def get_trial_seed(seed: int, index: int) -> int:
    """Return the seed of a trial, ``0 <= seed < 2**31``.

    Args:
        seed: The experiment's seed.
        index: Index of the trial in its search; >= 0.
    """
    return trial_seed(_derive_seed(seed, index))


def _derive_seed(seed: int, index: int) -> int:
    # The first trial has the same hyperparameters as `single` with the same seed.
    if index == 0:
        return seed
    from numpy.random import SeedSequence

    return int(SeedSequence((seed, index)).generate_state(1)[0])


def grid_points(hyperparameters: Mapping[str, object]) -> list[dict[str, Any]]:
    """Return every combination of a grid. In the order of names, the last name changes fastest.

    Raises:
        SearchError: If a range has no ``count``.
    """
    places, axes = [], []
    for place, value in ranges(hyperparameters):
        places.append(place)
        axes.append(_list_points(".".join(map(str, place)), value))
    return [
        place_values(hyperparameters, dict(zip(places, point, strict=True)))
        for point in itertools.product(*axes)
    ]


def place_values(
    hyperparameters: Mapping[str, object], values: Mapping[tuple[Any, ...], Any]
) -> dict[str, Any]:
    """Return hyperparameters in which ranges are replaced by values.

    Args:
        hyperparameters: The search space.
        values: Values by path: the names of the groups, then the hyperparameter's name.
    """

    def place_in_group(part: Mapping[str, object], group_path: tuple[Any, ...]) -> dict[str, Any]:
        group_values: dict[str, Any] = {}
        for name, value in part.items():
            path = (*group_path, name)
            if path in values:
                group_values[name] = values[path]
            else:
                group_values[name] = (
                    place_in_group(value, path) if isinstance(value, Mapping) else value
                )
        return group_values

    return place_in_group(hyperparameters, ())


def _list_points(name: str, value: Mapping[str, Any]) -> list[Any]:
    kind = value["type"]
    if kind == "const":
        return [value["val"]]
    if kind == "categorical":
        return list(value["vals"])
    count = value.get("count")
    if count is None:
        raise SearchError(
            f"hyperparameter {name!r} has no count, but a grid needs the number of points.\n"
            f"Add count: 3 (or another number) to {name}."
        )
    low, high = value["minval"], value["maxval"]
    if kind == "int":
        count = min(count, high - low + 1)
    if count == 1:
        points = [(low + high) / 2]
    else:
        points = [low + index * (high - low) / (count - 1) for index in range(count)]
    if kind == "int":
        return [_round_half_away(point) for point in points]
    return [float(value["base"]) ** point if kind == "log" else float(point) for point in points]


def _round_half_away(number: float) -> int:
    """Round to the nearest integer, and round halves away from 0."""
    return int(math.copysign(math.floor(abs(number) + 0.5), number))
