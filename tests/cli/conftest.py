from tests.support.command_line import command

__all__ = ["command"]
