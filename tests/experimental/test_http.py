"""Test the client over HTTP: names in paths, numbers, paged lists and outages."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
from client_store import ClientStore
from fault_proxy import FaultProxy, fault_proxy
from http_face import make_token

from detcore.client import Determined, EmbeddedTransport, Transport, TrialReference
from detcore.client.http import (
    ServerRefusedError,
    ServerUnavailableError,
    Session,
    decode_value,
    encode_value,
)
from detcore.client.http.http_transport import PARTS, HttpTransport
from detcore.client.http.wire_documents import read_document
from detcore.environment import read_environment
from detcore.errors import (
    CheckpointCorruptError,
    ConfigError,
    DetcoreError,
    ForbiddenError,
    InvalidArgumentError,
    NotFoundError,
)
from detcore.records import MetricRecord


@pytest.fixture
def pair(store: ClientStore, face: Any) -> Iterator[tuple[Transport, Transport]]:
    """A client that reads the records directly, and a client of their server."""
    near = EmbeddedTransport(read_environment())
    far = HttpTransport(Session(face.url, face.token))
    yield near, far
    far.close()
    near.close()


@pytest.fixture
def behind_proxy(store: ClientStore, face: Any) -> Iterator[tuple[Determined, FaultProxy]]:
    with (
        fault_proxy(face.url) as proxy,
        Determined(transport=HttpTransport(Session(proxy.url, face.token))) as client,
    ):
        yield client, proxy


def told(call: Any) -> tuple[type, str]:
    """Return the class and message of an error, without the address of the records."""
    with pytest.raises(DetcoreError) as caught:
        call()
    return type(caught.value), re.sub(
        r"(sqlite|http)://\S*(?=[.:](\s|$))", "RECORDS", str(caught.value)
    )


def refused_alike(pair: tuple[Transport, Transport], call: Callable[[Any], object]) -> type:
    """Return the class of the error that both clients raise with the same message."""
    near, far = (told(functools.partial(call, one)) for one in pair)
    assert far == near
    return near[0]


# -- names -----------------------------------------------------------------------------------------

ODD = [
    "a/b", "..", ".", "../../experiments/1", "%2F", "a%2Fb", "a?b=c#d", "a b", " a", "é ü 模型 🚀",
    "by-name", "0", "+", "&name=x", "a\tb", "\x7f", "'\"<>\\", ";", "-", "//", "a\nb",
]  # fmt: skip


def test_any_name_of_a_model_works(pair: tuple[Transport, Transport]) -> None:
    near, far = cast("Any", pair[0]), cast("Any", pair[1])
    for name in ODD:
        created_model = far.create_model(name, name, {name: name}, [name])
        assert created_model["name"] == name
        assert far.get_model(name) == near.get_model(name) == far.get_model(created_model["id"])
        query: dict[str, Any] = {
            "sort_by": 1, "order_by": 1, "description": name, "labels": [name], "archived": False,
            "limit": None, "offset": 0,
        }  # fmt: skip
        assert (
            far.list_models(name=name, **query)
            == near.list_models(name=name, **query)
            == [created_model]
        )
        assert far.update_model(name, description="new", labels=None)["description"] == "new"
        assert far.remove_model_metadata(name, [name])["metadata"] == {}
        assert far.get_version(name, 0) is None
        far.delete_model(name)
        refused_alike(pair, lambda one, name=name: one.get_model(name))  # type: ignore[misc]


@pytest.mark.parametrize("name", ["", "   ", "x" * 600])
def test_invalid_names_are_rejected_by_both(pair: tuple[Transport, Transport], name: str) -> None:
    assert refused_alike(pair, lambda one: one.create_model(name, "", {}, [])) is ConfigError
    refused_alike(pair, lambda one: one.get_model(name))


@pytest.mark.parametrize("uuid", [*ODD, "", "nothing", "x" * 5000])
def test_invalid_uuids_are_rejected_by_both(
    store: ClientStore, pair: tuple[Transport, Transport], uuid: str
) -> None:
    checkpoint_uuid = store.one_checkpoint()
    near, far = pair
    if uuid and str(checkpoint_uuid).startswith(uuid):  # a prefix of a UUID is accepted
        uuid = "1"
    if uuid:
        refused_alike(pair, lambda one: one.get_checkpoint(uuid))
    for change in (
        lambda: far.add_checkpoint_metadata(uuid, {"a": 1}),
        lambda: far.delete_checkpoint(uuid, ["*"]),
        lambda: far.delete_checkpoint(uuid, None),
        lambda: far.download_checkpoint(uuid, os.path.abspath("there")),
    ):
        kind, text = told(change)
        assert kind is NotFoundError
        assert text.startswith(f"no checkpoint {uuid!r}")
    assert near.latest_checkpoint(1) is not None
    assert not Path("there").exists()


@pytest.mark.parametrize("number", [0, -1, 2**31, 2**63 - 1, 2**63, 10**30])
def test_invalid_ids_are_rejected_by_both(pair: tuple[Transport, Transport], number: int) -> None:
    for call in (
        lambda one: one.get_experiment(number),
        lambda one: one.get_trial(number),
        lambda one: one.get_model(number),
        lambda one: one.control_experiment(number, "pause"),
        lambda one: one.control_trial(number, "kill"),
    ):
        refused_alike(pair, call)


def test_labels_and_notes_are_written_by_both(
    store: ClientStore, pair: tuple[Transport, Transport]
) -> None:
    documents = []
    for transport in pair:
        trial = TrialReference(store.trial(store.experiment()), transport=transport)
        assert (trial.labels, trial.notes) == ([], "")
        trial.set_labels(["z", "old"])
        trial.add_label("a")
        trial.remove_label("old")
        trial.set_notes("first\nsecond")
        assert (trial.labels, trial.notes) == (["a", "z"], "first\nsecond")
        documents.append(transport.get_trial(trial.id))
    assert [*documents[0]] == [*documents[1]]
    refused_alike(pair, lambda one: one.update_trial(10**6, notes="x"))
    bad: Any = 3
    for change in (trial.set_labels, trial.add_label, trial.set_notes):
        with pytest.raises(InvalidArgumentError):
            change(bad)


# -- numbers ---------------------------------------------------------------------------------------

SPECIAL = {"a": math.inf, "b": -math.inf, "c": 0.1 + 0.2, "d": -0.0, "e": 1e-320, "f": 2**70}


def test_http_preserves_numbers(store: ClientStore, pair: tuple[Transport, Transport]) -> None:
    trial = store.trial(store.experiment(lr=math.inf, text="NaN"), rate=-math.inf)
    batches: list[Mapping[str, Any]] = [{"loss": math.nan}, {"loss": 1.5}]
    record = MetricRecord(
        trial_id=trial, run_id=1, kind="training", steps_completed=2, metrics=SPECIAL,
        batch_metrics=batches,
    )  # fmt: skip
    store.database.add_metrics([record])
    uuid = store.checkpoint(trial, 2, SPECIAL)
    store.database.add_checkpoint_metadata(
        uuid, {"x": math.inf, "$number": 3, "only": {"$number": "NaN"}, "half": "\ud83d"}
    )
    near, far = pair
    # repr distinguishes -0.0 from 0.0 and 1 from 1.0, and is equal for every NaN.
    calls: list[Callable[[Transport], object]] = [
        lambda one: one.get_experiment(1),
        lambda one: one.get_trial(trial),
        lambda one: one.list_metrics(trial, "training"),
        lambda one: one.get_checkpoint(uuid),
        lambda one: one.top_checkpoints(
            experiment_id=1, trial_id=None, metric="a", smaller_is_better=None, limit=5,
            distinct_trials=True,
        ),
    ]  # fmt: skip
    for call in calls:
        assert repr(call(far)) == repr(call(near))
    assert far.get_checkpoint(uuid)["metadata"]["only"] == {"$number": "NaN"}
    assert far.get_experiment(1)["config"]["text"] == "NaN"


@pytest.mark.parametrize(
    "value",
    [
        math.inf, {"$number": 1}, {"$number": "NaN"}, {"$number": {"$number": -math.inf}},
        [{"$number": {"a": math.inf}}], {"$number": {"$number": {"$number": "Infinity"}}},
        {"a": "NaN", "$number": None}, {},
    ],
)  # fmt: skip
def test_http_preserves_special_numbers(value: Any) -> None:
    encoded = json.loads(json.dumps(encode_value(value), allow_nan=False))
    assert decode_value(encoded) == value


# -- lists -----------------------------------------------------------------------------------------


def test_lists_longer_than_an_answer_are_complete(
    store: ClientStore, pair: tuple[Transport, Transport]
) -> None:
    near, far = pair
    trial = store.trial(store.experiment())
    records = [
        MetricRecord(
            trial_id=trial, run_id=1, kind="validation", steps_completed=step, metrics={"a": step}
        )
        for step in range(2 * PARTS + 1)
    ]
    store.database.add_metrics(records)
    expected = near.list_metrics(trial, "validation")
    assert far.list_metrics(trial, "validation") == expected
    with Determined(transport=far) as client:
        metrics = client.get_trial(trial).stream_validation_metrics()
        assert [report.steps_completed for report in metrics] == list(range(2 * PARTS + 1))


# -- outages ---------------------------------------------------------------------------------------


def some(*faults: str) -> Callable[[str, str], str | None]:
    """Return a function that applies the faults to the next requests, one each."""
    remaining_faults = iter(faults)
    return lambda method, target: next(remaining_faults, None)


def test_reads_are_retried_and_changes_are_not(
    store: ClientStore, behind_proxy: tuple[Determined, FaultProxy]
) -> None:
    client, proxy = behind_proxy
    experiment = client.get_experiment(store.experiment())
    model = client.create_model("m")
    for fault in ("503", "reset before", "reset after", "truncate"):
        proxy.choose = some(fault, fault)
        assert experiment.state == "COMPLETED"
    proxy.always("reset after", "POST")
    before = len(proxy.seen)
    with pytest.raises(ServerUnavailableError, match="does not respond"):
        client.create_model("n")
    assert len(proxy.seen) == before + 1
    proxy.choose = lambda method, target: None
    assert client.get_model("n").name == "n"  # a second request would be an error
    proxy.choose = some("reset after")
    model.add_metadata({"a": 1})  # repeating it has no effect
    assert client.get_model("m").metadata == {"a": 1}


def test_download_continues_after_interruption(
    store: ClientStore, behind_proxy: tuple[Determined, FaultProxy]
) -> None:
    client, proxy = behind_proxy
    text = "".join(f"{number}\n" for number in range(300_000))
    uuid = store.checkpoint(store.trial(store.experiment()), 10, files={"large.txt": text})
    offsets: list[str] = []

    def choose(method: str, target: str) -> str | None:
        if "large.txt" not in target:
            return None
        offsets.append(target.rpartition("offset=")[2])
        return "truncate" if len(offsets) < 4 else None

    proxy.choose = choose
    folder = client.get_checkpoint(uuid).download()
    assert Path(folder, "large.txt").read_text() == text
    assert len(offsets) == 4
    assert [int(offset) for offset in offsets] == sorted({int(offset) for offset in offsets})


def test_a_download_that_fails_leaves_nothing(
    store: ClientStore, behind_proxy: tuple[Determined, FaultProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, proxy = behind_proxy
    monkeypatch.setattr("detcore.client.http.http_storage._BACKOFF_S", 0.001)
    checkpoint = client.get_checkpoint(store.one_checkpoint())
    proxy.choose = lambda method, target: "reset before" if "weights" in target else None
    with pytest.raises(ServerUnavailableError):
        checkpoint.download("model")
    assert list(Path().iterdir()) == []
    proxy.choose = lambda method, target: None
    store.files(checkpoint.uuid).joinpath("weights.txt").write_text("1 2 4")
    with pytest.raises(CheckpointCorruptError, match=r"weights\.txt: has changed"):
        checkpoint.download("model")
    assert list(Path().iterdir()) == []


def test_only_files_of_the_checkpoint_are_sent(
    store: ClientStore, pair: tuple[Transport, Transport]
) -> None:
    uuid = store.one_checkpoint()
    (store.home / "checkpoints" / "beside").write_text("secret")
    folder = store.files(uuid)
    (folder / "out").symlink_to(store.home / "detcore.db")
    os.mkfifo(folder / "pipe")
    assert isinstance(pair[1], HttpTransport)
    session = pair[1]._session
    path = f"/api/detcore/v1/checkpoints/{uuid}/files/content"
    for name in ("../beside", "/etc/passwd", "out", "pipe", "code", "gone", "", "a\0b", "."):
        with (
            pytest.raises(DetcoreError, match=r"has no file|is refused|leads out"),
            session.stream(path, params={"name": name}) as pieces,
        ):
            b"".join(pieces)
    with session.stream(path, params={"name": "weights.txt", "offset": 2}) as pieces:
        assert b"".join(pieces) == b"2 3"
    with session.stream(path, params={"name": "weights.txt", "offset": 99}) as pieces:
        assert b"".join(pieces) == b""


def test_only_event_files_are_copied(
    store: ClientStore, pair: tuple[Transport, Transport], face: Any, tmp_path: Path
) -> None:
    number = store.trial(store.experiment())
    folder = Path(str(store.database.get_trial(number).trial_dir))
    (folder / "tensorboard").mkdir()
    grown = folder / "tensorboard" / "a.tfevents.1"
    grown.write_bytes(b"0123456789")
    (folder / "b.tfevents").write_bytes(b"")
    (folder / "log.jsonl").write_text("{}")
    (folder / "link.tfevents").symlink_to("/etc/hostname")
    (folder / "loop").symlink_to(folder)
    (folder / "line\nend.tfevents").touch()
    outside = tmp_path / "outside.tfevents"
    outside.write_text("secret")
    for place, transport in zip(("near", "far"), pair, strict=True):
        trial = Determined(transport=transport).get_trial(number)
        target = tmp_path / place
        assert trial.download_event_files(target) == str(target)
        copied = {
            path.relative_to(target).as_posix(): path.read_bytes()
            for path in target.rglob("*")
            if path.is_file()
        }
        assert copied == {"tensorboard/a.tfevents.1": grown.read_bytes(), "b.tfevents": b""}
    grown.write_bytes(b"0123456789abc")
    trial.download_event_files(target)
    assert (target / "tensorboard" / "a.tfevents.1").read_bytes() == b"0123456789abc"
    grown.write_bytes(b"new")  # another file with the same name
    trial.download_event_files(target)
    assert (target / "tensorboard" / "a.tfevents.1").read_bytes() == b"new"
    session = Session(face.url, face.token)
    for name in (
        "link.tfevents", "loop/b.tfevents", "log.jsonl", "../x.tfevents", str(outside), "", "\0",
        "tensorboard", "a" * 5000 + ".tfevents", "./b.tfevents", "b.tfevents/",
    ):  # fmt: skip
        with pytest.raises(NotFoundError, match="has no event file"):
            session.request(
                "GET", f"/api/detcore/v1/trials/{number}/event-files/content", params={"name": name}
            )


def test_missing_event_files_are_reported(
    pair: tuple[Transport, Transport], store: ClientStore
) -> None:
    number = store.database.create_trial(experiment_id=store.experiment(), hparams={}, seed=0)
    for transport in pair:
        with pytest.raises(NotFoundError, match="or it ran on another machine"):
            Determined(transport=transport).get_trial(number).download_event_files("here")


def test_many_threads_share_a_client(store: ClientStore, pair: tuple[Transport, Transport]) -> None:
    number = store.experiment()
    far, wrong = pair[1], []

    def ask() -> None:
        for _ in range(10):
            if far.get_experiment(number)["id"] != number:
                wrong.append(number)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_client_works_in_forked_child(
    store: ClientStore, pair: tuple[Transport, Transport]
) -> None:
    number, far = store.experiment(), pair[1]
    assert far.get_experiment(number)["id"] == number
    child = os.fork()
    if child == 0:
        try:
            is_same = far.get_experiment(number)["id"] == number
            far.close()
            os._exit(0 if is_same else 1)
        except BaseException:  # noqa: BLE001  (nothing may come back to pytest)
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert far.get_experiment(number)["id"] == number


# -- invalid answers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [None, [], "text", {}, {"id": 1, "experiment_id": 1, "state": "ERROR"}],
)
def test_invalid_answer_is_reported(answer: Any) -> None:
    with pytest.raises(ServerRefusedError, match="is not a valid trial: missing fields"):
        read_document("trial", answer)


def test_unknown_fields_of_server_are_ignored() -> None:
    line = {"at": 1.5, "run": 1, "rank": 0, "stream": "stdout", "text": "x"}
    log = {"lines": [{**line, "colour": "red"}], "position": 3, "is_over": False, "more": 1}
    assert read_document("log", log) == {"lines": [line], "position": 3, "is_over": False}


# -- permissions -----------------------------------------------------------------------------------


def test_only_owner_or_admin_deletes_checkpoint(store: ClientStore, face: Any) -> None:
    uuid = store.one_checkpoint()
    token = make_token(read_environment().database_url, user="mallory", is_admin=False)
    with Determined(transport=HttpTransport(Session(face.url, token))) as client:
        checkpoint = client.get_checkpoint(uuid)
        for deletes in (checkpoint.delete, lambda: checkpoint.remove_files(["*"])):
            with pytest.raises(ForbiddenError, match="user 'mallory' may not change experiment 1"):
                deletes()
    with Determined(transport=HttpTransport(Session(face.url, face.token))) as client:
        assert client.get_checkpoint(uuid).state == "COMPLETED"
        client.get_checkpoint(uuid).delete()
        assert client.get_checkpoint(uuid).state == "DELETED"
