"""Client of the server's HTTP API. Names are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore.client.http.credentials import (
        StoredToken,
        delete_token,
        find_credentials,
        open_session,
        request_token,
        store_token,
    )
    from detcore.client.http.http_session import (
        ServerRefusedError,
        ServerUnavailableError,
        Session,
        normalize_url,
    )
    from detcore.client.http.http_transport import HttpTransport, ServerRecords, connect
    from detcore.client.http.packed_context import (
        MAX_CONTEXT_BYTES,
        MAX_CONTEXT_ENTRIES,
        PackedContext,
        pack_directory,
    )
    from detcore.client.http.remote_reads import answer_read
    from detcore.client.http.submission import (
        DetachedError,
        Submission,
        activate_experiment,
        follow_experiment,
        read_events,
        send_submission,
        submit_experiment,
    )
    from detcore.client.http.wire_documents import (
        NUMBER,
        decode_value,
        encode_answer,
        encode_value,
    )

__all__ = [
    "MAX_CONTEXT_BYTES",
    "MAX_CONTEXT_ENTRIES",
    "NUMBER",
    "DetachedError",
    "HttpTransport",
    "PackedContext",
    "ServerRecords",
    "ServerRefusedError",
    "ServerUnavailableError",
    "Session",
    "StoredToken",
    "Submission",
    "activate_experiment",
    "answer_read",
    "connect",
    "decode_value",
    "delete_token",
    "encode_answer",
    "encode_value",
    "find_credentials",
    "follow_experiment",
    "normalize_url",
    "open_session",
    "pack_directory",
    "read_events",
    "request_token",
    "send_submission",
    "store_token",
    "submit_experiment",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "packed_context": "MAX_CONTEXT_BYTES MAX_CONTEXT_ENTRIES PackedContext pack_directory",
        "credentials": (
            "StoredToken find_credentials delete_token store_token request_token open_session"
        ),
        "wire_documents": "NUMBER decode_value encode_answer encode_value",
        "remote_reads": "answer_read",
        "http_session": "ServerUnavailableError ServerRefusedError Session normalize_url",
        "submission": (
            "DetachedError Submission activate_experiment follow_experiment read_events "
            "send_submission submit_experiment"
        ),
        "http_transport": "HttpTransport ServerRecords connect",
    },
)
