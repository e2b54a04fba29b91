"""Test processes that act at the same moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from databases import Places
    from tests.records.conftest import Crowd, Store

COUNT = 8


def test_eight_processes_open_new_database(places: Places, crowd: Crowd) -> None:
    url = places.new(empty=True)
    ids = crowd.do(url, "record", count=COUNT, opens_together=True)
    assert sorted(ids) == [str(number) for number in range(1, COUNT + 1)]


def test_one_process_creates_model_of_same_name(store: Store, crowd: Crowd) -> None:
    answers = crowd.do(store.url, "create", count=COUNT)
    message = "refused: a model named 'shared' already exists."
    refusals = [text for text in answers if text == message]
    assert len(refusals) == COUNT - 1
    assert [model.name for model in store.database.list_models()] == ["shared"]


def test_one_runner_logs_search_event(store: Store, crowd: Crowd) -> None:
    answers = crowd.do(store.url, "event", count=COUNT)
    assert answers.count("[0, 1, 2]") == 1
    refused = "refused: the search of experiment 1 has"
    refusals = [text for text in answers if text.startswith(refused)]
    assert len(refusals) == COUNT - 1
    created = [t for t in store.database.list_trials(1) if t.search_index is not None]
    assert [trial.search_index for trial in created] == [0, 1, 2]
    assert len({trial.hparams["of"] for trial in created}) == 1
    assert store.database.list_search_events(1) == [None]


def test_concurrent_starts_are_all_counted(store: Store, crowd: Crowd) -> None:
    starts = crowd.do(store.url, "start", count=COUNT)
    assert sorted(map(int, starts)) == list(range(2, COUNT + 2))
    restarts = crowd.do(store.url, "restart", count=COUNT)
    assert sorted(map(int, restarts)) == list(range(1, COUNT + 1))
