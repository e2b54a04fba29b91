"""The one place where Ray is imported."""

from __future__ import annotations

try:
    import ray
    from ray import exceptions
    from ray.util.placement_group import (
        PlacementGroup,
        placement_group,
        placement_group_table,
        remove_placement_group,
    )
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as error:  # pragma: no cover
    raise ImportError(
        f"detcore-ray cannot import Ray: {error}.\nInstall it: pip install 'ray>=2.40'"
    ) from error

__all__ = [
    "PlacementGroup",
    "PlacementGroupSchedulingStrategy",
    "exceptions",
    "placement_group",
    "placement_group_table",
    "ray",
    "remove_placement_group",
]
