"""Run scripts in forked processes, and kill them at seeded random steps."""

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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from detcore.records import Database

# The adapter of each library, by a part of the script's name.
ADAPTERS = {
    "trainer": "detcore_torch.for_transformers",
    "lightning": "detcore_torch.for_lightning",
    "accelerate": "detcore_torch.for_accelerate",
}
SCRIPTS = Path(__file__).parent / "scripts"
# There is one such file per committed checkpoint of a script.
MANIFESTS = "home/checkpoints/*/manifest.json"


@dataclasses.dataclass
class Script:
    """A script with a separate ``DETCORE_HOME``, and its processes so far.

    Attributes:
        path: Its file. Its global variable ``trained`` has the objects by name, or ``trainer`` is
            the transformers trainer.
        folder: Directory of all files that it writes.
        arguments: Its arguments.
        ranks: Processes that train together over gloo, with torchrun's variables.
        starts: Number of starts.
    """

    path: Path
    folder: Path
    arguments: Sequence[str] = ()
    ranks: int = 1
    starts: int = 0

    def run(self, stop: Stop | None = None) -> int:
        """Run the script in new processes; return its exit code, negative after a signal."""
        for library, adapter in ADAPTERS.items():
            if library in self.path.parent.name + self.path.name:
                importlib.import_module(adapter)  # once, before processes are forked
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
                self._run_child(rank, stop)
            pids[pid] = rank
        code = 0
        while pids:
            # Only direct children, because loader processes belong to their parents.
            pid, status = os.wait()
            if pids.pop(pid, None) is None:
                continue
            code = code or os.waitstatus_to_exitcode(status)
            if code:
                for other in pids:
                    os.kill(other, signal.SIGKILL)
        return code

    def finish(self) -> Script:
        """Run the script to its end."""
        assert self.run() == 0, self.output()
        return self

    def interrupt(self, *stops: int | Stop) -> None:
        """Run the script up to each stop; a number is the step before a SIGKILL."""
        for item in stops:
            stop = Signal(item) if isinstance(item, int) else item
            assert self.run(stop) == stop.code, self.output()

    def interrupt_at_random(self, seed: int, *, stops: int, at_most: int) -> None:
        """Stop the script at random steps, every other time with SIGTERM."""
        draw = random.Random(seed)
        for number in range(stops):
            kind = signal.SIGTERM if number % 2 else signal.SIGKILL
            self.interrupt(Signal(draw.randint(1, at_most), kind))
        self.finish()

    def preload(self) -> None:
        """Import the modules of an earlier process, so that later processes start quickly."""
        local = {path.stem for path in self.path.parent.glob("*.py")}
        for name in json.loads((self.folder / "modules.json").read_text()):
            if name not in sys.modules and name not in local:
                # Some modules, such as torch.ops, have no file.
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)

    def output(self) -> str:
        """Return the output of its processes."""
        return (self.folder / "output.txt").read_text()

    def result(self) -> dict[str, str]:
        """Return the digests of the trainer's objects, and of random generators of each rank."""
        result: dict[str, str] = {}
        for rank in range(self.ranks):
            of_rank = json.loads((self.folder / f"result-{rank}.json").read_text())
            result |= {f"{name} of rank {rank}" if rank else name: d for name, d in of_rank.items()}
        return result

    def metrics(self, kind: str) -> list[tuple[int, dict[str, Any]]]:
        """Return step and metrics of all reports of a kind ("training" or "validation")."""
        with Database.open(f"sqlite:///{self.folder}/home/detcore.db") as database:
            reports = database.metrics(1, kind)
            return [(report.steps_completed, dict(report.metrics)) for report in reports]

    def check_no_pickles(self) -> None:
        """Check that its checkpoints contain no pickles of the library."""
        manifests = [*self.folder.glob(MANIFESTS)]
        assert manifests
        files = (
            path for manifest in manifests for path in manifest.parent.rglob("*") if path.is_file()
        )
        assert {path.suffix for path in files} <= {".safetensors", ".json", ".py"}

    def _run_child(self, rank: int, stop: Stop | None) -> None:
        code = 3
        try:
            output = (self.folder / "output.txt").open("a", buffering=1)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.stdout = sys.stderr = output  # pytest has replaced both streams
            os.chdir(self.folder)
            os.environ["DETCORE_HOME"] = str(self.folder / "home")
            warnings.resetwarnings()  # warnings of a script are not errors
            sys.argv[:] = [str(self.path), *self.arguments]
            sys.path.insert(0, str(self.path.parent))
            _forget_accelerate()
            if stop is not None:
                stop.prepare(rank)
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


