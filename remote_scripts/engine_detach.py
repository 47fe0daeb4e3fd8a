"""Starts a process that outlives the SSH session it was started from."""
import os
import signal
import warnings

import prelude

SYSTEMD_RUN = "/usr/bin/systemd-run"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def detach(command, env, folder, out):
    """Double fork, then a session of its own, in `folder` and with the descriptor `out` for its output. Its pid."""
    wrapped = scope()
    command = [word.encode("utf-8", "surrogateescape") for word in wrapped + command]
    env = {key.encode(): str(value).encode("utf-8", "surrogateescape") for key, value in env.items()}
    env.setdefault(b"PATH", PATH.encode())
    if wrapped:
        env[b"XDG_RUNTIME_DIR"] = b"/run/user/%d" % os.geteuid()
    warnings.simplefilter("ignore")  # 3.12 warns of a fork beside the thread that watches stdin: the child soon execs
    told, tell = os.pipe()
    middle = os.fork()
    if middle:
        os.close(tell)
        os.waitpid(middle, 0)
        with os.fdopen(told, "rb") as file:
            return int(file.read() or 0)
    try:
        if os.fork() == 0:
            os.write(tell, b"%d" % os.getpid())
            become(command, env, folder, out)
    finally:
        os._exit(127)


def become(command, env, folder, out):
    os.setsid()
    os.chdir(folder)
    null = os.open("/dev/null", os.O_RDWR)
    for source, target in ((null, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    os.set_blocking(1, True)
    for entry in os.listdir("/proc/self/fd"):  # what came from outside would hold the channel open
        try:
            if int(entry) > 2 and os.get_inheritable(int(entry)):
                os.close(int(entry))
        except OSError:  # the descriptor of this very listing
            pass
    for number in range(1, signal.NSIG):
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    limits()
    os.execve(command[0], command, env)


def limits():
    """Files as many as allowed, no core dumps of whole models, and the first to go when memory runs out."""
    import resource
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")
    except OSError:
        pass


def scope():
    """A systemd scope outside the login session, where lingering keeps it alive past logout. Root needs none."""
    if os.geteuid() == 0 or not os.access(SYSTEMD_RUN, os.X_OK):
        return []
    import pwd
    user, runtime = pwd.getpwuid(os.geteuid()).pw_name, "/run/user/%d" % os.geteuid()
    if not os.path.exists("/var/lib/systemd/linger/" + user) or not os.path.exists(runtime + "/systemd/private"):
        return []
    command = [SYSTEMD_RUN, "--user", "--scope", "--quiet", "--collect"]
    status = prelude.run(command + ["/bin/true"], 5, env={"PATH": PATH, "XDG_RUNTIME_DIR": runtime})[0]
    return command if status == 0 else []
