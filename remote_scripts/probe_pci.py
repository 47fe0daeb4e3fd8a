"""Every accelerator on PCI, whether its driver knows it or not, and what sysfs tells of it."""
import os
import re

from probe_facts import ROOT, SYS, address, count, names, number, read
from probe_system import numa_of

VENDORS = {"10DE": "nvidia", "1002": "amd", "8086": "intel"}
DISPLAY, ACCELERATOR, BRIDGE, THREE_D = "03", "12", "068000", "0302"
PCI_IDS = ("/usr/share/hwdata/pci.ids", "/usr/share/misc/pci.ids")
GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6}  # GT/s, as the kernel writes them


class Card(object):
    """One card: its address, its vendor, the driver bound to it, its directory in sysfs."""

    def __init__(self, path, words):
        self.path, self.pci = path, address(words["PCI_SLOT_NAME"])
        self.kind = words["PCI_CLASS"].rjust(6, "0")
        maker, self.device = words["PCI_ID"].split(":")
        self.maker, self.vendor = maker, VENDORS.get(maker, "other")
        self.driver = words.get("DRIVER")

    def brief(self):
        return {"pci": self.pci, "device_id": "0x" + self.device.lower(), "driver": self.driver}


def devices():
    """(accelerators, NVSwitches) in PCI order. One read a device: `uevent` has class, id and driver."""
    base, cards, switches = SYS + "/bus/pci/devices", [], 0
    for name in names(base):
        words = dict(line.partition("=")[::2] for line in read("%s/%s/uevent" % (base, name), "").splitlines())
        if {"PCI_CLASS", "PCI_ID", "PCI_SLOT_NAME"} <= set(words):
            card = Card("%s/%s" % (base, name), words)
            switches += card.vendor == "nvidia" and card.kind == BRIDGE
            # A server's management chip draws a screen too: of other makers only what computes is told.
            wanted = (ACCELERATOR, THREE_D) if card.vendor == "other" else (ACCELERATOR, DISPLAY)
            if card.kind.startswith(wanted) and card.maker != "1414":  # Microsoft's stand-in for the host's GPU
                cards.append(card)
    return cards, switches


def pcie_of(path):
    def generation(name):
        speed = re.match(r"([\d.]+) GT/s", read("%s/%s" % (path, name), ""))
        return GENERATIONS.get(speed.group(1)) if speed else None

    def width(name):
        found = number(read("%s/%s" % (path, name), ""))
        return found if found and found <= 32 else None  # 63 and 255 where the device does not answer

    found = {"generation": generation("current_link_speed"), "width": width("current_link_width"),
             "max_generation": generation("max_link_speed"), "max_width": width("max_link_width")}
    return found if any(found.values()) else None


def hwmon_of(path):
    """(°C, watts) by the driver's own sensors: the kernel counts in thousandths and millionths."""
    for each in names(path + "/hwmon"):
        here = "%s/hwmon/%s" % (path, each)
        heat = number(read(here + "/temp1_input", ""))
        power = number(read(here + "/power1_average", "") or read(here + "/power1_input", ""))
        return None if heat is None else heat // 1000, None if power is None else round(power / 1e6, 1)
    return None, None


def name_of(card):
    """The name that the database of PCI ids has for it, where the node has one."""
    for path in PCI_IDS:
        try:
            with open(ROOT + path, "rb") as file:
                data = file.read(4 << 20)
        except OSError:
            continue
        start = data.find(b"\n%s  " % card.maker.lower().encode())
        if start < 0:
            return None
        ends = re.compile(br"\n[0-9a-f]").search(data, start + 2)
        data = data[start:ends.start() if ends else None]
        found = re.search(br"\n\t%s  ([^\n]+)" % card.device.lower().encode(), data)
        return found.group(1).decode("utf-8", "replace") if found else None
    return None


def record(card, why, **told):
    """A GPU as the document has it: what is not told is null."""
    keys = ("index", "vendor", "uuid", "name", "pci", "memory_kind", "memory_total", "memory_used", "utilization",
            "temperature", "power_w", "driver", "compute_capability", "architecture", "mig", "slices", "persistence",
            "ecc_uncorrected", "pcie", "numa", "fabric_state", "health", "health_detail", "integrated")
    found = dict.fromkeys(keys)
    found.update(vendor=card.vendor, pci=card.pci, memory_kind="unknown", slices=[], numa=numa_of(card.path), _why=why)
    found.update(told)
    return found


# ---- AMD ----

KFD = SYS + "/class/kfd/kfd"
AMD_IDS = ("/usr/share/libdrm/amdgpu.ids", "/opt/amdgpu/share/libdrm/amdgpu.ids")
# Which targets are parts of a CPU's package: the table of processors in LLVM's AMDGPU usage guide.
APUS = {"gfx801", "gfx902", "gfx909", "gfx90c", "gfx1013", "gfx1033", "gfx1035", "gfx1036", "gfx1103", "gfx1150",
        "gfx1151", "gfx1152", "gfx1153"}


