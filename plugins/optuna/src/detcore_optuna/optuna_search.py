"""Search with any sampler and pruner of Optuna."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import optuna
from pydantic import Field

from detcore.errors import SearchError
from detcore.search import (
    Answer,
    ExitReason,
    RandomSettings,
    ReplacingQueue,
    SearchSetup,
    TrainTo,
    place_values,
    ranges,
)

__all__ = ["OptunaSearch", "OptunaSettings"]

_PRIMITIVE = (str, int, float, bool, type(None))


class OptunaSettings(RandomSettings):
    """Settings of the search method ``optuna``."""

    sampler: str | dict[str, Any] = Field(
        "TPESampler", description="An Optuna sampler: its name, or 'name' and arguments."
    )
    pruner: str | dict[str, Any] = Field(
        "NopPruner", description="An Optuna pruner: its name, or 'name' and arguments."
    )
    pruning_period: int = Field(
        0,
        ge=0,
        description="Interval of pruner calls, in the unit of 'max_length'; 0 = only at the end.",
    )


class OptunaSearch(ReplacingQueue):
    """Trials with hyperparameters from an Optuna sampler, which a pruner may stop.

    The study is in memory and its sampler has the experiment's seed. A new study that receives the
    same events in the same order therefore makes the same suggestions.

    Raises:
        SearchError: If Optuna lacks the sampler or pruner.
    """

    def __init__(self, setup: SearchSetup) -> None:
        self._setup = setup
        settings = setup.settings
        self._period = int(settings["pruning_period"]) or setup.max_length
        self._space = _Space(setup.hyperparameters)
        self._trials: list[Any] = []
        super().__init__(setup, self._suggest, first_length=min(self._period, setup.max_length))
        if settings["pruner"] != "NopPruner":
            self.planned_length = 0
        with _suppress_logs():
            sampler = _create_component(optuna.samplers, "sampler", settings["sampler"], setup.seed)
            pruner = _create_component(optuna.pruners, "pruner", settings["pruner"], None)
            self._study = optuna.create_study(
                # Hyperband derives brackets from the name.
                study_name="detcore",
                sampler=sampler,
                pruner=pruner,
                direction="minimize" if setup.smaller_is_better else "maximize",
            )

    def validated(self, trial: int, length: int, metric: float) -> Sequence[Answer]:
        """Report to the study; close the trial if it is complete or pruned, or continue it."""
        optuna_trial = self._trials[trial]
        optuna_trial.report(metric, length)
        is_done = length >= self._setup.max_length
        if not is_done and not optuna_trial.should_prune():
            self._invalid.record_accepted()
            return [TrainTo(trial, min(length + self._period, self._setup.max_length))]
        state = optuna.trial.TrialState
        if is_done:
            self._study.tell(optuna_trial, metric)
        else:
            self._study.tell(optuna_trial, state=state.PRUNED)
        return super().validated(trial, length, metric)

    def exited(self, trial: int, reason: ExitReason) -> Sequence[Answer]:
        """Report a failed trial to the study; replace it if it rejected its hyperparameters."""
        self._study.tell(self._trials[trial], state=optuna.trial.TrialState.FAIL)
        return super().exited(trial, reason)

    def _suggest(self) -> dict[str, Any]:
        optuna_trial = self._study.ask(self._space.distributions)
        self._trials.append(optuna_trial)
        return self._space.build_hparams(optuna_trial.params)


class _Space:
    """The hyperparameters as Optuna's distributions, named by their paths: ``optimizer.lr``."""

    def __init__(self, hyperparameters: Mapping[str, Any]) -> None:
        self._hyperparameters = hyperparameters
        self._ranges = {
            ".".join(map(str, place)): (place, options)
            for place, options in ranges(hyperparameters)
        }
        self.distributions = {
            name: _make_distribution(value)
            for name, (_, value) in self._ranges.items()
            if value["type"] != "const"
        }

    def build_hparams(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return plain hyperparameters, nested as in the experiment file."""
        values = {}
        for name, (place, value) in self._ranges.items():
            if value["type"] == "const":
                values[place] = value["val"]
            elif value["type"] == "categorical" and not _is_choice_list(value["vals"]):
                values[place] = value["vals"][params[name]]
            else:
                values[place] = params[name]
        return place_values(self._hyperparameters, values)


def _make_distribution(value: Mapping[str, Any]) -> Any:
    distributions = optuna.distributions
    kind = value["type"]
    if kind == "categorical":
        choices = value["vals"]
        # Optuna supports only plain values; other choices are represented by their index.
        return distributions.CategoricalDistribution(
            choices if _is_choice_list(choices) else range(len(choices))
        )
    low, high = value["minval"], value["maxval"]
    if kind == "int":
        return distributions.IntDistribution(low, high)
    if kind == "double":
        return distributions.FloatDistribution(low, high)
    ends = sorted((float(value["base"]) ** low, float(value["base"]) ** high))
    return distributions.FloatDistribution(*ends, log=True)


def _is_choice_list(values: Sequence[Any]) -> bool:
    # 1, 1.0 and True are the same choice to Optuna.
    return all(isinstance(value, _PRIMITIVE) for value in values) and len(set(values)) == len(
        values
    )


@contextlib.contextmanager
def _suppress_logs() -> Iterator[None]:
    """Suppress Optuna's log messages and its warnings about experimental features."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def _create_component(
    module: Any, kind: str, choice: str | Mapping[str, Any], seed: int | None
) -> Any:
    """Create a sampler or pruner by name, with nested samplers or pruners in its arguments."""
    options: dict[str, Any] = {"name": choice} if isinstance(choice, str) else dict(choice)
    name = str(options.pop("name", ""))
    names = sorted(
        attribute
        for attribute in module.__all__
        if attribute.endswith(kind.capitalize()) and not attribute.startswith("Base")
    )
    if name not in names:
        raise SearchError(
            f"unknown searcher.{kind} {name!r}; Optuna has: {', '.join(names)}.\n"
            "Use one of these names, or a mapping with its name and arguments."
        )
    factory = getattr(module, name)
    for key, value in options.items():
        if isinstance(value, Mapping) and value.get("name") in names:
            options[key] = _create_component(module, kind, value, seed)
    if "seed" in options:
        raise SearchError(
            f"searcher.{kind} has a separate seed.\n"
            "Remove it. The seed is reproducibility.experiment_seed."
        )
    if seed is not None and "seed" in inspect.signature(factory).parameters:
        options["seed"] = seed
    try:
        return factory(**options)
    except (TypeError, ValueError, ImportError) as error:
        raise SearchError(f"searcher.{kind}: {name} cannot be created: {error}") from error
