"""The task of one rank: ``srun python -m detcore_slurm.rank_task DIRECTORY``.

It starts the worker, writes its output and events to a file, and follows the commands of the
runner. It works without the runner, which may be killed and started again.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import sys
import time
from pathlib import Path

from detcore.environment import read_prefixed, read_variables
from detcore.errors import DetcoreError, WorkerError
from detcore.launch import WorkerGroup
from detcore.launch.nodes import (
    RankPlace,
    drop_outer_job_variables,
    find_interface,
    place_ranks,
    rank_variables,
    start_rank,
)
from detcore.types import TrialInfo
from detcore_slurm.run_folder import Appender, RunFolder, Tail

_POLL_S = 0.1
_LOOK_S = 2.0
_CHIEF_TIMEOUT_S = 300.0
# Seconds that a rank may run after another rank has failed, and after rank 0 has ended.
_FAILURE_LINGER_S = 20.0
_LINGER_S = 75.0
_KILL_S = 15.0
_LEASE_KILL_S = 60.0
_GOOD_CODES = (0, 75)
# Set by Slurm for each node or task, and therefore not taken from the runner.
_NODE_PREFIXES = ("SLURM_", "SLURMD_")
_NODE_VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK",
    "HOSTNAME", "TMPDIR", "XDG_RUNTIME_DIR",
)  # fmt: skip


class _RankTask:
    """The worker of one rank, and its files."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._start = folder.read_start()
        self._info = TrialInfo(**self._start["info"])
        self._rank = int(read_variables(["SLURM_PROCID"])["SLURM_PROCID"])
        self._log = Appender(folder.find_rank_log(self._rank))
        self._tails = [Tail(folder.commands), Tail(folder.signals)]
        self._received: list[int] = []
        self._is_asked_to_end = False
        self._end_at: float | None = None
        self._look_at = 0.0
        self._beat = (b"", time.monotonic())

    def run(self) -> int:
        """Run the worker to its end, and return its exit code."""
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda received, _frame: self._received.append(received))
        try:
            group = self._start_worker()
        except (DetcoreError, OSError) as error:
            self._log.add_line(stream="stderr", text=f"rank {self._rank} did not start: {error}")
            self._log.add_line(event={"type": "finished", "state": "ERROR", "error": str(error)})
            return self._finish(1)
        self._log.add_line(pid=group.pid)
        while group.is_alive:
            select.select([group.fileno()], [], [], _POLL_S)
            for event in group.poll():
                self._log.add_line(event={"type": event.type, **event.fields})
            self._follow_commands(group)
            self._end_late(group)
            self._log.flush()
        return self._finish(group.close())

    def _finish(self, code: int) -> int:
        self._log.add_line(code=code)
        self._log.flush()
        self._folder.mark_ended(self._rank, code)
        return code if code >= 0 else 128 - code

    def _start_worker(self) -> WorkerGroup:
        start = self._start
        info = self._info
        if not Path(info.model_dir).is_dir():
            raise WorkerError(
                f"the directory of the code, {info.model_dir}, does not exist on this node.\n"
                "Put the code into a directory that all nodes share."
            )
        place = _find_place()
        node = {**read_prefixed(_NODE_PREFIXES), **read_variables(_NODE_VARIABLES)}
        inherited = {
            name: value
            for name, value in start["environment"].items()
            if not name.startswith(_NODE_PREFIXES) and name not in _NODE_VARIABLES
        }
        environment = {
            **drop_outer_job_variables({**inherited, **node}, place),
            **self._find_connections(place),
            **start["variables"],
        }
        return start_rank(
            info,
            environment,
            rank=self._rank,
            home=Path(start["home"]),
            on_output=lambda rank, stream, line: self._log.add_line(stream=stream, text=line),
            disabled_plugins=frozenset(start["disabled"]),
            allowed_plugins=None if start["allowed"] is None else frozenset(start["allowed"]),
        )

    def _find_connections(self, place: RankPlace) -> dict[str, str]:
        """Return the variables through which the ranks find each other.

        Rank 0 runs on the node of the batch script, whose address srun tells every task.
        """
        address = "127.0.0.1"
        if place.cross_size > 1:
            address = read_variables(["SLURM_LAUNCH_NODE_IPADDR"])["SLURM_LAUNCH_NODE_IPADDR"]
        if place.rank == 0:
            with contextlib.ExitStack() as stack:
                ports = [_reserve_port(stack, address) for _ in range(2)]
            self._folder.write_value("chief", {"ports": ports})
        deadline = time.monotonic() + _CHIEF_TIMEOUT_S
        while (chief := self._folder.read_value("chief")) is None:
            if time.monotonic() > deadline:
                raise WorkerError(
                    f"rank 0 did not write {self._folder.path}/chief.json in "
                    f"{_CHIEF_TIMEOUT_S:.0f} s. Check that all nodes share this directory."
                )
            time.sleep(_POLL_S)
        chief_port, master_port = chief["ports"]
        return rank_variables(
            place,
            key=self._start["key"],
            chief_address=address,
            chief_port=chief_port,
            master_port=master_port,
            interface=find_interface(address) if place.rank == 0 else None,
        )

    def _follow_commands(self, group: WorkerGroup) -> None:
        """Pass on the signals of Slurm, and carry out the commands of the runner."""
        while self._received:
            self._pass_on(group, self._received.pop(0))
        commands, signals = self._tails
        for line in signals.read_lines():
            self._pass_on(group, line["signal"])
        for line in commands.read_lines():
            if "reply" in line:
                group.reply(**line["reply"])
            elif line.get("kill"):
                group.kill()
            else:
                self._is_asked_to_end = True
                group.signal(line["signal"])

    def _pass_on(self, group: WorkerGroup, number: int) -> None:
        self._log.add_line(slurm_signal=number)
        self._is_asked_to_end = True
        # A second SIGINT would end the worker before it saves.
        group.signal(signal.SIGTERM if number == signal.SIGINT else number)

    def _end_late(self, group: WorkerGroup) -> None:
        """End this rank if it would wait for ranks that have ended, or for a lost runner."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_S
        codes = self._folder.list_ended()
        linger_s: float | None = None
        is_class = self._info.settings.is_trial_class
        if any(code not in _GOOD_CODES for code in codes.values()):
            linger_s = _FAILURE_LINGER_S
        elif 0 in codes and (is_class or self._is_asked_to_end):
            linger_s = _LINGER_S
        if linger_s is not None and self._end_at is None:
            self._end_at = now + linger_s
        if self._is_lease_over(now) and not self._is_asked_to_end:
            self._is_asked_to_end = True
            group.signal(signal.SIGTERM)
            self._end_at = now + _LEASE_KILL_S
        if self._end_at is not None and now > self._end_at + _KILL_S:
            group.kill()
        elif self._end_at is not None and now > self._end_at:
            group.signal(signal.SIGTERM)

    def _is_lease_over(self, now: float) -> bool:
        """Whether the runner has not changed its file for too long, by this node's clock."""
        if self._start["lease_s"] is None:
            return False
        with contextlib.suppress(FileNotFoundError):
            content = self._folder.heartbeat.read_bytes()
            if content != self._beat[0]:
                self._beat = (content, now)
        return bool(now - self._beat[1] > self._start["lease_s"])


def _find_place() -> RankPlace:
    """Return the ranks of this task from Slurm's variables, such as ``2(x3),1``."""
    values = read_variables(["SLURM_PROCID", "SLURM_STEP_TASKS_PER_NODE"])
    nodes: list[str] = []
    number = 0
    for part in values["SLURM_STEP_TASKS_PER_NODE"].split(","):
        count, _, repeat = part.partition("(x")
        for _ in range(int(repeat.rstrip(")") or 1)):
            nodes += [str(number)] * int(count)
            number += 1
    return place_ranks(nodes)[int(values["SLURM_PROCID"])]


def _reserve_port(stack: contextlib.ExitStack, address: str) -> int:
    holder = stack.enter_context(socket.socket())
    holder.bind((address, 0))
    return int(holder.getsockname()[1])


if __name__ == "__main__":
    sys.exit(_RankTask(RunFolder(Path(sys.argv[1]))).run())
