//! Damage to configuration, journal, page table, staged blocks and content.

use std::sync::Arc;

use quayfs_background::digest::digest_all;
use quayfs_crashsim::{Fault, FaultDevice, FaultOp, Repeat};
use quayfs_fs::recovery::journal_geometry;
use quayfs_fs::{Fs, SetAttr};
use quayfs_journal::{Journal, LiveSlot};
use quayfs_layout::checksum::crc32c;
use quayfs_layout::config::{COPIES, DataHeader};
use quayfs_layout::inode::{ROOT, S_IFREG};
use quayfs_layout::intent::{Intent, IntentKind};
use quayfs_layout::jsb::{Closed, EpochWord, SeqWord, WordKind};
use quayfs_layout::l2p::{BlockState, Entry, SPARE_AT, encode_commit};
use quayfs_layout::node::HEADER;
use quayfs_layout::record::{RECORD_HEADER_BYTES, RecordHeader, body_crc};
use quayfs_layout::slot::{COMMITTED_OFFSET, SLOT_HEADER_BYTES, SlotHeader, committed};
use quayfs_layout::{BLOCK, Ino, Lbn};
use quayfs_options::MountOptions;

use super::support::{BY, Disk};
use crate::{FsckOptions, check_volume};

impl Disk {
    fn word(&self, kind: WordKind) -> u64 {
        self.geo().jsb_off + kind.offset()
    }

    fn number(&self, kind: WordKind) -> u64 {
        let word = self.region.load_u64(self.word(kind));
        SeqWord::decode(word, kind.salt(self.salt())).unwrap()
    }

    fn set_number(&self, kind: WordKind, n: u64) {
        self.region
            .store_u64(self.word(kind), SeqWord::encode(n, kind.salt(self.salt())));
    }

    /// Overwrites the first record that has these bytes, from there on.
    pub fn overwrite_record(&self, with: &[u8], by: &[u8]) {
        let (off, len) = (
            self.geo().lane_off,
            self.geo().lane_bytes * self.geo().buffers,
        );
        let lanes = self.region.read_vec(off, len);
        let at = lanes.windows(with.len()).position(|w| w == with).unwrap();
        self.region.write(off + at as u64, by);
    }

    pub fn live(&self) -> Vec<LiveSlot> {
        let geo = journal_geometry(self.geo(), self.salt());
        let mut live = Journal::scan(Arc::clone(&self.region), &geo).unwrap().live;
        live.sort_by_key(|l| l.seq);
        live
    }

    /// Buffer, slot and offset of the header.
    pub fn slot(&self, l: &LiveSlot) -> (u16, u64, u64) {
        let (g, index) = (self.geo(), l.pos % self.geo().slots_per_buffer);
        let place = u64::from(l.buffer) * g.slots_per_buffer + index;
        (
            l.buffer,
            index,
            g.slot_hdr_off + place * SLOT_HEADER_BYTES as u64,
        )
    }

    pub fn payload(&self, l: &LiveSlot) -> u64 {
        let (buffer, index, _) = self.slot(l);
        let g = self.geo();
        g.slot_data_off + (u64::from(buffer) * g.slots_per_buffer + index) * BLOCK as u64
    }

    /// Changes the header of a slot and seals it again.
    fn edit_header(&self, l: &LiveSlot, f: impl FnOnce(&mut SlotHeader)) {
        let (buffer, index, off) = self.slot(l);
        let mut bytes = [0; SLOT_HEADER_BYTES];
        self.region.read(off, &mut bytes);
        let seq = committed(&bytes, self.salt(), buffer, index).unwrap();
        let mut header = SlotHeader::decode(&bytes, self.salt(), buffer).unwrap();
        f(&mut header);
        self.region.write(
            off,
            &header.encode_committed(self.salt(), buffer, index, seq),
        );
    }

    pub fn entry(&self, lbn: Lbn) -> Entry {
        let word = self.region.load_u64(self.geo().l2p_map_off + lbn * 8);
        Entry::decode(word, lbn, self.salt()).unwrap()
    }

    pub fn set_entry(&self, lbn: Lbn, entry: Entry) {
        let word = entry.encode(lbn, self.salt());
        self.region
            .store_u64(self.geo().l2p_map_off + lbn * 8, word);
    }

    /// The block of an LBN on the device.
    pub fn crc(&self, lbn: Lbn) -> u32 {
        self.region.load_u32(self.geo().l2p_crc_off + lbn * 4)
    }

    pub fn block(&self, lbn: Lbn) -> u64 {
        self.geo().data_start + self.entry(lbn).pbn
    }
}

