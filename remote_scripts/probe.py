"""Every hardware and health fact of a node in one document. Looks, and writes nothing.

A fact that cannot be had is null and says why under `unknown`; what an operator should mend is a problem with its fix.
Each tool that is started has a deadline of its own: a hanging nvidia-smi must not cost the rest.
"""
import glob
import os
import re
import stat
import sys
import time

import prelude

SYS = prelude.args.get("_sys") or "/sys"
PROC = prelude.args.get("_proc") or "/proc"
SMI_SECONDS = float(prelude.args.get("_smi_seconds") or 10)
SMI_PLACES = ("/usr/bin", "/usr/local/bin", "/usr/lib/wsl/lib", "/opt/bin")
SMI_FIELDS = ("index", "uuid", "name", "pci.bus_id", "memory.total", "memory.used", "utilization.gpu",
              "temperature.gpu", "driver_version")
SMI_NEWER = ("mig.mode.current", "compute_cap")  # older drivers refuse a query that names these
FLAGS = re.compile(r"(sse4_2|avx.*|fma|f16c|bmi2|amx_.*|asimd.*|fphp|sve2?|i8mm|bf16|hypervisor)\Z")
LEVELS = (("x86-64-v2", "cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3"),
          ("x86-64-v3", "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"),
          ("x86-64-v4", "avx512f avx512bw avx512cd avx512dq avx512vl"))
VENDORS = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
MACHINES = (("amazon", "aws"), ("google", "gce"), ("qemu", "kvm"), ("kvm", "kvm"), ("vmware", "vmware"), ("xen", "xen"),
            ("virtualbox", "virtualbox"), ("innotek", "virtualbox"), ("virtual machine", "hyperv"))
unknown = {}
problems = []


def fact(name, function, *given):
    """A fact, or null and the reason."""
    try:
        return function(*given)
    except Exception as exc:  # whatever a strange machine answers, the rest is still told
        unknown[name] = "%s: %s" % (type(exc).__name__, exc)
        return None


def problem(code, message, fix, severity="error"):
    problems.append({"code": code, "severity": severity, "message": message, "fix": fix})


def read(path, default=None):
    """A small file as text; `default` (when given) in place of an error."""
    try:
        with open(path, "rb") as file:
            return file.read(1 << 20).decode("utf-8", "replace").strip("\0\n ")
    except OSError:
        if default is None:
            raise
        return default


def number(text):
    """A number from a tool or a file; null for what is none ([N/A], ERR!, [Not Supported])."""
    match = re.match(r"-?\d+(\.\d+)?\Z", text.strip())
    return None if not match else float(text) if match.group(1) else int(text)


# ---- system ----

def system():
    lines = (line.partition("=") for line in read("/etc/os-release", "").splitlines())
    words = {key: value.strip("\"'") for key, _, value in lines}
    name = os.uname()
    return {"id": words.get("ID"), "version": words.get("VERSION_ID"), "pretty": words.get("PRETTY_NAME"),
            "kernel": name.release, "arch": name.machine}


def libc():
    try:
        kind, version = os.confstr("CS_GNU_LIBC_VERSION").split()
        return {"kind": kind, "version": version}
    except (ValueError, OSError, AttributeError):
        loader = glob.glob("/lib/ld-musl-*.so.1")[0]
        found = re.search(r"Version (\S+)", prelude.run([loader], 2)[2])
        return {"kind": "musl", "version": found.group(1) if found else None}


def uptime():
    return float(read(PROC + "/uptime").split()[0])


def user():
    import pwd
    entry = pwd.getpwuid(os.geteuid())
    return {"name": entry.pw_name, "uid": entry.pw_uid, "home": prelude.home(), "shell": entry.pw_shell}


def virtualization():
    """What this machine is made of: a container inside, else the hypervisor, else "none"."""
    if "microsoft" in read(PROC + "/version", "").lower():
        return "wsl"
    for path, kind in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if os.path.exists(path):
            return kind
    container = read("/run/systemd/container", "") or re.findall(r"\0container=(\w+)", read(PROC + "/1/environ", "."))
    if container:
        return container if isinstance(container, str) else container[0]
    board = "%s %s" % (read(SYS + "/class/dmi/id/sys_vendor", ""), read(SYS + "/class/dmi/id/product_name", ""))
    for word, kind in MACHINES:
        if word in board.lower():
            return kind
    return "vm" if re.search(r"^flags\s*:.*\bhypervisor\b", read(PROC + "/cpuinfo"), re.M) else "none"


