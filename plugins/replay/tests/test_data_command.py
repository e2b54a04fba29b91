"""``detcore data verify``: output, JSON and exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from detcore.cli import CliContext
from detcore.data import IdKind, IndexSampler, LedgerWriter
from detcore.environment import read_environment
from detcore.errors import LedgerError, NotFoundError
from detcore.records import Database, MetricRecord
from detcore_replay.commands.data_command import data_group

SAMPLER = IndexSampler(50, 8, shuffle=True, seed=1)  # 7 batches per epoch


class Home:
    """Records of one experiment with one trial, and the command."""

    def __init__(self, path: Path) -> None:
        self.environment = read_environment({"DETCORE_HOME": str(path)})
        self.trial_dir = path / "trial"
        with Database.open(self.environment.database_url) as database:
            experiment = database.create_experiment(
                config={}, config_text=None, model_dir="/code", name="x"
            )
            self.trial = database.create_trial(experiment_id=experiment, hparams={}, seed=1)

    def run(self, *, start: int, stop: int, repeat: int | None = None) -> None:
        """Record one run of the trial: its ledger, and a report of its last step."""
        with Database.open(self.environment.database_url) as database:
            database.set_trial_dir(self.trial, str(self.trial_dir))
            run_id = database.start_run(self.trial)
            writer = LedgerWriter(
                self.trial_dir / f"ledger-{run_id}.bin", run_id=run_id, start_step=start
            )
            writer.describe(IdKind.RECORD_INDEX, num_records=50)
            for step in range(start + 1, stop + 1):
                batch = step - 1 if step != repeat else step - 2
                writer.log(step, (step - 1) // 7, SAMPLER.batch(batch))
            writer.close()
            database.add_metrics([self.report(run_id, stop)])

    def report(self, run_id: int, step: int) -> MetricRecord:
        return MetricRecord(
            trial_id=self.trial, run_id=run_id, kind="training", steps_completed=step, metrics={}
        )

    def verify(self, *arguments: str) -> Result:
        context = CliContext(environment=self.environment)
        return CliRunner().invoke(data_group, ["verify", *arguments], obj=context)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_proof_prints_table_and_exits_zero(home: Home) -> None:
    home.run(start=0, stop=10)
    home.run(start=5, stop=15)
    result = home.verify("1")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "trial 1: steps 1 to 15 (5 trained again after a restart), 2 runs; ids are: record index",
        "EPOCH  RECORDS  TWICE  NEVER",
        "    0       50      0      0",
        "    1       50      0      0",
        "    2        8      0      -  not complete",
        "Proved (50 records): each of 2 complete epochs used every record once and the 8 of "
        "epoch 2, which is not complete, were used once; none twice, none never, across 1 restart.",
    ]


def test_refutation_names_records_and_exits_one(home: Home) -> None:
    home.run(start=0, stop=15, repeat=4)
    result = home.verify("1")
    assert result.exit_code == 1
    twice, never = sorted(SAMPLER.batch(2)), sorted(SAMPLER.batch(3))
    examples = ", ".join(map(str, [*twice[:5], *never[:5]]))
    assert f"    0       50      8      8                such as {examples}" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("Refuted: 8 of the uses repeat a record")


def test_reported_steps_without_ledger_are_not_proved(home: Home) -> None:
    home.run(start=0, stop=10)
    with Database.open(home.environment.database_url) as database:
        database.add_metrics([home.report(1, 12)])
    result = home.verify("1")
    assert result.exit_code == 1
    assert "Not proved: 2 of the steps 1 to 12 are in no ledger." in result.stdout


@pytest.mark.parametrize(("repeat", "proved"), [(None, True), (4, False)])
def test_json_has_whole_report(home: Home, repeat: int | None, proved: bool) -> None:
    home.run(start=0, stop=15, repeat=repeat)
    result = home.verify("1", "--json")
    assert result.exit_code == (0 if proved else 1)
    answer = json.loads(result.stdout)
    assert (answer["experiment_id"], answer["is_proved"]) == (1, proved)
    (trial,) = answer["trials"]
    assert (trial["trial_id"], trial["is_proved"]) == (1, proved)
    assert trial["verdict"].startswith("Proved" if proved else "Refuted")
    assert trial["ids"] == "record index"
    assert trial["epochs"][2] == {
        "epoch": 2,
        "num_records": 8,
        "is_complete": False,
        "num_twice": 0,
        "num_never": None,
        "examples": [],
    }


def test_unverifiable_experiment_is_reported(home: Home) -> None:
    with pytest.raises(LedgerError, match="trial 1 was never started, so it used no records"):
        raise home.verify("1").exception or AssertionError("no error")
    with Database.open(home.environment.database_url) as database:
        database.set_trial_dir(home.trial, str(home.trial_dir))
    with pytest.raises(LedgerError, match="data_ledger: true"):
        raise home.verify("1").exception or AssertionError("no error")
    with pytest.raises(NotFoundError, match="7"):
        raise home.verify("7").exception or AssertionError("no error")
