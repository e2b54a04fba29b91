"""Tests of the page: content, permissions and escaping of each route."""

from __future__ import annotations

import csv
import dataclasses
import datetime
import html
import importlib.resources
import io
import json
import math
import re
import sqlite3
import tarfile
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from job_server import wait_for
from page_client import PageClient, ServedPage
from page_records import HOSTILE, add_search, save_checkpoint
from recorded import Records
from running_server import PASSWORD, USER, RunningServer, quick_hash

from detcore.checkpoint import verify_checkpoint
from detcore.log.events import CheckpointCommitted, CheckpointStarted, ResumeCompared
from detcore.log.reading import event_log_path
from detcore.log.writing import EventLog
from detcore.records import MetricRecord, OutputLog
from detcore.storage import LocalStorage
from detcore.types import Control, ExperimentState, TrialState
from detcore_server.server_database import ServerDatabase


@dataclasses.dataclass
class Site(Records):
    """Server with records and a logged-in user."""

    database: ServerDatabase
    server: RunningServer
    client: PageClient

    @property
    def stranger(self) -> PageClient:
        """Client that has not logged in."""
        return PageClient(self.server.url)

    def page(self, path: str, *, status: int = 200) -> ServedPage:
        """Return a page after checking it."""
        return self.client.page(path, status=status)

    def search(self, num_trials: int, num_reports: int = 3, **more: Any) -> tuple[int, list[int]]:
        """Record a search. Returns the experiment id and the trial ids."""
        experiment = add_search(self.database, num_trials, num_reports, **more)
        return experiment, [trial.id for trial in self.database.list_trials(experiment)]

    def add_user(self, name: str) -> PageClient:
        """Create a user who is not an administrator, and log in."""
        self.database.create_user(name, password_hash=quick_hash(PASSWORD))
        client = self.stranger
        assert client.log_in(name).status == 303
        return client


@pytest.fixture(scope="module")
def site(module_server: RunningServer) -> Iterator[Site]:
    client = PageClient(module_server.url)
    assert client.log_in().status == 303
    with ServerDatabase.open(module_server.database_url) as database:
        yield Site(module_server.home, database, module_server, client)


# -- who is let in --------------------------------------------------------------------------------


def test_login_and_logout(site: Site) -> None:
    client = site.stranger
    answer = client.ask("GET", "/ui/experiments?name=a%26b")
    assert (answer.status, answer.text) == (303, "")
    assert answer.headers["location"] == "/ui/login?next=%2Fui%2Fexperiments%3Fname%3Da%2526b"
    form = client.page(answer.headers["location"])
    assert 'value="/ui/experiments?name=a%26b"' in form.html
    wrong = client.log_in(password="guess")
    assert wrong.status == 403
    assert "The name or the password is wrong." in ServedPage(wrong.text).text
    assert (PASSWORD in wrong.text, "guess" in wrong.text, client.cookie) == (False, False, "")
    answer = client.ask("POST", "/ui/login", {**LOG_IN, "next": "/ui/models"})
    assert (answer.status, answer.headers["location"]) == (303, "/ui/models")
    flags = answer.headers["set-cookie"].lower()
    assert "httponly" in flags
    assert "samesite=strict" in flags
    assert USER in client.page("/ui/models").text
    cookie = client.cookie
    answer = client.ask("POST", "/ui/logout")
    assert (answer.status, answer.headers["location"]) == (303, "/ui/login")
    assert "Max-Age=0" in answer.headers["set-cookie"]
    client.cookie = cookie
    assert client.ask("GET", "/ui/models").status == 303  # the token itself is now invalid


@pytest.mark.parametrize(
    "path",
    [
        "//evil.example/ui/",
        "https://evil.example",
        "/ui/\\evil.example",
        "/ui/x\r\nX: 1",
        "/api",
        "",
    ],
)
def test_login_redirects_to_no_other_site(site: Site, path: str) -> None:
    answer = site.stranger.ask("POST", "/ui/login", {**LOG_IN, "next": path})
    assert answer.headers["location"] == "/ui/experiments"


LOG_IN = {"name": USER, "password": PASSWORD}


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": ""},
        {"Origin": "", "Sec_Fetch_Site": "cross-site"},
        {"Origin": "", "Sec_Fetch_Site": "same-site"},
        {"Origin": "", "Sec_Fetch_Site": "none"},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "{url}.evil.example"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Origin": "https://evil.example", "Sec_Fetch_Site": "same-origin"},
    ],
)
def test_other_sites_cannot_change_anything(site: Site, headers: dict[str, str]) -> None:
    foreign = {name: value.format(url=site.server.url) for name, value in headers.items()}
    experiment, _ = site.search(1)
    path = f"/ui/experiments/{experiment}/control"
    answer = site.client.ask("POST", path, {"action": "archive"}, **foreign)
    assert (answer.status, ServedPage(answer.text).title) == (403, "Not allowed · detcore")
    assert not site.database.get_experiment(experiment).archived
    refused = site.stranger.ask("POST", "/ui/login", LOG_IN, **foreign)
    assert (refused.status, "set-cookie" in refused.headers) == (403, False)


@pytest.mark.parametrize(
    "headers",
    [{}, {"Origin": "", "Sec_Fetch_Site": "same-origin"}, {"Sec_Fetch_Site": "same-origin"}],
)
def test_own_page_can_change_records(site: Site, headers: dict[str, str]) -> None:
    experiment, _ = site.search(1)
    path = f"/ui/experiments/{experiment}/control"
    assert site.client.ask("POST", path, {"action": "archive"}, **headers).status == 303
    assert site.database.get_experiment(experiment).archived
    assert site.stranger.ask("POST", "/ui/login", LOG_IN, **headers).status == 303


def test_headers_and_files(site: Site) -> None:
    for name, kind in (("static/page.css", "css"), ("static/page.js", "javascript"),
                       ("static/charts.js", "javascript"), ("report.css", "css"),
                       ("static/icon.svg", "svg+xml")):  # fmt: skip
        answer = site.stranger.ask("GET", f"/ui/{name}")
        assert (answer.status, kind in answer.headers["content-type"]) == (200, True)
        assert "http://" not in answer.text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in answer.text
        assert "@import" not in answer.text
        again = site.stranger.ask("GET", f"/ui/{name}", If_None_Match=answer.headers["etag"])
        assert again.status == 304
    library = site.stranger.ask("GET", "/ui/static/uplot/uPlot.iife.min.js")
    assert library.text.startswith("/*! https://github.com/leeoniya/uPlot (v1.6.32) */")
    folder = importlib.resources.files("detcore_server.pages").joinpath("static/uplot")
    assert "Permission is hereby granted" in folder.joinpath("LICENSE").read_text()
    for name in ("..%2Ftemplates%2Fbase.html", "../templates/base.html", "base.html"):
        assert site.client.ask("GET", f"/ui/static/{name}").status == 404, name


