"""Check rules between fields; invalid fields are hidden from them, so no mistake repeats."""

from __future__ import annotations

import importlib.util
import math
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from detcore.config._entrypoint import names_class
from detcore.config._hyperparameters import ranges
from detcore.config._problem import (
    Mention,
    OwnProblem,
    describe_value,
    problem_at,
    repair_number,
)
from detcore.config._source import Place, dotted

LENGTHS: tuple[Place, ...] = (
    ("min_validation_period",),
    ("min_checkpoint_period",),
    ("searcher", "max_length"),
    ("searcher", "length_per_round"),
)
_NUMBERS = ("int", "double", "log", "loguniform")
_INT64 = 1 << 63
_BATCH_SIZE: Place = ("hyperparameters", "global_batch_size")


class Facts:
    """The configuration as written, without fields that are invalid by themselves."""

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
        """Return whether anything at `place` or above it is invalid."""
        return any(place[:depth] in self._bad for depth in range(len(place) + 1))

    def number(self, *place: str | int) -> Any:
        """Return the number at `place`, or None."""
        value = self.get(*place)
        return None if isinstance(value, bool) or not isinstance(value, (int, float)) else value

    def section(self, *place: str | int) -> Mapping[str, object]:
        """Return the mapping at `place`, or an empty one."""
        value = self.get(*place)
        return value if isinstance(value, Mapping) else {}


def broken_rules(facts: Facts) -> list[OwnProblem]:
    """Return every rule that the configuration breaks, at the place to correct most likely."""
    return [broken for rule in _RULES for broken in rule(facts)]


def _project_and_workspace(facts: Facts) -> Iterator[OwnProblem]:
    for given, other in (("project", "workspace"), ("workspace", "project")):
        if facts.get(given) and not facts.get(other) and not facts.is_bad((other,)):
            message = f"'{given}' is given without '{other}'"
            label = f"no '{other}' beside it"
            yield problem_at((given,), message, label, at="key", help=["give both or neither"])


def _ranges_can_be_drawn(facts: Facts) -> Iterator[OwnProblem]:
    for place, value in ranges(facts.section("hyperparameters"), ("hyperparameters",)):
        low, high = facts.number(*place, "minval"), facts.number(*place, "maxval")
        if low is None or high is None:
            continue
        first, last = Mention((*place, "minval"), "minval"), Mention((*place, "maxval"), "maxval")
        base = facts.number(*place, "base") if "base" in value else 10
        if low >= high:
            one = "for one value, use {type: const, val: …}"
            message = f"minval must be less than maxval, and {low} is not less than {high}"
            hint = ["exchange them" if low > high else one]
            yield problem_at(first.place, message, first.text, also=[last], help=hint)
            continue
        message, hint = "", []
        if value["type"] == "int" and not (low >= -_INT64 and high < _INT64):
            message = "whole numbers are drawn from 64 bits, from -2**63 to 2**63 - 1"
        elif value["type"] == "double" and not math.isfinite(float(high) - float(low)):
            message = "the range is wider than the largest number, 1.8e308"
        elif value["type"] == "log" and not _is_finite_power(base, low, high):
            message = f"{base} to the power of {low} or {high} is larger than the largest number, "
            message, hint = message + "1.8e308", ["minval and maxval are exponents"]
        if message:
            yield problem_at(last.place, message, last.text, also=[first], help=hint)


def _is_finite_power(base: Any, low: float, high: float) -> bool:
    if base is None or base <= 0:
        return True  # reported elsewhere
    try:
        return all(math.isfinite(float(base) ** float(exponent)) for exponent in (low, high))
    except OverflowError:
        return False


def _grid_needs_counts(facts: Facts) -> Iterator[OwnProblem]:
    if facts.get("searcher", "name") != "grid":
        return
    for place, value in ranges(facts.section("hyperparameters"), ("hyperparameters",)):
        if value["type"] in _NUMBERS and "count" not in value and not facts.is_bad(place):
            yield problem_at(
                place,
                f"hyperparameter '{dotted(place[1:])}' needs 'count' in a grid search",
                "no 'count' here",
                at="key",
                also=[Mention(("searcher", "name"), "the grid")],
                help=["count is how many points of the range the grid takes"],
                suggestion="count",
            )


