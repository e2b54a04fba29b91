"""Comparisons that the clauses of a `FrameworkSuite` make."""

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
# How pickles begin since protocol 4: PROTO, FRAME, and the size of what follows.
_FRAME = re.compile(rb"\x80[\x04\x05]\x95(.{8})", re.DOTALL)
_FEW_OPCODES = 3
# Opcodes that call something: text files happen to be short pickles, too, but never with these.
_CALLS = {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX"}


def differences(
    found: State,
    expected: State,
    *,
    ignored: Iterable[str] = (),
    tolerance: float | None = None,
) -> list[str]:
    """Return how two training states differ; nothing if they are the same.

    Args:
        found: Arrays by name.
        expected: The arrays that `found` should equal.
        ignored: Patterns of names that do not count.
        tolerance: How far numbers may be apart, absolutely and relatively; None: bit for bit.
    """
    patterns = list(ignored)

    def counts(name: str) -> bool:
        return not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)

    told = [f"{name} is missing" for name in sorted(expected.keys() - found.keys()) if counts(name)]
    told += [f"{name} is new" for name in sorted(found.keys() - expected.keys()) if counts(name)]
    for name in filter(counts, sorted(found.keys() & expected.keys())):
        difference = _difference(np.asarray(found[name]), np.asarray(expected[name]), tolerance)
        if difference:
            told.append(f"{name} {difference}")
    return told


def _difference(found: np.ndarray, expected: np.ndarray, tolerance: float | None) -> str:
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"is {found.dtype}{found.shape}, not {expected.dtype}{expected.shape}"
    if found.tobytes() == expected.tobytes():
        return ""
    if not np.issubdtype(found.dtype, np.number):
        return "differs"
    if tolerance is not None and np.allclose(found, expected, rtol=tolerance, atol=tolerance):
        return ""
    apart = np.max(np.abs(found.astype(complex) - expected.astype(complex)), initial=0.0)
    return f"differs by up to {apart:.3g}"


def shown(told: Sequence[str]) -> str:
    """Return some of many findings, for an error."""
    more = f"\n  and {len(told) - _NUM_SHOWN} more" if len(told) > _NUM_SHOWN else ""
    return "\n  ".join(["", *told[:_NUM_SHOWN]]) + more


def metric_differences(
    found: Mapping[int, MetricRecord],
    expected: Mapping[int, MetricRecord],
    *,
    relative: float,
    absolute: float = 0.0,
) -> list[str]:
    """Return how reports of metrics differ at the steps that both have.

    Args:
        found: Reports by steps.
        expected: The reports that `found` should equal.
        relative: How far numbers may be apart, relatively.
        absolute: How far numbers may be apart, absolutely.
    """
    told = []
    for steps in sorted(found.keys() & expected.keys()):
        mine, theirs = found[steps].metrics, expected[steps].metrics
        if mine.keys() != theirs.keys():
            told.append(f"step {steps}: {sorted(mine)} instead of {sorted(theirs)}")
            continue
        told += [
            f"step {steps}: {name} is {mine[name]!r}, not {value!r}"
            for name, value in theirs.items()
            if not _is_close(mine[name], value, relative, absolute)
        ]
    return told


def _is_close(found: Any, expected: Any, relative: float, absolute: float) -> bool:
    if found == expected:
        return True
    try:
        return math.isclose(found, expected, rel_tol=relative, abs_tol=absolute)
    except TypeError:
        return False


def not_finite(reports: Mapping[int, MetricRecord]) -> list[str]:
    """Return the metrics that are no finite numbers."""
    return [
        f"step {steps}: {name} is {value!r}"
        for steps, record in reports.items()
        for name, value in record.metrics.items()
        if isinstance(value, float) and not math.isfinite(value)
    ]


def find_pickles(folder: Path) -> list[str]:
    """Return the files whose content is a pickle, or an archive with pickles."""
    return [
        path.relative_to(folder).as_posix()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and any(_is_pickle(name, data) for name, data in _read_contents(path))
    ]


def _read_contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the names and beginnings of a file and, if it is an archive, of its members."""
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
        return True  # an array of objects, which NumPy pickles
    for match in _FRAME.finditer(data):  # a whole pickle somewhere, such as in an array of bytes
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
    except Exception:  # noqa: BLE001  (whatever it is: no pickle from here on)
        pass
    return names


def grows(counts: Sequence[int]) -> bool:
    """Whether a count rises with every step: something is left behind each time."""
    return len(counts) > 2 and all(b > a for a, b in itertools.pairwise(counts))


_PAIRS = {
    "train_begin": "train_end",
    "epoch_begin": "epoch_end",
    "validation_begin": "validation_end",
}
_KNOWN = {*_PAIRS, *_PAIRS.values(), "batch_end", "checkpoint"}


def callback_faults(
    events: Sequence[str],
    *,
    kinds: Iterable[str],
    num_batches: int,
    validated_at: Sequence[int],
    saved_at: Sequence[int],
) -> list[str]:
    """Return the faults in the order in which callbacks were called.

    Args:
        events: The callbacks that were called, in order.
        kinds: Events that the framework has; others may be there, too.
        num_batches: Batches that were trained.
        validated_at: Batches after which there was a validation.
        saved_at: Batches after which there was a checkpoint.
    """
    told = [f"{event!r} is no event: {sorted(_KNOWN)}" for event in sorted({*events} - _KNOWN)]
    told += [f"no {kind!r} in {len(events)} events" for kind in kinds if kind not in events]
    if told:
        return told
    done, found = 0, {name: list[int]() for name in _KNOWN}
    for event in events:
        done += event == "batch_end"
        found[event].append(done)
    wanted = {
        "train_begin": [0],
        "batch_end": [*range(1, num_batches + 1)],
        "validation_begin": [*validated_at],
        "validation_end": [*validated_at],
        "checkpoint": [*saved_at],
        "train_end": [num_batches],
    }
    told += [
        f"{name} came after the batches {found[name]} instead of {places}"
        for name, places in wanted.items()
        if found[name] and found[name] != places
    ]
    for name, index in (("train_begin", 0), ("train_end", -1)):
        if found[name] and events[index] != name:
            where = "last" if index else "first"
            told.append(f"{name} came, and the {where} event is {events[index]}")
    for begin, end in _PAIRS.items():
        seen = [event for event in events if event in (begin, end)]
        if found[begin] and found[end] and seen != [begin, end] * (len(seen) // 2):
            told.append(f"{begin} and {end} do not take turns: {seen[:8]}")
    return told
