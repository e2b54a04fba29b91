"""How objects of the client show themselves in a notebook."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from client_store import ClientStore
from page_check import Page
from recorded import CONFIG

from detcore.database import MetricRecord
from detcore.experimental import Determined
from detcore.types import ExperimentState, TrialState

pytestmark = pytest.mark.parametrize("client", ["embedded", "http"], indirect=True)

HOSTILE = "</style></div><script>alert('1')</script>\"'><img src=x onerror=alert(1)>\u202e&amp;"


def search(
    store: ClientStore, num_trials: int, *, name: str = "digits", metric: str = "val_loss"
) -> int:
    """Record a search that has ended."""
    searcher = {**CONFIG["searcher"], "metric": metric}
    experiment = store.database.create_experiment(
        config={**CONFIG, "searcher": searcher}, config_text=None, model_dir="/code", name=name
    )
    reports = []
    for index in range(num_trials):
        hparams = {"rate": 0.1 / (index + 1), name: name}
        trial = store.database.create_trial(experiment_id=experiment, hparams=hparams, seed=0)
        reports += [
            MetricRecord(
                trial_id=trial, run_id=1, kind=kind, steps_completed=step * 10,
                metrics={metric: math.exp(-step / 9) + index, "accuracy": step / 20},
            )
            for step in range(1, 21)
            for kind in ("training", "validation")
        ]  # fmt: skip
        store.database.set_trial_state(trial, TrialState.COMPLETED)
    store.database.add_metrics(reports)
    store.database.set_experiment_state(experiment, ExperimentState.COMPLETED)
    return experiment


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
    page = shown(client.get_experiment(search(store, 3)))
    for text in ("Experiment 1: digits", "val_loss (validation)", "Trials, the best first"):
        assert text in page.text
    assert "COMPLETED · 3 trials · best val_loss 0.1084 (trial 1, step 200)" in page.text
    assert len(page.drawings()) == 2  # for a wide cell, and for a narrow one
    assert page.drawings()[0].count("<path id=") == 3


def test_a_trial_has_curves_of_its_metrics(client: Determined, store: ClientStore) -> None:
    search(store, 2)
    page = shown(client.get_trial(2))
    for text in (
        "Trial 2 of experiment 1: digits", "accuracy (validation)", "val_loss (training)",
        "rate", "0.05", "Metrics, and the steps of their values", "1.108 at 200",
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
    number = search(store, 2, name=HOSTILE, metric=HOSTILE)
    model = client.create_model(HOSTILE, HOSTILE, {HOSTILE: HOSTILE}, [HOSTILE])
    uuid = store.one_checkpoint(**{HOSTILE: HOSTILE})
    for thing in (
        client.get_experiment(number), client.get_trial(1), client.get_checkpoint(uuid), model,
    ):  # fmt: skip
        page = shown(thing)
        assert "<script>alert" in page.text
        assert "\u202e" not in page.html


@pytest.mark.parametrize("num_trials", [0, 1, 40, pytest.param(300, marks=pytest.mark.soak)])
def test_an_experiment_of_any_size_is_shown_in_little(
    client: Determined, store: ClientStore, num_trials: int
) -> None:
    page = shown(client.get_experiment(search(store, num_trials)))
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
    experiment = client.get_experiment(search(store, 1))
    trial = client.get_trial(1)
    model = client.create_model("gone")
    store.database.delete_experiment(experiment.id)
    store.database.delete_model("gone")
    assert "no experiment 1" in shown(experiment).text
    assert "ExperimentReference(id=1)" in shown(experiment).text
    assert "no trial 1" in shown(trial).text
    assert "no model" in shown(model).text
