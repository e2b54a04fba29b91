"""Client side of the server's HTTP API.

Names are imported on first use: finding the plugin must not cost what using it costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.lazy import lazy_names

if TYPE_CHECKING:
    from detcore_remote._context import (
        MOST_CONTEXT_BYTES,
        MOST_CONTEXT_ENTRIES,
        PackedContext,
        pack,
    )
    from detcore_remote._credentials import (
        KeptToken,
        find_credentials,
        forget_token,
        keep_token,
        log_in_at,
        newest_experiments,
        normal_url,
        open_session,
    )
    from detcore_remote._documents import (
        NUMBER,
        spell_document,
        spell_metrics,
        unspell_document,
        unspell_metrics,
    )
    from detcore_remote._reads import answer_read
    from detcore_remote._session import ServerAway, ServerRefused, Session
    from detcore_remote._submit import (
        Detached,
        HandIn,
        activate,
        follow,
        hand_in,
        read_events,
        submit,
    )
    from detcore_remote._transport import HttpTransport, ServerRecords, connect
    from detcore_remote._user_commands import password_option, read_new_password

__version__ = "0.1.0"

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
    "__version__",
    "activate",
    "answer_read",
    "connect",
    "find_credentials",
    "follow",
    "forget_token",
    "hand_in",
    "keep_token",
    "log_in_at",
    "newest_experiments",
    "normal_url",
    "open_session",
    "pack",
    "password_option",
    "read_events",
    "read_new_password",
    "spell_document",
    "spell_metrics",
    "submit",
    "unspell_document",
    "unspell_metrics",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_context": "MOST_CONTEXT_BYTES MOST_CONTEXT_ENTRIES PackedContext pack",
        "_credentials": (
            "KeptToken find_credentials forget_token keep_token log_in_at "
            "newest_experiments normal_url open_session"
        ),
        "_documents": "NUMBER spell_document spell_metrics unspell_document unspell_metrics",
        "_reads": "answer_read",
        "_session": "ServerAway ServerRefused Session",
        "_submit": "Detached HandIn activate follow hand_in read_events submit",
        "_transport": "HttpTransport ServerRecords connect",
        "_user_commands": "password_option read_new_password",
    },
)