/// A file with this content whose blocks are staged, and a daemon that died.
fn staged(disk: &Disk, writes: &[&[u8]], after: impl FnOnce(&Fs, Ino)) -> Ino {
    let fs = disk.mount();
    let ino = fs
        .mknod(BY, ROOT, b"staged", S_IFREG | 0o644, 0)
        .unwrap()
        .ino;
    for data in writes {
        fs.write(ino, 0, data, false).unwrap();
    }
    after(&fs, ino);
    fs.abandon();
    ino
}

#[test]
fn configuration_tables() {
    for (i, off) in COPIES.into_iter().enumerate() {
        let (disk, _) = Disk::sample();
        disk.region.write(off + 100, &[1]);
        disk.finds(&[&format!(
            "warning: config: copy {i} of the configuration table: checksum mismatch; the other one is used"
        )]);
    }
    let (disk, _) = Disk::sample();
    let mut other = disk.config.clone();
    other.label[0] ^= 1;
    disk.region.write(COPIES[1], &other.encode());
    disk.finds(&[
        "error: config: the two copies of the configuration table differ; copy 0 is used",
    ]);
}

#[test]
fn the_header_of_the_device() {
    let (disk, _) = Disk::sample();
    let blocks = disk.geo().data_blocks;
    let (uuid, data_uuid) = (disk.config.uuid, disk.config.data_uuid);
    let header = DataHeader {
        uuid,
        data_uuid,
        blocks: blocks - 1,
    };
    disk.device.write(0, &header.encode()).unwrap();
    disk.finds(&[&format!(
        "error: device: the header says {} blocks, the configuration table says {blocks}",
        blocks - 1
    )]);
}

#[test]
fn superblock_words() {
    let (disk, _) = Disk::sample();
    disk.region.store_u64(disk.word(WordKind::Clean), 99);
    disk.finds(&["warning: journal: journal superblock: the Clean word fails its check"]);

    let (disk, _) = Disk::sample();
    let digested = disk.number(WordKind::Digested);
    disk.set_number(WordKind::Retired, digested + 5);
    disk.finds(&[&format!(
        "error: journal: slots up to {} are retired, but records only up to {digested} are digested",
        digested + 5
    )]);

    let (disk, _) = Disk::sample();
    disk.region.store_u64(disk.word(WordKind::Digested), 99);
    disk.finds(&[
        "error: journal: journal superblock: the Digested word fails its check",
        "error: recovery: the volume cannot be mounted: ...",
    ]);
    let report = disk.check();
    assert_eq!(
        report.skipped,
        ["everything but node pages: the journal cannot be read"]
    );
}

#[test]
fn a_clean_flag_that_lies() {
    let disk = Disk::new();
    staged(&disk, &[b"x"], |_, _| ());
    let word = disk.region.load_u64(disk.word(WordKind::Epoch));
    let epoch = EpochWord::decode(word, disk.salt()).unwrap().epoch;
    disk.set_number(WordKind::Clean, epoch.into());
    disk.finds(&["error: journal: marked as unmounted cleanly, but 2 records and 1 slot are live"]);
    // With slots alone it would be true.
    disk.set_number(WordKind::Clean, Closed::Staged.number(epoch));
    disk.finds(&[
        "error: journal: marked as unmounted with nothing to replay, but 2 records are live",
    ]);
}

#[test]
fn an_epoch_word_that_records_contradict() {
    for (says, is) in [(1, 4), (2, 4), (3, 4), (5, 4), (9, 4)] {
        let disk = Disk::new();
        for _ in 0..2 {
            disk.mount().shutdown().unwrap();
        }
        let fs = disk.mount();
        fs.mknod(BY, ROOT, b"file", S_IFREG | 0o644, 0).unwrap();
        fs.abandon();
        let off = disk.word(WordKind::Epoch);
        let word = EpochWord::decode(disk.region.load_u64(off), disk.salt()).unwrap();
        assert_eq!(word.epoch, is);
        let lie = EpochWord {
            epoch: says,
            ..word
        };
        disk.region.store_u64(off, lie.encode(disk.salt()));
        disk.finds(&["error: journal: lane ..."]);
        let report = disk.check().to_string();
        let what = format!("is of epoch {is}, the superblock says {says}\n");
        assert!(report.contains(&what), "{report}");
        // Mounted as epoch 3, nothing would be there; some mounts later the record would be.
        let mounted = Fs::mount_quiet(disk.volume(), &MountOptions::default());
        let refused = mounted.err().expect("records of another epoch");
        assert!(refused.to_string().starts_with("damaged (1 "), "{refused}");
    }
}

#[test]
fn a_damaged_record() {
    let disk = Disk::new();
    let fs = disk.mount();
    for name in [&b"victim"[..], b"witness"] {
        fs.mknod(BY, ROOT, name, S_IFREG | 0o644, 0).unwrap();
    }
    fs.abandon();
    disk.overwrite_record(b"victim", b"V");
    disk.finds(&["error: journal: lane ..."]);
}

