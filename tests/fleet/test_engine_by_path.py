"""A llama-server that the operator names by path: offered because it was named, checked, and never because of PATH."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fleet.plane import SMOLLM2, Plane
from tests.fleet.test_links import ask


@pytest.mark.engine
def test_a_llama_server_named_by_path(real_plane: Plane, machines, add, fleet, tmp_path: Path):
    """The program is the real engine; only the way to it is a script, as a package would install one."""
    plane, alpha = real_plane, machines[0]
    plane.start()
    add(plane, alpha)
    wheel = "/root/.local/share/llmgw/engines/llamacpp/2026.10.11549-wheel"
    alpha.shell(f"cp -r {wheel} /opt/llama")
    script = '#!/bin/sh\nexec python3 -B -I -S /opt/llama/llama_wheel.py "$@"\n'
    alpha.shell(f"cat > /opt/llama/llama-server <<'E'\n{script}E\nchmod +x /opt/llama/llama-server")
    try:
        add(plane, alpha, words=("--engine", "llamacpp=/opt/llama/llama-server"))
        plane.add_model(tmp_path, SMOLLM2)
        (replica,) = plane.ready(SMOLLM2["name"])
        assert replica["engine_version"] == "/opt/llama/llama-server"
        assert "/opt/llama/llama_wheel.py" in alpha.shell(f"tr '\\0' ' ' < /proc/{alpha.engines()[0]}/cmdline")
        assert ask(plane, plane.key(), "smollm2")
    finally:
        alpha.shell("rm -rf /opt/llama")


def test_a_path_that_is_no_engine(plane: Plane, machines, fleet):
    alpha = machines[0]
    plane.start()
    words = ("node", "add", f"root@{alpha.address}", "-i", str(fleet.key), "--engine", "llamacpp=/bin/false")
    done = plane.llmgw(*words)
    assert "llamacpp failed" in done.stderr
    (failed,) = [event for event in plane.events("engine.install") if event["severity"] == "error"]
    assert "/bin/false" in failed["message"]
