"""The importance of hyperparameters: how much of the metric's ranks each of them explains alone.

Trials are put into groups of similar values: of more than five numbers up to five groups of equal
size, of other values one for each. The share is the adjusted coefficient of determination of the
trials' ranks by these groups: 0 if the groups differ no more than chance would have it, 1 if the
value decides the rank. It sees effects that rise and fall again, and no effect that needs two
hyperparameters at once.
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


# With fewer, chance would say more than the hyperparameters.
MIN_TRIALS = 10
_MAX_PARTS = 5
_MIN_PER_PART = 3
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
    """

    name: str
    share: float
    best: str
    worst: str


def rank_hyperparameters(view: ExperimentView) -> list[Importance]:
    """Return the hyperparameters that vary, the most important one first.

    Empty with fewer than ten trials that have a value of the metric. A hyperparameter is left out
    if nearly each trial has another text of it.
    """
    ranked = [trial for trial in view.trials if trial.rank is not None]
    if len(ranked) < MIN_TRIALS:
        return []
    ranks = _ranks([trial.value or 0.0 for trial in ranked])
    sign = 1 if view.smaller_is_better else -1
    goodness = {trial.id: sign * rank for trial, rank in zip(ranked, ranks, strict=True)}
    found = []
    for name in view.varied:
        groups = group_values({trial.id: trial.hparams.get(name) for trial in ranked})
        if not 1 < len(groups) <= len(ranked) / 2:
            continue
        found.append(_explain(name, groups, goodness))
    return sorted(found, key=lambda one: (-one.share, one.name))


def importance_table(view: ExperimentView) -> Markup:
    """Return `rank_hyperparameters` as HTML, and how to read it; "" if that says nothing."""
    found = rank_hyperparameters(view)
    if not found:
        return Markup()
    caption = f"How much of the ranks by {cut(view.metric or '', 60)} each explains alone"
    heads = ["hyperparameter", "explains", "best with", "worst with"]
    rows = [
        ("", [cut(one.name, 80), f"{one.share:.0%}", cut(one.best, 60), cut(one.worst, 60)])
        for one in found[:50]
    ]
    return table(caption, heads, rows, right=[1]) + Markup(f'<p class="dim">{_EXPLAINED}</p>')


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, from 0; equal values share the mean of theirs."""
    import numpy as np

    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    means = np.cumsum(counts) - (counts + 1) / 2
    return [float(rank) for rank in means[places]]


def group_values(values: Mapping[int, object]) -> list[tuple[str, list[int]]]:
    """Return trials in groups of similar values: the label of each, and its trials.

    Args:
        values: Values by trial; None: it has none.
    """
    numbers = {trial: number_of(value) for trial, value in values.items()}
    finite = sorted((number, trial) for trial, number in numbers.items() if number is not None)
    if len({number for number, _ in finite}) <= _MAX_PARTS or len(finite) < len(numbers):
        by_text: dict[str, list[int]] = {}
        for trial, value in values.items():
            text = "none" if value is None else format_number(value)
            by_text.setdefault(text, []).append(trial)
        return list(by_text.items())
    num_parts = min(_MAX_PARTS, len(finite) // _MIN_PER_PART)
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


def _explain(
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
