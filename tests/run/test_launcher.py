"""Experiments that name what starts their workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_distributions import write_distribution
from toy_command import MODEL_DIR, Detcore

LAUNCHERS = """
from detcore import hookimpl
from detcore.plugins import LauncherType

@hookimpl
def detcore_register_launcher():
    return [
        LauncherType(name="noting", launcher="detcore_starts.launchers:NotingLauncher"),
        LauncherType(
            name="modelled",
            launcher="detcore_starts.launchers:NotingLauncher",
            settings="detcore_starts.launchers:NotingSettings",
        ),
        LauncherType(name="full", launcher="detcore_starts.launchers:Full"),
        LauncherType(name="absent", launcher="detcore_starts.launchers:Absent"),
        LauncherType(name="failing", launcher="detcore_starts.launchers:Failing"),
    ]
"""
CLASSES = """
from pathlib import Path
from pydantic import BaseModel
from detcore.errors import WorkerError
from detcore.launch import LocalLauncher

class NotingSettings(BaseModel):
    journal: str
    word: str = "start"

class NotingLauncher:
    def __init__(self, journal, *, word="start"):
        self.journal, self.word, self.local = Path(journal), word, LocalLauncher()

    def start(self, info, **options):
        self.note(f"{self.word} {info.trial_id} on {options['slots']}")
        return self.local.start(info, **options)

    def close(self):
        self.note("close")
        self.local.close()

    def note(self, text):
        with self.journal.open("a") as file:
            file.write(text + "\\n")

class Failing:
    def __init__(self):
        raise OSError("no machines today")

class Full(NotingLauncher):
    def check_trial(self, settings, *, slots):
        self.note(f"check {slots}")
        if slots > 1:
            raise WorkerError(f"no machine has {slots} places.\\nAsk for fewer.")
"""


def states(detcore: Detcore) -> list[str]:
    listed = json.loads(detcore("experiment", "list", "--json").stdout)["experiments"]
    return [experiment["state"] for experiment in listed]


@pytest.fixture
def detcore(tmp_path: Path) -> Iterator[Detcore]:
    modules = {"detcore_starts.plugin": LAUNCHERS, "detcore_starts.launchers": CLASSES}
    write_distribution(
        tmp_path / "site", "detcore-starts", modules=modules,
        plugins={"starts": "detcore_starts.plugin"},
    )  # fmt: skip
    with Detcore(tmp_path, site=tmp_path / "site") as command:
        yield command


def test_configured_launcher_starts_trials(
    detcore: Detcore,
) -> None:
    journal = detcore.tmp_path / "journal"
    config = detcore.config(launcher={"name": "noting", "journal": str(journal), "word": "go"})
    result = detcore.run_checked("run", config, MODEL_DIR, "--slots", 2, "--json")
    assert result.summary["state"] == "COMPLETED"
    assert journal.read_text() == "go 1 on 2\nclose\n"
    # One that is complete is left alone.
    assert detcore("run", "--resume", 1, "--launcher", "local").code == 0
    assert journal.read_text() == "go 1 on 2\nclose\n"


def test_command_line_selects_launcher(detcore: Detcore) -> None:
    detcore.run_checked("run", detcore.config(), MODEL_DIR, "--launcher", "local", "--test")
    failed = detcore("run", detcore.config(), MODEL_DIR, "--launcher", "failing")
    assert states(detcore) == ["COMPLETED"]
    assert failed.code == 1
    assert "'failing' (detcore_starts.launchers:Failing) cannot be created: OSError: no mach" in (
        " ".join(failed.stderr.split())
    )


def test_launcher_option_drops_other_settings(
    detcore: Detcore,
) -> None:
    journal = detcore.tmp_path / "journal.txt"
    arguments = (detcore.config(), MODEL_DIR, "--set", f"launcher.journal={journal}", "--test")
    other = ("--set", "launcher.name=modelled")
    detcore.run_checked("run", *arguments, "--launcher", "noting", *other)
    assert journal.read_text().startswith("start 1 on 1")
    wrong = detcore("run", *arguments, "--launcher", "modelled", "--set", "launcher.jurnal=x")
    assert wrong.code == 2
    assert "did you mean 'journal'?" in wrong.stderr


def test_launcher_option_keeps_matching_settings(
    detcore: Detcore,
) -> None:
    journal = detcore.tmp_path / "journal"
    config = detcore.config(launcher={"name": "noting", "journal": str(journal), "word": "go"})
    arguments = ("run", config, MODEL_DIR, "--test", "--launcher")
    detcore.run_checked(*arguments, "noting", "--set", "launcher.word=start")
    assert journal.read_text().startswith("start 1 on 1")
    detcore.run_checked(*arguments, "local")
    assert journal.read_text().count("start") == 1
    refused = detcore(*arguments, "moon")
    assert refused.stderr.startswith("command line:2:15: error: unknown launcher 'moon'\n")


@pytest.mark.parametrize(
    ("launcher", "message"),
    [
        ("pigeon", "unknown launcher 'pigeon'"),
        ("modelled", "'journal' is missing in 'launcher'"),
        ({"name": "modelled", "journl": "x"}, "did you mean 'journal'?"),
        ({"name": "local", "nice": 3}, "unknown key 'nice' in launcher (name: local)"),
        ("absent", "(detcore_starts.launchers:Absent) cannot be imported"),
        (3, "expected a string or a mapping, got the integer 3"),
        ({"nice": 3}, "name"),
    ],
)
def test_missing_launcher_is_refused_before_recording(
    detcore: Detcore, launcher: object, message: str
) -> None:
    checked = detcore("config", "check", detcore.config(launcher=launcher, entrypoint=["true"]))
    assert checked.code == 2
    assert message in " ".join(checked.stderr.split()), checked.stderr
    result = detcore("run", detcore.config(launcher=launcher), MODEL_DIR)
    assert result.code in (1, 2)
    assert message in " ".join(result.stderr.split()), result.stderr
    listed = detcore("experiment", "list", "--json")
    assert json.loads(listed.stdout)["experiments"] == []


def test_impossible_trials_are_not_recorded(
    detcore: Detcore,
) -> None:
    launcher = {"name": "full", "journal": str(detcore.tmp_path / "journal")}
    config = detcore.config(launcher=launcher)
    refused = detcore.run_failing("run", config, MODEL_DIR, "--slots", 2)
    assert refused.output.count("no machine has 2 places") == 1, refused.output
    assert "Ask for fewer." in refused.output
    assert states(detcore) == []
    detcore.run_checked("run", config, MODEL_DIR, "--test")
    assert (detcore.tmp_path / "journal").read_text().splitlines() == [
        "check 2", "close", "check 1", "start 1 on 1", "close",
    ]  # fmt: skip


def test_refused_resume_keeps_experiment(detcore: Detcore) -> None:
    launcher = {"name": "full", "journal": str(detcore.tmp_path / "journal")}
    config = detcore.config(launcher=launcher, entrypoint=["sh", "-c", "exit 75"])
    assert detcore("run", config, MODEL_DIR).code == 75
    refused = detcore.run_failing("run", "--resume", 1, "--slots", 2)
    assert refused.output.count("no machine has 2 places") == 1, refused.output
    assert states(detcore) == ["PAUSED"]
    failed = detcore("run", "--resume", 1, "--launcher", "noting")
    assert "cannot be created: TypeError" in failed.output
    assert states(detcore) == ["PAUSED"]
