"""Groups of trials that differ only in their seeds, or have one hyperparameter value."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from detcore.record_descriptions import format_number, sort_key
from detcore_report import cut, group_values

if TYPE_CHECKING:
    from detcore_report import ExperimentView, TrialView


SEEDS = "seeds"
_COLOURS = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group of trials.

    Attributes:
        label: The shared values.
        trials: The trials, best first.
        colour: Colour class.
        values: Best values of the trials, where known.
    """

    label: str
    trials: Sequence[TrialView]
    colour: str
    values: Sequence[float]

    @property
    def mean(self) -> float | None:
        """Mean of the values."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation, or None with fewer than two values."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


def group_choices(view: ExperimentView) -> list[tuple[str, str]]:
    """Return the possible groupings as URL keys and titles."""
    return [
        (SEEDS, "all hyperparameters except seeds"),
        *((f"hparams.{name}", name) for name in view.varied),
    ]


def group_trials(view: ExperimentView, key: str) -> list[Group]:
    """Return the groups of a view's trials, best mean first.

    Args:
        view: The trials.
        key: Key from `group_choices`. Other keys give no groups.
    """
    if key not in {choice for choice, _ in group_choices(view)}:
        return []
    labels = (
        _label_by_seeds(view)
        if key == SEEDS
        else _label_by_value(view, key.removeprefix("hparams."))
    )
    members: dict[str, list[TrialView]] = {}
    for trial in view.trials:
        members.setdefault(labels[trial.id], []).append(trial)
    groups = [
        Group(
            label=label, trials=trials, colour="",
            values=[trial.value for trial in trials if trial.value is not None],
        )
        for label, trials in members.items()
    ]  # fmt: skip
    groups.sort(key=lambda one: sort_key(one.mean, smaller_is_better=view.smaller_is_better))
    return [
        dataclasses.replace(group, colour=f"k{place}" if place < _COLOURS else "none")
        for place, group in enumerate(groups)
    ]


def _label_by_seeds(view: ExperimentView) -> dict[int, str]:
    names = [name for name in view.varied if not name.rpartition(".")[2].lower().endswith("seed")]
    return {
        trial.id: ", ".join(
            f"{name.rpartition('.')[2]} {_format_hparam(trial.hparams, name)}" for name in names
        )
        or "all trials"
        for trial in view.trials
    }


def _label_by_value(view: ExperimentView, name: str) -> dict[int, str]:
    groups = group_values({trial.id: trial.hparams.get(name) for trial in view.trials})
    return {trial: cut(label, 60) for label, trials in groups for trial in trials}


def _format_hparam(hparams: Mapping[str, object], name: str) -> str:
    return cut(format_number(hparams[name]), 60) if name in hparams else "none"
