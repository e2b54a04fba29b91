"""The log of a trial's run: every durable fact, appended once; imports `errors` and `types` only.

A worker appends to it with `EventLog`; followers read it from a cursor: the records,
observers, the display of a run.
"""

from detcore._log.lines import (
    EventLine,
    EventLogDamagedError,
    EventLogHeader,
    decode_document,
    decode_metrics,
    decode_numbers,
    encode_document,
    encode_metrics,
    encode_numbers,
    header_line,
    parse_line,
)
from detcore._log.reading import (
    EventLogPart,
    event_log_owner,
    event_log_path,
    is_event_log_in_use,
    read_event_lines,
    read_event_log,
)
from detcore._log.writing import EventLog, open_log

__all__ = [
    "EventLine",
    "EventLog",
    "EventLogDamagedError",
    "EventLogHeader",
    "EventLogPart",
    "decode_document",
    "decode_metrics",
    "decode_numbers",
    "encode_document",
    "encode_metrics",
    "encode_numbers",
    "event_log_owner",
    "event_log_path",
    "header_line",
    "is_event_log_in_use",
    "open_log",
    "parse_line",
    "read_event_lines",
    "read_event_log",
]
