# make demo · make test · make check · make bench · make docs — each sets up what it needs.
.PHONY: env test check bench docs demo clean
PY := .venv/bin/python
env: .venv/.ready
.venv/.ready: pyproject.toml Makefile
	@if command -v uv >/dev/null 2>&1; then uv venv -q --allow-existing .venv && uv pip install -q --python .venv/bin/python -e . --group dev; \
	else python3 -m venv .venv && .venv/bin/pip install -q --upgrade 'pip>=25.1' && .venv/bin/pip install -q -e . --group dev; fi
	@touch $@
