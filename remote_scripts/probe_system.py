"""The machine under everything: system, C library, user, hypervisor, container, CPU, memory, limits."""
import os
import re

import prelude
import probe_facts
from probe_facts import PROC, ROOT, SYS, count, names, read

MACHINE = prelude.args.get("_arch") or os.uname().machine
FLAGS = re.compile(r"(sse4_2|avx.*|fma|f16c|bmi2|amx_.*|asimd.*|fphp|sve2?|i8mm|bf16|hypervisor)\Z")
LEVELS = (("x86-64-v2", "cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3"),
          ("x86-64-v3", "avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"),
          ("x86-64-v4", "avx512f avx512bw avx512cd avx512dq avx512vl"))  # the psABI's levels
HYPERVISORS = (("amazon", "aws"), ("google compute", "gce"), ("openstack", "kvm"), ("qemu", "kvm"), ("bochs", "kvm"),
               ("kvm", "kvm"), ("vmware", "vmware"), ("virtualbox", "virtualbox"), ("innotek", "virtualbox"),
               ("xen", "xen"), ("virtual machine", "hyperv"), ("bhyve", "bhyve"), ("parallels", "parallels"))
MAKERS = {"0x41": "ARM", "0x42": "Broadcom", "0x43": "Cavium", "0x46": "Fujitsu", "0x48": "HiSilicon", "0x4e": "NVIDIA",
          "0x51": "Qualcomm", "0x61": "Apple", "0xc0": "Ampere"}
PARTS = {("0x41", "0xd03"): "Cortex-A53", ("0x41", "0xd08"): "Cortex-A72", ("0x41", "0xd0b"): "Cortex-A76",
         ("0x41", "0xd0c"): "Neoverse-N1", ("0x41", "0xd40"): "Neoverse-V1", ("0x41", "0xd42"): "Cortex-A78AE",
         ("0x41", "0xd49"): "Neoverse-N2", ("0x41", "0xd4f"): "Neoverse-V2", ("0x41", "0xd83"): "Neoverse-V3AE",
         ("0x41", "0xd84"): "Neoverse-V3", ("0x41", "0xd85"): "Cortex-X925", ("0x41", "0xd87"): "Cortex-A725",
         ("0xc0", "0xac3"): "Ampere-1", ("0xc0", "0xac4"): "Ampere-1a"}  # as lscpu of util-linux has them
MODULES = ("nvidia", "nvidia_uvm", "nvidia_fs", "nvidia_peermem", "nv_peer_mem", "nouveau", "vfio_pci", "amdgpu",
           "i915", "xe", "habanalabs", "ib_core", "ib_uverbs", "mlx5_core", "mlx5_ib", "gdrdrv")


def system():
    lines = (line.partition("=") for line in read(ROOT + "/etc/os-release", "").splitlines())
    words = {key: value.strip("\"'") for key, _, value in lines}
    name = os.uname()
    return {"id": words.get("ID"), "version": words.get("VERSION_ID"), "pretty": words.get("PRETTY_NAME"),
            "kernel": read(PROC + "/sys/kernel/osrelease", "") or name.release, "arch": MACHINE, "wsl": is_wsl()}


def is_wsl():
    return "microsoft" in read(PROC + "/version", "").lower()


def libc():
    loaders = ["/lib/" + each for each in names(ROOT + "/lib") if each.startswith("ld-musl-")]
    if loaders:  # it tells its version on stderr, and refuses for want of a program
        found = re.search(r"Version (\S+)", probe_facts.run([ROOT + loaders[0]], 2)[2])
        return {"kind": "musl", "version": found.group(1) if found else None}
    kind, version = os.confstr("CS_GNU_LIBC_VERSION").split()
    return {"kind": kind, "version": version}


def user():
    import pwd
    uid = os.geteuid()
    try:
        entry = pwd.getpwuid(uid)
        return {"name": entry.pw_name, "uid": uid, "home": prelude.home(), "shell": entry.pw_shell}
    except KeyError:  # a container may run under a number that no file names
        return {"name": str(uid), "uid": uid, "home": prelude.home(), "shell": None}


def home_mode():
    return os.stat(prelude.home()).st_mode & 0o7777


def uptime():
    return float(read(PROC + "/uptime").split()[0])


def virtualization():
    """The hypervisor that this machine shows, else "none"."""
    if is_wsl():
        return "wsl"
    board = "%s %s" % (read(SYS + "/class/dmi/id/sys_vendor", ""), read(SYS + "/class/dmi/id/product_name", ""))
    flagged = re.search(r"^flags\s*:.*\bhypervisor\b", read(PROC + "/cpuinfo"), re.M)
    if ".metal" in board and not flagged:
        return "none"
    if read(SYS + "/hypervisor/type", "") == "xen":
        return "xen"
    for word, kind in HYPERVISORS:
        if re.search(r"\b" + word, board.lower()):
            return kind
    return "vm" if flagged else "none"


