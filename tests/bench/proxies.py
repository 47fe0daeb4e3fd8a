"""The proxies that are compared, each started in front of the same engine."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmgw.pki.sshkey import ensure_key
from tests.ssh.conftest import SSHD, start_sshd

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llmgw" / "bench"
VLLM_ROUTER = "vllm-router==0.1.17"
KEY = "sk-llmgw-bench"

NGINX = """
daemon off; worker_processes 1; pid {dir}/nginx.pid; error_log {dir}/error.log;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/f;
  uwsgi_temp_path {dir}/u; scgi_temp_path {dir}/s; keepalive_requests 1000000000;
  upstream engine {{ server 127.0.0.1:{engine}; keepalive 1024; keepalive_requests 1000000000; }}
  server {{ listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""


class Missing(Exception):
    """A proxy that cannot be measured here, and why."""


@dataclass(frozen=True)
class Proxy:
    name: str
    port: int
    pids: tuple[int, ...]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def program(argv: list[str], *, first_line: bool = False) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A child process, and its first line of output where that is asked for."""
    output = subprocess.PIPE if first_line else subprocess.DEVNULL
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.DEVNULL, text=True)
    try:
        line = process.stdout.readline() if process.stdout is not None else ""
        if first_line and not line:
            raise Missing(f"{' '.join(argv[1:3])} ended at once")
        yield process, line
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def module(name: str, job: dict | None = None) -> list[str]:
    return [sys.executable, "-m", f"tests.bench.{name}", *([json.dumps(job)] if job is not None else [])]


@contextmanager
def engine() -> Iterator[int]:
    with program(module("engine"), first_line=True) as (_, line):
        yield int(line)


@contextmanager
def llmgw_tcp(engine_port: int, scratch: Path) -> Iterator[Proxy]:
    job = {"engine": engine_port, "key": KEY, "ssh": None}
    with program(module("served", job), first_line=True) as (process, line):
        yield Proxy("llmgw over TCP", json.loads(line)["port"], (process.pid,))


@contextmanager
def llmgw_ssh(engine_port: int, scratch: Path) -> Iterator[Proxy]:
    home = scratch / "home"
    home.mkdir(mode=0o700, exist_ok=True)
    with _sshd(scratch / "sshd", home) as node:
        job = {"engine": engine_port, "key": KEY, "ssh": {"home": str(home), **node}}
        with program(module("served", job), first_line=True) as (process, line):
            yield Proxy("llmgw over SSH", json.loads(line)["port"], (process.pid,))


@contextmanager
def _sshd(folder: Path, home: Path) -> Iterator[dict[str, Any]]:
    """OpenSSH's server, as on nodes."""
    if not SSHD:
        raise Missing("sshd is not installed (apt-get install openssh-server)")
    ensure_key(home)
    node = start_sshd(folder, home)
    try:
        yield {"user": node.address.user, "port": node.port, "host_key": node.host_key}
    finally:
        node.stop()


@contextmanager
def nginx(engine_port: int, scratch: Path) -> Iterator[Proxy]:
    binary = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if binary is None:
        raise Missing("nginx is not installed (apt-get install nginx-light)")
    port = free_port()
    config = scratch / "nginx.conf"
    config.write_text(NGINX.format(dir=scratch, engine=engine_port, port=port))
    with program([binary, "-p", str(scratch), "-c", str(config)]) as (process, _):
        wait_for(port)
        yield Proxy("nginx", port, (process.pid, *children(process.pid)))


@contextmanager
def vllm_router(engine_port: int, scratch: Path) -> Iterator[Proxy]:
    binary = _install_vllm_router()
    port, metrics = free_port(), free_port()
    worker = f"http://127.0.0.1:{engine_port}"
    argv = [str(binary), "--host", "127.0.0.1", "--port", str(port), "--worker-urls", worker, "--policy", "round_robin"]
    argv += ["--prometheus-port", str(metrics), "--log-level", "error"]
    with program(argv) as (process, _):
        wait_for(port, "/health")
        yield Proxy(VLLM_ROUTER.replace("==", " "), port, (process.pid, *children(process.pid)))


PROXIES = (llmgw_tcp, llmgw_ssh, nginx, vllm_router)


def _install_vllm_router() -> Path:
    """In an environment of its own, kept between runs: nothing of it belongs to llmgw's dependencies."""
    place = CACHE / VLLM_ROUTER.replace("==", "-")
    binary = place / "bin" / "vllm-router"
    if not binary.exists():
        print(f"installing {VLLM_ROUTER} into a cached environment …", file=sys.stderr)
        try:
            subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True, capture_output=True)
            pip = [place / "bin" / "python", "-m", "pip", "install", "--quiet", VLLM_ROUTER]
            subprocess.run(pip, check=True, capture_output=True, timeout=600)
        except (OSError, subprocess.SubprocessError) as exc:
            shutil.rmtree(place, ignore_errors=True)
            raise Missing(f"{VLLM_ROUTER} could not be installed: {type(exc).__name__}") from exc
    return binary


def wait_for(port: int, path: str = "/", seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    raise Missing(f"nothing answered on its port within {seconds:g} s")


def children(pid: int) -> tuple[int, ...]:
    """Direct children, for servers that work in another process."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return tuple(int(child) for child in text.split())