def test_too_many_logins_have_to_wait(site: Site) -> None:
    answers = [site.stranger.log_in(name="nobody", password="x") for _ in range(6)]
    assert [answer.status for answer in answers] == [403] * 5 + [429]
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 60
    assert "too many login attempts; try again in" in ServedPage(answers[-1].text).text


def test_other_users_experiments_are_read_only(site: Site) -> None:
    (experiment, _), (other, _) = site.search(1), site.search(1)
    client = site.add_user("bob")
    assert "COMPLETED" in client.page(f"/ui/experiments/{experiment}").text
    answer = client.ask("POST", f"/ui/experiments/{experiment}/control", {"action": "archive"})
    assert (answer.status, ServedPage(answer.text).title) == (403, "Not allowed · detcore")
    assert not site.database.get_experiment(experiment).archived
    with sqlite3.connect(site.home / "detcore.db") as connection:
        connection.execute(
            "INSERT INTO submissions (experiment_id, user_id, submission_id, phase, test_mode, "
            "created_at) SELECT ?, id, 'x', 'ENDED', 0, 0 FROM users WHERE name = 'bob'",
            [experiment],
        )
    connection.close()
    page = client.page(f"/ui/experiments/{experiment}")
    assert "submitted by\nbob" in page.text
    assert f'action="/ui/experiments/{experiment}/control"' in page.html
    assert (
        "/control" not in client.page(f"/ui/experiments/{other}").html
    )  # no button without permission
    listed = client.page("/ui/experiments")
    assert [row[6] for row in listed.rows if row[0] == str(experiment)] == ["bob"]
    own_page = client.page("/ui/experiments?user=bob")
    assert [row[0] for row in own_page.rows if row[0].isdigit()] == [str(experiment)]
    assert "No experiment matches" in client.page("/ui/experiments?user=nobody").text
    answer = client.ask("POST", f"/ui/experiments/{experiment}/control", {"action": "archive"})
    assert answer.status == 303
    assert site.database.get_experiment(experiment).archived


# -- lists ----------------------------------------------------------------------------------------


def test_empty_page_shows_first_command(server: RunningServer) -> None:
    client = PageClient(server.url)
    client.log_in()
    assert (
        f"detcore run const.yaml model_dir --master {server.url}"
        in client.page("/ui/experiments").text
    )
    assert "detcore model create" in client.page("/ui/models").text
    with ServerDatabase.open(server.database_url) as database:
        empty = Records(server.home, database).experiment({"name": "e"})
    base = f"/ui/experiments/{empty}"
    assert "detcore experiment describe 1" in client.page(base).text
    assert "min_checkpoint_period" in client.page(f"{base}/checkpoints").text
    for suffix in ("/hyperparameters", "/compare", "/configuration"):
        client.page(base + suffix)


def test_ten_thousand_experiments_are_paged(server: RunningServer) -> None:
    with sqlite3.connect(server.home / "detcore.db") as connection:
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000) "
            "INSERT INTO experiments (id, name, state, config, model_dir, archived, notes, "
            "created_at, ended_at) SELECT i, 'many ' || (10000 - i), CASE i % 4 WHEN 0 THEN "
            "'ERROR' ELSE 'COMPLETED' END, '{\"labels\": [\"l' || (i % 5) || '\"]}', '/code', "
            "i % 10 = 0, '', i, i + 1 FROM n"
        )
        connection.execute(
            "INSERT INTO experiment_labels (label, experiment_id) "
            "SELECT 'l' || (id % 5), id FROM experiments"
        )
    connection.close()
    client = PageClient(server.url)
    client.log_in()

    def shown(query: str) -> tuple[str, list[int]]:
        page = client.page(f"/ui/experiments{query}")
        position = next(text for text in page.texts if " of " in text)
        return position, [int(row[0]) for row in page.rows if row[0].isdigit()]

    position, ids = shown("")
    assert position == "1 to 50 of 9,000"
    assert ids[:3] == [9999, 9998, 9997]
    assert len(ids) == 50
    assert shown("?page=180")[0] == "8,951 to 9,000 of 9,000"
    beyond = client.page("/ui/experiments?name=many&page=181")
    assert "This page does not exist." in beyond.text
    assert "?name=many&page=180" in beyond.links
    assert shown("?archived=only&sort=oldest")[1][:2] == [10, 20]
    position, ids = shown("?archived=all&state=ERROR&label=l2&page=2&sort=oldest")
    assert position == "51 to 100 of 500"
    assert ids[0] == 12 + 50 * 20
    assert shown("?archived=all&name=MANY+999&sort=name")[1][:3] == [9001, 10, 9]
    page = client.page("/ui/experiments?state=ERROR&label=l2&name=many&page=2")
    link = next(link for link in page.links if link.endswith("page=3"))
    assert link == "?name=many&label=l2&state=ERROR&page=3"
    assert client.page(f"/ui/experiments{link}").text


@pytest.mark.parametrize("query", ["?page=0", "?page=x", "?state=GONE", "?sort=1;drop"])
def test_invalid_query_shows_error_page(site: Site, query: str) -> None:
    assert "Not understood" in site.page(f"/ui/experiments{query}", status=422).title


def test_missing_records_show_404(site: Site) -> None:
    for path in ("/ui/experiments/99999", "/ui/trials/99999", "/ui/checkpoints/nope",
                 "/ui/models/99999", "/ui/<script>", "/ui/static/x"):  # fmt: skip
        page = site.page(path, status=404)
        assert page.title == "Not found · detcore"
        assert "sqlite" not in page.text


# -- an experiment --------------------------------------------------------------------------------