def cpu():
    text = read(PROC + "/cpuinfo")
    first = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        first.setdefault(key.strip().lower(), value.strip())
    flags = set((first.get("flags") or first.get("features") or "").split())
    threads = len(re.findall(r"^processor\s*:", text, re.M)) or os.cpu_count()
    pairs = set(re.findall(r"^physical id\s*: (\d+)$(?:.|\n(?!\n))*?^core id\s*: (\d+)$", text, re.M))
    if not pairs:
        folders = glob.glob(SYS + "/devices/system/cpu/cpu[0-9]*/topology")
        pairs = {(read(each + "/physical_package_id", "0"), read(each + "/core_id", "?")) for each in folders}
    model = first.get("model name") or read(PROC + "/device-tree/model", "")
    model = model or "ARM implementer %s part %s" % (first.get("cpu implementer"), first.get("cpu part"))
    level = level_of(flags, os.uname().machine)
    if level.startswith("x86-64") and "avx2" not in flags:
        problem("cpu_no_avx2", "the CPU shows no AVX2: engines will not start, or crawl",
                "In a virtual machine set its CPU type to `host`; otherwise use another machine.", "warning")
    return {"model": model, "cores": len(pairs) or None, "threads": threads, "usable": len(os.sched_getaffinity(0)),
            "flags": sorted(filter(FLAGS.match, flags)), "level": level}


def level_of(flags, machine):
    if machine in ("x86_64", "amd64"):
        level = "x86-64-v1"
        for name, needed in LEVELS:
            if not set(needed.split()) <= flags:
                break
            level = name
        return level
    if machine.startswith(("aarch64", "arm")):
        return "armv9" if "sve2" in flags else "armv8.2" if "asimddp" in flags else "armv8"
    return machine


def memory():
    words = dict(re.findall(r"^(\w+):\s+(\d+) kB", read(PROC + "/meminfo"), re.M))
    total, free = int(words["MemTotal"]) << 10, words.get("MemAvailable")
    limits = [limit for limit in cgroup_limits() if limit < total]
    return {"total": total, "available": free and int(free) << 10, "cgroup_limit": min(limits) if limits else None}


def cgroup_limits():
    """Memory limits of our control group and of those above it, version 1 and 2."""
    for line in read(PROC + "/self/cgroup", "").splitlines():
        _, names, path = line.split(":", 2)
        if names not in ("", "memory"):
            continue
        bases = [SYS + "/fs/cgroup/memory"] if names else [SYS + "/fs/cgroup", SYS + "/fs/cgroup/unified"]
        while True:
            for base in bases:
                text = read(base + path + ("/memory.limit_in_bytes" if names else "/memory.max"), "-")
                if text.isdigit():
                    yield int(text)
            if path.strip("/") == "":
                break
            path = os.path.dirname(path)


