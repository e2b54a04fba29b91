"""Each hook is called as specified, with one test per hook of the same name."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_distributions import write_distribution

from detcore.environment import read_environment
from detcore.errors import PluginNotFoundError
from detcore.plugins import CheckpointSaved, EventInfo, PluginManager, PluginProblem
from detcore.types import TrialInfo

Install = Callable[..., PluginManager]
HEAD = """
import click
from detcore import hookimpl
from detcore.plugins import LauncherType, RendezvousType, RoutesType
from detcore.plugins import SearcherType, StorageType
from detcore.types import Framework
told = []
"""
TRIAL = TrialInfo(
    experiment_id=1,
    trial_id=2,
    run_id=1,
    trial_seed=0,
    hparams={},
    config={},
    model_dir="/m",
    trial_dir="/t",
)
EVENT = EventInfo(number=3, time=1.5e9)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install plugins from their source, by name, and return a manager that allows only these."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def _install(**plugins: str) -> PluginManager:
        for name, text in plugins.items():
            write_distribution(
                tmp_path, f"detcore-{name}", modules={f"detcore_{name}.plugin": HEAD + text}
            )
        environment = read_environment({"DETCORE_PLUGINS": ",".join(plugins)})
        return PluginManager(environment)

    yield _install
    for name in set(sys.modules) - before:
        if name.startswith("detcore_"):
            del sys.modules[name]


def told(name: str) -> list[Any]:
    """Return the calls that a plugin recorded."""
    module: types.ModuleType = sys.modules[f"detcore_{name}.plugin"]
    noted: list[Any] = module.told
    return noted


def tell(manager: PluginManager, hook: str, **arguments: object) -> None:
    """Call every observer with one event, as the delivery threads do."""
    for observer in manager.observers():
        if hook in observer.hooks:
            observer.call(hook, {"trial": TRIAL, "event": EVENT, **arguments})


def one_problem(manager: PluginManager) -> PluginProblem:
    (problem,) = manager.problems()
    return problem


FRAMEWORK = 'Framework(name={!r}, trial_class="m:T", context_class="m:C", controller="m:K")'


def test_detcore_register_framework(install: Install) -> None:
    one, two = FRAMEWORK.format("one"), FRAMEWORK.format("two")
    manager = install(
        a=f"@hookimpl\ndef detcore_register_framework(): return {one}",
        b=f"@hookimpl\ndef detcore_register_framework(): return [{two}]",
        c="@hookimpl\ndef detcore_register_framework(): return None",
    )
    assert {name: item.controller for name, item in manager.frameworks().items()} == {
        "one": "m:K",
        "two": "m:K",
    }
    assert manager.problems() == []


def test_detcore_register_storage(install: Install) -> None:
    manager = install(
        a="@hookimpl\ndef detcore_register_storage(): return StorageType("
        'name="s3", schemes=("s3", "s3a"), settings="m:S", backend="m:B")'
    )
    assert manager.storage_types()["s3"].schemes == ("s3", "s3a")


def test_storage_scheme_conflict_is_reported(install: Install) -> None:
    text = (
        "@hookimpl\ndef detcore_register_storage(): return StorageType("
        'name={!r}, schemes=("s3", {!r}), settings="m:S", backend="m:B")'
    )
    manager = install(a=text.format("one", "x"), b=text.format("two", "y"))
    assert manager.storage_types().keys() == {"shared_fs", "directory"}
    assert str(one_problem(manager)) == (
        "a (detcore-a 1.0) and b (detcore-b 1.0): both register the URL scheme 's3'; none is used; "
        "fix: export DETCORE_DISABLE_PLUGINS=b  or: export DETCORE_DISABLE_PLUGINS=a"
    )


def test_detcore_register_launcher(install: Install) -> None:
    manager = install(
        a="@hookimpl\ndef detcore_register_launcher(): "
        'return LauncherType(name="x", launcher="m:L")'
    )
    assert {name: item.launcher for name, item in manager.launchers().items()} == {
        "local": "detcore.launch:LocalLauncher",
        "x": "m:L",
    }


def test_detcore_register_rendezvous(install: Install) -> None:
    manager = install(
        a="@hookimpl\ndef detcore_register_rendezvous(): return "
        '[RendezvousType(name="x", service="m:S"), RendezvousType(name="y", service="m.S")]'
    )
    assert {name: kind.service for name, kind in manager.rendezvous().items()} == {"x": "m:S"}
    [problem] = manager.problems()
    assert "returned a rendezvous whose service is 'm.S', not a string like" in problem.message


def test_detcore_register_searcher(install: Install) -> None:
    manager = install(
        a='@hookimpl\ndef detcore_register_searcher(): return SearcherType(name="x", method="m:S")'
    )
    assert manager.searchers()["x"].method == "m:S"
    assert "single" in manager.searchers()


def test_detcore_register_commands(install: Install) -> None:
    manager = install(
        a="@hookimpl\ndef detcore_register_commands(): "
        'return [click.Command("x"), click.Group("y")]'
    )
    assert sorted(manager.commands()) == ["x", "y"]
    assert manager.command("x") is manager.commands()["x"]
    assert manager.command("z") is None


def test_detcore_register_routes(install: Install) -> None:
    manager = install(
        a="@hookimpl\ndef detcore_register_routes(): "
        'return [RoutesType(name="x", make_router="m:f"), RoutesType(name="y", make_router="m.f")]'
    )
    [(name, routes)] = manager.routes().items()
    assert (name, routes.make_router, routes.has_guards) == ("x", "m:f", False)
    assert manager.find_routes_provider("x").name == "a"
    [problem] = manager.problems()
    assert "returned a router whose make_router is 'm.f', not a string like" in problem.message


def test_detcore_trial_started(install: Install) -> None:
    manager = install(
        a="@hookimpl\ndef detcore_trial_started(trial, event): told.append((trial, event))"
    )
    tell(manager, "detcore_trial_started")
    assert told("a") == [(TRIAL, EVENT)]


def test_detcore_training_metrics(install: Install) -> None:
    arguments = "trial, steps_completed, metrics, batch_metrics, event"
    manager = install(
        a=f"@hookimpl\ndef detcore_training_metrics({arguments}): told.append(({arguments}))",
        b="@hookimpl\ndef detcore_training_metrics(metrics): told.append(metrics)",
    )
    hook = "detcore_training_metrics"
    tell(manager, hook, steps_completed=100, metrics={"loss": 0.5}, batch_metrics=({"loss": 1},))
    tell(manager, hook, steps_completed=200, metrics={"loss": 0.25}, batch_metrics=None)
    assert told("a") == [
        (TRIAL, 100, {"loss": 0.5}, ({"loss": 1},), EVENT),
        (TRIAL, 200, {"loss": 0.25}, None, EVENT),
    ]
    assert told("b") == [{"loss": 0.5}, {"loss": 0.25}]


def test_detcore_validation_metrics(install: Install) -> None:
    arguments = "trial, steps_completed, metrics, event"
    manager = install(
        a=f"@hookimpl\ndef detcore_validation_metrics({arguments}): told.append(({arguments}))"
    )
    tell(manager, "detcore_validation_metrics", steps_completed=100, metrics={"val_loss": 0.5})
    assert told("a") == [(TRIAL, 100, {"val_loss": 0.5}, EVENT)]


def test_detcore_checkpoint_saved(install: Install) -> None:
    manager = install(
        a="@hookimpl\ndef detcore_checkpoint_saved(checkpoint): told.append(checkpoint)"
    )
    checkpoint = CheckpointSaved(uuid="u", steps_completed=7, url="file:///c/u", size_bytes=12)
    tell(manager, "detcore_checkpoint_saved", checkpoint=checkpoint)
    assert told("a") == [checkpoint]


def test_detcore_trial_finished(install: Install) -> None:
    manager = install(
        a="@hookimpl\ndef detcore_trial_finished(state, error): told.append((state, error))"
    )
    tell(manager, "detcore_trial_finished", state="ERROR", error="ValueError: no")
    assert told("a") == [("ERROR", "ValueError: no")]


def test_observers_list_their_hooks(install: Install) -> None:
    manager = install(
        a="@hookimpl\ndef detcore_register_framework(): return None",
        b="@hookimpl\ndef detcore_trial_started(): pass\n"
        "@hookimpl\ndef detcore_trial_finished(state): pass",
    )
    names = {observer.entry.label: sorted(observer.hooks) for observer in manager.observers()}
    assert names == {"b (detcore-b 1.0)": ["detcore_trial_finished", "detcore_trial_started"]}


def test_observer_exceptions_propagate(install: Install) -> None:
    manager = install(a="@hookimpl\ndef detcore_trial_started(): raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        tell(manager, "detcore_trial_started")


def test_failing_register_hook_is_logged_once(
    install: Install, caplog: pytest.LogCaptureFixture
) -> None:
    manager = install(
        a="@hookimpl\ndef detcore_register_framework(): return 1 / 0",
        b=f"@hookimpl\ndef detcore_register_framework(): return {FRAMEWORK.format('b')}",
    )
    assert list(manager.frameworks()) == ["b"]
    assert list(manager.frameworks()) == ["b"]
    assert one_problem(manager).kind == "hook-failed"
    (message,) = caplog.messages
    assert "a (detcore-a 1.0): detcore_register_framework fails: ZeroDivisionError" in message


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (FRAMEWORK.format("Bad Name"), "name is 'Bad Name'; use lower-case letters"),
        (
            FRAMEWORK.format("x").replace('"m:T"', "int"),
            "trial_class is <class 'int'>, not a string",
        ),
        (FRAMEWORK.format("x").replace("m:K", "m.K"), "controller is 'm.K', not a string like"),
        (FRAMEWORK.format("x")[:-1] + ", requires='tf')", "requires is 'tf', not a tuple of names"),
        (
            FRAMEWORK.format("x")[:-1] + ", inexact_resume=True)",
            "inexact_resume is True, not a string",
        ),
        (
            FRAMEWORK.format("x")[:-1] + ", load_checkpoint='m')",
            "load_checkpoint is 'm', not a string",
        ),
    ],
)
def test_fields_are_checked_at_registration(value: str, said: str, install: Install) -> None:
    manager = install(a=f"@hookimpl\ndef detcore_register_framework(): return {value}")
    assert manager.frameworks() == {}
    assert one_problem(manager).kind == "bad-value"
    assert said in one_problem(manager).message


def test_all_faults_of_a_plugin_are_reported(install: Install) -> None:
    manager = install(
        a="@hookimpl\ndef detcore_trial_startd(): ...\n"
        "@hookimpl\ndef detcore_trial_finished(x): ..."
    )
    manager.frameworks()
    assert sorted(problem.kind for problem in manager.problems()) == [
        "unknown-hook",
        "wrong-arguments",
    ]


def test_unknown_hook_can_be_optional(install: Install) -> None:
    manager = install(
        a="@hookimpl(optionalhook=True)\ndef detcore_from_the_future(x): ...\n"
        "@hookimpl\ndef detcore_trial_started(): told.append(1)"
    )
    tell(manager, "detcore_trial_started")
    assert told("a") == [1]
    assert manager.problems() == []


def test_plugins_are_called_in_name_order(install: Install) -> None:
    text = "@hookimpl{}\ndef detcore_trial_started():\n    import sys; sys.order.append({!r})"
    order: list[str] = []
    sys.order = order  # type: ignore[attr-defined]  # shared between the plugins of this test
    try:
        manager = install(
            b=text.format("", "b"),
            a=text.format("", "a"),
            c=text.format("(tryfirst=True)", "c"),
            d=text.format("(trylast=True)", "d"),
            e=text.format("", "e"),
        )
        tell(manager, "detcore_trial_started")
    finally:
        del sys.order  # type: ignore[attr-defined]
    assert order == ["c", "a", "b", "e", "d"]


def test_plugin_can_be_an_object(tmp_path: Path, install: Install) -> None:
    text = """