def test_experiment_page(site: Site) -> None:
    experiment, _ = site.search(12, 8, name="digits", labels=["vision"])
    page = site.page(f"/ui/experiments/{experiment}")
    assert page.title == f"digits · experiment {experiment} · detcore"
    for expected in ("COMPLETED", "12 trials", "vision", "val_loss (validation)",
                     "random, val_loss, goal: minimize", "best: trial"):  # fmt: skip
        assert expected in page.text, expected
    trials = [row for row in page.rows if len(row) == 11 and row[1].startswith("trial ")]
    assert len(trials) == 12
    values = [float(row[4]) for row in trials]
    assert values == sorted(values)
    numbers = [row for row in page.rows if len(row) == 10]  # the chart's script
    assert len(numbers) == 13
    other = site.page(f"/ui/experiments/{experiment}?metric=loss")
    assert "loss (training)" in other.text
    assert len([row for row in other.rows if len(row) == 10]) == 13
    assert "accuracy, loss" not in site.page(
        f"/ui/experiments/{experiment}?metric=nope", status=404
    ).text.replace("accuracy, val_loss", "")
    large = site.page(f"/ui/experiments/{experiment}?metric=accuracy&better=larger")
    values = [float(row[4]) for row in large.rows if len(row) == 11 and row[1] != "trial"]
    assert len(values) == 12
    assert values == sorted(values, reverse=True)
    plots = site.page(f"/ui/experiments/{experiment}/hyperparameters")
    assert plots.html.count("<svg") == 5  # all trials, and each of four
    assert "optimizer.rate (log scale)" in plots.text
    assert plots.html.count("<circle") == 4 * 12


def test_trial_comparison(site: Site) -> None:
    experiment, ids = site.search(10, 5, name="pairs")
    base = f"/ui/experiments/{experiment}/compare"
    assert "Choose trials" in site.page(base).text
    assert "Choose at least two trials" in site.page(f"{base}?trial={ids[0]}").text
    page = site.page(f"{base}?trial={ids[0]}&trial={ids[3]}&trial={ids[0]}")
    assert page.html.count('<tr class="differs">') >= 2
    batch = next(row for row in page.rows if row[0] == "batch")
    assert batch[1:] == ["32", "32"]  # equal values are not marked
    assert "2 trials over 50 steps" in page.text
    last = next(row for row in page.rows if row[0] == "last loss (training)")
    assert all(cell.endswith(" at 50") for cell in last[1:])
    many = "&".join(f"trial={number}" for number in ids)
    assert (
        "Showing the first 8 trials. 2 more trials were selected."
        in site.page(f"{base}?{many}").text
    )
    assert (
        "Not trials of this experiment: 424242"
        in site.page(f"{base}?trial=424242&trial={ids[0]}&trial={ids[1]}").text
    )
    site.page(f"{base}?trial=x", status=422)


def test_trial_page(site: Site) -> None:
    _, (trial,) = site.search(1, 30, name="logged")
    log = OutputLog(site.folder(trial), 1)
    for number in range(5000):
        log.append("stdout", f"line {number} {'x' * 50}")
    log.append("stderr", "<b>bold</b> \x1b[31mred")
    log.close()
    page = site.page(f"/ui/trials/{trial}")
    assert "The last 200 lines." in page.text
    assert "line 4999 " in page.text
    assert "line 4000 " not in page.text
    assert "<b>bold</b> \ufffd[31mred" in page.text
    assert page.html.count('class="chart"') == 4
    assert ["step", "val_loss", "accuracy", "reported"] in page.rows
    assert "rate" in site.page(f"/ui/trials/{trial}").text


def test_worker_reports_appear_at_once(site: Site) -> None:
    """Includes reports that are still only in the event log."""
    experiment, (trial,) = site.search(1, name="logged", state=ExperimentState.RUNNING)
    log = EventLog(event_log_path(site.folder(trial), 1), trial_id=trial, run_id=1)
    log.append("validation", {
        "steps_completed": 7777, "metrics": {"val_loss": 0.0123}, "batch_metrics": None,
        "n_records": None,
    })  # fmt: skip
    log.close()
    page = site.page(f"/ui/experiments/{experiment}")
    assert "0.0123" in page.text
    assert "RUNNING" in page.text
    assert 'data-live-every="2"' in page.html


def test_unchanged_page_returns_304(site: Site) -> None:
    experiment, (trial,) = site.search(1, name="same")
    path = f"/ui/experiments/{experiment}"
    first = site.client.ask("GET", path)
    assert site.client.ask("GET", path, If_None_Match=first.headers["etag"]).status == 304
    site.report(trial, "validation", 99, val_loss=0.001)
    after = site.client.ask("GET", path, If_None_Match=first.headers["etag"])
    assert (after.status, "0.001" in after.text) == (200, True)


def test_control_buttons(site: Site) -> None:
    experiment, _ = site.search(1, name="led", state=ExperimentState.RUNNING)
    path = f"/ui/experiments/{experiment}"
    assert "Cancel experiment" in site.page(path).text
    assert site.client.ask("POST", f"{path}/control", {"action": "pause"}).status == 303
    assert site.database.get_control_request(experiment) is Control.PAUSE
    assert site.client.ask("POST", f"{path}/control", {"action": "explode"}).status == 422
    over, _ = site.search(1, name="over")
    answer = site.client.ask("POST", f"/ui/experiments/{over}/control", {"action": "pause"})
    assert answer.status == 409
    assert "has ended (COMPLETED)" in ServedPage(answer.text).text


def test_secrets_are_hidden(site: Site) -> None:
    storage = {"type": "s3", "bucket": "runs", "secret_key": "hunter2"}
    experiment, _ = site.search(1, checkpoint_storage=storage)
    for path in ("", "/configuration"):
        page = site.page(f"/ui/experiments/{experiment}{path}")
        assert "hunter2" not in page.html
        assert "********" in page.text


# -- checkpoints and models -----------------------------------------------------------------------


def wait_for_text(site: Site, path: str, text: str) -> ServedPage:
    wait_for(lambda: text in site.page(path).text)
    return site.page(path)


