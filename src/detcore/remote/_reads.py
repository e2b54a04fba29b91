"""Read access to the records of a server."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from detcore.errors import InvalidArgumentError
from detcore.remote._refusal import ServerRefused

if TYPE_CHECKING:
    from detcore.database import LogLine
    from detcore.remote._session import Session

__all__ = [
    "NUMBER",
    "ServerRecords",
    "spell_document",
    "spell_metrics",
    "unspell_document",
    "unspell_metrics",
]

_ROOT = "/api/detcore/v1"
_LINES = 1000
NUMBER = "$number"
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class ServerRecords:
    """The reading methods of `detcore.database.Database`, answered by a server.

    Args:
        session: The connection to the server.
    """

    def __init__(self, session: Session) -> None:
        self.session = session

    @property
    def url(self) -> str:
        """URL of the server."""
        return self.session.url

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method that asks the server.

        Raises:
            InvalidArgumentError: For a method that changes records.
        """
        from detcore.database import READS, plain_arguments, read_result

        if name.startswith("_"):
            raise AttributeError(name)
        if name not in READS:
            raise InvalidArgumentError(
                f"this cannot be done with the records of {self.url} from here ({name}).\n"
                "Type the command where the server runs, without --master and DETCORE_MASTER."
            )

        def ask(*args: Any, **kwargs: Any) -> Any:
            answer = self.session.ask(
                "POST",
                f"{_ROOT}/read/{name}",
                json_body={"arguments": plain_arguments(name, args, kwargs)},
                is_repeatable=True,
            )
            try:
                return read_result(name, unspell_document(answer))
            except ValueError as error:
                raise ServerRefused(
                    f"{self.url} answered {name} with what this detcore does not understand: "
                    f"{str(error).partition(chr(10))[0]}.\nIs it of another version?"
                ) from error

        return ask

    def read_log(self, trial_id: int, position: int) -> tuple[list[LogLine], int]:
        """Return lines of a trial's log from a position on, and the position after them."""
        from detcore.database import LogLine

        lines: list[LogLine] = []
        while True:
            page = self.session.ask(
                "GET",
                f"{_ROOT}/trials/{trial_id}/log",
                params={"position": position, "limit": _LINES},
            )
            try:
                found = [LogLine(**line) for line in page["lines"]]
                position = int(page["position"])
            except (KeyError, TypeError, ValueError) as error:
                raise ServerRefused(f"{self.url} answered with no page of a log") from error
            lines += found
            if len(found) < _LINES:
                return lines, position


def spell_metrics(value: Any) -> Any:
    """Return metrics (numbers in dictionaries and lists) with special numbers as texts."""
    if isinstance(value, float) and not math.isfinite(value):
        return _name(value)
    if isinstance(value, dict):
        return {key: spell_metrics(item) for key, item in value.items()}
    if isinstance(value, list):
        return [spell_metrics(item) for item in value]
    return value


def unspell_metrics(value: Any) -> Any:
    """Return the metrics that `spell_metrics` received."""
    if isinstance(value, str):
        return _SPECIAL.get(value, value)
    if isinstance(value, dict):
        return {key: unspell_metrics(item) for key, item in value.items()}
    if isinstance(value, list):
        return [unspell_metrics(item) for item in value]
    return value


def spell_document(value: Any) -> Any:
    """Return a document with special numbers as objects."""
    if isinstance(value, float) and not math.isfinite(value):
        return {NUMBER: _name(value)}
    if isinstance(value, dict):
        spelled = {key: spell_document(item) for key, item in value.items()}
        return {NUMBER: {NUMBER: spelled[NUMBER]}} if list(spelled) == [NUMBER] else spelled
    if isinstance(value, list):
        return [spell_document(item) for item in value]
    return value


def unspell_document(value: Any) -> Any:
    """Return the document that `spell_document` received."""
    if isinstance(value, dict):
        if list(value) == [NUMBER]:
            inner = value[NUMBER]
            if isinstance(inner, str):
                return _SPECIAL.get(inner, value)
            if isinstance(inner, dict) and list(inner) == [NUMBER]:
                return {NUMBER: unspell_document(inner[NUMBER])}
        return {key: unspell_document(item) for key, item in value.items()}
    if isinstance(value, list):
        return [unspell_document(item) for item in value]
    return value


def _name(value: float) -> str:
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
