"""What the library says to programmers, in the words of the command line."""

from __future__ import annotations

import re

PHRASES = (
    (r"call coordinator\.create_tables\(\) once, or give coordinator\.metadata to Alembic", "{create}"),
    (r"call guard\.create_tables\(\) once(; nothing was written)?, or give guard\.metadata to Alembic", r"{create}\1"),
    (r"; or pass the schema= that has it", ""),
    (r"call (guard|coordinator)\.create_tables\(\)( once)?", "{create}"),
    (r"(guard|coordinator)\.create_tables\(\)|\bcreate_tables\(\)( of a guard)?", "fencing create-tables URL"),
    (r"\bguard\.metadata\b", "the library"),
    (r"call (guard\.)?enforce\(\)", "call fencing enforce"),
    (r"(?<![.\w])enforce\(\)", "fencing enforce"),
    (r'\bschema="([^"]*)" to the guard', r"--schema \1"),
    (r"\bschema= (to the guard|at every guard)", "--schema"),
    (r"\bschema=", "--schema"),
    (r"\bforce_release\(\) does", "fencing free NAME does"),
    (r"raise longest_ttl for all coordinators of its nodes, or lower (the ttl|at_least)", r"lower \1"),
    (
        r"has one ttl for all its locks, (\S+) s; pass the ttl to the coordinator, not to the lock",
        r"has one ttl for all its locks, \1 s: leave --ttl out",
    ),
    (r"\binitialise\(\)", "initialise() of a RedlockCoordinator"),
    (r"RedlockCoordinator takes", "Redlock takes"),
    (r"with one server, use RedisCoordinator", "one server is named by --redis"),
    (r"\bat_least\b", "--at-least"),
    (r"\blower the ttl\b", "lower --ttl"),
    (r"^ttl\b", "--ttl"),
    (r"^(resource|role) is empty", r"--\1 is empty"),
)
"""Patterns of the library's texts, and what stands in their place. The first ones come first."""

_CREATE = "call 'fencing create-tables URL' once"


def of_commands(text: str) -> str:
    """Return a text of the library for those who use the command line."""
    for pattern, words in PHRASES:
        text = re.sub(pattern, words.replace("{create}", _CREATE), text)
    return text
