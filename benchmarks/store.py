"""Measure queries of the record store as it grows, and the rate of reports of a process.

    python benchmarks/store.py [--url SMALL LARGE] [--rounds 21] [--quick]

The small store has 50 trials and 10 thousand reports. The large store has 10,000 trials, 100,000
checkpoints and 2 million reports (200 per trial, 10 of them validations at the step of a
checkpoint), all in one experiment. The registry of both has 100 models with 3 versions each, and
then 1,000 models. Both have a trial of another experiment with 10,000 or 1,000,000 training reports
and 100 validations. The queries about that trial are those of `detcore trial describe` and of its
page.

Each query is sent to both stores in turn, after two rounds that do not count, through the client
(whole objects with configuration, hyperparameters and validation) and through `Database`. The table
gives medians, the growth from the small to the large store, and the CPU time of this process.

Reports come from one process through the Core API, each with two metrics. They are counted when the
call has returned and the report is in the event log. The thread that copies them into the database
works concurrently, except for the measure "alone". The last measure is the work of that thread
alone: the number of reports that it copies from an event log into the database per second.

Without `--url` the databases are SQLite files in the directory `--folder` (default: the current
directory). `--url` names two empty PostgreSQL databases, which are not emptied afterwards.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _report import parse_options, print_table

SMALL, FULL = 50, 10_000  # trials
REPORTS, CHECKPOINTS, VERSIONS = 200, 10, 3  # reports of a trial; versions of a model
TRIALS_AT_ONCE = 500
MODELS = (100, 1_000)
SHORT, LONG, VALIDATION_EVERY = 10_000, 1_000_000, 100  # reports of the single trial
METRIC = "loss"


@dataclasses.dataclass(frozen=True)
class Place:
    """A database with an experiment."""

    url: str
    experiment_id: int
    num_trials: int
    middle_trial: int
    long_trial: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", nargs=2, help="URLs of two empty PostgreSQL databases")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument(
        "--trials", type=int, default=FULL, help="number of trials of the large store"
    )
    parser.add_argument(
        "--long", type=int, default=LONG, help="number of reports of the single trial"
    )
    parser.add_argument(
        "--reports", type=int, default=50_000, help="number of reports from one process"
    )
    parser.add_argument("--folder", type=Path, default=Path())
    options = parse_options(parser, rounds=1, trials=60, reports=20, long=12_000)
    with tempfile.TemporaryDirectory(prefix="store-", dir=options.folder) as name:
        folder = Path(name).absolute()
        os.environ["DETCORE_HOME"] = str(folder)
        began = time.perf_counter()
        urls = options.url or [f"sqlite:///{folder}/{size}.db" for size in ("small", "large")]
        small, large = _fill(urls[0], SMALL, SHORT), _fill(urls[1], options.trials, options.long)
        filled_s = time.perf_counter() - began
        times = _ask(small, large, options)
        rates = _report(large.url, folder, options.reports)
    _tell(times, rates, large, filled_s, options)


# -- the stores ------------------------------------------------------------------------------------

# Each statement creates the rows of trials :first to :last, in SQL of all databases.
_ROWS = (
    """
    INSERT INTO runs (trial_id, run_id, started_at)
    SELECT id, 1, 1.0 FROM trials WHERE id BETWEEN :first AND :last
    """,
    """
    INSERT INTO metrics
        (trial_id, run_id, seq, kind, steps_completed, metrics, reported_at)
    WITH RECURSIVE report(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM report WHERE k < :reports)
    SELECT trials.id, 1, k,
        CASE WHEN k % :every = 0 THEN 'validation' ELSE 'training' END, k * 10,
        '{"loss":' || (((trials.id * 7919 + k * 104729) % 1000003) / 1000003.0) || '}', 1.0
    FROM trials CROSS JOIN report WHERE trials.id BETWEEN :first AND :last
    ORDER BY trials.id, k
    """,
    """
    INSERT INTO validation_values (metric_id, name, experiment_id, trial_id, value)
    SELECT id, 'loss', :experiment, trial_id,
        ((trial_id * 7919 + seq * 104729) % 1000003) / 1000003.0
    FROM metrics WHERE kind = 'validation' AND trial_id BETWEEN :first AND :last
    """,
    """
    INSERT INTO checkpoints (uuid, trial_id, experiment_id, storage_url, state, steps_completed,
        metadata, resources, started_at, committed_at)
    SELECT trial_id || '-' || seq, trial_id, :experiment, 'file:///checkpoints', 'COMPLETED',
        steps_completed, '{"framework":"core"}', '{"weights.npz":1048576,"trial.json":200}',
        1.0, 2.0
    FROM metrics WHERE kind = 'validation' AND trial_id BETWEEN :first AND :last
    """,
)


_LONG_ROWS = (
    """
    INSERT INTO metrics
        (trial_id, run_id, seq, kind, steps_completed, metrics, reported_at)
    WITH RECURSIVE report(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM report WHERE k < :reports)
    SELECT :first, 1, :before + k, :kind, k * :every,
        '{"loss":' || (((CAST(k AS BIGINT) * 104729) % 1000003) / 1000003.0) || '}', 1.0 + k
    FROM report
    """,
    """
    INSERT INTO validation_values (metric_id, name, experiment_id, trial_id, value)
    SELECT id, 'loss', :experiment, trial_id, ((seq * 104729) % 1000003) / 1000003.0
    FROM metrics WHERE kind = 'validation' AND trial_id = :first
    """,
)


def _fill(url: str, num_trials: int, num_long: int) -> Place:
    """Record experiments and trials through the API, and the many rows in bulk."""
    from sqlalchemy import func, insert, select, text

    from detcore.records import Database
    from detcore.records.queries import now
    from detcore.records.schema import trials
    from detcore.types import ExperimentState

    with Database.open(url) as database:
        searcher = {"name": "random", "metric": METRIC, "smaller_is_better": True}
        experiment = database.create_experiment(
            config={"searcher": searcher}, config_text=None, model_dir="/m", name="many"
        )
        row = {"experiment_id": experiment, "state": "COMPLETED", "hparams": {"lr": 0.5, "n": 3},
               "labels": [], "notes": "", "seed": 1, "num_restarts": 0, "created_at": now(),
               "ended_at": now()}  # fmt: skip
        for start in range(0, num_trials, TRIALS_AT_ONCE):
            count = min(TRIALS_AT_ONCE, num_trials - start)
            with database._begin_write() as connection:
                connection.execute(insert(trials), [row] * count)
                last = connection.execute(select(func.max(trials.c.id))).scalar() or 0
                values = {
                    "experiment": experiment,
                    "first": last - count + 1,
                    "last": last,
                    "reports": REPORTS,
                    "every": REPORTS // CHECKPOINTS,
                }
                for statement in _ROWS:
                    # JSON values cannot be parameters.
                    escaped = statement.replace('":', '"\\:')
                    connection.execute(text(escaped), _used(values, statement))
        database.set_experiment_state(experiment, ExperimentState.COMPLETED)
        long_trial = _fill_long(database, {"searcher": searcher}, num_long)
        if not url.startswith("sqlite"):  # SQLite does not do this automatically
            with database._begin_write() as connection:
                connection.execute(text("ANALYZE"))
    return Place(url, experiment, num_trials, last - num_trials // 2, long_trial)


def _fill_long(database: Any, config: dict[str, Any], num_reports: int) -> int:
    """Record a trial with many reports, and return its id."""
    from sqlalchemy import text

    experiment = database.create_experiment(
        config=config, config_text=None, model_dir="/m", name="long"
    )
    trial = database.create_trial(experiment_id=experiment, hparams={}, seed=1)
    database.start_run(trial)
    with database._begin_write() as connection:
        for kind, count, every in (
            ("training", num_reports, 1),
            ("validation", num_reports // VALIDATION_EVERY, VALIDATION_EVERY),
        ):
            before = 0 if kind == "training" else num_reports
            values = {"experiment": experiment, "first": trial, "reports": count, "kind": kind,
                      "every": every, "before": before}  # fmt: skip
            statement = _LONG_ROWS[0]
            connection.execute(text(statement.replace('":', '"\\:')), _used(values, statement))
        connection.execute(text(_LONG_ROWS[1]), _used(values, _LONG_ROWS[1]))
    return int(trial)


def _used(values: dict[str, Any], statement: str) -> dict[str, Any]:
    return {name: value for name, value in values.items() if f":{name}" in statement}


def _register(place: Place, count: int) -> None:
    """Add models to the registry up to `count`, with versions of existing checkpoints."""
    from sqlalchemy import insert

    from detcore.records import Database
    from detcore.records.queries import now
    from detcore.records.schema import model_versions, models

    with Database.open(place.url) as database, database._begin_write() as connection:
        num_models = len(connection.execute(models.select()).fetchall())
        best = database.top_checkpoints(
            experiment_id=place.experiment_id, metric=METRIC, smaller_is_better=True, limit=10
        )
        uuids = [ranked.checkpoint.uuid for ranked in best]
        for number in range(num_models + 1, count + 1):
            document = {"metadata": {"team": "vision"}, "created_at": now(), "updated_at": now()}
            created = connection.execute(
                insert(models).values(
                    name=f"model {number}", description="of digits", labels=["a", "b"],
                    archived=False, last_number=VERSIONS, **document,
                )
            )  # fmt: skip
            rows = [
                {"model_id": created.inserted_primary_key[0], "number": version,  # type: ignore[index]
                 "checkpoint_uuid": uuids[version], "name": "", "comment": "", "notes": "",
                 **document}
                for version in range(1, VERSIONS + 1)
            ]  # fmt: skip
            connection.execute(insert(model_versions), rows)


# -- questions -------------------------------------------------------------------------------------

Questions = dict[str, Callable[[], object]]
Times = dict[str, tuple[list[tuple[float, float]], ...]]  # wall and CPU, in each store


def _ask(small: Place, large: Place, options: argparse.Namespace) -> Times:
    times: Times = {}
    rounds = options.rounds
    _in_turn(_of_long(small), _of_long(large), rounds, times)
    _in_turn(_of_trials(small), _of_trials(large), rounds, times)
    for count in MODELS:
        for place in (small, large):
            _register(place, count)
        _in_turn(_of_models(small, count), _of_models(large, count), rounds, times)
    return times


def _in_turn(small: Questions, large: Questions, rounds: int, times: Times) -> None:
    for number in range(-2, rounds):
        for name in small:
            pair = times.setdefault(name, ([], []))
            for question, seconds in zip((small[name], large[name]), pair, strict=True):
                began, cpu_began = time.perf_counter(), time.process_time()
                question()
                if number >= 0:
                    cpu = time.process_time() - cpu_began
                    seconds.append((time.perf_counter() - began, cpu))


def _of_trials(place: Place) -> Questions:
    from detcore.records import Database

    database = Database.open(place.url)
    experiment = _client(place).get_experiment(place.experiment_id)
    trial = _client(place).get_trial(place.middle_trial)

    def top(limit: int, smaller: bool = True) -> Callable[[], object]:
        return lambda: database.top_checkpoints(
            experiment_id=place.experiment_id,
            metric=METRIC,
            smaller_is_better=smaller,
            limit=limit,
            distinct_trials=limit > 1,
        )

    return {
        "client: experiment.top_checkpoint()": experiment.top_checkpoint,
        "client: experiment.top_n_checkpoints(10)": lambda: experiment.top_n_checkpoints(10),
        "client: trial.top_checkpoint()": trial.top_checkpoint,
        "Database: the best checkpoint": top(1),
        "Database: the best 10, one of each trial": top(10),
        "Database: the same, larger is better": top(10, smaller=False),
        "Database: best validation of the experiment": lambda: database.best_validation(
            place.experiment_id, METRIC, smaller_is_better=True
        ),
        "Database: best validation of a trial": lambda: database.trial_best_validation(
            place.middle_trial, METRIC, smaller_is_better=True
        ),
    }


def _of_long(place: Place) -> Questions:
    from detcore.cli.trial_facts import read_trial
    from detcore.records import Database
    from detcore_report import read_view

    database = Database.open(place.url)
    experiment = database.get_trial(place.long_trial).experiment_id
    trial = place.long_trial
    return {
        "one trial: detcore trial describe": lambda: read_trial(database, trial, None, ()),
        "one trial: its page": lambda: read_view(
            database, experiment, all_metrics=True, max_charts=12, only=[trial]
        ),
        "one trial: the newest reports": lambda: database.metrics(
            trial, "training", with_batches=False, newest=10
        ),
    }


def _of_models(place: Place, count: int) -> Questions:
    from detcore.records import Database

    database, client = Database.open(place.url), _client(place)
    return {
        f"client: get_models() of {count:,}": client.get_models,
        f"Database: list_models() of {count:,}": database.list_models,
        f"Database: list_models(limit=20) of {count:,}": lambda: database.list_models(limit=20),
    }


def _client(place: Place) -> Any:
    from detcore.client import Determined

    os.environ["DETCORE_DB"] = place.url
    return Determined()


# -- reports ---------------------------------------------------------------------------------------


def _report(url: str, folder: Path, count: int) -> dict[str, float]:
    """Return the reports per second of each implementation."""
    from detcore import core
    from detcore.log.writing import EventLog
    from detcore.records import Database, ingest_event_logs

    os.environ["DETCORE_DB"] = url
    rates = {}
    storage = str(folder / "checkpoints")
    for name, mode in (
        ("reports, with TensorBoard event files", core.TensorboardMode.AUTO),
        ("reports, without them", core.TensorboardMode.MANUAL),
    ):
        with core.init(checkpoint_storage=storage, tensorboard_mode=mode) as context:
            began = time.perf_counter()
            for step in range(1, count + 1):
                context.train.report_training_metrics(step, {"loss": 1 / step, "accuracy": 0.5})
            rates[name] = count / (time.perf_counter() - began)
    with Database.open(url) as database:
        experiment = database.create_experiment(
            config={}, config_text=None, model_dir="/m", name="reports"
        )
        trial = database.create_trial(experiment_id=experiment, hparams={}, seed=1)
        path = folder / "experiments" / str(experiment) / "trials" / str(trial) / "events-1.jsonl"
        log = EventLog(path, trial_id=trial, run_id=database.start_run(trial))
        began = time.perf_counter()
        for step in range(1, count + 1):
            metrics = {"loss": 1 / step, "accuracy": 0.5}
            log.append("training", {"steps_completed": step, "metrics": metrics})
        rates["reports into the log, alone"] = count / (time.perf_counter() - began)
        log.close()
        began = time.perf_counter()
        added = ingest_event_logs(database, folder, trial_id=trial)
        rates["reports from the event log into the database"] = count / (
            time.perf_counter() - began
        )
        assert added == count
    return rates


# -- results ---------------------------------------------------------------------------------


def _tell(
    times: Times,
    rates: dict[str, float],
    large: Place,
    filled_s: float,
    options: argparse.Namespace,
) -> None:
    kind = "PostgreSQL" if options.url else "SQLite"
    print(f"{kind}: {large.num_trials:,} trials, {large.num_trials * CHECKPOINTS:,} checkpoints, "
          f"{large.num_trials * REPORTS:,} reports, made in {filled_s:.0f} s; "
          f"{options.rounds} rounds\n")  # fmt: skip
    sizes = [f"{n * REPORTS:,} reports, ms" for n in (SMALL, large.num_trials)]
    rows = []
    for name, (first, second) in times.items():
        low, high = (statistics.median(wall for wall, _ in some) for some in (first, second))
        spread = f"{min(second)[0] * 1000:.1f} to {max(second)[0] * 1000:.1f}"
        cpu = statistics.median(seconds for _, seconds in second)
        figures = f"{low * 1000:.1f}", f"{high * 1000:.1f}", spread, f"{cpu * 1000:.1f}"
        rows.append((name, *figures, f"{high / low:.2f}"))
    print_table(("question", *sizes, "range, ms", "CPU, ms", "growth"), rows)
    print()
    print_table(
        ("reports of one process", "a second"),
        [(name, f"{rate:,.0f}") for name, rate in rates.items()],
    )


if __name__ == "__main__":
    main()
