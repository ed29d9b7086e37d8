//! Configuration table (two copies at the start of the pmem region) and the header of the data
//! device.

use crate::BLOCK;
use crate::Guard;
use crate::bytes::{get_u32, get_u64, put_u32, put_u64};
use crate::checksum::crc32c;
use crate::geometry::{FIELDS, Geometry};

/// First 8 bytes of either copy of the configuration table.
pub const MAGIC: [u8; 8] = *b"QUAYFSPM";
/// First 8 bytes of the data device.
pub const DATA_MAGIC: [u8; 8] = *b"QUAYFSDD";
/// Format version. A different version is refused.
pub const VERSION: u32 = 1;
/// Offsets of the two copies of the configuration table.
pub const COPIES: [u64; 2] = [0, BLOCK as u64];
/// Longest volume label in bytes.
pub const LABEL_MAX: usize = 64;
/// Longest list of stored mount options in bytes.
pub const OPTIONS_MAX: usize = 1024;

/// Features that an unaware implementation may only read.
pub const RO_COMPAT_KNOWN: u64 = FEATURE_BACKUP;
/// Features that an unaware implementation must refuse.
pub const INCOMPAT_KNOWN: u64 = FEATURE_QUOTA
    | FEATURE_PROPOSALS
    | FEATURE_PIPELINE
    | FEATURE_BATCHES
    | FEATURE_RESIZED
    | FEATURE_OWNERS
    | FEATURE_MOVING;
/// Compatible: what a file has in state zero has the checksum of a block of zeros, or 0 ([`crate::l2p::ZERO_CRC`]), unless a build
/// that does not know this has used the volume: the next mount for writing sees that by the fencing token, and clears the bit.
pub const FEATURE_ZERO_CRC: u64 = 1;
/// Read-only compatible: the data device has a copy of the configuration table, and of the journal superblock as the last
/// clean unmount left it ([`crate::backup`]). What changes either has to change these too.
pub const FEATURE_BACKUP: u64 = 1;
/// Incompatible: there is a quota table, and records say what it is charged.
pub const FEATURE_QUOTA: u64 = 1;
/// Incompatible: a commit may be known by a proposal alone ([`crate::jsb::WordKind::Proposal`]).
pub const FEATURE_PROPOSALS: u64 = 2;
/// Incompatible: a commit may be proposed while the one before it is not known to be durable, and there are three places
/// of proposals. Only together with [`FEATURE_PROPOSALS`].
pub const FEATURE_PIPELINE: u64 = 4;
/// Incompatible: there is a batch log, and what it has is to be put where it belongs before anything else is read.
pub const FEATURE_BATCHES: u64 = 8;
/// Incompatible: the data device has had another length, so areas need not follow each other, LBN bitmaps may have ids at
/// the end of the inode table, and the header of the device says how long it was at first.
pub const FEATURE_RESIZED: u64 = 16;
/// Incompatible: the quota table counts users and groups too. Only together with [`FEATURE_QUOTA`].
pub const FEATURE_OWNERS: u64 = 32;
/// Incompatible: the region or the data are being moved, and what goes on with them makes the others no part of the volume
/// first ([`ConfigTable::next_data_uuid`]).
pub const FEATURE_MOVING: u64 = 64;

/// The configuration table: which volume it is and where its areas lie. `mkfs` writes it, and what changes the volume as
/// a whole; the first intact one of its two copies counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigTable {
    /// Volume UUID.
    pub uuid: [u8; 16],
    /// UUID in the header of the data device that belongs to this region.
    pub data_uuid: [u8; 16],
    /// With [`FEATURE_MOVING`]: the UUID that the header of the data device is to have before anything else is changed.
    /// Until then it may have either. Otherwise zeros.
    pub next_data_uuid: [u8; 16],
    /// Feature masks: compatible, read-only compatible, incompatible.
    pub compat: [u64; 3],
    /// Time of `mkfs`, seconds since 1970.
    pub created: u64,
    /// Volume label, UTF-8, padded with zeros.
    pub label: [u8; LABEL_MAX],
    /// Key of the hash that orders directories.
    pub hash_key: [u64; 2],
    /// How often the table has been changed since `mkfs`.
    pub changes: u64,
    /// The fencing token: a random number, another one for each use that may change content ([`Self::token`]). A daemon that
    /// goes on with the mount of one that has died finds that one's, or the volume has been used since. 0 is of earlier builds.
    pub fencing_token: u64,
    /// Mount options that hold unless a mount says otherwise, UTF-8, padded with zeros.
    pub options: [u8; OPTIONS_MAX],
    /// Areas.
    pub geometry: Geometry,
}

/// Why a configuration table or a data-device header is not usable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The magic number is missing.
    #[error("no QuayFS signature")]
    NotQuayfs,
    /// The format version is not ours.
    #[error("format version {0}, this program knows version {VERSION}")]
    Version(u32),
    /// The checksum does not match.
    #[error("checksum mismatch")]
    Checksum,
    /// The geometry contradicts itself.
    #[error("impossible geometry")]
    Geometry,
}

