"""Names for the routes of plugins, in addition to the public names of `detcore_server`.

It provides annotations of route parameters (`Admin`, `Id`, `State`, `Token`), users, submissions,
and the limits and errors of the server's own routes. Because it imports FastAPI, a plugin must
import it in the function that creates its router and not in the module with the hook.
"""

from detcore_server.api.client_models import MAX_DEPTH, is_too_deep
from detcore_server.http.body_limits import allow_body
from detcore_server.http.checkpoint_archive import open_archive
from detcore_server.http.error_answers import ErrorAnswer, error_body
from detcore_server.jobs.submit import Submission, accept_submission
from detcore_server.jobs.uploads import incoming_folder
from detcore_server.server_database import SubmissionRecord, UserRecord
from detcore_server.server_state import ServerState
from detcore_server.users.accounts import add_user, change_user, log_in, log_out
from detcore_server.users.authentication import Admin, Id, State, Token, address_of

__all__ = [
    "MAX_DEPTH",
    "Admin",
    "ErrorAnswer",
    "Id",
    "ServerState",
    "State",
    "Submission",
    "SubmissionRecord",
    "Token",
    "UserRecord",
    "accept_submission",
    "add_user",
    "address_of",
    "allow_body",
    "change_user",
    "error_body",
    "incoming_folder",
    "is_too_deep",
    "log_in",
    "log_out",
    "open_archive",
]