def test_checkpoints_are_verified_on_request(site: Site, tmp_path: Path) -> None:
    store = tmp_path / "store"
    experiment, (trial,) = site.search(
        1, 30, checkpoint_storage={"type": "shared_fs", "host_path": str(store)}
    )
    intact, damaged = (
        save_checkpoint(site.database, trial, store, tmp_path / "files", step)
        for step in (100, 200)
    )
    (store / damaged / "weights.bin").write_bytes(bytes(256 * 40))
    listed = f"/ui/experiments/{experiment}/checkpoints"
    assert site.page(listed).text.count("not checked") == 2
    path = f"/ui/checkpoints/{intact}"
    page = site.page(path)
    assert "Not checked since the server started" in page.text
    assert ["weights.bin", "10.2 kB"] in page.rows
    assert site.client.ask("POST", f"{path}/verify").headers["location"] == f"{path}#files"
    page = wait_for_text(site, path, "✓ intact")
    assert f"(requested by\n{USER}" in page.text
    assert site.client.ask("POST", f"/ui/checkpoints/{damaged}/verify").status == 303
    page = wait_for_text(site, f"/ui/checkpoints/{damaged}", "✗ damaged")
    assert "weights.bin: has changed: its digest is" in page.text
    page = site.page(listed)
    assert (page.text.count("✓ intact"), page.text.count("✗ damaged")) == (1, 1)
    (store / intact).rename(store / "away")
    site.client.ask("POST", f"{path}/verify")
    wait_for_text(site, path, "✗ damaged")


def test_incomplete_checkpoint_is_not_verified(site: Site) -> None:
    _, (trial,) = site.search(1)
    site.database.record_checkpoint(
        CheckpointStarted(uuid="half-written", storage_url="file:///x", steps_completed=1),
        trial_id=trial,
    )
    assert "The files cannot be checked" in site.page("/ui/checkpoints/half-written").text
    assert site.client.ask("POST", "/ui/checkpoints/half-written/verify").status == 409
    site.database.record_checkpoint(
        CheckpointCommitted(uuid="half-written", metadata={}, resources={"w": 3}, steps_completed=1)
    )
    site.client.ask("POST", "/ui/checkpoints/half-written/verify")
    wait_for_text(site, "/ui/checkpoints/half-written", "✗ damaged")  # file:///x does not exist


def test_checkpoint_download_load_and_promotion(site: Site, tmp_path: Path) -> None:
    storage = {"type": "shared_fs", "host_path": str(tmp_path / "store")}
    _, (trial,) = site.search(1, checkpoint_storage=storage)
    uuid = save_checkpoint(site.database, trial, tmp_path / "store", tmp_path / "files", 30)
    path = f"/ui/checkpoints/{uuid}"
    page = site.page(path)
    assert f'detcore.Client("{site.server.url}").get_checkpoint("{uuid}").load()' in page.text
    assert f"detcore checkpoint download {uuid} --master {site.server.url}" in page.text
    answer = site.client.ask("GET", next(link for link in page.links if "name=weights" in link))
    assert answer.body == bytes(range(256)) * 40
    disposition = "attachment; filename*=UTF-8''"
    assert answer.headers["content-disposition"] == f"{disposition}weights.bin"
    assert answer.headers["content-type"] == "application/octet-stream"
    answer = site.client.ask("GET", f"{path}/files.tar.gz")
    assert answer.headers["content-disposition"] == f"{disposition}{uuid}.tar.gz"
    with tarfile.open(fileobj=io.BytesIO(answer.body)) as archive:
        archive.extractall(tmp_path / "copy", filter="data")
    assert verify_checkpoint(LocalStorage(tmp_path / "copy"), uuid) == []
    assert site.client.ask("GET", f"{path}/file?name=..%2Fsecret").status == 400
    for suffix in ("/file?name=weights.bin", "/files.tar.gz"):
        assert site.stranger.ask("GET", path + suffix).status == 303
    answer = site.client.ask(
        "POST", f"{path}/register", {"model": "new <b>", "name": "v", "comment": "Good."}
    )
    assert answer.status == 303
    model = site.page(answer.headers["location"])
    assert ("new <b>" in model.text, "Good." in model.text) == (True, True)
    site.client.ask("POST", f"{path}/register", {"model": "new <b>"})
    assert site.database.get_model("new <b>").num_versions == 2
    assert site.client.ask("POST", f"{path}/register", {"model": " "}).status == 400


def test_lineage_spans_experiments_and_runs(site: Site, tmp_path: Path) -> None:
    database = site.database
    uuids: list[str] = []
    ids = []
    for number in range(3):
        searcher = {
            "name": "single", "metric": "val_loss", "max_length": {"batches": 30},
            "source_checkpoint_uuid": uuids[-1] if uuids else "/a/folder<b>",
        }  # fmt: skip
        experiment, (trial,) = site.search(1, searcher=searcher, name=f"generation {number}")
        ids.append(experiment)
        uuids.append(save_checkpoint(database, trial, tmp_path / "store", tmp_path / "files", 30))
    page = site.page(f"/ui/checkpoints/{uuids[2]}")
    labels = [f"checkpoint {uuid[:12]}" for uuid in (uuids[1], uuids[0])]
    assert all(text in page.text for text in [*labels, "/a/folder<b>", "not in these records"])
    assert f"Experiment {ids[2]}:" in site.page(f"/ui/checkpoints/{uuids[1]}").text
    assert f"/ui/checkpoints/{uuids[1]}" in site.page(f"/ui/experiments/{ids[2]}/checkpoints").links
    database.start_run(trial)
    rows = [row for row in site.page(f"/ui/trials/{trial}").rows if len(row) == 3]
    assert [row[2].partition(",")[0][:12] for row in rows[-2:]] == ["-", uuids[2][:12]]


def test_trial_page_shows_resumes(site: Site) -> None:
    _, (trial,) = site.search(1, name="resumed", state=ExperimentState.RUNNING)
    site.database.start_run(trial)
    log = EventLog(event_log_path(site.folder(trial), 1), trial_id=trial, run_id=1)
    difference = {"step": 36, "kind": "loss", "tensors": ["<b>weight"]}
    for found in (None, difference):
        event = ResumeCompared(start_step=34, last_step=41, num_compared=7, difference=found)
        log.append(event.KIND, dataclasses.asdict(event))
    log.close()
    text = site.page(f"/ui/trials/{trial}").text
    assert "resumed at batch 34; batches 35 to 41 are trained again: identical" in text
    assert "differ from the earlier run: step 36, loss, <b>weight" in text


