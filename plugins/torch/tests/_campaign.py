"""Compare randomly killed scripts of PyTorch libraries with uninterrupted runs.

Each script trains once without a kill in each setting (loader processes and ranks, over gloo). It
then trains repeatedly from the start: each process is killed until one process reaches the end.
Each run is compared with the first in weights, optimizer, schedule, scaler, random generators and
validation metrics, and its data ledger is verified. A row sums the runs of a setting. With
``--alone`` the library saves and resumes without detcore in the same harness. This control shows
that the comparison detects differences.

    python plugins/torch/tests/_campaign.py [--family trainer] [--kills 50] [--alone]

All processes are forked from a process with the required imports, so that a kill does not repeat
imports.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import hashlib
import importlib
import itertools
import json
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from _killed_scripts import ADAPTERS, SCRIPTS, Kill, Script

from detcore.records import Database
from detcore_replay import LedgerReport, verify_ledger
from detcore_testing import DetcoreCommand

__all__ = ["FAMILIES", "TASKS", "Case", "Outcome"]

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TASKS = ("points", "digits", "text")
EXAMPLES = ROOT / "examples"
# The model definition of each trial, its class and its hyperparameters.
TRIALS: dict[str, tuple[Path, str, dict[str, float]]] = {
    "points": (SCRIPTS / "trial_points", "PointsTrial", {"global_batch_size": 8}),
    "digits": (
        EXAMPLES / "digits_torch",
        "DigitsTrial",
        {"global_batch_size": 128, "learning_rate": 0.002, "dropout": 0.3},
    ),
    "text": (
        EXAMPLES / "language_torch",
        "LanguageTrial",
        {"global_batch_size": 256, "learning_rate": 0.003, "warm_up": 20, "width": 16,
         "num_layers": 1, "num_heads": 2, "length": 64},
    ),
}  # fmt: skip
METRICS = {"text": "bits_per_character"}
FAMILIES = ("trial", *ADAPTERS)
# Modules that ``detcore run`` imports but its workers do not.
RUNNER_MODULES = ("detcore.cli.run_command", "detcore.run")


@dataclasses.dataclass
class Outcome:
    """Differences between killed runs and an uninterrupted run.

    Attributes:
        kills: SIGKILLs of their processes.
        runs: Runs from the start of the training to its end.
        differing: Differences of one of the runs, or the error if it did not restart.
        twice: Uses of a record that repeat it within its epoch.
        never: Records that an epoch did not use.
        steps: Steps that no ledger has.
    """

    kills: int = 0
    runs: int = 0
    differing: set[str] = dataclasses.field(default_factory=set)
    twice: int = 0
    never: int = 0
    steps: int = 0

    @property
    def is_exact(self) -> bool:
        """Whether all runs are equal."""
        return not (self.differing or self.twice or self.never or self.steps)

    def add(self, trained: Trained, whole: Trained) -> None:
        """Compare a run with an uninterrupted run."""
        self.kills += trained.kills
        self.runs += 1
        self.twice += sum(epoch.num_twice for epoch in trained.ledger.epochs)
        self.never += sum(epoch.num_never or 0 for epoch in trained.ledger.epochs)
        if trained.error:
            self.differing.add(trained.error)
            return
        self.steps += trained.ledger.missing_steps
        for name in trained.state | whole.state:
            if trained.state.get(name) != whole.state.get(name):
                self.differing.add(name)


@dataclasses.dataclass(frozen=True)
class Trained:
    """A run from the start of a training to its end.

    Attributes:
        kills: SIGKILLs of its processes.
        state: Digests by object name.
        ledger: Result of verifying the data ledger.
        error: Reason why the library did not restart it; empty if it did.
    """

    kills: int
    state: dict[str, str]
    ledger: LedgerReport
    error: str = ""


@dataclasses.dataclass(frozen=True)
class Case:
    """One script in one setting.

    Attributes:
        family: The library.
        task: Name of its training.
        workers: Processes that load data.
        ranks: Processes that train.
    """

    family: str
    task: str
    workers: int
    ranks: int

    def run(self, folder: Path, *, kills: int, seed: int = 1, alone: bool = False) -> Outcome:
        """Train with and without kills, and compare.

        Args:
            folder: Directory of all written files, created here.
            kills: Total number of SIGKILLs.
            seed: Determines the moments of the kills.
            alone: Whether the library resumes without detcore.
        """
        folder.mkdir(parents=True)
        size = min(kills, 4)
        training = (
            TrialRuns(self, folder, size)
            if self.family == "trial" and not alone
            else ScriptRuns(self, folder, size, alone=alone)
        )
        expected = training.train("whole", kills=0, seed="")
        training.warm_up()
        outcome = Outcome()
        while outcome.kills < kills:
            name = str(outcome.runs + 1)
            remaining_kills = kills - outcome.kills
            trained = training.train(name, kills=remaining_kills, seed=f"{seed}-{self}-{name}")
            outcome.add(trained, expected)
        return outcome


class ScriptRuns:
    """Runs of a script whose library trains.

    Args:
        case: The script and its setting.
        folder: Receives a directory for each run.
        size: Epochs of one rank.
        alone: Whether the library saves and resumes without detcore.
    """

    def __init__(self, case: Case, folder: Path, size: int, *, alone: bool) -> None:
        # PyTorch has no trainer, so the control of a trial is the loop of PyTorch's tutorial.
        name = "pytorch_alone" if case.family == "trial" else f"{case.family}_tasks"
        self._case = case
        self._folder = folder
        self._alone = alone
        self._path = SCRIPTS / f"{name}.py"
        epochs = max(2, size) * case.ranks  # with twice the ranks an epoch has half the steps
        self._arguments = [
            f"--task={case.task}", f"--epochs={epochs}", f"--workers={case.workers}",
            f"--ranks={case.ranks}",
        ]  # fmt: skip
        self._arguments += ["--alone"] if alone else []

    def train(self, name: str, *, kills: int, seed: str) -> Trained:
        """Train from start to end, and kill each process while kills remain."""
        case = self._case
        script = Script(self._path, self._folder / name, self._arguments, case.ranks)
        num_kills = 0
        while True:
            kill = (
                Kill.drawn(f"{seed}-{num_kills}", ranks=case.ranks) if num_kills < kills else None
            )
            code = script.run(kill)
            if code == 0:
                break
            if code != -9 and self._alone and num_kills:
                error = re.findall(r"^[\w.]+Error\b", script.output(), re.MULTILINE)[-1]
                return Trained(
                    num_kills, {}, verify_ledger(script.folder), f"does not resume: {error}"
                )
            if code != -9:
                raise AssertionError(f"{case} ended with {code}:\n{script.output()[-4000:]}")
            num_kills += 1
        state = script.result()
        if not self._alone:
            state["validation metrics"] = _digest(script.metrics("validation"))
        return Trained(num_kills, state, verify_ledger(script.folder))

    def warm_up(self) -> None:
        """Import the script's modules into the process from which the next processes are forked."""
        Script(self._path, self._folder / "whole").preload()
        gc.collect()
        gc.freeze()  # the collector would copy the memory of each forked process