/// A record whose checksums are right, and whose items are none: whatever a mount refuses is found.
#[test]
fn a_record_of_no_items() {
    let disk = Disk::new();
    disk.mount().shutdown().unwrap();
    let fs = disk.mount();
    fs.mknod(BY, ROOT, b"file", S_IFREG | 0o644, 0).unwrap();
    let epoch = fs.e.journal.epoch();
    fs.abandon();
    let (g, salt) = (disk.geo(), disk.salt());
    let line = |off: u64| {
        let mut b = [0; RECORD_HEADER_BYTES];
        disk.region.read(off, &mut b);
        let (lane, pos) = (
            (off - g.lane_off) / g.lane_bytes,
            (off - g.lane_off) % g.lane_bytes,
        );
        RecordHeader::decode(&b, salt, lane as u16, epoch, pos)
    };
    let end = g.lane_off + g.lane_bytes * g.buffers;
    let lines = (g.lane_off..end).step_by(RECORD_HEADER_BYTES);
    let (off, header) = lines
        .filter_map(|off| Some((off, line(off)?)))
        .last()
        .unwrap();
    let at = off + RECORD_HEADER_BYTES as u64;
    let mut body = disk.region.read_vec(at, header.body_len.into());
    body[header.runs_len as usize..].fill(0xff);
    disk.region.write(at, &body);
    let forged = RecordHeader {
        body_crc: body_crc(&body, salt),
        ..header
    };
    disk.region.write(off, &forged.encode(salt));
    let what = format!("record {}: record item 0 cannot be decoded", header.seq);
    disk.finds(&[&format!("error: recovery: {what}")]);
    let refused = Fs::mount_quiet(disk.volume(), &MountOptions::default()).err();
    assert!(refused.expect("no record").to_string().contains(&what));
}

#[test]
fn a_damaged_committed_word() {
    let disk = Disk::new();
    staged(&disk, &[b"x"], |fs, _| digest_all(&fs.e).unwrap());
    let slot = disk.live()[0];
    let (buffer, index, off) = disk.slot(&slot);
    disk.region.store_u64(off + COMMITTED_OFFSET, 99);
    disk.finds(&[&format!(
        "error: journal: staging buffer {buffer}, slot {index}: its committed word fails the check"
    )]);
}

#[test]
fn the_log_of_the_page_table() {
    let (disk, _) = Disk::sample();
    let log = disk.geo().l2p_log_off;
    disk.region.store_u64(log, 99);
    disk.finds(&[
        "warning: page-table: the log: its commit word fails the check; the next mount repairs it",
    ]);
    let first = encode_commit(0, disk.salt());
    disk.region.store_u64(log, first);
    disk.region.store_u64(log + SPARE_AT, first);
    disk.finds(&[
        "error: page-table: the page table's log is damaged: transaction 2 began while 0 was the last one finished",
    ]);
    // Recovery of a copy makes the best of it, so that the rest is checked.
    let report = disk.check();
    assert!(report.skipped.is_empty() && report.statistics.verified > 0);
}

#[test]
fn the_map() {
    let (disk, s) = Disk::sample();
    let lbn = disk.inode(s.small).inline_extent(0).unwrap().lbn + 1;
    let free: Lbn = 5000;
    let at = |lbn: Lbn| disk.geo().l2p_map_off + lbn * 8;
    let (word, free_word) = (
        disk.region.load_u64(at(lbn)),
        disk.region.load_u64(at(free)),
    );
    disk.region.store_u64(at(lbn), word ^ 1);
    disk.region.store_u64(at(free), 0);
    disk.finds(&[
        &format!(
            "error: page-table: the entry of LBN {lbn} is damaged (inode {}, file block 1)",
            s.small
        ),
        &format!("error: page-table: the entry of LBN {free} is damaged (no file has it)"),
    ]);
    disk.region.store_u64(at(lbn), word);
    disk.region.store_u64(at(free), free_word);
    let pbn = disk.entry(lbn).pbn;
    disk.set_entry(
        free,
        Entry {
            pbn,
            state: BlockState::Zero,
        },
    );
    disk.finds(&[&format!(
        "error: page-table: LBN {free}: an earlier LBN has its physical block, {pbn}, as well (no file has it)"
    )]);
    disk.region.store_u64(at(free), free_word);
    let spare = disk.geo().visible_blocks() + 3;
    let pbn = disk.entry(spare).pbn;
    disk.set_entry(
        spare,
        Entry {
            pbn,
            state: BlockState::Written,
        },
    );
    disk.finds(&[&format!(
        "error: page-table: LBN {spare} of the spare pool is not in state zero"
    )]);
}

