"""Comparisons for the clauses of a `FrameworkSuite`."""

from __future__ import annotations

import fnmatch
import itertools
import math
import pickletools
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from detcore.records import MetricRecord

State = Mapping[str, np.ndarray]
_NUM_SHOWN = 4
_PICKLE_SUFFIXES = (".pkl", ".pickle", ".joblib", ".dill")
_HEAD_BYTES = 1 << 16
_MAX_BYTES = 64 << 20
# Start of a pickle since protocol 4: PROTO, FRAME, and the size of the frame.
_FRAME = re.compile(rb"\x80[\x04\x05]\x95(.{8})", re.DOTALL)
_FEW_OPCODES = 3
# Opcodes that call code. Some text files are valid short pickles, but never with these opcodes.
_CALLS = {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"}


def compare_states(
    actual: State,
    expected: State,
    *,
    ignored: Iterable[str] = (),
    tolerance: float | None = None,
) -> list[str]:
    """Return the differences between two training states.

    Args:
        actual: Arrays by name.
        expected: The arrays that `actual` should equal.
        ignored: Patterns of names to ignore.
        tolerance: Absolute and relative tolerance. None compares bit for bit.
    """
    patterns = list(ignored)

    def is_compared(name: str) -> bool:
        return not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)

    faults = [f"{name} is missing" for name in sorted(expected.keys() - actual.keys())
              if is_compared(name)]  # fmt: skip
    faults += [f"{name} is new" for name in sorted(actual.keys() - expected.keys())
               if is_compared(name)]  # fmt: skip
    for name in filter(is_compared, sorted(actual.keys() & expected.keys())):
        fault = _compare_arrays(np.asarray(actual[name]), np.asarray(expected[name]), tolerance)
        if fault:
            faults.append(f"{name} {fault}")
    return faults


def _compare_arrays(actual: np.ndarray, expected: np.ndarray, tolerance: float | None) -> str:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return f"is {actual.dtype}{actual.shape}, not {expected.dtype}{expected.shape}"
    if actual.tobytes() == expected.tobytes():
        return ""
    if not np.issubdtype(actual.dtype, np.number):
        return "differs"
    if tolerance is not None and np.allclose(actual, expected, rtol=tolerance, atol=tolerance):
        return ""
    distance = np.max(np.abs(actual.astype(complex) - expected.astype(complex)), initial=0.0)
    return f"differs by up to {distance:.3g}"


def format_faults(faults: Sequence[str]) -> str:
    """Return the first faults as an indented list for an error message."""
    more = f"\n  and {len(faults) - _NUM_SHOWN} more" if len(faults) > _NUM_SHOWN else ""
    return "\n  ".join(["", *faults[:_NUM_SHOWN]]) + more


def compare_metrics(
    actual: Mapping[int, MetricRecord],
    expected: Mapping[int, MetricRecord],
    *,
    relative: float,
    absolute: float = 0.0,
) -> list[str]:
    """Return the differences between metric reports at their common steps.

    Args:
        actual: Reports by step.
        expected: The reports that `actual` should equal.
        relative: Relative tolerance.
        absolute: Absolute tolerance.
    """
    faults = []
    for steps in sorted(actual.keys() & expected.keys()):
        metrics, expected_metrics = actual[steps].metrics, expected[steps].metrics
        if metrics.keys() != expected_metrics.keys():
            faults.append(f"step {steps}: {sorted(metrics)} instead of {sorted(expected_metrics)}")
            continue
        faults += [
            f"step {steps}: {name} is {metrics[name]!r}, not {value!r}"
            for name, value in expected_metrics.items()
            if not _is_close(metrics[name], value, relative, absolute)
        ]
    return faults


def _is_close(actual: Any, expected: Any, relative: float, absolute: float) -> bool:
    if actual == expected:
        return True
    try:
        return math.isclose(actual, expected, rel_tol=relative, abs_tol=absolute)
    except TypeError:
        return False


def find_non_finite(reports: Mapping[int, MetricRecord]) -> list[str]:
    """Return the metrics that are not finite numbers."""
    return [
        f"step {steps}: {name} is {value!r}"
        for steps, record in reports.items()
        for name, value in record.metrics.items()
        if isinstance(value, float) and not math.isfinite(value)
    ]


