# SPDX-License-Identifier: MIT
# slurm-pal: `make demo` runs the main job, `make test` passes the tests; both set up what they need.
# Everything Python goes into .venv; everything else comes from Debian's packages.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find slurm_pal cli profiling -name '*.py') $(wildcard etc/systemd/* etc/cron.d/* etc/logrotate.d/* etc/*.lua etc/filter/*.lua etc/*.toml etc/recipes.d/* spank/* slurm_pal/submit/*.sh slurm_pal/trial/*.sh profiling/driver/*) bin/palsub pyproject.toml README.md
LUA := $(wildcard etc/*.lua etc/filter/*.lua tests/lua/*.lua)
C := $(wildcard spank/*.c)
KERNELS := $(wildcard profiling/driver/*.cu profiling/driver/*.h)
SHELL_SCRIPTS := .ci/run bin/palsub $(wildcard etc/*.sh slurm_pal/submit/*.sh slurm_pal/trial/*.sh) $(wildcard tests/*.sh packaging/*.sh)
export PIP_DISABLE_PIP_VERSION_CHECK = 1
unexport PYTHONDONTWRITEBYTECODE  # without it each worker of pytest would rewrite the asserts of all tests anew

.DEFAULT_GOAL := help
.PHONY: help setup slurm tools programs demo test test-long test-frameworks packages rewritten fuzz test-releases coverage \
	clean-releases unit lint lint-tools \
	ruff shellcheck luacheck clang-format mypy cppcheck format docs man deb rpm test-packages test-systemd bench lock clean

help:  ## Show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 16

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: apt-get install python3"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || etc/install-packages.sh python3-venv
	$(PYTHON) -m venv $(VENV)

# Python compiles what it loads of them, when it loads it.
$(VENV)/dependencies: pyproject.toml $(wildcard etc/locked/*.txt) | $(BIN)/python
	@PIP_COMPILE=0 etc/install-locked.sh $(BIN)/python test test lint
	@touch $@

# The package is really installed, not linked: what is tested is what a site gets.
$(VENV)/installed: $(VENV)/dependencies $(SOURCES)
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --force-reinstall .
	@rm -rf build slurm_pal.egg-info
	@touch $@

setup: $(VENV)/installed slurm  ## Virtual environment, slurm-pal in it, and Slurm's packages

SLURM_PACKAGES := slurmctld slurmd slurm-client munge
slurm:  ## Slurm and munge from Debian's packages, if missing
	@etc/install-packages.sh $(SLURM_PACKAGES)

demo: setup  ## A real Slurm with emulated GPUs: sweep, classes, sbatch against palsub
	@$(BIN)/pal demo

TEST_PACKAGES := lua5.1 gcc libc6-dev libslurm-dev binutils valgrind chromium slurmdbd mariadb-server-core mariadb-client-core \
	slurmrestd man-db rpm
tools:  ## Debian packages that only tests need: Lua for the filters, a compiler and valgrind for the plug-in, a browser for the pages, slurmdbd and MariaDB for labs with accounting, slurmrestd, man, rpm
	@etc/install-packages.sh $(TEST_PACKAGES)

# Tests on a real Slurm mostly wait for it: they run beside lint and the others, twelve files at a time, in a place of
# their own. Those that take longest begin first. The others give way to them: a Slurm that gets no processor for
# seconds loses nodes. The output of lint and of the tests on Slurm comes last.
ON_SLURM := tests/slurm $(shell grep -ls 'mark\.real_slurm' tests/fuzz/test_*.py)
LONGEST := $(patsubst %,tests/slurm/test_%.py,sweep_leaves filter wait loans crossing cloud sweep faulty rebalance accounting moves sweep_scale \
	network_sweep twin_priorities partitions guard counting lab palsub observe users save_before recipes user_page frameworks gather \
	places spank tutorial both first_use)
# File by file: of a folder and a file in it pytest takes the folder alone, in its own order.
IN_ORDER := $(LONGEST) $(filter-out $(LONGEST),$(wildcard tests/slurm/test_*.py) $(filter-out tests/slurm,$(ON_SLURM)))
SHORT := -q -m 'not long'
test:  ## Lint, and all tests but long ones, those on a real Slurm included
	@$(MAKE) --no-print-directory -j 2 $(VENV)/installed packages
	@$(BIN)/pytest -q --collect-only $(ON_SLURM) > /dev/null || true
	@root=$$(tests/place.sh) && mkdir $$root/rest && trap 'rm -rf $$root' EXIT; trap 'exit 1' HUP INT PIPE TERM; \
	PYTEST_DEBUG_TEMPROOT=$$root $(BIN)/pytest $(SHORT) -n 12 --dist loadfile --no-loadscope-reorder -o cache_dir=$(VENV)/slurm-cache \
	$(IN_ORDER) > $$root/slurm.log 2>&1 & slurm=$$!; \
	nice -n 5 $(MAKE) --no-print-directory lint > $$root/lint.log 2>&1 & lint=$$!; \
	nice -n 5 $(MAKE) --no-print-directory rewritten; \
	export PYTEST_DEBUG_TEMPROOT=$$root/rest; \
	echo "$(BIN)/pytest -q"; nice -n 5 $(BIN)/pytest $(SHORT) -n 4 --dist worksteal $(ON_SLURM:%=--ignore=%); others=$$?; \
	wait $$lint; lint=$$?; cat $$root/lint.log; \
	wait $$slurm; real=$$?; cat $$root/slurm.log; \
	echo "Left out: long tests; make test-long runs them."; \
	test $$lint = 0 -a $$others = 0 -a $$real = 0

test-long: setup tools programs  ## Long tests, which make test leaves out: statistics, large sizes, long runs of a real Slurm, moves of real programs
	PAL_LONG=1 $(BIN)/pytest -q -n 2 -m 'long or hypothesis' tests/unit tests/reference
	PAL_LONG=1 $(BIN)/pytest -q -n 4 --dist loadfile -m long $(ON_SLURM)

programs:  ## Debian packages of the real programs that recipes are tested with (docs/recipes.md)
	@etc/install-packages.sh gromacs lammps quantum-espresso quantum-espresso-data

# As a user has it: slurm-pal without what it depends on, beside the frameworks.
FRAMEWORKS ?= torch pytorch-lightning transformers accelerate submitit
test-frameworks: setup  ## The examples of docs/frameworks.md on a real Slurm, by the frameworks themselves
	@test -x $(VENV)/frameworks/bin/python || $(PYTHON) -m venv $(VENV)/frameworks
	$(VENV)/frameworks/bin/pip install --quiet $(FRAMEWORKS)
	$(VENV)/frameworks/bin/pip install --quiet --no-deps --force-reinstall .
	@rm -rf build slurm_pal.egg-info
	$(BIN)/pytest -q -n 2 tests/slurm/test_training.py tests/unit/frameworks

# One call for all: pip works meanwhile, and Debian's lists are read once.
packages: | $(BIN)/python
	@etc/install-packages.sh $(SLURM_PACKAGES) $(TEST_PACKAGES) $(LINT_PACKAGES)

# pytest keeps tests with their asserts rewritten beside them. Once for all its workers.
rewritten: $(VENV)/installed
	@$(BIN)/pytest -q --collect-only > /dev/null || true

# Rooms that decide, each with quick tests of its own.
DECIDING := allocation decide partitions pending placement sensitivity
coverage: $(VENV)/installed  ## Lines that the tests without Slurm cover, file by file; what runs as a process of its own is not seen
	$(BIN)/pytest -q -n 2 --cov --cov-report= $(DECIDING:%=tests/unit/%); rooms=$$?; \
	printf 'Lines covered by the tests of their own room, %%:'; for room in $(DECIDING); do \
	printf ' %s %s' $$room "$$($(BIN)/coverage report --include="slurm_pal/$$room/*" --format=total)"; done; echo; \
	$(BIN)/pytest -q -n 2 --cov --cov-append --cov-report= $(DECIDING:%=--ignore=tests/unit/%) tests/unit; tests=$$?; \
	$(BIN)/coverage report --skip-covered --sort=cover && test $$rooms = 0 -a $$tests = 0

SECONDS ?= 600
fuzz: setup tools  ## Feed hostile input to everything that reads users' words, for SECONDS=600
	@$(BIN)/python tests/fuzz/run.py --seconds $(SECONDS)

test-releases:  ## The tests under three releases of Slurm, each in a root directory made by debootstrap
	@tests/releases.sh run

clean-releases:  ## Remove those root directories
	@tests/releases.sh clean
	@packaging/test.sh clean
	@packaging/systemd.sh clean

unit: $(VENV)/installed  ## Only the tests that need no Slurm
	$(BIN)/pytest $(SHORT) tests/unit

lint: ruff shellcheck luacheck clang-format mypy cppcheck  ## ruff, shellcheck, luacheck, clang-format, mypy, cppcheck

# One target each, for .pre-commit-config.yaml too. Only mypy needs the package installed.
ruff: $(VENV)/dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

LINT_PACKAGES := shellcheck lua-check clang-format cppcheck
lint-tools:
	@etc/install-packages.sh $(LINT_PACKAGES)

shellcheck: lint-tools
	shellcheck $(SHELL_SCRIPTS)

luacheck: lint-tools $(VENV)/installed
	luacheck --quiet $(LUA)
	$(BIN)/python -P -m slurm_pal.filter.source > $(VENV)/pal.lua && luacheck --quiet $(VENV)/pal.lua

clang-format: lint-tools
	clang-format --dry-run --Werror $(C) $(KERNELS) $(wildcard spank/*.h spank/tests/*.[ch] tests/doubles/*.c tests/lua/*.c tests/unit/driver_double/*.[ch])

mypy: $(VENV)/installed
	cd $(VENV) && bin/mypy --config-file ../pyproject.toml -p slurm_pal  # not here: cli/ and profiling/ are in the installed package

cppcheck: lint-tools
	cppcheck --quiet --error-exitcode=1 --enable=warning --enable=style $(C)

format: $(VENV)/installed  ## Let ruff format the tree
	$(BIN)/ruff check --fix --quiet . || true
	$(BIN)/ruff format .

docs: $(VENV)/installed  ## HTML and man pages into docs/_build
	@etc/install-locked.sh $(BIN)/python docs docs
	$(BIN)/sphinx-build -q -W -b html docs docs/_build/html
	$(BIN)/sphinx-build -q -W -b man docs docs/_build/man

man: $(VENV)/installed
	@etc/install-locked.sh $(BIN)/python docs docs
	$(BIN)/sphinx-build -q -W -b man docs docs/_build/man

deb: man  ## Debian packages for this machine's release into dist
	$(BIN)/python packaging/deb.py

rpm: man  ## RPM packages for this machine's type and minor Python into dist
	@command -v rpmbuild > /dev/null || etc/install-packages.sh rpm
	$(BIN)/python packaging/rpm.py

test-packages: deb rpm  ## Install them in a fresh root directory made by debootstrap, use them, remove them
	@packaging/test.sh run
	@packaging/test.sh rpm

test-systemd: deb  ## Boot systemd in a fresh root directory, and set slurm-pal up there as an admin does
	@packaging/systemd.sh run

bench: setup  ## The numbers of docs/benchmarks.md
	$(BIN)/pytest -q tests/bench --benchmark-enable --benchmark-only --benchmark-columns=min,median,max
	$(BIN)/python tests/bench/palsub_cost.py
	$(BIN)/python tests/bench/expected_gain.py

# uv writes files that hold for all Pythons and machines, with the SHA-256 of every file of each version.
lock: | $(BIN)/python  ## Choose the newest versions of what the build, the tests and the pages need, and write them to etc/locked
	$(BIN)/pip install --quiet --upgrade --target $(VENV)/uv uv
	$(call locked,build,build,)
	$(call locked,test,test lint,--constraints etc/locked/build.txt)
	$(call locked,run,run,--constraints etc/locked/test.txt)
	$(call locked,docs,docs,--constraints etc/locked/test.txt)

# usage: $(call locked,NAME,extras of pyproject.toml,options)
locked = $(BIN)/python etc/requirements.py $(2) | $(VENV)/uv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
	--generate-hashes --no-header --no-annotate $(3) --output-file $(VENV)/locked.txt - \
	&& { echo "\# Written by make lock from pyproject.toml."; cat $(VENV)/locked.txt; } > etc/locked/$(1).txt && rm $(VENV)/locked.txt

clean:  ## Remove what make made
	rm -rf $(VENV) build dist spank/build *.egg-info docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