class TrialRuns:
    """Runs of a trial that ``detcore run`` restarts after each kill.

    Args:
        case: The trial and its setting.
        folder: Receives a directory for each run.
        size: A fifth of the batches to train, beyond the first 20.
    """

    def __init__(self, case: Case, folder: Path, size: int) -> None:
        self._case = case
        self._folder = folder
        self._size = size

    def train(self, name: str, *, kills: int, seed: str) -> Trained:
        """Train from start to end, and kill each process while kills remain."""
        case, run_folder = self._case, self._folder / name
        source, trial, hparams = TRIALS[case.task]
        model = run_folder / "model"
        model.mkdir(parents=True)
        for path in (source / "model_def.py", SCRIPTS / "killed_trial.py"):
            shutil.copy(path, model)
        variables = {"TEST_SUPPORT": str(HERE), "TEST_TRIAL": trial, "TEST_FOLDER": str(run_folder),
                     "TEST_KILLS": str(kills), "TEST_SEED": seed,
                     "TEST_WORKERS": str(case.workers)}  # fmt: skip
        with DetcoreCommand(run_folder, variables=variables) as detcore:
            config = detcore.write_config({
                "entrypoint": "killed_trial:KilledTrial",
                "hyperparameters": hparams,
                "searcher": {"name": "single", "metric": METRICS.get(case.task, "val_loss"),
                             "max_length": {"batches": 20 + 5 * self._size}},
                "scheduling_unit": 5,
                "min_validation_period": {"batches": 10},
                "min_checkpoint_period": {"batches": 2},
                "optimizations": {"aggregation_frequency": 1 + (case.task != "digits")},
                "max_restarts": kills,
                "resources": {"slots_per_trial": case.ranks},
                "reproducibility": {"experiment_seed": 1},
            })  # fmt: skip
            result = detcore("run", config, model, "--json", timeout_s=1500)
            assert result.code == 0, result.output[-4000:]
            uuid = result.summary["trials"][0]["latest_checkpoint"]
            state = _file_digests(detcore.home / "checkpoints" / uuid)
            with Database.open(f"sqlite:///{detcore.home}/detcore.db") as database:
                reports = database.metrics(1, "validation")
                validations = [(report.steps_completed, dict(report.metrics)) for report in reports]
        state["validation metrics"] = _digest(validations)
        ledger = verify_ledger(run_folder)
        return Trained(len(ledger.runs) - 1, state, ledger)

    def warm_up(self) -> None:
        """Fork the next commands and their workers, unless pytest controls this."""
        if "warm_python" not in sys.modules:
            sys.path.append(str(ROOT / "tests" / "support"))
            import warm_python

            modules = json.loads((self._folder / "whole" / "modules.json").read_text())
            warm_python.install([*modules, *RUNNER_MODULES])


def _file_digests(checkpoint: Path) -> dict[str, str]:
    """Return digests of the files of a checkpoint with training state, of all workers."""
    names = ("*.safetensors", "optimizer*.json", "torch.json", "worker.json")
    return {path.relative_to(checkpoint).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for name in names for path in checkpoint.rglob(name)}  # fmt: skip


def _digest(values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()


def main() -> None:
    """Print a row for each script in each setting."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", choices=FAMILIES, action="append")
    parser.add_argument("--task", choices=TASKS, action="append")
    parser.add_argument("--workers", type=int, action="append", help="loader processes: 0 and 2")
    parser.add_argument("--ranks", type=int, action="append", help="1 and 2")
    parser.add_argument("--kills", type=int, default=50, help="of each script in each setting")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--alone", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.append(str(SCRIPTS))
    importlib.import_module("_shared")
    print(
        "| family | script | loader workers | ranks | kills | runs | differs | twice | never | s |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    settings = itertools.product(
        options.family or FAMILIES, options.task or TASKS, options.workers or (0, 2),
        options.ranks or (1, 2),
    )  # fmt: skip
    for family, task, workers, ranks in settings:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            result = Case(family, task, workers, ranks).run(
                Path(folder) / "case", kills=options.kills, seed=options.seed, alone=options.alone
            )
        differing = ", ".join(sorted(result.differing)) or "nothing"
        cells = (family, task, workers, ranks, result.kills, result.runs, differing, result.twice,
                 result.never, round(time.monotonic() - began))  # fmt: skip
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
