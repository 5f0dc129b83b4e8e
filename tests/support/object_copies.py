"""A copy of a store in memory that other processes and programs can read."""

from __future__ import annotations

from pathlib import Path

from obstore.store import LocalStore, MemoryStore


def on_disk(store: MemoryStore, folder: Path) -> LocalStore:
    """Copy all objects to a folder. A guard only reads there: such a store keeps no conditions."""
    copy = LocalStore(folder)
    for page in store.list():
        for each in page:
            copy.put(each["path"], bytes(store.get(each["path"]).bytes()))
    return copy
