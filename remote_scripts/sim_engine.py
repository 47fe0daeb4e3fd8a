"""A simulated engine: the OpenAI HTTP API without a model, with knobs for speed and for every way to go wrong.

Resident: run as `python3 -B -I -S sim_engine.py --port N`, not through the prelude. Standard library alone, Python 3.6
grammar. It listens on 127.0.0.1, asks for the key in SIM_API_KEY when that is set, and tells replicas apart by
`system_fingerprint` (from LLMGW_REPLICA). The text is always the same, so that a test can compare it whole.
"""
import argparse
import asyncio
import hashlib
import json
import os
import signal
import sys
import time

VERSION = "sim-engine 1.0"
SPEECH = ("The quick brown fox jumps over the lazy dog while seven wizards quietly judge my vow of onyx quartz , and "
          "nobody minds because this engine only pretends .")
WORDS = SPEECH.split()
REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
           413: "Payload Too Large", 500: "Internal Server Error", 503: "Service Unavailable"}
MAX_BODY = 64 << 20
CHAT, TEXT, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"


def parse_options(argv):
    parser = argparse.ArgumentParser(prog="sim_engine.py", description="A simulated OpenAI engine on 127.0.0.1.",
                                     allow_abbrev=False)
    add = parser.add_argument
    add("--version", action="version", version=VERSION)
    add("--port", type=int, required=True, help="0 takes a free one; the first line of output names it")
    add("--model", default="", help="the id it serves; requests for another get 404 (default: any)")
    add("--load-time", type=float, default=0.0, metavar="S", help="answer 503 for so long after the start")
    add("--tokens-per-second", type=float, default=0.0, metavar="R", help="of each request; 0 is as fast as possible")
    add("--first-token-delay", type=float, default=0.0, metavar="S")
    add("--max-tokens", type=int, default=16, metavar="N", help="when the request does not say")
    add("--context", type=int, default=0, metavar="N", help="a longer prompt gets 400 (default: any length)")
    add("--die-after-tokens", type=int, default=0, metavar="N", help="exit at once after N tokens of all requests")
    add("--die-after-requests", type=int, default=0, metavar="N", help="exit at once when request N + 1 arrives")
    add("--hang", action="store_true", help="accept, read, never answer anything")
    add("--hang-after-tokens", type=int, default=-1, metavar="N", help="each answer stands still after N tokens")
    add("--fail-every", type=int, default=0, metavar="N", help="every Nth request gets a 500")
    add("--error-rate", type=float, default=0.0, metavar="P", help="this share of requests, evenly, gets a 500")
    add("--ignore-term", action="store_true")
    add("--memory-mb", type=int, default=0, metavar="N", help="hold so much memory")
    add("--rank", type=int, default=0)
    add("--world", type=int, default=1)
    return parser.parse_args(argv)


class Engine:
    def __init__(self, options):
        self.options = options
        self.key = os.environ.get("SIM_API_KEY", "")
        self.fingerprint = "sim-" + (os.environ.get("LLMGW_REPLICA") or "local")
        self.model = options.model or "sim"
        self.ready_at = time.monotonic() + options.load_time
        self.requests = self.completed = self.failed = self.tokens = 0
        self.aborted = []
        self.active = {}
        self.ballast = bytearray(os.urandom(4096) * (options.memory_mb * 256))

    def loading(self):
        return time.monotonic() < self.ready_at

    def stats(self):
        return {"requests": self.requests, "completed": self.completed, "failed": self.failed, "tokens": self.tokens,
                "aborted": self.aborted[-10000:], "active": sorted(self.active), "pid": os.getpid()}

    def fails_now(self):
        every, rate, count = self.options.fail_every, self.options.error_rate, self.requests
        return (every and count % every == 0) or (rate and int(count * rate) != int((count - 1) * rate))

    def spend(self, count):
        """Counts tokens; where the knob says so this is the last thing the process does."""
        self.tokens += count
        if self.options.die_after_tokens and self.tokens >= self.options.die_after_tokens:
            os._exit(9)


