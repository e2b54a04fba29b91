"""Client side of the server's HTTP API; imports no HTTP library until it is used."""

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
        kept_token,
        log_in_at,
        normal_url,
        open_session,
        trusted_authorities,
    )
    from detcore_remote._documents import (
        NUMBER,
        spell_document,
        spell_metrics,
        unspell_document,
        unspell_metrics,
    )
    from detcore_remote._follow import Detached, follow
    from detcore_remote._journal import JournalListener, journal_path, read_journal
    from detcore_remote._reads import ServerRecords
    from detcore_remote._session import ServerAway, ServerRefused, Session
    from detcore_remote._spools import send_spools
    from detcore_remote._submit import HandIn, hand_in, read_events, read_outcome, submit_folder
    from detcore_remote._transport import HttpTransport, connect

__version__ = "0.1.0"

__all__ = [
    "MOST_CONTEXT_BYTES",
    "MOST_CONTEXT_ENTRIES",
    "NUMBER",
    "Detached",
    "HandIn",
    "HttpTransport",
    "JournalListener",
    "KeptToken",
    "PackedContext",
    "ServerAway",
    "ServerRecords",
    "ServerRefused",
    "Session",
    "__version__",
    "connect",
    "find_credentials",
    "follow",
    "forget_token",
    "hand_in",
    "journal_path",
    "keep_token",
    "kept_token",
    "log_in_at",
    "normal_url",
    "open_session",
    "pack",
    "read_events",
    "read_journal",
    "read_outcome",
    "send_spools",
    "spell_document",
    "spell_metrics",
    "submit_folder",
    "trusted_authorities",
    "unspell_document",
    "unspell_metrics",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "_context": "MOST_CONTEXT_BYTES MOST_CONTEXT_ENTRIES PackedContext pack",
        "_credentials": (
            "KeptToken find_credentials forget_token keep_token kept_token log_in_at "
            "normal_url open_session trusted_authorities"
        ),
        "_documents": "NUMBER spell_document spell_metrics unspell_document unspell_metrics",
        "_follow": "Detached follow",
        "_journal": "JournalListener journal_path read_journal",
        "_reads": "ServerRecords",
        "_session": "ServerAway ServerRefused Session",
        "_spools": "send_spools",
        "_submit": "HandIn hand_in read_events read_outcome submit_folder",
        "_transport": "HttpTransport connect",
    },
)
