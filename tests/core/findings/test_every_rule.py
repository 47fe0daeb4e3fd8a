"""Every rule finds what it is for, in words with numbers, and says what to do."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from llmgw.core.findings import RULES

from .fixes import wrong
from .node import GIB, GPU, HOME, NVIDIA, judged

MIB = 1 << 20
CARD = NVIDIA["cards"][0]
IB: dict[str, Any] = {
    "hca": "mlx5_0",
    "port": 1,
    "state": "ACTIVE",
    "phys_state": "LinkUp",
    "link_layer": "InfiniBand",
    "rate_gbps": 400.0,
    "lid": 3,
    "sm_lid": 1,
    "subnet_prefix": "fe80:0000:0000:0000",
    "nets": ["ib0"],
}
IB2 = {**IB, "hca": "mlx5_1"}
ROCE = {**IB, "link_layer": "Ethernet", "sm_lid": 0, "nets": ["eth2"]}
FABRICS = {"fabrics": {"blue": ("mlx5_0", "mlx5_1")}}
HOLDER = {"gpu": "GPU-0", "pid": 4711, "user": "bob", "name": "python3", "memory": 12 * GIB, "owner": "theirs"}


class Case(NamedTuple):
    code: str
    probe: dict[str, Any] = {}
    preflight: dict[str, Any] = {}
    outside: dict[str, Any] = {}
    says: str = ""
    """In the sentence."""
    fix: str = ""
    """In the fix."""
    node_id: str | None = None


def gpu(**changes: Any) -> dict[str, Any]:
    return {"gpus": [{**GPU, **changes}], "nvidia": NVIDIA}


def nvidia(**changes: Any) -> dict[str, Any]:
    return {"gpus": [GPU], "nvidia": {**NVIDIA, **changes}}


def mount(number: int, **changes: Any) -> dict[str, Any]:
    return {f"mounts.{number}.{key}": value for key, value in changes.items()}


EC2 = 'Please login as the user "ubuntu" rather than the user "root".'
CASES = [
    # account
    Case("login_other_user", outside={"refusal": EC2}, says="rather than", fix="llmgw node add ubuntu@HOST"),
    Case(
        "python_missing",
        outside={"refusal": "llmgw: no python3 of version 3.6"},
        says="3.6",
        fix="sudo apt-get install",
    ),
    Case("shell_closed", outside={"refusal": "This account is currently not available."}, says="not available"),
    Case("shell_closed", preflight={"shell.login": "/bin/rbash"}, says="/bin/rbash", fix="sudo chsh -s /bin/sh anna"),
    Case("login_refuses", outside={"refusal": "Your password has expired."}, says="expired", fix="ForceCommand"),
    Case("shell_unusual", preflight={"shell.login": "/usr/bin/fish"}, says="/usr/bin/fish"),
    Case("shell_unusual", {"user.shell": "/bin/tcsh"}, {"shell": None}, says="/bin/tcsh"),
    Case("login_noise", outside={"noise": "Welcome to gpu01\n"}, says="17 bytes", fix=".bashrc"),
    Case("python_too_old", preflight={"pythons.0.version": "3.9.2"}, says="3.9.2", fix="--engine"),
    Case(
        "python_too_old",
        {"os.id": "rocky"},
        {"pythons.0.version": "3.6.8", "packages.manager": None},
        says="3.6.8",
        fix="sudo dnf install python3.11",
    ),
    Case(
        "python_broken",
        preflight={"pythons.+": {"path": "/opt/shims/python3.12", "fault": "ended with 127: command not found"}},
        says="/opt/shims/python3.12 (ended with 127",
    ),
    Case(
        "python_broken",
        preflight={
            "pythons": [
                {"path": f"/shims/python3.{minor}", "fault": f"ended with 127: {'no such version. ' * 60}"}
                for minor in range(8, 15)
            ]
        },
        says="7 pythons on the path do not work: /shims/python3.8 (ended with 127",
    ),
    Case("python_several", preflight={"pythons.+": {"path": "/usr/bin/python3", "version": "3.9.2"}}, says="3.9.2"),
    Case("sudo_none", preflight={"sudo.mode": "none"}, says="anna", fix="yourself"),
    Case("sudo_password", preflight={"sudo.mode": "password"}, says="password"),
    Case("sudo_password", preflight={"sudo": {"mode": "password"}}, says="none of the groups"),
    Case("sudo_requires_tty", preflight={"sudo.mode": "requiretty"}, fix="requiretty"),
    Case("sudo_refused", preflight={"sudo": {"mode": "refused", "detail": "no_new_privs"}}, says="no_new_privs"),
    Case("sudo_unknown", preflight={"sudo.mode": "unknown"}, says="is in sudo", fix="sudo -n true"),
    Case("sudo_unknown", preflight={"sudo": {"mode": "unknown"}}, says="none of the groups"),
    Case(
        "kills_processes",
        preflight={"logind.kill_user_processes": True},
        says="KillUserProcesses=yes",
        fix="sudo loginctl enable-linger anna",
    ),
    Case(
        "linger_without_manager",
        preflight={"logind.kill_user_processes": True, "logind.linger": True, "logind.user_manager": False},
        fix="sudo systemctl start user@1000",
    ),
    Case(
        "linger_without_manager",
        preflight={
            "logind.kill_user_processes": True,
            "logind.linger": True,
            "logind.user_manager": True,
            "logind.systemd_run": False,
        },
        says="no systemd-run",
        fix="KillUserProcesses=no",
    ),
    Case("loose_home", {"home_mode": 0o775}, says=HOME, fix=f"chmod go-w {HOME}"),
    Case("loose_keys", preflight={"keys.1.fault": "is writable by others"}, says=".ssh", fix="chmod go-w"),
    Case("loose_keys", preflight={"keys.1.fault": "belongs to user 7"}, fix=f"sudo chown anna {HOME}/.ssh"),
    Case("home_unwritable", preflight=mount(1, read_only=True, writable=False), says="read-only", fix="--no-key"),
    Case("home_unwritable", preflight=mount(1, place="/home", writable=False), says="is not there"),
    Case("selinux_enforcing", preflight={"selinux": "enforcing"}, says="enforcing", fix="ausearch"),
    # system
    Case("hostname_no_name", {"hostname": "GPU 01!"}, says="'GPU 01!'", fix="--name"),
    Case("hostname_everybodys", {"hostname": "localhost"}, says="localhost", fix="--name"),
    Case("hostname_differs", node_id="big-one", says="gpu01"),
    Case(
        "hostname_unresolved",
        preflight={"resolved": None, "unknown": {"resolved": "x"}},
        says="gpu01",
        fix="echo '127.0.1.1 gpu01' | sudo tee -a /etc/hosts",
    ),
    Case(
        "hostname_unresolved",
        {"user.uid": 0, "container": "docker"},
        {"resolved": None, "unknown": {"resolved": "x"}},
        fix="echo '127.0.1.1 gpu01' | tee -a /etc/hosts",
    ),
    Case(
        "machine_id_missing",
        {"machine_id": "uninitialized"},
        says="'uninitialized'",
        fix="sudo systemd-machine-id-setup",
    ),
    Case("machine_id_missing", {"machine_id": ""}, says="is empty"),
    Case("machine_id_missing", {"machine_id": None, "unknown.machine_id": "FileNotFoundError: x"}, says="is missing"),
    Case("machine_id_cloned", outside={"same_machine_id": ("gpu02",)}, says="gpu02", fix="systemd-machine-id-setup"),
    Case("machine_counted_twice", outside={"same_machine": ("gpu02",)}, says="gpu02", fix="node remove gpu02"),
    Case("boot_id_unknown", {"boot_id": ""}, says="boot id", fix="/proc"),
    Case("clock_wrong", outside={"clock_skew": 7200.0}, says="2.0 h ahead of", fix="sudo timedatectl set-ntp true"),
    Case("clock_skew", outside={"clock_skew": -12.0}, says="12 s behind"),
    Case("clock_unsynchronized", preflight={"ntp": {"synchronized": False}}, says="no time service", fix="timedatectl"),
    Case("libc_musl", {"libc": {"kind": "musl", "version": "1.2.4"}}, says="musl 1.2.4", fix="--engine"),
    Case("libc_old", {"libc.version": "2.12"}, says="2.12", fix="--engine"),
    Case("libc_unknown", {"libc": {}, "unknown.libc": "no loader"}, says="no loader"),
    Case("library_missing", preflight={"libraries": {"libgomp.so.1": False}}, fix="sudo apt-get install libgomp1"),
    Case(
        "library_missing",
        {"user.uid": 0},
        {"libraries": {"libgomp.so.1": False, "libstdc++.so.6": False}, "packages.manager": "apk"},
        says="libgomp.so.1 and libstdc++.so.6",
        fix="apk add libgomp libstdc++",
    ),
    Case("ldd_missing", preflight={"tools.ldd": None}, fix="sudo apt-get install libc-bin"),
    Case("kernel_old", {"os.kernel": "3.10.0-1160.el7.x86_64"}, says="3.10.0"),
    Case("wsl", {"os.wsl": True}, says="WSL"),
    Case("container_no_init", {"container": "docker"}, {"init": "sshd"}, says="sshd", fix="--init"),
    Case("memory_unknown", {"memory": {}, "unknown.memory": "FileNotFoundError"}, says="FileNotFoundError"),
    Case("memory_low", {"memory.total": GIB}, says="1.0 GiB"),
    Case("memory_limited", {"memory.cgroup_limit": 16 * GIB}, says="16.0 GiB of the machine's 256.0 GiB"),
    Case(
        "swap_in_use",
        {"memory.swap_free": GIB},
        says="7.0 GiB of its 8.0 GiB",
        fix="`sudo swapoff -a && sudo swapon -a`",
    ),
    Case(
        "huge_pages_reserved", {"memory.huge_pages": 64 * GIB}, says="64.0 GiB", fix="`sudo sysctl vm.nr_hugepages=0`"
    ),
    Case("overcommit_strict", preflight={"oom.overcommit": 2}, fix="sudo sysctl vm.overcommit_memory=0"),
    Case("nofile_low", {"limits.nofile": 1024}, says="1024 files", fix="anna hard nofile"),
    Case("nproc_low", {"limits.nproc": 512}, says="512 processes", fix="anna hard nproc"),
    # disks
    Case("root_silent", {"unknown.root": "no answer in 3 s"}, says="no answer in 3 s", fix="--root"),
    Case("unsafe_root", {"root.owner_ok": False, "root.fault": "is writable by others"}, says="is writable by others"),
    Case("unwritable_root", {"root.writable": False}, says=HOME, fix="--root"),
    Case("unwritable_root", {"root.writable": False, "root.read_only": True}, says="read-only", fix="remount,rw"),
    Case("noexec_root", {"root.noexec": True}, says="noexec", fix="--root"),
    Case("low_disk", {"root.free": 200 * MIB}, says="200 MB free"),
    Case("few_inodes", {"root.inodes_free": 12}, says="12 more files", fix="df -i"),
    Case("root_in_memory", {"root.fs": "tmpfs"}, says="tmpfs", fix="--root"),
    Case("root_shared", {"root.shared": True, "root.fs": "nfs4"}, says="nfs4", fix="--root"),
    Case(
        "home_shared",
        {"root.shared": True, "root.fs": "nfs4"},
        {**mount(0, shared=True, fs="nfs4"), **mount(1, shared=True, fs="nfs4")},
        says=f"{HOME} lies on nfs4",
    ),
    Case("home_full", preflight=mount(1, free=4096), says="4 KB free", fix="du -xd1 /home/anna"),
    Case("tmp_noexec", preflight=mount(2, noexec=True), fix="TMPDIR"),
    Case("tmp_full", preflight=mount(2, free=MIB), says="1 MB free", fix="sudo du -xd1 /tmp"),
    Case("tmp_unwritable", preflight=mount(2, writable=False), fix="sudo chmod 1777 /tmp"),
    Case("shm_small", {"gpus": [GPU, GPU]}, mount(3, total=64 * MIB), says="64 MiB", fix="remount,size=16G"),
    Case("shm_small", {"gpus": [GPU, GPU], "container": "docker"}, mount(3, total=64 * MIB), fix="--shm-size"),
    # cpu
    Case(
        "cpu_avx2_hidden",
        {"cpu.level": "x86-64-v1", "cpu.flags": [], "cpu.hypervisor": True, "cpu.model": "Common KVM processor"},
        says="five to nineteen times slower",
        fix="`host`",
    ),
    Case(
        "cpu_no_avx2", {"cpu.level": "x86-64-v2", "cpu.flags": []}, says="five to nineteen times slower", fix="another"
    ),
    Case("cpu_arm_plain", {"cpu.level": "armv8", "cpu.flags": ["asimd"], "cpu.model": "Cortex-A72"}, says="Cortex-A72"),
    Case("cpu_limited", {"limits.cpu_quota": 4.0}, says="4 of the machine's 64"),
    Case("cpu_limited", {"cpu.usable": 8}, says="8 of the machine's 64"),
    # cards
    Case("gpu_lost", gpu(index=3, health="lost", health_detail="GPU is lost"), says="GPU 3 is lost: GPU is lost"),
    Case("gpu_unhealthy", gpu(health="error", health_detail="ERR!"), says="GPU 0 reports errors: ERR!"),
    Case("gpu_ecc_errors", gpu(ecc_uncorrected=2), says="2 uncorrected memory errors since", fix="--gpu-reset"),
    Case("gpu_hot", gpu(temperature=93.0), says="93 °C"),
    Case("gpu_link_narrow", gpu(pcie={**GPU["pcie"], "width": 4}), says="4 of 16 PCIe lanes"),
    Case("gpu_link_narrow", gpu(pcie={**GPU["pcie"], "generation": 1}, utilization=90.0), says="PCIe 1 in place of 5"),
    Case(
        "gpu_memory_held",
        {**gpu(), "gpu_processes": [HOLDER]},
        says="python3 (pid 4711, user bob) holds 12.0 GiB of GPU 0",
        fix="Ask bob, or `sudo kill 4711`.",
    ),
    Case("gpu_memory_held", {**gpu(), "gpu_processes": [{**HOLDER, "user": "anna"}]}, fix="or `kill 4711`."),
    Case(
        "gpu_memory_orphaned", {**gpu(), "gpu_processes": [{**HOLDER, "owner": "orphan"}]}, says="4711", fix="kill 4711"
    ),
    Case("gpus_mixed", {"gpus": [GPU, {**GPU, "index": 1, "name": "NVIDIA L4"}]}, says="1 × NVIDIA L4"),
    Case(
        "amd_no_driver", {"amd": {"cards": [{"pci": "0000:03:00.0"}]}}, says="0000:03:00.0", fix="sudo modprobe amdgpu"
    ),
    Case(
        "amd_no_rocm",
        {"amd": {"driver_loaded": True}, "gpus": [{"vendor": "amd", "name": "MI300X", "memory_kind": "dedicated"}]},
        says="MI300X",
        fix="Vulkan",
    ),
    Case("intel_no_driver", {"intel": {"cards": [{"pci": "0000:03:00.0"}]}}, says="0000:03:00.0"),
    Case(
        "gpu_no_access",
        preflight={"devices": [{"path": "/dev/kfd", "ok": False, "group": "render"}]},
        says="/dev/kfd",
        fix="sudo usermod -aG render anna",
    ),
    Case(
        "gpu_no_access",
        preflight={"devices": [{"path": "/dev/kfd", "ok": False, "group": "root"}]},
        fix="/etc/udev/rules.d/70-llmgw.rules",
    ),
    Case(
        "gpu_no_access",
        preflight={"devices": [{"path": "/dev/nvidia0", "ok": False, "group": "root"}]},
        fix="NVreg_DeviceFileGID",
    ),
    Case(
        "igpu_beside",
        {"gpus": [GPU, {"vendor": "amd", "name": "AMD Raphael", "integrated": True, "memory_kind": "shared"}]},
        says="AMD Raphael",
    ),
    Case("gpu_unified", {"gpus": [{**GPU, "name": "NVIDIA GB10", "memory_kind": "unified"}]}, says="NVIDIA GB10"),
    # nvidia
    Case(
        "gpu_driver_mismatch",
        nvidia(kernel_module="550.54.15", library="560.35.03", smi_error={"code": "mismatch", "text": "x"}),
        says="to 560.35.03 while its old kernel module (550.54.15)",
        fix="sudo reboot",
    ),
    Case(
        "gpu_tool_hangs", nvidia(smi_error={"code": "hangs", "text": "nvidia-smi did not answer in 10 s"}), says="10 s"
    ),
    Case("gpu_error", nvidia(smi_error={"code": "failed", "text": "Unable to determine"}), says="Unable to determine"),
    Case("gpu_no_driver", {"nvidia": {"cards": [CARD]}}, says="1 NVIDIA card on", fix="--nvidia-smi"),
    Case("gpu_no_driver", {"nvidia": {"cards": [CARD]}, "os.id": "ubuntu"}, fix="sudo ubuntu-drivers install"),
    Case("gpu_nouveau", {"nvidia": {"cards": [{**CARD, "driver": "nouveau"}]}}, says="0000:18:00.0", fix="reboot"),
    Case("gpu_given_away", {"nvidia": {"cards": [{**CARD, "driver": "vfio-pci"}]}}, says="0000:18:00.0"),
    Case(
        "gpu_missing",
        nvidia(cards=[CARD, {"pci": "0000:2a:00.0", "driver": "nvidia"}]),
        says="2 NVIDIA cards on PCI, the driver shows 1 (0000:2a:00.0",
    ),
    Case("gpu_driver_old", nvidia(driver="470.223.02", cuda="11.4"), says="CUDA 11.4 at most", fix="580"),
    Case("gpu_cuda_12", nvidia(driver="550.54.15", cuda="12.4"), says="CUDA 12.4 at most", fix="580"),
    Case("gpu_too_old", gpu(compute_capability="6.1", name="Tesla P40"), says="6.1"),
    Case(
        "fabric_manager_stopped",
        nvidia(nvswitches=4, fabric_manager={"needed": True, "running": False, "version": "580.65.06"}),
        says="4 NVSwitches",
        fix="sudo systemctl enable --now nvidia-fabricmanager",
    ),
    Case(
        "fabric_manager_stopped",
        nvidia(fabric_manager={"needed": True, "running": False}),
        fix="sudo apt-get install 'nvidia-fabricmanager-580=580.65.06*'",
    ),
    Case(
        "fabric_manager_mismatch",
        nvidia(fabric_manager={"needed": True, "running": True, "version": "580.82.07"}),
        says="580.82.07, the driver 580.65.06",
    ),
    Case("gpu_fabric_not_joined", gpu(fabric_state="In Progress"), says="GPU 0", fix="nvidia-fabricmanager"),
    Case("imex_stopped", nvidia(imex={"needed": True, "running": False}), fix="nodes_config.cfg"),
    Case("persistence_off", gpu(persistence=False), says="GPU 0", fix="sudo nvidia-smi -pm 1"),
    Case("mig_without_slices", gpu(mig=True), says="GPU 0", fix="nvidia-smi mig -i 0 -cgi"),
    Case("gpu_tool_warns", nvidia(warnings=["WARNING: infoROM is corrupted"]), says="infoROM is corrupted"),
    # xid
    Case(
        "gpu_xid",
        {"xid": [{"pci": "0000:18:00.0", "xid": 79, "count": 2, "last_s_ago": 3600.0}]},
        says="Xid 79 (fallen off the bus) of 0000:18:00.0 2 times, last 60 min ago",
        fix="dmesg",
    ),
    Case("gpu_xid", {"xid": [{"xid": 13, "kind": "sxid"}]}, says="SXid 13"),
    Case("gpu_xid_program", {"xid": [{"pci": "0000:18:00.0", "xid": 31}]}, says="Xid 31"),
    # fabric
    Case("fabric_adapter_missing", {"fabric": [IB]}, outside=FABRICS, says="mlx5_1 (blue)", fix="--fabric"),
    Case("fabric_one_adapter", {"fabric": [IB]}, outside={"fabrics": {"blue": ("mlx5_0",)}}, says="fewer than 2"),
    Case(
        "fabric_port_down",
        {"fabric": [IB, {**IB2, "state": "DOWN", "phys_state": "Polling"}]},
        outside=FABRICS,
        says="mlx5_1 port 1 of blue is DOWN (Polling)",
    ),
    Case(
        "fabric_no_subnet_manager",
        {"fabric": [IB, {**IB2, "sm_lid": 0, "state": "INIT"}]},
        outside=FABRICS,
        says="mlx5_1 port 1 (blue)",
        fix="sudo apt-get install opensm",
    ),
    Case("fabric_split", {"fabric": [IB, {**ROCE, "hca": "mlx5_1"}]}, outside=FABRICS, says="Ethernet and InfiniBand"),
    Case("fabric_split", {"fabric": [IB, {**IB2, "subnet_prefix": "fe80:1"}]}, outside=FABRICS, says="subnets"),
    Case("fabric_rates_differ", {"fabric": [IB, {**IB2, "rate_gbps": 100.0}]}, outside=FABRICS, says="100 Gbit/s"),
    Case(
        "fabric_no_address",
        {"fabric": [ROCE], "interfaces": [{"name": "eth2", "addresses": []}]},
        outside=FABRICS,
        says="eth2",
    ),
    Case("fabric_no_peermem", nvidia(peermem=False), outside=FABRICS, says="nvidia-peermem", fix="sudo modprobe"),
    Case("fabric_tools_missing", {"fabric": [IB, IB2]}, outside=FABRICS, fix="sudo apt-get install infiniband-diags"),
    Case(
        "fabric_no_verbs",
        {"fabric": [IB, IB2]},
        {"libraries": {"libibverbs.so.1": False}},
        FABRICS,
        says="plain sockets",
        fix="sudo apt-get install ibverbs-providers",
    ),
    Case("memlock_low", {"fabric": [IB], "limits.memlock": 8 * MIB}, says="8192 KiB", fix="memlock unlimited"),
    # network
    Case("ports_none", preflight={"ports": {"free": 0, "of": 1000}}, says="1000", fix="engine_ports"),
    Case("ports_few", preflight={"ports": {"free": 3, "of": 1000}}, says="only 3 of the 1000"),
    Case("dns_broken", preflight={"outbound.dns": False}, fix="/etc/resolv.conf"),
    Case("outbound_none", preflight={"outbound.hosts.0.ok": False}, says="pypi.org:443", fix="mirror"),
    Case(
        "outbound_some",
        preflight={"outbound.hosts.+": {"host": "github.com:443", "ok": False, "error": "timed out"}},
        says="github.com:443 (timed out)",
    ),
    Case("far_away", outside={"round_trip": 0.4}, says="400 ms"),
    Case(
        "management_slow",
        {
            "management": {"interface": "eth0", "address": "10.0.0.2", "peer": "10.0.0.1"},
            "interfaces": [{"name": "eth0", "kind": "physical", "speed_mbps": 100}],
        },
        says="100 Mbit/s",
    ),
    # ssh
    Case(
        "pubkey_off", preflight={"sshd.pubkey": False}, fix="`sudo systemctl reload ssh || sudo systemctl reload sshd`"
    ),
    Case(
        "keys_elsewhere",
        preflight={"sshd.authorized_keys_file": ["/etc/keys/%u"]},
        outside={"key_line": "restrict ssh-ed25519 AAAA llmgw"},
        fix="Put the line `restrict ssh-ed25519 AAAA llmgw` into /etc/keys/anna,",
    ),
    Case(
        "keys_elsewhere", preflight={"sshd.authorized_keys_file": ["/etc/keys/%u"]}, says="/etc/keys/%u", fix="--no-key"
    ),
    Case("forwarding_forbidden", preflight={"sshd.allow_tcp_forwarding": "no"}, says="will carry", fix="local"),
    Case("forwarding_forbidden", preflight={"sshd": None}, outside={"forwarding": False}, says="refused"),
    Case("forwarding_limited", preflight={"sshd.permit_open": ["10.0.0.1:80"]}, says="10.0.0.1:80", fix="PermitOpen"),
    Case("max_sessions_small", preflight={"sshd.max_sessions": 1}, says="1 session a", fix="MaxSessions 10"),
    Case("max_sessions_small", outside={"sessions": 2}, says="2 sessions"),
    Case("max_startups_small", preflight={"sshd.max_startups": "2:50:10"}, says="2:50:10"),
    Case("forced_command", preflight={"sshd.force_command": "/usr/bin/gate"}, says="/usr/bin/gate"),
    Case("dropbear", preflight={"sshd": {"server": "dropbear"}}, says="dropbear"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.code)
def test_a_rule_finds_what_it_is_for(case: Case) -> None:
    found = judged(case.probe, case.preflight, case.outside, node_id=case.node_id)
    assert case.code in found, sorted(found)
    problem = found[case.code]
    assert case.says in problem.message
    assert case.fix in problem.fix
    assert "None" not in problem.message + problem.fix


FIXES = [
    *((rule.code, rule.fix) for rule in RULES if rule.fix),
    *(
        (case.code, judged(case.probe, case.preflight, case.outside, node_id=case.node_id)[case.code].fix)
        for case in CASES
    ),
]


@pytest.mark.parametrize(("code", "fix"), FIXES, ids=[code for code, _ in FIXES])
def test_a_fix_can_be_copied(code: str, fix: str) -> None:
    assert wrong(fix) is None, f"{code}: {wrong(fix)}: {fix}"


def test_every_rule_has_a_case() -> None:
    assert {rule.code for rule in RULES} - {case.code for case in CASES} == set()


def test_a_case_says_one_thing() -> None:
    """What is wrong is said once: no second rule finds it too, but for those that follow from it."""
    follow = {
        "gpu_cuda_12",
        "hostname_differs",
        "fabric_one_adapter",
        "fabric_adapter_missing",
        "root_in_memory",
        "root_shared",
    }
    follow |= {
        "gpus_mixed",
        "python_several",
        "memory_limited",
        "fabric_tools_missing",
        "persistence_off",
        "libc_unknown",
    }
    for case in CASES:
        more = set(judged(case.probe, case.preflight, case.outside, node_id=case.node_id)) - {case.code}
        assert more <= follow, (case.code, more)
