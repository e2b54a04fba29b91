"""Processes that do the same at the same moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from databases import Places
    from tests.database.conftest import Crowd, Store

COUNT = 8


def test_eight_processes_may_open_a_new_database_at_once(places: Places, crowd: Crowd) -> None:
    url = places.new(empty=True)
    ids = crowd.do(url, "record", count=COUNT, opens_together=True)
    assert sorted(ids) == [str(number) for number in range(1, COUNT + 1)]


def test_one_of_those_that_create_a_model_of_one_name_does(store: Store, crowd: Crowd) -> None:
    said = crowd.do(store.url, "create", count=COUNT)
    message = "refused: a model named 'shared' already exists."
    refused = [text for text in said if text == message]
    assert len(refused) == COUNT - 1
    assert [model.name for model in store.database.list_models()] == ["shared"]


def test_one_of_the_runners_that_log_an_event_does_and_the_others_leave_nothing(
    store: Store, crowd: Crowd
) -> None:
    said = crowd.do(store.url, "event", count=COUNT)
    assert said.count("[0, 1, 2]") == 1
    refused = [text for text in said if text.startswith("refused: the search of experiment 1 has")]
    assert len(refused) == COUNT - 1
    created = [t for t in store.database.list_trials(1) if t.search_index is not None]
    assert [trial.search_index for trial in created] == [0, 1, 2]
    assert len({trial.hparams["of"] for trial in created}) == 1
    assert store.database.list_search_events(1) == [None]


def test_starts_and_restarts_that_are_counted_at_once_are_all_counted(
    store: Store, crowd: Crowd
) -> None:
    starts = crowd.do(store.url, "start", count=COUNT)
    assert sorted(map(int, starts)) == list(range(2, COUNT + 2))
    restarts = crowd.do(store.url, "restart", count=COUNT)
    assert sorted(map(int, restarts)) == list(range(1, COUNT + 1))
