"""Every hardware and health fact of a node in one document. Looks, and writes nothing.

Facts only: what they mean is judged by the control plane. A fact that cannot be had is null and says why under
`unknown`. Its parts are the files probe_*.py, sent along with it; each tool that is started has a deadline of its own.
"""
import os
import sys
import time

import prelude
import probe_facts
import probe_network
import probe_pci
import probe_storage
import probe_system
from probe_facts import Later, fact, unknown

# Where WSL, Google's nodes and NixOS keep it.
SMI_PLACES = ("/usr/lib/wsl/lib", "/usr/local/nvidia/bin", "/run/current-system/sw/bin")


def owner():
    """Which control plane this node obeys. At first contact its id is not given yet: by default it is the hostname."""
    if not prelude.args.get("node_id"):
        prelude.args["node_id"] = os.uname()[1].lower()
    try:
        prelude.host_path()
    except prelude.Failure:  # a hostname that is no id: no node can have been added by it
        return None
    found = prelude.read_json(os.path.join(prelude.host_path(), "term"), prelude.TERM)
    return found and {"controller_id": found["controller_id"], "term": found["term"]}


def kernel_log():
    import probe_kernel_log
    return probe_kernel_log.xids()


def nvidia(cards, switches, total):
    """(the NVIDIA document or null, its GPUs, rows of the processes on them): null where there is no sign of it."""
    tool = prelude.args.get("nvidia_smi") or probe_facts.find_tool("nvidia-smi", SMI_PLACES)
    tool = tool if tool and os.access(tool, os.X_OK) and os.path.isfile(tool) else None
    if not (tool or switches or has_nvidia(cards) or probe_facts.tegra()):
        return None, [], []
    import probe_nvidia
    return probe_nvidia.look(tool, cards, switches, total)


def has_nvidia(cards):
    return any(card.vendor == "nvidia" for card in cards) or os.path.isdir(probe_facts.PROC + "/driver/nvidia")


def gpus(total):
    """{vendor documents, gpus, xid …}: the slow tools run beside each other and beside the rest of the facts."""
    cards, switches = fact("pci", probe_pci.devices) or ([], 0)
    log = Later(kernel_log) if has_nvidia(cards) else None
    about, found, apps = fact("gpus.nvidia", nvidia, cards, switches, total) or (None, [], [])
    nodes = fact("gpus.kfd", probe_pci.kfd_nodes) or {}
    amd, amds = fact("gpus.amd", probe_pci.amd, cards, nodes) or (None, [])
    intel, intels = fact("gpus.intel", probe_pci.intel, cards) or (None, [])
    found += amds + intels + (fact("gpus.other", probe_pci.others, cards) or [])
    for place, gpu in enumerate(found):
        for key, why in gpu.pop("_why").items():
            unknown["gpus.%d.%s" % (place, key)] = why
    return {"nvidia": about, "amd": amd, "intel": intel, "gpus": found, "_apps": apps, "_nodes": nodes,
            "xid": fact("xid", log.get) if log else []}


def processes(found, marks):
    apps, nodes = found.pop("_apps"), found.pop("_nodes")
    if not found["gpus"]:
        return []
    import probe_processes
    return fact("gpu_processes", probe_processes.holders, apps, found["gpus"], nodes, marks) or []


def nothing(*keys):
    return dict.fromkeys(keys)


def main(args):
    started, ports = time.time(), args.get("ports") or (0, 0)
    ram = fact("memory", probe_system.memory) or nothing("total", "available", "cgroup_limit")
    cards = Later(gpus, ram["total"])
    marks = list(prelude.tagged())
    # All that is asked of file systems: a dead server of files keeps its own facts only.
    disks, root = Later(probe_storage.disks), Later(probe_storage.root)
    owned, mode = Later(owner, seconds=3.0), Later(probe_system.home_mode, seconds=3.0)
    document = {
        "schema": 2, "at": started, "hostname": os.uname().nodename, "boot_id": fact("boot_id", prelude.boot_id),
        "machine_id": fact("machine_id", probe_facts.read, probe_facts.ROOT + "/etc/machine-id"),
        "uptime_s": fact("uptime_s", probe_system.uptime),
        "python": {"executable": sys.executable, "version": ".".join(map(str, sys.version_info[:3]))},
        "user": probe_system.user(), "home_mode": fact("home_mode", mode.get),
        "os": probe_system.system(), "libc": fact("libc", probe_system.libc) or nothing("kind", "version"),
        "virtualization": fact("virtualization", probe_system.virtualization),
        "container": fact("container", probe_system.container),
        "cpu": fact("cpu", probe_system.cpu) or nothing("model", "cores", "threads", "level"),
        "load": fact("load", lambda: list(os.getloadavg())), "memory": ram,
        "disks": fact("disks", disks.get) or [], "root": root.get(), "owner": fact("owner", owned.get),
        "fabric": fact("fabric", probe_network.fabric), "interfaces": fact("interfaces", probe_network.interfaces),
        "ports_in_use": fact("ports_in_use", probe_network.ports_in_use, ports),
        "limits": fact("limits", probe_system.limits),
        "kernel_modules": fact("kernel_modules", probe_system.kernel_modules)}
    document["management"] = fact("management", probe_network.management, document["interfaces"])
    keys = ("pid", "start_ticks", "replica", "rank", "attempt", "cluster", "rss", "cpu_seconds")
    document["processes"] = [{key: mark[key] for key in keys} for mark in marks]
    found = fact("gpus", cards.get) or dict(nothing("nvidia", "amd", "intel", "xid"), gpus=[], _apps=[], _nodes={})
    document["gpu_processes"] = processes(found, marks)
    document.update(found, unknown=unknown)
    return document


prelude.main(main)
