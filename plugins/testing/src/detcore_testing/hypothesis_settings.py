"""Hypothesis settings for clauses, with the same examples in every run and no deadline."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings


def quick(num_examples: int) -> settings:
    """Return settings that give the same result in every run.

    Args:
        num_examples: Number of examples.
    """
    return settings(
        max_examples=num_examples,
        derandomize=True,
        database=None,
        deadline=None,
        # Shrinking a failure would take many minutes with a slow store.
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
