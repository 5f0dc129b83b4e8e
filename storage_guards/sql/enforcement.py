"""SQL that makes PostgreSQL itself refuse writes that have not passed the check. No I/O; no driver is known here.

The rule stays in the mark's row: a check changes that row, and locks it until the transaction ends. Besides:

- **Functions** have the guard's statements as their bodies, and run with their owner's rights (``sql/functions.py``).
  The application's role can change a mark only through them, so only a check sets the mark's ``xact``.
- **A row trigger** on the enforced table demands that the mark of the row's resource has ``xact`` = the current
  transaction. It runs AFTER the row was stored: no other trigger changes the row any more, and generated columns are
  there. It is STABLE: it sees the database as the writing statement does. So a check *inside* that statement does not
  count: the statement's reads are older than the wait for the mark. It is ENABLE ALWAYS: ``session_replication_role``
  does not switch it off.
- **A statement trigger** refuses TRUNCATE.

The server resolves, quotes and looks up all names. Every function has a search_path of its own.
"""

from __future__ import annotations

from storage_guards.sql.functions import CREATE_FUNCTIONS
from storage_guards.sql.outcome import TABLE
from storage_guards.sql.schema import quoted
from storage_guards.sql.statements import CREATE_LOCK
from storage_guards.sql.table import DONE, NAMES_OF_FUNCTIONS, VERSION, VERSION_MARK
from storage_guards.sql.verify import forgers

_ROW_TRIGGER = "fencing_enforced"
_TRUNCATE_TRIGGER = "fencing_enforced_truncate"

# Each row is a finding: the problem, and the remedy.
_REFUSALS = """
    SELECT 'is a superuser, or can become one', 'Let the application connect as a role of its own.'
        FROM pg_roles WHERE rolsuper AND pg_has_role(app, oid, 'MEMBER')
    UNION ALL
    SELECT format('is a member of %s, which can change everything', rolname), 'Revoke that.' FROM pg_roles
        WHERE rolname IN ('pg_execute_server_program', 'pg_write_server_files') AND pg_has_role(app, oid, 'MEMBER')
    UNION ALL
    SELECT 'has CREATEROLE, with which it can make itself a member of any role', 'ALTER ROLE ... NOCREATEROLE.'
        FROM pg_roles WHERE rolname = app AND rolcreaterole AND current_setting('server_version_num')::int < 160000
    UNION ALL
    SELECT format('owns the table %s, or is a member of its owner, and can disable its triggers', oid::regclass),
        'Let another role own it (ALTER TABLE ... OWNER TO), which runs the migrations.'
        FROM pg_class WHERE oid = ANY (tables || marks_oid) AND pg_has_role(app, relowner, 'MEMBER')
    UNION ALL
    SELECT format('owns the schema %I, or is a member of its owner, and can drop what is in it', nspname),
        'Let another role own it (ALTER SCHEMA ... OWNER TO).' FROM pg_namespace
        WHERE oid IN (SELECT relnamespace FROM pg_class WHERE oid = ANY (tables || marks_oid))
        AND pg_has_role(app, nspowner, 'MEMBER')
    UNION ALL
    SELECT format('owns the function %s, which the check relies on, or is a member of its owner', oid::regprocedure),
        'Let another role own it (ALTER FUNCTION ... OWNER TO), or drop it.' FROM pg_proc
        WHERE oid = ANY (functions) AND pg_has_role(app, proowner, 'MEMBER')
    UNION ALL
    SELECT format('has the privilege TRIGGER on %s', oid::regclass), 'REVOKE TRIGGER ON ... FROM ...'
        FROM pg_class WHERE oid = ANY (tables || marks_oid) AND has_table_privilege(app, oid, 'TRIGGER')
    UNION ALL
    SELECT format('may still change %s itself, by a predefined role or a grant that is not yours', marks),
        'Revoke it (pg_write_all_data, for instance).'
        FROM pg_roles WHERE pg_has_role(app, oid, 'MEMBER')
        AND (has_table_privilege(oid, marks_oid, 'INSERT, UPDATE, DELETE, TRUNCATE')
            OR has_any_column_privilege(oid, marks_oid, 'INSERT, UPDATE'))
"""

