"""The commands `detcore diverge` and `detcore replay` on trials of the toy framework."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from toy_command import Detcore, Finished

from detcore.errors import RunError
from detcore.types import TrialSettings
from detcore_replay.commands.result_printing import print_divergence
from detcore_replay.diverge.first_difference import Divergence
from detcore_replay.training.step_replay import build_worker_arguments

NUM_STEPS = 60
MODEL = """
import numpy as np
from detcore_toy import ToyController, ToyTrial

class Line(ToyTrial):
    def build_data(self):
        x = np.random.default_rng(3).normal(size=(96, 3))
        return x, x @ np.array([1.0, -2.0, 0.5])

    def on_batch(self, step):
        if step == 41:
            self.controller._rate *= 1.0
"""

LOOP = """
import numpy as np
from detcore import core

with core.init() as context:
    weights = np.zeros(3)
    context.train.digest_state(0, {"model.weights": weights})
    for step in range(1, 41):
        batch = np.random.default_rng([3, step]).normal(size=(8, 3))
        context.train.digest_batch(step, range(8 * step, 8 * step + 8), [batch])
        rate = 0.1 if step == 33 else 0.1
        weights += rate * batch.mean(axis=0)
        if step % 10 == 0:
            context.train.report_training_metrics(step, {"loss": float(weights.sum())})
            context.train.digest_state(step, {"model.weights": weights})
"""


class Runs:
    """A reference, a trial with a changed rate in step 42, and a trial without digests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.detcore = Detcore(folder)
        self.base = self.train(MODEL)
        self.other = self.train(MODEL.replace("*= 1.0", "*= 1.01"))
        self.without = self.train(MODEL, reproducibility__step_digests=0)

    def train(self, model: str, **changes: Any) -> int:
        """Train code; return the trial."""
        is_loop = "core.init" in model
        settings = {
            "searcher__max_length": {"batches": NUM_STEPS},
            "scheduling_unit": 10,
            "min_checkpoint_period": {"batches": 20},
            "reproducibility__step_digests": 1,
            **({"entrypoint": "python3 train.py"} if is_loop else {}),
            **changes,
        }
        code = self.folder / f"model-{len(list(self.folder.glob('model-*')))}"
        code.mkdir()
        (code / ("train.py" if is_loop else "model_def.py")).write_text(model)
        result = self.detcore("run", self.detcore.config(**settings), code, "--json")
        assert result.code == 0, result.output
        return int(result.summary["trials"][0]["trial_id"])

    def __call__(self, *words: object, code: int = 0) -> Finished:
        result = self.detcore(*words)
        assert result.code == code, result.output
        return result

    def trial_dir(self, trial: int) -> Path:
        with self.detcore.database() as database:
            directory = database.get_trial(trial).trial_dir
        assert directory is not None
        return Path(directory)

    def checkpoints(self, trial: int) -> dict[int, str]:
        """Return the checkpoints of a trial by step."""
        with self.detcore.database() as database:
            records = database.list_checkpoints(trial_id=trial)
        return {record.steps_completed: record.uuid for record in records}

    def digest(self) -> str:
        """Return a digest of the records and of all other files in DETCORE_HOME."""
        with self.detcore.database() as database:
            records = [
                (database.get_trial(trial), database.list_checkpoints(trial_id=trial))
                for trial in (self.base, self.other, self.without)
            ]
        hasher = hashlib.sha256(repr(records).encode())
        for path in sorted(self.detcore.home.rglob("*")):
            if path.is_file() and not path.name.startswith("detcore.db"):
                hasher.update(str(path).encode() + path.read_bytes())
        return hasher.hexdigest()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    trials = Runs(tmp_path_factory.mktemp("runs"))
    with trials.detcore:
        yield trials


def test_diverge_names_step_and_tensor(runs: Runs) -> None:
    before = runs.digest()
    result = runs("diverge", runs.base, runs.other, code=1)
    one, other = f"trial {runs.base}", f"trial {runs.other}"
    *lines, parting, names, largest = result.stdout.splitlines()
    assert lines == [
        "before the first step: the same settings, packages and machine",
        "code:",
        f"  --- {one}: model_def.py",
        f"  +++ {other}: model_def.py",
        "  @@ -11,2 +11,2 @@",
        "           if step == 41:",
        "  -            self.controller._rate *= 1.0",
        "  +            self.controller._rate *= 1.01",
    ]
    assert parting == f"{one} and {other} differ: step 42, tensor, model.weights"
    assert names == "  different after this step: model.weights"
    assert largest.startswith("  largest difference: model.weights ")
    assert runs.digest() == before


