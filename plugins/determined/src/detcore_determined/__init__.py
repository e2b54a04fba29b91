"""Help users of Determined move to detcore: ``detcore migrate``, and the routes of their client.

The routes need detcore-server, whose server alone imports them.
"""

__version__ = "0.1.0"

__all__ = ()
