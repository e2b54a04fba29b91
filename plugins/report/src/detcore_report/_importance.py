"""The importance of hyperparameters: how much of the metric's ranks each of them explains alone.

Trials are put into groups of similar values: of numbers up to five of equal size, of other values
one for each. The share is the adjusted coefficient of determination of the trials' ranks by these
groups: 0 if the groups differ no more than chance would have it, 1 if the value decides the rank.
It sees effects that rise and fall again, and no effect that needs two hyperparameters at once.
Where Optuna is installed, its importance by PED-ANOVA is there, too, and decides the order.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from detcore.describe import format_number
from detcore_report._axes import number_of
from detcore_report._parts import cut, table

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    from detcore_report._view import ExperimentView, TrialView


# With fewer, chance would say more than the hyperparameters.
MIN_TRIALS = 10
_MAX_PARTS = 5
_LEAST_PER_PART = 3
_BY_OPTUNA = (
    "Importance: Optuna's PED-ANOVA, how much the best tenth of the trials differs from all; the "
    "shares of all hyperparameters together are 100 %. With fewer than 100 trials it depends much "
    "on chance."
)
_EXPLAINED = (
    "Explains: groups of similar values, and how much of the variance of the trials' ranks lies "
    "between them, less what chance would give. It leaves out an effect that two "
    "hyperparameters only have together."
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """The importance of a hyperparameter.

    Attributes:
        name: The hyperparameter.
        share: Share of the variance of ranks that it explains alone, 0 to 1.
        best: The values of the best group.
        worst: The values of the worst group.
        by_optuna: Optuna's importance, 0 to 1, of all together 1; None without Optuna, or if a
            trial lacks the hyperparameter.
    """

    name: str
    share: float
    best: str
    worst: str
    by_optuna: float | None = None


def rank_hyperparameters(view: ExperimentView) -> list[Importance]:
    """Return the hyperparameters that vary, the most important one first.

    Empty with fewer than ten trials that have a value of the metric. A hyperparameter is left out
    if nearly each trial has another text of it.
    """
    ranked = [trial for trial in view.trials if trial.rank is not None]
    if len(ranked) < MIN_TRIALS:
        return []
    values = {trial.id: trial.value for trial in ranked}
    ranks = _ranks([values[trial.id] or 0.0 for trial in ranked])
    sign = 1 if view.smaller_is_better else -1
    goodness = [sign * rank for rank in ranks]
    found = []
    for axis in view.axes:
        if axis.name == view.metric:
            continue
        groups = _groups({trial.id: trial.hparams.get(axis.name) for trial in ranked})
        if not 1 < len(groups) <= len(ranked) / 2:
            continue
        found.append(_explain(axis.name, groups, goodness))
    by_optuna = _ask_optuna(view, ranked, [one.name for one in found])
    found = [dataclasses.replace(one, by_optuna=by_optuna.get(one.name)) for one in found]
    return sorted(found, key=lambda one: (-(one.by_optuna or 0), -one.share, one.name))


def _ask_optuna(
    view: ExperimentView, trials: Sequence[TrialView], names: Sequence[str]
) -> dict[str, float]:
    """Return Optuna's importance of hyperparameters, by PED-ANOVA; {} without Optuna.

    Its fANOVA takes some seconds for some hundred trials, which is too long for a page.
    """
    columns = {name: [trial.hparams.get(name) for trial in trials] for name in names}
    columns = {name: column for name, column in columns.items() if None not in column}
    is_flat = len({trial.value for trial in trials}) == 1
    if not columns or is_flat or importlib.util.find_spec("optuna") is None:
        return {}
    import optuna

    logs = {axis.name for axis in view.axes if axis.is_log}
    space = {name: _distribution(column, name in logs) for name, column in columns.items()}
    params = {name: _as_drawn(column, space[name]) for name, column in columns.items()}
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the evaluator is experimental in some releases
            goal = "minimize" if view.smaller_is_better else "maximize"
            study = optuna.create_study(direction=goal)
            study.add_trials(
                optuna.trial.create_trial(
                    value=trial.value,
                    params={name: column[place] for name, column in params.items()},
                    distributions=space,
                )
                for place, trial in enumerate(trials)
            )
            found = optuna.importance.get_param_importances(
                study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
            )
    finally:
        optuna.logging.set_verbosity(before)
    return {name: float(share) for name, share in found.items()}


def _distribution(column: Sequence[object], is_log: bool) -> BaseDistribution:
    """Return the space of a hyperparameter for Optuna: what its values span."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    numbers = [number for value in column if (number := number_of(value)) is not None]
    if len(numbers) < len(column):
        return CategoricalDistribution(sorted({str(value) for value in column}))
    low, high = min(numbers), max(numbers)
    return FloatDistribution(low, high, log=is_log and low > 0)


