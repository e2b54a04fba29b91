"""The nearest valid name to one that is not."""

from __future__ import annotations

import re
from collections.abc import Iterable

from detcore._secrets import distance

__all__ = ["nearest"]

# What people write who know another tool, and what the earlier system called things.
_OTHER_WORDS: dict[str, tuple[str, ...]] = {
    "asha": ("adaptive_asha",),
    "hyperband": ("adaptive_asha",),
    "adaptive": ("adaptive_asha",),
    "adaptivesimple": ("adaptive_asha",),
    "synchalving": ("async_halving",),
    "batchesperstep": ("scheduling_unit",),
    "batchsize": ("global_batch_size",),
    "choice": ("categorical",),
    "choices": ("vals",),
    "direction": ("smaller_is_better",),
    "float": ("double",),
    "gpus": ("slots_per_trial",),
    "gs": ("gcs",),
    "google": ("gcs",),
    "hparams": ("hyperparameters",),
    "hps": ("hyperparameters",),
    "integer": ("int",),
    "local": ("shared_fs",),
    "log_uniform": ("loguniform",),
    "logarithmic": ("loguniform",),
    "max": ("maxval",),
    "min": ("minval",),
    "mount": ("bind_mounts",),
    "nfs": ("shared_fs",),
    "objective": ("metric",),
    "file": ("shared_fs",),
    "params": ("hyperparameters",),
    "path": ("host_path",),
    "samples": ("max_trials",),
    "seed": ("experiment_seed",),
    "slots": ("slots_per_trial",),
    "step": ("batches",),
    "steps": ("batches",),
    "storage": ("checkpoint_storage",),
    "tags": ("labels",),
    "trials": ("max_trials",),
    "uniform": ("double",),
    "value": ("val",),
    "values": ("vals",),
    "yes": ("true",),
    "on": ("true",),
    "y": ("true",),
    "no": ("false",),
    "off": ("false",),
    "n": ("false",),
}


_LONGEST = 200
_MOST_TOLERANCE = 3


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """Return the choice that was most likely meant, or None if none is near.

    >>> nearest("schedulin_unit", ["scheduling_unit", "searcher"])
    'scheduling_unit'
    >>> nearest("maxLength", ["max_length", "max_trials"])
    'max_length'
    >>> nearest("banana", ["max_length", "max_trials"]) is None
    True
    """
    if len(name) > _LONGEST:
        return None  # comparing takes as long as the name is, and no name that is valid is near
    valid = list(dict.fromkeys(choices))
    plain = _plain(name)
    for choice in valid:
        if _plain(choice) == plain:
            return choice
    for word in _OTHER_WORDS.get(plain, ()):
        if word in valid:
            return word
    ranked = sorted(
        (distance(plain, other), choice)
        for choice in valid
        # Others are further away than is ever near, and comparing takes long.
        if abs(len(other := _plain(choice)) - len(plain)) <= _MOST_TOLERANCE
    )
    if ranked and ranked[0][0] <= _tolerance(plain, ranked[0][1]):
        return ranked[0][1]
    return _shared_words(name, valid)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _tolerance(plain: str, choice: str) -> int:
    longest = max(len(plain), len(_plain(choice)))
    return 1 if longest <= 5 else 2 if longest <= 9 else _MOST_TOLERANCE


def _shared_words(name: str, choices: list[str]) -> str | None:
    words = set(_words(name))
    best, best_share = None, 0.49
    for choice in choices:
        other = set(_words(choice))
        share = len(words & other) / len(words | other)
        if share > best_share and (words <= other or other <= words):
            best, best_share = choice, share
    return best


def _words(name: str) -> list[str]:
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()
    return [word for word in re.split(r"[^a-z0-9]+", spaced) if word]
