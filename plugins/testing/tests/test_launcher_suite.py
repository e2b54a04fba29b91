"""The launcher of the core runs the suite that other people's run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detcore.launch import Launcher, LocalLauncher
from detcore.types import TrialInfo
from detcore_testing import LauncherSuite
from detcore_testing.launcher.launcher_access import LauncherRun
from detcore_testing.processes import fork_call, wait_for_child


class TestLocalLauncher(LauncherSuite):
    """Each worker starts from a new Python process."""

    launcher = "local"


class Kept(LocalLauncher):
    """Launcher that stays open for the next test."""

    def start(self, info: TrialInfo, **options: Any) -> Any:
        # Workers are forked only if their variables equal those of the process to fork.
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("PYTEST_CURRENT_TEST", raising=False)
            return super().start(info, **options)

    def close(self) -> None:
        """Keep the launcher open."""

    def end(self) -> None:
        super().close()


@pytest.fixture(scope="class")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Kept, Path]]:
    """Launcher that forks workers, and the shared directory of its trials."""
    launcher = Kept(fork_frameworks=[])
    yield launcher, tmp_path_factory.mktemp("warm-model")
    launcher.end()


class TestWarmLauncher(LauncherSuite):
    """Workers are forked from a process with the required imports."""

    as_trial_class = True

    @pytest.fixture(autouse=True)
    def _warmed_up(self, warm: tuple[Kept, Path], tmp_path: Path) -> None:
        self._launcher, self._folder = warm
        for _ in range(100):
            with self.start_with(self._launcher, tmp_path, "print(os.getppid())") as run:
                assert run.finish() == 0, run.lines
                if run.lines_of_rank() != [str(os.getpid())]:
                    return
        raise AssertionError("no worker was forked")

    def make_folder(self, tmp_path: Path) -> Path:
        return self._folder

    def make_launcher(self) -> Launcher:
        return self._launcher


class _Waiting:
    """Workers that never start, as in a full cluster."""

    pids = (0, 0)
    is_alive = False

    def kill(self) -> None:
        """No-op: there are no processes."""

    def close(self) -> int:
        return 1


def test_abandon_ignores_unstarted_workers() -> None:
    def abandon() -> None:
        os.setsid()  # limit the effect of a signal to this process group
        run = LauncherRun(None, 5)  # type: ignore[arg-type]
        run.group = _Waiting()  # type: ignore[assignment]  # the only members that abandon uses
        run.abandon()

    assert wait_for_child(fork_call(abandon)) == 0