def _profiling_ends_after_it_begins(facts: Facts) -> Iterator[OwnProblem]:
    begin = facts.number("profiling", "begin_on_batch") or 0
    end = facts.number("profiling", "end_after_batch")
    if end is not None and begin > end:
        message = f"profiling ends after batch {end}, before it begins on batch {begin}"
        also = [Mention(("profiling", "begin_on_batch"), "begins")]
        yield problem_at(("profiling", "end_after_batch"), message, "ends", also=also)


def _one_source(facts: Facts) -> Iterator[OwnProblem]:
    given = ("source_trial_id", "source_checkpoint_uuid")
    if all(facts.get("searcher", name) is not None for name in given):
        yield _both_given("searcher", *given, "starting point")


def _both_given(section: str, first: str, second: str, what: str) -> OwnProblem:
    return problem_at(
        (section, second),
        f"'{first}' and '{second}' are both given",
        f"one {what}",
        at="key",
        beside=[(first, f"another {what}")],
        help=["keep one of them"],
    )


def _storage_path_stays_inside(facts: Facts) -> Iterator[OwnProblem]:
    host = facts.get("checkpoint_storage", "host_path")
    path = facts.get("checkpoint_storage", "storage_path")
    if not isinstance(host, str) or not isinstance(path, str) or not host.startswith("/"):
        return
    root = posixpath.normpath(host)
    target = posixpath.normpath(posixpath.join(root, path))
    if target != root and not target.startswith(root.rstrip("/") + "/"):
        message = f"storage_path leaves host_path: it leads to {target}"
        also = [Mention(("checkpoint_storage", "host_path"), "of this folder")]
        hint = "give a path relative to host_path, or an absolute one below it"
        at = ("checkpoint_storage", "storage_path")
        yield problem_at(at, message, "leads outside", also=also, help=[hint])


def _azure_has_one_account(facts: Facts) -> Iterator[OwnProblem]:
    storage = facts.section("checkpoint_storage")
    if facts.get("checkpoint_storage", "type") != "azure":
        return
    given = [key for key in ("connection_string", "account_url") if storage.get(key) is not None]
    at = "checkpoint_storage"
    if len(given) == 2:
        yield _both_given(at, "connection_string", "account_url", "account")
    elif not given:
        yield problem_at(
            (at,),
            "azure storage needs 'connection_string' or 'account_url'",
            "neither is given",
            at="key",
            also=[Mention((at, "type"))],
            suggestion="account_url",
        )
    if storage.get("credential") is not None and "connection_string" in given:
        yield problem_at(
            (at, "credential"),
            "'credential' does not go with 'connection_string'",
            "belongs to an account_url",
            at="key",
            beside=[("connection_string", "has its own credential")],
            help=["remove one of them"],
        )


def _brackets_fit(facts: Facts) -> Iterator[OwnProblem]:
    rungs = facts.number("searcher", "max_rungs")
    brackets = facts.get("searcher", "bracket_rungs", default=[])
    limit = 5 if rungs is None else rungs
    if facts.is_bad(("searcher", "max_rungs")) or not isinstance(brackets, list):
        return
    also = [Mention(("searcher", "max_rungs"), "the limit")]
    for index, bracket in enumerate(brackets):
        if isinstance(bracket, int) and bracket > limit:
            by_default = " by default" if rungs is None else ""
            message = f"a bracket of {bracket} rungs, but max_rungs is {limit}{by_default}"
            hint = f"raise max_rungs to {bracket}, or take fewer rungs"
            at = ("searcher", "bracket_rungs", index)
            yield problem_at(at, message, "too many", also=also, help=[hint])


def _lengths_convert(facts: Facts) -> Iterator[OwnProblem]:
    has_size = "global_batch_size" in facts.section("hyperparameters")
    if has_size or facts.is_bad(("hyperparameters",)):
        return
    per_epoch = facts.number("records_per_epoch") or 0
    units = {
        place: unit
        for place in LENGTHS
        for unit in ("records", "epochs")
        if facts.number(*place, unit) and (unit == "records" or per_epoch)
    }
    if not units:
        return
    lengths = [
        Mention((*place, unit), f"{unit} cannot be turned into batches without it", "key")
        for place, unit in units.items()
    ]
    if "epochs" in units.values():
        lengths.append(Mention(("records_per_epoch",), "epochs are counted in records", "key"))
    if facts.get("hyperparameters") is not None:
        here = Mention(("hyperparameters",), "no 'global_batch_size' here", "key")
        lengths.insert(0, here)
    names = " and ".join(dict.fromkeys(units.values()))
    yield problem_at(
        lengths[0].place,
        f"a length in {names} needs hyperparameters.global_batch_size",
        lengths[0].text,
        at="key",
        also=lengths[1:],
        help=["add global_batch_size to the hyperparameters, or give the length in batches"],
        suggestion="global_batch_size",
    )


