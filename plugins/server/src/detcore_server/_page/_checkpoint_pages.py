"""A checkpoint: its files, and whether they are as they were saved."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import RedirectResponse

from detcore.database import ingest_reports
from detcore_server._auth import PageUser, State
from detcore_server._page._downloads import download_all, download_file
from detcore_server._page._lineage import ancestors, descendants
from detcore_server._page._render import PageRoute, render
from detcore_server._page._verify import READABLE, Verifier

_FILES_SHOWN = 500
_Text = Annotated[str, Form(max_length=10_000)]


def make_router(verifier: Verifier) -> APIRouter:
    """Return the routes of this part."""
    router = APIRouter(route_class=PageRoute, include_in_schema=False)

    # Before the page, whose path takes everything.
    @router.get("/ui/checkpoints/{uuid:path}/file")
    def get_file(
        state: State, _: PageUser, uuid: str, name: Annotated[str, Query(max_length=10_000)]
    ) -> Response:
        return download_file(state, uuid, name)

    @router.get("/ui/checkpoints/{uuid:path}/files.tar")
    def get_files(state: State, _: PageUser, uuid: str) -> Response:
        return download_all(state, uuid)

    @router.get("/ui/checkpoints/{uuid:path}")
    def show_checkpoint(request: Request, state: State, user: PageUser, uuid: str) -> Response:
        database = state.database
        record = database.get_checkpoint(uuid)
        home = state.settings.environment.home
        ingest_reports(database, home, experiment_id=record.experiment_id, trial_id=record.trial_id)
        verification = verifier.get(record.uuid)
        files = sorted(record.resources.items())
        experiment = database.get_experiment(record.experiment_id)
        return render(
            request, "checkpoint.html", user,
            record=record,
            experiment=experiment,
            ancestors=ancestors(database, experiment),
            descendants=descendants(database, record.uuid),
            server_url=state.settings.url,
            models=[model.name for model in database.list_models(archived=False)],
            files=files[:_FILES_SHOWN],
            num_files=len(files),
            validation=database.checkpoint_validations([record.uuid]).get(record.uuid),
            versions=database.registered_checkpoints().get(record.uuid, []),
            verification=verification,
            can_verify=record.state in READABLE,
            is_live=verification is not None and not verification.is_over,
        )  # fmt: skip

    @router.post("/ui/checkpoints/{uuid:path}/verify")
    def verify(state: State, user: PageUser, uuid: str) -> Response:
        record = state.database.get_checkpoint(uuid)
        verifier.start(state, record, user.user_name)
        return RedirectResponse(f"/ui/checkpoints/{quote(record.uuid, safe='')}#files", 303)

    @router.post("/ui/checkpoints/{uuid:path}/register")
    def register(
        state: State,
        _: PageUser,
        uuid: str,
        model: _Text,
        name: _Text = "",
        comment: _Text = "",
    ) -> Response:
        database = state.database
        record = database.get_checkpoint(uuid)
        if model not in {known.name for known in database.list_models()}:
            database.create_model(model)
        version = database.register_version(model, record.uuid, name=name, comment=comment)
        return RedirectResponse(f"/ui/models/{version.model_id}", 303)

    return router
