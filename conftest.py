"""What takes longest starts first, so that no core waits for the other at the end of a session."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "long(together=None): takes up to minutes, so it starts first; those of one name share "
        "something that takes minutes to make, and stay on one worker",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deal the long tests out: xdist gives each worker one stretch of the list to begin with."""
    groups: dict[str, list[pytest.Item]] = {}
    short = []
    for item in items:
        mark = item.get_closest_marker("long")
        if mark is None:
            short.append(item)
        else:
            groups.setdefault(mark.kwargs.get("together", item.nodeid), []).append(item)
    num_workers = getattr(config, "workerinput", {}).get("workercount", 1)
    hands: list[list[pytest.Item]] = [[] for _ in range(num_workers)]
    for index, group in enumerate(groups.values()):
        hands[index % num_workers] += group
    dealt: list[pytest.Item] = []
    for index, hand in enumerate(hands):
        share = (len(items) - len(dealt)) // (num_workers - index)
        rest = max(0, share - len(hand))
        dealt += [*hand, *short[:rest]]
        del short[:rest]
    items[:] = [*dealt, *short]
