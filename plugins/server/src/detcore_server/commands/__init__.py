"""The commands ``detcore serve``, ``ui``, ``user`` and ``database``."""
