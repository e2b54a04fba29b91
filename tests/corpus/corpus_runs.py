"""Run the scripts of the corpus uninterrupted, killed at three moments, and with their library.

Each script runs to its end, and a second time with three kills: at the second batch, within an
epoch, and at the end of an epoch. Weights, optimizers, averages, printed results and validation
metrics are compared bit for bit. Scripts of libraries with a resume also run without detcore, with
the same kills, as a control.

    python tests/corpus/corpus_runs.py [--only NAME ...] [--no-control] [--write]

``--write`` merges the results into ``results.json`` beside this file, and writes ``RESULTS.md`` and
the table in ``docs/data.md``.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from library_alone import LIBRARIES

from detcore import errors
from detcore.records import Database, ingest_event_logs

__all__ = ["SCRIPTS", "CorpusScript", "Outcome", "Status", "check_script", "list_scripts"]

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
# Directories of scripts with a class for `detcore run`.
TRIALS = ("estimator", "gpu", "keras_trial", "pytorch_trial")
# The package that each directory of scripts imports; "core_api" scripts name theirs in a comment.
PACKAGES = {
    "accelerate": "accelerate", "estimator": "tensorflow", "gpu": "torch", "keras": "tensorflow",
    "keras_trial": "tensorflow", "lightning": "lightning", "pytorch_trial": "torch",
    "transformers": "transformers",
}  # fmt: skip
# Modules that import the frameworks and libraries.
PRELOADED = {
    "torch": "detcore_torch.pytorch_controller",
    "transformers": "detcore_torch.for_transformers",
    "lightning": "detcore_torch.for_lightning",
    "accelerate": "detcore_torch.for_accelerate",
    "tensorflow": "detcore_keras.keras_controller",
}
CONFIG: dict[str, Any] = {
    "entrypoint": "start_trial:Trial",
    "hyperparameters": {"global_batch_size": 16, "learning_rate": 0.01},
    "searcher": {"name": "single", "metric": "val_loss"},
    "min_validation_period": {"epochs": 1},
    "min_checkpoint_period": {"batches": 5},
    "scheduling_unit": 3,
    "reproducibility": {"experiment_seed": 7, "step_digests": 1},
    "max_restarts": 0,
}
PROCESS_TIMEOUT_S = 400
# A script that stops early may end before the last kill.
MIN_KILLS = 2
# Files of a checkpoint with the state of training.
STATE_FILES = re.compile(
    r"(\.safetensors|\.npz|/optimizer(-\d+)?\.json|/torch\.json|/worker\.json|/rng\.json"
    r"|/callbacks\.json|\.data-00000-of-00001)$"
)
# Warnings about state that a resumed run does not repeat.
WARNING = re.compile(r"[^\n]*(?:cannot contain|cannot be saved|is not saved|other numbers)[^\n]*")


class Status:
    """How the killed run of a script ended, compared with the uninterrupted run."""

    EXACT = "exact"
    REFUSED = "refused before the first batch"
    REPORTED = "inexact and reported"
    SILENT = "inexact and silent"
    BROKEN = "the script fails"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a script.

    Attributes:
        name: Directory and name of the script.
        status: One of the constants of `Status`.
        detail: Message of a refusal or report, or what differs.
        kills: Number of processes that were killed.
        alone: How the library resumes without detcore; empty if it was not run.
    """

    name: str
    status: str
    detail: str = ""
    kills: int = 0
    alone: str = ""


