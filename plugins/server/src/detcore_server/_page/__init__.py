"""The web pages below ``/ui``, which show the records.

They are made of templates and the drawings of `detcore_report`; one script in them requests the
same page again while something runs, and replaces the parts that have changed.
"""

from detcore_server._page._link_pages import refuse
from detcore_server._page._routes import make_router

__all__ = ["make_router", "refuse"]
