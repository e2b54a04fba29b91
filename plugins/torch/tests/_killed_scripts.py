"""Scripts that are killed at seeded random steps, run in processes forked from this one."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import json
import os
import random
import runpy
import secrets
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from detcore.database import Database


@dataclasses.dataclass
class Script:
    """A script, its own ``DETCORE_HOME``, and its processes so far.

    Attributes:
        path: Its file. A global variable ``trained`` has its objects by name, or ``trainer`` is
            the trainer of transformers.
        folder: For everything that it writes.
        arguments: Its arguments.
        ranks: Processes that train together over gloo, with torchrun's variables.
        starts: How often it was started.
    """

    path: Path
    folder: Path
    arguments: Sequence[str] = ()
    ranks: int = 1
    starts: int = 0

    def run(
        self,
        kill_at: int | None = None,
        number: int = signal.SIGKILL,
        *,
        needs_checkpoint: bool = False,
    ) -> int:
        """Run the script in a new process; return its exit code, negative after a signal.

        Args:
            kill_at: The optimizer's step, counted in this process, before which it is signalled.
            number: The signal.
            needs_checkpoint: Whether each rank waits for a checkpoint before it is signalled. A
                save that is under way continues in the background meanwhile.
        """
        return self._run(
            lambda rank: _signal_at(kill_at, number, needs_checkpoint=needs_checkpoint)
        )

    def run_to(self, kill: Kill | None) -> int:
        """Run the script in new processes up to a kill, which ends all of them."""
        return self._run(lambda rank: kill is not None and kill.prepare(rank))

    def _run(self, prepare: Callable[[int], object]) -> int:
        self.folder.mkdir(exist_ok=True)
        self.starts += 1
        sys.stdout.flush()
        together = _variables(self.ranks)
        pids = {}
        for rank in range(self.ranks):
            pid = os.fork()
            if pid == 0:
                os.environ.update(together, TEST_RUN=str(self.starts))
                if self.ranks > 1:
                    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
                self._run_child(rank, prepare)
            pids[pid] = rank
        code = 0
        while pids:
            # Its own children only: a loader's processes are their parents'.
            pid, status = os.wait()
            if pids.pop(pid, None) is None:
                continue
            code = code or os.waitstatus_to_exitcode(status)
            if code:
                for other in pids:
                    os.kill(other, signal.SIGKILL)
        return code

    def run_killed(self, seed: int, *, kills: int, at_most: int) -> None:
        """Kill the script that many times at random steps, every other time with SIGTERM."""
        draw = random.Random(seed)
        for kill in range(kills):
            number = signal.SIGTERM if kill % 2 else signal.SIGKILL
            code = self.run(draw.randint(1, at_most), number)
            assert code == (75 if number == signal.SIGTERM else -signal.SIGKILL), self.output()
        assert self.run() == 0, self.output()

    def preload(self) -> None:
        """Import what a process of it has imported, so that the next ones start quickly."""
        own = {path.stem for path in self.path.parent.glob("*.py")}
        for name in json.loads((self.folder / "modules.json").read_text()):
            if name not in sys.modules and name not in own:
                # Some are no modules of a file of their own, as torch.ops.
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)

    def output(self) -> str:
        """Return what its processes printed."""
        return (self.folder / "output.txt").read_text()

    def result(self) -> dict[str, str]:
        """Return the digests of the trainer's objects, and of random generators of each rank."""
        found: dict[str, str] = {}
        for rank in range(self.ranks):
            of_rank = json.loads((self.folder / f"result-{rank}.json").read_text())
            found |= {f"{name} of rank {rank}" if rank else name: d for name, d in of_rank.items()}
        return found

    def metrics(self, kind: str) -> list[tuple[int, dict[str, Any]]]:
        """Return step and metrics of all reports of a kind ("training" or "validation")."""
        with Database.open(f"sqlite:///{self.folder}/home/detcore.db") as database:
            reports = database.metrics(1, kind)
            return [(each.steps_completed, dict(each.metrics)) for each in reports]

    def checkpoint_files(self) -> set[str]:
        """Return the names of all files in its checkpoints; a save that was killed left none."""
        manifests = (self.folder / "home" / "checkpoints").glob("*/manifest.json")
        folders = [manifest.parent for manifest in manifests]
        assert folders
        return {path.name for each in folders for path in each.rglob("*") if path.is_file()}

    def _run_child(self, rank: int, prepare: Callable[[int], object]) -> None:
        code = 3
        try:
            output = (self.folder / "output.txt").open("a", buffering=1)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.stdout = sys.stderr = output  # pytest has replaced both
            os.chdir(self.folder)
            os.environ["DETCORE_HOME"] = str(self.folder / "home")
            warnings.resetwarnings()  # warnings of a script are not errors
            sys.argv[:] = [str(self.path), *self.arguments]
            sys.path.insert(0, str(self.path.parent))
            _forget_accelerate()
            prepare(rank)
            objects = runpy.run_path(sys.argv[0], run_name="__main__")
            Path(f"result-{rank}.json").write_text(json.dumps(digests(_trained(objects))))
            Path("modules.json").write_text(json.dumps([*sys.modules]))
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        except BaseException:  # noqa: BLE001  # the end of the process: printed, never dropped
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def run_pair(
    path: Path,
    folder: Path,
    arguments: Sequence[str] = (),
    *,
    kills: Sequence[int | Kill] = (),
    ranks: int = 1,
) -> tuple[Script, Script]:
    """Run a script as a whole, and once more with kills; return both.

    Args:
        path: The script.
        folder: Receives a folder for each.
        arguments: Of the script.
        kills: The step before which each process of the second one is killed, or its kill.
        ranks: Processes that train together.
    """
    whole, broken = (Script(path, folder / name, arguments, ranks) for name in ("whole", "broken"))
    assert whole.run() == 0, whole.output()
    for kill in kills:
        code = broken.run(kill) if isinstance(kill, int) else broken.run_to(kill)
        assert code == -signal.SIGKILL, broken.output()
    assert broken.run() == 0, broken.output()
    return whole, broken


