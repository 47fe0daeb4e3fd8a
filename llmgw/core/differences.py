"""What has changed between two probes of a node, in sentences. Only what an operator would want to know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_WATCHED = (
    (("hostname",), "hostname"),
    (("os", "pretty"), "operating system"),
    (("os", "kernel"), "kernel"),
    (("boot_id",), "boot id"),
    (("python", "version"), "python"),
    (("cpu", "model"), "CPU"),
    (("memory", "total"), "memory"),
    (("nvidia", "driver"), "driver"),
)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """`driver 550.54 → 560.35`, `GPU 3 gone`. A fact that could not be read this time is no difference."""
    found = []
    for path, name in _WATCHED:
        old, new = _at(before, path), _at(after, path)
        if old is not None and new is not None and old != new:
            if name == "boot id":
                found.append("was rebooted")
            else:
                found.append(f"{name} {old} → {new}")
    return found + _gpus(before, after)


def _gpus(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    if any(key.startswith("gpu") for key in after.get("unknown", {})):
        return []
    old = {gpu.get("uuid") or gpu.get("pci"): gpu for gpu in before.get("gpus", [])}
    new = {gpu.get("uuid") or gpu.get("pci"): gpu for gpu in after.get("gpus", [])}
    found = [f"GPU {old[key].get('index')} ({old[key].get('name')}) gone" for key in old if key not in new]
    found += [f"GPU {new[key].get('index')} ({new[key].get('name')}) is new" for key in new if key not in old]
    return found


def _at(document: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = document
    for part in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(part)
    return value