const OFF_CRC: usize = BLOCK - 4;
const OFF_FIELDS: usize = 256;
const OFF_CHANGES: usize = 160;
const OFF_NEXT: usize = 168;
const OFF_FENCING_TOKEN: usize = 184;
const OFF_OPTIONS: usize = 1024;

impl ConfigTable {
    /// Whether users and groups are counted.
    pub fn counts_owners(&self) -> bool {
        self.compat[2] & FEATURE_OWNERS != 0
    }

    /// The label as text.
    pub fn label(&self) -> String {
        text(&self.label)
    }

    /// Takes a label; `false` if it is too long, and then nothing has changed.
    pub fn set_label(&mut self, label: &str) -> bool {
        set_text(&mut self.label, label)
    }

    /// The stored mount options, with commas between them.
    pub fn options(&self) -> String {
        text(&self.options)
    }

    /// Takes stored mount options; `false` if they are too long, and then nothing has changed.
    pub fn set_options(&mut self, options: &str) -> bool {
        set_text(&mut self.options, options)
    }

    /// Whether the region or the data are being moved.
    pub fn is_moving(&self) -> bool {
        self.compat[2] & FEATURE_MOVING != 0
    }

    /// A number that depends on the volume only; part of every checksum, so that structures of
    /// another volume never validate.
    pub fn salt(&self) -> u64 {
        get_u64(&self.uuid, 0) ^ get_u64(&self.uuid, 8).rotate_left(32)
    }

    /// A fencing token of this volume: the lower half says whose it is, so that it is known where the table has none.
    pub fn token(&self, random: u64) -> u64 {
        (random & !u64::from(u32::MAX) | self.token_half()).max(1)
    }

    /// Whether this may be a token of this volume and of no other.
    pub fn is_own_token(&self, token: u64) -> bool {
        token & u64::from(u32::MAX) == self.token_half()
    }

    fn token_half(&self) -> u64 {
        crc32c(&self.uuid).into()
    }

    /// Encodes one copy.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; BLOCK];
        b[..8].copy_from_slice(&MAGIC);
        put_u32(&mut b, 8, VERSION);
        b[16..32].copy_from_slice(&self.uuid);
        b[32..48].copy_from_slice(&self.data_uuid);
        for (i, m) in self.compat.iter().enumerate() {
            put_u64(&mut b, 48 + 8 * i, *m);
        }
        put_u64(&mut b, 72, self.created);
        b[80..80 + LABEL_MAX].copy_from_slice(&self.label);
        put_u64(&mut b, 144, self.hash_key[0]);
        put_u64(&mut b, 152, self.hash_key[1]);
        put_u64(&mut b, OFF_CHANGES, self.changes);
        put_u64(&mut b, OFF_FENCING_TOKEN, self.fencing_token);
        b[OFF_NEXT..OFF_NEXT + 16].copy_from_slice(&self.next_data_uuid);
        b[OFF_OPTIONS..OFF_OPTIONS + OPTIONS_MAX].copy_from_slice(&self.options);
        for (i, f) in self.geometry.fields().iter().enumerate() {
            put_u64(&mut b, OFF_FIELDS + 8 * i, *f);
        }
        let crc = crc32c(&b[..OFF_CRC]);
        put_u32(&mut b, OFF_CRC, crc);
        b
    }

    /// Decodes and checks one copy.
    pub fn decode(b: &[u8]) -> Result<Self, ConfigError> {
        expect(b, MAGIC)?;
        let mut fields = [0; FIELDS];
        for (i, f) in fields.iter_mut().enumerate() {
            *f = get_u64(b, OFF_FIELDS + 8 * i);
        }
        let geometry = Geometry::from_fields(&fields);
        if !geometry.is_sound() {
            return Err(ConfigError::Geometry);
        }
        let mut t = Self {
            uuid: [0; 16],
            data_uuid: [0; 16],
            next_data_uuid: [0; 16],
            compat: [get_u64(b, 48), get_u64(b, 56), get_u64(b, 64)],
            created: get_u64(b, 72),
            label: [0; LABEL_MAX],
            hash_key: [get_u64(b, 144), get_u64(b, 152)],
            changes: get_u64(b, OFF_CHANGES),
            fencing_token: get_u64(b, OFF_FENCING_TOKEN),
            options: [0; OPTIONS_MAX],
            geometry,
        };
        t.uuid.copy_from_slice(&b[16..32]);
        t.data_uuid.copy_from_slice(&b[32..48]);
        t.next_data_uuid
            .copy_from_slice(&b[OFF_NEXT..OFF_NEXT + 16]);
        t.label.copy_from_slice(&b[80..80 + LABEL_MAX]);
        t.options
            .copy_from_slice(&b[OFF_OPTIONS..OFF_OPTIONS + OPTIONS_MAX]);
        Ok(t)
    }
}

