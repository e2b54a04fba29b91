"""Conformance suites and test tools for plugin authors.

A plugin's tests subclass a suite:

```python
from detcore_testing import StorageSuite


class TestTapeStorage(StorageSuite): ...
```

Names are imported on first use, because the workers of a run need only a part of this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore_testing.command import DetcoreCommand, Finished
    from detcore_testing.data_source_suite import DataSourceSuite
    from detcore_testing.framework.framework_suite import FrameworkSuite
    from detcore_testing.launcher.launcher_suite import LauncherSuite
    from detcore_testing.ranks import RankError, run_ranks
    from detcore_testing.searcher.searcher_suite import SearcherSuite
    from detcore_testing.storage.storage_access import FolderAccess
    from detcore_testing.storage.storage_suite import StorageSuite
    from detcore_testing.suite_clauses import BrokenContractError

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
        "suite_clauses": "BrokenContractError",
        "command": "DetcoreCommand Finished",
        "data_source_suite": "DataSourceSuite",
        "framework.framework_suite": "FrameworkSuite",
        "launcher.launcher_suite": "LauncherSuite",
        "ranks": "RankError run_ranks",
        "searcher.searcher_suite": "SearcherSuite",
        "storage.storage_access": "FolderAccess",
        "storage.storage_suite": "StorageSuite",
    },
)