def test_model_pages(site: Site, tmp_path: Path) -> None:
    _, (trial,) = site.search(1)
    uuid = save_checkpoint(site.database, trial, tmp_path / "store", tmp_path / "files", 100)
    model = site.database.create_model(
        "digits/reader", description="Reads digits.", labels=["vision"], metadata={"owner": "ada"}
    )
    site.database.register_version("digits/reader", uuid, name="first", notes="Trained\non all.")
    page = site.page("/ui/models?label=vision&name=READER")
    assert "digits/reader" in page.text
    assert "No model matches" in site.page("/ui/models?label=audio").text
    page = site.page(f"/ui/models/{model.id}")
    for expected in ("Reads digits.", "owner", "first", "Trained\non all."):
        assert expected in page.text, expected
    assert f"/ui/checkpoints/{uuid}" in page.links
    assert "digits/reader" in site.page(f"/ui/checkpoints/{uuid}").text


def test_huge_numbers_are_shown_but_not_drawn(site: Site, tmp_path: Path) -> None:
    huge = 10**4000
    experiment, ids = site.search(2, 4)
    for trial in ids:
        for kind in ("training", "validation"):
            for step, value in ((1000, 0.25), (1010, huge), (1020, -huge)):
                site.report(trial, kind, step, val_loss=value, loss=value)
    uuid = save_checkpoint(site.database, ids[0], tmp_path / "store", tmp_path / "files", 1020)
    base = f"/ui/experiments/{experiment}"
    for path in (
        "/ui/experiments", base, f"{base}?metric=loss", f"{base}?metric=val_loss",
        f"{base}/hyperparameters", f"{base}/compare?trial={ids[0]}&trial={ids[1]}",
        f"{base}/checkpoints", f"/ui/trials/{ids[0]}", f"/ui/checkpoints/{uuid}",
    ):  # fmt: skip
        site.page(path)

    series = site.client.ask(
        "GET", f"/ui/series?kind=training&metric=loss&trials={ids[0]}&first=900"
    )
    (curve,) = json.loads(series.text)["trials"]
    assert (curve["values"], curve["num_not_finite"]) == ([0.25], 2)


# -- the table of trials, and the values of charts -----------------------------------------------


def table_of(page: ServedPage) -> list[list[str]]:
    """Return the cells of the trial table without the header and the checkboxes."""
    head = next(row for row in page.rows if row[0] == "choose")
    start = page.rows.index(head) + 1
    return [row[1:] for row in page.rows[start:] if len(row) == len(head)]


def test_trial_table_filter_sort_and_export(site: Site) -> None:
    experiment, _ = site.search(12)
    base = f"/ui/experiments/{experiment}"
    table = table_of(site.page(base))
    assert len(table) == 12
    sorted_up = site.page(f"{base}?sort=hparams.units")
    assert 'aria-sort="ascending"' in sorted_up.html
    units = [int(row[8]) for row in table_of(sorted_up)]
    assert units == sorted(units)
    # The header links to the reverse order and keeps the rest of the query.
    url = f"{base}?metric=val_loss&sort=hparams.units"
    down = next(link for link in site.page(url).links if "sort=-hparams.units" in link)
    assert down.startswith("?metric=val_loss&")
    assert [int(row[8]) for row in table_of(site.page(base + down))] == units[::-1]
    limit = sorted(units)[5]
    where = urllib.parse.quote(f"units <= {limit} and optimizer.name != 'none'")
    page = site.page(f"{base}?where={where}&sort=-hparams.units&column=trial&column=hparams.units")
    rows = table_of(page)
    assert [int(row[1]) for row in rows] == sorted(one for one in units if one <= limit)[::-1]
    assert f"{len(rows)} of 12 pass the filter" in page.text
    link = next(link for link in page.links if "/trials.csv?" in link)
    answer = site.client.ask("GET", link)
    assert answer.headers["content-disposition"].endswith(f'"experiment-{experiment}-trials.csv"')
    exported = list(csv.reader(answer.text.splitlines()))
    assert exported == [["trial", "units"], *([row[0].split()[1], row[1]] for row in rows)]
    nothing = site.page(f"{base}?where=best+%3C+0")
    assert "No trial passes the filter." in nothing.text


def test_invalid_filter_shows_position(site: Site) -> None:
    experiment, _ = site.search(2)
    page = site.page(f"/ui/experiments/{experiment}?where=val_los+%3C+1")
    assert "character 1 of the filter: expected a column name (did you mean val_loss?" in (
        page.text
    )
    assert 'aria-describedby="filter-error"' in page.html
    assert len(table_of(page)) == 2  # all trials: the page still shows the experiment
    answer = site.client.ask("GET", f"/ui/experiments/{experiment}/trials.csv?where=val_los+%3C+1")
    assert answer.status == 422
    assert "did you mean val_loss?" in answer.text


def test_export_escapes_formulas(site: Site) -> None:
    experiment = site.experiment()
    for value in (-1.5, "-1e5", "-Infinity", -math.inf, math.nan, "-1+2", "=1+1", "plain"):
        site.trial(experiment, shift=value)
    answer = site.client.ask("GET", f"/ui/experiments/{experiment}/trials.csv?column=hparams.shift")
    cells = ["-1.5", "-1e5", "-Infinity", "-Infinity", "NaN", "'-1+2", "'=1+1", "plain"]
    assert answer.text.split() == ["shift", *cells]


def test_chart_values(site: Site, tmp_path: Path) -> None:
    _, (one, other) = site.search(2, 50, records_per_epoch=320, name="series")
    save_checkpoint(site.database, one, tmp_path / "store", tmp_path / "files", 200)
    path = "/ui/series"
    query = f"{path}?kind=validation&metric=val_loss"

    def curves(more: str) -> dict[int, dict[str, Any]]:
        answer = site.client.ask("GET", f"{query}{more}")
        return {curve["id"]: curve for curve in json.loads(answer.text)["trials"]}

    all_curves = curves(f"&trials={one},{other}")
    assert list(all_curves) == [one, other]
    steps = [10 * (number + 1) for number in range(50)]
    assert all_curves[one]["steps"] == steps
    recorded = site.database.metrics(one, "validation")
    assert all_curves[one]["values"] == [report.metrics["val_loss"] for report in recorded]
    assert len(all_curves[one]["seconds"]) == 50
    assert (all_curves[one]["saved"], all_curves[other]["saved"]) == ([200], [])
    assert all_curves[one]["steps_per_epoch"] is None  # the trials have no global_batch_size
    part = curves(f"&trials={one}&first=95&last=140")
    assert list(part) == [one]
    assert part[one]["steps"] == [100, 110, 120, 130, 140]
    assert curves("&trials=99999") == {}
    for wrong in ("&trials=", "&trials=1,x", f"&trials={','.join(['1'] * 201)}", ""):
        assert site.client.ask("GET", f"{query}{wrong}").status == 422, wrong
    assert site.stranger.ask("GET", f"{query}&trials={one}").status == 303


