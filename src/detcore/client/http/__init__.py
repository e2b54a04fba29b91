"""The client's side of the server's HTTP API. Names are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore.client.http.credentials import (
        KeptToken,
        find_credentials,
        forget_token,
        keep_token,
        log_in_at,
        open_session,
    )
    from detcore.client.http.http_session import (
        ServerRefused,
        ServerUnavailableError,
        Session,
        normal_url,
    )
    from detcore.client.http.http_transport import HttpTransport, ServerRecords, connect
    from detcore.client.http.packed_context import (
        MAX_CONTEXT_BYTES,
        MAX_CONTEXT_ENTRIES,
        PackedContext,
        pack,
    )
    from detcore.client.http.remote_reads import answer_read
    from detcore.client.http.submission import (
        Detached,
        Submission,
        activate,
        follow,
        read_events,
        send_submission,
        submit,
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
    "Detached",
    "HttpTransport",
    "KeptToken",
    "PackedContext",
    "ServerRecords",
    "ServerRefused",
    "ServerUnavailableError",
    "Session",
    "Submission",
    "activate",
    "answer_read",
    "connect",
    "decode_value",
    "encode_answer",
    "encode_value",
    "find_credentials",
    "follow",
    "forget_token",
    "keep_token",
    "log_in_at",
    "normal_url",
    "open_session",
    "pack",
    "read_events",
    "send_submission",
    "submit",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "packed_context": "MAX_CONTEXT_BYTES MAX_CONTEXT_ENTRIES PackedContext pack",
        "credentials": (
            "KeptToken find_credentials forget_token keep_token log_in_at open_session"
        ),
        "wire_documents": "NUMBER decode_value encode_answer encode_value",
        "remote_reads": "answer_read",
        "http_session": "ServerUnavailableError ServerRefused Session normal_url",
        "submission": "Detached Submission activate follow send_submission read_events submit",
        "http_transport": "HttpTransport ServerRecords connect",
    },
)