class Plugin:
    def __init__(self):
        self.noted = told
    @property
    def costly(self):
        raise RuntimeError("read")
    __hash__ = None
    @hookimpl
    def detcore_trial_started(self, trial):
        self.noted.append(trial.trial_id)
plugin = Plugin()
"""
    write_distribution(
        tmp_path,
        "detcore-a",
        modules={"detcore_a.plugin": HEAD + text},
        plugins={"a": "detcore_a.plugin:plugin"},
    )
    manager = PluginManager(read_environment({"DETCORE_PLUGINS": "a"}))
    tell(manager, "detcore_trial_started")
    assert told("a") == [2]
    assert manager.problems() == []


def test_object_with_raising_dir_is_isolated(tmp_path: Path, install: Install) -> None:
    text = """
class Plugin:
    def __dir__(self):
        raise RuntimeError("no")
plugin = Plugin()
"""
    write_distribution(
        tmp_path,
        "detcore-a",
        modules={"detcore_a.plugin": text},
        plugins={"a": "detcore_a.plugin:plugin"},
    )
    manager = PluginManager(read_environment({"DETCORE_PLUGINS": "a"}))
    assert "local" in manager.launchers()
    assert "searching for hooks in detcore_a.plugin:plugin fails" in one_problem(manager).message


def test_declared_command_imports_only_its_plugin(tmp_path: Path, install: Install) -> None:
    manager = install(b="@hookimpl\ndef detcore_register_commands(): return click.Command('other')")
    write_distribution(
        tmp_path,
        "detcore-a",
        modules={
            "detcore_a.plugin": HEAD
            + "@hookimpl\ndef detcore_register_commands(): return click.Command('mine')"
        },
        commands={"mine": "detcore_a.plugin"},
    )
    manager = PluginManager(read_environment({"DETCORE_PLUGINS": "a,b"}))
    assert list(manager.declared_commands()) == ["mine"]
    assert "detcore_a.plugin" not in sys.modules
    command = manager.command("mine")
    assert command is not None
    assert command.name == "mine"
    assert "detcore_b.plugin" not in sys.modules
    assert manager.command("other") is not None
    assert "detcore_b.plugin" in sys.modules


def test_entry_suggests_similar_plugin_name(install: Install) -> None:
    with pytest.raises(
        PluginNotFoundError, match=r"no plugin is called 'alpa'\.\nDid you mean 'alpha'"
    ):
        install(alpha="").entry("alpa")


def test_manager_exposes_disabled_plugins() -> None:
    environment = read_environment({"DETCORE_DISABLE_PLUGINS": "a", "DETCORE_PLUGINS": "x"})
    manager = PluginManager(environment, disabled=["b"])
    assert manager.disabled == frozenset("ab")
    assert manager.allowed == frozenset("x")
    assert PluginManager(environment, allowed=["y"]).allowed == frozenset("y")
