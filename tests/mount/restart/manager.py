"""As much of a service manager as a daemon needs: takes its messages, holds its descriptors, starts it again.

`manager.py SOCKET LOG PROGRAM...`. What the daemon says goes to LOG, a line a word. It ends when the daemon ends well.
"""

import array
import ctypes
import os
import platform
import select
import signal
import socket
import subprocess
import sys

path, log, program = sys.argv[1], sys.argv[2], sys.argv[3:]
inbox = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
inbox.bind(path)
held = []
KCMP = {"x86_64": 312, "aarch64": 272}[platform.machine()]


def is_same(one, other):
    """Whether two descriptors are of the same open file."""
    me, kcmp_file = os.getpid(), 0
    order = ctypes.CDLL(None, use_errno=True).syscall(KCMP, me, me, kcmp_file, one, other)
    if order < 0:
        raise OSError(ctypes.get_errno(), "kcmp")
    return order == 0


told = []
# Done between two messages: a handler runs in the middle of anything.
signal.signal(signal.SIGUSR1, lambda *_: told.append("forget"))


def forget_all():
    """As where the unit has gone."""
    for _, descriptor in held:
        os.close(descriptor)
    held.clear()
    with open(log, "a") as f:
        f.write("forgotten\n")


def take(lines, descriptors):
    if "FDSTORE=1" in lines:
        name = next(line[7:] for line in lines if line.startswith("FDNAME="))
        # As the real one: none twice, the newest first.
        if not any(is_same(fd, descriptors[0]) for _, fd in held):
            held.insert(0, (name, descriptors[0]))
            descriptors = descriptors[1:]
    if "FDSTOREREMOVE=1" in lines:
        name = next(line[7:] for line in lines if line.startswith("FDNAME="))
        for one in [one for one in held if one[0] == name]:
            held.remove(one)
            os.close(one[1])
    for descriptor in descriptors:
        os.close(descriptor)
    with open(log, "a") as f:
        f.writelines(line + "\n" for line in lines)


def messages():
    while told:
        told.pop()
        forget_all()
    while select.select([inbox], [], [], 0.05)[0]:
        room = socket.CMSG_SPACE(4 * array.array("i").itemsize)
        text, control, _, _ = inbox.recvmsg(4096, room)
        descriptors = array.array("i")
        for level, kind, data in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                descriptors.frombytes(data)
        take(text.decode().splitlines(), list(descriptors))


def life():
    def arrange():
        # Above all numbers that they are to have.
        high = [os.dup2(fd, 400 + n) for n, (_, fd) in enumerate(held)]
        for n, fd in enumerate(high):
            os.dup2(fd, 3 + n)

    env = dict(os.environ, NOTIFY_SOCKET=path, WATCHDOG_USEC="300000")
    env.update(LISTEN_FDS=str(len(held)), LISTEN_FDNAMES=":".join(name for name, _ in held))
    daemon = subprocess.Popen(program, env=env, preexec_fn=arrange, close_fds=False)
    while daemon.poll() is None:
        messages()
    messages()
    with open(log, "a") as f:
        f.write(f"ended {daemon.returncode}\n")
    return daemon.returncode


while life() not in (0, 32):
    pass
with open(log, "a") as f:
    f.write(f"held {len(held)}\n")
