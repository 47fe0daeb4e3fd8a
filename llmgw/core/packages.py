"""What a thing is called by each package manager. `remote_scripts/privileged.py` has the part that it installs."""

from __future__ import annotations

from collections.abc import Mapping

INSTALL = {
    "apt": "apt-get install",
    "dnf": "dnf install",
    "zypper": "zypper install",
    "pacman": "pacman -S",
    "apk": "apk add",
}
VERBS = "libibverbs.so.1"
"""By which programs find the adapters of a fabric; asked for where there is one."""
PACKAGES: Mapping[str, Mapping[str, str]] = {
    "infiniband-diags": {
        "apt": "infiniband-diags",
        "dnf": "infiniband-diags",
        "zypper": "infiniband-diags",
        "pacman": "rdma-core",
    },
    "ldd": {"apt": "libc-bin", "dnf": "glibc-common", "zypper": "glibc", "pacman": "glibc", "apk": "musl-utils"},
    "libgomp": {"apt": "libgomp1", "dnf": "libgomp", "zypper": "libgomp1", "pacman": "gcc-libs", "apk": "libgomp"},
    # With the drivers of the adapters, which Debian has apart and only recommends.
    "libibverbs": {"apt": "ibverbs-providers", "dnf": "libibverbs", "zypper": "libibverbs", "pacman": "rdma-core"},
    "libstdc++": {
        "apt": "libstdc++6",
        "dnf": "libstdc++",
        "zypper": "libstdc++6",
        "pacman": "gcc-libs",
        "apk": "libstdc++",
    },
    "opensm": {"apt": "opensm", "dnf": "opensm", "zypper": "opensm", "pacman": "opensm"},
    "python3": {"apt": "python3", "dnf": "python3", "zypper": "python3", "pacman": "python", "apk": "python3"},
    "python3.11": {"dnf": "python3.11", "zypper": "python311"},
}
"""thing → package manager → package. What has no name there is not known to be had."""
