"""A checkpoint: its files, and whether they are as they were saved."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from detcore.database import ingest_reports
from detcore_server._auth import PageUser, State
from detcore_server._page._render import PageRoute, render
from detcore_server._page._verify import READABLE, Verifier

__all__ = ["make_router"]

_FILES_SHOWN = 500


def make_router(verifier: Verifier) -> APIRouter:
    """Return the routes of this part."""
    router = APIRouter(route_class=PageRoute, include_in_schema=False)

    @router.get("/ui/checkpoints/{uuid:path}")
    def show_checkpoint(request: Request, state: State, user: PageUser, uuid: str) -> Response:
        database = state.database
        record = database.get_checkpoint(uuid)
        home = state.settings.environment.home
        ingest_reports(database, home, experiment_id=record.experiment_id, trial_id=record.trial_id)
        verification = verifier.get(record.uuid)
        files = sorted(record.resources.items())
        return render(
            request, "checkpoint.html", user,
            record=record,
            experiment=database.get_experiment(record.experiment_id),
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

    return router
