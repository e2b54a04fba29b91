"""`detcore diverge` and `detcore replay`, as users run them, on trials of the toy framework."""

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
from detcore_replay.training.step_replay import worker_words

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
    """Trials of one home: the first, one that changes its rate in step 42, one without digests."""

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
        done = self.detcore("run", self.detcore.config(**settings), code, "--json")
        assert done.code == 0, done.output
        return int(done.summary["trials"][0]["trial_id"])

    def __call__(self, *words: object, code: int = 0) -> Finished:
        done = self.detcore(*words)
        assert done.code == code, done.output
        return done

    def trial_dir(self, trial: int) -> Path:
        with self.detcore.database() as database:
            found = database.get_trial(trial).trial_dir
        assert found is not None
        return Path(found)

    def checkpoints(self, trial: int) -> dict[int, str]:
        """Return the checkpoints of a trial by their steps."""
        with self.detcore.database() as database:
            saved = database.list_checkpoints(trial_id=trial)
        return {each.steps_completed: each.uuid for each in saved}

    def digest(self) -> str:
        """Return a digest of the records and of every file of the home but the database's."""
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
    made = Runs(tmp_path_factory.mktemp("runs"))
    with made.detcore:
        yield made


def test_diverge_names_the_step_and_the_tensor_and_changes_nothing(runs: Runs) -> None:
    before = runs.digest()
    done = runs("diverge", runs.base, runs.other, code=1)
    one, other = f"trial {runs.base}", f"trial {runs.other}"
    *lines, parting, names, largest = done.stdout.splitlines()
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
    assert names == "  differ after it: model.weights"
    assert largest.startswith("  largest difference: model.weights ")
    assert runs.digest() == before


def test_without_a_replay_the_stored_digests_bound_the_step(runs: Runs) -> None:
    done = runs("diverge", runs.base, runs.other, "--no-replay", "--json", code=1)
    found = json.loads(done.stdout)
    assert (found["is_equal"], found["num_replays"]) == (False, 0)
    first = found["found"]
    assert (first["step"], first["after"], first["kind"]) == (43, 0, "loss")
    assert not first["is_exact"]
    assert "*= 1.01" in found["code"][-1]


@pytest.mark.cold
def test_equal_runs_are_equal_with_and_without_digests(runs: Runs) -> None:
    done = runs("diverge", runs.base, runs.without)
    assert f"note: trial {runs.without} stored no step digests" in done.stdout
    assert f"are equal up to step {NUM_STEPS}\n" in done.stdout


def test_a_checkpoint_stands_for_the_steps_before_it(runs: Runs) -> None:
    uuid = runs.checkpoints(runs.other)[40]
    done = runs("diverge", runs.base, uuid)
    assert f"checkpoint {uuid[:8]} are equal up to step 40\n" in done.stdout


def test_a_run_repeats_itself(runs: Runs) -> None:
    before = runs.digest()
    done = runs("replay", runs.base, "--steps", "43:60")
    # From the checkpoint of step 40 on; the state was stored after steps 0 and 50.
    assert done.stdout == (
        f"trial {runs.base}, steps 43:60: equal (20 steps compared, the whole state after 1)\n"
    )
    done = runs("replay", runs.base, "--check", 2, "--json")
    found = json.loads(done.stdout)
    assert (found["is_equal"], len(found["ranges"])) == (True, 2)
    assert runs.digest() == before


def test_a_replay_that_differs_says_where_and_from_which_checkpoint(runs: Runs) -> None:
    """As on a machine that computes something else: data outside of the run's code changed."""
    data = runs.folder / "rate.txt"
    data.write_text("1.0")
    trial = runs.train(MODEL.replace("*= 1.0", f"*= float(open({str(data)!r}).read())"))
    data.write_text("1.5")
    uuid = runs.checkpoints(trial)[40]
    shutil.rmtree(runs.detcore.home / "checkpoints" / uuid)
    done = runs("replay", trial, "--steps", "41:60", code=1)
    note, parting = done.stdout.splitlines()
    assert note.startswith(f"note: checkpoint {uuid} of trial {trial} (step 40) cannot be read, so")
    where = "step 43 (or a step after 30 that no digest shows), loss"
    assert parting == f"trial {trial}, steps 41:60: the replay differs: {where}"


def test_a_framework_that_names_no_tensors_is_compared_by_its_metrics(runs: Runs) -> None:
    model = MODEL.replace("class Line", "del ToyController.state_tensors\n\nclass Line")
    trial = runs.train(model.replace("*= 1.0", "*= 1.01"))
    done = runs("replay", trial, code=1)
    assert "error: trials of the framework toy cannot be replayed: its controller" in done.stderr
    done = runs("diverge", runs.base, trial, code=1)
    assert "note: not replayed: trials of the framework toy cannot be replayed" in done.stdout
    assert "differ: step 43 (or a step after 0 that no digest shows), loss\n" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("diverge", 1, 99), "trial 99"),
        (("replay", 1, "--steps", "1:99"), "trial 1 has 60 steps, so there is no step 99"),
        (("replay", 1, "--steps", "9:1"), "'9:1' is not A:B, two steps with 1 <= A <= B"),
        (("replay", 1, "--steps", "1:2", "--check", "1"), "--check draws some; pass one"),
        (("replay", 3), "trial 3 stored no step digests, so there is nothing to compare with"),
    ],
)
def test_what_cannot_be_answered_is_an_error(
    runs: Runs, words: tuple[object, ...], message: str
) -> None:
    done = runs.detcore(*words)
    assert done.code in (1, 2)
    assert message in done.stderr, done.output