def check_resume(
    path: Path,
    folder: Path,
    arguments: Sequence[str] = (),
    *,
    stops: Sequence[int | Stop],
    ranks: int = 1,
) -> tuple[Script, Script]:
    """Check that a script ends identically after interruptions, and says so; return both runs.

    Args:
        path: The script.
        folder: Receives a directory for each run.
        arguments: Arguments of the script.
        stops: Stops of the second run; a number is the step before a SIGKILL.
        ranks: Processes that train together.
    """
    expected, broken = (
        Script(path, folder / name, arguments, ranks) for name in ("whole", "broken")
    )
    expected.finish()
    broken.interrupt(*stops)
    check_equal(expected, broken.finish())
    assert "differ from the earlier run" not in broken.output()
    return expected, broken


def check_equal(whole: Script, broken: Script) -> None:
    """Check that two runs of a script ended with equal states and validation metrics."""
    assert broken.result() == whole.result()
    assert broken.metrics("validation") == whole.metrics("validation")


class Stop(Protocol):
    """The point at which a script's process ends; `code` is its exit code."""

    @property
    def code(self) -> int: ...

    def prepare(self, rank: int) -> None:
        """Prepare the process of a rank to end at this point."""


@dataclasses.dataclass(frozen=True)
class Signal:
    """A signal before a step of any optimizer.

    Attributes:
        step: The step, counted in the process.
        number: The signal.
        needs_checkpoint: Whether each rank waits for a checkpoint before the signal. A pending save
            continues in the background.
    """

    step: int
    number: int = signal.SIGKILL
    needs_checkpoint: bool = False

    @property
    def code(self) -> int:
        return 75 if self.number == signal.SIGTERM else -self.number

    def prepare(self, rank: int) -> None:
        """Let the process signal itself."""
        count = 0

        def before_step(*_: Any) -> None:
            nonlocal count
            count += 1
            if count == self.step:
                while self.needs_checkpoint and not [*Path().glob(MANIFESTS)]:
                    time.sleep(0.01)
                os.kill(os.getpid(), self.number)
                time.sleep(0.01)

        register_optimizer_step_pre_hook(before_step)


@dataclasses.dataclass(frozen=True)
class Kill:
    """A SIGKILL at a random moment.

    Attributes:
        rank: The process to kill.
        batch: The batch, counted in that process from 1, whose backward pass starts the delay.
        delay_s: Time to the kill, which may fall into a later batch, a validation or a save.
    """

    code: ClassVar[int] = -signal.SIGKILL
    rank: int
    batch: int
    delay_s: float

    @classmethod
    def drawn(cls, seed: str, *, ranks: int, at_most: int = 6) -> Kill:
        """Return the kill for a seed; every other kill has no delay."""
        draw = random.Random(seed)
        delay_s = draw.choice([0.0, draw.uniform(0, 0.03)])
        return cls(draw.randrange(ranks), draw.randint(1, at_most), delay_s)

    def prepare(self, rank: int) -> None:
        """Let the process kill itself, if it has the rank."""
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


class KillAtEnd:
    """A SIGKILL once training has ended."""

    code = -signal.SIGKILL

    def prepare(self, rank: int) -> None:
        from detcore_torch.scripts.script_run import ScriptRun

        def kill(run: ScriptRun) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        ScriptRun.check_completed = kill  # type: ignore[method-assign]


def _variables(ranks: int) -> dict[str, str]:
    """Return torchrun's common variables for the processes of a node; empty for one process."""
    if ranks == 1:
        return {}
    ports = []
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            reserved = stack.enter_context(socket.socket())
            reserved.bind(("127.0.0.1", 0))
            ports.append(str(reserved.getsockname()[1]))
    return {
        "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": ports[0], "DETCORE_CHIEF_PORT": ports[1],
        "DETCORE_JOB_KEY": secrets.token_hex(16), "TORCHELASTIC_RUN_ID": "test",
    }  # fmt: skip


def _forget_accelerate() -> None:
    """Reset the number of processes that Accelerate stored in the parent process."""
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)


def _trained(variables: Mapping[str, Any]) -> dict[str, Any]:
    if "trained" in variables:
        return dict(variables["trained"])
    trainer = variables["trainer"]
    return {name: getattr(trainer, name) for name in ("model", "optimizer", "lr_scheduler")}


def digests(trained: Mapping[str, Any]) -> dict[str, str]:
    """Return digests of each object's state and of this process's random generators."""
    digests_by_name = {name: _digest(instance.state_dict()) for name, instance in trained.items()}
    digests_by_name["torch"] = _digest(torch.get_rng_state())
    digests_by_name["numpy"] = _digest(list(np.random.get_state()))
    digests_by_name["python"] = _digest(list(random.getstate()))
    return digests_by_name


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
