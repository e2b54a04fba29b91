"""Launcher clauses on data for workers, and on their output and events."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import threading
from pathlib import Path
from typing import Any

from detcore.environment import child_environment
from detcore.launch import WorkerEvent
from detcore_testing.launcher.launcher_access import LauncherAccess
from detcore_testing.processes import is_running
from detcore_testing.suite_clauses import clause, expect_equal

_MANY_LINES = 5000
_MANY_EVENTS = 400
_LONG_LINE = 1_000_000
_RANKS = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
_PRINT_VARIABLES = """
names = {names!r}
print(json.dumps({{name: os.environ.get(name) for name in names}}))
"""


def _check_ranks(environments: list[dict[str, str]]) -> None:
    """Check that the ranks of a trial's workers are consistent."""
    workers = [{name: int(env[f"DETCORE_{name}"]) for name in _RANKS} for env in environments]
    machines = [worker["CROSS_RANK"] for worker in workers]
    for worker in workers:
        num_local = machines.count(worker["CROSS_RANK"])
        expect_equal(worker["LOCAL_SIZE"], num_local, f"DETCORE_LOCAL_SIZE in {worker}")
        assert 0 <= worker["LOCAL_RANK"] < num_local, f"DETCORE_LOCAL_RANK is too large: {worker}"
        assert 0 <= worker["CROSS_RANK"] < worker["CROSS_SIZE"], f"DETCORE_CROSS_RANK in {worker}"
    positions = {(worker["CROSS_RANK"], worker["LOCAL_RANK"]) for worker in workers}
    expect_equal(len(positions), len(workers), f"the number of different positions in {workers}")