def nearest(path):
    """The path itself, or what is there of it."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def disks():
    found, seen = [], set()
    for path in (prelude.root_path(), prelude.home(), "/"):
        entry = disk(path)
        if entry and entry["device"] not in seen:
            seen.add(entry["device"])
            found.append(entry)
    return found


def disk(path):
    there = os.path.realpath(nearest(path))
    room, mounts = os.statvfs(there), []
    for line in read("/proc/self/mountinfo").splitlines():
        head, _, tail = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda match: chr(int(match.group(1), 8)), head.split()[4])
        if there == point or there.startswith(point.rstrip("/") + "/"):
            mounts.append((len(point), len(mounts), tail.split()))  # of two on one point the later one counts
    kind, device = max(mounts)[2][:2] if mounts else (None, None)
    return {"path": path, "device": device, "fs": kind, "total": room.f_blocks * room.f_frsize,
            "free": room.f_bavail * room.f_frsize, "noexec": bool(room.f_flag & os.ST_NOEXEC),
            "read_only": bool(room.f_flag & os.ST_RDONLY)}


def root():
    path = prelude.root_path()
    there, place = nearest(path), disk(path)
    fault = prelude.fault_of(path) if os.path.lexists(path) else None
    writable = not fault and not place["read_only"] and os.access(there, os.W_OK | os.X_OK)
    if fault:
        problem("unsafe_root", "%s %s" % (path, fault), "Correct its owner and mode, or name another --root.")
    elif not writable:
        problem("unwritable_root", "%s cannot be written by this user" % there, "Name a writable --root.")
    if place["noexec"]:
        problem("noexec_root", "%s is mounted noexec: engines cannot run from there" % there, "Name another --root.")
    if place["free"] < 1 << 30:
        problem("low_disk", "%d MB free at %s" % (place["free"] >> 20, there), "Free some space there.", "warning")
    return {"path": path, "exists": os.path.isdir(path), "writable": writable, "free": place["free"],
            "noexec": place["noexec"], "owner_ok": fault is None}


def owner():
    """Which control plane this node obeys. At first contact its id is not given yet: by default it is the hostname."""
    if not prelude.args.get("node_id"):
        prelude.args["node_id"] = os.uname()[1].lower()
    try:
        prelude.host_path()
    except prelude.Failure:  # a hostname that is no id: no node can have been added by it
        return None
    found = prelude.read_json(os.path.join(prelude.host_path(), "term"))
    return found and {"controller_id": found["controller_id"], "term": found["term"]}


def limits():
    """Hard limit of open files (engines are started with it) and of locked memory; -1 is unlimited."""
    import resource
    return {"nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
            "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]}


# ---- GPUs ----

def nvidia_smi():
    given = prelude.args.get("nvidia_smi")
    places = os.environ.get("PATH", "").split(":") + list(SMI_PLACES)
    paths = [given] if given else [os.path.join(place, "nvidia-smi") for place in places if place.startswith("/")]
    return next((path for path in paths if os.access(path, os.X_OK) and os.path.isfile(path)), None)


def query(tool, what, fields):
    """Rows of a query, each a list of fields; a Failure with the tool's own words when it gives none."""
    status, out, err = prelude.run([tool, "--query-%s=%s" % (what, ",".join(fields)), "--format=csv,noheader,nounits"],
                                   SMI_SECONDS)
    if status is None:
        prelude.fail("gpu_tool_hangs", "nvidia-smi did not answer in %d s" % SMI_SECONDS)
    if status != 0:
        prelude.fail("gpu_error", " ".join((out + err).split())[:300] or "nvidia-smi ended with %d" % status)
    rows = [[word.strip() for word in line.split(",")] for line in out.splitlines() if line.strip()]
    return [row for row in rows if len(row) == len(fields)]


def nvidia(total):
    """(the nvidia document or null, its GPUs, processes on them)"""
    cards = [path for path in glob.glob(SYS + "/bus/pci/devices/*") if read(path + "/vendor", "") == "0x10de"
             and read(path + "/class", "").startswith("0x03")]
    module = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d[\d.]+)", read(PROC + "/driver/nvidia/version", ""))
    tool = nvidia_smi()
    about = {"driver": None, "kernel_module": module and module.group(1), "cuda": None, "cards_on_pci": len(cards)}
    gpus, apps, failed = [], [], None
    if tool:
        try:
            gpus = smi_gpus(tool, total)
            apps = query(tool, "compute-apps", ("gpu_uuid", "pid", "used_memory")) if gpus else []
            about["driver"] = gpus[0]["driver"] if gpus else None
            found = re.search(r"CUDA (?:UMD )?Version\s*:\s*([\d.]+)", prelude.run([tool, "--version"], SMI_SECONDS)[1])
            about["cuda"] = found and found.group(1)
        except (prelude.Failure, OSError) as exc:
            failed = exc
            unknown["gpus.nvidia"] = str(exc)
    judge_nvidia(tool, about, gpus, failed)
    return (about if tool or cards or module else None), gpus, apps


