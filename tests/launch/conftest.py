"""`detcore launch`, run as a person runs it."""

from launch_command import launch

__all__ = ["launch"]