@dataclasses.dataclass(frozen=True)
class CorpusScript:
    """A script of the corpus.

    Attributes:
        path: Its file.
    """

    path: Path

    @property
    def family(self) -> str:
        """The way in which it uses detcore."""
        return self.path.parent.name

    @property
    def name(self) -> str:
        """Directory and name."""
        return f"{self.family}/{self.path.stem}"

    @property
    def is_trial(self) -> bool:
        """Whether `detcore run` trains a class of it."""
        return self.family in TRIALS

    def choose_event(self, *, alone: bool) -> str:
        """Return the event that `kill_points` counts."""
        if self.family == "keras":
            return "keras" if alone else "report"
        if self.family == "core_api":
            return "batch"
        return "report" if self.family in ("estimator", "keras_trial") else "optimizer"

    @property
    def is_installed(self) -> bool:
        """Whether this environment has all packages that it imports."""
        names = re.findall(r"^(?:import|from) (\w+)", self.path.read_text(), re.MULTILINE)
        names += [PACKAGES[self.family]] if self.family in PACKAGES else []
        return all(find_spec(name) for name in names)

    def read_setting(self, name: str) -> str:
        """Return the value of a global constant, or of a comment such as ``# config: ...``."""
        match = re.search(rf"^(?:{name} = |# {name}: )(.+)$", self.path.read_text(), re.MULTILINE)
        return match[1].strip() if match else ""


def list_scripts() -> list[CorpusScript]:
    """Return the scripts whose packages are installed in this environment."""
    scripts = (CorpusScript(path) for path in sorted(SCRIPTS.glob("*/*.py")))
    return [script for script in scripts if script.is_installed]


class ScriptRun:
    """The processes of a script in one directory.

    Args:
        script: The script.
        folder: Directory of everything that it writes; created here.
        alone: Whether its library resumes without detcore.
    """

    def __init__(self, script: CorpusScript, folder: Path, *, alone: bool = False) -> None:
        folder.mkdir(parents=True)
        self._script = script
        self._folder = folder
        self._alone = alone
        self.outputs: list[str] = []
        if script.is_trial:
            (folder / "code").mkdir()
            (folder / "code" / "model_def.py").write_text(script.path.read_text())
            (folder / "code" / "start_trial.py").write_text((HERE / "start_trial.py").read_text())

    def start(self, kill_at: int = 0) -> int:
        """Run or resume the script in a new process, and return its exit code."""
        variables = {
            "CORPUS_SUPPORT": str(HERE), "CORPUS_FOLDER": str(self._folder),
            "CORPUS_EVENT": self._script.choose_event(alone=self._alone),
            "CORPUS_KILL_AT": str(kill_at),
            "CORPUS_ALONE": "1" if self._alone else "",
        }  # fmt: skip
        command: list[object] = [HERE / "start_script.py", self._script.path]
        if self._script.is_trial:
            command = ["-m", "detcore", "run", *(self._list_options() or ["--resume", "1"])]
        finished = subprocess.run(
            [sys.executable, *map(str, command)],
            env={**os.environ, "DETCORE_HOME": str(self._folder / "home"), **variables},
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PROCESS_TIMEOUT_S,
            check=False,
        )
        self.outputs.append(finished.stdout)
        return finished.returncode

    def _list_options(self) -> list[str]:
        """Return the arguments of the first `detcore run`; none for a resume."""
        if self.outputs:
            return []
        path = self._folder / "config.yaml"
        path.write_text(json.dumps(CONFIG))  # which is YAML
        settings = [f"searcher.max_length.epochs={self._script.read_setting('EPOCHS')}"]
        settings += self._script.read_setting("config").split()
        settings += ["reproducibility.deterministic_ops=true"] * (self._script.family == "gpu")
        words = [word for setting in settings for word in ("--set", setting)]
        return [str(path), str(self._folder / "code"), *words]

    @property
    def output(self) -> str:
        """The output of all processes."""
        return "\n".join(self.outputs)

    def count_batches(self) -> int:
        """Return the number of batches of the last process that ended normally."""
        path = self._folder / "count.txt"
        return int(path.read_text()) if path.exists() else 0

    def read_progress(self) -> int:
        """Return the steps of the latest checkpoint."""
        manifests = self._folder.glob("home/checkpoints/*/manifest.json")
        steps: list[int] = [json.loads(path.read_text())["steps_completed"] for path in manifests]
        return max([0, *steps])

    def read_result(self) -> dict[str, str]:
        """Return digests of the final state and metrics."""
        path = self._folder / "result.json"
        result: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
        for number, line in enumerate(re.findall(r"^final.*$", self.outputs[-1], re.MULTILINE)):
            result[f"printed line {number + 1}"] = line
        if not self._alone:
            result |= dict(self._read_records())
        return result

    def read_difference(self) -> str:
        """Return the first difference that a resumed run has recorded, or an empty string."""
        with self._open_records() as database:
            events = [
                event.payload
                for trial in database.list_trials(1)
                for event in database.events(trial.id, "resume_compared")
            ]
        differences = [event["difference"] for event in events if event.get("difference")]
        if not differences:
            return ""
        first = differences[0]
        return ", ".join([f"step {first['step']}", first["kind"], *first["tensors"][:3]])

    def _read_records(self) -> Iterator[tuple[str, str]]:
        with self._open_records() as database:
            for experiment in database.list_experiments():
                for trial in database.list_trials(experiment.id):
                    for kind in ("validation", "training"):
                        reports = [
                            (report.steps_completed, sorted(report.metrics.items()))
                            for report in database.metrics(trial.id, kind)
                        ]
                        yield f"{kind} metrics of trial {trial.id}", repr(reports)
                    latest = database.latest_checkpoint(trial.id)
                    if latest is not None and self._script.is_trial:
                        yield from self._digest_files(latest.uuid)

    def _digest_files(self, uuid: str) -> Iterator[tuple[str, str]]:
        folder = self._folder / "home" / "checkpoints" / uuid
        for path in sorted(folder.rglob("*")):
            if path.is_file() and STATE_FILES.search(path.as_posix()):
                digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
                yield path.relative_to(folder).as_posix(), digest

    def _open_records(self) -> Database:
        home = self._folder / "home"
        database = Database.open(f"sqlite:///{home}/detcore.db")
        ingest_event_logs(database, home)
        return database


