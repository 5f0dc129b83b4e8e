"""Faults that somebody could make, each against a rule of the product, and what finds each.

They are for whoever moves or rewrites code, or tests: ``python -m tests.mutants`` says whether each is still found. A
fault is a replacement of text, so it rots when the text changes; ``tests/mutants/test_catalog.py`` notices that.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MUTANTS", "Mutant"]


@dataclass(frozen=True)
class Mutant:
    """One fault.

    Args:
        name: says what goes wrong.
        file: of the product, from the project's root.
        before: what is replaced; it occurs in the file exactly once.
        after: what it is replaced by.
        killed_by: the fewest and fastest tests that find it, as pytest takes them.
    """

    name: str
    file: str
    before: str
    after: str
    killed_by: tuple[str, ...]


MUTANTS: tuple[Mutant, ...] = (
    # The kernel
    Mutant(
        "a-claim-of-an-equal-number-is-admitted",
        "fencing/kernel/admission.py",
        "if fence.number > mark.number:",
        "if fence.number >= mark.number:",
        ("tests/kernel/test_fence.py::test_claim_and_write",),
    ),
    Mutant(
        "a-write-is-admitted-whatever-its-token",
        "fencing/kernel/fence.py",
        "return (self.number, self.token) == (fence.number, fence.token)",
        "return self.number == fence.number",
        ("tests/kernel/test_fence.py::test_claim_and_write",),
    ),
    Mutant(
        "a-detached-lease-still-writes",
        "fencing/kernel/admission.py",
        "if ended is not None:",
        'if ended == "released":',
        ("tests/kernel/test_fence.py::test_a_lease_that_has_ended_is_refused",),
    ),
    Mutant(
        "a-cancellation-is-lost-with-what-was-finished",
        "fencing/kernel/effects.py",
        "if cancelled is None:\n        return task.result()",
        "if cancelled is None or failure is None:\n        return task.result()",
        ("tests/kernel/test_effects.py::test_a_cancellation_is_delivered_after_the_end",),
    ),
    # Blocks inside blocks
    Mutant(
        "an-inner-block-releases-the-lock",
        "fencing/locks/hold.py",
        "        if self._inside is None or self._leave():\n            lease.__exit__",
        "        if self._leave() or True:\n            lease.__exit__",
        ("tests/locks/test_reentrant.py::test_every_depth_has_the_same_lease_and_one_request_is_made",),
    ),
    Mutant(
        "an-inner-async-block-releases-the-lock",
        "fencing/locks/hold.py",
        "        if self._inside is None or self._leave():\n            await",
        "        if self._leave() or True:\n            await",
        ("tests/locks/test_reentrant.py::test_every_depth_has_the_same_lease_and_one_request_is_made",),
    ),
    Mutant(
        "a-lost-lease-is-entered-again",
        "fencing/locks/reentrant.py",
        "        lease.ensure_held()\n",
        "",
        (
            "tests/locks/test_reentrant.py::test_a_lost_lease_refuses_inner_blocks",
            "tests/locks/test_reentrant.py::test_a_lease_that_ended_inside_refuses_inner_blocks",
        ),
    ),
    Mutant(
        "a-child-task-enters-the-block-of-its-parent",
        "fencing/locks/reentrant.py",
        "(block._task == task or",
        "(True or",
        ("tests/locks/test_reentrant_contexts.py::test_a_child_task_is_told",),
    ),
    Mutant(
        "a-child-task-waits-for-its-parent",
        "fencing/locks/reentrant.py",
        "            if both and block._lease.held:",
        "            if False:",
        ("tests/locks/test_reentrant_contexts.py::test_a_child_task_is_told",),
    ),
    Mutant(
        "a-forked-child-believes-that-it-holds",
        "fencing/locks/reentrant.py",
        "lease is None or lease._pid != process.pid() or",
        "lease is None or",
        ("tests/locks/test_reentrant_contexts.py::test_a_forked_child_does_not_hold_it",),
    ),
    Mutant(
        "other-options-inside-are-ignored",
        "fencing/locks/reentrant.py",
        "if lock._settings is not settings and lock._settings != settings:",
        "if False:",
        ("tests/locks/test_reentrant.py::test_other_options_inside_are_refused",),
    ),
    Mutant(
        "the-depth-has-no-bound",
        "fencing/locks/reentrant.py",
        "if len(inside) >= MOST_DEPTH:",
        "if False:",
        ("tests/locks/test_reentrant.py::test_the_depth_is_bounded",),
    ),
    Mutant(
        "an-interrupted-inner-block-keeps-the-lock",
        "fencing/locks/reentrant.py",
        "            inside.discard(id(self))  # an interruption",
        "            pass  # an interruption",
        ("tests/locks/test_reentrant_contexts.py::test_an_interruption_whose_traceback_is_kept",),
    ),
    Mutant(
        "a-lease-that-ended-forbids-another-hold",
        "fencing/locks/reentrant.py",
        "if self._timeout is None and lease.held:",
        "if self._timeout is None:",
        ("tests/locks/test_self_wait.py::test_a_lease_that_ended_does_not_count",),
    ),
    Mutant(
        "who-waits-for-itself-is-not-told",
        "fencing/locks/reentrant.py",
        "held_by_this=self._waiter",
        "held_by_this=None",
        ("tests/locks/test_self_wait.py::test_with_a_timeout_the_error_says_so",),
    ),
    Mutant(
        "another-thread-in-the-same-context-is-refused",
        "fencing/locks/reentrant.py",
        "if block._thread == thread and (",
        "if (",
        ("tests/locks/test_self_wait.py::test_who_did_not_begin_the_block_waits",),
    ),
    Mutant(
        "notes-of-ended-blocks-pile-up",
        "fencing/locks/reentrant.py",
        "if (block := note()) is not None and not block._is_over)",
        ")",
        ("tests/locks/test_reentrant_contexts.py::test_notes_of_blocks_that_ended_elsewhere_are_removed",),
    ),
    Mutant(
        "a-loss-inside-is-told-late",
        "fencing/locks/hold.py",
        "                self._lease = None\n            lease.leave_inner(error)\n",
        "                self._lease = None\n",
        (
            "tests/locks/test_reentrant.py::test_a_loss_is_raised_at_the_end_of_an_inner_block",
            "tests/locks/test_reentrant.py::test_a_stale_fence_that_leaves_an_inner_block_ends_the_lease",
        ),
    ),
    # The causes of a loss
    Mutant(
        "a-standstill-is-taken-for-a-silent-service",
        "fencing/locks/causes.py",
        "if late >= settings.ttl * STANDSTILL:",
        "if False:",
        ("tests/locks/test_causes.py::test_this_side_stood_still",),
    ),
    Mutant(
        "a-silent-service-is-taken-for-nothing",
        "fencing/locks/holding.py",
        "            self.unanswered_since = now\n",
        "            pass\n",
        ("tests/locks/test_causes.py::test_there_was_no_answer",),
    ),
    Mutant(
        "an-answer-does-not-clear-the-silence",
        "fencing/locks/holding.py",
        "self.renewed_at, self.unanswered_since, self.late = now, None, 0.0",
        "self.renewed_at = now",
        ("tests/locks/test_causes.py::test_its_max_lifetime_was_over",),
    ),
    Mutant(
        "the-exit-of-a-block-does-not-ask-why",
        "fencing/locks/lease.py",
        'if loss is None or loss.reason != "gone" or loss.cause is not None:',
        "if True:",
        ("tests/locks/test_causes.py::test_another_holder_has_it",),
    ),
    Mutant(
        "a-renewal-does-not-ask-why",
        "fencing/locks/plans.py",
        '        each.lose("gone", cause)\n',
        '        each.lose("gone")\n',
        ("tests/locks/test_causes.py::test_nobody_has_it",),
    ),
    # Locks
    Mutant(
        "claims-that-outlast-the-lease-count",
        "fencing/locks/plans.py",
        "if holding.lost is None and backend.clock() < holding.deadline:",
        "if holding.lost is None:",
        ("tests/locks/test_plans.py::test_claims_that_outlast_the_lease_do_not_count",),
    ),
    Mutant(
        "a-new-fence-is-minted-below-the-mark",
        "fencing/locks/plans.py",
        "fence, taking.token, requests, floor=newer,",
        "fence, taking.token, requests, floor=0,",
        ("tests/locks/test_plans.py::test_a_refused_claim_is_repaired_by_a_new_fence_above_the_mark",),
    ),
    Mutant(
        "a-claim-that-was-stopped-keeps-the-lock",
        "fencing/locks/plans.py",
        "elif taking.may_hold:",
        "elif False:",
        ("tests/locks/test_plans.py::test_whatever_stops_a_claim_the_lock_is_given_back",),
    ),
    Mutant(
        "a-lease-is-believed-for-all-of-its-ttl",
        "fencing/locks/settings.py",
        "self.ttl * (1 - DRIFT_FACTOR) - DRIFT_SECONDS",
        "self.ttl",
        ("tests/locks/test_plans.py::test_the_deadline_counts_from_before_the_request_less_the_drift",),
    ),
    Mutant(
        "another-fences-staleness-ends-this-lease",
        "fencing/locks/lease.py",
        'if isinstance(error, StaleFence) and getattr(error, "fence", None) == self.fence:',
        "if isinstance(error, StaleFence):",
        ("tests/locks/test_hold.py::test_a_stale_fence_of_another_resource_does_not_end_this_lease",),
    ),
    Mutant(
        "a-hanging-holder-is-renewed-for-ever",
        "fencing/locks/holding.py",
        "due > self.granted_at + settings.max_lifetime:",
        "due > now + settings.max_lifetime:",
        ("tests/locks/test_renewal.py::test_automatic_renewal_ends_with_the_maximal_lifetime",),
    ),
    Mutant(
        "a-lease-past-its-deadline-is-merely-tried-again",
        "fencing/locks/renewal.py",
        'holding.lose("expired", why_expired(self._backend, holding, now))',
        "holding.not_renewed(now)",
        ("tests/locks/test_calendar.py::test_what_is_not_renewed_is_lost_at_its_deadline_and_not_before",),
    ),
    # Redis
    Mutant(
        "a-renewal-keeps-the-lock-of-another",
        "fencing/redis/lua/renew.lua",
        "if read(lock) == token then",
        "if read(lock) then",
        ("tests/redis/test_contract.py::TestRedisCoordinator::test_many_leases_are_renewed_in_one_request",),
    ),
    Mutant(
        "a-release-frees-the-lock-of-another",
        "fencing/redis/lua/release.lua",
        "if redis.call('GET', KEYS[1]) ~= ARGV[1] then",
        "if not redis.call('GET', KEYS[1]) then",
        ("tests/redis/test_contract.py::TestRedisCoordinator::test_numbers_grow_across_an_expiry",),
    ),
    Mutant(
        "a-release-frees-the-lock-of-another-where-nobody-waits",
        "fencing/redis/lua/release_alone.lua",
        "call('GET', KEYS[1]) == ARGV[1] and ",
        "",
        ("tests/redis/test_contract.py::TestRedisCoordinator::test_numbers_grow_across_an_expiry",),
    ),
    Mutant(
        "a-lock-that-is-held-is-granted-at-once",
        "fencing/redis/lua/acquire_free.lua",
        "call('EXISTS', KEYS[1], KEYS[4]) == 0",
        "call('EXISTS', KEYS[4]) == 0",
        ("tests/redis/test_contract.py::TestRedisCoordinator::test_a_held_lock_is_not_granted_again",),
    ),
    Mutant(
        "a-number-is-not-above-the-counter",
        "fencing/redis/lua/acquire_free.lua",
        "last > 0 and last < tonumber(clock)",
        "last > 0",
        ("tests/redis/test_numbers.py::test_a_counter_ahead_of_the_clock_goes_on",),
    ),
    Mutant(
        "a-repeated-acquire-gets-another-number",
        "fencing/redis/lua/acquire.lua",
        "if number then return number end",
        "if number then return mint() end",
        ("tests/redis/test_contract.py::TestRedisCoordinator::test_acquire_is_idempotent_for_its_token",),
    ),
    Mutant(
        "a-late-offer-frees-the-lock-that-was-accepted",
        "fencing/redis/lua/release.lua",
        "~= 'offer ' then return 0 end",
        "~= 'offer ' then redis.call('TIME') end",
        ("tests/redis/test_waiting.py::test_a_late_message_of_an_offer_frees_no_lock",),
    ),
    Mutant(
        "a-lease-that-comes-as-young-ones-are-entered-is-missed",
        "fencing/locks/renewal.py",
        "if not now < sorting.when <= when or not sorting.open:",
        "if not now < sorting.when <= when:",
        ("tests/locks/test_calendar.py::test_a_call_of_the_timer_that_comes_at_once_does_not_stop_later_ones",),
    ),
    Mutant(
        "a-lost-call-stops-all-later-renewals",
        "fencing/locks/renewal.py",
        "if not now < sorting.when <= when or not sorting.open:",
        "if when < sorting.when or not sorting.open:",
        ("tests/locks/test_calendar.py::test_a_call_that_is_lost_costs_no_later_lease",),
    ),
    Mutant(
        "a-lost-callback-stops-all-later-renewals",
        "fencing/locks/renewal.py",
        "if state.task is None or state.task.done():",
        "if state.task is None:",
        ("tests/locks/test_renewal.py::test_a_lost_callback_of_a_renewal_does_not_end_renewal",),
    ),
    Mutant(
        "a-lock-that-an-inner-block-uses-is-freed",
        "fencing/locks/hold_all.py",
        " if block.is_last]",
        "]",
        ("tests/redis/test_several.py::test_a_generator_inside_keeps_a_re_entrant_lock",),
    ),
    Mutant(
        "what-an-interruption-left-is-not-given-back",
        "fencing/locks/several.py",
        "part.taking.abandon(part.backend, part.resource, part.settings)\n                part.forget()\n",
        "part.forget()\n",
        ("tests/locks/test_several.py::test_a_second_interruption_while_all_are_given_back_leaves_none_taken",),
    ),
    Mutant(
        "the-rest-of-a-request-is-not-sent",
        "fencing/redis/connection.py",
        "        if data:\n            sock.sendall(data)",
        "        if self._fd is None:\n            sock.sendall(data)",
        ("tests/redis/test_connections.py::test_a_request_that_is_sent_in_parts",),
    ),
    Mutant(
        "a-repeated-release-says-that-the-lock-was-lost",
        "fencing/redis/plans.py",
        "freed = reply != GONE or answer.repeated",
        "freed = reply != GONE",
        ("tests/locks/test_plans.py::test_release_is_false_only_for_certain",),
    ),
    Mutant(
        "the-deadline-counts-from-the-reply",
        "fencing/kernel/retry.py",
        "yield attempt(timeout, last)), sent_at, repeated)",
        "yield attempt(timeout, last)), clock(), repeated)",
        ("tests/locks/test_plans.py::test_the_deadline_of_a_repeated_request_counts_from_the_repetition",),
    ),
    Mutant(
        "the-deadline-of-a-first-request-counts-from-the-reply",
        "fencing/redis/plans.py",
        "if type(reply) is bytes:\n            return _grant(reply, resource, token, settings, sent_at)",
        "if type(reply) is bytes:\n            return _grant(reply, resource, token, settings, self.clock())",
        ("tests/locks/test_plans.py::test_the_deadline_counts_from_before_the_request_less_the_drift",),
    ),
    Mutant(
        "an-undo-frees-what-the-repetition-got",
        "fencing/redis/connection_factory.py",
        "return call.may_take and (call.last_attempt or interrupted)",
        "return call.may_take",
        ("tests/redis/test_lost_replies.py::test_an_attempt_that_arrives_late_does_not_free_what_its_repetition_got",),
    ),
    Mutant(
        "an-offer-for-nobody-is-kept",
        "fencing/redis/waiters.py",
        "            return None\n        return resource, argument",
        "            return None\n        return None",
        ("tests/redis/test_waiters.py::test_an_offer_for_nobody_is_to_be_declined",),
    ),
    Mutant(
        "replies-find-other-callers",
        "fencing/redis/connection_async.py",
        "request = self._waiting[0]",
        "request = self._waiting[-1]",
        ("tests/redis/test_multiplex.py::test_replies_find_their_callers",),
    ),
    # The rule in SQL
    Mutant(
        "a-check-in-sql-compares-numbers-alone",
        "storage_guards/sql/statements.py",
        "AND number = {{number}} AND token = {{token}} {reply}",
        "AND number = {{number}} {reply}",
        ("tests/sql/test_guard.py::test_the_statements_are_the_admission_rule",),
    ),
    Mutant(
        "a-first-claim-may-equal-the-floor",
        "storage_guards/sql/statements.py",
        "AND floor.number < {{number}} ",
        "AND floor.number <= {{number}} ",
        ("tests/sql/test_guard.py::test_a_pruned_mark_leaves_its_floor",),
    ),
    Mutant(
        "a-mark-from-another-server-passes",
        "storage_guards/sql/functions.py",
        "AND xact = pg_current_xact_id() AND age(xmin) <= 0;",
        "AND xact = pg_current_xact_id();",
        ("tests/sql/test_enforcement.py::test_a_mark_from_another_server",),
    ),
    Mutant(
        "a-pruned-mark-proves-that-nothing-landed",
        "storage_guards/sql/outcome.py",
        "return False if unknown.fence.number > settled.floor else None",
        "return False",
        ("tests/sql/test_outcome.py::test_it_is_never_wrong",),
    ),
    Mutant(
        "marks-above-the-floor-are-pruned",
        "storage_guards/sql/pruning.py",
        "f\"AND number <= (SELECT number FROM {table} WHERE resource = '{FLOOR}') LIMIT {BATCH}{skip})\"",
        'f"LIMIT {BATCH}{skip})"',
        ("tests/sql/test_prune.py::test_a_mark_that_rises_meanwhile_stays",),
    ),
    Mutant(
        "a-server-that-goes-has-refused-the-commit",
        "fencing/sql/errors.py",
        "(_CONNECTION_EXCEPTION, _SERVER_SHUTDOWN, _COMPLETION_UNKNOWN)",
        "(_CONNECTION_EXCEPTION, _COMPLETION_UNKNOWN)",
        ("tests/psycopg/test_guard.py::test_what_is_no_answer_to_a_commit",),
    ),
    # The SQLAlchemy guard
    Mutant(
        "a-lost-commit-is-told-as-refused",
        "storage_guards/sql/transaction.py",
        "isinstance(error, self.errors.kinds) and self._commit_was_refused(error):",
        "isinstance(error, self.errors.kinds):",
        ("tests/sql/test_outcomes.py::test_a_lost_commit",),
    ),
    Mutant(
        "another-transaction-is-committed-for-the-checked-one",
        "storage_guards/sqlalchemy/transaction.py",
        "if self.caller_block and self._admitted and not",
        "if self.caller_block and not self._admitted and not",
        ("tests/sql/test_transactions.py::test_a_transaction_that_the_block_ended_and_began_anew",),
    ),
    Mutant(
        "an-object-from-another-session-is-taken-for-current",
        "storage_guards/sqlalchemy/session.py",
        "session.expire(instance)\n        for each in related:",
        "for each in related:",
        ("tests/sql/test_sessions.py::test_an_object_from_another_session_is_read_again",),
    ),
    Mutant(
        "mariadb-raises-the-number-before-it-compares",
        "storage_guards/sqlalchemy/mysql.py",
        "token = IF(number < :number, :token, token),\n    number = GREATEST(number, :number)",
        "number = GREATEST(number, :number),\n    token = IF(number < :number, :token, token)",
        ("tests/sql/test_mariadb.py::test_the_statements_are_the_admission_rule",),
    ),
    # The psycopg guard
    Mutant(
        "the-last-words-of-a-broken-connection-are-an-answer",
        "storage_guards/psycopg/errors.py",
        "return not closed and isinstance(error, psycopg.Error)",
        "return isinstance(error, psycopg.Error)",
        ("tests/psycopg/test_guard.py::test_a_refused_commit",),
    ),
    Mutant(
        "a-connection-in-a-pipeline-is-lent-again",
        "storage_guards/psycopg/sources.py",
        "or not is_idle(connection):\n            hang_up(connection)",
        "or not is_idle(connection):\n            pass",
        ("tests/psycopg/test_left_open.py::test_a_block_ends_and_its_connection_is_not_lent_again",),
    ),
    Mutant(
        "the-commit-does-not-ask-which-transaction-it-ends",
        "storage_guards/psycopg/transaction.py",
        '[*([f"CLOSE {self._cursor}"] if self._cursor else []), sql.COMMIT]',
        "[sql.COMMIT]",
        ("tests/sql/test_transactions.py::test_a_transaction_that_the_block_ended_in_sql",),
    ),
    # The object-store guard
    Mutant(
        "a-refusal-of-a-put-is-believed",
        "storage_guards/objects/changes.py",
        "            refusal = error.refusal if isinstance(error, Lost) else None\n",
        "            refusal = error.refusal if isinstance(error, Lost) else None\n"
        "            if isinstance(error, Conflict):\n                return False\n",
        ("tests/objects/test_outcomes.py::test_one_lost_reply_is_found_out",),
    ),
    Mutant(
        "an-older-write-in-place-replaces-a-newer-one",
        "storage_guards/objects/in_place.py",
        "if last is not None and last.number >= fence.number and not last.is_of(fence):",
        "if last is not None and last.number == fence.number and not last.is_of(fence):",
        ("tests/objects/test_inplace.py::test_a_newer_write_in_the_object_stops_an_older_one_whose_check_is_old",),
    ),
    Mutant(
        "who-has-not-claimed-may-collect",
        "storage_guards/objects/collect.py",
        "_plan_find(scope, (yield from plan_check(scope, fence)))",
        "_plan_find(scope, (yield from plan_read(scope)))",
        ("tests/objects/test_traces.py::test_a_collector_has_claimed",),
    ),
    Mutant(
        "a-collector-deletes-its-own-uploads",
        "storage_guards/objects/collect.py",
        "rest[0][0].number < fence.number",
        "rest[0][0].number <= fence.number",
        ("tests/objects/test_collection_of_own.py::test_uploads_of_the_collectors_own_fence_stay",),
    ),
    Mutant(
        "what-a-restore-took-away-is-not-missed",
        "storage_guards/continuity.py",
        "if since < 0 or (since",
        "if since < -(2**63) or (since",
        ("tests/guards/test_continuity.py::test_a_claim_without_any_write_is_remembered_by_its_seq",),
    ),
    Mutant(
        "what-did-not-land-may-land-later",
        "storage_guards/objects/plans.py",
        "if answer is not False or not may_still_land(writes, error, seen.pointer):",
        "if answer is not False or seen.pointer is not None:",
        ("tests/objects/test_outcomes.py::test_a_write_that_did_not_land_never_will",),
    ),
    # What all guards share
    Mutant(
        "memory-is-changed-before-its-block-ends",
        "storage_guards/memory.py",
        "marks, data = dict(self._marks), dict(self._data)",
        "marks, data = dict(self._marks), self._data",
        ("tests/memory/test_guard.py::test_the_data_are_a_snapshot",),
    ),
    Mutant(
        "a-wait-outlasts-the-guards-own-bound",
        "storage_guards/bounds.py",
        'return min(own, max(_number(timeout, "timeout"), LEAST_SECONDS))',
        'return max(_number(timeout, "timeout"), LEAST_SECONDS)',
        ("tests/guards/test_bounds.py::test_a_callers_timeout_goes_before_the_lease",),
    ),
    Mutant(
        "another-task-is-taken-for-the-same",
        "storage_guards/nesting.py",
        "if same and each.owner == owner and each.marks == id(marks):",
        "if same and each.marks == id(marks):",
        ("tests/sql/test_nesting.py::test_tasks",),
    ),
    Mutant(
        "a-cancelled-commit-does-not-say-what-became-of-it",
        "storage_guards/sql/transaction.py",
        "raise interruption from meaning",
        "raise interruption",
        ("tests/sql/test_cancelled_commits.py::test_a_commit_that_is_refused_is_told",),
    ),
    # The interfaces of other libraries
    Mutant(
        "a-token-of-the-callers-own-is-granted-twice",
        "fencing/compat/redis_py.py",
        "if isinstance(token, FromLease):",
        "if token is not None:",
        ("tests/compat/test_redis_py_fence.py::test_a_token_of_the_callers_own_is_never_shared",),
    ),
    Mutant(
        "a-release-without-an-answer-forgets-the-token",
        "fencing/compat/redis_py_base.py",
        "            self.local.token, self.local.lease = held\n",
        "            pass\n",
        ("tests/compat/test_redis_py_lock.py::test_a_release_without_an_answer_can_be_repeated",),
    ),
    # Fences over HTTP
    Mutant(
        "a-fence-of-another-resource-is-taken",
        "storage_guards/http/header.py",
        "if fence.resource == resource:",
        "if fence.resource:",
        ("tests/http/test_middlewares.py::test_a_fence_of_another_resource_is_428",),
    ),
    Mutant(
        "two-fences-of-one-resource-are-parsed",
        "storage_guards/http/header.py",
        "if len({fence.resource for fence in found}) < len(found):",
        "if len(set(found)) < len(found):",
        ("tests/http/test_header.py::test_a_header_sent_twice_is_one_list",),
    ),
    Mutant(
        "a-header-has-no-bound",
        "storage_guards/http/header.py",
        "if (size := sum(map(len, lines))) > MAX_HEADER:",
        "if (size := len(lines)) > MAX_HEADER:",
        ("tests/http/test_header.py::test_a_long_header_is_refused_before_it_is_parsed",),
    ),
    Mutant(
        "a-service-answers-for-a-fence-of-its-own",
        "storage_guards/http/problems.py",
        " or error.fence not in scope_or_environ.get(SCOPE_KEY, ()):",
        ":",
        ("tests/http/test_middlewares.py::test_errors_of_the_service_itself_are_no_problems",),
    ),
    Mutant(
        "a-refusal-without-sense-is-believed",
        "storage_guards/http/problems.py",
        " or admitted < fence.number:",
        ":",
        ("tests/http/test_guard.py::test_a_refusal_that_makes_no_sense_is_not_believed",),
    ),
    Mutant(
        "a-second-response-is-begun",
        "storage_guards/http/asgi.py",
        "if started or refused is None:",
        "if refused is None:",
        ("tests/http/test_middlewares.py::TestInMemory::test_an_error_after_the_response_has_begun_propagates",),
    ),
    Mutant(
        "any-200-acknowledges-a-claim",
        "storage_guards/http/base.py",
        'if reply.status != 200 or json_object(reply.body).get("claimed") != numbers_of(fences):',
        "if reply.status != 200:",
        ("tests/http/test_guard.py::test_answers_that_are_not_ours",),
    ),
    Mutant(
        "a-lost-reply-takes-all-the-time",
        "storage_guards/http/base.py",
        "attempt_seconds=seconds / 2,",
        "attempt_seconds=seconds,",
        ("tests/http/test_guard.py::test_a_reply_that_never_comes_leaves_time_for_another_attempt",),
    ),
    Mutant(
        "a-claim-follows-redirects",
        "storage_guards/http/guard.py",
        "follow_redirects=False",
        "follow_redirects=True",
        ("tests/http/test_guard.py::test_redirects_are_refused",),
    ),
    Mutant(
        "a-reply-that-trickles-in-has-no-bound",
        "storage_guards/http/guard.py",
        "if time.monotonic() > deadline:",
        "if not deadline:",
        ("tests/http/test_guard.py::test_a_reply_that_trickles_in",),
    ),
    Mutant(
        "a-reply-of-an-async-guard-has-no-bound",
        "storage_guards/http/guard_async.py",
        "asyncio.timeout(call.timeout),",
        "asyncio.timeout(None),",
        ("tests/http/test_guard.py::test_a_reply_that_trickles_in",),
    ),
    Mutant(
        "a-fence-goes-to-other-clients",
        "storage_guards/http/fenced.py",
        "if hooks is self)",
        "if hooks)",
        ("tests/http/test_fenced.py::test_only_the_requests_of_the_block_carry_the_fence",),
    ),
    Mutant(
        "a-header-of-the-callers-own-is-replaced",
        "storage_guards/http/fenced.py",
        "request.headers.setdefault(HEADER, header_of(*holders))",
        "request.headers[HEADER] = header_of(*holders)",
        ("tests/http/test_fenced.py::test_nesting_and_headers_of_the_callers_own",),
    ),
    # Redis Cluster
    Mutant(
        "a-slot-that-has-moved-wakes-nobody",
        "fencing/redis/subscriptions.py",
        """            node.subscriptions.discard(found)
            found.waiters.wake_all()""",
        "            node.subscriptions.discard(found)",
        ("tests/redis/test_cluster.py::test_waiters_are_told_that_their_slot_has_moved",),
    ),
    Mutant(
        "asking-is-not-sent",
        "fencing/redis/topology.py",
        "return self.redirect(error, node), type(error) is AskError",
        "return self.redirect(error, node), False",
        ("tests/redis/test_cluster.py::test_waiters_are_told_that_their_slot_has_moved",),
    ),
    Mutant(
        "a-redirection-is-forgotten",
        "fencing/redis/topology.py",
        "            self.owners[error.slot_id] = node",
        "            pass",
        ("tests/redis/test_topology.py::test_moved_is_followed_and_kept",),
    ),
    Mutant(
        "a-node-that-failed-is-not-suspected",
        "fencing/redis/topology.py",
        "        self._suspects[node] = time.monotonic()\n        self.is_stale = True",
        "        pass",
        ("tests/redis/test_topology.py::test_a_node_that_fails_is_suspect",),
    ),
    Mutant(
        "leases-of-several-slots-are-renewed-in-one-call",
        "fencing/redis/plans_cluster.py",
        "found = groups.setdefault(slot, [[]])",
        "found = groups.setdefault(0, [[]])",
        ("tests/redis/test_cluster.py::test_several_locks_lie_in_several_slots",),
    ),
    Mutant(
        "a-cluster-without-a-script-is-never-told-it",
        "fencing/redis/client_cluster.py",
        "self._alone(calls[i], deadline) if knows_scripts else result",
        "result",
        ("tests/redis/test_cluster.py::test_several_locks_lie_in_several_slots",),
    ),
    Mutant(
        "a-channel-is-in-another-slot",
        "fencing/redis/lua/queue.lua",
        "is_sharded(listener) and 'SPUBLISH' or 'PUBLISH'",
        "'PUBLISH'",
        ("tests/redis/test_cluster.py::test_waiters_are_told_that_their_slot_has_moved",),
    ),
    Mutant(
        "a-subscription-at-another-node-waits-for-a-tick",
        "fencing/redis/listener_cluster.py",
        "                for node in registered:\n                    if node.outgoing:",
        "                for node in []:\n                    if node.outgoing:",
        ("tests/redis/test_cluster.py::test_a_subscription_at_another_node_is_sent_at_once",),
    ),
)