# Those of a newer version keep rules that this one does not know.
_REFUSE_NEWER_FUNCTIONS = f"""SELECT max(substring(prosrc FROM '{VERSION_MARK}([0-9]+)')::integer) INTO version
        FROM pg_proc WHERE proname IN ({NAMES_OF_FUNCTIONS}) AND pronamespace = beside;
    IF version::integer > {VERSION} THEN
        RAISE EXCEPTION 'the functions that enforce are of version %, and this library knows {VERSION}: upgrade this '
            'library', version;
    END IF;"""

_ENFORCE = f"""
-- Makes {{table}} refuse every write of a transaction that has not passed the check for the row's resource.
-- Run it as the owner of that table and of {TABLE}. It may be run again.
DO ${{tag}}$
DECLARE
    target regclass := to_regclass({{table_literal}});
    app name := {{role}};
    expression text := {{resource}};
    path text;
    marks_oid oid := to_regclass({{marks_literal}});
    marks text;
    home name;
    bare name;
    tables oid[];
    functions oid[];
    one oid;
    made name;
    grantee text;
    wrong text;
    cure text;
    version text;
    beside oid;
BEGIN
    PERFORM pg_advisory_xact_lock({CREATE_LOCK});
    IF marks_oid IS NULL THEN
        RAISE EXCEPTION 'the table % is missing: call create_tables() of a guard, as its owner', {{marks_literal}};
    ELSIF NOT {{is_named}} AND 1 < (
        SELECT count(*) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
        WHERE relname = '{TABLE}' AND relkind IN ('r', 'p', 'v', 'm', 'f') AND nspname !~ '^pg_(temp|toast)'
    ) THEN
        RAISE EXCEPTION 'there are several mark tables {TABLE} here: name the right one with schema= at every guard';
    ELSIF target IS NULL THEN
        RAISE EXCEPTION 'there is no table %', {{table_literal}};
    ELSIF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = app) THEN
        RAISE EXCEPTION 'there is no role %', quote_ident(app);
    ELSIF NOT EXISTS (SELECT FROM pg_class WHERE oid = target AND relkind IN ('r', 'p') AND relpersistence <> 't') THEN
        RAISE EXCEPTION '% is neither an ordinary table nor a partitioned one', target;
    ELSIF target = marks_oid THEN
        RAISE EXCEPTION 'the check itself writes {TABLE}, so it cannot be enforced';
    END IF;
    SELECT pg_get_expr(adbin, adrelid) INTO version FROM pg_attribute
        LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE attrelid = marks_oid AND attname = 'version' AND NOT attisdropped;
    IF version IS NULL THEN
        RAISE EXCEPTION 'the table {TABLE} is of an earlier program: bring it up to date first, as create_tables() '
            'says';
    ELSIF version <> '{VERSION}' THEN
        RAISE EXCEPTION 'the table {TABLE} is of version %, and this library knows {VERSION}: upgrade this library',
            version;
    END IF;
    SELECT relnamespace INTO beside FROM pg_class WHERE oid = marks_oid;
    {_REFUSE_NEWER_FUNCTIONS}
    SELECT nspname, format('%I.%I', nspname, relname) INTO home, marks
        FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE pg_class.oid = marks_oid;
    SELECT relname INTO bare FROM pg_class WHERE oid = target;
    SELECT array_agg(relid) INTO tables FROM (
        SELECT target::oid AS relid UNION SELECT relid FROM pg_partition_tree(target)
        UNION SELECT relid FROM pg_partition_ancestors(target)
    ) AS tree;

    -- A table that only inherits from another does not have its triggers.
    SELECT inhrelid INTO one FROM pg_inherits JOIN pg_class ON oid = inhrelid WHERE inhparent = target
        AND NOT relispartition AND NOT EXISTS (
            SELECT FROM pg_trigger WHERE tgrelid = inhrelid AND tgname = '{_ROW_TRIGGER}'
        ) LIMIT 1;
    IF one IS NOT NULL THEN
        RAISE EXCEPTION '% inherits from %, and its rows would not be checked: enforce it first', one::regclass, target;
    END IF;

    -- The resource of a row must not depend on the role or the time: PostgreSQL demands the same of an index. It must
    -- not depend on virtual generated columns either, which are NULL in triggers.
    EXECUTE format('CREATE TEMPORARY TABLE %I (LIKE %s INCLUDING GENERATED) ON COMMIT DROP', bare, target);
    path := current_setting('search_path');
    BEGIN
        PERFORM set_config('search_path', 'pg_catalog, pg_temp', true);  -- as the trigger will have it
        EXECUTE format('CREATE INDEX fencing_resource ON pg_temp.%I (((
%s
)::text))', bare, expression);
        PERFORM set_config('search_path', path, true);
    EXCEPTION WHEN OTHERS THEN
        RAISE EXCEPTION 'the expression % does not give the resource of a row of %: %. It is made of columns and '
            'immutable functions, those outside pg_catalog with their schema', expression, target, SQLERRM;
    END;
    SELECT array_agg(DISTINCT function) INTO functions FROM pg_depend, LATERAL (
        SELECT refobjid AS function WHERE refclassid = 'pg_proc'::regclass
        UNION ALL SELECT oprcode FROM pg_operator WHERE oid = refobjid AND refclassid = 'pg_operator'::regclass
    ) AS used WHERE classid = 'pg_class'::regclass AND objid = 'pg_temp.fencing_resource'::regclass;
    EXECUTE format('DROP TABLE pg_temp.%I', bare);

    -- First the functions, then the privileges that they replace.
{{functions}}
    SELECT functions || array_agg(oid) INTO functions FROM pg_proc
        WHERE pronamespace = quote_ident(home)::regnamespace AND proname IN ({{names}});
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', home, app);
    EXECUTE format('GRANT SELECT ON TABLE %s TO %I', marks, app);
    IF to_regclass(format('%I.{DONE}', home)) IS NOT NULL THEN
        EXECUTE format('GRANT SELECT, INSERT ON TABLE %I.{DONE} TO %I', home, app);
    END IF;
    FOR grantee IN
        SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM pg_class, aclexplode(relacl) AS a WHERE oid = marks_oid AND a.grantee <> relowner
        UNION SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END
        FROM pg_attribute, aclexplode(attacl) AS a WHERE attrelid = marks_oid
    LOOP
        EXECUTE format('REVOKE INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER ON %s FROM %s', marks, grantee);
    END LOOP;

    FOR wrong, cure IN {_REFUSALS}
    LOOP
        RAISE EXCEPTION '% cannot be enforced against the role %, which %. %', target, quote_ident(app), wrong, cure;
    END LOOP;

    -- Not this role's matter, and perhaps an operator's wish; but it must be known.
    FOR wrong IN {{forgers}}
    LOOP
        RAISE WARNING 'fencing: the role % may change % directly, so it can forge a mark and pass the check: revoke '
            'that (pg_write_all_data, for instance)', quote_ident(wrong), marks;
    END LOOP;

    {{drop}}
    made := 'fencing_enforced_' || replace(gen_random_uuid()::text, '-', '');
    EXECUTE format('CREATE FUNCTION %I.%I() RETURNS trigger LANGUAGE plpgsql STABLE SECURITY INVOKER '
        'SET search_path = pg_catalog, pg_temp AS %L', home, made, format($body$
#variable_conflict use_column
DECLARE
    fencing_old text;
    fencing_new text;
BEGIN
    IF TG_OP <> 'INSERT' THEN
        SELECT (
%1$s
        )::text INTO fencing_old FROM (SELECT OLD.*) AS %2$I;
        PERFORM %3$I.fencing_require(fencing_old, TG_RELID);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        SELECT (
%1$s
        )::text INTO fencing_new FROM (SELECT NEW.*) AS %2$I;
        IF TG_OP = 'INSERT' OR fencing_new IS DISTINCT FROM fencing_old THEN
            PERFORM %3$I.fencing_require(fencing_new, TG_RELID);
        END IF;
    END IF;
    RETURN NULL;
END
$body$, expression, bare, home));
    EXECUTE format('CREATE TRIGGER {_ROW_TRIGGER} AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW '
        'EXECUTE FUNCTION %I.%I()', target, home, made);
    EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER {_ROW_TRIGGER}', target);
    FOR one IN SELECT target UNION SELECT relid FROM pg_partition_tree(target) LOOP
        EXECUTE format('CREATE TRIGGER {_TRUNCATE_TRIGGER} BEFORE TRUNCATE ON %s FOR EACH STATEMENT '
            'EXECUTE FUNCTION %I.fencing_refuse_truncate()', one::regclass, home);
        EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER {_TRUNCATE_TRIGGER}', one::regclass);
    END LOOP;
END
${{tag}}$"""

