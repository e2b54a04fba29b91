"""The lines of an event log: JSON objects, each with a checksum of the remaining line.

The first line names the trial and the run. Every other line is a record. A line counts once its
newline is written. Bytes after the last newline were being written when the process was killed.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import secrets
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from detcore.contract.errors import DatabaseError
from detcore.log.events import Event, decode_event

_VERSION = 1
_PREFIX = b'{"crc":"'
_BODY_AT = len(_PREFIX) + 8 + 2  # eight digits, quote and comma
_HEADER_LIMIT = 4096
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode_metrics(value: object) -> str:
    """Return compact JSON with ``"NaN"``, ``"Infinity"`` and ``"-Infinity"`` as strings.

    Raises:
        TypeError: If the value contains something that is not JSON, a NumPy scalar or an array.
    """
    try:
        # The usual case is a single pass in C. Only NaN and infinities need the slow path.
        return _STRICT.encode(value)
    except ValueError:
        return _STRICT.encode(encode_numbers(value))


def encode_document(value: object) -> str:
    """Return compact JSON with ``NaN`` and ``Infinity`` as Python writes them."""
    return json.dumps(value, separators=(",", ":"), default=_to_plain_value)


def decode_document(text: str) -> Any:
    """Return the value that `encode_document` encoded."""
    return json.loads(text)


def decode_metrics(text: str) -> Any:
    """Return the value that `encode_metrics` encoded, with the three special numbers as floats."""
    value = json.loads(text)
    if '"NaN"' in text or 'Infinity"' in text:
        return decode_numbers(value)
    return value


def _to_plain_value(value: object) -> Any:
    """Return a NumPy scalar or array (or an object with `tolist`) as plain numbers."""
    to_list = getattr(value, "tolist", None)
    if callable(to_list):
        return to_list()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON: {value!r}")


_STRICT: Final = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=_to_plain_value)


def encode_numbers(value: object) -> Any:
    """Return a JSON value with ``"NaN"``, ``"Infinity"`` and ``"-Infinity"`` as strings."""
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, Mapping):
        return {key: encode_numbers(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode_numbers(item) for item in value]
    return encode_numbers(_to_plain_value(value))


def decode_numbers(value: object) -> Any:
    """Return the value that `encode_numbers` received."""
    if isinstance(value, str):
        return _SPECIAL.get(value, value)
    if isinstance(value, dict):
        return {key: decode_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [decode_numbers(item) for item in value]
    return value


class EventLogDamagedError(DatabaseError):
    """Raised when a file is not an event log or has become shorter."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path} {reason}.\nThe reports in this file cannot be read.\n"
            f"Move the file away: mv {path} {path}.damaged"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class EventLogHeader:
    """The run of an event log, and the byte at which its records start."""

    trial_id: int
    run_id: int
    lines_at: int


@dataclasses.dataclass(frozen=True, slots=True)
class EventLine:
    """A record of an event log.

    Attributes:
        seq: Number of the record in the event log, ascending from 1.
        kind: "training", "validation", or the kind of another event.
        time: Time of the report in seconds since 1970.
        payload: The reported values.
        end: Byte of the file after the record.
    """

    seq: int
    kind: str
    time: float
    payload: Any
    end: int

    @property
    def event(self) -> Event | None:
        """The decoded event, or None if the record is not a valid event."""
        return decode_event(self.kind, self.payload)


def make_header_line(trial_id: int, run_id: int) -> bytes:
    """Return the first line of an event log."""
    header: dict[str, object] = {
        "event_log": _VERSION,
        "trial_id": trial_id,
        "run_id": run_id,
        # Distinguishes two logs of the same run from machines with separate DETCORE_HOME.
        "id": secrets.token_hex(8),
    }
    return _add_checksum(encode_metrics(header)[1:].encode("ascii"))


def make_event_line(seq: int, kind: str, reported_at: float, payload: object) -> bytes:
    """Return the line of a record.

    Args:
        seq: Number of the record.
        kind: Kind of the record.
        reported_at: Seconds since 1970.
        payload: A JSON value.
    """
    record = {"seq": seq, "kind": kind, "at": reported_at, "payload": payload}
    return _add_checksum(encode_metrics(record)[1:].encode("ascii"))


def _add_checksum(body: bytes) -> bytes:
    return b'%b%08x",%b\n' % (_PREFIX, zlib.crc32(body), body)


def _verify_line(line: bytes) -> Any:
    """Return the object of a line (without its newline), or None if the line is damaged."""
    body = line[_BODY_AT:]
    if line[:_BODY_AT] != b'%s%08x",' % (_PREFIX, zlib.crc32(body)):
        return None
    return decode_metrics("{" + body.decode("ascii"))


def parse_line(line: bytes, end: int = 0) -> EventLine | None:
    """Return the record of a line (without its newline), or None if it is damaged.

    A line with a valid checksum and invalid content counts as damaged, because a peer may send
    anything.

    Args:
        line: The line.
        end: Byte of the file after the line.
    """
    try:
        record = _verify_line(line)
        if record is None:
            return None
        seq, kind, payload = record["seq"], record["kind"], record["payload"]
        time = datetime.datetime.fromtimestamp(record["at"], datetime.timezone.utc).timestamp()
    except (ValueError, TypeError, KeyError, OverflowError, OSError, RecursionError):
        return None
    if type(seq) is not int or not 0 < seq < 2**63 or not isinstance(kind, str):
        return None
    return EventLine(seq, kind, time, payload, end)


def read_header(file: BinaryIO, path: Path) -> EventLogHeader | None:
    """Read the first line of an event log, or return None if the line is incomplete.

    Raises:
        EventLogDamagedError: If the file is not an event log of a known version.
    """
    file.seek(0)
    line = file.readline(_HEADER_LIMIT)
    if not line.endswith(b"\n") and len(line) < _HEADER_LIMIT:
        return None
    header = _verify_line(line[:-1])
    if header is None or header.get("event_log") != _VERSION:
        raise EventLogDamagedError(
            path, f"does not start like an event log of version {_VERSION}: {line[:60]!r}"
        )
    return EventLogHeader(header["trial_id"], header["run_id"], len(line))
