"""The client's side of the server's HTTP API. Names are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore.client.http._context import (
        MOST_CONTEXT_BYTES,
        MOST_CONTEXT_ENTRIES,
        PackedContext,
        pack,
    )
    from detcore.client.http._credentials import (
        KeptToken,
        find_credentials,
        forget_token,
        keep_token,
        log_in_at,
        open_session,
    )
    from detcore.client.http._documents import (
        NUMBER,
        decode_value,
        encode_answer,
        encode_value,
    )
    from detcore.client.http._reads import answer_read
    from detcore.client.http._session import ServerAway, ServerRefused, Session, normal_url
    from detcore.client.http._submit import (
        Detached,
        HandIn,
        activate,
        follow,
        hand_in,
        read_events,
        submit,
    )
    from detcore.client.http._transport import HttpTransport, ServerRecords, connect

__all__ = [
    "MOST_CONTEXT_BYTES",
    "MOST_CONTEXT_ENTRIES",
    "NUMBER",
    "Detached",
    "HandIn",
    "HttpTransport",
    "KeptToken",
    "PackedContext",
    "ServerAway",
    "ServerRecords",
    "ServerRefused",
    "Session",
    "activate",
    "answer_read",
    "connect",
    "decode_value",
    "encode_answer",
    "encode_value",
    "find_credentials",
    "follow",
    "forget_token",
    "hand_in",
    "keep_token",
    "log_in_at",
    "normal_url",
    "open_session",
    "pack",
    "read_events",
    "submit",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_context": "MOST_CONTEXT_BYTES MOST_CONTEXT_ENTRIES PackedContext pack",
        "_credentials": (
            "KeptToken find_credentials forget_token keep_token log_in_at open_session"
        ),
        "_documents": "NUMBER decode_value encode_answer encode_value",
        "_reads": "answer_read",
        "_session": "ServerAway ServerRefused Session normal_url",
        "_submit": "Detached HandIn activate follow hand_in read_events submit",
        "_transport": "HttpTransport ServerRecords connect",
    },
)
