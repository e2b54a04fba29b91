"""Launcher clauses on worker exits and leftover resources."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

from detcore.environment import child_environment
from detcore.errors import WorkerError
from detcore_testing.launcher.launcher_access import LauncherAccess, LauncherRun
from detcore_testing.processes import (
    fork_call,
    is_running,
    kill_processes,
    list_zombies,
    num_descriptors,
    wait_until_exited,
)
from detcore_testing.suite_clauses import clause, expect_equal, expect_error

_CODES = (0, 3, 65, 75)
_WAIT_FOREVER = "print('waits', flush=True)\ntime.sleep(600)\n"
_WITH_CHILD = "print(start_sleeper(), flush=True)\n"


def _wait_for_all(run: LauncherRun, slots: int = 1) -> None:
    run.wait_until(
        lambda: all("waits" in run.lines_of_rank(rank) for rank in range(slots)), "all workers wait"
    )


class EndingClauses(LauncherAccess):
    """Clauses on exit codes, signals, kills and leftovers."""

    @clause("exit-codes-are-returned", "close returns the worker's exit code")
    def test_exit_codes_are_returned(self, tmp_path: Path) -> None:
        """Exit with several codes."""
        for code in _CODES:
            with self.start_workers(tmp_path, f"sys.exit({code})") as run:
                expect_equal(run.finish(), code, f"the result of close after exit code {code}")
                failed_rank = 0 if code not in (0, 75) else None
                expect_equal(run.group.first_failed, failed_rank, f"first_failed after {code}")

    @clause(
        "signal-is-a-negative-exit-code",
        "close returns the negative number of the signal that killed the worker",
        capability="local-processes",
    )
    def test_signal_is_a_negative_exit_code(self, tmp_path: Path) -> None:
        """Kill the worker from the test process."""
        with self.start_workers(tmp_path, _WAIT_FOREVER) as run:
            _wait_for_all(run)
            os.kill(run.group.pid, signal.SIGKILL)
            expect_equal(run.finish(), -signal.SIGKILL, "the result of close")
            expect_equal(run.group.first_failed, 0, "first_failed")

    @clause(
        "first-failure-ends-the-group",
        "when a worker fails, the other workers are terminated, or killed if they ignore SIGTERM, "
        "and its exit code and rank are returned",
        capability="several-workers",
    )
    def test_first_failure_ends_the_group(self, tmp_path: Path) -> None:
        """Let rank 1 of three fail while the others wait. Rank 0 ignores SIGTERM."""
        program = (
            "if RANK == 0:\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "if RANK == 1:\n    time.sleep(1)\n    sys.exit(5)\n"
            f"{_WAIT_FOREVER}"
        )
        with self.start_workers(tmp_path, program, slots=3) as run:
            expect_equal(run.finish(), 5, "the result of close")
            expect_equal(run.group.first_failed, 1, "first_failed")
            survivors = [pid for pid in run.group.pids if is_running(pid)]
            expect_equal(survivors, [], "the surviving workers")

    @clause(
        "exit-75-is-not-a-failure",
        "exit code 75 is not a failure: the other workers continue, and close returns 75",
        capability="several-workers",
    )
    def test_exit_75_is_not_a_failure(self, tmp_path: Path) -> None:
        """Let rank 1 exit with code 75 and rank 0 continue."""
        program = "if RANK == 1:\n    sys.exit(75)\nsend(number=1)\nreceive()\nprint('continued')"
        with self.start_workers(tmp_path, program, slots=2) as run:

            def has_exited() -> bool:
                pid = run.group.pids[1]  # 0 before the worker starts
                return bool(run.events and pid and not is_running(pid))

            run.wait_until(has_exited, "rank 1 has exited")
            run.group.reply(go="on")
            expect_equal(run.finish(), 75, "the result of close")
            expect_equal(run.group.first_failed, None, "first_failed")
            expect_equal(run.lines_of_rank(0), ["continued"], "the later output of rank 0")

    @clause("close-waits-for-workers", "close waits for the workers to exit and does not end them")
    def test_close_waits_for_workers(self, tmp_path: Path) -> None:
        """Close while a worker is still running."""
        program = "print('starts', flush=True)\ntime.sleep(1)\nprint('ends')\nsys.exit(3)"
        with self.start_workers(tmp_path, program) as run:
            run.wait_until(run.lines_of_rank, "the worker starts")
            expect_equal(run.close(), 3, "the result of close")
            expect_equal(run.lines_of_rank(), ["starts", "ends"], "the worker's output")

    @clause(
        "calls-after-exit-do-nothing",
        "signal, kill and reply do nothing after all workers have exited",
    )
    def test_calls_after_exit_do_nothing(self, tmp_path: Path) -> None:
        """Call the methods between worker exit and close."""
        with self.start_workers(tmp_path, "print('ends')") as run:
            run.wait_until(lambda: not run.group.is_alive, "the worker has exited")
            run.group.signal()
            run.group.reply(late=True)
            run.group.kill()
            expect_equal(run.finish(), 0, "the result of close")

    @clause(
        "workers-lead-sessions",
        "each worker leads a session, so Ctrl-C in the terminal does not reach it",
        capability="local-processes",
    )
    def test_workers_lead_sessions(self, tmp_path: Path) -> None:
        """Compare session ids with process ids."""
        with self.start_workers(tmp_path, _WAIT_FOREVER, slots=self.few_slots) as run:
            _wait_for_all(run, self.few_slots)
            pids = run.group.pids
            expect_equal([os.getsid(pid) for pid in pids], pids, "the sessions of the workers")
            run.group.kill()
            run.finish()

    @clause(
        "launching-process-is-unchanged",
        "start changes no environment variable, signal handler or working directory of the "
        "launching process",
    )
    def test_launching_process_is_unchanged(self, tmp_path: Path) -> None:
        """Compare the process state before, during and after a run."""
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGUSR1)

        def read_state() -> tuple[dict[str, str], str, list[object]]:
            return child_environment({}), os.getcwd(), list(map(signal.getsignal, signals))

        with self.start_workers(tmp_path, "print('before')") as run:
            run.finish()
        before = read_state()
        with self.start_workers(
            tmp_path, "send(number=1)\nreceive()", variables={"SUITE_NEW": "1"}
        ) as run:
            run.wait_until(lambda: run.events, "the worker sends an event")
            during = read_state()
            run.group.reply(go="on")
            run.finish()
        for when, state in (("during the run", during), ("after the run", read_state())):
            names = sorted({name for name, _ in state[0].items() ^ before[0].items()})
            expect_equal(names, [], f"the changed variables {when}")
            expect_equal(state[1:], before[1:], f"working directory and signal handlers {when}")

    @clause("signals-reach-all-workers", "signal reaches every worker and sends SIGTERM by default")
    def test_signals_reach_all_workers(self, tmp_path: Path) -> None:
        """Send SIGUSR1, then the default signal."""
        program = (
            "signal.signal(signal.SIGUSR1, lambda n, f: print('usr1', flush=True))\n"
            "signal.signal(signal.SIGTERM, lambda n, f: sys.exit(75))\n"
            "print('waits', flush=True)\nwhile True:\n    time.sleep(0.02)\n"
        )
        with self.start_workers(tmp_path, program, slots=self.few_slots) as run:
            _wait_for_all(run, self.few_slots)
            run.group.signal(signal.SIGUSR1)
            run.wait_until(
                lambda: all("usr1" in run.lines_of_rank(rank) for rank in range(self.few_slots)),
                "SIGUSR1 has reached all workers",
            )
            run.group.signal()
            expect_equal(run.finish(), 75, "the result of close after SIGTERM")

    @clause(
        "kill-ends-child-processes",
        "kill ends the workers and the processes that they started",
        capability="local-processes",
    )
    def test_kill_ends_child_processes(self, tmp_path: Path) -> None:
        """Kill a worker that has a child process."""
        with self.start_workers(tmp_path, _WITH_CHILD + _WAIT_FOREVER) as run:
            _wait_for_all(run)
            pids = [int(run.lines_of_rank()[0]), *run.group.pids]
            with _kill_survivors(pids):
                run.group.kill()
                assert run.finish() != 0, "close returned 0 for killed workers"
                expect_equal(
                    wait_until_exited(pids, self.timeout_s / 8), [], "the surviving processes"
                )

    @clause(
        "child-processes-end-with-worker",
        "processes that a worker started end when the worker exits, even with code 0",
        capability="local-processes",
    )
    def test_child_processes_end_with_worker(self, tmp_path: Path) -> None:
        """Exit without waiting for a child process."""
        with self.start_workers(tmp_path, _WITH_CHILD) as run:
            run.succeed()
            child = int(run.lines_of_rank()[0])
            with _kill_survivors([child]):
                expect_equal(
                    wait_until_exited([child], self.timeout_s / 8), [], "the surviving processes"
                )

    @clause(
        "workers-end-with-launching-process",
        "workers and their child processes end when the launching process is killed",
        capability="local-processes",
    )
    def test_workers_end_with_launching_process(self, tmp_path: Path) -> None:
        """Kill the process that started the workers."""
        read_end, write_end = os.pipe()

        def launch() -> None:
            os.close(read_end)
            with self.start_workers(
                tmp_path, _WITH_CHILD + _WAIT_FOREVER, slots=self.few_slots
            ) as run:
                _wait_for_all(run, self.few_slots)
                children = [run.lines_of_rank(rank)[0] for rank in range(self.few_slots)]
                pids = " ".join([*children, *map(str, run.group.pids)])
                os.write(write_end, f"{pids}\n".encode())
                run.wait_until(lambda: False, "this process is killed")

        runner = fork_call(launch)
        os.close(write_end)
        with open(read_end, encoding="ascii") as reader:
            pids = [int(word) for word in reader.readline().split()]
        with _kill_survivors(pids):
            os.kill(runner, signal.SIGKILL)
            os.waitpid(runner, 0)
            expect_equal(len(pids), 2 * self.few_slots, "the number of started processes")
            survivors = wait_until_exited(pids, self.timeout_s / 8)
            expect_equal(survivors, [], "the surviving processes")

    @clause(
        "close-releases-resources",
        "finished trials leave no descriptor, no thread and no zombie process",
    )
    def test_close_releases_resources(self, tmp_path: Path) -> None:
        """Run four trials one after the other."""
        program = "send(number=1)\nprint('printed')\nsys.exit(75 * RANK)"
        counts = []
        for _ in range(4):
            with self.start_workers(tmp_path, program, slots=self.few_slots) as run:
                run.finish()
                zombies = list_zombies()
            counts.append((num_descriptors(), threading.active_count(), len(zombies)))
        # Counts may fall, because the process may close descriptors of an earlier test.
        growth = [max(last - first, 0) for first, last in zip(counts[0], counts[-1], strict=True)]
        expect_equal(
            growth, [0, 0, 0], "the growth of descriptors, threads and zombies over three trials"
        )

    @clause("groups-are-independent", "the workers of concurrent trials do not affect each other")
    def test_groups_are_independent(self, tmp_path: Path) -> None:
        """Let one trial fail while another trial continues."""
        launcher = self.make_launcher()
        waits = "send(number=1)\nprint(json.dumps(receive()))"
        fails = "send(number=2)\nprint('fails')\nsys.exit(4)"
        try:
            with (
                self.start_with(launcher, tmp_path, waits) as waiting,
                self.start_with(launcher, tmp_path, fails) as failing,
            ):
                expect_equal(failing.finish(), 4, "the exit code of the failing trial")
                waiting.wait_until(lambda: waiting.events, "the waiting trial sends an event")
                assert waiting.group.is_alive, "the waiting trial has also ended"
                waiting.group.reply(go="on")
                expect_equal(waiting.finish(), 0, "the exit code of the waiting trial")
                numbers = [event["number"] for event in (*waiting.events, *failing.events)]
                expect_equal(numbers, [1, 2], "the events of both trials")
                expect_equal(
                    waiting.lines_of_rank(), ['{"go": "on"}'], "the waiting trial's output"
                )
                expect_equal(failing.lines_of_rank(), ["fails"], "the failing output")
        finally:
            launcher.close()

    @clause("start-failure-is-an-error", "a worker that cannot be started raises WorkerError")
    def test_start_failure_is_an_error(self, tmp_path: Path) -> None:
        """Start in a directory that does not exist."""
        launcher = self.make_launcher()
        try:
            info = self.make_info(tmp_path, "print('never')")
            bad_info = dataclasses.replace(info, model_dir=str(tmp_path / "suite-missing"))
            home = self.make_folder(tmp_path) / "home"
            before = num_descriptors()
            with expect_error(WorkerError, "start in a directory that does not exist"):
                launcher.start(bad_info, home=home, on_output=_ignore_line)
            added = max(num_descriptors() - before, 0)
            expect_equal(added, 0, "the descriptors that the failed start left open")
        finally:
            launcher.close()


def _ignore_line(rank: int, stream: str, line: str) -> None:
    """Ignore an output line."""


@contextlib.contextmanager
def _kill_survivors(pids: list[int]) -> Iterator[None]:
    """Kill processes that are still running after the block."""
    try:
        yield
    finally:
        kill_processes(filter(is_running, pids))