def _as_drawn(column: Sequence[object], distribution: BaseDistribution) -> list[str | float | None]:
    is_text = hasattr(distribution, "choices")
    return [str(value) if is_text else number_of(value) for value in column]


def importance_table(view: ExperimentView) -> str:
    """Return `rank_hyperparameters` as HTML, and how to read it; "" if that says nothing."""
    found = rank_hyperparameters(view)
    if not found:
        return ""
    has_optuna = any(one.by_optuna is not None for one in found)
    caption = f"How much of the ranks by {cut(view.metric or '', 60)} each explains alone"
    heads, note = ["hyperparameter", "explains", "best with", "worst with"], _EXPLAINED
    if has_optuna:
        caption = f"How much each matters for {cut(view.metric or '', 60)}: Optuna's importance"
        heads[1:2] = ["importance", "explains alone"]
        note = f"{_BY_OPTUNA} {_EXPLAINED}"
    rows = [("", _cells(one, has_optuna=has_optuna)) for one in found[:50]]
    right = [1, 2] if has_optuna else [1]
    return table(caption, heads, rows, right=right) + f'<p class="dim">{note}</p>'


def _cells(one: Importance, *, has_optuna: bool) -> list[str]:
    cells = [cut(one.name, 80), f"{one.share:.0%}", cut(one.best, 60), cut(one.worst, 60)]
    if has_optuna:
        cells.insert(1, "-" if one.by_optuna is None else f"{one.by_optuna:.0%}")
    return cells


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, from 0; equal values share the mean of theirs."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    ranks = [0.0] * len(values)
    start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for place in order[start:end]:
            ranks[place] = (start + end - 1) / 2
        start = end
    return ranks


def _groups(values: Mapping[int, object]) -> list[tuple[str, list[int]]]:
    """Return the labels of groups of similar values, and the places of the trials in each."""
    numbers = [number_of(value) for value in values.values()]
    finite = [(number, place) for place, number in enumerate(numbers) if number is not None]
    num_parts = min(_MAX_PARTS, len(finite) // _LEAST_PER_PART)
    if len({number for number, _ in finite}) <= num_parts or len(finite) < len(numbers):
        by_text: dict[str, list[int]] = {}
        for place, value in enumerate(values.values()):
            text = "none" if value is None else format_number(value)
            by_text.setdefault(text, []).append(place)
        return list(by_text.items())
    finite.sort()
    groups: list[list[tuple[float, int]]] = []
    for part in range(num_parts):
        cut_off = finite[part * len(finite) // num_parts : (part + 1) * len(finite) // num_parts]
        while cut_off and groups and groups[-1][-1][0] == cut_off[0][0]:
            groups[-1].append(cut_off.pop(0))  # equal values stay together
        if cut_off:
            groups.append(cut_off)
    return [
        (
            f"{format_number(group[0][0])} to {format_number(group[-1][0])}",
            [place for _, place in group],
        )
        for group in groups
    ]


def _explain(
    name: str, groups: Sequence[tuple[str, Sequence[int]]], goodness: Sequence[float]
) -> Importance:
    count = len(goodness)
    mean = sum(goodness) / count
    total = sum((value - mean) ** 2 for value in goodness)
    means = {label: sum(goodness[place] for place in places) / len(places)
             for label, places in groups}  # fmt: skip
    between = sum(len(places) * (means[label] - mean) ** 2 for label, places in groups)
    share = 0.0
    if total > 0:
        share = 1 - (1 - between / total) * (count - 1) / (count - len(groups))
    return Importance(
        name=name,
        share=max(0.0, share),
        best=min(means, key=lambda label: means[label]),
        worst=max(means, key=lambda label: means[label]),
    )
