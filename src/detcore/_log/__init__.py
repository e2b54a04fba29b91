"""The log of a trial's run: every durable fact, appended once; imports `errors` and `types` only.

A worker appends to it with `Spool`; followers read it from a cursor: the records,
observers, the display of a run.
"""

from detcore._log.lines import (
    NotASpoolError,
    SpooledRecord,
    SpoolHeader,
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
    SpoolDamagedError,
    SpoolPart,
    is_spool_in_use,
    read_records,
    read_spool,
    spool_owner,
    spool_path,
)
from detcore._log.writing import Spool, open_log

__all__ = [
    "NotASpoolError",
    "Spool",
    "SpoolDamagedError",
    "SpoolHeader",
    "SpoolPart",
    "SpooledRecord",
    "decode_document",
    "decode_metrics",
    "decode_numbers",
    "encode_document",
    "encode_metrics",
    "encode_numbers",
    "header_line",
    "is_spool_in_use",
    "open_log",
    "parse_line",
    "read_records",
    "read_spool",
    "spool_owner",
    "spool_path",
]
