# Every command of a developer and of CI. The first target that needs it builds the environment in
# .venv from the lock file.

VENV    := .venv
BIN     := $(VENV)/bin
LOCK    := requirements/dev.lock
STAMP   := $(VENV)/.installed
WORKERS ?= 2
SOAK    ?= 600
KILLS   ?= 50
FUZZ    ?= 600
OLD     := .venv-oldest
FLINK   := .venv-flink

# The first interpreter that is new enough. Override: `make PYTHON=/path/to/python`.
CANDIDATES := python3 python3.13 python3.12 python3.11 python
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON     ?= $(shell for p in $(CANDIDATES); do if $$p -c '$(NEW_ENOUGH)' >/dev/null 2>&1; then echo $$p; break; fi; done)

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install java browser demo lint format test check bench bench-spark bench-joins \
        bench-kafka bench-nexmark bench-streams bench-growth bench-scaling soak soak-streams fuzz torture \
        nightly oldest package lock clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

install: $(STAMP) ## build the environment in .venv

$(STAMP): pyproject.toml $(LOCK)
	@if [ -z "$(PYTHON)" ]; then \
	    echo "Tidegate needs Python 3.11 or newer; none was found under the names: $(CANDIDATES)." >&2; \
	    echo "Hint: install one (Debian, Ubuntu: apt install python3 python3-venv), or pass it: make PYTHON=/path/to/python3.11" >&2; \
	    exit 1; fi
	@if ! "$(PYTHON)" -c '$(NEW_ENOUGH)'; then \
	    echo "Tidegate needs Python 3.11 or newer; $(PYTHON) is $$("$(PYTHON)" --version 2>&1)." >&2; \
	    echo "Hint: pass a newer one: make PYTHON=/path/to/python3.11" >&2; \
	    exit 1; fi
	@if ! "$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null; then \
	    echo "$(PYTHON) cannot create a virtual environment: its modules venv and ensurepip are missing." >&2; \
	    echo "Hint: on Debian and Ubuntu: apt install python3-venv" >&2; \
	    exit 1; fi
	@echo "Building the environment in $(VENV) (once; about a minute) ..."
	@"$(PYTHON)" -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet -r $(LOCK)
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

# Spark needs Java 17 or newer: JAVA_HOME, else the first java on the PATH, else apt installs it
# where that needs no confirmation.
java: ## find Java 17 or newer for Spark, or install it with apt where possible
	@.ci/java

# Without Chromium the tests of pages are skipped.
browser: ## find Chromium for the tests of pages, or install it with apt where possible
	@.ci/browser

demo: $(STAMP) java ## run a click stream on local Spark: panes, corrections, late rows, a picture
	@$(BIN)/tidegate demo

lint: $(STAMP) ## check format, lint, types and import contracts
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache --no-logo

format: $(STAMP) ## format the code and apply safe lint fixes
	$(BIN)/ruff check --fix --quiet
	$(BIN)/ruff format

test: java browser lint ## run everything: lint, types, all tests and doctests
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup --hypothesis-profile=ci

check: lint ## run lint, types and the fast tests without Spark, for use between edits
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup -m "not slow and not spark"

bench: $(STAMP) ## measure the kernel against bare Arrow, as ratios, and what safety costs
	@$(BIN)/python -m bench kernel
	@$(BIN)/python -m bench safety --embedded

bench-spark: $(STAMP) java ## measure pipelines on Spark against Spark's own windows, as ratios
	@$(BIN)/python -m bench spark
	@$(BIN)/python -m bench safety

bench-joins: $(STAMP) java ## measure joins on Spark against Spark's own joins, as ratios
	@$(BIN)/python -m bench joins

