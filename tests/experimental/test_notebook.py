"""How objects of the client show themselves in a notebook."""

from __future__ import annotations

import re
from typing import Any

import pytest
from client_store import ClientStore
from page_check import Page
from page_records import add_search

from detcore.client import Determined

pytestmark = pytest.mark.parametrize("client", ["embedded", "http"], indirect=True)

HOSTILE = "</style></div><script>alert('1')</script>\"'><img src=x onerror=alert(1)>\u202e&amp;"


def shown(thing: Any) -> Page:
    """Return what Jupyter asks an object for, parsed: nothing loads, and nothing is a script."""
    html = thing._repr_html_()
    page = Page(html)
    style = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)[0]
    for selectors in re.findall(r"([^{}]+)\{[^{}]*\}", style):
        assert all(".detcore" in each for each in selectors.split(",")), selectors
    return page


def test_an_experiment_has_curves_and_its_best_trials(
    client: Determined, store: ClientStore
) -> None:
    page = shown(client.get_experiment(add_search(store.database, 3, 20)))
    for text in ("Experiment 1: digits", "val_loss (validation)", "Trials, the best first"):
        assert text in page.text
    assert "COMPLETED · 3 trials · best val_loss 0.5357 (trial 3, step 200)" in page.text
    assert len(page.drawings()) == 2  # for a wide cell, and for a narrow one
    assert page.drawings()[0].count("<path id=") == 3


def test_a_trial_has_curves_of_its_metrics(client: Determined, store: ClientStore) -> None:
    add_search(store.database, 2, 20)
    page = shown(client.get_trial(2))
    for text in (
        "Trial 2 of experiment 1: digits", "accuracy (validation)", "loss (training)",
        "optimizer.rate", "0.0004465", "Metrics, and the steps of their values", "0.601 at 200",
    ):  # fmt: skip
        assert text in page.text


def test_checkpoints_and_models_have_tables(client: Determined, store: ClientStore) -> None:
    uuid = store.one_checkpoint(epoch=3)
    model = client.create_model("zip", "reads codes", {"data": "v3"}, ["vision"])
    model.register_version(uuid, comment="good")
    page = shown(client.get_checkpoint(uuid))
    for text in (uuid, "COMPLETED", "weights.txt", "5 B", "loss", "epoch", "toy"):
        assert text in page.text
    for text in ("Model zip", "reads codes", "vision", "v3", uuid, "loss 1"):
        assert text in shown(model).text
    assert "zip version 1" in shown(model.get_version()).text


def test_names_of_users_are_text(client: Determined, store: ClientStore) -> None:
    named, measured = (
        add_search(store.database, 1, 2, name=HOSTILE),
        store.experiment(metric=HOSTILE),
    )
    trial = store.trial(measured, **{HOSTILE: HOSTILE})
    store.report(trial, 10, {HOSTILE: 0.5})
    model = client.create_model(HOSTILE, HOSTILE, {HOSTILE: HOSTILE}, [HOSTILE])
    uuid = store.one_checkpoint(**{HOSTILE: HOSTILE})
    for thing in (
        client.get_experiment(named), client.get_experiment(measured), client.get_trial(trial),
        client.get_checkpoint(uuid), model,
    ):  # fmt: skip
        page = shown(thing)
        assert "<script>alert" in page.text
        assert "\u202e" not in page.html


@pytest.mark.parametrize("num_trials", [0, 1, 40, pytest.param(300, marks=pytest.mark.soak)])
def test_an_experiment_of_any_size_is_shown_in_little(
    client: Determined, store: ClientStore, num_trials: int
) -> None:
    page = shown(client.get_experiment(add_search(store.database, num_trials, 20)))
    assert len(page.html) < 150_000
    if num_trials == 0:
        assert "No trial has reported a metric with a finite value yet." in page.text
    elif num_trials > 30:
        assert f"The best 30 of {num_trials} trials are drawn." in page.text
        assert f"Trials, the best first (the first 10 of {num_trials})" in page.text


def test_long_lists_end(client: Determined, store: ClientStore) -> None:
    files = {f"part-{number:03}": "x" for number in range(60)}
    uuid = store.checkpoint(store.trial(store.experiment()), 10, {"loss": 1.0}, files=files)
    assert "Files (the first 20 of 61)" in shown(client.get_checkpoint(uuid)).text
    model = client.create_model("many")
    for _ in range(23):
        model.register_version(uuid)
    assert "Versions (the latest 20 of 23)" in shown(model).text


def test_what_cannot_be_read_is_shown_with_the_reason(
    client: Determined, store: ClientStore
) -> None:
    experiment = client.get_experiment(add_search(store.database, 1, 2))
    trial = client.get_trial(1)
    model = client.create_model("gone")
    store.database.delete_experiment(experiment.id)
    store.database.delete_model("gone")
    assert "no experiment 1" in shown(experiment).text
    assert "ExperimentReference(id=1)" in shown(experiment).text
    assert "no trial 1" in shown(trial).text
    assert "no model" in shown(model).text
