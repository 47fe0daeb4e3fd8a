"""What an operator should mend, told by the node itself until the control plane judges all of it."""
import stat


def judge(document):
    found = []

    def problem(code, message, fix, severity="error"):
        found.append({"code": code, "severity": severity, "message": "%s" % message, "fix": fix})

    flags, level = document["cpu"].get("flags") or [], document["cpu"].get("level") or ""
    if level.startswith("x86-64") and "avx2" not in flags:
        problem("cpu_no_avx2", "the CPU shows no AVX2: engines will not start, or crawl",
                "In a virtual machine set its CPU type to `host`; otherwise use another machine.", "warning")
    root = document["root"]
    if root["fault"]:
        problem("unsafe_root", "%s %s" % (root["path"], root["fault"]),
                "Correct its owner and mode, or name another --root.")
    elif not root["writable"]:
        problem("unwritable_root", "%s cannot be written by this user" % root["place"], "Name a writable --root.")
    if root["noexec"]:
        problem("noexec_root", "%s is mounted noexec: engines cannot run from there" % root["place"],
                "Name another --root.")
    if root["free"] < 1 << 30:
        problem("low_disk", "%d MB free at %s" % (root["free"] >> 20, root["place"]),
                "Free some space there.", "warning")
    if (document["home_mode"] or 0) & (stat.S_IWGRP | stat.S_IWOTH):
        home = document["user"]["home"]
        problem("loose_home", "%s is writable by others: sshd will ignore its authorized_keys" % home,
                "chmod go-w %s" % home, "warning")
    if document["nvidia"]:
        judge_nvidia(document["nvidia"], document["gpus"], problem)
    return found


def judge_nvidia(about, gpus, problem):
    cards, failed = len(about["cards"]), about["smi_error"]
    if failed and failed["code"] == "mismatch":
        problem("gpu_driver_mismatch", "the NVIDIA driver was updated while its old kernel module (%s) is still loaded"
                % (about["kernel_module"] or "?"), "Reboot the node, or unload and reload the nvidia modules.")
    elif failed and failed["code"] == "hangs":
        problem("gpu_tool_hangs", "nvidia-smi " + failed["text"],
                "Look for Xid errors in dmesg; a hanging GPU needs a reboot.")
    elif failed and (cards or about["kernel_module"]):
        problem("gpu_error", "nvidia-smi: %s" % failed["text"],
                "Install or repair the NVIDIA driver, then probe again.")
    elif cards and not about["smi"]:
        problem("gpu_no_driver", "%d NVIDIA card(s) on PCI, but no nvidia-smi was found" % cards,
                "Install the NVIDIA driver, or say where it is with --nvidia-smi.")
    else:
        shown = len([gpu for gpu in gpus if gpu["vendor"] == "nvidia" and gpu["index"] is not None])
        if cards > shown:
            problem("gpu_missing", "%d NVIDIA card(s) on PCI, the driver shows %d" % (cards, shown),
                    "Look for Xid errors in dmesg: a card may have fallen off the bus. Reboot the node.")
