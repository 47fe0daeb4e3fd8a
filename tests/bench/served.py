"""llmgw's gateway in a process of its own, in front of one engine: over TCP, or through an SSH node.

`python -m tests.bench.served '{"engine": PORT, "key": …, "ssh": null | {"home", "user", "port", "host_key"}}'`
prints its port.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import uvloop

from llmgw.clock import SystemClock
from llmgw.config.settings import GatewaySettings
from llmgw.gateway.gateway import Gateway
from llmgw.gateway.serve import serve
from llmgw.model.holder import Published
from llmgw.model.key import ApiKey, digest
from llmgw.model.node import Address
from llmgw.model.route import Connect, KeyTable, ProtocolFactory, Route, RouteTable, Traffic, Upstream
from llmgw.model.secret import Secret
from llmgw.pki.sshkey import ensure_key
from llmgw.ssh.connection import connect
from llmgw.ssh.identity import Login


def over_tcp(port: int) -> Connect:
    async def open_stream(factory: ProtocolFactory) -> asyncio.Protocol:
        _, protocol = await asyncio.get_running_loop().create_connection(factory, "127.0.0.1", port)
        return protocol

    return open_stream


async def over_ssh(port: int, ssh: dict) -> Connect:
    login = Login(client_keys=(ensure_key(Path(ssh["home"])),))
    address = Address(host="127.0.0.1", port=ssh["port"], user=ssh["user"])
    connection = await connect(address, login=login, host_key=ssh["host_key"])

    async def open_stream(factory: ProtocolFactory) -> asyncio.Protocol:
        return await connection.open_stream(port, factory)

    return open_stream


async def gateway(job: dict) -> None:
    reach = await over_ssh(job["engine"], job["ssh"]) if job["ssh"] else over_tcp(job["engine"])
    upstream = Upstream(replica="bench-1", node="bench", attempt=1, model="bench", key=Secret("engine"), connect=reach)
    key = ApiKey(name="bench", hash=digest(job["key"]), hint=job["key"][:8])
    app = Gateway(
        routes=Published(RouteTable({"bench": Route(model="bench", upstreams=(upstream,))})),
        keys=Published(KeyTable({key.hash: key})),
        traffic=Traffic(),
        settings=GatewaySettings(),
        clock=SystemClock(),
        version="bench",
    )
    server = await serve(app, host="127.0.0.1", port=0)
    print(json.dumps({"port": server.port}), flush=True)


async def main() -> None:
    job = json.loads(sys.argv[1])
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await gateway(job)
    await stop.wait()


if __name__ == "__main__":
    uvloop.run(main())
