"""Clauses for launchers: the data that workers receive, and the output and events they send."""

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
_PLACE = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
_PRINT_VARIABLES = """
names = {names!r}
print(json.dumps({{name: os.environ.get(name) for name in names}}))
"""


def _expect_places(told: list[dict[str, str]]) -> None:
    """Check that the places of the workers of a trial fit together."""
    places = [{name: int(found[f"DETCORE_{name}"]) for name in _PLACE} for found in told]
    machines = [place["CROSS_RANK"] for place in places]
    for place in places:
        num_local = machines.count(place["CROSS_RANK"])
        expect_equal(place["LOCAL_SIZE"], num_local, f"DETCORE_LOCAL_SIZE in {place}")
        assert 0 <= place["LOCAL_RANK"] < num_local, f"DETCORE_LOCAL_RANK is too large: {place}"
        assert 0 <= place["CROSS_RANK"] < place["CROSS_SIZE"], f"DETCORE_CROSS_RANK in {place}"
    seats = {(place["CROSS_RANK"], place["LOCAL_RANK"]) for place in places}
    expect_equal(len(seats), len(places), f"the number of different places in {places}")


class TellingClauses(LauncherAccess):
    """Variables, output, events and replies."""

    @clause(
        "workers-receive-trial-info",
        "DETCORE_TRIAL_INFO contains every field of TrialInfo, DETCORE_HOME and the directory are "
        "those of the trial, and the standard input is empty",
    )
    def test_workers_receive_trial_info(self, tmp_path: Path) -> None:
        """Compare a worker's trial, folder and variables with the launcher's arguments."""
        program = (
            "path = os.environ['DETCORE_TRIAL_INFO']\n"
            "print(json.dumps([os.getcwd(), os.environ['DETCORE_HOME'], json.load(open(path)),\n"
            "                  os.stat(path).st_mode & 0o077, sys.stdin.read()]))\n"
        )
        with self.started(tmp_path, program) as run:
            run.succeed()
            (line,) = run.printed()
        folder, home, info, others, standard_input = json.loads(line)
        expect_equal(home, str(self.make_folder(tmp_path) / "home"), "DETCORE_HOME")
        expect_equal(os.path.realpath(folder), os.path.realpath(info["model_dir"]), "the folder")
        expect_equal(info, dataclasses.asdict(run.info), "DETCORE_TRIAL_INFO")
        expect_equal(others, 0, "what others may do with that file (mode)")
        expect_equal(standard_input, "", "what the worker read from its standard input")

    @clause(
        "workers-receive-rank-and-key",
        "every worker receives its rank, the number of workers, and a key that all workers share",
        capability="several-workers",
    )
    def test_workers_receive_rank_and_key(self, tmp_path: Path) -> None:
        """Start three workers, twice."""
        names = [f"DETCORE_{name}" for name in (*_PLACE, "JOB_KEY", "CHANNEL_FD")]
        program = _PRINT_VARIABLES.format(names=names)
        keys = []
        for _ in range(2):
            with self.started(tmp_path, program, slots=3) as run:
                expect_equal(len(run.group.pids), 3, "the number of process ids")
                expect_equal(run.group.pid, run.group.pids[0], "the process id of rank 0")
                run.succeed()
                told = [json.loads(run.printed(rank)[0]) for rank in range(3)]
            for rank, found in enumerate(told):
                expect_equal(found["DETCORE_RANK"], str(rank), f"DETCORE_RANK of rank {rank}")
                expect_equal(found["DETCORE_SIZE"], "3", "DETCORE_SIZE")
                assert all(found[f"DETCORE_{name}"] for name in _PLACE), (
                    f"a place is missing: {found}"
                )
                assert found["DETCORE_CHANNEL_FD"], f"rank {rank} has no channel to the runner"
            _expect_places(told)
            shared = {found["DETCORE_JOB_KEY"] for found in told}
            assert (len(shared), "" in shared) == (1, False), f"the workers' keys: {shared}"
            keys.append(shared.pop())
        assert keys[0] != keys[1], "two jobs have the same DETCORE_JOB_KEY"

    @clause(
        "variables-are-passed",
        "workers receive `variables`, the environment of the launching process, and the names of "
        "enabled and disabled plugins",
    )
    def test_variables_are_passed(self, tmp_path: Path) -> None:
        """Pass some, one of which is set already, and switch plugins off; then pass none."""
        given = {"SUITE_NEW": "a b=c\n\u00fc", "HOME": "/suite"}
        plugins = {"DETCORE_DISABLE_PLUGINS": "tape", "DETCORE_PLUGINS": "wax"}
        program = _PRINT_VARIABLES.format(names=[*given, *plugins, "PATH"])
        passed: dict[str, Any] = {
            "variables": given,
            "disabled_plugins": frozenset(["tape"]),
            "allowed_plugins": frozenset(["wax"]),
        }
        found = []
        for options in (passed, {}):
            with self.started(tmp_path, program, **options) as run:
                run.succeed()
                found.append(json.loads(run.printed()[0]))
        assert found[0].pop("PATH"), "the variables of the launching process are not there"
        expect_equal(found[0], {**given, **plugins}, "the variables that were given")
        # Empty would mean that no plugin is on.
        expect_equal(
            found[1]["DETCORE_PLUGINS"],
            child_environment({}).get("DETCORE_PLUGINS"),
            "DETCORE_PLUGINS where allowed_plugins is None",
        )

    @clause(
        "lines-arrive-complete",
        "each line arrives once, complete, before close returns, whatever its length and the "
        "pieces it was written in; bytes that are not UTF-8 are replaced",
    )
    def test_lines_arrive_complete(self, tmp_path: Path) -> None:
        """Write pieces, an empty line, Latin-1, a long line, many, and an end without a newline."""
        program = (
            "os.write(1, b'first ')\ntell(did='half')\nask()\n"
            "os.write(1, b'line\\n\\nsecond\\r\\n  third\\ncaf\\xe9 \\xff.\\n')\n"
            f"print('x' * {_LONG_LINE}, flush=True)\n"
            f"print(*range({_MANY_LINES}), sep='\\n', flush=True)\n"
            "os.write(1, b'next \\xc3\\xbc')\n"
        )
        with self.started(tmp_path, program) as run:
            run.until(lambda: run.events, "the worker tells that it wrote half a line")
            run.group.reply(go="on")
            run.succeed()
            *lines, latin, long = run.printed()[:6]
            *many, last = run.printed()[6:]
            expect_equal(lines, ["first line", "", "second", "  third"], "the lines")
            expect_equal(many, list(map(str, range(_MANY_LINES))), "the many lines")
            assert (latin[:3], latin[-1:]) == ("caf", "."), f"the line in Latin-1: {latin!r}"
            expect_equal(len(long), _LONG_LINE, "the length of the long line")
            expect_equal(last, "next \u00fc", "the last line")

    @clause(
        "lines-arrive-with-their-rank",
        "lines arrive with their stream and the worker's rank, in one call of on_output at a time",
    )
    def test_lines_arrive_with_their_rank(self, tmp_path: Path) -> None:
        """Let two workers print at one time on both streams, and take the lines slowly."""
        program = (
            "for i in range(50):\n"
            "    print(RANK, i, flush=True)\n    print(-i, file=sys.stderr, flush=True)"
        )
        with self.started(tmp_path, program, slots=self.few_slots) as run:
            run.delay_s = 0.002
            run.succeed()
            expect_equal(run.overlaps, 0, "the lines that came while another was being taken")
            for rank in range(self.few_slots):
                expect_equal(
                    (run.printed(rank), run.printed(rank, "stderr")),
                    ([f"{rank} {i}" for i in range(50)], [f"{-i}" for i in range(50)]),
                    f"the lines of rank {rank} on stdout and stderr",
                )

    @clause(
        "events-arrive-in-order",
        "each event arrives once, complete and in order, including large events",
    )
    def test_events_arrive_in_order(self, tmp_path: Path) -> None:
        """Tell of small and large things, and end at once."""
        # The trial's own events share the channel: only an event within one pipe write stays whole.
        size = 3000 if self.as_trial_class else 300_000
        program = (
            f"for i in range({_MANY_EVENTS}):\n    tell(number=i, text='y' * ({size} * (i == 7)))"
        )
        with self.started(tmp_path, program) as run:
            run.succeed()
            found = [event["number"] for event in run.events]
            expect_equal(found, list(range(_MANY_EVENTS)), "the events")
            expect_equal(len(run.events[7]["text"]), size, "the size of the large event")

    @clause("events-arrive-before-the-end", "is_alive is true until all events have been returned")
    def test_events_arrive_before_the_end(self, tmp_path: Path) -> None:
        """Poll only when the worker has ended."""
        program = "tell(number=1)\ntell(number=2)\nprint('told', flush=True)"
        with self.started(tmp_path, program) as run:
            run.until(run.printed, "the worker prints that it told", polls=False)
            if "local-processes" not in self.declined:
                pid = run.group.pid
                run.until(lambda: not is_running(pid), "the worker has ended", polls=False)
            assert run.group.is_alive, "is_alive is false though events were not handed out"
            run.succeed()
            expect_equal([event["number"] for event in run.events], [1, 2], "the events")

    @clause(
        "fileno-becomes-readable",
        "fileno is readable while an event is pending and after the worker has exited",
    )
    def test_fileno_becomes_readable(self, tmp_path: Path) -> None:
        """Wait for it without polling."""
        program = "tell(number=1)\nprint('told', flush=True)\nask()\nprint('over', flush=True)"
        with self.started(tmp_path, program) as run:
            run.until(run.printed, "the worker prints that it told", polls=False)
            ready, _, _ = select.select([run.group.fileno()], [], [], self.timeout_s / 8)
            assert ready, "fileno is not readable though an event waits"
            run.note(run.group.poll())
            expect_equal(len(run.events), 1, "the number of events")
            run.group.reply(go="on")
            ready, _, _ = select.select([run.group.fileno()], [], [], self.timeout_s)
            assert ready, "fileno is not readable though the worker has ended"
            run.finish()

    @clause("poll-does-not-wait", "poll returns immediately if no event is pending")
    def test_poll_does_not_wait(self, tmp_path: Path) -> None:
        """Poll while the worker waits to be answered."""
        with self.started(tmp_path, "tell(number=1)\nask()") as run:
            run.until(lambda: run.events, "the worker tells something")
            told: list[list[WorkerEvent]] = []
            polling = threading.Thread(target=lambda: told.append(run.group.poll()), daemon=True)
            polling.start()
            polling.join(self.timeout_s / 8)
            waits = polling.is_alive()
            run.group.reply(go="on")
            polling.join()
            assert not waits, "poll waits for the worker to tell something"
            run.finish()

    @clause("replies-reach-rank-0", "reply sends rank 0 one line of JSON")
    def test_replies_reach_rank_0(self, tmp_path: Path) -> None:
        """Answer twice."""
        program = "for _ in range(2):\n    tell(number=1)\n    print(json.dumps(ask()))"
        answers: list[dict[str, Any]] = [
            {"a": 1, "text": "\u00fc\n"},
            {"type": "end", "list": [None, True, 0.5]},
        ]
        with self.started(tmp_path, program) as run:
            for answer in answers:
                run.until(lambda: run.events, "the worker asks")
                run.events.clear()
                run.group.reply(**answer)
            run.succeed()
            expect_equal([json.loads(line) for line in run.printed()], answers, "the answers")

    @clause(
        "kept-descriptors-are-inherited",
        "rank 0 holds the descriptors of keep_open open as long as it runs",
        capability="keep-open",
    )
    def test_kept_descriptors_are_inherited(self, tmp_path: Path) -> None:
        """Pass the writing end of a pipe: its other end shows whether a process still holds it."""
        read_end, write_end = os.pipe()
        with open(read_end, "rb") as reading:
            program = "tell(number=1)\nask()"
            with self.started(tmp_path, program, keep_open=(write_end,)) as run:
                os.close(write_end)
                run.until(lambda: run.events, "the worker tells something")
                ready, _, _ = select.select([reading], [], [], 0)
                assert not ready, "nobody holds the descriptor while the worker runs"
                run.group.reply(go="on")
                run.succeed()
            ready, _, _ = select.select([reading], [], [], self.timeout_s)
            assert ready, "somebody holds the descriptor though the worker has ended"
