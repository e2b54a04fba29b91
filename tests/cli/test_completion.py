"""Test shell completion of ids of records and names of plugins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_distributions import run_python, write_distribution
from recorded import Records

# Shells complete this program name, not "python -m detcore".
COMMAND = ("-c", "from detcore.cli import main; main(prog_name='detcore')")


def complete(
    *words: str, home: Path, sites: Sequence[Path] = (), **variables: str
) -> tuple[list[str], str]:
    """Return the completions of the last word, and standard error."""
    finished = run_python(
        *COMMAND,
        sites=sites,
        variables={
            "DETCORE_HOME": str(home),
            "_DETCORE_COMPLETE": "zsh_complete",
            "COMP_WORDS": " ".join(("detcore", *words)),
            "COMP_CWORD": str(len(words)),
            **variables,
        },
    )
    return finished.stdout.strip("\n").splitlines(), finished.stderr


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Records:
    with Records.create(tmp_path_factory.mktemp("searched")) as records:
        for number in range(12):
            records.trial(records.experiment(name=f"digits\n{number}\x1b]"))
    return records


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("experiment", "describe", ""), [str(number) for number in range(12, 0, -1)]),
        (("experiment", "describe", "1"), ["12", "11", "10", "1"]),
        (("run", "--resume", "1"), ["12", "11", "10", "1"]),
        (("report", "7"), ["7"]),
        (("tensorboard", "3", "1"), ["12", "11", "10", "1"]),
        (("trial", "logs", "12"), ["12"]),
        (("checkpoint", "list", "--experiment", "9"), ["9"]),
    ],
)
def test_shells_complete_ids(searched: Records, words: tuple[str, ...], offered: list[str]) -> None:
    completions, errors = complete(*words, home=searched.home)
    # Each completion has three lines: kind, text and description.
    assert completions[0::3] == ["plain"] * len(offered)
    assert completions[1::3] == offered
    about = "experiment" if words[0] == "trial" else "digits"
    assert all(line.startswith(f"RUNNING {about}") or about in line for line in completions[2::3])
    assert errors == ""


def test_shells_complete_names_of_plugins(tmp_path: Path) -> None:
    for name in ("bakery", "barber"):
        write_distribution(tmp_path, f"detcore-{name}")
    for words, offered in (
        (("plugins", "info", "ba"), ["bakery", "barber"]),
        (("--no-plugin", "bak"), ["bakery"]),
        (("plugins", "deliver", "--forget", "bar"), ["barber"]),
    ):
        completions, errors = complete(*words, home=tmp_path / "home", sites=[tmp_path])
        assert (completions[1::3], errors) == (offered, ""), words


@pytest.mark.parametrize("state", ["absent", "damaged", "empty", "a folder", "database server"])
def test_completion_is_empty_when_unreadable(tmp_path: Path, state: str) -> None:
    home = tmp_path / "home"
    variables: dict[str, Any] = {}
    if state != "absent":
        home.mkdir()
    if state == "damaged":
        (home / "detcore.db").write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 40)
    elif state == "empty":
        (home / "detcore.db").touch()
    elif state == "a folder":
        (home / "detcore.db").mkdir()
    elif state == "database server":
        variables = {"DETCORE_DB": "postgresql+psycopg://nobody@127.0.0.1:9/none"}
    before = sorted(tmp_path.rglob("*"))
    assert complete("experiment", "describe", "", home=home, **variables) == ([], "")
    assert complete("experiment", "describe", "", home=home, DETCORE_GRACE_S="soon") == ([], "")
    assert sorted(tmp_path.rglob("*")) == before


def test_completion_needs_no_server_or_database(searched: Records) -> None:
    words, url = ("experiment", "describe"), "http://127.0.0.1:9"
    assert complete(*words, "--master", url, "", home=searched.home) == ([], "")
    assert complete(*words, "", home=searched.home, DETCORE_MASTER=url) == ([], "")
    finished = run_python(
        "-X", "importtime", *COMMAND,
        variables={
            "DETCORE_HOME": str(searched.home), "_DETCORE_COMPLETE": "bash_complete",
            "COMP_WORDS": "detcore experiment describe 7", "COMP_CWORD": "3",
        },
    )  # fmt: skip
    assert finished.stdout == "plain,7\n"
    assert "sqlalchemy" not in finished.stderr
