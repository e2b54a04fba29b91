"""The commands ``detcore check-resume``, ``replay``, ``diverge`` and ``data``, and their output."""