def kfd_nodes():
    """{PCI address: (gpu_id, gfx target)} of the compute driver's topology."""
    found = {}
    for node in names(KFD + "/topology/nodes"):
        here = "%s/topology/nodes/%s" % (KFD, node)
        words = dict(re.findall(r"^(\w+) (\d+)$", read(here + "/properties", ""), re.M))
        target, place = int(words.get("gfx_target_version", 0)), int(words.get("location_id", 0))
        if target:
            pci = "%04x:%02x:%02x.%x" % (int(words.get("domain", 0)), place >> 8 & 255, place >> 3 & 31, place & 7)
            name = "gfx%d%x%x" % (target // 10000, target // 100 % 100, target % 100)
            found[pci] = (read(here + "/gpu_id", ""), name)
    return found


def amd(cards, nodes):
    """(the AMD document, its GPUs). rocm-smi is not asked: it reads the same files, and leaves locks in /dev/shm."""
    mine = [card for card in cards if card.vendor == "amd"]
    if not mine:
        return None, []
    about = {"driver_loaded": os.path.isdir(SYS + "/module/amdgpu"),
             "rocm": read(ROOT + "/opt/rocm/.info/version", "") or None, "cards": [card.brief() for card in mine]}
    shown = [card for card in mine if card.driver in ("amdgpu", "radeon")]
    return about, [dict(amd_gpu(card, nodes.get(card.pci)), index=place) for place, card in enumerate(shown)]


def amd_gpu(card, node):
    def size(name):
        return count(read("%s/mem_info_%s" % (card.path, name), ""))

    target = node[1] if node else None
    vram, gtt, used, mapped = size("vram_total"), size("gtt_total"), size("vram_used"), size("gtt_used")
    apu = target in APUS if target else bool(vram and gtt and vram <= 4 << 30 and gtt > vram)
    heat, power = hwmon_of(card.path)
    why = {} if vram else {"memory_total": "the driver %s tells no mem_info_vram_total" % card.driver}
    if apu and vram is not None and gtt is not None:
        vram, used = vram + gtt, used + mapped if used is not None and mapped is not None else None
    broken = re.search(r"^ue: (\d+)", read(card.path + "/ras/umc_err_count", ""), re.M)
    return record(
        card, why, uuid=read(card.path + "/unique_id", "") or card.pci, name=amd_name(card), integrated=apu,
        memory_kind="shared" if apu and vram else "dedicated" if vram else "unknown", memory_total=vram,
        memory_used=used, utilization=count(read(card.path + "/gpu_busy_percent", "")), temperature=heat, power_w=power,
        driver=card.driver, architecture=target, ecc_uncorrected=int(broken.group(1)) if broken else None,
        pcie=pcie_of(card.path), health="ok" if vram else None)


def amd_name(card):
    """What the board says of itself, else libdrm's table by device and revision, else the database of PCI ids."""
    told = read(card.path + "/product_name", "")
    if told:
        return told
    revision = re.sub(r"^0x0?", "", read(card.path + "/revision", "")) or "0"
    for path in AMD_IDS:
        found = re.search(r"^%s,\s*0?%s,\s*(.+)$" % (card.device, revision), read(ROOT + path, ""), re.M | re.I)
        if found:
            return found.group(1).strip()
    return name_of(card) or "AMD GPU 0x%s" % card.device.lower()


# ---- Intel and the rest ----

def intel(cards):
    mine = [card for card in cards if card.vendor == "intel"]
    if not mine:
        return None, []
    loaded = any(os.path.isdir("%s/module/%s" % (SYS, name)) for name in ("i915", "xe"))
    shown = [card for card in mine if card.driver in ("i915", "xe")]
    return ({"driver_loaded": loaded, "cards": [card.brief() for card in mine]},
            [dict(intel_gpu(card), index=place) for place, card in enumerate(shown)])


def intel_gpu(card):
    """The GPU in the package has always been 00:02.0; it has no memory of its own."""
    inside = card.pci == "0000:00:02.0"
    own = [count(read("%s/%s/physical_vram_size_bytes" % (card.path, each), "")) for each in names(card.path)
           if re.match(r"tile\d+\Z", each)]  # xe
    own += [count(read("%s/drm/%s/lmem_total_bytes" % (card.path, each), ""))
            for each in names(card.path + "/drm")]  # i915
    total = sum(each for each in own if each) or None
    heat, power = hwmon_of(card.path)
    reason = "it uses the machine's memory" if inside else "the driver %s does not tell it" % card.driver
    return record(
        card, {} if total else {"memory_total": reason}, uuid=card.pci, integrated=inside, memory_total=total,
        name=name_of(card) or "Intel GPU 0x%s" % card.device.lower(), temperature=heat, power_w=power,
        memory_kind="dedicated" if total else "shared" if inside else "unknown", driver=card.driver,
        pcie=None if inside else pcie_of(card.path), health="ok")


def others(cards):
    mine = [card for card in cards if card.vendor == "other"]
    return [record(card, {"memory_total": "no rule for cards of vendor 0x%s" % card.maker.lower()}, index=place,
                   uuid=card.pci, name=name_of(card) or "accelerator %s:%s" % (card.maker.lower(), card.device.lower()),
                   driver=card.driver, pcie=pcie_of(card.path)) for place, card in enumerate(mine)]
