"""Launchers with one fault each; ``broken`` is the clause that says so.

Each is the `LocalLauncher` but for its fault.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any, ClassVar

from processes import is_running

from detcore.environment import change_environment
from detcore.launch import Launcher, LocalLauncher, OutputSink, WorkerEvent, WorkerGroup
from detcore.types import TrialInfo
from detcore_testing import LauncherSuite

__all__ = ["WRONG", "make_suite"]


class Group:
    """Passes all calls to a worker group. Subclasses add one fault."""

    def __init__(self, inner: WorkerGroup) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def poll(self) -> list[WorkerEvent]:
        return self.inner.poll()

    def close(self) -> int:
        return self.inner.close()


class Right:
    """The local launcher. Subclasses add one fault."""

    broken: ClassVar[str] = ""
    group: ClassVar[type[Group]] = Group

    def __init__(self) -> None:
        self.inner = LocalLauncher()

    def change(self, options: dict[str, Any]) -> None:
        """Change the arguments of `start`."""

    def sink(self, on_output: OutputSink) -> OutputSink:
        """Change what takes the lines."""
        return on_output

    def start(self, info: TrialInfo, **options: Any) -> Any:
        options |= {"info": info, "on_output": self.sink(options["on_output"])}
        options.setdefault("variables", None)
        options.setdefault("allowed_plugins", None)
        self.change(options)
        return self.group(self.inner.start(options.pop("info"), **options))

    def close(self) -> None:
        self.inner.close()


class ForgetsVariables(Right):
    broken = "variables-are-passed"

    def change(self, options: dict[str, Any]) -> None:
        options["variables"] = None


class ForgetsPlugins(Right):
    broken = "variables-are-passed"

    def change(self, options: dict[str, Any]) -> None:
        options["disabled_plugins"] = frozenset()


class NamesTheWrongHome(Right):
    broken = "workers-receive-trial-info"

    def change(self, options: dict[str, Any]) -> None:
        options["home"] = options["home"] / "other"


class LeavesOutFields(Right):
    broken = "workers-receive-trial-info"

    def change(self, options: dict[str, Any]) -> None:
        options["info"] = dataclasses.replace(options["info"], searcher_length=None)


class SharesOneKey(Right):
    """Uses the same job key for all trials."""

    broken = "workers-receive-rank-and-key"

    def change(self, options: dict[str, Any]) -> None:
        options["variables"] = {**(options["variables"] or {}), "DETCORE_JOB_KEY": "fixed"}


class GivesEachWorkerAnotherKey(Right):
    broken = "workers-receive-rank-and-key"

    def change(self, options: dict[str, Any]) -> None:
        settings = options["info"].settings
        key = "$DETCORE_JOB_KEY-$DETCORE_RANK"
        new_settings = dataclasses.replace(
            settings, entrypoint=f"DETCORE_JOB_KEY={key} {settings.entrypoint}"
        )
        options["info"] = dataclasses.replace(options["info"], settings=new_settings)


class TellsEverybodyRank0(Right):
    broken = "workers-receive-rank-and-key"

    def change(self, options: dict[str, Any]) -> None:
        options["variables"] = {**(options["variables"] or {}), "DETCORE_RANK": "0"}


class DropsEmptyLines(Right):
    broken = "lines-arrive-complete"

    def sink(self, on_output: OutputSink) -> OutputSink:
        return lambda rank, stream, line: on_output(rank, stream, line) if line else None


class StripsLines(Right):
    broken = "lines-arrive-complete"

    def sink(self, on_output: OutputSink) -> OutputSink:
        return lambda rank, stream, line: on_output(rank, stream, line.strip())


class JoinsStreams(Right):
    broken = "lines-arrive-with-their-rank"

    def sink(self, on_output: OutputSink) -> OutputSink:
        return lambda rank, stream, line: on_output(rank, "stdout", line)


class ForgetsRanks(Right):
    broken = "lines-arrive-with-their-rank"

    def sink(self, on_output: OutputSink) -> OutputSink:
        return lambda rank, stream, line: on_output(0, stream, line)


class CutsLongLines(Right):
    broken = "lines-arrive-complete"

    def sink(self, on_output: OutputSink) -> OutputSink:
        return lambda rank, stream, line: on_output(rank, stream, line[: 1 << 16])


class DropsWhatIsNoText(Right):
    broken = "lines-arrive-complete"

    def sink(self, on_output: OutputSink) -> OutputSink:
        return lambda rank, stream, line: (
            None if "\ufffd" in line else on_output(rank, stream, line)
        )


class ShowsTheFirstLines(Right):
    broken = "lines-arrive-complete"

    def sink(self, on_output: OutputSink) -> OutputSink:
        lines: list[str] = []

        def pass_line(rank: int, stream: str, line: str) -> None:
            lines.append(line)
            if len(lines) <= 1000:
                on_output(rank, stream, line)

        return pass_line


class TellsTheNewestFirst(Right):
    broken = "events-arrive-in-order"

    class group(Group):
        def poll(self) -> list[WorkerEvent]:
            return super().poll()[::-1]


class EndsTooSoon(Right):
    """Drops the events of exited workers."""

    broken = "events-arrive-before-the-end"

    class group(Group):
        def poll(self) -> list[WorkerEvent]:
            has_ended = not is_running(self.pid)
            events = super().poll()
            return [] if has_ended else events


class NeverWakes(Right):
    broken = "fileno-becomes-readable"

    class group(Group):
        def __init__(self, inner: WorkerGroup) -> None:
            super().__init__(inner)
            self.pipe = os.pipe()

        def fileno(self) -> int:
            return self.pipe[0]

        def close(self) -> int:
            for descriptor in self.pipe:
                os.close(descriptor)
            return super().close()


class PollsPatiently(Right):
    broken = "poll-does-not-wait"

    class group(Group):
        def poll(self) -> list[WorkerEvent]:
            while not (events := super().poll()) and self.is_alive:
                threading.Event().wait(0.01)
            return events


class AnswersNobody(Right):
    broken = "replies-reach-rank-0"

    class group(Group):
        def reply(self, **fields: Any) -> None:
            self.inner.reply(**{name: str(value) for name, value in fields.items()})


class KeepsNothingOpen(Right):
    broken = "kept-descriptors-are-inherited"

    def change(self, options: dict[str, Any]) -> None:
        options["keep_open"] = ()


class AlwaysEndsWell(Right):
    broken = "exit-codes-are-returned"

    class group(Group):
        def close(self) -> int:
            super().close()
            return 0


class TellsCodesAsShellsDo(Right):
    broken = "signal-is-a-negative-exit-code"

    class group(Group):
        def close(self) -> int:
            code = super().close()
            return code if code >= 0 else 128 - code


class BlamesRank0(Right):
    broken = "first-failure-ends-the-group"

    class group(Group):
        @property
        def first_failed(self) -> int | None:
            return None if self.inner.first_failed is None else 0


class TakesComingBackForFailure(Right):
    broken = "exit-75-is-not-a-failure"

    class group(Group):
        def close(self) -> int:
            code = super().close()
            return 1 if code == 75 else code


class SignalsTheChief(Right):
    broken = "signals-reach-all-workers"

    class group(Group):
        def signal(self, number: int = signal.SIGTERM) -> None:
            os.kill(self.pid, number)


class KillsWorkersOnly(Right):
    """Starts child processes in another session, which the launcher does not kill."""

    broken = "kill-ends-child-processes"

    def change(self, options: dict[str, Any]) -> None:
        for path in Path(options["info"].model_dir).glob("program_*.py"):
            text = path.read_text()
            path.write_text(text.replace("stderr=quiet)", "stderr=quiet, start_new_session=True)"))


class LeavesChildren(KillsWorkersOnly):
    broken = "child-processes-end-with-worker"


class OutlivesTheLaunchingProcess(Right):
    """Passes the channel ends of the launching process to another process."""

    broken = "workers-end-with-launching-process"

    class group(Group):
        def __init__(self, inner: WorkerGroup) -> None:
            super().__init__(inner)
            descriptors = [
                int(name) for name in os.listdir("/proc/self/fd") if _is_socket(int(name))
            ]
            self.holder = subprocess.Popen(
                ["sleep", "20"], pass_fds=descriptors, start_new_session=True
            )

        def close(self) -> int:
            self.holder.kill()
            self.holder.wait()
            return super().close()


class LeavesDescriptors(Right):
    broken = "close-releases-resources"

    class group(Group):
        descriptors: ClassVar[list[int]] = []

        def close(self) -> int:
            self.descriptors.append(os.dup(1))
            return super().close()


class LeavesZombies(Right):
    broken = "close-releases-resources"

    class group(Group):
        zombies: ClassVar[list[Any]] = []

        def close(self) -> int:
            watcher = subprocess.Popen(["true"])
            os.waitid(os.P_PID, watcher.pid, os.WEXITED | os.WNOWAIT)
            self.zombies.append(watcher)
            return super().close()


class TellsOneGroupOfAnother(Right):
    broken = "groups-are-independent"

    def __init__(self) -> None:
        super().__init__()
        self.sinks: list[OutputSink] = []

    def sink(self, on_output: OutputSink) -> OutputSink:
        self.sinks.append(on_output)
        return lambda rank, stream, line: self.sinks[-1](rank, stream, line)


class RaisesWhatItGot(Right):
    broken = "start-failure-is-an-error"

    def change(self, options: dict[str, Any]) -> None:
        os.listdir(options["info"].model_dir)


class ClosesByKilling(Right):
    broken = "close-waits-for-workers"

    class group(Group):
        def close(self) -> int:
            self.kill()
            return super().close()


class SignalsTheEnded(Right):
    broken = "calls-after-exit-do-nothing"

    class group(Group):
        def signal(self, number: int = signal.SIGTERM) -> None:
            for pid in self.pids:
                os.kill(pid, number)


class HasOneSession(Right):
    """Returns processes in the launching process's session."""

    broken = "workers-lead-sessions"

    class group(Group):
        def __init__(self, inner: WorkerGroup) -> None:
            super().__init__(inner)
            self.others = [subprocess.Popen(["sleep", "20"]) for _ in inner.pids]

        @property
        def pids(self) -> list[int]:
            return [other.pid for other in self.others]

        def close(self) -> int:
            for other in self.others:
                other.kill()
                other.wait()
            return super().close()