bench-nexmark: $(STAMP) java ## measure Nexmark queries against Flink SQL, as ratios (downloads Flink once)
	@if [ -z "$$FLINK_PYTHON" ] && [ ! -e $(FLINK)/.installed ]; then \
	    echo "Installing apache-flink in $(FLINK) (once; some minutes) ..."; \
	    { "$(PYTHON)" -m venv $(FLINK) && $(FLINK)/bin/python -m pip install --quiet apache-flink \
	      && touch $(FLINK)/.installed; } \
	    || echo "Flink cannot be installed here: only Tidegate is measured." >&2; fi
	@$(BIN)/python -m bench nexmark

bench-kafka: $(STAMP) java ## measure the direct Kafka source against Spark's own, as ratios
	@PYTHONPATH=tests $(BIN)/python -m bench kafka $(if $(BROKERS),--brokers $(BROKERS))

bench-streams: $(STAMP) ## measure stream writers against plain inserts (Kafka: BROKERS=host:port)
	@$(BIN)/python -m bench streams $(if $(BROKERS),--brokers $(BROKERS))

bench-growth: $(STAMP) java ## measure how the cost grows with keys, skew, late rows and cores, and draw it
	@$(BIN)/python -m bench growth --plot docs/images/growth.svg

bench-scaling: $(STAMP) java ## fit the cost of a batch, and predict large deployments
	@$(BIN)/python -m bench scaling

soak: $(STAMP) ## run traffic with kills, then print memory under load, 10 minutes each (SOAK=seconds)
	$(BIN)/pytest -s tests/test_soak.py --soak-seconds=$(SOAK)
	PYTHONPATH=tests:src $(BIN)/python -m support.memory_soak --seconds $(SOAK)

soak-streams: $(STAMP) java ## kill writers, controllers, readers and a Spark query for 10 minutes (SOAK=seconds)
	$(BIN)/pytest -s tests/spark/test_stream_soak.py --soak-seconds=$(SOAK)

fuzz: $(STAMP) ## fuzz everything that decodes, guided by coverage, for 10 minutes (FUZZ=seconds)
	PYTHONPATH=tests:src $(BIN)/python -m fuzz --seconds $(FUZZ)

torture: $(STAMP) java ## kill a Spark pipeline 50 times and compare its panes with the truth (KILLS=number)
	$(BIN)/pytest -s tests/spark/test_torture.py --torture-kills=$(KILLS)

nightly: java browser lint ## run the suite with thousands of examples per property, then soak, torture and fuzz (hours)
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup --hypothesis-profile=nightly
	$(MAKE) soak soak-streams torture oldest package
	$(MAKE) fuzz FUZZ=7200

# Tests that read with direct sources need Spark 4.2 and are skipped or deselected. PySpark 4.1
# itself leaves sockets open.
OLDEST  := pipelines arrow_batches metrics restart_spark joins_spark sinks_in_queries bad_data \
           state_command cluster run faults kafka_input

oldest: $(OLD)/.installed java ## test pipelines on the oldest supported Spark, in its own environment
	$(OLD)/bin/pytest -n $(WORKERS) --dist loadgroup -W ignore::ResourceWarning \
	    -W ignore::pytest.PytestUnraisableExceptionWarning -k "not direct" \
	    $(OLDEST:%=tests/spark/test_%.py)

$(OLD)/.installed: $(STAMP)
	@"$(PYTHON)" -m venv $(OLD)
	@$(OLD)/bin/python -m pip install --quiet -r $(LOCK)
	@$(OLD)/bin/python -m pip install --quiet "pyspark==4.1.*"
	@$(OLD)/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

package: $(STAMP) ## build the wheel, check it, and smoke-test it in an empty environment
	@$(BIN)/python .ci/package.py

lock: ## update the lock file from pyproject.toml (needs uv)
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --upgrade --quiet \
	    --no-header --no-annotate --no-emit-index-url --generate-hashes --output-file $(LOCK)

clean: ## remove caches and build output
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests bench conformance -type d -name __pycache__ -prune -exec rm -rf {} +

distclean: clean ## remove the environments too
	rm -rf $(VENV) $(OLD) $(FLINK)