# -- what runs now, and logs ----------------------------------------------------------------------


def start_trials(site: Site, **more: Any) -> tuple[int, list[int]]:
    """Record a search that this process runs: three trials train and one waits."""
    experiment, running = site.search(3, 20, name="now", state=ExperimentState.RUNNING, **more)
    for trial in running:
        site.database.set_trial_state(trial, TrialState.RUNNING)
    return experiment, [*running, site.trial(experiment, units=1)]


def test_running_page(site: Site) -> None:
    experiment, (training, saving, starting, waiting) = start_trials(site)
    database = site.database
    database.set_search_progress(experiment, 0.5)
    # A save that a crash of the earlier run interrupted, and a current save.
    for uuid, trial in (("crashed", training), ("now", saving)):
        database.record_checkpoint(
            CheckpointStarted(uuid=uuid, storage_url="x", steps_completed=100), trial_id=trial
        )
    run = database.start_run(training)
    moment = datetime.datetime.now(datetime.timezone.utc)
    database.add_metrics([
        MetricRecord(trial_id=training, run_id=run, kind="training",
                     steps_completed=120 + 10 * number, metrics={"loss": 0.5},
                     reported_at=moment + datetime.timedelta(seconds=number))
        for number in range(5)
    ])  # fmt: skip
    database.start_run(starting)
    page = site.page(f"/ui/experiments/{experiment}")
    rows = {row[0]: row for row in page.rows if len(row) == 9 and row[0].startswith("trial ")}
    assert rows[f"trial {training}"][1] == "training"
    # 160 of 200 steps, 10 a second.
    assert rows[f"trial {training}"][3:7] == ["80%", "160", "10", "4s"]
    assert rows[f"trial {saving}"][1] == "saving"
    assert rows[f"trial {starting}"][1] == "starting"
    assert f"trial {waiting}" not in rows
    for text in ("1\nwaiting", "1\nsaving", "about", "left, at this speed", "free at"):
        assert text in page.text, text
    trial_page = site.page(f"/ui/trials/{training}")
    assert ["training", "-", "80%", "160", "10", "4s"] in [row[:6] for row in trial_page.rows]
    database.set_experiment_state(experiment, ExperimentState.COMPLETED)
    assert "left, at this speed" not in site.page(f"/ui/experiments/{experiment}").text


def test_progress_counts_current_run_only(site: Site) -> None:
    experiment, (trial,) = site.search(1, 80, name="again", state=ExperimentState.RUNNING)
    site.database.set_trial_state(trial, TrialState.RUNNING)
    site.database.start_run(trial)
    path = f"/ui/experiments/{experiment}"

    def row() -> list[str]:
        return next(row for row in site.page(path).rows if row[0] == f"trial {trial}")

    assert row()[1] == "starting"
    for step in (3, 6):  # 160 reports of the previous run have more steps
        site.report(trial, "training", step, loss=0.5)
    assert row()[1] == "training"
    assert row()[4] == "6"


def test_counts_include_undrawn_trials(site: Site) -> None:
    database = site.database
    experiment, trials = site.search(300, 1, name="many", state=ExperimentState.RUNNING)
    # The page draws the best 200. Failed and waiting trials rank last.
    worst = [row.trial.id for row in database.top_trials(
        experiment, metric="val_loss", smaller_is_better=True, limit=None)][-30:]  # fmt: skip
    failed, waiting = worst[:13], worst[13:]
    for trial in failed:
        database.set_trial_state(trial, TrialState.ERROR, error=f"trial {trial} broke")
    for trial in waiting:
        database.set_trial_state(trial, TrialState.PAUSED)
    page = site.page(f"/ui/experiments/{experiment}")
    rows = [row for row in page.rows if row[0] in {str(trial) for trial in trials}]
    assert len(rows) == 200
    assert not {str(trial) for trial in worst} & {row[0] for row in rows}
    assert f"Showing 10 of {len(failed)} failed trials." in page.text
    assert f"trial {failed[0]} broke" in page.text
    assert f"{len(waiting)}\nwaiting" in page.text
    grouped = site.page(f"/ui/experiments/{experiment}?group=hparams.optimizer.name")
    groups = [row for row in grouped.rows if row[0] in ("sgd", "adam", "rmsprop")]
    assert len(groups) == 3
    assert sum(int(row[1]) for row in groups) == 300


def test_stopping_trial_requires_control(site: Site) -> None:
    experiment, (trial, other, *_) = start_trials(site)
    path = f"/ui/trials/{trial}"
    assert f"Kill trial {trial}" in site.page(path).text
    assert site.client.ask("POST", f"{path}/control", {"action": "pause"}).status == 422
    answer = site.client.ask("POST", f"{path}/control", {"action": "cancel"})
    assert (answer.status, answer.headers["location"]) == (303, path)
    assert site.database.get_trial(trial).control is not None
    rows = [row for row in site.page(f"/ui/experiments/{experiment}").rows if len(row) == 9]
    assert [row[1] for row in rows[1:3]] == ["stopping", "training"]
    client = site.add_user("eve")
    assert "/control" not in client.page(f"/ui/trials/{other}").html
    assert client.ask("POST", f"/ui/trials/{other}/control", {"action": "kill"}).status == 403
    assert site.database.get_trial(other).control is None
    site.database.set_experiment_state(experiment, ExperimentState.CANCELED)


def test_log_search_and_paging(site: Site) -> None:
    _, (trial,) = site.search(1)
    log = OutputLog(site.folder(trial), 1)
    for number in range(1200):
        log.append("stdout", f"line {number} {'x' * 250}")
        if number % 300 == 7:
            log.append("stderr", f"WARNING detcore.data: slow {number}")
            log.append("stderr", f"2026-01-01 10:00:00.1: E tensorflow/core: lost {number}")
    log.append("stderr", "<b>Needle</b> \x1b[31mred")
    log.close()
    base = f"/ui/trials/{trial}/log"
    numbers: list[int] = []
    link: str | None = ""
    while link is not None:
        page = site.page(f"{base}{link}")
        numbers[:0] = [int(number) for number in re.findall(r">line (\d+) x", page.html)]
        link = next((one for one in page.links if one.startswith("?before=")), None)
    assert numbers == list(range(1200))  # each line appears once, whatever the page boundaries
    results = site.page(f"{base}?find=NEEDLE")
    assert "<b>Needle</b> \ufffd[31mred" in results.text
    assert "line 1199" not in results.text
    warnings = site.page(f"{base}?level=warning").text
    assert (warnings.count("slow"), warnings.count("lost")) == (4, 4)
    errors = site.page(f"{base}?level=error&find=tensorflow").text
    assert (errors.count("slow"), errors.count("lost")) == (0, 4)
    assert "No line matches." in site.page(f"{base}?find=nowhere").text
    site.page(f"{base}?level=loud", status=422)
    site.page(f"{base}?before=99999999999")


