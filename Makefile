# Everything a developer or CI runs. The environment is built in .venv, from the lock file, when a target first needs it.

VENV    := .venv
BIN     := $(VENV)/bin
LOCK    := requirements/dev.lock
STAMP   := $(VENV)/.installed
WORKERS ?= 2
SOAK    ?= 600
KILLS   ?= 50
OLD     := .venv-oldest

# The first interpreter that is new enough; `make PYTHON=/path/to/python` names one.
CANDIDATES := python3 python3.13 python3.12 python3.11 python
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON     ?= $(shell for p in $(CANDIDATES); do if $$p -c '$(NEW_ENOUGH)' >/dev/null 2>&1; then echo $$p; break; fi; done)

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install java demo test check lint bench bench-spark bench-joins bench-streams soak soak-streams torture oldest lock clean distclean

help: ## say what the targets do
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(STAMP) ## build the environment in .venv

$(STAMP): pyproject.toml $(LOCK)
	@if [ -z "$(PYTHON)" ]; then \
	    echo "Tidegate needs Python 3.11 or newer, and none was found under the names: $(CANDIDATES)." >&2; \
	    echo "Hint: install one (Debian, Ubuntu: apt install python3 python3-venv), or name one: make PYTHON=/path/to/python3.11" >&2; \
	    exit 1; fi
	@if ! "$(PYTHON)" -c '$(NEW_ENOUGH)'; then \
	    echo "Tidegate needs Python 3.11 or newer; $(PYTHON) is $$("$(PYTHON)" --version 2>&1)." >&2; \
	    echo "Hint: name a newer one: make PYTHON=/path/to/python3.11" >&2; \
	    exit 1; fi
	@if ! "$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null; then \
	    echo "$(PYTHON) cannot make a virtual environment: its modules venv and ensurepip are missing." >&2; \
	    echo "Hint: on Debian and Ubuntu: apt install python3-venv" >&2; \
	    exit 1; fi
	@echo "Building the environment in $(VENV) (once; about a minute) ..."
	@"$(PYTHON)" -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet -r $(LOCK)
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

# Spark needs Java 17 or newer: that of JAVA_HOME, else the first on the PATH; where there is none it is installed, if that can be done unasked.
java: ## find Java 17 or newer for Spark, or install it where apt can
	@.ci/java

demo: $(STAMP) java ## a click stream on local Spark: panes, corrections, late rows, and a picture
	@$(BIN)/tidegate demo

lint: $(STAMP) ## ruff, mypy and the import contracts
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

test: java lint ## everything: lint, types, and all tests with their doctests
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup --hypothesis-profile=ci

check: lint ## the same without the slow tests and without Spark, for use between edits
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup -m "not slow and not spark"

bench: $(STAMP) ## measure the kernel against bare Arrow, as ratios
	@$(BIN)/tidegate bench kernel

bench-spark: $(STAMP) java ## measure pipelines on Spark against Spark's own windows, as ratios
	@$(BIN)/tidegate bench spark

bench-joins: $(STAMP) java ## measure joins on Spark against Spark's own joins, as ratios
	@$(BIN)/tidegate bench joins

bench-streams: $(STAMP) ## measure writing to streams against plain inserts (and a plain producer: BROKERS=host:port)
	@$(BIN)/tidegate bench streams $(if $(BROKERS),--brokers $(BROKERS))

soak: $(STAMP) ## random traffic with kills for 10 minutes (SOAK=seconds)
	$(BIN)/pytest -s tests/test_soak.py --soak-seconds=$(SOAK)

soak-streams: $(STAMP) java ## writers, controllers, readers and a Spark query, killed for 10 minutes (SOAK=seconds)
	$(BIN)/pytest -s tests/spark/test_stream_soak.py --soak-seconds=$(SOAK)

torture: $(STAMP) java ## kill a pipeline on Spark 50 times and compare its panes with the truth (KILLS=number)
	$(BIN)/pytest -s tests/spark/test_torture.py --torture-kills=$(KILLS)

# What reads with direct sources, which need Spark 4.2, is skipped or left out. PySpark 4.1 itself leaves sockets open.
OLDEST  := pipelines passing metrics restart_spark joins_spark sinks_in_queries bad_data state_command cluster run faults kafka_input

oldest: $(OLD)/.installed java ## pipelines on the oldest Spark that is supported, in an environment of its own
	$(OLD)/bin/pytest -n $(WORKERS) --dist loadgroup -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning -k "not direct" \
	    $(OLDEST:%=tests/spark/test_%.py)

$(OLD)/.installed: $(STAMP)
	@"$(PYTHON)" -m venv $(OLD)
	@$(OLD)/bin/python -m pip install --quiet -r $(LOCK)
	@$(OLD)/bin/python -m pip install --quiet "pyspark==4.1.*"
	@$(OLD)/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

lock: ## renew the lock file from pyproject.toml (needs uv)
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --upgrade --quiet \
	    --no-header --no-annotate --no-emit-index-url --output-file $(LOCK)

clean: ## remove caches and build output
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## remove the environment too
	rm -rf $(VENV) $(OLD)
