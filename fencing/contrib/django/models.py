"""The mark table as Django's admin shows it, and the permissions on locks. No model here is ever written."""

from __future__ import annotations

from typing import Any

from django.db import models


class ExactField(models.TextField):
    """A text that is compared byte by byte: MariaDB and MySQL keep it as bytes."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """Return what was read as a text."""
        return value.decode() if isinstance(value, bytes) else value


class Mark(models.Model):
    """The newest fence that was claimed for a resource."""

    resource = ExactField(primary_key=True)
    number = models.BigIntegerField()
    seq = models.BigIntegerField("writes")
    claimed_at = models.DateTimeField()

    class Meta:
        managed = False
        db_table = "fencing_marks"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return str(self.resource)


class Lock(models.Model):
    """A lock that is held now. The coordinator has it, and no table does."""

    resource = models.TextField(primary_key=True)

    class Meta:
        managed = False
        default_permissions = ("view",)
        permissions = (("force_release", "Can take a lock from its holder"),)

    def __str__(self) -> str:
        return str(self.resource)
