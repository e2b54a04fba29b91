"""Test the HTML of client objects in a notebook."""

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
    """Return the parsed HTML of an object. It loads nothing and has no script."""
    html = thing._repr_html_()
    page = Page(html)
    style = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)[0]
    while "{" in (inner := re.sub(r"(?<=\{)([^{}]*)\{[^{}]*\}", r"\1", style)) and inner != style:
        style = inner  # without nested rules
    for selector in re.findall(r"(?:^|\})([^{}]+)\{", style):
        assert ".detcore" in selector or selector.startswith("@media"), selector
    return page


def test_experiment_html_has_curves_and_trials(client: Determined, store: ClientStore) -> None:
    page = shown(client.get_experiment(add_search(store.database, 3, 20)))
    for text in ("Experiment 1: digits", "val_loss (validation)", "Trials, the best first"):
        assert text in page.text
    assert "COMPLETED · 3 trials · best val_loss 0.5357 (trial 3, step 200)" in page.text
    assert len(page.drawings()) == 2  # for a wide and for a narrow cell
    assert page.drawings()[0].count("<path id=") == 3


def test_trial_html_has_curves(client: Determined, store: ClientStore) -> None:
    add_search(store.database, 2, 20)
    page = shown(client.get_trial(2))
    for text in (
        "Trial 2 of experiment 1: digits", "accuracy (validation)", "loss (training)",
        "optimizer.rate", "0.0004465", "best val_loss 0.601 at 200",
    ):  # fmt: skip
        assert text in page.text


def test_html_escapes_names(client: Determined, store: ClientStore) -> None:
    reported, measured = (
        add_search(store.database, 1, 2, name=HOSTILE),
        store.experiment(metric=HOSTILE),
    )
    trial = store.trial(measured, **{HOSTILE: HOSTILE})
    store.report(trial, 10, {HOSTILE: 0.5})
    for thing in (
        client.get_experiment(reported), client.get_experiment(measured), client.get_trial(trial),
    ):  # fmt: skip
        page = shown(thing)
        assert "<script>alert" in page.text
        assert "\u202e" not in page.html


@pytest.mark.parametrize("num_trials", [0, 1, 40, pytest.param(300, marks=pytest.mark.soak)])
def test_html_of_large_experiment_is_small(
    client: Determined, store: ClientStore, num_trials: int
) -> None:
    page = shown(client.get_experiment(add_search(store.database, num_trials, 20)))
    assert len(page.html) < 150_000
    if num_trials == 0:
        assert "No trial has reported a metric with a finite value yet." in page.text
    elif num_trials > 30:
        assert f"The best 30 of {num_trials} trials are drawn." in page.text
        assert f"Trials, the best first (the first 10 of {num_trials})" in page.text


def test_html_shows_reason_of_error(client: Determined, store: ClientStore) -> None:
    experiment = client.get_experiment(add_search(store.database, 1, 2))
    trial = client.get_trial(1)
    store.database.delete_experiment(experiment.id)
    assert "no experiment 1" in shown(experiment).text
    assert "ExperimentReference(id=1)" in shown(experiment).text
    assert "no trial 1" in shown(trial).text