class Connection(asyncio.Protocol):
    """One keep-alive HTTP/1.1 connection; requests on it are answered in turn."""

    def __init__(self, engine, loop):
        self.engine, self.loop = engine, loop
        self.buffer = b""
        self.transport = self.task = self.request_id = None
        self.sent = 0
        self.writable = asyncio.Event()
        self.writable.set()

    def connection_made(self, transport):
        self.transport = transport

    def pause_writing(self):
        self.writable.clear()

    def resume_writing(self):
        self.writable.set()

    def connection_lost(self, exc):
        if self.request_id is not None:  # the client left while we were at it: what a real engine calls an abort
            self.engine.aborted.append({"id": self.request_id, "at": time.time(), "tokens": self.sent})
            self.engine.active.pop(self.request_id, None)
            self.request_id = None
        if self.task is not None:
            self.task.cancel()

    def data_received(self, data):
        self.buffer += data
        if self.task is None and not self.engine.options.hang:
            self.next_request()

    def next_request(self):
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        lines = self.buffer[:end].decode("latin-1").split("\r\n")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        size = headers.get("content-length", "0")
        if not size.isdecimal() or int(size) > MAX_BODY or "transfer-encoding" in headers:
            self.reply(413, {"error": {"message": "send a content-length of at most 64 MiB"}})
            self.transport.close()
            return
        if len(self.buffer) < end + 4 + int(size):
            return
        body = self.buffer[end + 4:end + 4 + int(size)]
        self.buffer = self.buffer[end + 4 + int(size):]
        method, target = (lines[0].split(" ") + ["", ""])[:2]
        self.keep = headers.get("connection", "").lower() != "close"
        self.task = self.loop.create_task(self.answer(method, target.split("?")[0], headers, body))

    async def answer(self, method, path, headers, body):
        try:
            if path in (CHAT, TEXT, EMBED):
                await self.generate(method, path, headers, body)
            else:
                self.look(method, path, headers)
        finally:
            self.task = None
        if not self.keep:
            self.transport.close()
        elif not self.transport.is_closing() and self.buffer:
            self.loop.call_soon(self.next_request)

    def look(self, method, path, headers):
        engine = self.engine
        if path == "/health":
            loading = engine.loading()
            self.reply(503 if loading else 200, {"status": "loading" if loading else "ok"})
        elif path == "/sim/stats":
            self.reply(200, engine.stats())
        elif path != "/v1/models":
            self.reply(404, {"error": {"message": "no such path", "type": "not_found_error", "code": 404}})
        elif not self.refused(headers):
            entry = {"id": engine.model, "object": "model", "created": 0, "owned_by": "sim"}
            self.reply(200, {"object": "list", "data": [entry]})

    def refused(self, headers):
        if self.engine.key and headers.get("authorization") != "Bearer " + self.engine.key:
            self.reply(401, {"error": {"message": "wrong key", "type": "authentication_error", "code": 401}})
        elif self.engine.loading():
            self.reply(503, {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}})
        else:
            return False
        return True

    async def generate(self, method, path, headers, body):
        engine, options = self.engine, self.engine.options
        if self.refused(headers):
            return
        if options.die_after_requests and engine.requests >= options.die_after_requests:
            os._exit(9)
        engine.requests += 1
        if engine.fails_now():
            engine.failed += 1
            self.reply(500, {"error": {"message": "told to fail", "type": "server_error", "code": 500}})
            return
        try:
            asked = json.loads(body.decode())
            prompt = prompt_words(asked)
            count = int(asked.get("max_completion_tokens") or asked.get("max_tokens") or options.max_tokens)
        except (ValueError, AttributeError, TypeError) as exc:
            self.bad("the body is not what it should be: %s" % exc)
            return
        if options.model and asked.get("model") != options.model:
            self.reply(404, {"error": {"message": "The model `%s` does not exist." % asked.get("model"),
                                       "type": "NotFoundError", "code": 404}})
            return
        if options.context and prompt > options.context:
            self.bad("the prompt has %d tokens, the context %d" % (prompt, options.context))
            return
        self.request_id = headers.get("x-request-id") or "sim-%d" % engine.requests
        engine.active[self.request_id] = time.time()
        self.sent = 0
        if path == EMBED:
            self.reply(200, embeddings(asked, engine.model, prompt))
        else:
            await self.speak(path == CHAT, asked, prompt, max(1, count))
        engine.completed += 1
        engine.active.pop(self.request_id, None)
        self.request_id = None

    def bad(self, message):
        self.reply(400, {"error": {"message": message, "type": "invalid_request_error", "code": 400}})

    async def speak(self, chat, asked, prompt, count):
        """One answer of `count` tokens, streamed or whole, at the pace the knobs set."""
        engine = self.engine
        usage = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
        base = {"id": self.request_id, "object": "chat.completion" if chat else "text_completion",
                "created": int(time.time()), "model": asked.get("model") or engine.model,
                "system_fingerprint": engine.fingerprint}
        if not asked.get("stream"):
            await self.pace(count, None)
            text = " ".join(WORDS[i % len(WORDS)] for i in range(count))
            said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            self.reply(200, dict(base, choices=[dict(said, index=0, finish_reason="stop")], usage=usage))
            return
        if chat:
            base["object"] = "chat.completion.chunk"
        frames = []
        for word in WORDS[:count]:
            said = {"delta": {"content": word + " "}} if chat else {"text": word + " "}
            frames.append(chunk(dumps(dict(base, choices=[dict(said, index=0, finish_reason=None)]))))
        await self.pace(count, frames)
        end = dict(base, choices=[dict({"delta": {}} if chat else {"text": ""}, index=0, finish_reason="stop")])
        out = chunk(dumps(end))
        if (asked.get("stream_options") or {}).get("include_usage"):
            out += chunk(dumps(dict(base, choices=[], usage=usage)))
        self.transport.write(out + chunk("[DONE]") + b"0\r\n\r\n")

    async def pace(self, count, frames):
        """Spends `count` tokens in their time. With `frames` each is written as it comes."""
        options, engine = self.engine.options, self.engine
        if options.first_token_delay:
            await asyncio.sleep(options.first_token_delay)
        if frames:
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
                                 b"transfer-encoding: chunked\r\n\r\n")
        start, rate = self.loop.time(), options.tokens_per_second
        for index in range(count):
            if index == options.hang_after_tokens:
                await asyncio.sleep(1e9)
            if rate:
                await asyncio.sleep(max(0.0, start + index / rate - self.loop.time()))
            elif index % 64 == 63:
                await asyncio.sleep(0)  # others get their turn, and a client that has left is noticed
            if frames:
                await self.writable.wait()
                self.transport.write(frames[index % len(frames)])
            self.sent = index + 1
            engine.spend(1)

    def reply(self, status, body):
        data = dumps(body).encode()
        head = "HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self.transport.write((head % (status, REASONS[status], len(data))).encode() + data)


