"""Derive values from a configuration to run it: the seed of its trial, and smoke runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.config._experiment import ExperimentConfig
from detcore.config._hyperparameters import seeded

if TYPE_CHECKING:
    from numpy.random import RandomState

__all__ = ["smoke_config", "trial_seed"]

_SEEDS = 2**31
_KEPT = ("metric", "smaller_is_better", "source_trial_id", "source_checkpoint_uuid")


def smoke_config(config: ExperimentConfig) -> ExperimentConfig:
    """Return a configuration changed to one batch, one validation and one checkpoint."""
    plain = config.model_dump(mode="json")
    searcher = plain["searcher"]
    plain["searcher"] = {
        "name": "single",
        "max_length": {"batches": 1},
        **{name: searcher[name] for name in _KEPT if name in searcher},
    }
    plain.update(
        scheduling_unit=1,
        min_validation_period={"batches": 0},
        min_checkpoint_period={"batches": 0},
        checkpoint_policy="none",
        perform_initial_validation=False,
        max_restarts=0,
    )
    return ExperimentConfig.model_validate(plain)


def trial_seed(experiment_seed: int, *, random: RandomState | None = None) -> int:
    """Return the seed of an experiment's only or first trial, ``0 <= seed < 2**31``.

    Args:
        experiment_seed: ``reproducibility.experiment_seed``.
        random: A generator to seed again; default: a new one, which takes 0.1 ms to make.
    """
    return int(seeded(experiment_seed, random).randint(0, _SEEDS, dtype="int64"))
