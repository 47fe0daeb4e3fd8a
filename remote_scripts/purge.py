"""Takes llmgw off a node: its own directories, and outside them just what the trace says that it made.

Refuses while something of ours runs. Nothing outside the root is ever removed unless it is empty, and inside it nothing
that does not have the shape of what llmgw puts there: a root may be a directory that somebody else uses too. In a home
that several nodes share, engines and weights go with the last of them.
"""
import os
import re
import shutil

import prelude

STORES = ("engines", "weights")
DIGEST = re.compile(r"[0-9a-f]{64}\Z")
BUILT = re.compile(r"\.[A-Za-z0-9][A-Za-z0-9._+-]*\.(new|old|archive|lock)\Z")


def running():
    """Pids of what is ours here: carries the tag of this cluster, or of one that a manifest here names."""
    clusters, boot, pids = {prelude.args.get("cluster")} - {None}, prelude.boot_id(), set()
    for folder in prelude.shard_folders():
        record = prelude.manifest(folder)
        if record:
            clusters.add(record.get("cluster"))
            seen = prelude.living(record, boot)
            pids.update([seen["pid"]] if seen else [])
    pids.update(mark["pid"] for mark in prelude.tagged() if mark["cluster"] in clusters)
    return sorted(pids)


def others(root, host):
    """The other nodes that share this root."""
    base = os.path.join(root, "hosts")
    paths = [os.path.join(base, name) for name in sorted(os.listdir(base))] if os.path.isdir(base) else []
    return [path for path in paths if path != host and os.path.isdir(path) and not os.path.islink(path)]


def weights():
    """A directory for each digest."""
    base = prelude.found("weights")
    return [prelude.found("weights", name) for name in sorted(os.listdir(base)) if DIGEST.match(name)] if base else []


def engines():
    """What was installed, and what an install that was cut left beside it."""
    base, own = prelude.found("engines"), []
    for engine in sorted(os.listdir(base)) if base else ():
        folder = os.path.join(base, engine)
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) and not os.path.islink(folder) else ():
            path = os.path.join(folder, name)
            if BUILT.match(name) or (os.path.isfile(os.path.join(path, "installed.json")) and not os.path.islink(path)):
                own.append(path)
    return own


def delete(path):
    shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)


def empty(path):
    """Whether a path may go: an empty directory or an empty file, and no link."""
    if os.path.islink(path):
        return False
    return not os.listdir(path) if os.path.isdir(path) else os.path.isfile(path) and os.path.getsize(path) == 0


def plan(args):
    """What `purge` would remove: our own directories, then what the trace lists, innermost first.

    Refuses (`unsafe_root`) where a link stands in the place of one of them, or another user's directory.
    """
    root, host = prelude.root_path(), prelude.host_path()
    sharing, own = others(root, host), [prelude.found_host()]
    if not sharing:
        own += weights() + engines()
    made = set(args.get("trace") or ()).union(prelude.trace_of(host).get("created", []) if own[0] else ())
    return {"remove": [path for path in own if path], "made": sorted(made, reverse=True),
            "shared_with": [os.path.basename(each) for each in sharing], "running": running()}


def purge(args):
    root, host = prelude.root_path(), prelude.found_host()
    if not host:
        return sweep([], plan(args)["made"], root)
    with prelude.Lock(os.path.join(host, "lock")):
        prelude.check_term()
        found = plan(args)
        if found["running"]:
            pids = found["running"]
            prelude.fail("still_running", "processes of ours run on this node: pid %s" % ", ".join(map(str, pids[:20])),
                         "End them there, then try again: kill %s" % " ".join(map(str, pids[:20])), pids=pids)
        hand_over(others(root, host), found["made"])
        for path in found["remove"]:
            delete(path)
    return sweep(found["remove"], found["made"], root)


def hand_over(sharing, made):
    """What we made and others still use becomes theirs to remove."""
    if sharing:
        path = os.path.join(sharing[0], "trace.json")
        trace = prelude.trace_of(sharing[0])
        trace["created"] = [each for each in made if each not in trace.get("created", [])] + trace.get("created", [])
        prelude.write_json(path, trace)


def sweep(removed, made, root):
    """Empty directories of ours, the root, and what the trace lists: innermost first, each only when it is empty."""
    engines = os.path.join(root, "engines")
    inner = [os.path.join(engines, name) for name in os.listdir(engines)] if os.path.isdir(engines) else []
    inner += [os.path.join(root, name) for name in ("hosts",) + STORES]
    for path in inner + sorted(set(made), key=len, reverse=True):
        if os.path.lexists(path) and empty(path):
            if os.path.isdir(path):
                os.rmdir(path)
            else:
                os.unlink(path)
            removed.append(path)
    left = [path for path in removed + inner + made if os.path.lexists(path)]
    inside = [os.path.join(root, name) for name in sorted(os.listdir(root))] if os.path.isdir(root) else []
    return {"removed": removed, "left": sorted(set(left + inside))}


def main(args):
    if args.get("action") == "plan":
        return plan(args)
    return purge(args) if args.get("action") == "purge" else prelude.fail("bad_argument", "plan or purge?")


prelude.main(main)
