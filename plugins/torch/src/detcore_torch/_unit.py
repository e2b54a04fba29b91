"""The metrics of the batches between two boundaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detcore.errors import MetricError, describe
from detcore.metrics import weighted_mean
from detcore_torch._reducers import as_number
from detcore_torch._torch import torch


class TrainedUnit:
    """The metrics that ``train_batch`` returned for each batch.

    Tensors become numbers when the metrics are read, so that no batch waits for a GPU.
    """

    def __init__(self) -> None:
        self._batches: list[dict[str, Any]] = []
        self._counts: list[int] = []

    def add(self, returned: Any, num_records: int) -> None:
        """Add the value that ``train_batch`` returned for a batch.

        Raises:
            MetricError: If it is neither a tensor nor a mapping.
        """
        if isinstance(returned, torch.Tensor):
            returned = {"loss": returned}
        if not isinstance(returned, Mapping):
            raise MetricError(
                f"train_batch returned {describe(returned)}.\n"
                "Return the loss, or metrics by name, such as {'loss': loss}."
            )
        self._batches.append({
            str(name): value.detach() if isinstance(value, torch.Tensor) else value
            for name, value in returned.items()
        })  # fmt: skip
        self._counts.append(num_records)

    @property
    def num_records(self) -> int:
        """Records in all batches."""
        return sum(self._counts)

    def batch_metrics(self) -> list[dict[str, float]]:
        """Return the metrics of each batch, oldest first."""
        return [
            {name: as_number(name, value) for name, value in batch.items()}
            for batch in self._batches
        ]

    def means(self, batches: list[dict[str, float]]) -> dict[str, float]:
        """Return the means over the batches, each counting as often as it has records.

        A metric that only some batches have is the mean over those.
        """
        names = dict.fromkeys(name for batch in batches for name in batch)
        pairs = list(zip(batches, self._counts, strict=True))
        return {
            name: weighted_mean(
                [{name: batch[name]} for batch, _ in pairs if name in batch],
                [float(count) for batch, count in pairs if name in batch],
            )[name]
            for name in names
        }