def check_script(script: CorpusScript, folder: Path, *, control: bool = False) -> Outcome:
    """Run a script with and without kills, and compare.

    Args:
        script: The script.
        folder: Directory of all written files.
        control: Whether to run the script's library alone as well.
    """
    outcome = _compare_runs(script, folder, alone=False)
    if not control:
        return outcome
    alone = _compare_runs(script, folder / "alone", alone=True)
    words = {Status.SILENT: "inexact", Status.REPORTED: "inexact or an error"}
    return dataclasses.replace(outcome, alone=words.get(alone.status, alone.status))


def _compare_runs(script: CorpusScript, folder: Path, *, alone: bool) -> Outcome:
    uninterrupted = ScriptRun(script, folder / "whole", alone=alone)
    if (code := uninterrupted.start()) != 0:
        is_refused = uninterrupted.count_batches() == 0 and any(
            name in uninterrupted.output for name in errors.__all__
        )
        status = Status.REFUSED if is_refused else Status.BROKEN
        return Outcome(name=script.name, status=status, detail=_find_error(uninterrupted, code))
    killed = ScriptRun(script, folder / "killed", alone=alone)
    kills = earlier = 0
    for moment in [*_list_moments(script, uninterrupted), 0]:
        kill_at = _find_relative_batch(uninterrupted, killed, moment) if moment else 0
        # The library's own checkpoints have no common form.
        code = killed.start(max(1, moment - earlier) if alone and moment else kill_at)
        earlier = moment
        if code == 0:
            break
        if not moment or not (code == -signal.SIGKILL or "SIGKILL" in killed.outputs[-1]):
            detail = _find_error(killed, code)
            return Outcome(name=script.name, status=Status.REPORTED, detail=detail, kills=kills)
        kills += 1
    outcome = _compare_results(script, uninterrupted, killed, alone=alone)
    if kills < MIN_KILLS:
        outcome = dataclasses.replace(
            outcome, status=Status.BROKEN, detail=f"it was killed {kills} times"
        )
    return dataclasses.replace(outcome, kills=kills)


