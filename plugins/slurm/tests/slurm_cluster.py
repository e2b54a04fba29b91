"""A Slurm cluster of two nodes on this machine, with its files in one directory."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
_SBIN = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_READY_TIMEOUT_S = 60.0
_CONFIG = """\
ClusterName=detcore
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdSpoolDir={folder}/spool-%n
StateSaveLocation={folder}/state
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SwitchType=switch/none
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
KillWait=30
SlurmdTimeout=10
SlurmctldTimeout=10
MinJobAge=600
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[0]} CPUs=8 RealMemory=1000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=8 RealMemory=1000
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
PartitionName=harsh Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=0
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""


class SlurmCluster:
    """munged, slurmctld and two slurmd, without any file outside of `folder`.

    Args:
        folder: An empty directory of root, whose path is short enough for a socket.

    Raises:
        RuntimeError: If Slurm is not installed, or does not start.
    """

    def __init__(self, folder: Path) -> None:
        missing = [name for name in _PROGRAMS if shutil.which(name, path=_SBIN) is None]
        if missing:
            raise RuntimeError(
                f"{', '.join(missing)} not found. Install them: apt-get install slurm-wlm munge"
            )
        self.folder = folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "state").mkdir()
        controller_port, *ports = _find_free_ports(3)
        config = _CONFIG.format(
            host=socket.gethostname(), folder=folder, controller_port=controller_port, ports=ports
        )
        self.config = folder / "slurm.conf"
        self.config.write_text(config)
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o400)
        try:
            self._start("munged", *self._munge_options())
            _wait_until(lambda: (folder / "munge.socket").exists(), "munged listens", self)
            self.start_controller()
            for name in ("n1", "n2"):
                self.start_node(name)
            self.wait_until_idle()
        except BaseException:
            self.close()
            raise

    def _munge_options(self) -> list[str]:
        names = {
            "socket": "munge.socket", "key-file": "munge.key", "pid-file": "munge.pid",
            "log-file": "munge.log", "seed-file": "munge.seed",
        }  # fmt: skip
        return ["-F", "--force", *(f"--{key}={self.folder / name}" for key, name in names.items())]

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables with which Slurm's commands find the cluster."""
        return {"SLURM_CONF": str(self.config)}

    def _start(self, name: str, *options: str, key: str | None = None) -> None:
        program = shutil.which(name, path=_SBIN)
        assert program is not None
        log = (self.folder / f"{key or name}.out").open("ab")
        with log:
            self._processes[key or name] = subprocess.Popen(
                [program, *options],
                env={**os.environ, **self.variables, "PATH": _SBIN},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def start_controller(self) -> None:
        """Start slurmctld, which reads its state from the disk."""
        self._start("slurmctld", "-D", "-f", str(self.config))
        _wait_until(lambda: "UP" in self.run("scontrol", "ping", check=False), "slurmctld", self)

    def kill_controller(self) -> None:
        """Kill slurmctld."""
        self._kill("slurmctld")

    def start_node(self, name: str, *, hidden: Path | None = None) -> None:
        """Start the slurmd of a node, which sees an empty directory in the place of `hidden`."""
        words = ["slurmd", "-D", "-N", name, "-f", str(self.config)]
        if hidden is not None:
            mount = 'mount -t tmpfs none "$0" && exec "$@"'
            words = ["unshare", "--mount", "sh", "-c", mount, str(hidden), *words]
        self._start(*words, key=f"slurmd-{name}")

    def kill_node(self, name: str) -> None:
        """Kill the slurmd of a node and everything that runs on it, as a power failure does."""
        pids = _list_processes_with(f"SLURMD_NODENAME={name}")
        # The processes that report to the controller die first.
        for pid in [*_find_parents(pids, "slurmstepd"), *pids]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._kill(f"slurmd-{name}")

    def _kill(self, key: str) -> None:
        process = self._processes.pop(key)
        process.kill()
        process.wait()

    def run(
        self, *command: str, check: bool = True, variables: Mapping[str, str] = os.environ
    ) -> str:
        """Run a command of Slurm, and return its output."""
        finished = subprocess.run(
            command, env={**variables, **self.variables}, capture_output=True, text=True,
            check=False, timeout=60,
        )  # fmt: skip
        if check and finished.returncode:
            raise RuntimeError(f"{' '.join(command)}: {finished.stderr}")
        return finished.stdout + finished.stderr

    def submit(self, *options: str) -> int:
        """Submit a job, and return its id."""
        return int(self.run("sbatch", "--parsable", "--output=/dev/null", *options))

    def list_jobs(self, *, states: str = "PD,R,CG,CF,S") -> list[tuple[int, str]]:
        """Return the ids and states of the jobs."""
        output = self.run("squeue", "-h", "-t", states, "-o", "%i %T")
        return [(int(line.split()[0]), line.split()[1]) for line in output.splitlines()]

    def cancel_jobs(self) -> None:
        """Kill all jobs, and wait until no job is left."""
        for job, _ in self.list_jobs():
            self.run("scancel", str(job), check=False)
        _wait_until(lambda: not self.list_jobs(), "no job is left", self)

    def release_drained(self) -> None:
        """Resume nodes and release jobs, as after a controller that has lost the start of a job."""
        for name in {*self.run("sinfo", "-h", "-N", "-t", "drain", "-o", "%N").split()}:
            self.run("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
            for job, _ in self.list_jobs(states="PD"):
                self.run("scontrol", "release", str(job), check=False)

    def wait_until_idle(self) -> None:
        """Wait until both nodes accept jobs."""
        _wait_until(
            lambda: (
                self.run("sinfo", "-h", "-N", "-p", "low", "-o", "%T", check=False).split()
                == ["idle", "idle"]
            ),
            "both nodes are idle",
            self,
        )

    def describe(self) -> str:
        """Return the jobs and nodes, with reasons, and the last lines of the logs."""
        nodes = self.run("sinfo", "--Node", "--list-reasons", "--long")
        return f"{self.run('squeue', '--long')}\n{nodes}\n{self.read_logs()}"

    def read_logs(self) -> str:
        """Return the last lines of the logs."""
        paths = [*self.folder.glob("*.log"), *self.folder.glob("*.out")]
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in paths)

    def close(self) -> None:
        """Kill all jobs and processes of the cluster."""
        if "slurmctld" in self._processes:
            for job, _ in self.list_jobs():
                self.run("scancel", "--signal=KILL", "--full", str(job), check=False)
        for pid in _list_processes_with(f"SLURM_CONF={self.config}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._processes.values():
            process.kill()
            process.wait()


def _find_free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for free in sockets:
            free.bind(("", 0))
        return [int(free.getsockname()[1]) for free in sockets]


def _list_processes_with(variable: str) -> list[int]:
    """Return the processes that have an environment variable, from /proc."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if variable.encode() in path.read_bytes().split(b"\0"):
                pids.append(int(path.parent.name))
    return [pid for pid in pids if pid != os.getpid()]


def _find_parents(pids: list[int], program: str) -> set[int]:
    """Return the parents of processes that run a program."""
    parents = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            parents.add(int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]))
    names = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in parents if pid > 1}
    return {pid for pid, name in names.items() if name.startswith(program)}


def _wait_until(condition: Callable[[], object], description: str, cluster: SlurmCluster) -> None:
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"{description}: not after {_READY_TIMEOUT_S:g} s\n{cluster.read_logs()}"
            )
        time.sleep(0.1)
