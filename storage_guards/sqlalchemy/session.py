"""ORM sessions in which nothing is older than the claim: one session for one guarded transaction.

The session is new and bound to the guarded connection. So its identity map begins empty, and it loads everything after
the check. An object that another session has loaded is not taken as current: it is expired as it is added. It is
refused where it has changes, or where its values would be copied (``merge``). The guard commits the session once, as
its block ends: with its events and flushes, through :meth:`Session.commit` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NoReturn

from sqlalchemy import Connection, Engine, event, inspect
from sqlalchemy.orm import InstanceState, Session, scoped_session, sessionmaker

from fencing.kernel.errors import GuardNotEnforceable
from storage_guards.sqlalchemy.errors import DATABASE_ERRORS
from storage_guards.sqlalchemy.transaction import SQLAlchemyTransaction

_ENDS_THE_BLOCK = ("rollback", "close", "reset", "invalidate")

_LEAVE_THE_END = (
    "a guarded session leaves commit(), rollback(), close() and the like to the guard, which commits at the block's "
    "end and rolls back after an exception. Put session.begin_nested() around what may be rolled back by itself"
)

_ELSEWHERE = (
    "this session would use another engine or connection than its guarded one, where nothing is checked: bind no "
    "mapper and no statement to another database here, and use a second session for that"
)

_FLUSHES = 100
"""After so many flushes SQLAlchemy, too, assumes that a hook always leaves something to flush."""


def check_factory(factory: Any, engine: Engine, makers: tuple[Any, ...] = (sessionmaker, scoped_session)) -> None:
    """Raise TypeError or ValueError unless ``factory`` is None or makes this engine's sessions.

    Args:
        makers: the classes of factories that the guard takes.
    """
    if factory is not None and not isinstance(factory, makers):
        hint = ""
        if type(factory).__name__.removeprefix("async_") in ("sessionmaker", "scoped_session"):
            hint = f"; this is {'a sync' if sessionmaker in makers else 'an async'} guard"
        names = " or ".join(maker.__name__ for maker in makers)
        raise TypeError(f"factory is a {names}, not {type(factory).__name__}{hint}")
    registry = getattr(factory, "registry", None)
    if registry is not None:
        if registry.has():
            raise ValueError(
                "this scope has a session already, whose objects may be older than the claim; call its remove() before "
                "the guarded block"
            )
        factory = getattr(factory, "session_factory", None)
    bind = getattr(factory, "kw", {}).get("bind")
    bind = getattr(bind, "sync_engine", bind)
    if bind is not None and bind is not engine:
        raise ValueError(
            f"the factory makes sessions on {bind!r}, but this guard's marks are in {engine!r}; use one engine for both"
        )


@contextmanager
def session_on(connection: Connection, transaction: SQLAlchemyTransaction, factory: Any) -> Iterator[Any]:
    """Make a session for the one transaction that is about to begin on ``connection``. It is closed at the end.

    Args:
        connection: idle.
        transaction: its unit of work will be the session's.
        factory: as :func:`check_factory` takes it.
    """
    session: Session = (factory or sessionmaker())(bind=connection, join_transaction_mode="control_fully")
    try:
        work = UnitOfWork(session, connection, transaction)
        try:
            yield session
        finally:
            work.allow_all()
    finally:
        try:
            session.close()
        finally:
            leave_scope(factory, session)


class UnitOfWork:
    """A session's part in its guarded transaction: its forbidden methods, and the commit at the end."""

    def __init__(self, session: Session, connection: Connection, transaction: SQLAlchemyTransaction) -> None:
        if session.twophase:
            raise ValueError(
                "a two-phase session cannot be guarded, because its commit comes after the check's transaction; use "
                "twophase=False"
            )
        if any(True for _ in session):
            raise ValueError(
                "the factory's sessions are not new: they have objects, which may be older than the claim; add objects "
                "in the guarded block"
            )
        self._session = session
        self._connection = connection
        self._transaction = transaction
        self._ending = False
        self._refusal: GuardNotEnforceable | None = None
        self._overrides = {
            **dict.fromkeys(_ENDS_THE_BLOCK, _refuse),
            "get_bind": self._guard_get_bind(session.get_bind),
            "merge": self._guard_merge(session.merge),
            "bulk_save_objects": self._guard_save(session.bulk_save_objects),
        }
        if hasattr(session, "merge_all"):  # since SQLAlchemy 2.1
            self._overrides["merge_all"] = self._guard_save(session.merge_all)
        # The events of the session's class, and so the caller's own, come before these.
        event.listen(session, "after_begin", self._after_begin)
        event.listen(session, "before_commit", self._before_commit)
        event.listen(session, "before_attach", self._before_attach)
        event.listen(session, "detached_to_persistent", self._expire)
        transaction.unit_of_work = self
        vars(session).update(self._overrides)  # last, so that the session can be closed after an earlier interruption

    def __enter__(self) -> None:
        if not self._session.in_transaction():
            self._session.begin()  # autobegin may be off

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.allow_all()
        if error is not None:
            with suppress(*DATABASE_ERRORS):  # the transaction is gone anyway, and the block's error counts
                self._session.rollback()
            return
        if self._refusal is not None:
            raise self._refusal
        self._ending = True
        try:
            self._session.commit()
        except BaseException:
            # SQLAlchemy drops the transaction when its commit was answered. A failure after that is a hook's.
            self._transaction.commit_is_over = self._connection.get_transaction() is None
            raise

    def allow_all(self) -> None:
        """Restore the session's forbidden methods."""
        for name in self._overrides:
            if name != "get_bind":
                vars(self._session).pop(name, None)

    def _before_commit(self, session: Session) -> None:
        """Flush what the hooks have left, as the last of these events."""
        if session.in_nested_transaction():
            return  # the release of a savepoint
        if not self._ending:
            _refuse()
        for _ in range(_FLUSHES):
            if not (session.new or session.dirty or session.deleted):
                break
            session.flush()
        self._transaction.about_to_commit(self._connection)

    def _after_begin(self, session: Session, transaction: object, connection: Connection) -> None:
        """Refuse another connection. If the block swallows this error, the session is not committed."""
        if connection is not self._connection:
            self._refusal = GuardNotEnforceable(_ELSEWHERE)
            raise self._refusal

    def _guard_get_bind(self, get_bind: Callable[..., Any]) -> Callable[..., Any]:
        """Return the guarded connection for a mapper that is bound to the guard's engine."""

        def guarded(*args: Any, **options: Any) -> Any:
            bind = get_bind(*args, **options)
            return self._connection if bind is self._connection.engine else bind

        return guarded

    def _before_attach(self, session: Session, instance: object) -> None:
        """Refuse changes from before. Those of related objects are looked for now: expiring this one drops them."""
        state = _state_of(instance)
        if state.key is None:
            return
        for each in [state, *_reached_by(state, "save-update"), *_reached_by(state, "refresh-expire")]:
            if each.key is not None and each.modified and each.session is not session:
                raise ValueError(
                    f"this {each.class_.__name__} was loaded by another session and changed since: its changes may "
                    f"come from reads before the claim. Get it anew in this session, and change that"
                )

    def _expire(self, session: Session, instance: object) -> None:
        """Expire the object, because its values are old. Its related objects are added first, because expiring forgets
        them."""
        state = _state_of(instance)
        related = [each.obj() for each in _reached_by(state, "save-update")]
        session.expire(instance)
        for each in related:
            if each not in session:
                session.add(each)

    def _guard_merge(self, merge: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(instance: Any, *args: Any, **options: Any) -> Any:
            if not options.get("load", True):
                raise ValueError(
                    "merge(load=False) would treat old values as current; get the object anew in this session instead"
                )
            self._require_no_copies([instance])
            return merge(instance, *args, **options)

        return guarded

    def _guard_save(self, save: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(instances: Iterable[Any], *args: Any, **options: Any) -> Any:
            instances = list(instances)
            if not options.get("load", True):
                raise ValueError(
                    "load=False would treat old values as current; get the objects anew in this session instead"
                )
            self._require_no_copies(instances)
            return save(instances, *args, **options)

        return guarded

    def _require_no_copies(self, instances: Iterable[Any]) -> None:
        """Raise ValueError where values would be written that another session has read."""
        for instance in instances:
            state = _state_of(instance)
            for each in [state, *_reached_by(state, "merge")]:
                if each.key is not None and each.session is not self._session:
                    raise ValueError(
                        f"this would write all values of a {each.class_.__name__} that another session has read, which "
                        f"may be older than the claim. Get it anew in this session, and change that"
                    )


def _state_of(instance: object) -> InstanceState[Any]:
    state: InstanceState[Any] = inspect(instance, raiseerr=True)
    return state


def _reached_by(state: InstanceState[Any], cascade: str) -> list[InstanceState[Any]]:
    """Return the states of the loaded objects to which this cascade goes."""
    return [found[2] for found in state.mapper.cascade_iterator(cascade, state)]


def _refuse(*_: object, **__: object) -> NoReturn:
    raise GuardNotEnforceable(_LEAVE_THE_END)


def leave_scope(factory: Any, session: object) -> None:
    """Drop the session from its scope, if the factory has scopes."""
    registry = getattr(factory, "registry", None)
    if registry is not None and registry.has() and registry() is session:
        registry.clear()