def _compare_results(
    script: CorpusScript, uninterrupted: ScriptRun, killed: ScriptRun, *, alone: bool
) -> Outcome:
    expected, result = uninterrupted.read_result(), killed.read_result()
    if not expected:
        return Outcome(name=script.name, status=Status.BROKEN, detail="it leaves no result")
    # Only the resumed script has variables with the content of its checkpoint.
    names = [name for name in expected if expected[name] != result.get(name)]
    if not names:
        return Outcome(name=script.name, status=Status.EXACT)
    difference = "" if alone else killed.read_difference()
    warning = WARNING.search(uninterrupted.output + killed.output)
    detail = difference or (warning[0].strip() if warning else "")
    status = Status.REPORTED if detail and not alone else Status.SILENT
    return Outcome(name=script.name, status=status, detail=f"{', '.join(names[:4])}: {detail}")


def _list_moments(script: CorpusScript, uninterrupted: ScriptRun) -> list[int]:
    """Return the batches of the kills, counted from the start of training."""
    batches, epochs = uninterrupted.count_batches(), int(script.read_setting("EPOCHS") or 1)
    end_of_epoch = batches * max(epochs - 1, 1) // epochs
    return [2, round(0.45 * batches), max(end_of_epoch, round(0.45 * batches) + 1) + 1]


def _find_relative_batch(uninterrupted: ScriptRun, killed: ScriptRun, batch: int) -> int:
    """Return the batch of a kill, counted from the start of the process."""
    length = uninterrupted.read_progress()
    num_saved = uninterrupted.count_batches() * killed.read_progress() / length if length else 0
    return max(1, batch - round(num_saved))


def _find_error(run: ScriptRun, code: int) -> str:
    lines = [
        line.strip() for line in run.outputs[-1].splitlines()
        if re.search(r"\w*(Error|Exception|error)\b.*:", line)
    ]  # fmt: skip
    return lines[-1] if lines else f"exit code {code}"


def warm_up() -> None:
    """Start processes by forking a process that has imported the frameworks."""
    sys.path.append(str(HERE.parent / "support"))
    import warm_python

    names = [name for package, name in PRELOADED.items() if find_spec(package)]
    warm_python.install([*names, "detcore.cli.run_command", "detcore.run"])


def describe_environment() -> str:
    """Return the versions of the installed frameworks."""
    names = ("torch", "tensorflow_cpu", "keras")
    return ", ".join(f"{name} {version(name)}" for name in names if find_spec(name.split("_")[0]))


def check_gpu() -> None:
    """Exit with one line if PyTorch finds no CUDA device, and print the device otherwise."""
    import torch

    if not torch.cuda.is_available():
        sys.exit(
            f"no CUDA device: torch {torch.__version__} is built for CUDA {torch.version.cuda} and "
            f"finds {torch.cuda.device_count()} devices. Check nvidia-smi and PyTorch's build."
        )
    # cuBLAS reads it when it starts, and PyTorch refuses deterministic products without it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name()}")


def main() -> None:
    """Print a line for each script, and write the tables if requested."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names")
    parser.add_argument("--no-control", action="store_true", help="leave out the libraries alone")
    parser.add_argument(
        "--gpu", action="store_true", help="only the scripts for a GPU; fails without a CUDA device"
    )
    parser.add_argument("--write", action="store_true", help="write the results and the tables")
    options = parser.parse_args()
    if options.gpu:
        check_gpu()
        options.only = ["gpu/"]
    warm_up()
    outcomes = []
    for script in list_scripts():
        if not any(part in script.name for part in options.only):
            continue
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            control = script.family in LIBRARIES and not options.no_control
            outcomes.append(check_script(script, Path(folder) / "runs", control=control))
        seconds = time.monotonic() - started
        outcome = outcomes[-1]
        if options.write:
            from corpus_tables import write_results

            write_results([outcome], describe_environment())
        words = [outcome.status, outcome.detail, outcome.alone and f"(alone: {outcome.alone})"]
        print(f"{script.name:36} {seconds:4.0f} s ", *filter(None, words), flush=True)
    if any(outcome.status in (Status.SILENT, Status.BROKEN) for outcome in outcomes):
        sys.exit(1)


if __name__ == "__main__":
    main()
