"""Demos of one file each: ``make demo-NAME``, or ``python -m examples.stories.NAME``."""