def _batch_size_fits(facts: Facts) -> Iterator[OwnProblem]:
    given = facts.get(*_BATCH_SIZE)
    at = _BATCH_SIZE
    if isinstance(given, Mapping) and given.get("type") == "const":
        given, at = given.get("val"), (*_BATCH_SIZE, "val")
    if isinstance(given, Mapping) and names_class(facts.get("entrypoint")):
        yield from _batch_sizes_fit(given)
    if given is None or isinstance(given, Mapping) or facts.is_bad(at):
        return
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        label, suggestion = repair_number(given, int)
        text = "hyperparameters.global_batch_size: expected an integer, 1 or more, got "
        yield problem_at(at, text + describe_value(given), label, suggestion=suggestion)
        return
    slots, records = facts.number("resources", "slots_per_trial"), facts.number("records_per_epoch")
    if slots and given < slots:
        message = f"global_batch_size {given} is less than slots_per_trial {slots}"
        words = "each slot needs at least one record per batch"
        yield problem_at(at, message, also=[Mention(("resources", "slots_per_trial"), words)])
    if records and given > records:
        message = f"global_batch_size {given} is more than records_per_epoch {records}"
        also = [Mention(("records_per_epoch",), "not one full batch")]
        yield problem_at(at, message, also=also)


def _batch_sizes_fit(searched: Mapping[str, object]) -> Iterator[OwnProblem]:
    """Yield the batch sizes that a search may choose and a trial class would refuse."""
    kind, values = searched.get("type"), searched.get("vals")
    text = "hyperparameters.global_batch_size: expected integers, 1 or more, got "
    if kind in ("double", "log", "loguniform"):
        yield problem_at((*_BATCH_SIZE, "type"), f"{text}fractions", suggestion="int")
    elif kind == "categorical" and isinstance(values, list):
        for index, value in enumerate(values):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                yield problem_at((*_BATCH_SIZE, "vals", index), text + describe_value(value))
    elif kind == "int" and isinstance(least := searched.get("minval"), int) and least < 1:
        yield problem_at((*_BATCH_SIZE, "minval"), text + describe_value(least))


def _slots_fit(facts: Facts) -> Iterator[OwnProblem]:
    slots = facts.get("resources", "slots_per_trial", default=1)
    limit = facts.number("resources", "max_slots")
    if limit is not None and slots > limit:
        message = f"slots_per_trial {slots} is more than max_slots {limit}"
        also = [Mention(("resources", "slots_per_trial"), "per trial")]
        yield problem_at(("resources", "max_slots"), message, "no trial could start", also=also)


def _search_method_is_installed(facts: Facts) -> Iterator[OwnProblem]:
    name = facts.get("searcher", "name")
    if name == "optuna" and importlib.util.find_spec("detcore_optuna") is None:
        message = "the searcher 'optuna' needs detcore-optuna, which is not installed"
        hint = "install it: python -m pip install 'detcore[optuna]'"
        yield problem_at(("searcher", "name"), message, help=[hint])


def _mounts_differ(facts: Facts) -> Iterator[OwnProblem]:
    for place in (("bind_mounts",), ("resources", "devices")):
        seen: dict[str, Place] = {}
        for index in range(len(facts.get(*place, default=[]))):
            here = (*place, index, "container_path")
            target = facts.get(*here)
            if isinstance(target, str) and seen.setdefault(target, here) != here:
                message = f'container_path "{target}" is used twice'
                also = [Mention(seen[target], "used first")]
                yield problem_at(here, message, "used again", also=also)


_RULES: tuple[Callable[[Facts], Iterator[OwnProblem]], ...] = (
    _project_and_workspace,
    _ranges_can_be_drawn,
    _grid_needs_counts,
    _profiling_ends_after_it_begins,
    _one_source,
    _storage_path_stays_inside,
    _azure_has_one_account,
    _brackets_fit,
    _lengths_convert,
    _batch_size_fits,
    _slots_fit,
    _search_method_is_installed,
    _mounts_differ,
)
