"""The machine as a whole: its names, its clock, its kernel and libraries, its memory and limits."""

from __future__ import annotations

import re

from llmgw.core.findings.rules import Facts, Said, arg, listed, on_preflight, on_probe, raised, rule, version
from llmgw.core.fit import gib
from llmgw.core.packages import VERBS
from llmgw.engines.base import GIB, MIB
from llmgw.model.base import is_name
from llmgw.model.preflight import Preflight
from llmgw.model.probe import Probe

EVERYBODYS = frozenset({"localhost", "localhost.localdomain", "debian", "ubuntu", "fedora", "raspberrypi", "archlinux"})
REAPERS = frozenset(
    {
        "systemd",
        "init",
        "tini",
        "docker-init",
        "dumb-init",
        "catatonit",
        "s6-svscan",
        "runit",
        "runsvdir",
        "supervisord",
    }
    | {"openrc-init", "busybox", "bash", "sh", "dash", "pause", "podman-init", "my_init", "procd", "conmon"}
)
"""Processes that reap what is handed to them when they are process 1."""
SKEW_NOTE, SKEW_WARNING = 5.0, 60.0
"""Seconds."""
KERNEL = (4, 18)
"""That of RHEL 8, the oldest system that engines are built and tested for."""
GLIBC = (2, 17)
"""manylinux2014, what the llama.cpp wheel is built against: PEP 599."""
_MACHINE_ID = re.compile(r"[0-9a-f]{32}")
ENGINE_LIBRARIES = ("libgomp", "libstdc++")
"""Those that engines link to and that have a package of their name."""


@on_probe("hostname_no_name", "error", "Give the node a name with `--name NAME`.")
def hostname_no_name(probe: Probe, facts: Facts) -> Said:
    """A node is called by its hostname, and names are lower-case letters, digits, `.`, `_`, `-`, at most 63."""
    if facts.node_id is not None or is_name(probe.hostname.lower()):
        return None
    return f"its hostname {probe.hostname[:80]!r} cannot be the name of a node"


@on_probe(
    "hostname_everybodys",
    "note",
    "Name the node with `--name NAME`, or the machine: `sudo hostnamectl set-hostname NAME`.",
)
def hostname_everybodys(probe: Probe, facts: Facts) -> Said:
    """A hostname that many machines have: the next one of that name could not be added."""
    if facts.node_id is not None or probe.hostname.lower() not in EVERYBODYS:
        return None
    return f"its hostname is {probe.hostname}, as that of many machines"


@on_probe("hostname_differs", "note")
def hostname_differs(probe: Probe, facts: Facts) -> Said:
    """The node has another name here than its own hostname: worth knowing when you log in to look."""
    if facts.node_id is None or facts.node_id in (probe.hostname.lower(), probe.hostname.lower().split(".")[0]):
        return None
    return f"it calls itself {probe.hostname}, and is the node {facts.node_id} here", ""


@on_preflight("hostname_unresolved", "note", "Add `127.0.1.1 HOSTNAME` to /etc/hosts.")
def hostname_unresolved(preflight: Preflight, facts: Facts) -> Said:
    """The node does not find its own name: sudo waits for it, and torch.distributed and Ray fail on it."""
    if preflight.resolved is not None or "resolved" not in preflight.unknown:
        return None
    line = f"127.0.1.1 {preflight.hostname}"
    return (
        f"it does not find its own name {preflight.hostname}",
        f"echo {arg(line)} | {facts.root('tee -a /etc/hosts')}",
    )


@on_probe("machine_id_missing", "warning", "sudo systemd-machine-id-setup")
def machine_id_missing(probe: Probe, facts: Facts) -> Said:
    """Without /etc/machine-id a machine that took another's address is not noticed: machine-id(5)."""
    said = (probe.machine_id or "").strip()
    if _MACHINE_ID.fullmatch(said):
        return None
    if probe.machine_id is None and not re.search(r"NotFound|No such file", probe.unknown.get("machine_id", "")):
        return None
    what = f"says {said[:40]!r}" if said else "is empty" if probe.machine_id is not None else "is missing"
    return f"/etc/machine-id {what}: the machine cannot be told from another", facts.root("systemd-machine-id-setup")


