"""Test ``detcore config`` in a process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

HERE = Path(__file__).parent
PROGRAM = "import sys; from detcore.cli import main; main(['config', *sys.argv[1:]], 'detcore')"


def run(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, words)],
        capture_output=True,
        text=True,
        env={**os.environ, **variables},
        cwd=HERE,
        timeout=60,
        check=False,
    )


def test_check_reports_valid_file() -> None:
    finished = run("check", "constant.yaml")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout == "constant.yaml: no mistakes\n"


def test_check_prints_notices() -> None:
    finished = run("check", "complete.yaml")
    assert finished.returncode == 0
    assert "complete.yaml:90:3: note: resources.priority is for a cluster" in finished.stderr


def test_check_reports_mistakes_and_exits_with_2() -> None:
    finished = run("check", "constant.yaml", "--set", "max_restart=2")
    assert (finished.returncode, finished.stdout) == (2, "")
    assert finished.stderr == (
        "command line:1:1: error: unknown key 'max_restart' at the top level\n"
        "  |\n"
        "1 | max_restart=2\n"
        "  | ^^^^^^^^^^^ did you mean 'max_restarts'?\n"
        "\n"
        "constant.yaml: 1 mistake\n"
    )


def test_misspelled_override_suggests_key_of_file() -> None:
    finished = run("check", "constant.yaml", "--set", "seacher.name=grid")
    assert finished.returncode == 2
    assert "unknown key 'seacher' at the top level" in finished.stderr
    assert "did you mean 'searcher'?" in finished.stderr
    assert "1 mistake\n" in finished.stderr


def test_check_rejects_impossible_file_name() -> None:
    finished = run("check", "a" * 300)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert "File name too long" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_check_requires_entrypoint(tmp_path: Path, constant: str) -> None:
    path = tmp_path / "exp.yaml"
    path.write_text(constant.replace("entrypoint: model_def:Trial\n", ""))
    finished = run("check", path)
    assert finished.returncode == 2
    assert "'entrypoint' is missing in the experiment file" in finished.stderr


def test_check_in_json_for_editors() -> None:
    finished = run("check", "constant.yaml", "--json", "--set", "searcher.metrc=acc")
    assert finished.returncode == 2
    (mistake,) = json.loads(finished.stdout)["mistakes"]
    assert (mistake["source"], mistake["line"], mistake["column"]) == ("command line", 1, 10)
    assert mistake["suggestion"] == "metric"
    right = json.loads(run("check", "constant.yaml", "--json").stdout)
    assert right == {"mistakes": [], "notices": []}


def test_show_is_yaml_with_secrets_masked() -> None:
    finished = run("show", "complete.yaml")
    assert finished.returncode == 0
    for secret in ("hunter2", "AKIAEXAMPLE", "correct-horse", "abcdef"):
        assert secret not in finished.stdout
    values = yaml.safe_load(finished.stdout)
    assert values["checkpoint_storage"]["secret_key"] == "********"
    assert values["environment"]["environment_variables"][1] == "SERVICE_TOKEN_SECRET=********"
    assert values["bind_mounts"] == [
        {
            "host_path": "/data",
            "container_path": "/data",
            "read_only": True,
            "propagation": "rprivate",
        }
    ]
    assert values == json.loads(run("show", "complete.yaml", "--json").stdout)


def test_show_escapes_direction_characters(tmp_path: Path, constant: str) -> None:
    path = tmp_path / "exp.yaml"
    path.write_text(f"{constant}\ndescription: a \u202e b\n")
    assert r'description: "a \u202E b"' in run("show", path).stdout


def test_show_origin_names_all_four_sources() -> None:
    finished = run(
        "show", "constant.yaml", "--origin", "--set", "max_restarts=1",
        DETCORE_CONFIG__SCHEDULING_UNIT="7",
    )  # fmt: skip
    rows = {
        row.split(":")[0].strip(): row.partition("#")[2].strip()
        for row in finished.stdout.splitlines()
    }
    assert rows["max_restarts"] == "--set"
    assert rows["scheduling_unit"] == "environment"
    assert rows["metric"] == "constant.yaml:8:11"
    assert rows["checkpoint_policy"] == "default"
    assert rows["experiment_seed"] == "default: drawn for each run"


def test_show_reports_mistakes_like_check() -> None:
    finished = run("show", "nowhere.yaml")
    assert (finished.returncode, finished.stdout) == (2, "")
    first, second = finished.stderr.splitlines()  # without a line and a number of mistakes
    assert first == "error: no file 'nowhere.yaml'"
    assert "complete.yaml, constant.yaml" in second


def test_schema_is_json() -> None:
    schema = json.loads(run("schema").stdout)
    assert schema["title"] == "detcore experiment"
