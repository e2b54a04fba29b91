"""A sample of `_campaign.py`: every script in one setting, killed a few times."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from _campaign import FAMILIES, TASKS, Case

# Loader workers and ranks.
SETTINGS = [(0, 1), (2, 1), (0, 2), (2, 2)]
CASES = [
    Case(*script, *SETTINGS[index % len(SETTINGS)])
    for index, script in enumerate(itertools.product(FAMILIES, TASKS))
]


@pytest.mark.soak
@pytest.mark.cold
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case.family}-{case.task}-{case.workers}-{case.ranks}"
)
def test_killed_script_is_exact(case: Case, tmp_path: Path) -> None:
    result = case.run(tmp_path / "case", kills=2)
    assert result.is_exact, result
    assert result.kills == 2