@rule(
    "machine_id_cloned",
    "warning",
    "On one of them: `sudo rm /etc/machine-id && sudo systemd-machine-id-setup`, then reboot.",
)
def machine_id_cloned(facts: Facts) -> Said:
    """Two machines with one machine id were cloned from one image; DHCP and the journal confuse them too."""
    others = facts.outside.same_machine_id
    renew = f"{facts.root('rm /etc/machine-id')} && {facts.root('systemd-machine-id-setup')}"
    if facts.probe is not None and not _MACHINE_ID.fullmatch(facts.probe.machine_id or ""):
        return None  # that it has none of its own is another finding
    if not others:
        return None
    return (
        f"it has the same machine id as {listed(others)}: an image was cloned",
        f"On one of them: `{renew}`, then reboot.",
    )


@rule("machine_counted_twice", "warning", "Remove one of them: `llmgw node remove`.")
def machine_counted_twice(facts: Facts) -> Said:
    """One machine by two doors, two accounts or two SSH servers: its memory and its cards would be given away twice.
    Containers of one image on one host look the same; there it is as it should be."""
    others = facts.outside.same_machine
    if not others:
        return None
    return (
        f"it is the same machine as {listed(others)} by its machine id and boot id: memory and GPUs are counted twice",
        f"Remove one of them: `llmgw node remove {others[0]}`. Two containers of one image may stay.",
    )


@on_probe("boot_id_unknown", "error", "Mount /proc completely: /proc/sys/kernel/random/boot_id has to be readable.")
def boot_id_unknown(probe: Probe, facts: Facts) -> Said:
    """A process is known by boot id, pid and start time. Without the first an engine could be taken for a stranger."""
    return None if probe.boot_id.strip() else "its boot id cannot be read: no process can be known again for sure"


@rule("clock_wrong", "warning", "sudo timedatectl set-ntp true")
def clock_wrong(facts: Facts) -> Said:
    """A clock off by more than a minute: certificates and logs are wrong. llmgw itself compares no clocks."""
    skew = facts.outside.clock_skew
    if skew is None or abs(skew) <= SKEW_WARNING:
        return None
    return _off(skew), facts.root("timedatectl set-ntp true")


@rule("clock_skew", "note", "sudo timedatectl set-ntp true")
def clock_skew(facts: Facts) -> Said:
    """A clock off by more than five seconds, against the control plane's own."""
    skew = facts.outside.clock_skew
    if skew is None or not SKEW_NOTE < abs(skew) <= SKEW_WARNING:
        return None
    return _off(skew), facts.root("timedatectl set-ntp true")


def _off(skew: float) -> str:
    size = f"{abs(skew):.0f} s" if abs(skew) < 600 else f"{abs(skew) / 3600:.1f} h" if abs(skew) < 172800 else "days"
    return f"its clock is {size} {'ahead of' if skew > 0 else 'behind'} the control plane's"


@on_preflight("clock_unsynchronized", "note", "sudo timedatectl set-ntp true")
def clock_unsynchronized(preflight: Preflight, facts: Facts) -> Said:
    """Nobody keeps the clock (adjtimex(2) says unsynchronised): it will drift."""
    ntp = preflight.ntp
    if ntp is None or ntp.synchronized is not False or (facts.probe and facts.probe.container):
        return None
    by = f"{ntp.source} runs but has not set it" if ntp.source else "no time service runs"
    return f"its clock is not synchronised: {by}", facts.root("timedatectl set-ntp true")


