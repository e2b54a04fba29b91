"""Run `detcore launch` as a user does."""

from launch_command import launch

__all__ = ["launch"]
