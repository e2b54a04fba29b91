"""The importance of hyperparameters: how much of the metric's ranks each of them explains alone.

Trials are grouped by similar values: up to five groups of equal size for more than five numbers,
otherwise one group per value. The share is the adjusted coefficient of determination of the trials'
ranks by these groups: 0 if the groups differ only by chance, 1 if the value determines the rank. It
includes effects that are not monotonic, but no interactions of two hyperparameters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from detcore.record_descriptions import format_number
from detcore_report.charts.axes import number_of
from detcore_report.pages.page_parts import cut, table

if TYPE_CHECKING:
    from detcore_report.experiment_view import ExperimentView


# With fewer trials, chance would dominate.
MIN_TRIALS = 10
_MAX_GROUPS = 5
_MIN_GROUP_SIZE = 3
_EXPLANATION = (
    "Explains: the share of the variance of the trials' ranks between groups of similar values, "
    "corrected for chance. Interactions of two hyperparameters are not included."
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """The importance of a hyperparameter.

    Attributes:
        name: The hyperparameter.
        share: Share of the variance of ranks that it explains alone, 0 to 1.
        best: The values of the best group.
        worst: The values of the worst group.
    """

    name: str
    share: float
    best: str
    worst: str


def rank_hyperparameters(view: ExperimentView) -> list[Importance]:
    """Return the hyperparameters that vary, the most important first.

    The list is empty with fewer than ten trials with a value of the metric. A hyperparameter is
    omitted if nearly every trial has a different string value.
    """
    ranked = [trial for trial in view.trials if trial.rank is not None]
    if len(ranked) < MIN_TRIALS:
        return []
    ranks = _compute_ranks([trial.value or 0.0 for trial in ranked])
    sign = 1 if view.smaller_is_better else -1
    goodness = {trial.id: sign * rank for trial, rank in zip(ranked, ranks, strict=True)}
    importances = []
    for name in view.varied:
        groups = group_values({trial.id: trial.hparams.get(name) for trial in ranked})
        if not 1 < len(groups) <= len(ranked) / 2:
            continue
        importances.append(_compute_importance(name, groups, goodness))
    return sorted(importances, key=lambda importance: (-importance.share, importance.name))


def importance_table(view: ExperimentView) -> Markup:
    """Return `rank_hyperparameters` as HTML with an explanation; "" if it is empty."""
    importances = rank_hyperparameters(view)
    if not importances:
        return Markup()
    caption = f"How much of the ranks by {cut(view.metric or '', 60)} each explains alone"
    heads = ["hyperparameter", "explains", "best with", "worst with"]
    rows = [
        (
            "",
            [
                cut(importance.name, 80),
                f"{importance.share:.0%}",
                cut(importance.best, 60),
                cut(importance.worst, 60),
            ],
        )
        for importance in importances[:50]
    ]
    return table(caption, heads, rows, right=[1]) + Markup(f'<p class="dim">{_EXPLANATION}</p>')


def _compute_ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, from 0; equal values share their mean rank."""
    import numpy as np

    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    means = np.cumsum(counts) - (counts + 1) / 2
    return [float(rank) for rank in means[places]]


def group_values(values: Mapping[int, object]) -> list[tuple[str, list[int]]]:
    """Return groups of trials with similar values, as pairs of label and trials.

    Args:
        values: Values by trial; None if a trial has no value.
    """
    numbers = {trial: number_of(value) for trial, value in values.items()}
    finite = sorted((number, trial) for trial, number in numbers.items() if number is not None)
    if len({number for number, _ in finite}) <= _MAX_GROUPS or len(finite) < len(numbers):
        by_text: dict[str, list[int]] = {}
        for trial, value in values.items():
            text = "none" if value is None else format_number(value)
            by_text.setdefault(text, []).append(trial)
        return list(by_text.items())
    num_parts = min(_MAX_GROUPS, len(finite) // _MIN_GROUP_SIZE)
    groups: list[list[tuple[float, int]]] = []
    for part in range(num_parts):
        members = finite[part * len(finite) // num_parts : (part + 1) * len(finite) // num_parts]
        while members and groups and groups[-1][-1][0] == members[0][0]:
            groups[-1].append(members.pop(0))  # equal values stay together
        if members:
            groups.append(members)
    return [
        (
            f"{format_number(group[0][0])} to {format_number(group[-1][0])}",
            [trial for _, trial in group],
        )
        for group in groups
    ]


def _compute_importance(
    name: str, groups: Sequence[tuple[str, Sequence[int]]], goodness: Mapping[int, float]
) -> Importance:
    count = len(goodness)
    mean = sum(goodness.values()) / count
    total = sum((value - mean) ** 2 for value in goodness.values())
    means = {label: sum(goodness[trial] for trial in trials) / len(trials)
             for label, trials in groups}  # fmt: skip
    between = sum(len(trials) * (means[label] - mean) ** 2 for label, trials in groups)
    share = 0.0
    if total > 0:
        share = 1 - (1 - between / total) * (count - 1) / (count - len(groups))
    return Importance(
        name=name,
        share=max(0.0, share),
        best=min(means, key=lambda label: means[label]),
        worst=max(means, key=lambda label: means[label]),
    )