@on_probe(
    "libc_musl", "warning", "Use a glibc distribution, or name an engine built for musl with --engine NAME=/path."
)
def libc_musl(probe: Probe, facts: Facts) -> Said:
    """Engines and CUDA are built for glibc; with musl (Alpine) the llama.cpp wheel does not run."""
    return f"its libc is musl {probe.libc.version or ''}".strip() if probe.libc.kind == "musl" else None


@on_probe("libc_old", "warning", "Upgrade the distribution, or name an engine built there with --engine NAME=/path.")
def libc_old(probe: Probe, facts: Facts) -> Said:
    """Programs built against a newer glibc do not start with an older one; the llama.cpp wheel needs 2.17."""
    have = version(probe.libc.version)
    if probe.libc.kind != "glibc" or not have or have >= GLIBC:
        return None
    return f"its glibc is {probe.libc.version}: the llama.cpp wheel needs {'.'.join(map(str, GLIBC))}"


@on_probe("libc_unknown", "warning", "Name an engine on the node with --engine NAME=/path.")
def libc_unknown(probe: Probe, facts: Facts) -> Said:
    """Which builds run there cannot be told without knowing its libc, so none is installed."""
    if probe.libc.kind is not None:
        return None
    return f"its libc could not be told ({probe.unknown.get('libc', 'no reason given')}): no build can be chosen"


@on_preflight("library_missing", "warning", "Install the library.")
def library_missing(preflight: Preflight, facts: Facts) -> Said:
    """A shared library that the engine's build links to and does not bring along; minimal images lack libgomp."""
    absent = sorted(name for name, there in preflight.libraries.items() if not there and name != VERBS)
    if not absent:
        return None
    fix = facts.install(*missing_libraries(preflight)) or f"Install {listed(absent)} there."
    return f"not found: {listed(absent)}; an engine that links to it does not start", fix


def missing_libraries(preflight: Preflight) -> list[str]:
    """Things of the table of packages that bring what is missing; none where one of it is of no package we know."""
    absent = [name for name, there in preflight.libraries.items() if not there and name != VERBS]
    things = {name: next((thing for thing in ENGINE_LIBRARIES if name.startswith(thing)), None) for name in absent}
    return [] if None in things.values() else sorted({thing for thing in things.values() if thing})


@on_preflight("ldd_missing", "note", "Install it.")
def ldd_missing(preflight: Preflight, facts: Facts) -> Said:
    """Without ldd an engine's libraries are not checked when it is installed; a missing one shows at its start."""
    if preflight.tools.get("ldd", "?") is not None:
        return None
    fix = facts.install("ldd") or "Install ldd there."
    return "there is no ldd: the libraries of an engine are not checked before it starts", fix


@on_probe("kernel_old", "note", "Upgrade the distribution.")
def kernel_old(probe: Probe, facts: Facts) -> Said:
    """A kernel older than that of RHEL 8 (4.18): drivers and engines are no longer tested with it."""
    have = version(probe.os.kernel)[:2]
    return f"its kernel is Linux {probe.os.kernel}" if len(have) == 2 and have < KERNEL else None


@on_probe("wsl", "note")
def on_wsl(probe: Probe, facts: Facts) -> Said:
    """WSL ends its machine when the last window is closed, and NVIDIA's driver there is that of Windows."""
    if not (probe.os.wsl or probe.virtualization == "wsl"):
        return None
    return "it is WSL: Windows may end it when nobody uses it, and its GPU driver is that of Windows", ""


@on_preflight("container_no_init", "note", "Start the container with `--init`.")
def container_no_init(preflight: Preflight, facts: Facts) -> Said:
    """Process 1 of the container takes in orphans and does not reap them: ended engines stay behind as zombies."""
    kind = facts.probe.container if facts.probe else None
    if kind is None or preflight.init is None or preflight.init in REAPERS:
        return None
    return f"it is a {kind} container whose process 1 is {preflight.init}, no init"