def find_pickles(folder: Path) -> list[str]:
    """Return the files that contain a pickle, directly or in an archive."""
    return [
        path.relative_to(folder).as_posix()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and any(_is_pickle(name, data) for name, data in _read_contents(path))
    ]


def _read_contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and first bytes of a file and of its members if it is an archive."""
    with path.open("rb") as file:
        yield path.name, file.read(_MAX_BYTES)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                with archive.open(name) as member:
                    yield name, member.read(_MAX_BYTES)


def _is_pickle(name: str, data: bytes) -> bool:
    if name.endswith(_PICKLE_SUFFIXES):
        return True
    if data[:6] == b"\x93NUMPY" and (b"'|O'" in data[:256] or b"'O'" in data[:256]):
        return True  # NumPy pickles object arrays
    for match in _FRAME.finditer(data):  # a complete pickle inside other data
        end = match.end() + int.from_bytes(match[1], "little")
        opcodes = _read_opcodes(data[match.start() : end])
        if opcodes[-1:] == ["STOP"] and len(opcodes) > _FEW_OPCODES:
            return True
    opcodes = _read_opcodes(data[:_HEAD_BYTES])
    if re.match(rb"\x80[\x02-\x05]", data):
        return len(opcodes) >= 2
    return opcodes[-1:] == ["STOP"] and bool(_CALLS & set(opcodes))


def _read_opcodes(head: bytes) -> list[str]:
    names = []
    try:
        for opcode, _, _ in pickletools.genops(head):
            names.append(opcode.name)
    except Exception:  # noqa: BLE001  (any error means that no pickle follows)
        pass
    return names


def always_grows(counts: Sequence[int]) -> bool:
    """Whether a count increases with every step, which indicates a leak."""
    return len(counts) > 2 and all(b > a for a, b in itertools.pairwise(counts))


_PAIRS = {
    "train_begin": "train_end",
    "epoch_begin": "epoch_end",
    "validation_begin": "validation_end",
}
_EVENTS = {*_PAIRS, *_PAIRS.values(), "batch_end", "checkpoint"}


def find_callback_faults(
    events: Sequence[str],
    *,
    kinds: Iterable[str],
    num_batches: int,
    validated_at: Sequence[int],
    saved_at: Sequence[int],
) -> list[str]:
    """Return the faults in a sequence of callback events.

    Args:
        events: Callback events, in order.
        kinds: Events that must occur. Other events may occur too.
        num_batches: Number of trained batches.
        validated_at: Batches followed by a validation.
        saved_at: Batches followed by a checkpoint.
    """
    faults = [
        f"unknown event {event!r}; defined: {', '.join(sorted(_EVENTS))}"
        for event in sorted({*events} - _EVENTS)
    ]
    faults += [f"no {kind!r} in {len(events)} events" for kind in kinds if kind not in events]
    if faults:
        return faults
    step, steps = 0, {name: list[int]() for name in _EVENTS}
    for event in events:
        step += event == "batch_end"
        steps[event].append(step)
    expected = {
        "train_begin": [0],
        "batch_end": [*range(1, num_batches + 1)],
        "validation_begin": [*validated_at],
        "validation_end": [*validated_at],
        "checkpoint": [*saved_at],
        "train_end": [num_batches],
    }
    faults += [
        f"{name} was called after the batches {steps[name]} instead of {expected_steps}"
        for name, expected_steps in expected.items()
        if steps[name] and steps[name] != expected_steps
    ]
    for name, index in (("train_begin", 0), ("train_end", -1)):
        if steps[name] and events[index] != name:
            position = "last" if index else "first"
            faults.append(f"{name} was called, but the {position} event is {events[index]}")
    for begin, end in _PAIRS.items():
        pair_events = [event for event in events if event in (begin, end)]
        is_alternating = pair_events == [begin, end] * (len(pair_events) // 2)
        if steps[begin] and steps[end] and not is_alternating:
            faults.append(f"{begin} and {end} do not alternate: {pair_events[:8]}")
    return faults
