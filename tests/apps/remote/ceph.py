"""Ceph of one node: a monitor, one OSD on a file, and an image, which rbd-fuse has in the tree."""

import json
import os
import socket
import time
import uuid

from daemon import Finding, run, said
from engine import IMAGE, Engine, Process, must, until

CONF = """[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{port}
ms bind msgr1 = false
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 1
osd pool default min size = 1
osd crush chooseleaf type = 0
mon allow pool size one = true
mon data avail crit = 0
run dir = {home}
crash dir = {home}
admin socket =
log file = {home}/$name.log
mon data = {home}/mon
osd data = {home}/osd
osd objectstore = bluestore
bluestore block size = 3221225472
bluestore cache size = 67108864
[client]
log file =
# rbd-fuse answers an fsync with success though the flush has failed: what its cache held would be lost without a word.
rbd cache = false
"""
RATIOS = {"nearfull": 0.85, "backfillfull": 0.90, "full": 0.95}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Ceph(Engine):
    name = "ceph"
    waits_for_server = True
    waits_for_room = True
    answers_flushes = True
    UNMOUNT = ("fusermount", "-u")

    def __init__(self, home):
        super().__init__(home)
        self.conf, self.file = f"{home}/ceph.conf", f"{self.mnt}/image"
        self.environment = {**os.environ, "CEPH_CONF": self.conf}
        self.mon = None

    def tell(self, *words, program="ceph"):
        """What a command of Ceph prints as JSON."""
        # The monitor may be at an election.
        done = run(program, *words, "--format", "json", env=self.environment)
        if done.returncode:
            raise Finding(f"{program} {' '.join(words)}: {said(done)}")
        return json.loads(done.stdout or "null")

    def up(self):
        begin = time.monotonic()
        if self.mon is None:
            self.make()
        self.took = time.monotonic() - begin
        self.attach()

    def make(self):
        fsid, port = str(uuid.uuid4()), free_port()
        with open(self.conf, "w") as f:
            f.write(CONF.format(fsid=fsid, port=port, home=self.home))
        os.makedirs(f"{self.home}/mon")
        os.makedirs(f"{self.home}/osd")
        plan = f"{self.home}/monmap"
        must("monmaptool", "--create", "--fsid", fsid, "--addv", "a", f"[v2:127.0.0.1:{port}]", plan, env=self.environment)
        must("ceph-mon", "--mkfs", "-i", "a", "--monmap", plan, env=self.environment)
        self.mon = Process(self.home, "mon", "ceph-mon", "-f", "-i", "a", env=self.environment)
        osd = str(uuid.uuid4())
        run("ceph", "osd", "new", osd, env=self.environment)
        must("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd, env=self.environment)
        must("ceph", "osd", "crush", "add", "osd.0", "1.0", "host=here", "root=default", env=self.environment)
        self.start_server()
        must("ceph", "osd", "pool", "create", "rbd", "8", env=self.environment)
        must("rbd", "pool", "init", "rbd", env=self.environment)
        must("rbd", "create", "--size", f"{IMAGE >> 20}M", "image", env=self.environment)

    def start_server(self):
        self.server = Process(self.home, "osd", "ceph-osd", "-f", "-i", "0", env=self.environment)
        until("the OSD", lambda: self.tell("osd", "stat")["num_up_osds"] == 1)

    def attach(self):
        self.client = self.client_at(self.mnt)

    def client_at(self, place):
        """A client of its own, with all images of the pool below `place`."""
        client = Process(self.home, "rbd-fuse", "rbd-fuse", "-f", "-p", "rbd", "-c", self.conf, "-o", "umask=077", place)
        until("rbd-fuse", lambda: os.path.exists(f"{place}/image"))
        return client

    def go_on(self):
        """A lone OSD that was stopped for long may never serve its placement groups again ("laggy"), for no client. Then it
        is started again, as an administrator would."""
        super().go_on()
        asked = run("timeout", "20", "rados", "-p", "rbd", "ls", env=self.environment)
        if asked.returncode:
            print("ceph: the OSD answers no other client either: it is started again", flush=True)
            self.server.end()
            self.start_server()

    def kill_server(self):
        self.server.end()

    def start_again(self):
        self.start_server()

    def ratios(self, share):
        for name, usual in RATIOS.items():
            must("ceph", "osd", f"set-{name}-ratio", str(share(usual)), env=self.environment)

    def fill(self):
        # It is full from the least that it holds.
        self.ratios(lambda _: 0.001)
        until("a full OSD", lambda: "full" in self.tell("osd", "dump")["osds"][0]["state"])

    def room(self):
        self.ratios(lambda usual: usual)

    def watcher(self):
        """The address of the client that has the image open."""
        return self.tell("status", "image", program="rbd")["watchers"][0]["address"]

    def lockers(self, image):
        return [lock["locker"] for lock in self.tell("lock", "ls", image, program="rbd")]

    def fence(self):
        """The cluster takes nothing more from the client."""
        must("ceph", "osd", "blocklist", "add", self.watcher(), env=self.environment)

    def down(self):
        super().down()
        if self.mon:
            self.mon.end()
        self.mon = None
