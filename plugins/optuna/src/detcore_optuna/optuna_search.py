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
    """Trials whose hyperparameters Optuna suggests."""

    sampler: str | dict[str, Any] = Field(
        "TPESampler", description="An Optuna sampler: its name, or 'name' and arguments."
    )
    pruner: str | dict[str, Any] = Field(
        "NopPruner", description="An Optuna pruner: its name, or 'name' and arguments."
    )
    pruning_period: int = Field(
        0,
        ge=0,
        description="Ask the pruner this often, in the unit of 'max_length'; 0 = only at the end.",
    )


class OptunaSearch(ReplacingQueue):
    """Trials whose hyperparameters an Optuna sampler suggests, and which a pruner may stop.

    The study lives in memory and its sampler has the experiment's seed: a new study that receives
    the same events in the same order makes the same suggestions.

    Raises:
        SearchError: If Optuna lacks the sampler or pruner.
    """

    def __init__(self, setup: SearchSetup) -> None:
        self._setup = setup
        settings = setup.settings
        self._period = int(settings["pruning_period"]) or setup.max_length
        self._space = _Space(setup.hyperparameters)
        self._trials: list[Any] = []
        super().__init__(setup, self._ask, first_length=min(self._period, setup.max_length))
        if settings["pruner"] != "NopPruner":
            self.planned_length = 0
        with _quiet():
            sampler = _make(optuna.samplers, "sampler", settings["sampler"], setup.seed)
            pruner = _make(optuna.pruners, "pruner", settings["pruner"], None)
            self._study = optuna.create_study(
                # Hyperband derives brackets from it.
                study_name="detcore",
                sampler=sampler,
                pruner=pruner,
                direction="minimize" if setup.smaller_is_better else "maximize",
            )

    def validated(self, trial: int, length: int, metric: float) -> Sequence[Answer]:
        """Report to the study; close the trial if it is done or pruned, else continue it."""
        asked = self._trials[trial]
        asked.report(metric, length)
        is_done = length >= self._setup.max_length
        if not is_done and not asked.should_prune():
            self._invalid.record_accepted()
            return [TrainTo(trial, min(length + self._period, self._setup.max_length))]
        state = optuna.trial.TrialState
        if is_done:
            self._study.tell(asked, metric)
        else:
            self._study.tell(asked, state=state.PRUNED)
        return super().validated(trial, length, metric)

    def exited(self, trial: int, reason: ExitReason) -> Sequence[Answer]:
        """Report a failed trial to the study; replace it if it rejected its hyperparameters."""
        self._study.tell(self._trials[trial], state=optuna.trial.TrialState.FAIL)
        return super().exited(trial, reason)

    def _ask(self) -> dict[str, Any]:
        asked = self._study.ask(self._space.distributions)
        self._trials.append(asked)
        return self._space.hparams(asked.params)


class _Space:
    """The hyperparameters as Optuna's distributions, named by their paths: ``optimizer.lr``."""

    def __init__(self, hyperparameters: Mapping[str, Any]) -> None:
        self._hyperparameters = hyperparameters
        self._ranges = {
            ".".join(map(str, place)): (place, r) for place, r in ranges(hyperparameters)
        }
        self.distributions = {
            name: _distribution(value)
            for name, (_, value) in self._ranges.items()
            if value["type"] != "const"
        }

    def hparams(self, params: Mapping[str, Any]) -> dict[str, Any]:
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


def _distribution(value: Mapping[str, Any]) -> Any:
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
def _quiet() -> Iterator[None]:
    """Suppress Optuna's log messages and its warnings about experimental features."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def _make(module: Any, what: str, wanted: str | Mapping[str, Any], seed: int | None) -> Any:
    """Make a sampler or pruner by name; nested ones among its arguments are made first."""
    options: dict[str, Any] = {"name": wanted} if isinstance(wanted, str) else dict(wanted)
    name = str(options.pop("name", ""))
    known = sorted(
        each
        for each in module.__all__
        if each.endswith(what.capitalize()) and not each.startswith("Base")
    )
    if name not in known:
        raise SearchError(
            f"searcher.{what} is {name!r}; Optuna has: {', '.join(known)}.\n"
            "Name one of these, alone or as {name: ..., and its arguments}."
        )
    made = getattr(module, name)
    for key, value in options.items():
        if isinstance(value, Mapping) and value.get("name") in known:
            options[key] = _make(module, what, value, seed)
    if "seed" in options:
        raise SearchError(
            f"searcher.{what} has a separate seed.\n"
            "Everything is drawn with reproducibility.experiment_seed; leave seed out."
        )
    if seed is not None and "seed" in inspect.signature(made).parameters:
        options["seed"] = seed
    try:
        return made(**options)
    except (TypeError, ValueError, ImportError) as error:
        raise SearchError(f"searcher.{what}: {name} cannot be made: {error}") from error
