"""The pages of the admin: marks, and the locks that are held. They change nothing but by a forced release."""

from __future__ import annotations

from itertools import islice
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse

from fencing.contrib.django.coordinator import coordinator
from fencing.contrib.django.models import Lock, Mark
from fencing.kernel.errors import FencingError

MOST_LOCKS = 200
"""How many locks the page shows. A pattern finds the others."""

PERMISSION = "fencing.force_release"


class ReadOnlyAdmin(admin.ModelAdmin):
    """A page that changes nothing."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: without its mark, an old holder would be admitted again."""
        return False


@admin.register(Mark)
class MarkAdmin(ReadOnlyAdmin):
    """The marks of the default database, or of the one that a router names."""

    list_display = ("resource", "number", "seq", "claimed_at")
    search_fields = ("resource",)
    ordering = ("resource",)

    def get_queryset(self, request: HttpRequest) -> Any:
        """Return the marks without the floor, which is none."""
        return super().get_queryset(request).exclude(resource="fencing:floor")


@admin.register(Lock)
class LockAdmin(ReadOnlyAdmin):
    """The locks that are held, as the coordinator lists them."""

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Show the locks; a POST forces out one grant, the one that the page showed."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method == "POST":
            if not request.user.has_perm(PERMISSION):
                raise PermissionDenied
            self._force_release(request)
            return HttpResponseRedirect(request.get_full_path())
        pattern = request.GET.get("pattern") or "*"
        held: list[Any] = []
        try:
            held = list(islice(coordinator().holders(pattern), MOST_LOCKS))
        except (FencingError, ImproperlyConfigured, TypeError, ValueError) as error:
            self.message_user(request, str(error), messages.ERROR)
        context = {
            **self.admin_site.each_context(request),
            "title": "Locks that are held",
            "opts": self.opts,
            "held": held,
            "pattern": pattern,
            "is_cut": len(held) == MOST_LOCKS,
            "may_force": request.user.has_perm(PERMISSION),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/fencing/locks.html", context)

    def _force_release(self, request: HttpRequest) -> None:
        resource = request.POST.get("resource", "")
        try:
            forced = coordinator().force_release(resource, int(request.POST.get("number", "")))
        except (FencingError, ImproperlyConfigured, TypeError, ValueError) as error:
            self.message_user(request, f"{resource}: {error}", messages.ERROR)
            return
        if forced is None:
            self.message_user(request, f"{resource} has another holder by now; nothing was done", messages.WARNING)
            return
        shut_out = "its guards refuse the former holder" if forced.fenced else "no guard refuses the former holder yet"
        self.message_user(request, f"{resource} is free; {shut_out}", messages.SUCCESS)
        self.log_change(request, Lock(resource=resource), f"forced out the grant {request.POST.get('number')}")
