"""Define the contract of a data source with a position, and the kinds of record ids."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from detcore.contract.values import JSONValue

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["DataSource", "IdKind"]

Batch_co = TypeVar("Batch_co", covariant=True)


class IdKind(str, enum.Enum):
    """The kind of the ids in a ledger."""

    RECORD_INDEX = "record index"
    SEQUENCE_ITEM = "item index of a Sequence"
    CONTENT_HASH = "content hash"


@runtime_checkable
class DataSource(Protocol[Batch_co]):
    """Batches in passes over the data, from any reported position.

    Batches depend only on the source's settings, its seed and its position. After `seek`, a source
    continues exactly as the source that reported the position, including random augmentations. If
    a reader leaves a pass early, the next pass continues it. `detcore_testing.DataSourceSuite`
    tests an implementation. Calls come from one thread.

    Example::

        source.seek(saved)
        for epoch in range(source.epoch, num_epochs):
            for batch in source:
                step += 1
                ledger.log(step, epoch, source.records())
                if step % 100 == 0:
                    saved = source.position()
    """

    @property
    def epoch(self) -> int:
        """Pass over the data that `__iter__` starts or continues, from 0."""

    def __iter__(self) -> Iterator[Batch_co]:
        """Return the remaining batches of the current pass. Its end moves to the next pass."""

    def position(self) -> dict[str, JSONValue]:
        """Return the position after the last consumed batch, as a small value for ``json.dumps``.

        Batches that worker processes have loaded ahead do not count.

        Raises:
            DataError: If JSON cannot represent a part of the data's state.
        """

    def seek(self, position: dict[str, JSONValue]) -> None:
        """Continue from a result of `position`, original or after a round trip through JSON.

        Raises:
            DataError: If the position is invalid, or belongs to other data, another seed or other
                settings.
        """

    def records(self) -> npt.NDArray[np.int64]:
        """Return the ids of the records in the last consumed batch, ``(records,), int64``.

        Raises:
            DataError: If no batch was consumed, or the data does not identify its records.
        """
