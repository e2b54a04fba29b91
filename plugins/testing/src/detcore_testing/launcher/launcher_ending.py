"""Clauses for launchers: how workers end, and that nothing of them stays."""

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
    forked,
    is_running,
    kill,
    num_descriptors,
    wait_until_gone,
    zombies,
)
from detcore_testing.suite_clauses import clause, expect_equal, expect_error

_CODES = (0, 3, 65, 75)
_FOR_EVER = "print('waits', flush=True)\ntime.sleep(600)\n"
_WITH_CHILD = "print(sleeper(), flush=True)\n"


def _all_wait(run: LauncherRun, slots: int = 1) -> None:
    run.until(
        lambda: all("waits" in run.printed(rank) for rank in range(slots)), "all workers wait"
    )


class EndingClauses(LauncherAccess):
    """Clauses on exit codes, signals, deaths, and leftovers."""

    @clause("exit-codes-are-returned", "close returns the worker's exit code")
    def test_exit_codes_are_returned(self, tmp_path: Path) -> None:
        """End with several codes."""
        for code in _CODES:
            with self.started(tmp_path, f"sys.exit({code})") as run:
                expect_equal(run.finish(), code, f"what close returned after exit code {code}")
                failed = 0 if code not in (0, 75) else None
                expect_equal(run.group.first_failed, failed, f"first_failed after code {code}")

    @clause(
        "signal-is-a-negative-exit-code",
        "close returns the negative number of the signal that killed the worker",
        capability="local-processes",
    )
    def test_signal_is_a_negative_exit_code(self, tmp_path: Path) -> None:
        """Kill the worker from outside."""
        with self.started(tmp_path, _FOR_EVER) as run:
            _all_wait(run)
            os.kill(run.group.pid, signal.SIGKILL)
            expect_equal(run.finish(), -signal.SIGKILL, "what close returned")
            expect_equal(run.group.first_failed, 0, "first_failed")

    @clause(
        "first-failure-ends-the-group",
        "when a worker fails, the other workers are terminated, or killed if they ignore SIGTERM, "
        "and its exit code and rank are returned",
        capability="several-workers",
    )
    def test_first_failure_ends_the_group(self, tmp_path: Path) -> None:
        """Let rank 1 of three fail while the others wait, one of which ignores SIGTERM."""
        program = (
            "if RANK == 0:\n    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            "if RANK == 1:\n    time.sleep(1)\n    sys.exit(5)\n"
            f"{_FOR_EVER}"
        )
        with self.started(tmp_path, program, slots=3) as run:
            expect_equal(run.finish(), 5, "what close returned")
            expect_equal(run.group.first_failed, 1, "first_failed")
            left = [pid for pid in run.group.pids if is_running(pid)]
            expect_equal(left, [], "workers that are left")

    @clause(
        "exit-75-is-not-a-failure",
        "exit code 75 is not a failure: the other workers continue, and close returns 75",
        capability="several-workers",
    )
    def test_exit_75_is_not_a_failure(self, tmp_path: Path) -> None:
        """Let rank 1 come back later, and rank 0 continue."""
        program = "if RANK == 1:\n    sys.exit(75)\ntell(number=1)\nask()\nprint('went on')"
        with self.started(tmp_path, program, slots=2) as run:

            def has_ended() -> bool:
                other = run.group.pids[1]  # 0 before it starts
                return bool(run.events and other and not is_running(other))

            run.until(has_ended, "rank 1 has ended")
            run.group.reply(go="on")
            expect_equal(run.finish(), 75, "what close returned")
            expect_equal(run.group.first_failed, None, "first_failed")
            expect_equal(run.printed(0), ["went on"], "what rank 0 printed afterwards")

    @clause("close-waits-for-workers", "close waits for the workers to exit and does not end them")
    def test_close_waits_for_workers(self, tmp_path: Path) -> None:
        """Close while a worker has something to do still."""
        program = "print('begins', flush=True)\ntime.sleep(1)\nprint('ends')\nsys.exit(3)"
        with self.started(tmp_path, program) as run:
            run.until(run.printed, "the worker prints that it begins")
            expect_equal(run.close(), 3, "what close returned")
            expect_equal(run.printed(), ["begins", "ends"], "what the worker printed")

    @clause(
        "calls-after-exit-do-nothing",
        "signal, kill and reply do nothing after all workers have exited",
    )
    def test_calls_after_exit_do_nothing(self, tmp_path: Path) -> None:
        """Call them between the end and close."""
        with self.started(tmp_path, "print('ends')") as run:
            run.until(lambda: not run.group.is_alive, "the worker has ended")
            run.group.signal()
            run.group.reply(late=True)
            run.group.kill()
            expect_equal(run.finish(), 0, "what close returned")

    @clause(
        "workers-lead-sessions",
        "each worker leads a session, so Ctrl-C in the terminal does not reach it",
        capability="local-processes",
    )
    def test_workers_lead_sessions(self, tmp_path: Path) -> None:
        """Ask the system."""
        with self.started(tmp_path, _FOR_EVER, slots=self.few_slots) as run:
            _all_wait(run, self.few_slots)
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
        """Look before, while a worker runs, and after."""
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGUSR1)

        def look() -> tuple[dict[str, str], str, list[object]]:
            return child_environment({}), os.getcwd(), [signal.getsignal(each) for each in signals]

        with self.started(tmp_path, "print('before')") as run:
            run.finish()
        before = look()
        with self.started(tmp_path, "tell(number=1)\nask()", variables={"SUITE_NEW": "1"}) as run:
            run.until(lambda: run.events, "the worker tells something")
            meanwhile = look()
            run.group.reply(go="on")
            run.finish()
        for when, found in (("while a worker runs", meanwhile), ("afterwards", look())):
            changed = sorted({name for name, _ in found[0].items() ^ before[0].items()})
            expect_equal(changed, [], f"the variables that are others {when}")
            expect_equal(found[1:], before[1:], f"working directory and signal handlers {when}")

    @clause("signals-reach-all-workers", "signal reaches every worker and sends SIGTERM by default")
    def test_signals_reach_all_workers(self, tmp_path: Path) -> None:
        """Send SIGUSR1, and then the default."""
        program = (
            "signal.signal(signal.SIGUSR1, lambda n, f: print('usr1', flush=True))\n"
            "signal.signal(signal.SIGTERM, lambda n, f: sys.exit(75))\n"
            "print('waits', flush=True)\nwhile True:\n    time.sleep(0.02)\n"
        )
        with self.started(tmp_path, program, slots=self.few_slots) as run:
            _all_wait(run, self.few_slots)
            run.group.signal(signal.SIGUSR1)
            run.until(
                lambda: all("usr1" in run.printed(rank) for rank in range(self.few_slots)),
                "SIGUSR1 has reached all workers",
            )
            run.group.signal()
            expect_equal(run.finish(), 75, "what close returned after SIGTERM")

    @clause(
        "kill-ends-child-processes",
        "kill ends the workers and the processes that they started",
        capability="local-processes",
    )
    def test_kill_ends_child_processes(self, tmp_path: Path) -> None:
        """Kill a worker that has a child."""
        with self.started(tmp_path, _WITH_CHILD + _FOR_EVER) as run:
            _all_wait(run)
            pids = [int(run.printed()[0]), *run.group.pids]
            with _nothing_left(pids):
                run.group.kill()
                assert run.finish() != 0, "close returned 0 for workers that were killed"
                expect_equal(
                    wait_until_gone(pids, self.timeout_s / 8), [], "the processes that are left"
                )

    @clause(
        "child-processes-end-with-worker",
        "processes that a worker started end when the worker exits, even with code 0",
        capability="local-processes",
    )
    def test_child_processes_end_with_worker(self, tmp_path: Path) -> None:
        """Leave a child behind."""
        with self.started(tmp_path, _WITH_CHILD) as run:
            run.succeed()
            child = int(run.printed()[0])
            with _nothing_left([child]):
                expect_equal(
                    wait_until_gone([child], self.timeout_s / 8), [], "the processes that are left"
                )

    @clause(
        "workers-end-with-launching-process",
        "workers and their child processes end when the launching process is killed",
        capability="local-processes",
    )
    def test_workers_end_with_launching_process(self, tmp_path: Path) -> None:
        """Kill a process that has started workers."""
        read_end, write_end = os.pipe()

        def launch() -> None:
            os.close(read_end)
            with self.started(tmp_path, _WITH_CHILD + _FOR_EVER, slots=self.few_slots) as run:
                _all_wait(run, self.few_slots)
                children = [run.printed(rank)[0] for rank in range(self.few_slots)]
                pids = " ".join([*children, *map(str, run.group.pids)])
                os.write(write_end, f"{pids}\n".encode())
                run.until(lambda: False, "this process is killed")

        runner = forked(launch)
        os.close(write_end)
        with open(read_end, encoding="ascii") as reading:
            pids = [int(word) for word in reading.readline().split()]
        with _nothing_left(pids):
            os.kill(runner, signal.SIGKILL)
            os.waitpid(runner, 0)
            expect_equal(len(pids), 2 * self.few_slots, "the number of processes that were started")
            left = wait_until_gone(pids, self.timeout_s / 8)
            expect_equal(left, [], "the processes that outlive the one that started them")

    @clause(
        "close-releases-resources",
        "finished trials leave no descriptor, no thread and no zombie process",
    )
    def test_close_releases_resources(self, tmp_path: Path) -> None:
        """Run some trials one after the other."""
        program = "tell(number=1)\nprint('printed')\nsys.exit(75 * RANK)"
        counts = []
        for _ in range(4):
            with self.started(tmp_path, program, slots=self.few_slots) as run:
                run.finish()
                waiting = zombies()
            counts.append((num_descriptors(), threading.active_count(), len(waiting)))
        # Fewer are no leak: the process may close descriptors of an earlier test.
        growth = [max(last - first, 0) for first, last in zip(counts[0], counts[-1], strict=True)]
        expect_equal(
            growth, [0, 0, 0], "the growth of descriptors, threads and zombies over three trials"
        )

    @clause("groups-are-independent", "the workers of concurrent trials do not affect each other")
    def test_groups_are_independent(self, tmp_path: Path) -> None:
        """Let one trial fail while another one continues."""
        launcher = self.make_launcher()
        waits = "tell(number=1)\nprint(json.dumps(ask()))"
        fails = "tell(number=2)\nprint('fails')\nsys.exit(4)"
        try:
            with (
                self.running(launcher, tmp_path, waits) as one,
                self.running(launcher, tmp_path, fails) as other,
            ):
                expect_equal(other.finish(), 4, "the exit code of the one that fails")
                one.until(lambda: one.events, "the other one tells something")
                assert one.group.is_alive, "the other one has ended, too"
                one.group.reply(go="on")
                expect_equal(one.finish(), 0, "the exit code of the one that goes on")
                told = [event["number"] for event in (*one.events, *other.events)]
                expect_equal(told, [1, 2], "the events of both")
                expect_equal(one.printed(), ['{"go": "on"}'], "what the one printed")
                expect_equal(other.printed(), ["fails"], "what the other one printed")
        finally:
            launcher.close()

    @clause("start-failure-is-an-error", "a worker that cannot be started raises WorkerError")
    def test_start_failure_is_an_error(self, tmp_path: Path) -> None:
        """Start in a folder that is gone."""
        launcher = self.make_launcher()
        try:
            info = self.make_info(tmp_path, "print('never')")
            gone = dataclasses.replace(info, model_dir=str(tmp_path / "suite-gone"))
            home = self.make_folder(tmp_path) / "home"
            before = num_descriptors()
            with expect_error(WorkerError, "start in a folder that does not exist"):
                launcher.start(gone, home=home, on_output=_ignore)
            added = max(num_descriptors() - before, 0)
            expect_equal(added, 0, "the descriptors that a start that failed has left open")
        finally:
            launcher.close()


def _ignore(rank: int, stream: str, line: str) -> None:
    """Take a line, and forget it."""


@contextlib.contextmanager
def _nothing_left(pids: list[int]) -> Iterator[None]:
    """Kill processes after a block, if they are still there: a test must not leave them."""
    try:
        yield
    finally:
        kill(filter(is_running, pids))
