"""Check rules between fields. Invalid fields are hidden from the rules, so no mistake repeats."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from detcore.config.hyperparameters import ranges
from detcore.config.problems import (
    Mention,
    OwnProblem,
    describe_value,
    make_problem_at,
    repair_number,
)
from detcore.config.source_text import Place, join_place
from detcore.contract.values import TrialSettings

LENGTHS: tuple[Place, ...] = (
    ("min_validation_period",),
    ("min_checkpoint_period",),
    ("searcher", "max_length"),
)
_NUMBERS = ("int", "double", "log", "loguniform")
_INT64 = 1 << 63
_BATCH_SIZE: Place = ("hyperparameters", "global_batch_size")


class Facts:
    """The configuration as written, without invalid fields."""

    def __init__(self, data: Mapping[str, object], bad: Iterable[Place] = ()) -> None:
        self._data = data
        self._bad = set(bad)

    def get(self, *place: str | int, default: Any = None) -> Any:
        """Return the value at `place`, or `default` if it is missing or invalid."""
        value: Any = None if self.is_bad(place) else self._data
        for element in place:
            try:
                value = value[element]
            except (KeyError, IndexError, TypeError):
                return default
        return default if value is None else value

    def is_bad(self, place: Place) -> bool:
        """Return whether a value at `place` or above it is invalid."""
        return any(place[:depth] in self._bad for depth in range(len(place) + 1))

    def get_number(self, *place: str | int) -> Any:
        """Return the number at `place`, or None."""
        value = self.get(*place)
        return None if isinstance(value, bool) or not isinstance(value, (int, float)) else value

    def get_section(self, *place: str | int) -> Mapping[str, object]:
        """Return the mapping at `place`, or an empty mapping."""
        value = self.get(*place)
        return value if isinstance(value, Mapping) else {}


def find_broken_rules(facts: Facts) -> list[OwnProblem]:
    """Return every broken rule, with the place that most likely needs a correction."""
    return [broken for rule in _RULES for broken in rule(facts)]


def _ranges_can_be_drawn(facts: Facts) -> Iterator[OwnProblem]:
    for place, value in ranges(facts.get_section("hyperparameters"), ("hyperparameters",)):
        low, high = facts.get_number(*place, "minval"), facts.get_number(*place, "maxval")
        if low is None or high is None:
            continue
        first, last = Mention((*place, "minval"), "minval"), Mention((*place, "maxval"), "maxval")
        if low >= high:
            one = "for one value, use {type: const, val: …}"
            message = f"minval must be less than maxval, and {low} is not less than {high}"
            hint = "exchange them" if low > high else one
            yield make_problem_at(first.place, message, first.text, also=[last], help=[hint])
        elif value["type"] == "int" and not -_INT64 <= low < high < _INT64:
            message = "whole numbers are drawn from 64 bits, from -2**63 to 2**63 - 1"
            yield make_problem_at(last.place, message, last.text, also=[first])
        elif not _is_finite(value["type"], low, high, facts.get_number(*place, "base") or 10):
            message = "the range goes beyond the largest number, 1.8e308"
            hint = "minval and maxval are exponents" if value["type"] == "log" else ""
            yield make_problem_at(
                last.place, message, last.text, also=[first], help=[hint] if hint else []
            )


def _is_finite(kind: str, low: float, high: float, base: float) -> bool:
    """Return whether all numbers of a range, and its width, can be represented."""
    try:
        ends = [float(end) for end in (low, high)]
        if kind == "log" and base > 0:
            return all(math.isfinite(float(base) ** end) for end in ends)
        return kind == "int" or math.isfinite(ends[1] - ends[0])
    except OverflowError:
        return False


def _grid_needs_counts(facts: Facts) -> Iterator[OwnProblem]:
    if facts.get("searcher", "name") != "grid":
        return
    for place, value in ranges(facts.get_section("hyperparameters"), ("hyperparameters",)):
        if value["type"] in _NUMBERS and "count" not in value and not facts.is_bad(place):
            yield make_problem_at(
                place,
                f"hyperparameter '{join_place(place[1:])}' needs 'count' in a grid search",
                "no 'count' here",
                at="key",
                also=[Mention(("searcher", "name"), "the grid")],
                help=["count is the number of grid points in the range"],
                suggestion="count",
            )


def _profiling_ends_after_it_begins(facts: Facts) -> Iterator[OwnProblem]:
    begin = facts.get_number("profiling", "begin_on_batch") or 0
    end = facts.get_number("profiling", "end_after_batch")
    if end is not None and begin > end:
        message = f"profiling ends after batch {end}, before it begins on batch {begin}"
        also = [Mention(("profiling", "begin_on_batch"), "begins")]
        yield make_problem_at(("profiling", "end_after_batch"), message, "ends", also=also)


def _one_source(facts: Facts) -> Iterator[OwnProblem]:
    first, second = "source_trial_id", "source_checkpoint_uuid"
    if all(facts.get("searcher", name) is not None for name in (first, second)):
        yield make_problem_at(
            ("searcher", second),
            f"'{first}' and '{second}' are both given",
            "one starting point",
            at="key",
            also=[Mention(("searcher", first), "another starting point", "key")],
            help=["keep one of them"],
        )


def _lengths_convert(facts: Facts) -> Iterator[OwnProblem]:
    has_size = "global_batch_size" in facts.get_section("hyperparameters")
    if has_size or facts.is_bad(("hyperparameters",)):
        return
    per_epoch = facts.get_number("records_per_epoch") or 0
    units = {
        place: unit
        for place in LENGTHS
        for unit in ("records", "epochs")
        if facts.get_number(*place, unit) and (unit == "records" or per_epoch)
    }
    if not units:
        return
    names = " and ".join(dict.fromkeys(units.values()))
    lengths = [
        Mention((*place, unit), f"{unit} cannot be converted to batches without it", "key")
        for place, unit in units.items()
    ]
    if facts.get("hyperparameters") is not None:
        here = Mention(("hyperparameters",), "no 'global_batch_size' here", "key")
        lengths.insert(0, here)
    yield make_problem_at(
        lengths[0].place,
        f"a length in {names} needs hyperparameters.global_batch_size",
        lengths[0].text,
        at="key",
        also=lengths[1:],
        help=["add global_batch_size to the hyperparameters, or give the length in batches"],
        suggestion="global_batch_size",
    )


def _batch_size_fits(facts: Facts) -> Iterator[OwnProblem]:
    size = facts.get(*_BATCH_SIZE)
    at = _BATCH_SIZE
    if isinstance(size, Mapping) and size.get("type") == "const":
        size, at = size.get("val"), (*_BATCH_SIZE, "val")
    if isinstance(size, Mapping) and TrialSettings.match_trial_class(facts.get("entrypoint")):
        yield from _batch_sizes_fit(size)
    if size is None or isinstance(size, Mapping) or facts.is_bad(at):
        return
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        label, suggestion = repair_number(size, int)
        text = "hyperparameters.global_batch_size: expected an integer, 1 or more, got "
        yield make_problem_at(at, text + describe_value(size), label, suggestion=suggestion)
        return
    slots, records = (
        facts.get_number("resources", "slots_per_trial"),
        facts.get_number("records_per_epoch"),
    )
    if slots and size < slots:
        message = f"global_batch_size {size} is less than slots_per_trial {slots}"
        words = "each slot needs at least one record per batch"
        yield make_problem_at(at, message, also=[Mention(("resources", "slots_per_trial"), words)])
    if records and size > records:
        message = f"global_batch_size {size} is more than records_per_epoch {records}"
        also = [Mention(("records_per_epoch",), "not one full batch")]
        yield make_problem_at(at, message, also=also)


def _batch_sizes_fit(searched: Mapping[str, object]) -> Iterator[OwnProblem]:
    """Yield batch sizes that a search may choose but a trial class would reject."""
    kind, values = searched.get("type"), searched.get("vals")
    text = "hyperparameters.global_batch_size: expected integers, 1 or more, got "
    if kind in ("double", "log", "loguniform"):
        yield make_problem_at((*_BATCH_SIZE, "type"), f"{text}fractions", suggestion="int")
    elif kind == "categorical" and isinstance(values, list):
        for index, value in enumerate(values):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                yield make_problem_at((*_BATCH_SIZE, "vals", index), text + describe_value(value))
    elif kind == "int" and isinstance(least := searched.get("minval"), int) and least < 1:
        yield make_problem_at((*_BATCH_SIZE, "minval"), text + describe_value(least))


def _slots_fit(facts: Facts) -> Iterator[OwnProblem]:
    slots = facts.get("resources", "slots_per_trial", default=1)
    limit = facts.get_number("resources", "max_slots")
    if limit is not None and slots > limit:
        message = f"slots_per_trial {slots} is more than max_slots {limit}"
        also = [Mention(("resources", "slots_per_trial"), "per trial")]
        yield make_problem_at(
            ("resources", "max_slots"), message, "no trial could start", also=also
        )


_RULES: tuple[Callable[[Facts], Iterator[OwnProblem]], ...] = (
    _ranges_can_be_drawn,
    _grid_needs_counts,
    _profiling_ends_after_it_begins,
    _one_source,
    _lengths_convert,
    _batch_size_fits,
    _slots_fit,
)