def dumps(body):
    return json.dumps(body, separators=(",", ":"))


def chunk(text):
    data = ("data: %s\n\n" % text).encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


def prompt_words(asked):
    """How many "tokens" the prompt has: its words."""
    words = 0
    for message in asked.get("messages") or []:
        content = message.get("content") or ""
        parts = content if isinstance(content, list) else [{"text": content}]
        words += sum(len((part.get("text") or "").split()) for part in parts)
    prompt = asked.get("prompt") or asked.get("input") or ""
    return words + sum(len(str(text).split()) for text in (prompt if isinstance(prompt, list) else [prompt]))


def embeddings(asked, model, prompt):
    texts = asked.get("input") or ""
    rows = []
    for index, text in enumerate(texts if isinstance(texts, list) else [texts]):
        vector = [round(byte / 127.5 - 1, 6) for byte in hashlib.sha256(str(text).encode()).digest()[:8]]
        rows.append({"object": "embedding", "index": index, "embedding": vector})
    return {"object": "list", "data": rows, "model": asked.get("model") or model,
            "usage": {"prompt_tokens": prompt, "total_tokens": prompt}}


def main(argv):
    options = parse_options(argv)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    engine = Engine(options)
    if options.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        loop.add_signal_handler(signal.SIGTERM, os._exit, 0)
    try:
        serving = loop.create_server(lambda: Connection(engine, loop), "127.0.0.1", options.port, backlog=1024)
        server = loop.run_until_complete(serving)
    except OSError as exc:
        sys.exit("sim_engine: port %d on 127.0.0.1 cannot be used: %s" % (options.port, exc.strerror))
    print("sim_engine: listening on 127.0.0.1:%d" % server.sockets[0].getsockname()[1], flush=True)
    loop.run_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
