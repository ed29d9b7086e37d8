"""NBD: nbdkit serves a file, nbdfuse has it in the tree."""

import os

from engine import IMAGE, Engine, Process, must, until


class Nbd(Engine):
    name = "nbd"
    # nbdfuse ends with its connection.
    waits_for_server = False
    waits_for_room = False
    UNMOUNT = ("fusermount3", "-u")

    def __init__(self, home):
        super().__init__(home)
        self.file, self.backing = f"{self.mnt}/nbd", f"{home}/backing"
        os.makedirs(self.backing)
        self.image = f"{self.backing}/image"
        self.lives = 0

    def up(self):
        if not os.path.exists(self.image):
            with open(self.image, "wb") as f:
                f.truncate(IMAGE)
        self.lives += 1
        # A dead server leaves its socket behind.
        self.socket = f"{self.home}/socket{self.lives}"
        self.server = Process(self.home, "nbdkit", "nbdkit", "-f", "--unix", self.socket, "file", self.image)
        until("nbdkit", lambda: os.path.exists(self.socket))
        self.attach()

    def attach(self):
        self.client = Process(self.home, "nbdfuse", "nbdfuse", "-o", "umask=077", self.mnt, "--unix", self.socket)
        until("nbdfuse", lambda: os.path.exists(self.file))

    def kill_server(self):
        self.server.end()

    def start_again(self):
        """After the server was killed: the client has ended with its connection."""
        self.down()
        self.up()


class NbdOnLittle(Nbd):
    """Its image is sparse, on a file system that is made smaller and larger."""

    name = "nbd, little room"

    def up(self):
        if not os.path.ismount(self.backing):
            must("mount", "-t", "tmpfs", "-o", f"size={IMAGE}", "none", self.backing)
        super().up()

    def fill(self):
        used = os.stat(self.image).st_blocks * 512
        must("mount", "-o", f"remount,size={used + (4 << 20)}", self.backing)

    def room(self):
        must("mount", "-o", f"remount,size={2 * IMAGE}", self.backing)

    def remove(self):
        if os.path.ismount(self.backing):
            must("umount", self.backing)