def test_a_loop_of_ones_own_takes_part_by_two_calls(runs: Runs) -> None:
    one = runs.train(LOOP)
    other = runs.train(LOOP.replace("rate = 0.1 if", "rate = 0.2 if"))
    done = runs("diverge", one, other, code=1)
    assert f"note: not replayed: trial {one} was trained by a command" in done.stdout
    where = "step 40 (or a step after 30 that no digest shows), loss, model.weights"
    assert f"trial {one} and trial {other} differ: {where}\n" in done.stdout
    other = runs.train(LOOP.replace("8 * step + 8)", "8 * step + 8)[:: -1 if step == 22 else 1]"))
    done = runs("diverge", one, other, code=1)
    assert f"trial {one} and trial {other} differ: step 22 (or a step after" in done.stdout
    assert done.stdout.endswith("that no digest shows), record order\n")


def test_scripts_without_runner_are_compared(tmp_path: Path) -> None:
    detcore = Detcore(tmp_path)
    detcore.folder.mkdir(parents=True, exist_ok=True)
    for rate in ("0.1", "0.2"):
        script = detcore.folder / "train.py"
        script.write_text(LOOP.replace("0.1 if step == 33", f"{rate} if step == 33"))
        assert detcore.python(script).code == 0
    done = detcore("diverge", 1, 2)
    assert done.code == 1, done.output
    assert "note: not replayed: trial 1 was trained by a command (python3 train.py)" in done.stdout
    where = "step 40 (or a step after 30 that no digest shows), loss, model.weights"
    assert f"trial 1 and trial 2 differ: {where}\n" in done.stdout


@pytest.mark.soak
def test_other_models_data_and_versions_are_said(runs: Runs) -> None:
    other = runs.train(MODEL.replace("(96, 3)", "(96, 4)").replace("0.5]", "0.5, 1.0]"))
    done = runs("diverge", runs.base, other, code=1)
    assert done.stdout.splitlines()[-2].endswith(
        "differ: before step 1: different models, model.weights"
    )
    other = runs.train(LOOP)
    done = runs("diverge", runs.base, other, code=1)
    assert "  framework: toy / -\n" in done.stdout
    assert f"trial {other} differ: before step 1: different models\n" in done.stdout
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
    done = runs("replay", trial, code=1)
    assert done.stdout == (
        f"note: trial {trial} had numerics 1.0 (here 2.0.1)\n"
        "note: the batch has another content: its data was changed since the run\n"
        f"trial {trial}, steps 1:60: the replay differs: step 1, record content\n"
    )
    done = runs("diverge", runs.train(MODEL.replace("*= 1.0", "*= 1.01")), trial, code=1)
    changed = "the batch has another content: its data was changed since the run"
    assert f"note: trial {trial}, step 1: {changed}\n" in done.stdout


def test_code_that_is_gone_is_said(runs: Runs) -> None:
    trial = runs.train(MODEL.replace("*= 1.0", "*= 1.02"), checkpoint_policy="none")
    code = next(runs.trial_dir(trial).parent.parent.glob("**/model_def.py")).parent
    shutil.rmtree(code)
    done = runs("diverge", runs.base, trial, code=1)
    assert f"note: not replayed: the code of trial {trial} is no longer there" in done.stdout
    assert "differ: step 43" in done.stdout


@pytest.mark.parametrize(("num_settings", "rest"), [(12, 0), (13, 1)])
def test_a_screen_shows_twelve_settings_and_says_how_many_it_does_not(
    capsys: pytest.CaptureFixture[str], num_settings: int, rest: int
) -> None:
    settings = [(f"data.{number}", "1", "2") for number in range(num_settings)]
    print_divergence(
        Divergence(
            labels=("trial 1", "trial 2"), settings=settings, code=[], compared_to=9, found=None,
            num_replays=0, notes=(),
        )
    )  # fmt: skip
    _, *shown, last = capsys.readouterr().out.splitlines()
    assert shown[:12] == [f"  data.{number}: 1 / 2" for number in range(12)]
    assert shown[12:] == [f"  and {rest} more settings: --json"] * (rest > 0)
    assert last == "trial 1 and trial 2 are equal up to step 9"


@pytest.mark.parametrize(("slots", "words"), [(1, []), (2, ["2"]), (16, ["16"]), (17, None)])
def test_a_machine_trains_again_with_up_to_four_workers_for_each_core(
    monkeypatch: pytest.MonkeyPatch, slots: int, words: list[str] | None
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    info: Any = SimpleNamespace(settings=TrialSettings(slots_per_trial=slots))
    if words is not None:
        assert worker_words(info) == words
        return
    with pytest.raises(RunError, match=r"had 17 workers, and this machine has 4 processor cores"):
        worker_words(info)