def judge_nvidia(tool, about, gpus, failed):
    """The trouble in words, and what mends it."""
    cards = about["cards_on_pci"]
    if failed and "version mismatch" in str(failed):
        problem("gpu_driver_mismatch", "the NVIDIA driver was updated while its old kernel module (%s) is still loaded"
                % (about["kernel_module"] or "?"), "Reboot the node, or unload and reload the nvidia modules.")
    elif failed and getattr(failed, "code", "") == "gpu_tool_hangs":
        problem("gpu_tool_hangs", str(failed), "Look for Xid errors in dmesg; a hanging GPU needs a reboot.")
    elif failed and (cards or about["kernel_module"]):
        problem("gpu_error", "nvidia-smi: %s" % failed, "Install or repair the NVIDIA driver, then probe again.")
    elif cards and not tool:
        problem("gpu_no_driver", "%d NVIDIA card(s) on PCI, but no nvidia-smi was found" % cards,
                "Install the NVIDIA driver, or say where it is with --nvidia-smi.")
    elif not failed and cards > len(gpus):
        problem("gpu_missing", "%d NVIDIA card(s) on PCI, the driver shows %d" % (cards, len(gpus)),
                "Look for Xid errors in dmesg: a card may have fallen off the bus. Reboot the node.")


def smi_gpus(tool, total):
    fields = SMI_FIELDS + SMI_NEWER
    try:
        rows = query(tool, "gpu", fields)
    except prelude.Failure as exc:
        if "not a valid field" not in str(exc):
            raise
        rows, fields = query(tool, "gpu", SMI_FIELDS), SMI_FIELDS
    return [smi_gpu(dict(zip(fields, row)), total) for row in rows]  # noqa: B905


def smi_gpu(row, total):
    """One GPU. Where it has no memory of its own to report (GB10, Jetson) it shares the machine's."""
    own, used = number(row["memory.total"]), number(row["memory.used"])
    used = used << 20 if own and used is not None else None
    mig, capability = row.get("mig.mode.current", ""), row.get("compute_cap", "")
    return {"index": number(row["index"]), "vendor": "nvidia", "uuid": row["uuid"], "name": row["name"],
            "pci": row["pci.bus_id"], "memory_kind": "dedicated" if own else "unified",
            "memory_total": own << 20 if own else total, "memory_used": used,
            "utilization": number(row["utilization.gpu"]), "temperature": number(row["temperature.gpu"]),
            "driver": row["driver_version"], "mig": {"Enabled": True, "Disabled": False}.get(mig),
            "compute_capability": capability if number(capability) is not None else None}


def sysfs_gpus():
    """AMD and Intel cards as the kernel's own drivers describe them."""
    cards = sorted(glob.glob(SYS + "/class/drm/card[0-9]*"), key=lambda path: (len(path), path))
    for card in cards:
        device = card + "/device"
        vendor = VENDORS.get(read(device + "/vendor", ""))
        if vendor in ("amd", "intel") and "-" not in os.path.basename(card):
            yield sysfs_gpu(vendor, device)


def sysfs_gpu(vendor, device):
    vram, gtt = (number(read("%s/mem_info_%s_total" % (device, kind), "")) for kind in ("vram", "gtt"))
    shared = vendor == "amd" and bool(vram and gtt and vram <= 4 << 30 and gtt > vram)  # an APU, its carve-out small
    heat = [number(read(path, "")) for path in glob.glob(device + "/hwmon/hwmon*/temp1_input")]
    place, driver = os.path.basename(os.path.realpath(device)), device + "/driver"
    return {"vendor": vendor, "uuid": read(device + "/unique_id", "") or place, "pci": place,
            "name": read(device + "/product_name", "") or "%s GPU %s" % (vendor.upper(), read(device + "/device", "?")),
            "memory_kind": "shared" if shared else "dedicated" if vram else "unknown",
            "memory_total": vram + gtt if shared else vram,
            "memory_used": number(read(device + "/mem_info_vram_used", "")),
            "utilization": number(read(device + "/gpu_busy_percent", "")),
            "temperature": heat[0] // 1000 if heat and heat[0] is not None else None,
            "driver": os.path.basename(os.path.realpath(driver)) if os.path.exists(driver) else None,
            "mig": None, "compute_capability": None}


