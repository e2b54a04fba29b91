"""Scripts of PyTorch's libraries, killed by SIGKILL at random, against runs that were not.

Each script trains once without a kill and once with them, in the same setting: loader processes and
ranks, over gloo. A row compares weights, optimizer, schedule, scaler, random generators and
validation metrics, and gives the verdict of the data ledger. With ``--alone`` the library saves and
resumes by itself, in the same harness: the control, which shows what the comparison notices.

    python plugins/torch/tests/_campaign.py [--family trainer] [--kills 50] [--alone]
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import itertools
import shutil
import tempfile
from pathlib import Path

from _killed_scripts import Kill, Script

from detcore_replay import LedgerReport, verify_ledger
from detcore_testing import DetcoreCommand

__all__ = ["FAMILIES", "TASKS", "Case", "Outcome"]

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
TASKS = ("points", "digits", "text")
EXAMPLES = HERE.parents[2] / "examples"
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
# The module of each library, imported before processes are forked.
FAMILIES = {
    "trial": "detcore_torch",
    "trainer": "detcore_torch.for_transformers",
    "lightning": "detcore_torch.for_lightning",
    "accelerate": "detcore_torch.for_accelerate",
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run that was killed differs from one that was not.

    Attributes:
        kills: SIGKILLs that hit it.
        differing: Objects whose digests differ.
        twice: Uses of a record that repeat it within its epoch.
        never: Records that an epoch did not use.
        steps: Steps that no ledger has.
    """

    kills: int
    differing: tuple[str, ...]
    twice: int
    never: int
    steps: int

    @property
    def is_exact(self) -> bool:
        """Whether nothing differs."""
        return not (self.differing or self.twice or self.never or self.steps)


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
            folder: For everything that is written; made here.
            kills: SIGKILLs before it may train to its end.
            seed: Decides where the kills fall.
            alone: Whether the library resumes by itself, without detcore.
        """
        folder.mkdir(parents=True)
        if self.family == "trial" and not alone:
            return self._run_trial(folder, kills, seed)
        if self.family == "trial":  # PyTorch has no trainer: its tutorial's loop is the control
            path = SCRIPTS / "pytorch_alone.py"
        else:
            importlib.import_module(FAMILIES[self.family])
            path = SCRIPTS / f"{self.family}_{self.task}.py"
        # About four steps for each kill, so that it is hit before its end.
        epochs = max(2, kills * 5 * self.ranks * (2 if self.task == "points" else 1) // 10)
        arguments = [f"--epochs={epochs}", f"--workers={self.workers}", f"--ranks={self.ranks}"]
        arguments += ["--alone"] if alone else []
        whole = Script(path, folder / "whole", arguments, self.ranks)
        broken = Script(path, folder / "broken", arguments, self.ranks)
        if code := whole.run_to(None):
            raise AssertionError(f"{self} ended with {code}:\n{whole.output()[-4000:]}")
        whole.preload()
        done = 0
        for number in range(kills):
            kill = Kill.drawn(f"{seed}-{self}-{number}", ranks=self.ranks)
            code = broken.run_to(kill)
            if code == 0:
                break
            if code != -9:
                raise AssertionError(f"{self} ended with {code}:\n{broken.output()[-4000:]}")
            done += 1
        else:
            if code := broken.run_to(None):
                raise AssertionError(f"{self} ended with {code}:\n{broken.output()[-4000:]}")
        return compared(whole, broken, done)

    def _run_trial(self, folder: Path, kills: int, seed: int) -> Outcome:
        """Train a trial that ``detcore run`` starts again after each kill."""
        source, name, hparams = TRIALS[self.task]
        finals = []
        for number in (0, kills):
            own = folder / str(number)
            model = own / "model"
            model.mkdir(parents=True)
            for path in (source / "model_def.py", SCRIPTS / "killed_trial.py"):
                shutil.copy(path, model)
            variables = {"TEST_SUPPORT": str(HERE), "TEST_TRIAL": name, "TEST_FOLDER": str(own),
                         "TEST_KILLS": str(number), "TEST_SEED": f"{seed}-{self}",
                         "TEST_WORKERS": str(self.workers)}  # fmt: skip
            with DetcoreCommand(own, variables=variables) as detcore:
                config = detcore.write_config({
                    "entrypoint": "killed_trial:KilledTrial",
                    "hyperparameters": hparams,
                    "searcher": {"name": "single", "metric": METRICS.get(self.task, "val_loss"),
                                 "max_length": {"batches": 20 + 5 * kills}},
                    "scheduling_unit": 5,
                    "min_validation_period": {"batches": 10},
                    "min_checkpoint_period": {"batches": 2},
                    "optimizations": {"aggregation_frequency": 1 + (self.task != "digits")},
                    "max_restarts": kills,
                    "resources": {"slots_per_trial": self.ranks},
                    "reproducibility": {"experiment_seed": 1},
                })  # fmt: skip
                done = detcore("run", config, model, "--json", timeout_s=1500)
                assert done.code == 0, done.output[-4000:]
                uuid = done.summary["trials"][0]["latest_checkpoint"]
                finals.append(_files(detcore.home / "checkpoints" / uuid))
        differing = {name for name in finals[0] | finals[1]
                     if finals[0].get(name) != finals[1].get(name)}  # fmt: skip
        ledger = verify_ledger(folder / str(kills))
        return _outcome(len(ledger.runs) - 1, differing, ledger)


def _files(checkpoint: Path) -> dict[str, bytes]:
    """Return the files of a checkpoint that hold training state, of all workers."""
    names = ("*.safetensors", "torch.json", "worker.json")
    return {path.relative_to(checkpoint).as_posix(): path.read_bytes()
            for name in names for path in checkpoint.rglob(name)}  # fmt: skip


def compared(whole: Script, broken: Script, kills: int) -> Outcome:
    """Compare the results, the ledger, and (with detcore) the validations of two runs."""
    expected, found = whole.result(), broken.result()
    differing = {name for name in expected.keys() | found.keys()
                 if expected.get(name) != found.get(name)}  # fmt: skip
    if (whole.folder / "home").exists() and whole.metrics("validation") != broken.metrics(
        "validation"
    ):
        differing.add("validation metrics")
    return _outcome(kills, differing, verify_ledger(broken.folder))


def _outcome(kills: int, differing: set[str], ledger: LedgerReport) -> Outcome:
    return Outcome(
        kills=kills,
        differing=tuple(sorted(differing)),
        twice=sum(epoch.num_twice for epoch in ledger.epochs),
        never=sum(epoch.num_never or 0 for epoch in ledger.epochs),
        steps=ledger.missing_steps,
    )


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
    print("| family | script | loader workers | ranks | kills | differs | twice | never |")
    print("|---|---|---|---|---|---|---|---|")
    settings = itertools.product(
        options.family or FAMILIES, options.task or TASKS, options.workers or (0, 2),
        options.ranks or (1, 2),
    )  # fmt: skip
    for family, task, workers, ranks in settings:
        with tempfile.TemporaryDirectory() as folder:
            found = Case(family, task, workers, ranks).run(
                Path(folder) / "case", kills=options.kills, seed=options.seed, alone=options.alone
            )
        differing = ", ".join(found.differing) or "nothing"
        cells = (family, task, workers, ranks, found.kills, differing, found.twice, found.never)
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
