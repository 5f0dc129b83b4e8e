"""The acts, and what is said about them."""

from collections.abc import Callable, Mapping, Sequence

from examples.drawing.events import Event
from examples.gc_pause.director import Outcome
from examples.gc_pause.story import DepositStory, deposits_into
from examples.http_service.director import LANES
from examples.stage.director import Act
from examples.stage.story import pause_of

_ACTS = (
    Act("1", "a middleware checks, then the handler writes", "checked", fenced=True, resumes_early=False, harms=True),
    Act("2", "the handler's own transaction checks", "guarded", True, resumes_early=False, harms=False),
)

_SETTINGS = {
    "1": "Both clients claim at the service before they read. A middleware compares the number of a request with "
    "the newest claim, and lets the handler run. A is paused when it has sent half of its write.",
    "2": "The same service, but the transaction that writes checks the number. The middleware only parses it. "
    "A is paused at the same moment.",
}

_WHY = {
    "1": "The check was right when it was made. Then B claimed, read and wrote. When the rest of A's write came, "
    "nothing checked any more.",
    "2": "The handler had the whole write before its transaction began, and by then B had claimed. "
    "A started again, from B's balance.",
}


class ServiceStory(DepositStory):
    NAME = "http-service"
    TITLE = "A late write to a service"
    ACTS = _ACTS
    SETTINGS = _SETTINGS
    WHY = _WHY
    LANES = LANES

    def introduction(self, ttl: float) -> list[str]:
        return [
            deposits_into("A service holds an account of"),
            "Each client takes a lock, reads the balance through HTTP and puts back the sum.",
            "Its requests carry the fence of its lease in the header Fencing-Token.",
            pause_of(ttl, "while it sends its write"),
        ]

    def sentences(self, event: Event) -> Mapping[str, Callable[[], str]]:
        name, data = event.lane, event.data
        return {
            **super().sentences(event),
            "sending": lambda: f"{name} sends half of its write.",
            "passed": lambda: f"The service: {event.text}.",
            "tried": lambda: f"{name} tries to write {data['sum']}. The service REFUSES the write (status 412).",
            "written": lambda: f"The account now holds {data['balance']}.",
            "damaged": lambda: f"The account now holds {data['balance']}. It should hold {data['should']}.",
        }

    def verdict(self, outcome: Outcome, events: Sequence[Event]) -> str:
        return super().verdict(outcome, events).replace("the database refused", "the service refused")


STORY = ServiceStory()
