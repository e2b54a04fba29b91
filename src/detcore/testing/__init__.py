"""Conformance suites for the authors of plugins, and the tools that the suites are built from.

Needs the extra ``detcore[testing]`` (pytest, hypothesis). A plugin's tests subclass a suite:

```python
from detcore.testing import StorageSuite


class TestTapeStorage(StorageSuite): ...
```

Names are imported on first use, because a run's workers load only a small part of this package.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

if importlib.util.find_spec("pytest") is None or importlib.util.find_spec("hypothesis") is None:
    raise ImportError(
        "detcore.testing needs pytest and hypothesis, which are not installed.\n"
        "They come with an extra, so that detcore itself does without them.\n"
        '  pip install "detcore[testing]"'
    )

if TYPE_CHECKING:
    from detcore.testing._clauses import BrokenContractError, Suite, clause
    from detcore.testing._command import DetcoreCommand, Finished
    from detcore.testing._faults import FaultyStorage, StorageFault, changes_of
    from detcore.testing._forked import run_forked
    from detcore.testing._framework import FrameworkSuite
    from detcore.testing._framework_runs import FrameworkRun, FrameworkRuns
    from detcore.testing._launcher import LauncherSuite
    from detcore.testing._ranks import RankError, run_ranks
    from detcore.testing._searcher import SearcherSuite
    from detcore.testing._searcher_simulation import SearchSimulation
    from detcore.testing._storage import StorageSuite
    from detcore.testing._storage_access import FolderAccess
    from detcore.testing._strategies import (
        file_trees,
        hyperparameter_spaces,
        keys,
        metrics,
        record_splits,
    )

__all__ = [
    "BrokenContractError",
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
        raise AttributeError(f"module 'detcore.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"detcore.testing.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