def test_user_code_frames_come_first(site: Site) -> None:
    experiment, (_, trial) = site.search(2, state=ExperimentState.ERROR)
    log = OutputLog(site.folder(trial), 1)
    lines = """Traceback (most recent call last):
  File "/old.py", line 1, in <module>
KeyError: 'an older one'
epoch 3
Traceback (most recent call last):
  File "/home/ada/digits/train.py", line 7, in fit
    loss = step(<img src=x>)
  File "/usr/lib/python3/site-packages/framework/deep.py", line 900, in call
    return inner(x)
ValueError: shapes (3, 2) and (4,) differ""".splitlines()
    for line in lines:
        log.append("stderr", line)
    log.append("stdout", "the last words of another stream")
    log.append("detcore", "trial 2 crashed")
    log.close()
    for path in (f"/ui/experiments/{experiment}", f"/ui/trials/{trial}"):
        html = site.page(path).html
        user_frames, traceback = re.findall(r"<pre[^>]*>(Traceback.*?)</pre>", html, re.DOTALL)
        assert "train.py" in user_frames
        assert "step(&lt;img src=x&gt;)" in user_frames
        assert user_frames.endswith("ValueError: shapes (3, 2) and (4,) differ")
        assert ("deep.py" in user_frames, "deep.py" in traceback, "older" in traceback) == (
            False,
            True,
            False,
        )


# -- groups, comparison across experiments, notes -------------------------------------------------


def test_grouping_by_hyperparameter_and_seed(site: Site) -> None:
    experiment = site.experiment()
    for number, (rate, value) in enumerate([(0.1, 3.0), (0.1, 1.0), (0.2, 0.5), (0.2, 0.7)]):
        trial = site.trial(experiment, rate=rate, data_seed=number)
        site.report(trial, "validation", 10, val_loss=value)
    base = f"/ui/experiments/{experiment}"
    for key, labels in (("seeds", ["rate 0.2", "rate 0.1"]), ("hparams.rate", ["0.2", "0.1"])):
        page = site.page(f"{base}?group={key}")
        rows = [row for row in page.rows if row[0] in labels]
        assert [row[:6] for row in rows] == [
            [labels[0], "2", "0.6", "0.1414", "0.5", "0.7"],
            [labels[1], "2", "2", "1.414", "1", "3"],
        ]
        about = json.loads(html.unescape(re.findall(r'data-chart="([^"]*)"', page.html)[0]))
        assert [(label, len(ids)) for label, _, ids in about["groups"]] == [
            (label, 2) for label in labels
        ]
    assert "Groups of trials" not in site.page(f"{base}?group=hparams.gone").text
    # Many numbers are split into ranges with equal numbers of trials.
    many, _ = site.search(12)
    rows = site.page(f"/ui/experiments/{many}?group=hparams.optimizer.rate").rows
    assert [row[1] for row in rows if " to " in row[0]] == ["3"] * 4


def test_hyperparameter_chart_of_filtered_trials(site: Site) -> None:
    experiment = add_search(site.database, 24, 2)
    base = f"/ui/experiments/{experiment}/hyperparameters"
    trials = site.database.list_trials(experiment)

    both = "units >= 136 and optimizer.name != 'sgd'"
    passed = sum(
        trial.hparams["units"] >= 136 and trial.hparams["optimizer"]["name"] != "sgd"
        for trial in trials
    )
    page = site.page(f"{base}?where={urllib.parse.quote(both)}")
    assert f"{passed} of 24 trials pass the filter" in page.text
    assert page.html.count("<use ") == passed
    assert "0 of 24 trials pass the filter" in site.page(f"{base}?where=best+%3C+0").text
    assert "character 1 of the filter" in site.page(f"{base}?where=unit+%3C+1").text
    assert "explains alone" in page.text


def test_comparison_across_experiments(site: Site) -> None:
    (one, (first, *_)), (other, (second, *_)) = (site.search(3, name=f"<b>{name}") for name in "ab")
    ids = [first, second]
    page = site.page(f"/ui/compare?trials={ids[0]},+{ids[1]}")
    assert ("<b>a" in page.text, "<b>b" in page.text) == (True, True)
    last = next(row for row in page.rows if row[0] == "last loss (training)")
    assert len(last) == 3
    abouts = re.findall(r'data-chart="([^"]*)"', page.html)
    about = json.loads(html.unescape(abouts[0]))
    assert [trial for trial, *_ in about["trials"]] == ids
    query = f"kind=validation&metric=val_loss&trials={ids[0]},{ids[1]}"
    series = json.loads(site.client.ask("GET", f"/ui/series?{query}").text)["trials"]
    assert [curve["id"] for curve in series] == ids
    best = site.page(f"/ui/compare?experiment={one}&experiment={other}")
    assert best.text.count("trial ") >= 4
    assert "Unknown trials: 999999" in site.page("/ui/compare?trials=999999").text
    assert "Enter at least two trial numbers" in site.page("/ui/compare").text
    _, (third,) = site.search(1, searcher={"name": "single", "metric": "accuracy"})
    site.page(f"/ui/compare?trials={ids[0]},{third}")
    listed = site.page("/ui/experiments")
    assert f"Choose experiment {one}" in listed.html


@pytest.mark.parametrize("of_trial", [False, True])
def test_labels_and_notes_are_saved(site: Site, of_trial: bool) -> None:
    experiment, (trial,) = site.search(1, labels=["old"])
    path = f"/ui/trials/{trial}" if of_trial else f"/ui/experiments/{experiment}"
    form = {"labels": " vision, <i>new</i>,,vision", "notes": "First\r\n<script>x</script>"}
    assert site.client.ask("POST", f"{path}/describe", form).status == 303
    page = site.page(path)
    assert "First\n<script>x</script>" in page.text
    of_experiment = site.database.get_experiment(experiment).config["labels"]
    saved_labels = site.database.get_trial(trial).labels if of_trial else of_experiment
    assert [*saved_labels] == ["<i>new</i>", "vision"]
    client = site.add_user(f"zoe-{of_trial}")
    assert client.ask("POST", f"{path}/describe", {"notes": ""}).status == 403
    client_page = client.page(path)
    assert "First\n<script>x</script>" in client_page.text
    assert "/describe" not in client_page.html