def test_no_replay_bounds_step_by_digests(runs: Runs) -> None:
    result = runs("diverge", runs.base, runs.other, "--no-replay", "--json", code=1)
    document = json.loads(result.stdout)
    assert (document["is_equal"], document["num_replays"]) == (False, 0)
    first = document["found"]
    assert (first["step"], first["after"], first["kind"]) == (43, 0, "loss")
    assert not first["is_exact"]
    assert "*= 1.01" in document["code"][-1]


@pytest.mark.cold
def test_equal_runs_with_and_without_digests(runs: Runs) -> None:
    result = runs("diverge", runs.base, runs.without)
    assert f"note: trial {runs.without} stored no step digests" in result.stdout
    assert f"are equal up to step {NUM_STEPS}\n" in result.stdout


def test_checkpoint_limits_compared_steps(runs: Runs) -> None:
    uuid = runs.checkpoints(runs.other)[40]
    result = runs("diverge", runs.base, uuid)
    assert f"checkpoint {uuid[:8]} are equal up to step 40\n" in result.stdout


def test_replay_equals_run(runs: Runs) -> None:
    before = runs.digest()
    result = runs("replay", runs.base, "--steps", "43:60")
    # From the checkpoint of step 40. States were stored after steps 0 and 50.
    assert result.stdout == (
        f"trial {runs.base}, steps 43:60: equal (20 steps compared, 1 with the whole state)\n"
    )
    result = runs("replay", runs.base, "--check", 2, "--json")
    document = json.loads(result.stdout)
    assert (document["is_equal"], len(document["ranges"])) == (True, 2)
    assert runs.digest() == before


def test_different_replay_names_step_and_checkpoint(runs: Runs) -> None:
    """Data outside of the run's code changed, as on another machine."""
    data = runs.folder / "rate.txt"
    data.write_text("1.0")
    trial = runs.train(MODEL.replace("*= 1.0", f"*= float(open({str(data)!r}).read())"))
    data.write_text("1.5")
    uuid = runs.checkpoints(trial)[40]
    shutil.rmtree(runs.detcore.home / "checkpoints" / uuid)
    result = runs("replay", trial, "--steps", "41:60", code=1)
    note, parting = result.stdout.splitlines()
    assert note.startswith(f"note: checkpoint {uuid} of trial {trial} (step 40) cannot be read, so")
    where = "step 43 (or an earlier step after 30 without a digest), loss"
    assert parting == f"trial {trial}, steps 41:60: the replay differs: {where}"


def test_framework_without_tensors_compares_metrics(runs: Runs) -> None:
    model = MODEL.replace("class Line", "del ToyController.state_tensors\n\nclass Line")
    trial = runs.train(model.replace("*= 1.0", "*= 1.01"))
    result = runs("replay", trial, code=1)
    assert "error: trials of the framework toy cannot be replayed: its controller" in result.stderr
    result = runs("diverge", runs.base, trial, code=1)
    assert "note: not replayed: trials of the framework toy cannot be replayed" in result.stdout
    assert "differ: step 43 (or an earlier step after 0 without a digest), loss\n" in result.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("diverge", 1, 99), "trial 99"),
        (("replay", 1, "--steps", "1:99"), "step 99 does not exist: trial 1 has 60 steps"),
        (("replay", 1, "--steps", "9:1"), "'9:1' is not a range A:B of steps with 1 <= A <= B"),
        (
            ("replay", 1, "--steps", "1:2", "--check", "1"),
            "--check both select steps; pass only one",
        ),
        (("replay", 3), "trial 3 stored no step digests, so a replay cannot be compared with it"),
    ],
)
def test_impossible_comparisons_are_rejected(
    runs: Runs, words: tuple[object, ...], message: str
) -> None:
    result = runs.detcore(*words)
    assert result.code in (1, 2)
    assert message in result.stderr, result.output


def test_custom_loop_records_digests(runs: Runs) -> None:
    one = runs.train(LOOP)
    other = runs.train(LOOP.replace("rate = 0.1 if", "rate = 0.2 if"))
    result = runs("diverge", one, other, code=1)
    assert f"note: not replayed: trial {one} was trained by a command" in result.stdout
    where = "step 40 (or an earlier step after 30 without a digest), loss, model.weights"
    assert f"trial {one} and trial {other} differ: {where}\n" in result.stdout
    other = runs.train(LOOP.replace("8 * step + 8)", "8 * step + 8)[:: -1 if step == 22 else 1]"))
    result = runs("diverge", one, other, code=1)
    assert (
        f"trial {one} and trial {other} differ: step 22 (or an earlier step after" in result.stdout
    )
    assert result.stdout.endswith("without a digest), record order\n")


