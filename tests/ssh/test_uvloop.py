"""The same under uvloop, which the control plane runs on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import uvloop

from llmgw.clock import SystemClock
from llmgw.model.node import Address
from llmgw.pki.sshkey import public_key
from llmgw.ssh.embedded import EmbeddedServer
from llmgw.ssh.identity import Login
from llmgw.ssh.pool import Pool

from .programs import ECHO, NOISE
from .test_tunnel import Engine, Recorder

# libuv keeps one pipe a process for signals, from its first loop on.
uvloop.run(asyncio.sleep(0))


def test_scripts_streams_and_the_embedded_server(home: Path, login: Login, tmp_path: Path) -> None:
    async def story() -> None:
        server = EmbeddedServer(public_key(home), tmp_path / "key")
        await server.start()
        pool = Pool(login=login, clock=SystemClock(), on_change=lambda node, status: None, local=server)
        link = pool.add("n", Address(host="local", user="me"), "")
        await link.wait_up(5)
        connection = link.connection
        assert connection is not None
        assert (await connection.run_program("echo", ECHO, {"a": 1}, deadline=10))["args"] == {"a": 1}
        done = await connection.run_program("noise", NOISE, {"megabytes": 30, "fd": 2}, deadline=20)
        assert done == {"done": True}
        engine = Engine()
        await engine.start()
        ours = await link.open_stream(engine.port, Recorder)
        assert isinstance(ours, Recorder)
        theirs = await engine.first()
        ours.transport.write(b"ping")
        await theirs.until(lambda: bytes(theirs.data) == b"ping")
        theirs.transport.write(bytes(5 << 20))
        await ours.until(lambda: len(ours.data) == 5 << 20)
        for n in range(50):
            task = asyncio.create_task(link.open_stream(engine.port, Recorder))
            await asyncio.sleep(n / 20000)
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled():
                task.result().transport.abort()  # type: ignore[attr-defined]
        ours.transport.close()
        async with asyncio.timeout(5):
            while connection.channels:
                await asyncio.sleep(0.01)
        engine.server.close()
        await pool.close()
        await server.close()

    uvloop.run(story())
