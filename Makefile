# The front doors: everything CI runs goes through these.
#   make demo    install into .venv, then train on real data with 2 processes (or all GPUs)
#   make check   formatting, lint, types, import contracts
#   make test    the quick tests        make slow   those that take minutes        make faults   scripted faults
#   make clean   remove .venv and caches (never runs/)
# Another Python: make demo PYTHON=python3.12

PYTHON ?= python3
BIN := .venv/bin
EXTRAS := vision,digits,dev,wandb,timm
# One thread a process: the tests start several at once, and threads would fight for the cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: help demo check test slow faults install clean
.DEFAULT_GOAL := help

help:
	@sed -n 's/^#   /  /p' Makefile

demo: install
	@start=$$(date +%s); $(BIN)/drivetrain train recipes/digits.yaml; code=$$?; \
	 echo "make demo: exit code $$code after $$(( $$(date +%s) - start )) s (installing not counted)"; exit $$code

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

test: install
	$(PYTEST)

# pytest's exit code 5 means that it found no such test.
slow: install
	@$(PYTEST) -m slow; code=$$?; if [ $$code -eq 5 ]; then echo "There is no slow test yet."; exit 0; fi; exit $$code

faults: install
	$(PYTEST) tests/faults -m 'not gpu and not cluster'

install: .venv/.installed

# The stamp is touched last, so an interrupted install is taken up again.
.venv/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	 echo "drivetrain needs Python 3.11 or later; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
	 echo "  → install one (Debian, Ubuntu: apt-get install python3 python3-venv), or name it: make PYTHON=python3.12 …" >&2; \
	 exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv || { \
	 echo "  → '$(PYTHON)' cannot make an environment (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	@echo "Installing into .venv with the versions of constraints.txt; the first time takes minutes (torch is large)."
	@start=$$(date +%s); \
	 $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]' \
	 && echo "Installed in $$(( $$(date +%s) - start )) s."
	@touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