def test_scripts_without_runner_are_compared(tmp_path: Path) -> None:
    detcore = Detcore(tmp_path)
    detcore.folder.mkdir(parents=True, exist_ok=True)
    for rate in ("0.1", "0.2"):
        script = detcore.folder / "train.py"
        script.write_text(LOOP.replace("0.1 if step == 33", f"{rate} if step == 33"))
        assert detcore.python(script).code == 0
    result = detcore("diverge", 1, 2)
    assert result.code == 1, result.output
    assert (
        "note: not replayed: trial 1 was trained by a command (python3 train.py)" in result.stdout
    )
    where = "step 40 (or an earlier step after 30 without a digest), loss, model.weights"
    assert f"trial 1 and trial 2 differ: {where}\n" in result.stdout
    script.write_text("from detcore import core\nwith core.init(): pass\n")
    assert detcore.python(script).code == 0
    result = detcore("replay", 3)  # without digests
    assert "error: trial 3 was trained by a command (python3 train.py)" in result.stderr


@pytest.mark.soak
def test_other_models_data_and_versions_are_noted(runs: Runs) -> None:
    other = runs.train(MODEL.replace("(96, 3)", "(96, 4)").replace("0.5]", "0.5, 1.0]"))
    result = runs("diverge", runs.base, other, code=1)
    assert result.stdout.splitlines()[-2].endswith(
        "differ: before step 1: different models, model.weights"
    )
    other = runs.train(LOOP)
    result = runs("diverge", runs.base, other, code=1)
    assert "  framework: toy / -\n" in result.stdout
    assert f"trial {other} differ: before step 1: different models\n" in result.stdout
    data, module = runs.folder / "scale.txt", runs.folder / "lib" / "numerics.py"
    data.write_text("1.0")
    module.parent.mkdir()
    module.write_text("__version__ = '1.0'")
    code = f"import sys; sys.path.append({str(module.parent)!r}); import numerics\n{MODEL}"
    trial = runs.train(
        code.replace("return x,", f"x *= float(open({str(data)!r}).read())\n        return x,")
    )
    data.write_text("1.5")
    module.write_text("__version__ = '2.0.1'")
    result = runs("replay", trial, code=1)
    assert result.stdout == (
        f"note: trial {trial} had numerics 1.0 (here 2.0.1)\n"
        "note: the content of the batch differs: the data was changed since the run\n"
        f"trial {trial}, steps 1:60: the replay differs: step 1, record content\n"
    )
    result = runs("diverge", runs.train(MODEL.replace("*= 1.0", "*= 1.01")), trial, code=1)
    note = "the content of the batch differs: the data was changed since the run"
    assert f"note: trial {trial}, step 1: {note}\n" in result.stdout


def test_missing_code_is_noted(runs: Runs) -> None:
    trial = runs.train(MODEL.replace("*= 1.0", "*= 1.02"), checkpoint_policy="none")
    code = next(runs.trial_dir(trial).parent.parent.glob("**/model_def.py")).parent
    shutil.rmtree(code)
    result = runs("diverge", runs.base, trial, code=1)
    assert f"note: not replayed: the code of trial {trial} no longer exists" in result.stdout
    assert "differ: step 43" in result.stdout


@pytest.mark.parametrize(("num_settings", "rest"), [(12, 0), (13, 1)])
def test_output_shows_twelve_settings(
    capsys: pytest.CaptureFixture[str], num_settings: int, rest: int
) -> None:
    settings = [(f"data.{number}", "1", "2") for number in range(num_settings)]
    print_divergence(
        Divergence(
            labels=("trial 1", "trial 2"), settings=settings, code=[], compared_to=9, found=None,
            num_replays=0, notes=(),
        )
    )  # fmt: skip
    _, *lines, last = capsys.readouterr().out.splitlines()
    assert lines[:12] == [f"  data.{number}: 1 / 2" for number in range(12)]
    assert lines[12:] == [f"  and {rest} more settings: --json"] * (rest > 0)
    assert last == "trial 1 and trial 2 are equal up to step 9"


@pytest.mark.parametrize(("slots", "words"), [(1, []), (2, ["2"]), (16, ["16"]), (17, None)])
def test_replay_allows_four_workers_per_core(
    monkeypatch: pytest.MonkeyPatch, slots: int, words: list[str] | None
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    info: Any = SimpleNamespace(settings=TrialSettings(slots_per_trial=slots))
    if words is not None:
        assert build_worker_arguments(info) == words
        return
    with pytest.raises(RunError, match=r"had 17 workers, and this machine has 4 processor cores"):
        build_worker_arguments(info)
