"""Test that names and output of trials cannot control the terminal."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded import CONFIG, Records
from rich.console import Console

from detcore.cli.output import printable
from detcore.cli.run_display import PlainDisplay
from detcore.records import OutputLog
from detcore.types import ExperimentState, TrialState

# Sets the clipboard and the title, clears the screen (also with an 8-bit control), rewrites the
# line, and sets a colour.
HOSTILE = "\x1b]52;c;cm0gLXJm\a\x1b]0;title\x1b\\\x1b[2J\x9b2J\r\u202eab\x1b[31mred\x1b[0m"
SHOWN = r"\x1b]52;c;cm0gLXJm\x07\x1b]0;title\x1b\\x1b[2J\x9b2J\r\u202eabred"


def test_control_characters_are_escaped() -> None:
    assert printable(HOSTILE) == SHOWN
    assert printable(HOSTILE, keep_colours=True).endswith(r"\u202eab" + "\x1b[31mred\x1b[0m")
    assert printable("a\tb\nc é 漢 \U0001f600") == "a\tb\nc é 漢 \U0001f600"
    assert printable("half \ud800") == r"half \ud800"


@given(st.text(), st.booleans())
def test_printable_removes_all_control_characters(text: str, keep: bool) -> None:
    output = printable(text, keep_colours=keep)
    assert harmless(re.sub(r"\x1b\[[0-9;:]*m", "", output) if keep else output)


def harmless(text: str) -> bool:
    return not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Records]:
    """A search with control characters in every name and text."""
    with Records.create(tmp_path_factory.mktemp("hostile")) as records:
        database = records.database
        searcher = {**CONFIG["searcher"], "metric": HOSTILE}
        hparams = {HOSTILE: {"type": "double", "minval": 0, "maxval": 1}}
        experiment = records.experiment(
            {**CONFIG, "searcher": searcher, "hyperparameters": hparams}, name=HOSTILE
        )
        trial = records.trial(experiment, **{HOSTILE: HOSTILE})
        database.start_run(trial)
        for step in (10, 20):
            records.report(trial, "training", step, **{HOSTILE: 1 / step})
            records.report(trial, "validation", step, **{HOSTILE: 1 / step, "note": HOSTILE})
        records.checkpoint(trial, 20, "abcd1234-full-uuid")
        log = OutputLog(records.folder(trial), run=1)
        log.append("stdout", HOSTILE)
        log.close()
        database.set_trial_state(trial, TrialState.ERROR, error=HOSTILE)
        database.set_experiment_state(experiment, ExperimentState.ERROR, error=HOSTILE)
        model = database.create_model(HOSTILE, description=HOSTILE)
        database.register_version(model.id, "abcd1234-full-uuid", comment=HOSTILE)
        yield records


@pytest.mark.parametrize("form", ["table", "csv"])
@pytest.mark.parametrize(
    "command",
    [
        "experiment list",
        "experiment describe 1",
        "experiment trials 1",
        "experiment best 1",
        "experiment wait 1",
        "experiment logs 1",
        "trial describe 1",
        "trial logs 1",
        "checkpoint list",
        "checkpoint describe abcd1234",
        "model list",
        "model list-versions 1",
    ],
)
def test_commands_escape_control_characters(hostile: Records, command: str, form: str) -> None:
    result = hostile(*command.split(), *([] if form == "table" else [f"--{form}"]))
    assert harmless(result.output.replace("\r\n", "\n"))
    if command.endswith("logs 1"):
        assert SHOWN in result.stdout


def test_json_keeps_text_unchanged(hostile: Records) -> None:
    assert hostile("trial", "logs", "1", "--raw").stdout == f"{HOSTILE}\n"
    printed = hostile("trial", "logs", "1", "--json").stdout
    assert harmless(printed)
    assert json.loads(printed)["text"] == HOSTILE
    assert hostile.data("experiment", "describe", "1")["name"] == HOSTILE


def test_run_output_is_escaped() -> None:
    output = io.StringIO()
    display = PlainDisplay(Console(file=output))
    display.notice(f"trial 1 failed: {HOSTILE}")
    assert output.getvalue() == f"trial 1 failed: {SHOWN}\n"
