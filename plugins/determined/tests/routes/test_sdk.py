"""The Python SDK of ``determined`` 0.38.1, run in separate processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from client_store import FILES
from determined_client import Client, Filled
from running_server import PASSWORD, USER, RunningServer

# Importing the SDK takes a second, so each process has many checks.

_READING = """
client.login(given["url"], user=given["user"], password=given["password"])
experiment = client.get_experiment(given["experiment"])
first, second = experiment.list_trials()
first.reload()
uuids = given["checkpoints"]
trial_best = first.top_checkpoint()
say({
    "whoami": client.whoami().username,
    "listed": [found.id for found in client.list_experiments()],
    "newest first": [
        found.id for found in client.list_experiments(
            sort_by=client.ExperimentSortBy.ID, order_by=client.OrderBy.DESC
        )
    ],
    "paused": [
        [found.id, found.archived]
        for found in client.list_experiments(states=[client.ExperimentState.PAUSED])
    ],
    "labelled": [found.id for found in client.list_experiments(labels=["ocr"])],
    "named": [found.id for found in client.list_experiments(name="nothing")],
    "of others": [found.id for found in client.list_experiments(users=["nobody"])],
    "by id": [found.id for found in client.list_experiments(experiment_ids=[given["paused"]])],
    "experiment": [
        experiment.id, experiment.name, experiment.state.name, experiment.description,
        sorted(experiment.labels), experiment.progress, experiment.archived,
        experiment.config["searcher"]["metric"], experiment.wait().name,
    ],
    "trials": [
        [trial.id, trial.experiment_id, trial.state.name, trial.hparams]
        for trial in (first, second)
    ],
    "pages of one": [trial.id for trial in experiment.iter_trials(limit=1)],
    "by batches": [
        trial.id
        for trial in experiment.list_trials(
            client.TrialSortBy.BATCHES_PROCESSED, client.OrderBy.DESC
        )
    ],
    "first trial": experiment.await_first_trial().id,
    "summary": first.summary_metrics,
    "training": [
        [m.trial_id, m.trial_run_id, m.steps_completed, m.metrics, m.group, m.end_time.tzname()]
        for m in first.iter_metrics("training")
    ],
    "validation": [[m.steps_completed, m.metrics] for m in first.iter_metrics("validation")],
    "legacy": [m.metrics for m in first.stream_training_metrics()]
    + [m.metrics for m in second.stream_validation_metrics()],
    "of both": [
        m.trial_id for m in client.iter_trials_metrics([first.id, second.id], "validation")
    ],
    "other kinds": list(first.iter_metrics("inference")),
    "logs": list(first.iter_logs()),
    "head": list(first.iter_logs(head=1)),
    "tail": list(first.iter_logs(tail=2)),
    "followed": len(list(first.iter_logs(follow=True))),
    "of rank 1": list(first.iter_logs(rank_ids=[1])),
    "stderr": list(first.iter_logs(stdtypes=["stderr"])),
    "searched": list(first.iter_logs(search_text="step 2")),
    "before": list(first.iter_logs(timestamp_before="2020-01-01T00:00:00Z")),
    "checkpoints": [found.uuid for found in experiment.list_checkpoints()],
    "by steps": [
        found.uuid
        for found in first.list_checkpoints(
            sort_by=client.CheckpointSortBy.BATCH_NUMBER, order_by=client.OrderBy.DESC
        )
    ],
    "by error": [
        found.uuid
        for found in experiment.list_checkpoints(
            sort_by="error", order_by=client.OrderBy.DESC, max_results=2
        )
    ],
    "top": [
        experiment.top_checkpoint().uuid,
        experiment.top_checkpoint(sort_by="loss", smaller_is_better=False).uuid,
        trial_best.uuid,
        first.select_checkpoint(latest=True).uuid,
        [found.uuid for found in experiment.top_n_checkpoints(2)],
    ],
    "top by error": [
        [found.uuid for found in experiment.top_n_checkpoints(3, "error", smaller_is_better=less)]
        for less in (True, False)
    ],
    "trials by": [
        [trial.id for trial in experiment.list_trials(sort_by=key, order_by=order)]
        for key in (
            client.TrialSortBy.LATEST_VALIDATION_METRIC, client.TrialSortBy.CHECKPOINT_SIZE
        )
        for order in (client.OrderBy.ASC, client.OrderBy.DESC)
    ],
    "checkpoint": [
        trial_best.state.name, trial_best.metadata, sorted(trial_best.resources.items()),
        trial_best.training.trial_id, trial_best.training.experiment_id,
        trial_best.training.hparams, trial_best.training.validation_metrics,
        trial_best.training.experiment_config["checkpoint_storage"],
    ],
    "missing": [
        refusal(client.get_experiment, 77),
        refusal(client.get_trial, 77),
        refusal(client.get_checkpoint, "no-such"),
        refusal(experiment.pause),
    ],
    "over": [first.kill(), experiment.kill(), experiment.cancel()],
    "wrong password": refusal(client.Determined, given["url"], "ada2", "wrong"),
})
"""


def test_records_are_read(client: Client, filled: Filled, served: RunningServer) -> None:
    first, second = filled.trials
    early, late, best = filled.checkpoints
    message = client.script(
        _READING, url=served.url, user=USER, password=PASSWORD, experiment=filled.experiment,
        paused=filled.paused, checkpoints=filled.checkpoints,
    )  # fmt: skip
    assert message["whoami"] == USER
    assert message["listed"] == [filled.experiment, filled.paused]
    assert message["newest first"] == [filled.paused, filled.experiment]
    assert message["paused"] == [[filled.paused, True]]
    assert message["labelled"] == [filled.experiment]
    assert message["named"] == message["of others"] == []
    assert message["by id"] == [filled.paused]
    assert message["experiment"] == [
        filled.experiment, "test", "COMPLETED", "reads digits", ["ocr", "small"], 1.0, False,
        "loss", "COMPLETED",
    ]  # fmt: skip
    assert message["trials"] == [
        [first, filled.experiment, "COMPLETED", {"rate": 0.1, "layers": [3, 2]}],
        [second, filled.experiment, "COMPLETED", {"rate": 0.2, "layers": [4]}],
    ]
    assert message["pages of one"] == [first, second]
    assert message["by batches"] == [first, second]  # 20 and 10
    assert message["first trial"] == first
    assert message["summary"]["avg_metrics"]["loss"] == {
        "count": 2, "last": 2.5, "max": 4.5, "min": 2.5, "mean": 3.5, "sum": 7.0, "type": "number",
    }  # fmt: skip
    assert message["summary"]["validation_metrics"]["loss"]["last"] == 0.75
    assert message["training"] == [
        [first, 1, 5, {"loss": 4.5, "accuracy": "NaN"}, "training", "UTC"],
        [first, 1, 10, {"loss": 2.5, "accuracy": 0.5}, "training", "UTC"],
    ]
    assert message["validation"] == [
        [10, {"loss": 1.5, "error": "NaN"}],
        [20, {"loss": 0.75, "error": "Infinity"}],
    ]
    assert message["legacy"] == [
        {"loss": 4.5, "accuracy": "NaN"},
        {"loss": 2.5, "accuracy": 0.5},
        {"loss": 0.25, "error": 0.125},
    ]
    assert message["of both"] == [first, first, second]
    assert message["other kinds"] == []
    _check_logs(message)
    assert message["checkpoints"] == [best, late, early]
    assert message["by steps"] == [late, early]
    assert message["by error"] == [late, best]  # infinity and 0.125; NaN is not a value
    assert message["top"] == [best, early, late, late, [best, late]]
    # NaN and infinity cannot be compared, so they are last.
    assert message["top by error"][0][0] == message["top by error"][1][0] == best
    assert [len(result) for result in message["top by error"]] == [2, 2]
    by_latest, by_size = [second, first], [second, first]  # 0.25, 0.75; one checkpoint, two
    assert message["trials by"] == [by_latest, by_latest[::-1], by_size, by_size[::-1]]
    assert message["checkpoint"] == [
        "COMPLETED",
        {"steps_completed": 20, "framework": "toy"},
        [["code/model.py", "17"], ["metadata.json", "50"], ["weights.txt", "5"]],
        first,
        filled.experiment,
        {"rate": 0.1, "layers": [3, 2]},
        {"avgMetrics": {"loss": 0.75, "error": None}, "batchMetrics": None},
        {"type": "shared_fs", "host_path": str(filled.store.home / "checkpoints")},
    ]
    kinds = [kind for kind, _ in message["missing"]]
    assert kinds == ["NotFoundException"] * 3 + ["APIException"]
    assert "no experiment 77" in message["missing"][0][1]
    assert "has ended (COMPLETED)" in message["missing"][3][1]
    assert message["over"] == [None] * 3
    assert message["wrong password"] == ["ForbiddenException", "Forbidden(invalid credentials)"]


def _check_logs(said: dict[str, Any]) -> None:
    assert [text.partition("] ")[2] for text in said["logs"]] == [
        "the trial starts\n",
        "[rank=0] step 0\n",
        "[rank=1] step 1\n",
        "[rank=0] step 2\n",
        "[rank=0] a wärning\n",
    ]
    assert said["head"] == said["logs"][:1]
    assert said["tail"] == said["logs"][-2:]
    assert said["followed"] == 5  # the log ends because the experiment has ended
    assert said["of rank 1"] == said["logs"][2:3]
    assert said["stderr"] == said["logs"][4:]
    assert said["searched"] == said["logs"][3:4]
    assert said["before"] == []


_DOWNLOADING = """
import pathlib
client.login()
found = client.get_checkpoint(given["uuid"])
modes = {}
for mode in client.DownloadMode:
    folder = pathlib.Path(found.download(given["folder"] + "/" + mode.value, mode))
    modes[mode.value] = {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json"
    }
