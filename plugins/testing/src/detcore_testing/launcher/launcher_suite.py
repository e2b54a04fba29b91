"""Suite for the contract of launchers."""

from __future__ import annotations

from detcore_testing.launcher.launcher_ending import EndingClauses
from detcore_testing.launcher.launcher_messages import MessageClauses


class LauncherSuite(MessageClauses, EndingClauses):
    """Tests each clause of the `detcore.launch.Launcher` and `WorkerGroup` contracts.

    Trials are small Python programs that run in real processes. No framework is needed.

    ```python
    class TestMine(LauncherSuite):
        launcher = "mine"
    ```
    """