def gpu_process(row, ours, alive):
    """Who holds memory of a GPU: ours, an orphan that no living engine of ours accounts for, or somebody else."""
    import pwd
    pid, memory_used = int(row[1]), number(row[2])
    mark = ours.get(pid)
    key = mark and (mark["replica"], mark["rank"], mark["attempt"])
    try:
        uid = os.stat("/proc/%d" % pid).st_uid
        name = read("/proc/%d/comm" % pid, "") or None
    except OSError:  # of another pid namespace
        uid = name = None
    try:
        login = None if uid is None else pwd.getpwuid(uid).pw_name
    except KeyError:
        login = str(uid)
    return {"gpu": row[0], "pid": pid, "user": login, "name": name, "memory": memory_used and memory_used << 20,
            "owner": "theirs" if not mark else "ours" if key in alive else "orphan",
            "replica": mark["replica"] if mark else None}


def living_shards():
    """(replica, rank, attempt) of every manifest here whose engine lives."""
    if not prelude.args.get("node_id"):
        return
    for path in glob.glob(os.path.join(glob.escape(prelude.host_path()), "replicas/*/manifest.json")):
        try:
            record = prelude.read_json(path)
            found = prelude.process(record["pid"])
            if found and found["start_ticks"] == record["start_ticks"]:
                yield record["replica"], record["rank"], record["attempt"]
        except (OSError, ValueError, KeyError, TypeError, prelude.Failure):
            continue


# ---- fabric, ports, all of it ----

def fabric():
    base = prelude.args.get("ib_root") or SYS + "/class/infiniband"
    found = []
    for path in sorted(glob.glob(os.path.join(glob.escape(base), "*/ports/*"))):
        hca, port = path.split("/")[-3], path.split("/")[-1]
        nets = sorted(os.path.basename(each) for each in glob.glob(os.path.join(base, hca, "device/net/*")))
        found.append({"hca": hca, "port": number(port), "state": read(path + "/state", "").split(": ")[-1],
                      "link_layer": read(path + "/link_layer", ""), "rate": read(path + "/rate", ""), "nets": nets})
    return found


def ports_in_use(ports):
    """Ports of the engines' range on which somebody listens."""
    found = set()
    for name in ("tcp", "tcp6"):
        for line in read("%s/net/%s" % (PROC, name), "").splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                found.add(int(words[1].rsplit(":", 1)[1], 16))
    return sorted(port for port in found if ports[0] <= port <= ports[1])


def check_private(home):
    """sshd ignores keys in a home that others can write: worth knowing before the key is needed."""
    if os.stat(home).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        problem("loose_home", "%s is writable by others: sshd will ignore its authorized_keys" % home,
                "chmod go-w %s" % home, "warning")


def main(args):
    started, ports = time.time(), args.get("ports") or (0, 0)
    ram = fact("memory", memory) or {"total": None, "available": None, "cgroup_limit": None}
    marks = list(prelude.tagged())
    about, gpus, apps = fact("gpus", nvidia, ram["total"]) or (None, [], [])
    for gpu in fact("gpus.sysfs", lambda: list(sysfs_gpus())) or []:
        gpus.append(dict(gpu, index=len(gpus)))
    alive, ours = set(living_shards()), {mark["pid"]: mark for mark in marks}
    holders = [fact("gpu_processes", gpu_process, row, ours, alive) for row in apps]
    keys = ("pid", "start_ticks", "replica", "rank", "attempt", "cluster", "rss", "cpu_seconds")
    fact("home", check_private, prelude.home())
    return {
        "schema": 1, "at": started, "hostname": os.uname().nodename, "boot_id": fact("boot_id", prelude.boot_id),
        "machine_id": fact("machine_id", read, "/etc/machine-id"), "uptime_s": fact("uptime_s", uptime),
        "python": {"executable": sys.executable, "version": ".".join(map(str, sys.version_info[:3]))},
        "user": fact("user", user), "os": fact("os", system), "libc": fact("libc", libc),
        "virtualization": fact("virtualization", virtualization), "cpu": fact("cpu", cpu),
        "load": fact("load", lambda: list(os.getloadavg())), "memory": ram, "disks": fact("disks", disks),
        "gpus": gpus, "gpu_processes": [each for each in holders if each], "nvidia": about,
        "fabric": fact("fabric", fabric), "ports_in_use": fact("ports_in_use", ports_in_use, ports),
        "processes": [{key: mark[key] for key in keys} for mark in marks], "limits": fact("limits", limits),
        "root": fact("root", root), "owner": fact("owner", owner), "unknown": unknown, "problems": problems}


prelude.main(main)
