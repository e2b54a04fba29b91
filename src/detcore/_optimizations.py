"""Settings of the section ``optimizations`` that frameworks carry out, with their defaults."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

__all__ = ["GradientSettings"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GradientSettings:
    """How the workers of a trial combine gradients and training metrics.

    Attributes:
        aggregation_frequency: Batches whose gradients are summed before each update; >= 1.
        average_aggregated_gradients: Whether that sum is divided by `aggregation_frequency`.
        average_training_metrics: Whether training metrics are averaged over all workers.
        gradient_compression: Whether gradients are sent as half-precision numbers.
    """

    aggregation_frequency: int = 1
    average_aggregated_gradients: bool = True
    average_training_metrics: bool = True
    gradient_compression: bool = False

    @classmethod
    def of_config(cls, config: Mapping[str, object]) -> GradientSettings:
        """Read them from an experiment's configuration; one for debugging may be incomplete."""
        section = config.get("optimizations")
        given = section if isinstance(section, Mapping) else {}
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: given[name] for name in names if given.get(name) is not None})
