"""A ledger of the records that a script's own training code received."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from detcore.data import IdKind, LedgerWriter

__all__ = ["UsedRecords"]


class UsedRecords:
    """Writes the ledger of one process of a script to the working folder.

    Args:
        num_records: Records in the training data, whose ids are their indices.
    """

    def __init__(self, num_records: int) -> None:
        self._num_records = num_records
        self._ledger: LedgerWriter | None = None

    def log(self, step: int, epoch: int, ids: Any) -> None:
        """Log a batch.

        Args:
            step: The step that the batch belongs to, from 1.
            epoch: Pass over the data, from 0.
            ids: Ids of its records, ``(batch,)``.
        """
        if self._ledger is None:
            run = len(list(Path().glob("ledger-*.bin"))) + 1
            path = Path(f"ledger-{run}.bin")
            self._ledger = LedgerWriter(path, run_id=run, start_step=step - 1)
            self._ledger.describe(IdKind.RECORD_INDEX, num_records=self._num_records)
        self._ledger.log(step, epoch, ids)
        self._ledger.flush()  # the process may be killed at any time
