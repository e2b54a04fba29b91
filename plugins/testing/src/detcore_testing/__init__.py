"""Conformance suites for the authors of plugins, and the tools that the suites are built from.

A plugin's tests subclass a suite:

```python
from detcore_testing import StorageSuite


class TestTapeStorage(StorageSuite): ...
```

Names are imported on first use, because a run's workers load only a small part of this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore_testing._clauses import BrokenContractError
    from detcore_testing._command import DetcoreCommand, Finished
    from detcore_testing._data_source import DataSourceSuite
    from detcore_testing._framework import FrameworkSuite
    from detcore_testing._launcher import LauncherSuite
    from detcore_testing._ranks import RankError, run_ranks
    from detcore_testing._searcher import SearcherSuite
    from detcore_testing._storage import StorageSuite
    from detcore_testing._storage_access import FolderAccess

__version__ = "0.1.0"

__all__ = [
    "BrokenContractError",
    "DataSourceSuite",
    "DetcoreCommand",
    "Finished",
    "FolderAccess",
    "FrameworkSuite",
    "LauncherSuite",
    "RankError",
    "SearcherSuite",
    "StorageSuite",
    "run_ranks",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_clauses": "BrokenContractError",
        "_command": "DetcoreCommand Finished",
        "_data_source": "DataSourceSuite",
        "_framework": "FrameworkSuite",
        "_launcher": "LauncherSuite",
        "_ranks": "RankError run_ranks",
        "_searcher": "SearcherSuite",
        "_storage": "StorageSuite",
        "_storage_access": "FolderAccess",
    },
)