def container():
    """What kind of container this is, by the marks that each runtime leaves; null outside of any."""
    groups = read(PROC + "/1/cgroup", "")
    if os.path.isdir(ROOT + "/var/run/secrets/kubernetes.io") or "kubepods" in groups:
        return "kubernetes"
    for path, kind in (("/.dockerenv", "docker"), ("/run/.containerenv", "podman")):
        if os.path.exists(ROOT + path):
            return kind
    told = re.findall(r"(?:^|\0)container=(\w+)", read(PROC + "/1/environ", "."))
    told = read(ROOT + "/run/systemd/container", "") or (told[0] if told else "")
    return told or ("docker" if "/docker/" in groups else "lxc" if "/lxc/" in groups else None)


def cpu():
    text = read(PROC + "/cpuinfo")
    first = {}
    for line in text.split("\n\n", 1)[0].splitlines() + text.splitlines()[-8:]:
        key, _, value = line.partition(":")
        first.setdefault(key.strip().lower(), value.strip())
    flags = set((first.get("flags") or first.get("features") or "").split())
    maker, part = first.get("cpu implementer"), first.get("cpu part")
    arm = "%s %s" % (MAKERS.get(maker, maker), PARTS.get((maker, part), part)) if maker else None
    threads = len(re.findall(r"^processor\s*:", text, re.M)) or os.cpu_count()
    return {"model": first.get("model name") or arm or read(PROC + "/device-tree/model", "") or None,
            "vendor": first.get("vendor_id") or MAKERS.get(maker, maker), "cores": cores(text), "threads": threads,
            "usable": len(os.sched_getaffinity(0)), "flags": sorted(filter(FLAGS.match, flags)),
            "level": level_of(flags, MACHINE),
            "hypervisor": "hypervisor" in flags if MACHINE in ("x86_64", "amd64") else None}


def cores(text):
    """Pairs of socket and core: threads of one core share them."""
    pairs = set(zip(re.findall(r"^physical id\s*: (\d+)$", text, re.M),  # noqa: B905
                    re.findall(r"^core id\s*: (\d+)$", text, re.M)))
    if not pairs:
        base = SYS + "/devices/system/cpu"
        for each in names(base):
            place = "%s/%s/topology" % (base, each)
            if re.match(r"cpu\d+\Z", each) and os.path.isdir(place):
                pairs.add((read(place + "/physical_package_id", "0"), read(place + "/core_id", "?")))
    return len(pairs) or None


def level_of(flags, machine):
    if machine in ("x86_64", "amd64"):
        level = "x86-64-v1"
        for name, needed in LEVELS:
            if not set(needed.split()) <= flags:
                break
            level = name
        return level
    if machine.startswith(("aarch64", "arm64")):
        return "armv9" if "sve2" in flags else "armv8.2" if "asimddp" in flags else "armv8"
    return machine


def memory():
    words = dict(re.findall(r"^(\w+):\s+(\d+)", read(PROC + "/meminfo"), re.M))
    total, free = int(words["MemTotal"]) << 10, words.get("MemAvailable")
    limits = [limit for limit in cgroup_limits() if limit < total]
    swap, swap_free, pages, page = map(words.get, ("SwapTotal", "SwapFree", "HugePages_Total", "Hugepagesize"))
    return {"total": total, "available": free and int(free) << 10, "cgroup_limit": min(limits) if limits else None,
            "swap_total": swap and int(swap) << 10, "swap_free": swap_free and int(swap_free) << 10,
            "huge_pages": pages and page and int(pages) * (int(page) << 10)}


def control_groups(controller):
    """Directories of our control group and of those above it, innermost first: (version, path)."""
    for line in read(PROC + "/self/cgroup", "").splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds and controller not in kinds.split(","):
            continue
        bases = [SYS + "/fs/cgroup/" + each for each in (kinds, controller)] if kinds else [
            SYS + "/fs/cgroup", SYS + "/fs/cgroup/unified"]
        while True:
            for base in bases:
                yield (1 if kinds else 2), (base + path).rstrip("/")
            if path.strip("/") == "":
                break
            path = os.path.dirname(path)


def cgroup_limits():
    for version, path in control_groups("memory"):
        text = read(path + ("/memory.limit_in_bytes" if version == 1 else "/memory.max"), "-")
        if text.isdecimal():
            yield int(text)


def cpu_quota():
    """Cores that the tightest of the control groups allows; null for no limit."""
    found = []
    for version, path in control_groups("cpu"):
        if version == 1:
            words = [read(path + "/cpu.cfs_quota_us", "-"), read(path + "/cpu.cfs_period_us", "-")]
        else:
            words = read(path + "/cpu.max", "- -").split()
        if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal() and int(words[1]):
            found.append(round(int(words[0]) / int(words[1]), 2))
    return min(found) if found else None


def limits():
    """Hard limit of open files (engines are started with it), and what a process gets of the rest; -1 is unlimited."""
    import resource
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {"nofile": files[1], "nofile_soft": files[0], "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
            "nproc": resource.getrlimit(resource.RLIMIT_NPROC)[0], "cpu_quota": cpu_quota()}


def kernel_modules():
    """Which of those that matter are in the kernel, loaded or built in."""
    return {name: os.path.isdir("%s/module/%s" % (SYS, name)) for name in MODULES}


def numa_of(device):
    return count(read(device + "/numa_node", ""))
