"""NVIDIA: what nvidia-smi says in comma separated values, beside what the kernel knows without it."""
import os
import re

import prelude
import probe_facts
import probe_pci
from probe_facts import PROC, ROOT, SYS, Later, address, names, number, read

SMI_SECONDS = float(prelude.args.get("_smi_seconds") or 10)
OLDER = ("index", "uuid", "name", "pci.bus_id", "memory.total", "memory.used", "utilization.gpu", "temperature.gpu",
         "driver_version", "power.draw", "persistence_mode", "ecc.errors.uncorrected.volatile.total",
         "pcie.link.gen.current", "pcie.link.width.current", "pcie.link.gen.max", "pcie.link.width.max")
NEWER = ("mig.mode.current", "compute_cap", "fabric.state")  # an older driver refuses a query that names one of these
LIBRARIES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/lib/wsl/lib",
             "/usr/lib/aarch64-linux-gnu/nvidia", "/usr/lib/aarch64-linux-gnu/tegra", "/usr/local/nvidia/lib64",
             "/run/opengl-driver/lib")
COHERENT = re.compile(r"\bG(H|B)[23]00\b")  # a Grace CPU and its GPU are one address space
SWITCHED = re.compile(r"\bB[123]00\b")  # HGX boards whose NVSwitches are no PCI devices of the host
LINK = (("generation", "gen.current"), ("width", "width.current"), ("max_generation", "gen.max"),
        ("max_width", "width.max"))
NO_FABRIC = ("N/A", "Not Supported")
BROKEN = re.compile(r"ERR!|Unknown Error|GPU is lost|GPU requires reset", re.I)
LOST = re.compile(r"GPU is lost|fallen off the bus", re.I)
HANDLE = re.compile(r"Unable to determine the device handle for GPU\s*([0-9A-Fa-f:.]+\.[0-7])(.*)")


def look(tool, cards, switches, total):
    """(the NVIDIA document, its GPUs, rows of the processes on them). `total` is the machine's memory."""
    mine = [card for card in cards if card.vendor == "nvidia"]
    module = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d[\d.]+)", read(PROC + "/driver/nvidia/version", ""))
    module = module.group(1) if module else read(SYS + "/module/nvidia/version", "") or None
    answer = ask(tool, mine) if tool else Answer()
    given = prelude.args.get("nvidia_smi")
    if tool is None:
        probe_facts.unknown["gpus.nvidia"] = "%s is no program" % given if given else "no nvidia-smi was found"
    elif answer.error:
        probe_facts.unknown["gpus.nvidia"] = answer.words()
    gpus = [smi_gpu(row, by_address(mine, row), total) for row in answer.rows]
    for gpu in gpus:
        gpu["slices"] = answer.slices.get(gpu["uuid"], [])
    gpus += [unseen(card, answer) for card in mine if card.driver == "nvidia" and tool
             and card.pci not in [gpu["pci"] for gpu in gpus]]
    if not gpus and probe_facts.tegra():
        gpus = [tegra_gpu(total)]
    found = re.search(r"NVML library version: (\S+)", answer.error["text"]) if answer.error else None
    return {"driver": next((gpu["driver"] for gpu in gpus if gpu["driver"]), None), "kernel_module": module,
            "library": library() or (found.group(1) if found else None), "cuda": answer.cuda, "smi": tool,
            "smi_error": answer.error, "warnings": answer.warnings, "cards": [card.brief() for card in mine],
            "nvswitches": switches, "fabric_manager": fabric_manager(switches, gpus), "imex": imex(gpus),
            "peermem": any(os.path.isdir("%s/module/%s" % (SYS, name)) for name in ("nvidia_peermem", "nv_peer_mem")),
            }, gpus, answer.apps


# ---- the tool ----

class Answer(object):
    """What nvidia-smi had to say."""

    def __init__(self):
        self.rows, self.apps, self.slices, self.warnings = [], [], {}, []
        self.cuda, self.error, self.lost = None, None, {}

    def words(self):
        text = self.error["text"]
        return text if text.startswith("nvidia-smi") else "nvidia-smi: " + text


def ask(tool, mine):
    """Its questions are asked side by side: each starts the driver anew, which takes it a second on some machines."""
    answer = Answer()
    apps = Later(csv, tool, "--query-compute-apps=gpu_uuid,pid,used_memory", 3)
    level = Later(cuda_level, tool)
    ask_gpus(tool, mine, answer)
    if any(row.get("mig.mode.current") == "Enabled" for row in answer.rows):
        answer.slices = probe_facts.fact("gpus.slices", slices, tool) or {}
    answer.apps, other, status = apps.get()
    if status != 0 and not answer.apps:
        probe_facts.unknown["gpu_processes.nvidia"] = error_of(status, other)["text"]
    answer.cuda = probe_facts.fact("nvidia.cuda", level.get)
    return answer


