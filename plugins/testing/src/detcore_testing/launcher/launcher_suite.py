"""The contract that every launcher has to keep, however it starts processes."""

from __future__ import annotations

from detcore_testing.launcher.launcher_ending import EndingClauses
from detcore_testing.launcher.launcher_messages import TellingClauses


class LauncherSuite(TellingClauses, EndingClauses):
    """The contract of `detcore.launch.Launcher` and `WorkerGroup`, clause by clause.

    Trials are small Python programs, which run as real processes; nothing is trained, and no
    framework is needed.

    ```python
    class TestMine(LauncherSuite):
        launcher = "mine"
    ```
    """