class SetsItsOwnVariables(Right):
    broken = "launching-process-is-unchanged"

    def change(self, options: dict[str, Any]) -> None:
        change_environment(options["variables"] or {})


class PrintsFromAllThreads(Right):
    """Starts a thread for each line."""

    broken = "lines-arrive-with-their-rank"

    def sink(self, on_output: OutputSink) -> OutputSink:
        def take(rank: int, stream: str, line: str) -> None:
            threading.Thread(target=on_output, args=(rank, stream, line)).start()

        return take


class LeavesNoPlugin(Right):
    """Passes "all plugins" as "no plugin"."""

    broken = "variables-are-passed"

    def change(self, options: dict[str, Any]) -> None:
        options["allowed_plugins"] = options["allowed_plugins"] or frozenset()


class CountsItsMachineWrongly(Right):
    broken = "workers-receive-rank-and-key"

    def change(self, options: dict[str, Any]) -> None:
        options["variables"] = {**(options["variables"] or {}), "DETCORE_LOCAL_SIZE": "1"}


def _is_socket(descriptor: int) -> bool:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:")
    return False


WRONG: tuple[type[Right], ...] = tuple(
    value for value in list(globals().values())
    if isinstance(value, type) and issubclass(value, Right) and value.broken
)  # fmt: skip


def make_suite(launcher: type[Right]) -> type[LauncherSuite]:
    """Return a suite for a launcher."""

    class Suite(LauncherSuite):
        timeout_s = 12.0

        def make_launcher(self) -> Launcher:
            return launcher()

    return Suite
