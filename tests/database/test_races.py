"""Processes that do the same at the same moment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.database.conftest import Store

PROGRAM = Path(__file__).parent / "programs" / "together.py"
COUNT = 8


class Together:
    """Processes that wait at their start, and do one thing after another together."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._folder = folder

    def do(self, what: str) -> list[str]:
        go = self._folder / what
        processes = [
            subprocess.Popen(
                [sys.executable, str(PROGRAM), self._store.url, str(go), what, str(number)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number in range(COUNT)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        go.touch()
        said = []
        for process in processes:
            stdout, stderr = process.communicate(timeout=120)
            assert process.returncode == 0, stderr
            said.append(stdout.strip())
        return said


@pytest.fixture
def together(store: Store, tmp_path: Path) -> Together:
    return Together(store, tmp_path)


def test_one_of_those_that_create_a_model_of_one_name_does(
    store: Store, together: Together
) -> None:
    said = together.do("create")
    refused = [text for text in said if text == "refused: there is a model 'shared' already; "
               "names are unique."]  # fmt: skip
    assert len(refused) == COUNT - 1
    assert [model.name for model in store.database.list_models()] == ["shared"]


def test_one_of_the_runners_that_log_an_event_does_and_the_others_leave_nothing(
    store: Store, together: Together
) -> None:
    said = together.do("event")
    assert said.count("[0, 1, 2]") == 1
    refused = [text for text in said if text.startswith("refused: the search of experiment 1 has")]
    assert len(refused) == COUNT - 1
    created = [t for t in store.database.list_trials(1) if t.search_index is not None]
    assert [trial.search_index for trial in created] == [0, 1, 2]
    assert len({trial.hparams["of"] for trial in created}) == 1
    assert store.database.list_search_events(1) == [None]


def test_starts_and_restarts_that_are_counted_at_once_are_all_counted(
    store: Store, together: Together
) -> None:
    assert sorted(map(int, together.do("start"))) == list(range(2, COUNT + 2))
    assert sorted(map(int, together.do("restart"))) == list(range(1, COUNT + 1))