_DROP = f"""FOR one IN SELECT target UNION SELECT relid FROM pg_partition_tree(target) LOOP
        EXECUTE format('DROP TRIGGER IF EXISTS {_TRUNCATE_TRIGGER} ON %s', one::regclass);
    END LOOP;
    SELECT tgfoid INTO one FROM pg_trigger WHERE tgrelid = target AND tgname = '{_ROW_TRIGGER}';
    IF one IS NOT NULL THEN
        EXECUTE format('DROP TRIGGER {_ROW_TRIGGER} ON %s', target);
        EXECUTE format('DROP FUNCTION %s', one::regprocedure);
    END IF;"""

_UNENFORCE = """
-- Lets every role with the privilege write {table} again. The marks and the functions stay.
DO ${tag}$
DECLARE
    target regclass := to_regclass({table_literal});
    one oid;
    version text;
    beside oid;
BEGIN
    IF target IS NULL THEN
        RAISE EXCEPTION 'there is no table %', {table_literal};
    END IF;
    SELECT pronamespace INTO beside FROM pg_trigger JOIN pg_proc ON pg_proc.oid = tgfoid
        WHERE tgrelid = target AND tgname = '{trigger}';
    {newer}
    {drop}
END
${tag}$"""


def enforce(table: str, resource: str, role: str, schema: str | None = None) -> str:
    """Return one statement that makes the database refuse unchecked writes of ``table``, or says why it cannot.

    Args:
        table: as in SQL: ``orders``, ``shop.orders``, ``"Orders"``.
        resource: an expression over the table's columns that gives the name of the row's resource: ``'orders:' || id``.
        role: the exact name of the application's role.
        schema: of the mark table. None: there is only one.
    """
    marks = TABLE if schema is None else f"{quoted(schema)}.{TABLE}"
    return _fill(
        _ENFORCE,
        table,
        resource=_literal("resource", resource),
        role=_literal("role", role),
        functions=CREATE_FUNCTIONS,
        names=NAMES_OF_FUNCTIONS,
        marks_literal=_literal("schema", marks),
        is_named="false" if schema is None else "true",
        forgers=forgers("marks_oid", "(SELECT relowner FROM pg_class WHERE oid = marks_oid)"),
    )


