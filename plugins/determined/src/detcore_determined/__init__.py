"""What users of Determined need to move to detcore: ``detcore migrate``, and their client's routes.

The routes need detcore-server, whose server alone imports them.
"""

__version__ = "0.1.0"

__all__ = ()
