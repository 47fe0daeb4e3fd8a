"""Small programs for a node, sent as remote scripts are."""

from __future__ import annotations


def program(body: str) -> bytes:
    indented = "\n".join(f"    {line}" for line in body.strip().splitlines())
    return f"import os, sys, time, prelude\ndef main(args):\n{indented}\nprelude.main(main)\n".encode()


ECHO = program("return {'args': {k: v for k, v in args.items() if not k.startswith('_')}, 'pid': os.getpid()}")
SLEEP = program("time.sleep(args['seconds'])\nreturn {'slept': args['seconds']}")
EVENTS = program("for n in range(args['count']):\n    prelude.event(n=n)\nreturn {'done': True}")
REFUSE = program("prelude.fail('too_small', 'needs 5, has 4', fix='Add one.', need=5)")
CRASH = program("return 1 / 0")
PARENT = program("return {'parent': os.getppid(), 'pid': os.getpid()}")
HASH = program("""
import hashlib
h = hashlib.sha256()
prelude.receive(args['_payload'], h.update)
prelude.watch()
return {'sha256': h.hexdigest()}
""")
FULL = program("""
def sink(data):
    raise OSError(28, 'No space left on device', '/data/weights')
prelude.receive(args['_payload'], sink)
return {}
""")
NOISE = program("""
block = b'x' * 65535 + b'\\n'
for _ in range(args['megabytes'] * 16):
    os.write(args['fd'], block)
return {'done': True}
""")
DEATH = program("os.kill(os.getpid(), args['signal'])\ntime.sleep(5)")
CHATTER = program("""
os.write(1, b'Welcome to the machine!\\n#deadbeef 12 34\\n')
prelude.event(a=1)
os.write(1, b'\\x1b[31mmore\\xff noise')
os.write(2, b'warning: something\\n')
return {'ok': 1}
""")
