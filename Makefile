# make demo · make test · make check · make bench · make docs: each sets up what it needs.
.PHONY: env system demo test check bench docs clean

PY := .venv/bin/python
ONCE ?=
ARGS ?=

# The environment: with uv where it is present, else with venv and pip.
env: .venv/.ready
.venv/.ready: pyproject.toml
	@echo "Setting up .venv, once …" >&2
	@if command -v uv >/dev/null 2>&1; then \
	  uv venv -q --allow-existing .venv && uv pip install -q --python $(PY) -e . --group dev; \
	else \
	  python3 -m venv .venv && .venv/bin/pip install -q --upgrade 'pip>=25.1' && .venv/bin/pip install -q -e . --group dev; \
	fi
	@touch $@

# What the tests need of the system: installed as root on Debian or Ubuntu, asked for elsewhere.
PACKAGES := openssh-server sudo dropbear-bin iproute2 tmux nginx-light fish tcsh zsh ksh93u+m busybox libfaketime
system:
	@sh tests/system-packages.sh $(PACKAGES)

demo: env
	@.venv/bin/llmgw demo $(if $(ONCE),--once) $(ARGS)

test: env system
	@$(PY) -m pytest $(ARGS)

check: env
	@.venv/bin/ruff check .
	@.venv/bin/ruff format --check .
	@.venv/bin/mypy
	@$(PY) -m pytest -q tests/test_floors.py tests/test_docs.py

bench: env system
	@$(PY) -m tests.bench $(ARGS)

docs: env
	@$(PY) docs/generate.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache build dist