/// What is in front of the zeros.
fn text(field: &[u8]) -> String {
    let end = field.iter().position(|b| *b == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

fn set_text(field: &mut [u8], text: &str) -> bool {
    if text.len() > field.len() {
        return false;
    }
    field.fill(0);
    field[..text.len()].copy_from_slice(text.as_bytes());
    true
}

/// What either block begins with, and its checksum.
fn expect(b: &[u8], magic: [u8; 8]) -> Result<(), ConfigError> {
    if b.len() < BLOCK || b[..8] != magic {
        return Err(ConfigError::NotQuayfs);
    }
    if Guard::Config.stands() && crc32c(&b[..OFF_CRC]) != get_u32(b, OFF_CRC) {
        return Err(ConfigError::Checksum);
    }
    match get_u32(b, 8) {
        VERSION => Ok(()),
        version => Err(ConfigError::Version(version)),
    }
}

/// The header in block 0 of the data device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// UUID of this data device.
    pub data_uuid: [u8; 16],
    /// UUID of the volume it belongs to.
    pub uuid: [u8; 16],
    /// Length in blocks at `mkfs`.
    pub blocks: u64,
}

impl DataHeader {
    /// Where [`DataHeader::data_uuid`] is in the block.
    pub const DATA_UUID: usize = 32;

    /// Encodes the header block.
    pub fn encode(&self) -> Vec<u8> {
        let mut b = vec![0; BLOCK];
        b[..8].copy_from_slice(&DATA_MAGIC);
        put_u32(&mut b, 8, VERSION);
        b[16..32].copy_from_slice(&self.uuid);
        b[32..48].copy_from_slice(&self.data_uuid);
        put_u64(&mut b, 48, self.blocks);
        let crc = crc32c(&b[..OFF_CRC]);
        put_u32(&mut b, OFF_CRC, crc);
        b
    }

    /// Decodes and checks the header block.
    pub fn decode(b: &[u8]) -> Result<Self, ConfigError> {
        expect(b, DATA_MAGIC)?;
        let mut h = Self {
            data_uuid: [0; 16],
            uuid: [0; 16],
            blocks: get_u64(b, 48),
        };
        h.uuid.copy_from_slice(&b[16..32]);
        h.data_uuid.copy_from_slice(&b[32..48]);
        Ok(h)
    }
}
#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(g: Geometry) -> ConfigTable {
        ConfigTable {
            uuid: [7; 16],
            data_uuid: [9; 16],
            next_data_uuid: [4; 16],
            compat: [0; 3],
            created: 1,
            label: [0; LABEL_MAX],
            hash_key: [1, 2],
            changes: 3,
            fencing_token: 5,
            options: [0; OPTIONS_MAX],
            geometry: g,
        }
    }

    #[test]
    fn labels_and_options_are_taken_whole_or_not_at_all() {
        let mut t = table(Geometry::compute(64 << 20, 1 << 30, 2).unwrap());
        assert!(t.set_label("möwe") && t.set_options("commit=30,noatime"));
        let t2 = ConfigTable::decode(&t.encode()).unwrap();
        assert_eq!(t2.label(), "möwe");
        assert_eq!(t2.options(), "commit=30,noatime");
        assert!(t.set_label(&"x".repeat(LABEL_MAX)));
        assert!(!t.set_label(&"x".repeat(LABEL_MAX + 1)));
        assert!(!t.set_options(&"x".repeat(OPTIONS_MAX + 1)));
        assert_eq!((t.label().len(), t.options()), (LABEL_MAX, t2.options()));
        assert!(t.set_label("") && t.label().is_empty());
    }

    #[test]
    fn a_token_is_of_one_volume() {
        let t = table(Geometry::compute(64 << 20, 1 << 30, 2).unwrap());
        let other = ConfigTable {
            uuid: [8; 16],
            ..t.clone()
        };
        let random = 0x0123_4567_89ab_cdef;
        assert_ne!(t.token(random), t.token(!random));
        assert_ne!(t.token(0), 0);
        assert!(t.is_own_token(t.token(random)) && !other.is_own_token(t.token(random)));
    }

    proptest! {
        #[test]
        fn a_table_comes_back_as_it_was(
            pmem in 64u64..(8 << 10), data in 16u64..1024, buffers in 1u32..=16
        ) {
            let t = table(Geometry::compute(pmem << 20, data << 20, buffers).unwrap());
            prop_assert_eq!(ConfigTable::decode(&t.encode()), Ok(t));
        }

        #[test]
        fn a_flipped_bit_is_seen(bit in 0usize..BLOCK * 8) {
            let mut b = table(Geometry::compute(64 << 20, 1 << 30, 2).unwrap()).encode();
            b[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(ConfigTable::decode(&b).is_err());
        }
    }
}
