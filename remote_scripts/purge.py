"""Takes llmgw off a node: its own directories, and outside them just what the trace says that it made.

Refuses while something of ours runs. Nothing outside the root is ever removed unless it is empty. In a home that
several nodes share, engines and weights go with the last of them.
"""
import os
import shutil

import prelude

STORES = ("engines", "weights")


def running(host):
    """Pids of what is ours here: carries the tag of this cluster, or of one that a manifest here names."""
    clusters, boot, pids = {prelude.args.get("cluster")} - {None}, prelude.boot_id(), set()
    for record in manifests(host):
        clusters.add(record.get("cluster"))
        found = prelude.process(record["pid"]) if isinstance(record.get("pid"), int) else None
        if found and record.get("boot_id") == boot and found["start_ticks"] == record.get("start_ticks"):
            pids.add(found["pid"])
    pids.update(mark["pid"] for mark in prelude.tagged() if mark["cluster"] in clusters)
    return sorted(pids)


def manifests(host):
    base = os.path.join(host, "replicas")
    for name in os.listdir(base) if os.path.isdir(base) else ():
        try:
            record = prelude.read_json(os.path.join(base, name, "manifest.json"))
        except (ValueError, OSError):
            continue
        if isinstance(record, dict):
            yield record


def others(root, host):
    """The other nodes that share this root."""
    base = os.path.join(root, "hosts")
    names = os.listdir(base) if os.path.isdir(base) else ()
    return [os.path.join(base, name) for name in sorted(names) if os.path.join(base, name) != host]


def created(host):
    try:
        return list((prelude.read_json(os.path.join(host, "trace.json"), {}) or {}).get("created", []))
    except ValueError:
        return []


def empty(path):
    """Whether a path may go: an empty directory or an empty file, and no link."""
    if os.path.islink(path):
        return False
    return not os.listdir(path) if os.path.isdir(path) else os.path.isfile(path) and os.path.getsize(path) == 0


def plan(args):
    """What `purge` would remove: our own directories, then what the trace lists, innermost first."""
    root, host = prelude.root_path(), prelude.host_path()
    own = [host] if os.path.isdir(host) else []
    sharing = others(root, host)
    if not sharing:
        own += [os.path.join(root, name) for name in STORES if os.path.lexists(os.path.join(root, name))]
    return {"remove": own, "made": sorted(set(created(host) + list(args.get("trace") or ())), reverse=True),
            "shared_with": [os.path.basename(each) for each in sharing], "running": running(host)}


def purge(args):
    root, host = prelude.root_path(), prelude.host_path()
    if os.path.lexists(root) and prelude.fault_of(root):
        prelude.fail("unsafe_root", "%s %s" % (root, prelude.fault_of(root)), "Correct its owner and mode first.")
    if not os.path.isdir(host):
        return sweep([], plan(args)["made"], root)
    with prelude.Lock(os.path.join(host, "lock")):
        prelude.check_term()
        found = plan(args)
        if found["running"]:
            prelude.fail("still_running", "%d process(es) of ours run on this node" % len(found["running"]),
                         "Stop them first.", pids=found["running"])
        hand_over(others(root, host), found["made"])
        for path in found["remove"]:
            shutil.rmtree(path)
    return sweep(found["remove"], found["made"], root)


def hand_over(sharing, made):
    """What we made and others still use becomes theirs to remove."""
    if sharing:
        path = os.path.join(sharing[0], "trace.json")
        trace = prelude.read_json(path, {}) or {}
        trace["created"] = [each for each in made if each not in trace.get("created", [])] + trace.get("created", [])
        prelude.write_json(path, trace)


def sweep(removed, made, root):
    """Empty directories of ours, the root, and what the trace lists: innermost first, each only when it is empty."""
    inner = [os.path.join(root, "hosts")]
    for path in inner + sorted(set(made), key=len, reverse=True):
        if os.path.lexists(path) and empty(path):
            if os.path.isdir(path):
                os.rmdir(path)
            else:
                os.unlink(path)
            removed.append(path)
    left = [path for path in removed + inner + made + [os.path.join(root, name) for name in STORES]
            if os.path.lexists(path)]
    inside = [os.path.join(root, name) for name in sorted(os.listdir(root))] if os.path.isdir(root) else []
    return {"removed": removed, "left": sorted(set(left + inside))}


def main(args):
    if args.get("action") == "plan":
        return plan(args)
    return purge(args) if args.get("action") == "purge" else prelude.fail("bad_argument", "plan or purge?")


prelude.main(main)
