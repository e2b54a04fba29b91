"""Hosts of a job, and the variables for their workers."""

from __future__ import annotations

import pytest
from launch_command import Launch

from detcore.errors import ConfigError
from detcore.launch.hosts import Host, parse_hosts, select_exported_variables

HOSTS = ("--launcher", "horovod", "--hosts", "a:4,b:4")


def test_parse_hosts_and_slots() -> None:
    assert parse_hosts("a:4, b.c-d_e:10,10.0.0.1") == [
        Host("a", 4),
        Host("b.c-d_e", 10),
        Host("10.0.0.1", 1),
    ]


@pytest.mark.parametrize(
    "text", ["", "a:", "a:x", "a:0", "a,,b", "a b", "-oProxyCommand=x:1", "a;b"]
)
def test_invalid_hosts_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="is not NAME:SLOTS"):
        parse_hosts(text)
    with pytest.raises(ConfigError, match="'a' is named twice"):
        parse_hosts("a:1,a:2")


def test_only_harmless_variables_are_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = {"HOROVOD_FUSION_THRESHOLD": "1", "PYTHONPATH": "/a", "OMP_NUM_THREADS": "2"}
    secret = {
        "DETCORE_JOB_KEY": "k",
        "AWS_SECRET_ACCESS_KEY": "k",
        "PYTHON_API_TOKEN": "k",
        "HOROVOD_PASSWORD": "k",
        "TF_URL": "https://user:k@host",
        "DETCORE_DB": "postgresql://me:k@host/db",
        "SOMETHING": "else",
        "HOROVOD_RANK": "3",
    }
    for name, value in {**harmless, **secret}.items():
        monkeypatch.setenv(name, value)
    exported = select_exported_variables({"PATH": "/x"}, ["SOMETHING"])
    assert exported.items() >= {**harmless, "PATH": "/x", "SOMETHING": "else"}.items()
    assert not exported.keys() & (secret.keys() - {"SOMETHING"})
    for name in ("DETCORE_JOB_KEY", "AWS_SECRET_ACCESS_KEY", "DETCORE_DB"):
        with pytest.raises(ConfigError, match=f"--env {name}: its value would appear on"):
            select_exported_variables({}, [name])
    with pytest.raises(ConfigError, match="--env NOT_THERE: this variable is not set"):
        select_exported_variables({}, ["NOT_THERE"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hosts", "a:4", "--", "true"], "--hosts requires --launcher horovod, not local"),
        (["--launcher", "torch", "--hosts", "a:4", "--", "true"], "run torchrun on each host"),
        ([*HOSTS, "-n", 9, "--", "true"], "-n 9, but the hosts have 8 slots: a:4,b:4"),
        (["--launcher", "horovod", "--hosts", "a:b", "--", "true"], "'a:b' is not NAME:SLOTS"),
        (["-n", 2, "--env", "X", "--", "true"], "require --hosts"),
    ],
)
def test_invalid_command_line_exits_with_2(
    launch: Launch, arguments: list[object], message: str
) -> None:
    finished = launch(*arguments)
    assert finished.returncode == 2
    assert message in finished.stderr


def test_missing_horovodrun_names_the_install(launch: Launch) -> None:
    """The sessions that run these tests have no Horovod."""
    finished = launch(*HOSTS, "--", "true")
    assert finished.returncode == 2
    assert "--hosts needs horovodrun, but" in finished.stderr
    assert "pip install horovod" in finished.stderr
