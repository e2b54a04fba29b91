"""Trials that crash: when they start again, and when they do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from search_command import Searches
from toy_command import Detcore

from detcore.database import read_trial_log
from detcore.runner._restarts import Restarts


def test_pauses_grow_while_a_trial_comes_no_further() -> None:
    now = 100.0
    restarts = Restarts(100, clock=lambda: now)
    pauses = [restarts.crashed(0, made_progress=False) for _ in range(8)]
    assert pauses == [0, 1, 2, 4, 8, 16, 30, 30]
    assert restarts.is_waiting(0)
    assert not restarts.is_waiting(1)
    assert restarts.crashed(1, made_progress=False) == 0
    now += 29.9
    assert restarts.is_waiting(0)
    now += 0.2
    assert not restarts.is_waiting(0)
    # With progress it begins anew.
    assert [restarts.crashed(0, made_progress=p) for p in (True, False, True)] == [0, 1, 0]
    assert not restarts.is_waiting(0)
    for _ in range(5000):
        restarts.crashed(2, made_progress=False)


def test_the_second_restart_in_a_row_waits_and_keeps_its_place(detcore: Detcore) -> None:
    searches = Searches(detcore)
    searches.order(t1={"fail_at": 1, "fail_runs": 2})
    summary = searches.run(searcher={"max_trials": 2}, max_restarts=2)
    assert summary["state"] == "COMPLETED"
    assert [start["trial"] for start in searches.starts()] == [1, 1, 1, 2]
    log = read_trial_log(Path(str(searches.trials()[0].trial_dir)))
    told = [line.text.partition("; it ")[2] for line in log if line.stream == "detcore"]
    assert told == [
        "starts again from its latest checkpoint (restart 1 of 2)",
        "starts again in 1 s from its latest checkpoint (restart 2 of 2)",
    ]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import detcore_absent", "needs the plugin 'detcore-absent'"),
        ("import absent", "No module named 'absent'"),
        ("class Line: pass", "is not a trial class"),
    ],
)
def test_what_cannot_heal_is_not_tried_again(detcore: Detcore, code: str, message: str) -> None:
    folder = detcore.tmp_path / "code"
    folder.mkdir()
    (folder / "model_def.py").write_text(f"{code}\n")
    finished = detcore("run", detcore.config(max_restarts=3), folder, "--json")
    assert finished.code == 1
    assert message in finished.summary["error"]
    (trial,) = finished.summary["trials"]
    assert trial["num_restarts"] == 0