@on_probe("memory_unknown", "warning", "Mount /proc completely: /proc/meminfo has to be readable.")
def memory_unknown(probe: Probe, facts: Facts) -> Said:
    """Where memory is not known nothing is placed: nobody could say whether it fits."""
    if probe.memory.total is not None:
        return None
    return f"its memory could not be read ({probe.unknown.get('memory', 'no reason given')})"


@on_probe("memory_low", "warning", "Use a machine with more memory, or raise the limit.")
def memory_low(probe: Probe, facts: Facts) -> Said:
    """Under two GiB only toy models fit beside the system."""
    usable = probe.memory.usable
    return (
        f"it has {gib(usable)} of memory for everything" if usable is not None and usable < 2 * GIB - 64 * MIB else None
    )


@on_probe("memory_limited", "note")
def memory_limited(probe: Probe, facts: Facts) -> Said:
    """A control group allows less memory than the machine has: that is what replicas are placed by."""
    limit, total = probe.memory.cgroup_limit, probe.memory.total
    if limit is None or total is None or limit >= total:
        return None
    return f"its control group allows {gib(limit)} of the machine's {gib(total)} of memory", ""


@on_probe(
    "swap_in_use",
    "warning",
    "Find who fills the memory (`ps aux --sort -rss | head`), then `sudo swapoff -a && sudo swapon -a`.",
)
def swap_in_use(probe: Probe, facts: Facts) -> Said:
    """Memory is short: an engine whose weights are swapped out answers in minutes."""
    total, free = probe.memory.swap_total, probe.memory.swap_free
    if total is None or free is None or total - free < max(512 * MIB, total // 10):
        return None
    empty = f"{facts.root('swapoff -a')} && {facts.root('swapon -a')}"
    fix = f"Find who fills the memory (`ps aux --sort -rss | head`), then `{empty}`."
    return f"{gib(total - free)} of its {gib(total)} of swap are in use", fix


@on_probe("huge_pages_reserved", "note", "Where nobody needs them: `sudo sysctl vm.nr_hugepages=0`.")
def huge_pages_reserved(probe: Probe, facts: Facts) -> Said:
    """Memory set aside as huge pages is lost to engines, which allocate ordinary pages."""
    pages, total = probe.memory.huge_pages, probe.memory.total
    if not pages or not total or pages < total // 10:
        return None
    fix = f"Where nobody needs them: `{facts.root('sysctl vm.nr_hugepages=0')}`."
    return f"{gib(pages)} of its {gib(total)} of memory are set aside as huge pages", fix


@on_preflight("overcommit_strict", "warning", "sudo sysctl vm.overcommit_memory=0")
def overcommit_strict(preflight: Preflight, facts: Facts) -> Said:
    """vm.overcommit_memory=2 refuses memory that is not backed: CUDA and vLLM reserve far more than they use."""
    if preflight.oom.overcommit != 2:
        return None
    return "vm.overcommit_memory is 2: engines that reserve much address space fail", facts.root(
        "sysctl vm.overcommit_memory=0"
    )


def _few(facts: Facts, item: str, most: int | None, least: int, of: str) -> Said:
    """A limit of a number of things that is too low; below zero is no limit."""
    if most is None or not 0 <= most < least:
        return None
    return f"{facts.user} may {of.format(most)} at most", raised(facts, item, "65536", "hard")


@on_probe("nofile_low", "warning", "Raise `nofile` in /etc/security/limits.conf, then log in again.")
def nofile_low(probe: Probe, facts: Facts) -> Said:
    """An engine needs a file descriptor a connection, and one for each part of its weights."""
    return _few(facts, "nofile", probe.limits.nofile if probe.limits else None, 4096, "open {} files")


@on_probe("nproc_low", "warning", "Raise `nproc` in /etc/security/limits.conf, then log in again.")
def nproc_low(probe: Probe, facts: Facts) -> Said:
    """Threads count as processes: an engine on a large machine starts some thousands of them."""
    return _few(facts, "nproc", probe.limits.nproc if probe.limits else None, 2048, "have {} processes and threads")
