"""Read access to the records of a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from detcore.errors import InvalidArgumentError
from detcore_remote._documents import unspell_document
from detcore_remote._files import open_remote_checkpoint
from detcore_remote._refusal import ServerRefused

if TYPE_CHECKING:
    from detcore.database import LogLine
    from detcore_remote._files import HttpStorage
    from detcore_remote._session import Session

__all__ = ["ServerRecords"]

_ROOT = "/api/detcore/v1"
_LINES = 1000


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

    def open_checkpoint(self, uuid: str) -> HttpStorage:
        """Return the files of a checkpoint, as a storage that can be read.

        Raises:
            NotFoundError: If there is no such checkpoint.
        """
        return open_remote_checkpoint(self.session, uuid)

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
