"""Killed scripts of the corpus end like uninterrupted ones, or say why they do not."""

from __future__ import annotations

from pathlib import Path

import pytest
from corpus_runs import CorpusScript, Status, check_script, list_scripts

# Scripts that `nox -s tests` runs as well.
SAMPLE = (
    "core_api/numpy_momentum", "estimator/dropout_classifier", "keras_trial/unfreeze_layers",
    "lightning/manual_gan", "pytorch_trial/curriculum",
)  # fmt: skip
# Scripts that are not exact, with a part of the message.
REFUSED = {
    "keras/python_generator": "(generator) is not supported as training data",
    "lightning/iterable_stream": "an IterableDataset without state_dict and load_state_dict",
}
REPORTED = {
    "core_api/forgotten_momentum": "step ",
}


def list_cases() -> list[object]:
    return [
        pytest.param(
            script, id=script.name, marks=() if script.name in SAMPLE else pytest.mark.soak
        )
        for script in list_scripts()
    ]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("script", list_cases())
def test_killed_script_is_exact_or_reported(script: CorpusScript, tmp_path: Path) -> None:
    outcome = check_script(script, tmp_path / "runs")
    expected = Status.EXACT
    if script.name in REFUSED:
        expected = Status.REFUSED
    elif script.name in REPORTED:
        expected = Status.REPORTED
    assert outcome.status == expected, outcome
    assert (REFUSED | REPORTED).get(script.name, "") in outcome.detail
