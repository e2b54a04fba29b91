"""Searches on the command line: concurrent trials, crashes, promotions, resume."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from search_command import Searches
from toy_command import Detcore

from detcore.records import read_output_log

ASHA = {
    "name": "adaptive_asha",
    "max_length": {"batches": 16},
    "max_trials": 5,
    "max_concurrent_trials": 2,
    "mode": "aggressive",
}


@pytest.fixture
def searches(detcore: Detcore) -> Searches:
    return Searches(detcore)


def states(searches: Searches, experiment: int = 1) -> list[str]:
    return [trial.state.value for trial in searches.trials(experiment)]


def of_trials(events: list[Any], kind: str) -> list[tuple[int, int]]:
    return [(e["trial"], e["length"]) for e in events if e is not None and e["type"] == kind]


def test_random_search_ends_trials(searches: Searches) -> None:
    """Killed once, killed always, rejected and so replaced, stopped by its code, trained."""
    searches.order(
        t1={"fail_at": 3, "fail_runs": 1},
        t2={"fail_at": 2},
        t3={"invalid": True},
        t4={"stop_at": 2},
    )
    # One at a time, so that the same answer of the method closes a trial and creates the next.
    summary = searches.run(max_restarts=1, searcher={"max_trials": 4, "max_concurrent_trials": 1})
    assert summary["state"] == "COMPLETED"
    trials = searches.trials()
    assert states(searches) == ["COMPLETED", "ERROR", "ERROR", "COMPLETED", "COMPLETED"]
    assert [trial.num_restarts for trial in trials] == [1, 1, 0, 0, 0]
    assert {trial.rung for trial in trials} == {0}
    assert [start["trial"] for start in searches.starts()] == [1, 1, 2, 2, 3, 4, 5]
    assert "exit code 137" in str(trials[1].error)
    assert trials[2].error == "InvalidHP: too wide"
    begin, *events = searches.events()
    assert begin is None
    assert of_trials(events, "validated") == [(0, 4), (4, 4)]
    exits = [(e["trial"], e["reason"]) for e in events if e["type"] == "exited"]
    assert exits == [(1, "errored"), (2, "invalid_hp"), (3, "stopped")]
    assert len({json.dumps(trial["hparams"]) for trial in summary["trials"]}) == 5
    assert [trial.search_index for trial in trials] == [0, 1, 2, 3, 4]
    assert [trial.length for trial in trials] == [4] * 5
    with searches.database() as database:
        record = database.get_experiment(1)
        assert (record.progress, record.control) == (1.0, None)
        log, _ = read_output_log(Path(str(trials[1].trial_dir)))
    notices = [line.text for line in log if line.stream == "detcore"]
    assert any(text.startswith("trial 2 failed") and "restart 1 of 1" in text for text in notices)


def test_search_uses_exactly_its_slots(searches: Searches) -> None:
    """Each of the first two trials waits for the other."""
    searches.order(t1={"meet": 2}, t2={"meet": 2})
    finished = searches.detcore.run_checked(
        "run", searches.config(), searches.code, "--max-slots", 2
    )
    assert "experiment 1: completed" in finished.stdout
    (searches.code / "starts.jsonl").unlink()
    # With one place, the third is not started while the second waits.
    searches.order(t5={"hold": True})
    process = searches.detcore.start("run", searches.config(), searches.code)
    searches.detcore.wait_for(searches.holding)
    assert [start["trial"] for start in searches.starts()] == [4, 5]
    (searches.code / "go").touch()
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_killed_search_with_one_slot_is_identical(searches: Searches) -> None:
    """Killed several times with its workers, it logs the same as an uninterrupted search."""
    searches.run(searcher=ASHA)
    expected = searches.events(1)
    # A promoted trial continues from its checkpoint, and reports each length once.
    reported = of_trials(expected, "validated")
    assert len(reported) == len(set(reported))
    promoted = [start for start in searches.starts() if start["from"]]
    assert [(p["from"], p["length"]) for p in promoted] == [(4, 16)]
    assert (promoted[0]["trial"] - 1, 16) in reported
    (searches.code / "starts.jsonl").unlink()
    process = searches.detcore.start("run", searches.config(searcher=ASHA), searches.code)
    kills = 0
    while True:
        num_events = len(searches.events(2)) if kills else 0
        _wait_for_events(searches, num_events + 3, process)
        if process.poll() is not None:
            break
        process.kill()
        process.communicate()
        kills += 1
        process = searches.detcore.start("run", "--resume", 2)
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stdout + stderr
    assert kills >= 2
    assert searches.events(2) == expected
    assert [t.hparams for t in searches.trials(2)] == [t.hparams for t in searches.trials(1)]
    assert set(states(searches, 2)) == {"COMPLETED"}
    # Reported training is not repeated.
    starts = [(start["trial"], start["from"]) for start in searches.starts()]
    assert len(starts) <= len(reported) + kills


def _wait_for_events(searches: Searches, count: int, process: Any) -> None:
    """Wait until the second search has logged so many events, or is over."""
    searches.detcore.wait_for(
        lambda: _num_events(searches, 2) >= count or process.poll() is not None
    )


def _num_events(searches: Searches, experiment: int) -> int:
    try:
        return len(searches.events(experiment))
    except Exception:  # noqa: BLE001  (not there yet)
        return 0


def test_failed_search_can_be_resumed(
    searches: Searches,
) -> None:
    orders = {f"t{k}": {"fail_at": 1} for k in (1, 2)}
    searches.order(**orders)
    summary = searches.run(code=1, searcher={"max_trials": 2})
    assert summary["state"] == "ERROR"
    assert "no trial completed" in summary["error"]
    searches.order()
    summary = searches.resume()
    assert summary["state"] == "COMPLETED"
    assert states(searches) == ["ERROR", "COMPLETED"]


def begun(searches: Searches) -> Any:
    """Start a search whose first two trials run and wait."""
    searches.order(**{f"t{k}": {"hold": True} for k in (1, 2)})
    process = searches.detcore.start("run", searches.config(), searches.code, "--max-slots", 2)
    searches.detcore.wait_for(lambda: searches.holding() == [1, 2])
    return process


def finish(searches: Searches) -> None:
    """Release all trials and wait for the end."""
    (searches.code / "go").touch()
    summary = searches.resume("--max-slots", 2)
    assert summary["state"] == "COMPLETED"
    assert states(searches) == ["COMPLETED"] * 3
    assert sorted(of_trials(searches.events(), "validated")) == [(k, 4) for k in range(3)]


@pytest.mark.parametrize(
    ("what", "state", "code"),
    [
        ("SIGINT", "PAUSED", 75), ("pause", "PAUSED", 75), ("cancel", "CANCELED", 1),
        ("kill", "CANCELED", 1),
    ],
)  # fmt: skip
def test_search_request_ends_all_trials(
    searches: Searches, what: str, state: str, code: int
) -> None:
    process = begun(searches)
    if what == "SIGINT":
        process.send_signal(signal.SIGINT)
    else:
        request = searches.detcore("experiment", what, 1, "--json")
        assert json.loads(request.stdout) == {"experiment_id": 1, "state": state}, request.stderr
    process.communicate(timeout=60)
    assert process.returncode == code
    assert states(searches) == [state] * 3
    checkpoints = searches.detcore.committed()
    assert len(checkpoints) == (0 if what == "kill" else 2)
    with searches.database() as database:
        assert database.get_control_request(1) is None
    finish(searches)
    from_ = {start["trial"]: start["from"] for start in searches.starts()}
    assert from_[1] == from_[2] == (0 if what == "kill" else 1)


@pytest.mark.parametrize(("what", "num_saved"), [("cancel", 1), ("kill", 0)])
def test_trial_request_ends_one_trial(searches: Searches, what: str, num_saved: int) -> None:
    process = begun(searches)
    request = searches.detcore("trial", what, 2, "--json")
    assert json.loads(request.stdout) == {"trial_id": 2, "has_runner": True}, request.stderr
    # The third gets its place.
    searches.detcore.wait_for(lambda: states(searches)[1:] == ["CANCELED", "COMPLETED"])
    with searches.database() as database:
        assert len(database.list_checkpoints(trial_id=2)) == num_saved
    (searches.code / "go").touch()
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 0, stdout
    assert states(searches) == ["COMPLETED", "CANCELED", "COMPLETED"]
    exits = [(e["trial"], e["reason"]) for e in searches.events()[1:] if e["type"] == "exited"]
    assert exits == [(1, "stopped")]
    assert searches.detcore("trial", what, 2).code == 0, "it is over already"
    refused = searches.detcore.run_failing("trial", what, 1)
    assert "trial 1 has ended (COMPLETED)" in refused.stderr


def test_trial_canceled_while_paused_never_starts(
    searches: Searches,
) -> None:
    process = begun(searches)
    process.kill()
    process.communicate()
    request = searches.detcore("trial", "cancel", 1)
    assert request.stdout == "trial 1 has ended. Experiment 1 continues without it.\n", (
        request.stderr
    )
    (searches.code / "go").touch()
    for _ in range(2):  # the second time, there is nothing left to do
        searches.resume("--max-slots", 2)
        assert states(searches) == ["CANCELED", "COMPLETED", "COMPLETED"]
    assert [start["trial"] for start in searches.starts()].count(1) == 1


def test_search_with_killed_trials_is_canceled(searches: Searches) -> None:
    process = begun(searches)
    for trial_id in (3, 1, 2):
        assert searches.detcore("trial", "kill", trial_id).code == 0
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert states(searches) == ["CANCELED"] * 3
    with searches.database() as database:
        assert database.get_experiment(1).state.value == "CANCELED"


def test_invalid_search_is_refused_before_recording(
    searches: Searches,
) -> None:
    for searcher, message in (
        ({"name": "custom", "max_length": None, "max_trials": None}, "'custom'"),
        ({"name": "optuna", "sampler": "TPE"}, "unknown searcher.sampler 'TPE'"),
        ({"name": "adaptive_asha", "max_trials": 1, "bracket_rungs": [2, 1]}, "2 brackets"),
    ):
        config = searches.config(searcher=searcher)
        config.write_text(
            "".join(line for line in config.read_text().splitlines(True) if "null" not in line)
        )
        finished = searches.detcore("run", config, searches.code)
        assert finished.code in (1, 2), finished.stdout
        assert message in finished.stderr
    assert "No experiments in" in searches.detcore("experiment", "list").stderr


def test_config_check_reports_plugin_method_errors(detcore: Detcore) -> None:
    """The method has no settings model, so it raises the error itself."""
    searcher = {"name": "moody", "metric": "loss", "max_length": {"batches": 2}}
    config = detcore.config(entrypoint=["true"], searcher=searcher)
    checked = detcore("config", "check", config, "--json")
    assert checked.code == 2
    (mistake,) = json.loads(checked.stdout)["mistakes"]
    assert config.read_text().splitlines()[mistake["line"] - 1].strip() == "name: moody"
    assert mistake["message"] == (
        "the search method 'moody' (detcore_toy.searchers:Moody) cannot be created: "
        "KeyError: 'max_trials'."
    )


def test_search_method_of_plugin_runs(searches: Searches) -> None:
    """It trains each trial twice as long as the one before, and decides at the end."""
    searcher = {"name": "doubling", "max_trials": 3, "max_length": 2}
    summary = searches.run(searcher=searcher)
    assert summary["state"] == "COMPLETED"
    assert of_trials(searches.events(), "validated") == [(0, 2), (1, 4), (2, 8)]
    searcher = {"name": "doubling", "max_trails": 3, "max_length": 2}
    finished = searches.detcore("run", searches.config(searcher=searcher), searches.code)
    assert finished.code == 2
    assert "did you mean 'max_trials'?" in finished.stderr
    for name, message in (("hollow", "has no exited and no progress"), ("broken", "cannot be")):
        finished = searches.detcore.run_failing(
            "run", searches.config(searcher={"name": name}), searches.code
        )
        assert message in finished.stderr
