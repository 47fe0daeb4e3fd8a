"""RDMA ports, network interfaces, the way we came in, and ports that are taken."""
import os
import re
import struct

import prelude
from probe_facts import SYS, count, listening, names, number, read
from probe_system import numa_of

MAX_GIDS = 16
ZERO = re.compile(r"[0:]+\Z")
LOOPBACK = 772  # ARPHRD_LOOPBACK


# ---- RDMA ----

def fabric():
    base = prelude.args.get("ib_root") or SYS + "/class/infiniband"
    return [port_of(base, hca, port) for hca in names(base) for port in names("%s/%s/ports" % (base, hca))]


def port_of(base, hca, port):
    adapter = "%s/%s" % (base, hca)
    here = "%s/ports/%s" % (adapter, port)
    layer = read(here + "/link_layer", "") or None
    rate = re.match(r"[\d.]+", read(here + "/rate", ""))
    gid = read(here + "/gids/0", "")
    infiniband = layer == "InfiniBand" and len(gid) == 39
    return {"hca": hca, "port": number(port), "state": after_colon(read(here + "/state", "")),
            "phys_state": after_colon(read(here + "/phys_state", "")), "link_layer": layer,
            "rate_gbps": float(rate.group()) if rate else None, "lid": hexadecimal(read(here + "/lid", "")),
            "sm_lid": hexadecimal(read(here + "/sm_lid", "")), "node_guid": read(adapter + "/node_guid", "") or None,
            "port_guid": gid[20:] if infiniband else None, "subnet_prefix": gid[:19] if infiniband else None,
            "gids": [] if infiniband else list(roce_gids(here)), "nets": names(adapter + "/device/net"),
            "numa": numa_of(adapter + "/device"), "firmware": read(adapter + "/fw_ver", "") or None,
            "board": read(adapter + "/board_id", "") or None}


def after_colon(text):
    """`4: ACTIVE` is ACTIVE."""
    return text.split(": ")[-1] or None


def hexadecimal(text):
    try:
        return int(text, 16)
    except ValueError:
        return None


def roce_gids(port):
    """`3 RoCE v2 fe80:…`: the first of the table that are in use. NCCL is told their index."""
    for place in range(MAX_GIDS):
        gid = read("%s/gids/%d" % (port, place), "")
        if gid and not ZERO.match(gid):
            yield ("%d %s %s" % (place, read("%s/gid_attrs/types/%d" % (port, place), "?"), gid))


# ---- interfaces ----

def interfaces():
    base, known, found = SYS + "/class/net", addresses(), []
    for name in names(base):
        here = base + "/" + name
        kind = kind_of(here)
        if kind is not None:
            speed = count(read(here + "/speed", "")) if kind in ("physical", "bond") else None
            found.append({"name": name, "kind": kind, "state": read(here + "/operstate", "") or None,
                          "speed_mbps": speed, "mtu": number(read(here + "/mtu", "")),
                          "addresses": known.get(name, []), "pci": pci_of(here + "/device")})
    return found


def kind_of(here):
    if not os.path.isdir(here):  # bonding_masters is a file among them
        return None
    if number(read(here + "/type", "")) == LOOPBACK:
        return "loopback"
    for mark, kind in (("bonding", "bond"), ("bridge", "bridge"), ("device", "physical")):
        if os.path.exists(here + "/" + mark):
            return kind
    return "virtual"


def pci_of(device):
    match = re.search(r"^PCI_SLOT_NAME=(\S+)", read(device + "/uevent", ""), re.M)
    return match.group(1) if match else None


def addresses():
    """{interface: ["10.0.0.2/24", …]}, asked of the kernel by netlink: one question, no tool, every address."""
    if prelude.args.get("_addresses") is not None:
        return prelude.args["_addresses"]
    import socket
    found, kernel = {}, socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    try:
        kernel.settimeout(2)
        # nlmsghdr of an RTM_GETADDR (22) with NLM_F_REQUEST | NLM_F_DUMP, then a rtgenmsg of every family.
        kernel.send(struct.pack("=IHHII", 17, 22, 0x301, 1, 0) + b"\0")
        while True:
            data = kernel.recv(1 << 16)
            while len(data) >= 16:
                size, kind = struct.unpack_from("=IH", data)
                if kind in (2, 3) or size < 16:  # NLMSG_ERROR, NLMSG_DONE
                    return found
                address_of(data[16:size], found)
                data = data[(size + 3) & ~3:]
    finally:
        kernel.close()


def address_of(message, found):
    """One ifaddrmsg with its attributes. IFA_LOCAL (2) is ours where a peer's address is told too."""
    import socket
    family, length, _, _, index = struct.unpack_from("=BBBBI", message)
    here, rest = {}, message[8:]
    while len(rest) >= 4:
        size, kind = struct.unpack_from("=HH", rest)
        if size < 4:
            break
        here[kind] = rest[4:size]
        rest = rest[(size + 3) & ~3:]
    packed = here.get(2) or here.get(1)
    if family in (socket.AF_INET, socket.AF_INET6) and packed:
        text = "%s/%d" % (socket.inet_ntop(family, packed), length)
        found.setdefault(socket.if_indextoname(index), []).append(text)


def management(known):
    """The interface that carries the address which we came in by."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    if len(words) != 4:
        return None
    peer, mine = words[0], words[2]
    plain = mine[7:] if mine.lower().startswith("::ffff:") else mine.partition("%")[0]
    carriers = [each["name"] for each in known or [] if plain in [text.partition("/")[0] for text in each["addresses"]]]
    return {"interface": carriers[0] if carriers else None, "address": mine, "peer": peer}


def ports_in_use(ports):
    """Ports of the engines' range on which somebody listens."""
    return sorted(port for port in listening() if ports[0] <= port <= ports[1])
