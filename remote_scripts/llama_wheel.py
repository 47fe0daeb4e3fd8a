"""llama.cpp's own HTTP server out of the xllamacpp wheel, with the flags of `llama-server`.

Lies in the unpacked wheel, beside `xllamacpp/`, and is started by engine.py with a Python of 3.10 or newer. Where a
package index is all a node can reach, this is its llama-server. The key comes from LLAMA_API_KEY, never from argv.
"""
import argparse
import os
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
POOLING = ("none", "mean", "cls", "last", "rank")
DEFAULT_SLOTS = 4


def library():
    """The wheel beside this file, and no other copy."""
    sys.path.insert(0, HERE)
    sys.dont_write_bytecode = True
    try:
        import xllamacpp
    except ImportError as exc:
        sys.exit("llama_wheel: xllamacpp cannot be loaded from %s: %s" % (HERE, exc))
    return xllamacpp


def version(lib):
    build = getattr(lib, "BUILD_INFO", {})
    return "llama.cpp (xllamacpp %s) %s for %s" % (
        lib.__version__, build.get("compiler", "?"), build.get("build_target", "?"))


def usable_threads():
    """Cores this process may use: affinity, and the CPU quota of its control group."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = quota_v2() or quota_v1()
    return max(1, min(cores, int(quota + 0.5)) if quota else cores)


def quota_v2():
    """The smallest cpu.max from our control group up to the root of the hierarchy, in cores."""
    smallest = None
    for folder in group_folders("", "/sys/fs/cgroup"):
        words = first_line(folder + "/cpu.max").split()
        if len(words) == 2 and words[0].isdecimal() and int(words[1]):
            share = int(words[0]) / int(words[1])
            smallest = share if smallest is None else min(smallest, share)
    return smallest


def quota_v1():
    for folder in group_folders("cpu", "/sys/fs/cgroup/cpu"):
        quota, period = first_line(folder + "/cpu.cfs_quota_us"), first_line(folder + "/cpu.cfs_period_us")
        if quota.isdecimal() and period.isdecimal() and int(period):
            return int(quota) / int(period)
    return None


def group_folders(controller, base):
    try:
        with open("/proc/self/cgroup") as file:
            lines = [line.strip().split(":", 2) for line in file]
    except OSError:
        return
    for _, names, path in lines:
        if controller in names.split(","):
            while True:
                yield base + path.rstrip("/")
                if path.rstrip("/") == "":
                    break
                path = os.path.dirname(path)


def first_line(path):
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return ""


def options():
    """llama-server's flags, those that its adapter and its operators use. An unknown flag ends with status 2."""
    parser = argparse.ArgumentParser(prog="llama_wheel", allow_abbrev=False, description=__doc__.splitlines()[0],
                                     epilog="The key is read from LLAMA_API_KEY, or from --api-key-file.")
    add = parser.add_argument
    add("--version", action="store_true", help="load the library, say its version and end")
    add("-m", "--model", help="path of the GGUF file")
    add("-a", "--alias", help="name under which the model is served")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8080)
    add("--api-key-file", help="a file with one key a line")
    add("-c", "--ctx-size", type=int, default=0, help="context in tokens, of all slots together; 0: the model's own")
    add("-np", "--parallel", type=int, help="slots; without it %d that share the whole context" % DEFAULT_SLOTS)
    add("-n", "--predict", "--n-predict", type=int, default=-1)
    add("-t", "--threads", type=int, help="threads for generation; default: the cores this process may use")
    add("-tb", "--threads-batch", type=int)
    add("-b", "--batch-size", type=int, default=2048)
    add("-ub", "--ubatch-size", type=int, default=512)
    add("-ngl", "--gpu-layers", "--n-gpu-layers", type=int)
    add("--embedding", "--embeddings", action="store_true")
    add("--pooling", choices=POOLING)
    add("--rerank", "--reranking", action="store_true")
    add("--cache-reuse", type=int, default=0)
    add("--metrics", action="store_true")
    add("--slots", action="store_true", default=True)
    add("--no-slots", dest="slots", action="store_false")
    add("--no-warmup", dest="warmup", action="store_false")
    add("-kvu", "--kv-unified", action="store_true")
    add("--jinja", action="store_true", default=True)
    add("--no-jinja", dest="jinja", action="store_false")
    add("-cb", "--cont-batching", action="store_true", default=True)
    add("-nocb", "--no-cont-batching", dest="cont_batching", action="store_false")
    add("--no-webui", "--no-ui", action="store_true", help="accepted; the web page is never served")
    return parser


def keys(path):
    found = [os.environ.pop("LLAMA_API_KEY", "")]
    if path:
        with open(path) as file:
            found += file.read().splitlines()
    return [key.strip() for key in found if key.strip()]


def parameters(lib, flags):
    """The flags as the library's own parameters."""
    params = lib.CommonParams()
    params.model.path = flags.model
    params.model_alias = {flags.alias} if flags.alias else set()
    params.hostnames, params.port, params.ui = [flags.host], flags.port, False
    params.api_keys = keys(flags.api_key_file)
    params.n_ctx, params.n_predict = flags.ctx_size, flags.predict
    params.n_parallel = flags.parallel or DEFAULT_SLOTS
    params.kv_unified = flags.kv_unified or not flags.parallel
    params.cpuparams.n_threads = flags.threads or usable_threads()
    params.cpuparams_batch.n_threads = flags.threads_batch or params.cpuparams.n_threads
    params.n_batch, params.n_ubatch, params.n_cache_reuse = flags.batch_size, flags.ubatch_size, flags.cache_reuse
    if flags.gpu_layers is not None:
        params.n_gpu_layers = flags.gpu_layers
    pooling = "rank" if flags.rerank else flags.pooling
    params.embedding = flags.embedding or flags.rerank
    if pooling:
        params.pooling_type = getattr(lib.llama_pooling_type, "LLAMA_POOLING_TYPE_" + pooling.upper())
    params.endpoint_metrics, params.endpoint_slots = flags.metrics, flags.slots
    params.warmup, params.use_jinja, params.cont_batching = flags.warmup, flags.jinja, flags.cont_batching
    return params


def leave(signum, frame):
    # The library's threads hold no state worth a slow farewell, and its destructor waits for running requests.
    os._exit(0)


def main():
    parser = options()
    flags = parser.parse_args()
    # While the model loads nothing returns to Python, so no handler of Python's would run: the default action ends us.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if flags.version:
        print(version(library()))
        return 0
    if not flags.model:
        parser.error("--model is missing")
    if not os.path.isfile(flags.model):
        parser.error("the model %s does not exist" % flags.model)
    if flags.ctx_size < 0 or (flags.parallel is not None and flags.parallel < 1):
        parser.error("--ctx-size must not be negative and --parallel must be at least 1")
    lib = library()
    print(version(lib), flush=True)
    try:
        server = lib.Server(parameters(lib, flags))
    except Exception as exc:  # the library raises RuntimeError and ValueError alike
        print("llama_wheel: the server did not start: %s" % exc, file=sys.stderr, flush=True)
        os._exit(1)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    print("llama_wheel: ready at %s" % server.listening_address, flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())