found.add_metadata({"note": "kept", "more": [1, None]})
found.remove_metadata(["framework"])
found.reload()
after = dict(found.metadata)
found.remove_files(["code/**"])
found.reload()
partly = [found.state.name, sorted(found.resources)]
found.download(given["folder"] + "/partly", client.DownloadMode.MASTER)
found.delete()
found.reload()
say({
    "modes": modes, "after": after, "partly": partly,
    "state": found.state.name,
    "files": sorted(str(path.name) for path in pathlib.Path(given["folder"], "partly").iterdir()),
    "gone": refusal(found.download, given["folder"] + "/gone"),
    "registered": refusal(client.get_checkpoint(given["registered"]).delete),
})
"""


def test_checkpoint_is_downloaded_and_deleted(
    client: Client, filled: Filled, tmp_path: Path
) -> None:
    store = filled.store
    experiment = store.experiment()
    uuid = store.checkpoint(store.trial(experiment, rate=1.0), 10, {"loss": 1.0})
    store.database.create_model("keeps")
    store.database.register_version("keeps", filled.checkpoints[0])
    metadata = (store.files(uuid) / "metadata.json").read_text()
    message = client.script(
        _DOWNLOADING, uuid=uuid, folder=str(tmp_path), registered=filled.checkpoints[0]
    )
    expected = {**FILES, "metadata.json": metadata}
    assert message["modes"] == {"direct": expected, "master": expected, "auto": expected}
    assert message["after"] == {"steps_completed": 10, "note": "kept", "more": [1, None]}
    assert message["partly"] == ["PARTIALLY_DELETED", ["metadata.json", "weights.txt"]]
    assert message["files"] == ["manifest.json", "metadata.json", "weights.txt"]
    assert message["state"] == "DELETED"
    assert message["gone"][0] == "CheckpointStateException"
    assert not store.files(uuid).exists()
    kind, text = message["registered"]
    assert kind == "APIException"
    assert "in the model registry: keeps version 1" in text
    assert (store.files(filled.checkpoints[0]) / "weights.txt").read_text() == FILES["weights.txt"]


_REGISTRY = """
client.login()
early, late = given["checkpoints"]
determined = client.Determined()
model = determined.create_model("digits", "reads digits", {"team": "ocr"}, ["b", "a"])
made = [model.name, model.labels, model.metadata]
other = client.create_model("Letters & more")
first = model.register_version(early)
second = model.register_version(late)
first.set_name("one")
first.set_notes("the first of them")
model.add_metadata({"since": 2026})
model.remove_metadata(["team"])
model.set_description("reads figures")
model.set_labels(["figures"])
found = client.get_model("digits")
by_id = client.get_model(found.model_id)
version = found.get_version(1)
out = {
    "made": [*made, other.name],
    "model": [
        found.name, found.description, found.metadata, found.labels, found.archived,
        found.username, by_id.name, client.get_model("Letters & more").name,
    ],
    "time": found.creation_time.tzname(),
    "versions": [v.model_version for v in found.list_versions()],
    "ascending": [v.model_version for v in found.list_versions(client.OrderBy.ASC)],
    "version": [
        version.model_version, version.name, version.notes, version.model_name,
        version.checkpoint.uuid, version.checkpoint.training.trial_id,
    ],
    "latest": found.get_version().checkpoint.uuid,
    "none": other.get_version(),
    "names": [m.name for m in client.list_models()],
    "by time": [
        m.name for m in client.list_models(client.ModelSortBy.CREATION_TIME, client.OrderBy.DESC)
    ],
    "like": [m.name for m in client.list_models(name="DIG")],
    "described": [m.name for m in client.list_models(description="figures")],
    "by id": [m.name for m in client.list_models(model_id=other.model_id)],
    "elsewhere": [m.name for m in client.list_models(workspace_names=["Other"])],
    "labels": client.get_model_labels(),
    "taken": refusal(client.create_model, "digits"),
    "digits alone": refusal(client.create_model, "42"),
    "missing": [refusal(client.get_model, "nothing"), refusal(found.get_version, 9)],
    "unfit": refusal(found.register_version, "no-such"),
}
found.archive()
out["archived"] = refusal(found.set_description, "again")
found.unarchive()
second.delete()
out["left"] = [v.model_version for v in found.list_versions()]
first.delete()
found.delete()
other.delete()
out["after"] = [m.name for m in client.list_models(name="digits")]
out["places"] = [
    [w.name, [[p.name, p.n_experiments > 1] for p in w.list_projects()], w.list_pools()]
    for w in client.list_workspaces()
]
say(out)
"""


def test_model_life_cycle(client: Client, filled: Filled) -> None:
    early, late, _ = filled.checkpoints
    message = client.script(_REGISTRY, checkpoints=[early, late])
    assert message["made"] == ["digits", ["b", "a"], {"team": "ocr"}, "Letters & more"]
    assert message["model"] == [
        "digits", "reads figures", {"since": 2026}, ["figures"], False, USER, "digits",
        "Letters & more",
    ]  # fmt: skip
    assert message["time"] == "UTC"
    assert message["versions"] == [2, 1]
    assert message["ascending"] == [1, 2]
    assert message["version"] == [1, "one", "the first of them", "digits", early, filled.trials[0]]
    assert message["latest"] == late
    assert message["none"] is None
    assert [name for name in message["names"] if name != "keeps"] == ["digits", "Letters & more"]
    assert message["by time"][:2] == ["Letters & more", "digits"]
    assert message["like"] == message["described"] == ["digits"]
    assert message["by id"] == ["Letters & more"]
    assert message["elsewhere"] == []
    assert message["labels"] == ["figures"]
    assert message["taken"][0] == "APIException"
    assert "a model named 'digits' already exists" in message["taken"][1]
    assert "Choose another name" in message["digits alone"][1]
    assert [kind for kind, _ in message["missing"]] == ["NotFoundException"] * 2
    assert message["unfit"][0] == "NotFoundException"
    assert "is archived" in message["archived"][1]
    assert message["left"] == [1]
    assert message["after"] == []
    assert message["places"] == [["Uncategorized", [["Uncategorized", True]], []]]


_CHANGING = """
client.login()
session = client._determined._session
made = client.create_user("bob", admin=False, password="Long-enough-1")
experiment = client.get_experiment(given["experiment"])
experiment.set_name("renamed")
experiment.set_description("another")
experiment.add_label("new")
experiment.remove_label("ocr")
experiment.add_label("gpu/a b")
slashed = sorted(experiment.labels)
experiment.remove_label("gpu/a b")
labels = sorted(experiment.labels)
experiment.archive()
archived = client.get_experiment(experiment.id).archived
experiment.unarchive()
experiment.reload()
out = {
    "experiment": [experiment.name, experiment.description, labels, archived, experiment.archived],
    "found": [found.id for found in client.list_experiments(name="RENAMED", labels=["new"])],
    "notes": [experiment.set_notes("read them"), experiment.notes],
    "made": [made.username, made.admin, made.active],
    "users": [[user.username, user.admin] for user in client.list_users()],
    "slashed": slashed,
    "of an agent": refusal(made.link_with_agent, 1, 1, "bob", "staff"),
    "weak": refusal(client.create_user, "eve", False, "short"),
}
experiment.set_labels({"only"})
out["labels"] = sorted(client.get_experiment(experiment.id).labels)
bob = client.Determined(given["url"], "bob", "Long-enough-1")
out["bob"] = [
    bob.whoami().username,
    refusal(bob.create_user, "eve", False, "Long-enough-2"),
    refusal(bob.get_experiment(experiment.id).archive),
    refusal(bob.get_experiment(experiment.id).set_name, "mine"),
    refusal(bob.get_checkpoint(given["checkpoint"]).delete),
    refusal(bob.get_user_by_name(given["user"]).change_password, "Long-enough-3"),
    len(bob.list_experiments()),
]
bob.get_user_by_name("bob").change_password("Long-enough-4")
out["old token"] = refusal(bob.whoami)
again = client.Determined(given["url"], "bob", "Long-enough-4")
out["again"] = again.whoami().username
made.deactivate()
out["inactive"] = [refusal(again.whoami), [u.username for u in client.list_users(active=True)]]
client.logout()
out["logged out"] = refusal(client.Determined._from_session(session).whoami)
experiment2 = client.Determined(given["url"]).get_experiment(given["deleted"])
experiment2.delete()
out["deleted"] = refusal(experiment2.reload)
say(out)
"""


def test_users_and_experiment_descriptions(
    client: Client, filled: Filled, served: RunningServer
) -> None:
    store = filled.store
    experiment = store.experiment(labels=["ocr"])
    deleted = store.experiment()
    uuid = store.checkpoint(store.trial(deleted, rate=1.0), 10)
    message = client.script(
        _CHANGING, url=served.url, user=USER, experiment=experiment, deleted=deleted,
        checkpoint=filled.checkpoints[2],
    )  # fmt: skip
    assert message["experiment"] == ["renamed", "another", ["new"], True, False]
    assert message["found"] == [experiment]
    assert message["notes"] == [None, "read them"]
    record = store.database.get_experiment(experiment)
    assert (record.notes, "notes" in record.config) == ("read them", False)
    assert message["slashed"] == ["gpu/a b", "new"]
    assert message["labels"] == ["only"]
    assert "no users of agents" in message["of an agent"][1]
    assert message["made"] == ["bob", False, True]
    assert message["users"] == [[USER, True], ["bob", False]]
    assert message["weak"][0] == "ValueError"
    name, *refused, count = message["bob"]
    assert name == "bob"
    assert [kind for kind, _ in refused] == ["ForbiddenException"] * 5
    assert count >= 2
    assert message["old token"][0] == message["logged out"][0] == "UnauthenticatedException"
    assert message["again"] == "bob"
    assert message["inactive"][0][0] == "UnauthenticatedException"
    assert message["inactive"][1] == [USER]
    assert message["deleted"][0] == "NotFoundException"
    assert not store.files(uuid).exists()


@pytest.fixture(autouse=True)
def _home(client: Client) -> None:
    """Delete tokens of the previous test."""
    for path in client.home.rglob("auth.json"):
        path.unlink()