def check_equal(whole: Script, broken: Script) -> None:
    """Check that two runs of a script ended with the same state and validated the same."""
    assert broken.result() == whole.result()
    assert broken.metrics("validation") == whole.metrics("validation")


@dataclasses.dataclass(frozen=True)
class Kill:
    """A SIGKILL at a random place.

    Attributes:
        rank: The process that it hits.
        batch: The batch, counted in that process from 1, whose backward pass starts the delay.
        delay_s: Time to the kill, which may fall into a later batch, a validation or a save.
    """

    rank: int
    batch: int
    delay_s: float

    @classmethod
    def drawn(cls, seed: str, *, ranks: int, at_most: int = 6) -> Kill:
        """Return the kill of a seed; every other one comes without a delay."""
        draw = random.Random(seed)
        delay_s = draw.choice([0.0, draw.uniform(0, 0.03)])
        return cls(draw.randrange(ranks), draw.randint(1, at_most), delay_s)

    def prepare(self, rank: int) -> None:
        """Have the process kill itself, if it has the rank."""
        if rank != self.rank:
            return
        count, backward = 0, torch.Tensor.backward

        def counted(*args: Any, **more: Any) -> Any:
            nonlocal count
            count += 1
            if count == self.batch:
                if not self.delay_s:
                    os.kill(os.getpid(), signal.SIGKILL)
                end = functools.partial(os.kill, os.getpid(), signal.SIGKILL)
                threading.Timer(self.delay_s, end).start()
            return backward(*args, **more)

        torch.Tensor.backward = counted  # type: ignore[method-assign]


@dataclasses.dataclass(frozen=True)
class KillAtEnd(Kill):
    """A SIGKILL once training has ended."""

    def prepare(self, rank: int) -> None:
        from detcore_torch._script import ScriptRun

        def finish(run: ScriptRun) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        ScriptRun.finish = finish  # type: ignore[method-assign]


KILL_AT_END = KillAtEnd(0, 0, 0.0)


def _variables(ranks: int) -> dict[str, str]:
    """Return what torchrun sets alike for all processes on one node; nothing for one process."""
    if ranks == 1:
        return {}
    ports = []
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            held = stack.enter_context(socket.socket())
            held.bind(("127.0.0.1", 0))
            ports.append(str(held.getsockname()[1]))
    return {
        "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": ports[0], "DETCORE_CHIEF_PORT": ports[1],
        "DETCORE_JOB_KEY": secrets.token_hex(16), "TORCHELASTIC_RUN_ID": "test",
    }  # fmt: skip


def _signal_at(step: int | None, number: int, *, needs_checkpoint: bool) -> None:
    """Have this process send itself a signal before a step of any optimizer."""
    if step is None:
        return
    count = 0

    def before_step(*_: Any) -> None:
        nonlocal count
        count += 1
        if count == step:
            while needs_checkpoint and not [*Path().glob("home/checkpoints/*/manifest.json")]:
                time.sleep(0.01)
            os.kill(os.getpid(), number)
            time.sleep(0.01)

    register_optimizer_step_pre_hook(before_step)


def _forget_accelerate() -> None:
    """Drop how many processes Accelerate counted when this one's parent used it."""
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)


def _trained(variables: Mapping[str, Any]) -> dict[str, Any]:
    if "trained" in variables:
        return dict(variables["trained"])
    trainer = variables["trainer"]
    return {name: getattr(trainer, name) for name in ("model", "optimizer", "lr_scheduler")}


def digests(trained: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of the state of each object, and of this process's random generators."""
    found = {name: _digest(each.state_dict()) for name, each in trained.items()}
    found["torch"] = _digest(torch.get_rng_state())
    found["numpy"] = _digest(list(np.random.get_state()))
    found["python"] = _digest(list(random.getstate()))
    return found


def _digest(state: Any) -> str:
    hashed = hashlib.sha256()
    _add(state, hashed)
    return hashed.hexdigest()[:16]


def _add(value: Any, hashed: Any) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            hashed.update(repr(key).encode())
            _add(item, hashed)
    elif isinstance(value, list | tuple):
        for item in value:
            _add(item, hashed)
    elif isinstance(value, torch.Tensor):
        hashed.update(value.detach().contiguous().numpy().tobytes())
    elif isinstance(value, np.ndarray):
        hashed.update(value.tobytes())
    elif not callable(value):
        hashed.update(repr(value).encode())