def ask_gpus(tool, mine, answer):
    fields = OLDER + NEWER
    rows, other, status = csv(tool, "--query-gpu=" + ",".join(fields), len(fields))
    while not rows and len(fields) > len(OLDER) and any("not a valid field" in line for line in other):
        named = re.findall(r'"([\w.]+)" is not a valid field', " ".join(other))
        places = [fields.index(name) for name in named if name in fields[len(OLDER):]]
        fields = fields[:min(places)] if places else OLDER  # whoever does not know one knows none of the newer
        rows, other, status = csv(tool, "--query-gpu=" + ",".join(fields), len(fields))
    for line in other:
        handle = HANDLE.search(line)
        if handle and address(handle.group(1)):
            answer.lost[address(handle.group(1))] = line
    rest = [card.pci for card in mine if card.driver == "nvidia" and card.pci not in answer.lost]
    if not rows and answer.lost and rest:  # one card that is gone must not hide the others
        rows, more, status = csv(tool, "--query-gpu=" + ",".join(fields), len(fields), "--id=" + ",".join(rest))
        other += more
    answer.rows = [dict(zip(fields, row)) for row in rows if row[0] != "index"]  # noqa: B905
    if answer.rows:
        answer.warnings = [line[:300] for line in other][:16]
    else:
        answer.error = error_of(status, other)


def csv(tool, question, columns, *more):
    """(rows of so many columns, every other line, exit status). Warnings come before, between or after the rows."""
    status, out, err = probe_facts.run([tool, question, "--format=csv,noheader,nounits"] + list(more), SMI_SECONDS)
    rows, other = [], []
    for line in (out + "\n" + err).splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == columns:
            rows.append(words)
        elif line.strip():
            other.append(line.strip())
    return rows, other, status


def error_of(status, other):
    text = " ".join(other)[:400]
    if status is None:
        return {"code": "hangs", "text": "nvidia-smi did not answer in %g s" % SMI_SECONDS}
    if "version mismatch" in text:
        return {"code": "mismatch", "text": text}
    if (status == 0 and not text) or "No devices were found" in text:
        return {"code": "nothing", "text": text or "printed nothing"}
    return {"code": "failed", "text": text or "ended with %d and without a word" % status}


def cuda_level(tool):
    """The CUDA level that the driver serves. An older tool knows no --version, but heads its long report with it."""
    for words in (["--version"], ["-q", "-d", "COMPUTE"]):
        status, out, _ = probe_facts.run([tool] + words, SMI_SECONDS)
        found = re.search(r"CUDA (?:UMD )?Version\s*:\s*(\d[\d.]+)", out)
        if found:
            return found.group(1)
        if status is None:
            break
    return prelude.fail("no_cuda", "nvidia-smi names no CUDA version")


def slices(tool):
    """{uuid of the card: its MIG instances}: uuids and profiles from -L, their memory from the long report."""
    listed = probe_facts.run([tool, "-L"], SMI_SECONDS)[1]
    sizes = [re.findall(r"<mig_device>.*?<fb_memory_usage>\s*<total>(\d+) MiB", part, re.S)
             for part in probe_facts.run([tool, "-q", "-x"], SMI_SECONDS)[1].split("<gpu id=")[1:]]
    found, mine, place = {}, [], -1
    for line in listed.splitlines():
        card = re.match(r"GPU \d+: .*\(UUID: ([^)]+)\)", line)
        if card:
            place, mine = place + 1, found.setdefault(card.group(1), [])
        part = re.match(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: ([^)]+)\)", line)
        if part:
            known = sizes[place] if place < len(sizes) else []
            size = int(known[len(mine)]) << 20 if len(mine) < len(known) else None
            mine.append({"uuid": part.group(2), "name": part.group(1), "memory_total": size})
    return found


# ---- a card ----

def by_address(mine, row):
    pci = address(row["pci.bus_id"])
    return next((card for card in mine if card.pci == pci), None) or Stranger(pci)


class Stranger(object):
    """A card that the tool names and PCI does not: a Jetson's, or one that Windows lends."""
    vendor, path, driver = "nvidia", "/nowhere", "nvidia"

    def __init__(self, pci):
        self.pci = pci