def question_for_forgers(schema: str | None) -> str:
    """Return the query for the roles, neither owner nor superuser, that may change the mark table directly."""
    table = f"to_regclass('{TABLE if schema is None else f'{quoted(schema)}.{TABLE}'}')"
    return forgers(table, f"(SELECT relowner FROM pg_class WHERE oid = {table})")


def unenforce(table: str) -> str:
    """Return one statement that undoes :func:`enforce` on ``table``."""
    return _fill(_UNENFORCE, table, newer=_REFUSE_NEWER_FUNCTIONS, trigger=_ROW_TRIGGER)


def question_whether_enforced(table: str) -> str:
    """Return the query whether a table is enforced. It needs no privilege."""
    literal = _literal("table", table)
    return (
        f"SELECT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = to_regclass({literal}) AND tgname = '{_ROW_TRIGGER}')"
    )


def _fill(template: str, table: str, **values: str) -> str:
    literal = _literal("table", table)
    tag = "fencing"
    while f"${tag}$" in "".join([literal, *values.values()]):
        tag += "_"
    one_line = " ".join(table.split())
    return template.format(table=one_line, table_literal=literal, drop=_DROP, tag=tag, **values).lstrip()


def _literal(name: str, text: object) -> str:
    """Return the text as an SQL literal that does not depend on the session's settings."""
    if not isinstance(text, str):
        raise TypeError(f"{name} is a str, not {type(text).__name__}")
    if not text.strip() or "\0" in text:
        raise ValueError(f"{name} is empty, or has a NUL in it; pass a text")
    return "E'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
