"""A demo with one act, in which what should protect the data was taken away: it must end with status 1.

The variable BROKEN_DEMO names the module, the act, and the act whose functions are played in its place.
"""

import importlib
import os
import sys

from examples.stage.tale import Tale, perform

if __name__ == "__main__":
    name, safe, harmful = os.environ["BROKEN_DEMO"].split()
    package = ".stories." not in name
    story = importlib.import_module(f"{name}.story" if package else name).STORY
    acts = {act.key: act for act in story.ACTS}
    assert acts[harmful].harms
    assert not acts[safe].harms
    of_harmful = acts[harmful]._asdict() | {"key": safe, "title": acts[safe].title, "harms": False}
    type(story).ACTS = (type(acts[safe])(**of_harmful),)
    if isinstance(story, Tale):
        sys.exit(perform(story))
    sys.exit(importlib.import_module(f"{name}.__main__").main())
