"""What serves a volume's data: a server that can be stopped, killed and full, and its file in the tree."""

import os
import signal
import subprocess
import time

from daemon import PATIENCE, Finding, run, said

IMAGE = 512 << 20


class Process:
    """A server of the run, which ends with it."""

    def __init__(self, home, name, *command, **more):
        with open(f"{home}/{name}.out", "ab") as out:
            self.child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True, **more
            )
        self.name = name

    def send(self, number):
        if self.child.poll() is None:
            self.child.send_signal(number)

    def end(self, number=signal.SIGKILL):
        self.send(signal.SIGCONT)
        self.send(number)
        self.child.wait(PATIENCE)


def until(what, answer, patience=PATIENCE):
    """Waits until `answer` says something true, and gives that."""
    begin = time.monotonic()
    while not (said_so := answer()):
        if time.monotonic() - begin > patience:
            raise Finding(f"{what}: not within {patience} s")
        time.sleep(0.1)
    return said_so


class Engine:
    """`home`: a directory of its own."""

    name = ""
    # What is left of the mount when the server is killed: whether calls wait for the next one.
    waits_for_server = False
    # What a full engine does to a write: whether it waits.
    waits_for_room = False
    # The client answers a flush by itself where it has nothing to flush.
    answers_flushes = False

    def __init__(self, home):
        self.home, self.mnt, self.file = home, f"{home}/engine", ""
        self.client = self.server = None
        os.makedirs(self.mnt)

    def up(self):
        """Starts it over what it has, and gives its file to the tree."""
        raise NotImplementedError

    def attach(self):
        """Begins the client: the file is in the tree."""
        raise NotImplementedError

    def detach(self):
        """Ends the client, after the mount above it was closed."""
        if self.is_there():
            command = [*self.UNMOUNT, self.mnt]
            until(f"{self.name}: unmount", lambda: run(*command).returncode == 0 or not self.is_there())
        if self.client:
            self.client.child.wait(PATIENCE)
        self.client = None

    def is_there(self):
        """Without asking the client, which may not answer."""
        with open("/proc/self/mountinfo") as f:
            return any(line.split()[4] == self.mnt for line in f)

    def stop(self):
        self.server.send(signal.SIGSTOP)

    def go_on(self):
        if self.server:
            self.server.send(signal.SIGCONT)

    def down(self):
        """Ends it, whatever state it is in: nothing is left but its files."""
        Engine.go_on(self)
        if self.is_there():
            # What waits in it gets an answer, or the end of the client.
            run("umount", "-l", self.mnt)
        for process in (self.client, self.server):
            if process:
                process.end()
        self.client = self.server = None

    def remove(self):
        """Takes away what is left when all has ended."""


class Plain(Engine):
    """A file on the same disk, to compare with."""

    name = "plain file"

    def __init__(self, home):
        super().__init__(home)
        self.file = f"{self.mnt}/image"

    def up(self):
        with open(self.file, "wb") as f:
            os.posix_fallocate(f.fileno(), 0, IMAGE)
        os.chmod(self.file, 0o600)

    def attach(self):
        pass

    def detach(self):
        pass


def must(*command, **more):
    done = run(*command, **more)
    if done.returncode:
        raise Finding(f"{' '.join(command)}: {said(done)}")
    return done.stdout
