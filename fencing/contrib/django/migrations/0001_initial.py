"""The tables of the guards, as ``create_tables()`` makes them; it may have made them before."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models

from fencing.contrib.django.guard import DjangoGuard
from fencing.contrib.django.models import ExactField


def create_tables(apps: Any, schema_editor: Any) -> None:
    """Create the tables, in a database that has guards. Others, such as Oracle, get none."""
    connection = schema_editor.connection
    if connection.vendor in ("postgresql", "mysql", "sqlite"):
        DjangoGuard(connection.alias).create_tables()


def leave_tables(apps: Any, schema_editor: Any) -> None:
    """Leave the tables where they are: without its mark, an old holder would be admitted again."""


class Migration(migrations.Migration):
    """Creates the tables."""

    initial = True
    dependencies: list[Any] = []  # noqa: RUF012 - as Django has it
    operations = [  # noqa: RUF012
        migrations.RunPython(create_tables, leave_tables, atomic=False),
        migrations.CreateModel(
            name="Mark",
            fields=[
                ("resource", ExactField(primary_key=True, serialize=False)),
                ("number", models.BigIntegerField()),
                ("seq", models.BigIntegerField(verbose_name="writes")),
                ("claimed_at", models.DateTimeField()),
            ],
            options={"db_table": "fencing_marks", "managed": False, "default_permissions": ("view",)},
        ),
        migrations.CreateModel(
            name="Lock",
            fields=[("resource", models.TextField(primary_key=True, serialize=False))],
            options={
                "permissions": (("force_release", "Can take a lock from its holder"),),
                "managed": False,
                "default_permissions": ("view",),
            },
        ),
    ]