def test_search_by_labels_and_notes(site: Site) -> None:
    database = site.database
    experiment, (first, second, third) = site.search(3)
    path = f"/ui/experiments/{experiment}"
    assert "labels" not in site.client.ask("GET", f"{path}/trials.csv").text
    database.update_trial(first, labels=["baseline", "=1+1"], notes="old split")
    database.update_trial(second, labels=["baseline-2"])
    for where, names in (
        ("'baseline' in labels", [first]), ("'baseline' not in labels", [second, third]),
        ("'split' in notes", [first]), ("'baseline-2' in labels", [second]),
    ):  # fmt: skip
        query = urllib.parse.urlencode({"where": where, "sort": "trial", "column": "trial"})
        rows = site.client.ask("GET", f"{path}/trials.csv?{query}").text.splitlines()
        assert [int(row) for row in rows[1:]] == names, where
    text = site.client.ask("GET", f"{path}/trials.csv?column=labels&column=notes&sort=labels").text
    assert [*csv.reader(io.StringIO(text))] == [
        ["labels", "notes"], ["'=1+1, baseline", "old split"], ["baseline-2", ""], ["", ""],
    ]  # fmt: skip
    page = site.page(path)
    assert page.html.count('class="label"') >= 3


# -- hostile text ---------------------------------------------------------------------------------


def test_records_are_shown_as_text_only(site: Site) -> None:
    database = site.database
    experiment = database.create_experiment(
        config={
            HOSTILE: HOSTILE, "name": HOSTILE, "description": HOSTILE, "labels": [HOSTILE],
            "hyperparameters": {HOSTILE: {"type": "categorical", "vals": [HOSTILE, 1]}},
            "searcher": {"name": HOSTILE, "metric": HOSTILE, "max_length": {HOSTILE: 1}},
        },
        config_text=HOSTILE, model_dir=HOSTILE, name=HOSTILE,
    )  # fmt: skip
    ids = []
    for index in range(9):
        hparams = {HOSTILE: HOSTILE if index % 2 else index, "b": {HOSTILE: HOSTILE}}
        trial = site.trial(experiment, **hparams)
        ids.append(trial)
        run = database.start_run(trial)
        for step, value in enumerate([1.0 + index, math.nan, math.inf, -math.inf, 1e308, -1e308]):
            for kind in ("training", "validation"):
                site.report(trial, kind, step, **{HOSTILE: value, "nested": {HOSTILE: [HOSTILE]}})
        log = OutputLog(site.folder(trial), run)
        log.append("stderr", HOSTILE)
        log.close()
        database.set_trial_state(trial, TrialState.ERROR, error=HOSTILE)
        database.update_trial(trial, labels=[HOSTILE], notes=HOSTILE)
    uuid = f"{HOSTILE}-{experiment}"
    database.record_checkpoint(
        CheckpointStarted(uuid=uuid, storage_url=HOSTILE, steps_completed=1), trial_id=ids[0]
    )
    database.record_checkpoint(
        CheckpointCommitted(
            uuid=uuid, metadata={HOSTILE: HOSTILE}, resources={HOSTILE: 1}, steps_completed=1
        )
    )
    database.set_experiment_state(experiment, ExperimentState.ERROR, error=HOSTILE)
    model = database.create_model(
        HOSTILE, description=HOSTILE, labels=[HOSTILE], metadata={HOSTILE: HOSTILE}
    )
    database.register_version(model.name, uuid, name=HOSTILE, comment=HOSTILE, notes=HOSTILE)
    base = f"/ui/experiments/{experiment}"
    listed = site.page(f"{base}/checkpoints")
    checkpoint = next(link for link in listed.links if link.startswith("/ui/checkpoints/"))
    for path in (
        "/ui/experiments", base, f"{base}/hyperparameters",
        f"{base}/compare?trial={ids[0]}&trial={ids[1]}", f"{base}/checkpoints",
        f"{base}/configuration", f"/ui/trials/{ids[0]}", checkpoint, "/ui/models",
        f"/ui/models/{model.id}",
    ):  # fmt: skip
        page = site.page(path)  # parsed: only elements and attributes of the templates
        assert "<script>document.title='owned'</script>" in page.text, path
        # The template's own scripts, each a file of the server.
        scripts = 3 if path in (base, f"/ui/trials/{ids[0]}") or "compare" in path else 1
        assert page.html.count("<script") == scripts, path
        assert "{{ 7*7 }}" in page.text, path
        for sign in ("\x00", "\u202e", "<img"):
            assert sign not in page.html, (path, sign)
    assert "2 values that are not finite" not in site.page(base).text
    assert f"{3 * 9} values that are not finite are omitted" in site.page(base).text
    for where, text in (
        (f"`{HOSTILE}` < 1", "9 of 9 pass the filter"),
        (f"{HOSTILE} < 1", "expected a name, a number or a quoted string"),
        ("x < 1", "expected a column name ("),
    ):
        query = {"where": where, "sort": HOSTILE, "column": HOSTILE, HOSTILE: HOSTILE}
        page = site.page(f"{base}?{urllib.parse.urlencode(query)}")
        assert text in page.text
        assert page.html.count("<script") == 3
    part = urllib.parse.quote(HOSTILE.partition("\x00")[0])
    searched = site.page(f"/ui/experiments?name={part}")
    assert "1 to 1 of 1" in searched.text


def test_trial_color_is_same_on_all_pages(site: Site) -> None:
    experiment, (*_, third, fourth, _) = site.search(5)
    base = f"/ui/experiments/{experiment}"
    for path in (base, f"{base}/hyperparameters", f"{base}/compare?trial={third}&trial={fourth}",
                 f"/ui/trials/{fourth}"):  # fmt: skip
        html = site.page(path).html.replace("&quot;", '"')
        assert set(re.findall(rf'(?:\bt{fourth} |\[{fourth}, ")(k\d)', html)) == {"k3"}, path
