"""What a fix may look like: one command and nothing else, or prose with every command in backticks."""

from __future__ import annotations

import re
import shlex

COMMANDS = (
    "sudo|chmod|chown|chsh|kill|systemctl|loginctl|tee|echo|printf|rm|modprobe|sysctl|swapoff|swapon|df|du|dmesg|"
    "journalctl|usermod|apt-get|dnf|zypper|pacman|apk|udevadm|timedatectl|restorecon|ss|ssh-keygen|cp|mv|unset|export"
)
PROSE = frozenset({"then", "or", "and", "where", "in", "with", "again", "the", "them", "it"})
_GLUED = re.compile(rf"(?<![\w/.-])((({COMMANDS}) +[^ ])|(mount|nvidia-smi|umask|qm) +-)")


def wrong(fix: str) -> str | None:
    """Why whoever copies from this fix types prose into a shell; None where all is well."""
    if not fix:
        return None
    if fix[0].islower() or fix[0] in "/~":
        return _command(fix)
    if fix.count("`") % 2:
        return "a backtick is alone"
    if found := _GLUED.search(re.sub(r"`[^`]*`", "…", fix)):
        return f"{found.group()!r} is a command in prose"
    for inside in re.findall(r"`([^`]*)`", fix):
        if re.match(COMMANDS, inside) and (why := _command(inside)):
            return why
    return None


def _command(text: str) -> str | None:
    try:
        words = shlex.split(text)
    except ValueError as exc:
        return str(exc)
    if glued := [word for word in words if word in PROSE or word[-1:] in (",", ".", ";", ":")]:
        return f"{glued} in a command"
    return None