class MessageClauses(LauncherAccess):
    """Clauses on variables, output, events and replies."""

    @clause(
        "workers-receive-trial-info",
        "DETCORE_TRIAL_INFO contains every field of TrialInfo, DETCORE_HOME and the directory are "
        "those of the trial, and the standard input is empty",
    )
    def test_workers_receive_trial_info(self, tmp_path: Path) -> None:
        """Compare a worker's trial, directory and variables with the launcher's arguments."""
        program = (
            "path = os.environ['DETCORE_TRIAL_INFO']\n"
            "print(json.dumps([os.getcwd(), os.environ['DETCORE_HOME'], json.load(open(path)),\n"
            "                  os.stat(path).st_mode & 0o077, sys.stdin.read()]))\n"
        )
        with self.start_workers(tmp_path, program) as run:
            run.succeed()
            (line,) = run.lines_of_rank()
        directory, home, info, mode, standard_input = json.loads(line)
        expect_equal(home, str(self.make_folder(tmp_path) / "home"), "DETCORE_HOME")
        expect_equal(os.path.realpath(directory), os.path.realpath(info["model_dir"]), "directory")
        expect_equal(info, dataclasses.asdict(run.info), "DETCORE_TRIAL_INFO")
        expect_equal(mode, 0, "the file's permissions for group and others")
        expect_equal(standard_input, "", "the worker's standard input")

    @clause(
        "workers-receive-rank-and-key",
        "every worker receives its rank, the number of workers, and a key that all workers share",
        capability="several-workers",
    )
    def test_workers_receive_rank_and_key(self, tmp_path: Path) -> None:
        """Start three workers twice."""
        names = [f"DETCORE_{name}" for name in (*_RANKS, "JOB_KEY", "CHANNEL_FD")]
        program = _PRINT_VARIABLES.format(names=names)
        keys = []
        for _ in range(2):
            with self.start_workers(tmp_path, program, slots=3) as run:
                expect_equal(len(run.group.pids), 3, "the number of process ids")
                expect_equal(run.group.pid, run.group.pids[0], "the process id of rank 0")
                run.succeed()
                environments = [json.loads(run.lines_of_rank(rank)[0]) for rank in range(3)]
            for rank, env in enumerate(environments):
                expect_equal(env["DETCORE_RANK"], str(rank), f"DETCORE_RANK of rank {rank}")
                expect_equal(env["DETCORE_SIZE"], "3", "DETCORE_SIZE")
                assert all(env[f"DETCORE_{name}"] for name in _RANKS), f"a rank is missing: {env}"
                assert env["DETCORE_CHANNEL_FD"], f"rank {rank} has no channel to the runner"
            _check_ranks(environments)
            job_keys = {env["DETCORE_JOB_KEY"] for env in environments}
            assert (len(job_keys), "" in job_keys) == (1, False), f"the workers' keys: {job_keys}"
            keys.append(job_keys.pop())
        assert keys[0] != keys[1], "two jobs have the same DETCORE_JOB_KEY"

    @clause(
        "variables-are-passed",
        "workers receive `variables`, the environment of the launching process, and the names of "
        "enabled and disabled plugins",
    )
    def test_variables_are_passed(self, tmp_path: Path) -> None:
        """Pass variables, override one, and disable plugins. Then pass nothing."""
        variables = {"SUITE_NEW": "a b=c\n\u00fc", "HOME": "/suite"}
        plugins = {"DETCORE_DISABLE_PLUGINS": "tape", "DETCORE_PLUGINS": "wax"}
        program = _PRINT_VARIABLES.format(names=[*variables, *plugins, "PATH"])
        all_options: dict[str, Any] = {
            "variables": variables,
            "disabled_plugins": frozenset(["tape"]),
            "allowed_plugins": frozenset(["wax"]),
        }
        environments = []
        for options in (all_options, {}):
            with self.start_workers(tmp_path, program, **options) as run:
                run.succeed()
                environments.append(json.loads(run.lines_of_rank()[0]))
        assert environments[0].pop("PATH"), "the environment of the launching process is missing"
        expect_equal(environments[0], {**variables, **plugins}, "the passed variables")
        # An empty value would disable all plugins.
        expect_equal(
            environments[1]["DETCORE_PLUGINS"],
            child_environment({}).get("DETCORE_PLUGINS"),
            "DETCORE_PLUGINS if allowed_plugins is None",
        )

    @clause(
        "lines-arrive-complete",
        "each line arrives once, complete, before close returns, whatever its length and the "
        "pieces it was written in, and bytes that are not UTF-8 are replaced",
    )
    def test_lines_arrive_complete(self, tmp_path: Path) -> None:
        """Write pieces, an empty line, Latin-1, a long line, many lines, and no final newline."""
        program = (
            "os.write(1, b'first ')\nsend(did='half')\nreceive()\n"
            "os.write(1, b'line\\n\\nsecond\\r\\n  third\\ncaf\\xe9 \\xff.\\n')\n"
            f"print('x' * {_LONG_LINE}, flush=True)\n"
            f"print(*range({_MANY_LINES}), sep='\\n', flush=True)\n"
            "os.write(1, b'next \\xc3\\xbc')\n"
        )
        with self.start_workers(tmp_path, program) as run:
            run.wait_until(lambda: run.events, "the worker reports half a line")
            run.group.reply(go="on")
            run.succeed()
            *lines, latin_line, long_line = run.lines_of_rank()[:6]
            *many_lines, last_line = run.lines_of_rank()[6:]
            expect_equal(lines, ["first line", "", "second", "  third"], "the lines")
            expect_equal(many_lines, list(map(str, range(_MANY_LINES))), "the many lines")
            assert (latin_line[:3], latin_line[-1:]) == ("caf", "."), (
                f"the Latin-1 line: {latin_line!r}"
            )
            expect_equal(len(long_line), _LONG_LINE, "the length of the long line")
            expect_equal(last_line, "next \u00fc", "the last line")

    @clause(
        "lines-arrive-with-their-rank",
        "lines arrive with their stream and the worker's rank, in one call of on_output at a time",
    )
    def test_lines_arrive_with_their_rank(self, tmp_path: Path) -> None:
        """Let two workers print concurrently to both streams, and process lines slowly."""
        program = (
            "for i in range(50):\n"
            "    print(RANK, i, flush=True)\n    print(-i, file=sys.stderr, flush=True)"
        )
        with self.start_workers(tmp_path, program, slots=self.few_slots) as run:
            run.delay_s = 0.002
            run.succeed()
            expect_equal(run.overlaps, 0, "the number of overlapping on_output calls")
            for rank in range(self.few_slots):
                expect_equal(
                    (run.lines_of_rank(rank), run.lines_of_rank(rank, "stderr")),
                    ([f"{rank} {i}" for i in range(50)], [f"{-i}" for i in range(50)]),
                    f"the lines of rank {rank} on stdout and stderr",
                )

    @clause(
        "events-arrive-in-order",
        "each event arrives once, complete and in order, including large events",
    )
    def test_events_arrive_in_order(self, tmp_path: Path) -> None:
        """Send small events and a large event, and exit immediately."""
        # The trial's own events share the channel, so each event must fit in one pipe write.
        size = 3000 if self.as_trial_class else 300_000
        program = (
            f"for i in range({_MANY_EVENTS}):\n    send(number=i, text='y' * ({size} * (i == 7)))"
        )
        with self.start_workers(tmp_path, program) as run:
            run.succeed()
            numbers = [event["number"] for event in run.events]
            expect_equal(numbers, list(range(_MANY_EVENTS)), "the events")
            expect_equal(len(run.events[7]["text"]), size, "the size of the large event")

    @clause("events-arrive-before-the-end", "is_alive is true until all events have been returned")
    def test_events_arrive_before_the_end(self, tmp_path: Path) -> None:
        """Poll only after the worker has exited."""
        program = "send(number=1)\nsend(number=2)\nprint('sent', flush=True)"
        with self.start_workers(tmp_path, program) as run:
            run.wait_until(run.lines_of_rank, "the worker has sent its events", polls=False)
            if "local-processes" not in self.declined:
                pid = run.group.pid
                run.wait_until(lambda: not is_running(pid), "the worker has exited", polls=False)
            assert run.group.is_alive, "is_alive is false before all events were returned"
            run.succeed()
            expect_equal([event["number"] for event in run.events], [1, 2], "the events")

    @clause(
        "fileno-becomes-readable",
        "fileno is readable while an event is pending and after the worker has exited",
    )
    def test_fileno_becomes_readable(self, tmp_path: Path) -> None:
        """Wait for the descriptor without polling the group."""
        program = "send(number=1)\nprint('sent', flush=True)\nreceive()\nprint('over', flush=True)"
        with self.start_workers(tmp_path, program) as run:
            run.wait_until(run.lines_of_rank, "the worker has sent its events", polls=False)
            ready, _, _ = select.select([run.group.fileno()], [], [], self.timeout_s / 8)
            assert ready, "fileno is not readable while an event is pending"
            run.record_events(run.group.poll())
            expect_equal(len(run.events), 1, "the number of events")
            run.group.reply(go="on")
            ready, _, _ = select.select([run.group.fileno()], [], [], self.timeout_s)
            assert ready, "fileno is not readable after the worker has exited"
            run.finish()

    @clause("poll-does-not-wait", "poll returns immediately if no event is pending")
    def test_poll_does_not_wait(self, tmp_path: Path) -> None:
        """Poll while the worker waits for a reply."""
        with self.start_workers(tmp_path, "send(number=1)\nreceive()") as run:
            run.wait_until(lambda: run.events, "the worker sends an event")
            results: list[list[WorkerEvent]] = []
            poller = threading.Thread(target=lambda: results.append(run.group.poll()), daemon=True)
            poller.start()
            poller.join(self.timeout_s / 8)
            is_blocked = poller.is_alive()
            run.group.reply(go="on")
            poller.join()
            assert not is_blocked, "poll waits for an event"
            run.finish()

    @clause("replies-reach-rank-0", "reply sends rank 0 one line of JSON")
    def test_replies_reach_rank_0(self, tmp_path: Path) -> None:
        """Reply twice."""
        program = "for _ in range(2):\n    send(number=1)\n    print(json.dumps(receive()))"
        answers: list[dict[str, Any]] = [
            {"a": 1, "text": "\u00fc\n"},
            {"type": "end", "list": [None, True, 0.5]},
        ]
        with self.start_workers(tmp_path, program) as run:
            for answer in answers:
                run.wait_until(lambda: run.events, "the worker sends a request")
                run.events.clear()
                run.group.reply(**answer)
            run.succeed()
            expect_equal([json.loads(line) for line in run.lines_of_rank()], answers, "the answers")

    @clause(
        "kept-descriptors-are-inherited",
        "rank 0 holds the descriptors of keep_open open as long as it runs",
        capability="keep-open",
    )
    def test_kept_descriptors_are_inherited(self, tmp_path: Path) -> None:
        """Pass the write end of a pipe, and check whether a process holds it open."""
        read_end, write_end = os.pipe()
        with open(read_end, "rb") as reader:
            program = "send(number=1)\nreceive()"
            with self.start_workers(tmp_path, program, keep_open=(write_end,)) as run:
                os.close(write_end)
                run.wait_until(lambda: run.events, "the worker sends an event")
                ready, _, _ = select.select([reader], [], [], 0)
                assert not ready, "the worker does not hold the descriptor open"
                run.group.reply(go="on")
                run.succeed()
            ready, _, _ = select.select([reader], [], [], self.timeout_s)
            assert ready, "the descriptor is open after the worker has exited"
