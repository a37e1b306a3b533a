# Two commands matter: `make demo` and `make test`. Both set everything up first.
.DEFAULT_GOAL := help
.PHONY: help setup secrets pins object-store lock fmt check unit proof browser screenshots postgres pythons alertmanager prometheus strace docker-engine test from_apt audited audit release yarn supervision containers environments chaos bench contests demo up down clean

PYTHON ?= python3.11
BIN := .venv/bin
IVY := $(BIN)/../lib/python3.11/site-packages/pyspark/jars/ivy-*.jar
# Airflow and great-expectations start four times faster from compiled bytecode, whatever the machine's default is.
export PYTHONDONTWRITEBYTECODE :=

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: .venv/.ready .venv/.compiled .jars/.ready .jars/broker.jsa .jars/classes.jsa ## install everything; a second run takes a second

.venv/.ready: requirements.lock pyproject.toml setup.py
	@command -v $(PYTHON) >/dev/null || { echo "tidemark needs Python 3.11: '$(PYTHON)' was not found (or set PYTHON=...)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "tidemark needs Python 3.11: $(PYTHON) is $$($(PYTHON) -V)"; exit 1; }
	@echo "installing Python packages into .venv (a download of 0.9 GB, about a minute)"
	@$(PYTHON) -m venv .venv
	@sed -n '/^uv==/,/# via/p' requirements.lock | $(BIN)/pip -q --disable-pip-version-check install --require-hashes -r /dev/stdin
	@$(BIN)/uv pip install -q --python $(BIN)/python --require-hashes -r requirements.lock
	@rm -rf jobs/tidemark.egg-info
	@$(BIN)/uv pip install -q --python $(BIN)/python --no-deps -e .
	@touch $@

# Beside downloads in `make test`. Some packages have files that are not valid Python 3.
.venv/.compiled: .venv/.ready
	@$(BIN)/python -m compileall -q -j 2 .venv/lib >.venv/compiled.log || true
	@touch $@

.jars/.ready: docker/ivy.xml docker/jars.sha256 .venv/.ready
	@command -v java >/dev/null || { echo "tidemark needs Java 17 or 21: 'java' was not found"; exit 1; }
	@java -version 2>&1 | grep -qE 'version "(17|21)[."]' || { echo "tidemark needs Java 17 or 21: this is $$(java -version 2>&1 | head -1)"; exit 1; }
	@echo "resolving JVM jars into .jars (a download of 0.1 GB, about half a minute)"
	@rm -rf .jars && mkdir -p .jars
	@java -jar $(IVY) -ivy docker/ivy.xml -cache .jars/cache -retrieve '.jars/[conf]/[artifact]-[revision].[ext]' 2>&1 \
		| tee .jars/ivy.log | grep --line-buffered '^downloading' | sed -u 's|.*/||; s| .*||; s|^|  |'
	@cd .jars && sha256sum --check --strict --quiet ../docker/jars.sha256 || { tail -20 ivy.log; exit 1; }
	@rm -rf .jars/cache && touch $@

# It writes the archive when it ends, which is given time.
BROKER_ONCE := from pathlib import Path; from tidemark.control import process; from tidemark.local import broker; \
	home = Path(".jars/once"); broker.create_topics(broker.start(home).address, {"once": 1}); \
	process.stop(home, broker.NAME, grace_s=120)
.jars/broker.jsa: .jars/.ready
	@echo "archiving the broker's classes, from which it starts 2 s of CPU sooner (ten seconds)"
	@rm -rf $@ .jars/once && JAVA_TOOL_OPTIONS=-XX:ArchiveClassesAtExit=$(CURDIR)/.jars/once.jsa \
		$(BIN)/python -c '$(BROKER_ONCE)' >.jars/broker.log 2>&1 && mv .jars/once.jsa $@ \
		|| echo "no archive was made, and brokers start without: see .jars/broker.log"
	@rm -rf .jars/once

.jars/classes.jsa: .jars/.ready docker/archive_classes.py
	@echo "archiving Spark's classes, from which every JVM starts 5 s of CPU sooner (half a minute)"
	@rm -f $@ && $(BIN)/python docker/archive_classes.py $(CURDIR)/$@ >.jars/classes.log 2>&1 && [ -f $@ ] && touch $@ \
		|| echo "no archive was made, and JVMs start without: see .jars/classes.log"
	@echo "set up"

secrets: ## make the passwords and keys of docker/compose.yaml, once
	@python3 docker/make_secrets.py docker/secrets

pins: ## write the digests of docker/'s images into docker/.env; asks their registry
	@python3 docker/pin_images.py docker/.env

object-store: setup .jars/s3/.ready .venv-s3/.ready ## what Spark needs for s3a://, and a server for tests/objectstore

# After the archives: what makes them refuses jars that are half there.
.jars/s3/.ready: docker/ivy-s3.xml docker/jars-s3.sha256 .jars/.ready | .jars/broker.jsa .jars/classes.jsa
	@echo "resolving JVM jars for s3a:// into .jars/s3 (under a minute)"
	@rm -rf .jars/s3 && mkdir -p .jars/s3
	@java -jar $(IVY) -ivy docker/ivy-s3.xml -cache .jars/cache -retrieve '.jars/[conf]/[artifact]-[revision].[ext]' >.jars/s3/ivy.log 2>&1 \
		|| { tail -20 .jars/s3/ivy.log; exit 1; }
	@cd .jars && sha256sum --check --strict --quiet ../docker/jars-s3.sha256
	@rm -rf .jars/cache && touch $@

yarn: setup .jars-yarn/.ready ## Hadoop's servers of YARN for tests/cluster/test_yarn.py

.jars-yarn/.ready: tests/cluster/ivy-yarn.xml tests/cluster/jars-yarn.sha256 .venv/.ready
	@echo "resolving JVM jars of YARN into .jars-yarn (under a minute)"
	@rm -rf .jars-yarn && mkdir -p .jars-yarn
	@java -jar $(IVY) -ivy tests/cluster/ivy-yarn.xml -cache .jars-yarn/cache -retrieve '.jars-yarn/[artifact]-[revision].[ext]' \
		>.jars-yarn/ivy.log 2>&1 || { tail -20 .jars-yarn/ivy.log; exit 1; }
	@cd .jars-yarn && sha256sum --check --strict --quiet ../tests/cluster/jars-yarn.sha256
	@rm -rf .jars-yarn/cache && touch $@

.venv-s3/.ready: tests/objectstore/requirements.lock .venv/.ready
	@echo "installing an S3-compatible server into .venv-s3 (under a minute)"
	@$(PYTHON) -m venv .venv-s3
	@$(BIN)/uv pip install -q --python .venv-s3/bin/python --require-hashes -r tests/objectstore/requirements.lock
	@touch $@

lock: ## resolve requirements.txt into requirements.lock, and those of tests/objectstore and tests/pods
	$(BIN)/uv pip compile -q requirements.txt --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command "make lock" -o requirements.lock
	$(BIN)/uv pip compile -q tests/objectstore/requirements.txt --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command "make lock" -o tests/objectstore/requirements.lock
	$(BIN)/uv pip compile -q --no-deps tests/pods/requirements.txt --python-version 3.11 --generate-hashes --no-emit-index-url \
		--custom-compile-command "make lock" -o tests/pods/requirements.lock

fmt: ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: .venv/.ready ## format, lint, spelling and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/codespell
	$(BIN)/mypy jobs plugins

unit: .venv/.ready ## the rules and the kernels, in half a minute
	$(PYTEST) -m "not long and not slow" tests/unit tests/vectors tests/reference jobs/tidemark/semantics jobs/tidemark/model

proof: setup ## every property with 2,000 examples instead of 25 (100 through the engine), the long cases of tests/delta, and faults of real streams
	$(BIN)/pytest -q tests/unit tests/vectors tests/delta/test_account_lives.py --hypothesis-profile=proof
	$(BIN)/pytest -q -m long tests/delta tests/unit tests/airflow/test_planted_faults.py

browser: ## Chromium for tests/browser, by apt where none is installed; without it they are skipped
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	command -v apt-get >/dev/null && AS=$$([ $$(id -u) = 0 ] || echo "sudo -n") && echo "installing Chromium (under a minute)" \
		&& $$AS apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$AS apt-get install -qq -y --no-install-recommends chromium >/dev/null \
		|| echo "no Chromium, and apt cannot install it: tests/browser will be skipped"

screenshots: browser ## replaces the pictures of pages in docs/pages
	TIDEMARK_SCREENSHOTS=1 $(BIN)/pytest -q -m "long or not long" tests/browser/test_airflow_page.py -k nothing_is_cut

postgres: ## PostgreSQL for one test of tests/airflow, by apt where none is installed; without it that is skipped
	@ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 && exit 0; \
	command -v apt-get >/dev/null && AS=$$([ $$(id -u) = 0 ] || echo "sudo -n") && echo "installing PostgreSQL (under a minute)" \
		&& $$AS apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$AS apt-get install -qq -y --no-install-recommends postgresql >/dev/null \
		|| echo "no PostgreSQL, and apt cannot install it: one test of tests/airflow will be skipped"

pythons: setup ## Python 3.12 and 3.13 for tests/packages, by uv where none is installed; without them these cases are not run
	@for version in 3.12 3.13; do \
		ls $$HOME/.pyenv/versions/$$version.*/bin/python >/dev/null 2>&1 || $(BIN)/uv python find -q $$version >/dev/null 2>&1 \
			|| $(BIN)/uv python install -q $$version 2>/dev/null || echo "no Python $$version, and uv cannot install it: its cases will not be run"; \
	done

alertmanager: ## Alertmanager for one test of tests/airflow, by apt where none is installed; without it that is skipped
	@command -v prometheus-alertmanager >/dev/null && exit 0; \
	command -v apt-get >/dev/null && AS=$$([ $$(id -u) = 0 ] || echo "sudo -n") && echo "installing Alertmanager (under a minute)" \
		&& $$AS apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$AS apt-get install -qq -y --no-install-recommends \
		prometheus-alertmanager >/dev/null || echo "no Alertmanager, and apt cannot install it: one test of tests/airflow will be skipped"

prometheus: ## Prometheus and promtool for tests/delta/test_metrics.py, unpacked into .venv; without them its cases are skipped
	@[ -x .venv/prometheus/usr/bin/promtool ] && exit 0; mkdir -p .venv/prometheus && cd .venv/prometheus; \
	command -v apt-get >/dev/null && AS=$$([ $$(id -u) = 0 ] || echo "sudo -n") && echo "unpacking Prometheus (under a minute)" \
		&& $$AS apt-get update -qq && apt-get download -qq -o APT::Sandbox::User=root prometheus && dpkg -x prometheus_*.deb . && rm prometheus_*.deb \
		|| echo "no Prometheus, and apt cannot download it: some tests of metrics will be skipped"

strace: ## strace for tests/delta/test_power_loss.py, by apt where none is installed; without it that is skipped
	@command -v strace >/dev/null && exit 0; \
	command -v apt-get >/dev/null && AS=$$([ $$(id -u) = 0 ] || echo "sudo -n") && echo "installing strace (a few seconds)" \
		&& $$AS apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$AS apt-get install -qq -y --no-install-recommends strace >/dev/null \
		|| echo "no strace, and apt cannot install it: tests/delta/test_power_loss.py will be skipped"

COMPOSE := github.com/docker/compose/v2
COMPOSE_VERSION := v2.40.3
docker-engine: .venv/.ready ## Docker Engine and Compose for tests/containers, by apt and Go where they are missing; without them these are skipped
	@docker version >/dev/null 2>&1 || { command -v dockerd && command -v debootstrap; } >/dev/null || { \
	command -v apt-get >/dev/null && AS=$$([ $$(id -u) = 0 ] || echo "sudo -n") && echo "installing Docker Engine (under a minute)" \
		&& $$AS apt-get update -qq && DEBIAN_FRONTEND=noninteractive $$AS apt-get install -qq -y --no-install-recommends \
		docker.io debootstrap >/dev/null || echo "no Docker Engine, and apt cannot install it: tests/containers will be skipped"; }
	@docker compose version >/dev/null 2>&1 || [ -x .venv/docker-compose ] || { \
	command -v go >/dev/null && echo "compiling Docker Compose (two minutes)" \
		&& sources=$$(go mod download -json $(COMPOSE)@$(COMPOSE_VERSION) | sed -n 's/^\t"Dir": "\(.*\)",$$/\1/p') \
		&& go build -C "$$sources" -trimpath -o $(CURDIR)/.venv/docker-compose ./cmd 2>.venv/docker-compose.log \
		|| echo "no Docker Compose, and no Go that can compile it: tests/containers will be skipped"; }

# Long files come first, by their folders.
PYTEST := $(BIN)/pytest -q -n 2 --dist loadfile --no-loadscope-reorder
# The others wait for brokers, Spark and Airflow half of the time, and jars for the network, and these use it: nice, so that they
# hold up nothing, and three, so that two can run while one waits. They need no jars.
# The shortest come last, so that all end at the same time.
CPU_ONLY := tests/delta tests/vectors tests/reference tests/unit jobs/tidemark/semantics jobs/tidemark/model
# In memory where it has room, since they sync each file they write: on a disk they take half as long again, and a tenth more CPU.
MEMORY = $(shell [ "$$(df --output=avail -BG /dev/shm 2>/dev/null | tail -1 | tr -dc 0-9)" -ge 8 ] 2>/dev/null && echo /dev/shm)

# `make -n` would run a line that names $(MAKE) itself.
REST := $(MAKE) -s -j 3 -O check setup object-store audited

test: ## lint, types and every test
	@$(MAKE) -s -j 2 -O .venv/.ready from_apt
	@memory=$$(mktemp -d -p "$(MEMORY)"); TMPDIR=$$memory nice $(PYTEST) -n 3 $(CPU_ONLY) >.venv/cpu_only.log 2>&1 & beside=$$!; \
	trap "kill $$beside 2>/dev/null; rm -rf $$memory" EXIT INT TERM; \
	$(REST) || { cat .venv/cpu_only.log; exit 1; }; \
	$(PYTEST) tests $(patsubst %,--ignore=%,$(CPU_ONLY)); failed=$$?; \
	wait $$beside || failed=1; cat .venv/cpu_only.log; exit $$failed

from_apt: browser
	@$(MAKE) -s prometheus && $(MAKE) -s strace  # one user of apt at a time

audited: setup
	-@$(MAKE) -s audit  # what is found is told, and is no fault of a change

audit: setup ## known vulnerabilities of packages, where PyPI has the data, and of jars, where OSV answers; status 2 if any were not audited
	@$(BIN)/pip-audit -r requirements.lock --require-hashes --disable-pip --progress-spinner off >.venv/audit.log 2>&1; found=$$?; \
	grep -v 'could not be audited' .venv/audit.log; unknown=$$(grep -c 'could not be audited' .venv/audit.log); \
	echo "$$unknown of $$(grep -c '^[a-z].*==' requirements.lock) packages were not audited because PyPI has no data of them here"; \
	$(BIN)/python docker/audit_jars.py .venv/jars.cdx.json .jars $(dir $(IVY)); jars=$$?; \
	[ $$found = 0 ] || exit $$found; [ $$jars != 0 ] || [ $$unknown = 0 ] || exit 2; exit $$jars

release: setup ## dist/: the wheel, the same bytes from the same commit, and what it was tested with as CycloneDX; see CONTRIBUTING.md
	@rm -rf dist && SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/uv build -q --out-dir dist
	@$(BIN)/uvx -q --from cyclonedx-bom==7.5.0 cyclonedx-py requirements requirements.lock --output-reproducible -o dist/packages.cdx.json
	@$(BIN)/python docker/audit_jars.py dist/jars.cdx.json .jars $(dir $(IVY)) || true
	@cd dist && rm -f .gitignore && sha256sum * | tee SHA256SUMS

supervision: setup check browser postgres alertmanager ## every case of a real Airflow that is killed, cleared or marked (half an hour)
	$(BIN)/pytest -q -m long tests/airflow tests/browser tests/spark tests/streaming

containers: setup docker-engine ## docker/ built and started by Docker Engine, with kills of its containers (17 minutes)
	$(BIN)/pytest -q -rap --no-fold-skipped -m long tests/containers

environments: check object-store pythons yarn docker-engine ## a day of flights and all batch jobs on a Spark standalone cluster, streams on YARN, Airflow with an object store, wheels, and containers (an hour and a half)
	@log=.venv/environments; rm -f $$log.*; \
	run() { { $(BIN)/pytest -q -rap --no-fold-skipped -m "$$@" || touch $$log.failed; } | tee -a $$log.log; }; \
	run "long or not long" tests/cluster; run long tests/objectstore; run "long or not long" tests/packages tests/pods; \
	run long tests/containers; \
	echo "Every case of these environments, with the reason of each that was not run:"; \
	grep -E '^(PASSED|FAILED|ERROR|SKIPPED)' $$log.log; [ ! -e $$log.failed ]

KILLS ?= 10
SHARDS ?= 1
chaos: setup ## KILLS=10 SEED=any SHARDS=1 WAREHOUSE=a new folder (or s3://...): kill and hinder real drivers, and compare what they leave with a calculation
	@PYTHONPATH=tests $(BIN)/python -m chaos --kills $(KILLS) --shards $(SHARDS) $(if $(SEED),--seed $(SEED)) \
		$(if $(WAREHOUSE),--warehouse $(WAREHOUSE))

PAIRS ?= 7
AGAINST = $(if $(BEFORE),--before $(abspath $(BEFORE)) --pairs $(PAIRS))
bench: setup ## PARTS=all BEFORE=another checkout PAIRS=7: what it costs, as ratios, beside what was aimed at or beside another checkout (40 minutes)
	@PYTHONPATH=tests $(BIN)/python -m bench $(PARTS) $(AGAINST)

RUNS ?= 5
# Raw runs and page of docs/ are those of the full sizes.
INTO ?= $(if $(RECORDS)$(PEERS),.contests,docs)
contests: setup $(if $(BEFORE),,.contests/java/.ready) ## RUNS=5 RECORDS="1000000 3000000" PEERS=all KINDS=all BEFORE=another checkout PAIRS=7: Tidemark beside Kafka Streams, Flink, Spark and a loop (hours)
	@PYTHONPATH=jobs:tests $(BIN)/python -m contests --runs $(RUNS) --into $(INTO) $(if $(RECORDS),--records $(RECORDS)) \
		$(if $(PEERS),--peers $(PEERS)) $(if $(KINDS),--kinds $(KINDS)) $(if $(ADD),--add) $(AGAINST)

.contests/java/.ready: $(wildcard tests/contests/*/pom.xml tests/contests/*/*.java) tests/contests/jars.sha256
	@command -v mvn >/dev/null || { echo "the contests need Maven: 'mvn' was not found"; exit 1; }
	@echo "building the peers of the contests into .contests/java (under a minute)"
	@rm -rf .contests/java
	@for peer in kafka_streams flink; do \
		mvn -q -B -C -f tests/contests/$$peer/pom.xml -Dcontests.target=$(CURDIR)/.contests/java -DincludeScope=runtime \
			-DoutputDirectory=$(CURDIR)/.contests/java/$$peer/jars dependency:copy-dependencies compile || exit 1; \
	done
	@cd .contests/java && sha256sum --check --strict --quiet ../../tests/contests/jars.sha256
	@touch $@

demo: setup ## run the main job on real flights and print what it found
	@$(BIN)/tidemark demo

up: setup ## start broker, Airflow and streams, and leave them running
	@$(BIN)/tidemark up

down: ## stop what `make up` started
	@$(BIN)/tidemark down

clean: ## forget all state, keep the installation
	rm -rf .tidemark
