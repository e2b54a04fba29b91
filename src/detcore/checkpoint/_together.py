"""Run an action on every worker, with one outcome for all of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from detcore.errors import CheckpointError

__all__ = ["Exchange", "together"]

T = TypeVar("T")


class Exchange(Protocol):
    """An allgather among some workers."""

    def __call__(self, stuff: Any) -> list[Any]:
        """Return every worker's value in rank order."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Failed:
    """Failure of a worker."""

    kind: type[CheckpointError]
    text: str


def together(exchange: Exchange, action: Callable[[], T]) -> list[T]:
    """Run an action on every worker; return the results of all of them.

    If it fails on one worker, it fails on all: there with the original exception, elsewhere with
    one that describes it. It is also a barrier.

    Args:
        exchange: Allgather among the workers, such as ``distributed.allgather``.
        action: This worker's action.

    Raises:
        CheckpointError: If it failed on another worker.
        Exception: The exception of this worker's own action.
    """
    failure: Exception | None = None
    mine: Any = None
    try:
        mine = action()
    except Exception as error:  # noqa: BLE001  (raised below, after notifying the others)
        failure = error
        kind = type(error) if isinstance(error, CheckpointError) else CheckpointError
        mine = _Failed(kind, str(error) or repr(error))
    answers = exchange(mine)
    if failure is not None:
        raise failure
    for index, answer in enumerate(answers):
        if isinstance(answer, _Failed):
            raise answer.kind(f"on worker {index}: {answer.text}")
    return answers