#[test]
fn staged_payloads() {
    // Digested: under the last record of a lane a payload may be missing.
    let disk = Disk::new();
    let ino = staged(&disk, &[b"first", b"second"], |fs, _| {
        digest_all(&fs.e).unwrap();
    });
    let live = disk.live();
    assert_eq!(live.len(), 2);
    let at = |l: &LiveSlot| {
        let (buffer, index, _) = disk.slot(l);
        let lbn = l.lbn;
        format!(
            "staged: staging buffer {buffer}, slot {index}: the content of LBN {lbn} fails its checksum"
        )
    };
    disk.region.write(disk.payload(&live[0]), b"FIRST");
    let superseded = format!("warning: {} (inode {ino}, file block 0)", at(&live[0]));
    disk.finds(&[&superseded]);
    disk.region.write(disk.payload(&live[1]), b"SECOND");
    let newest = format!("error: {} (inode {ino}, file block 0)", at(&live[1]));
    disk.finds(&[&superseded, &newest]);

    let disk = Disk::new();
    staged(&disk, &[b"gone"], |fs, ino| {
        let set = SetAttr {
            size: Some(0),
            ..SetAttr::default()
        };
        fs.setattr(ino, &set, false).unwrap();
    });
    disk.finds(&[]);
    let live = disk.live();
    disk.region.write(disk.payload(&live[0]), b"GONE");
    disk.finds(&["warning: staged: ..."]);
}

#[test]
fn a_staged_block_that_does_not_exist() {
    let disk = Disk::new();
    staged(&disk, &[b"x"], |fs, _| digest_all(&fs.e).unwrap());
    let slot = disk.live()[0];
    let visible = disk.geo().visible_blocks();
    disk.edit_header(&slot, |h| h.lbn = visible);
    let (buffer, index, _) = disk.slot(&slot);
    disk.finds(&[&format!(
        "error: staged: staging buffer {buffer}, slot {index}: LBN {visible}, but files can own only {visible}"
    )]);
}

#[test]
fn content_on_the_device() {
    let (disk, s) = Disk::sample();
    let lbn = disk.inode(s.small).inline_extent(0).unwrap().lbn + 1;
    let (ino, pbn, block) = (s.small, disk.entry(lbn).pbn, disk.block(lbn));
    let mut content = vec![0; BLOCK];
    disk.device.read(block, &mut content).unwrap();
    content[904] = 1;
    disk.device.write(block, &content).unwrap();
    disk.finds(&[&format!(
        "error: content: LBN {lbn}, physical block {pbn}: fails its checksum (inode {ino}, file block 1)"
    )]);
    disk.region
        .store_u32(disk.geo().l2p_crc_off + lbn * 4, crc32c(&content));
    disk.finds(&[&format!(
        "error: content: byte 904 of LBN {lbn} lies behind the end of the file and is not zero (inode {ino}, file block 1)"
    )]);
    let report = check_volume(disk.volume(), &FsckOptions::default()).unwrap();
    assert!(report.is_clean(), "only with check_data: {report}");
}

#[test]
fn staged_bytes_behind_the_end() {
    let disk = Disk::new();
    let ino = staged(&disk, &[&[7; 100]], |fs, _| digest_all(&fs.e).unwrap());
    let slot = disk.live()[0];
    let off = disk.payload(&slot);
    disk.region.write(off + 100, &[1]);
    let crc = crc32c(&disk.region.read_vec(off, BLOCK as u64));
    disk.edit_header(&slot, |h| h.payload_crc = crc);
    disk.finds(&[&format!(
        "error: content: byte 100 of LBN {} lies behind the end of the file and is not zero (inode {ino}, file block 0)",
        slot.lbn
    )]);
}

#[test]
fn blocks_behind_the_end() {
    let (disk, s) = Disk::sample();
    disk.edit_inode(s.big, |i| i.size = 19 * 8192);
    disk.finds(&["error: content: byte 0 of LBN ..."]);
    let intent = Intent {
        ino: s.big,
        kind: IntentKind::Truncate,
    };
    disk.create(
        disk.geo().intent_base as u32,
        quayfs_layout::node::NodeKind::Intents,
        0,
        |page| page[HEADER..HEADER + 16].copy_from_slice(&intent.encode()),
    );
    disk.finds(&[]);
}

#[test]
fn a_device_that_fails() {
    let (mut disk, _) = Disk::sample();
    let device = FaultDevice::new(Arc::clone(&disk.device));
    // Reads 1 to 3 are for the header.
    device.fail(FaultOp::Read, 4, Fault::Errno(5), Repeat::Forever);
    disk.device = Arc::new(device);
    let report = disk.check();
    assert_eq!(report.findings.len(), 22, "{report}");
    let each = |f: &crate::Finding| f.what.contains("error 5") && f.what.contains("(inode ");
    assert!(report.findings.iter().all(each), "{report}");
}
