"""Conformance suites for the authors of plugins, and the tools that the suites are built from.

A plugin's tests subclass a suite:

```python
from detcore_testing import StorageSuite


class TestTapeStorage(StorageSuite): ...
```

Names are imported on first use, because a run's workers load only a small part of this package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore_testing._clauses import BrokenContractError, Suite, clause
    from detcore_testing._command import DetcoreCommand, Finished
    from detcore_testing._data_source import DataSourceSuite
    from detcore_testing._faults import FaultyStorage, StorageFault, changes_of
    from detcore_testing._forked import run_forked
    from detcore_testing._framework import FrameworkSuite
    from detcore_testing._framework_runs import FrameworkRun, FrameworkRuns
    from detcore_testing._launcher import LauncherSuite
    from detcore_testing._ranks import RankError, run_ranks
    from detcore_testing._searcher import SearcherSuite
    from detcore_testing._searcher_simulation import SearchSimulation
    from detcore_testing._storage import StorageSuite
    from detcore_testing._storage_access import FolderAccess
    from detcore_testing._strategies import (
        file_trees,
        hyperparameter_spaces,
        keys,
        metrics,
        record_splits,
    )

__version__ = "0.1.0"

__all__ = [
    "BrokenContractError",
    "DataSourceSuite",
    "DetcoreCommand",
    "FaultyStorage",
    "Finished",
    "FolderAccess",
    "FrameworkRun",
    "FrameworkRuns",
    "FrameworkSuite",
    "LauncherSuite",
    "RankError",
    "SearchSimulation",
    "SearcherSuite",
    "StorageFault",
    "StorageSuite",
    "Suite",
    "changes_of",
    "clause",
    "file_trees",
    "hyperparameter_spaces",
    "keys",
    "metrics",
    "record_splits",
    "run_forked",
    "run_ranks",
]

_HOMES = {
    "BrokenContractError": "_clauses",
    "DataSourceSuite": "_data_source",
    "DetcoreCommand": "_command",
    "FaultyStorage": "_faults",
    "Finished": "_command",
    "FolderAccess": "_storage_access",
    "FrameworkRun": "_framework_runs",
    "FrameworkRuns": "_framework_runs",
    "FrameworkSuite": "_framework",
    "LauncherSuite": "_launcher",
    "RankError": "_ranks",
    "SearchSimulation": "_searcher_simulation",
    "SearcherSuite": "_searcher",
    "StorageFault": "_faults",
    "StorageSuite": "_storage",
    "Suite": "_clauses",
    "changes_of": "_faults",
    "clause": "_clauses",
    "file_trees": "_strategies",
    "hyperparameter_spaces": "_strategies",
    "keys": "_strategies",
    "metrics": "_strategies",
    "record_splits": "_strategies",
    "run_forked": "_forked",
    "run_ranks": "_ranks",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'detcore_testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"detcore_testing.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