def smi_gpu(row, card, total):
    """One row. A card without memory of its own (GB10, Jetson) has the machine's."""
    why = {}

    def value(field, key, kind=number):
        text = row.get(field)
        found = None if text is None or text.startswith("[") or BROKEN.search(text) else kind(text)
        if found is None:
            why[key] = "nvidia-smi does not know %s" % field if text is None else "nvidia-smi: %s is %s" % (field, text)
        return found

    def switch(text):
        return {"Enabled": True, "Disabled": False}.get(text)

    own, used = value("memory.total", "memory_total"), value("memory.used", "memory_used")
    none = own == 0 or (own is None and not BROKEN.search(row["memory.total"]))
    name = value("name", "name", str)
    if none and total:
        why.pop("memory_total", None)
    coherent = own and COHERENT.search(name or "")
    trouble = ["%s: %s" % (field, text) for field, text in sorted(row.items()) if BROKEN.search(text)]
    lost = any(LOST.search(each) for each in trouble)
    link = {key: number(row["pcie.link." + field]) for key, field in LINK}
    return probe_pci.record(
        card, why, index=number(row["index"]), uuid=value("uuid", "uuid", str), name=name,
        memory_kind="unified" if none or coherent else "dedicated" if own else "unknown",
        memory_total=total if none else own and int(own) << 20,
        memory_used=int(used) << 20 if own and used is not None else None,
        utilization=value("utilization.gpu", "utilization"), temperature=value("temperature.gpu", "temperature"),
        power_w=value("power.draw", "power_w"), driver=value("driver_version", "driver", str),
        persistence=value("persistence_mode", "persistence", switch), mig=value("mig.mode.current", "mig", switch),
        ecc_uncorrected=value("ecc.errors.uncorrected.volatile.total", "ecc_uncorrected"),
        compute_capability=value("compute_cap", "compute_capability", lambda text: text if number(text) else None),
        fabric_state=value("fabric.state", "fabric_state", lambda text: text if text not in NO_FABRIC else None),
        pcie=link if any(link.values()) else None, integrated=bool(none),
        health="lost" if lost else "error" if trouble else "ok", health_detail="; ".join(trouble)[:300] or None)


def unseen(card, answer):
    """A card that the driver holds and the tool does not show: the driver's own directory still has its name."""
    told = read("%s/driver/nvidia/gpus/%s/information" % (PROC, card.pci), "")
    words = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in told.splitlines())}
    uuid, model = words.get("GPU UUID", ""), words.get("Model", "Unknown")
    said = answer.lost.get(card.pci)
    if answer.error and not said:
        health, detail = "error", answer.words()
    else:
        health, detail = "lost", said or "it is on PCI, and nvidia-smi does not show it"
    return probe_pci.record(
        card, {"memory_total": detail}, uuid=uuid if uuid and "?" not in uuid else None, health=health,
        name=model if model != "Unknown" else probe_pci.name_of(card), pcie=probe_pci.pcie_of(card.path),
        health_detail=detail[:300], integrated=False)


# ---- Jetson ----

def tegra_gpu(total):
    """A Jetson without an nvidia-smi: the device tree names the board, the memory is the machine's."""
    return probe_pci.record(Stranger(None), {"uuid": "no nvidia-smi was found"}, index=0, memory_kind="unified",
                            name=read(PROC + "/device-tree/model", "") or "Tegra", memory_total=total, integrated=True)


# ---- its services ----

def library():
    """Version of libcuda as it lies on disk: the name of the file says it."""
    for place in LIBRARIES:
        path = ROOT + place + "/libcuda.so.1"
        found = re.search(r"libcuda\.so\.(\d+\.[\d.]+)\Z", os.path.realpath(path)) if os.path.exists(path) else None
        if found:
            return found.group(1)
    return None


def service(name):
    """Whether a process of that name runs; null in a container, where the machine's services are not to be seen."""
    from probe_system import container
    if any(read("%s/%s/comm" % (PROC, pid), "") == name[:15] for pid in names(PROC) if pid.isdigit()):
        return True
    return None if container() else False


def fabric_manager(switches, gpus):
    needed = bool(switches) or any(SWITCHED.search(gpu["name"] or "") for gpu in gpus)
    if not needed:
        return {"needed": False, "running": None, "version": None}
    tool, version = probe_facts.find_tool("nv-fabricmanager"), None
    if tool:
        found = re.search(r"version is\s*:\s*(\S+)", probe_facts.run([tool, "--version"])[1])
        version = found.group(1) if found else None
    return {"needed": True, "running": service("nv-fabricmanager"), "version": version}


def imex(gpus):
    needed = any(re.search(r"\bGB[23]00\b", gpu["name"] or "") for gpu in gpus)
    return {"needed": needed, "running": service("nvidia-imex") if needed else None}
