"""Settings of hypothesis for clauses: the same examples each time, without a deadline."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings


def quick(num_examples: int) -> settings:
    """Return settings under which a suite gives the same answer each time it runs.

    Args:
        num_examples: How many examples are tried.
    """
    return settings(
        max_examples=num_examples,
        derandomize=True,
        database=None,
        deadline=None,
        # Not shrunk: with a store that takes its time, a rejection would take many minutes.
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
