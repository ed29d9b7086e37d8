//! Damage: a structure of a volume, and what becomes of it.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use quayfs_layout::jsb::{EpochWord, WordKind};
use quayfs_layout::l2p::{BlockState, ENTRY_BYTES, Entry};
use quayfs_layout::node;
use quayfs_layout::{BLOCK, bytes};

use super::Image;
use super::map::{Map, Use};

const B: u64 = BLOCK as u64;

/// A piece of a volume and what becomes of it.
#[derive(Clone, Debug)]
pub struct Harm {
    pub what: Use,
    pub bytes: Range<u64>,
    pub how: How,
}

/// What becomes of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// This bit of each byte is flipped.
    Bit(u8),
    Zeros,
    Noise,
}

impl Harm {
    /// A copy of the image with this damage.
    pub fn done_to(&self, image: &Image) -> Image {
        let mut image = image.clone();
        let device = matches!(self.what, Use::DataHeader | Use::Data);
        for off in self.bytes.clone() {
            let byte = match device {
                true => {
                    let block = image.blocks.entry(off / B);
                    &mut block.or_insert_with(|| vec![0; BLOCK])[(off % B) as usize]
                }
                false => &mut image.pmem[off as usize],
            };
            match self.how {
                How::Bit(bit) => *byte ^= 1 << bit,
                How::Zeros => *byte = 0,
                How::Noise => *byte = (off.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50) as u8,
            }
        }
        image
    }
}

/// The structures of a use, one by one.
pub fn structures(map: &Map, what: Use) -> Vec<Range<u64>> {
    let mut out = Vec::new();
    for a in map
        .pmem
        .iter()
        .chain(&map.device)
        .filter(|a| a.what == what)
    {
        let all = a.bytes.end - a.bytes.start;
        let size = match what {
            Use::Config
            | Use::NodePage
            | Use::SlotData
            | Use::LastPayload
            | Use::DataHeader
            | Use::Data => B,
            Use::Superblock | Use::L2pEntry | Use::Nat | Use::Committed => 8,
            Use::L2pLog => all.min(64),
            Use::L2pChecksum => 4,
            Use::SlotHeader | Use::Record | Use::LastRecord | Use::Dead(_) => all,
        };
        let each = a.bytes.clone().step_by(size as usize);
        out.extend(each.map(|start| start..(start + size).min(a.bytes.end)));
    }
    out
}

/// Structures of which nothing is left, each in two ways. Superblock words that nothing else tells are
/// not among them.
pub fn ruins(image: &Image) -> Vec<Harm> {
    let map = Map::of(image);
    let g = map.config.geometry;
    let hopeless = |off: u64| {
        let words = [WordKind::Epoch, WordKind::Digested, WordKind::Retired];
        words.iter().any(|w| g.jsb_off + w.offset() == off)
    };
    let mut uses: Vec<Use> = Vec::new();
    for a in map.pmem.iter().chain(&map.device) {
        let spared = matches!(
            a.what,
            Use::LastRecord | Use::LastPayload | Use::L2pChecksum | Use::Data | Use::Dead(_)
        );
        if !spared && !uses.contains(&a.what) {
            uses.push(a.what);
        }
    }
    let mut out = Vec::new();
    for what in uses {
        for bytes in structures(&map, what) {
            if what == Use::Superblock && hopeless(bytes.start) {
                continue;
            }
            for how in [How::Zeros, How::Noise] {
                let bytes = bytes.clone();
                out.push(Harm { what, bytes, how });
            }
        }
    }
    out
}

/// What an [`Corruption`] does to a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// One bit of it is flipped.
    Bit,
    Noise,
    Zeros,
    /// It says what another one says, with a checksum that holds: NAT and page-table entries.
    Twice,
    /// It says that a block of the spare pool holds something.
    Spare,
    /// The epoch is one more than it was, with a check that holds.
    Later,
}

const WAYS: &[(&str, Way)] = &[
    ("bit", Way::Bit),
    ("noise", Way::Noise),
    ("zeros", Way::Zeros),
    ("twice", Way::Twice),
    ("spare", Way::Spare),
    ("later", Way::Later),
];

const USES: &[(&str, Use)] = &[
    ("config", Use::Config),
    ("superblock", Use::Superblock),
    ("l2p-entry", Use::L2pEntry),
    ("l2p-checksum", Use::L2pChecksum),
    ("l2p-log", Use::L2pLog),
    ("record", Use::Record),
    ("committed", Use::Committed),
    ("slot-header", Use::SlotHeader),
    ("slot", Use::SlotData),
    ("nat", Use::Nat),
    ("node", Use::NodePage),
    ("data-header", Use::DataHeader),
    ("data", Use::Data),
];

/// Damage in a few words: `noise nat 3` is noise instead of the third entry of the NAT, counted from
/// zero and around.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corruption {
    way: Way,
    what: Use,
    n: u64,
}

impl Corruption {
    /// Does it to an image, of which `map` tells what it was like before any damage. Nothing happens if
    /// there is no such structure.
    pub fn do_to(&self, image: &mut Image, map: &Map) {
        let all = structures(map, self.what);
        let Some(bytes) = all.get((self.n % all.len().max(1) as u64) as usize) else {
            return;
        };
        let harm = |how, bytes: Range<u64>| Harm {
            what: self.what,
            bytes,
            how,
        };
        let (g, salt) = (map.config.geometry, map.config.salt());
        let put = |image: &mut Image, off: u64, word: u64| {
            bytes::put_u64(&mut image.pmem, off as usize, word);
        };
        match self.way {
            Way::Noise => *image = harm(How::Noise, bytes.clone()).done_to(image),
            Way::Zeros => *image = harm(How::Zeros, bytes.clone()).done_to(image),
            Way::Bit => {
                let len = bytes.end - bytes.start;
                let at = bytes.start + self.n.wrapping_mul(0x9e37_79b9) % len;
                let how = How::Bit((self.n % 8) as u8);
                *image = harm(how, at..at + 1).done_to(image);
            }
            Way::Twice if self.what == Use::Nat => {
                let entry = |id: u32| {
                    let word = bytes::get_u64(&image.pmem, g.nat_entry(id) as usize);
                    node::nat_decode(id, word, salt).flatten()
                };
                let used: Vec<u32> = (0..g.nat_entries as u32)
                    .filter(|id| entry(*id).is_some())
                    .collect();
                let n = self.n as usize % used.len();
                let (id, other) = (used[n], used[(n + 1) % used.len()]);
                if let Some(page) = entry(other) {
                    put(image, g.nat_entry(id), node::nat_encode(id, page, salt));
                }
            }
            Way::Twice => {
                let lbn = (bytes.start - g.l2p_map_off) / ENTRY_BYTES;
                let other = (lbn + 1) % g.blocks;
                let at = g.l2p_map_off + other * ENTRY_BYTES;
                let word = bytes::get_u64(&image.pmem, at as usize);
                if let Some(e) = Entry::decode(word, other, salt) {
                    put(image, bytes.start, e.encode(lbn, salt));
                }
            }
            Way::Later => {
                let off = g.jsb_off + WordKind::Epoch.offset();
                let word = bytes::get_u64(&image.pmem, off as usize);
                if let Some(e) = EpochWord::decode(word, salt) {
                    let epoch = e.epoch + 1;
                    put(image, off, EpochWord { epoch, ..e }.encode(salt));
                }
            }
            Way::Spare => {
                let lbn = g.visible_blocks() + self.n % (g.blocks - g.visible_blocks());
                let at = g.l2p_map_off + lbn * ENTRY_BYTES;
                let word = bytes::get_u64(&image.pmem, at as usize);
                if let Some(e) = Entry::decode(word, lbn, salt) {
                    let state = BlockState::Written;
                    put(image, at, Entry { state, ..e }.encode(lbn, salt));
                }
            }
        }
    }
}

impl fmt::Display for Corruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = WAYS.iter().find(|(_, w)| *w == self.way);
        let what = USES.iter().find(|(_, u)| *u == self.what);
        let name = |found: Option<&'static str>| found.unwrap_or("?");
        let (way, what) = (name(way.map(|w| w.0)), name(what.map(|u| u.0)));
        write!(f, "{way} {what} {}", self.n)
    }
}

impl FromStr for Corruption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let [way, what, n] = words[..] else {
            return Err(format!("{text} is no damage: WAY STRUCTURE NUMBER"));
        };
        let find_way = WAYS.iter().find(|(name, _)| *name == way);
        let find_use = USES.iter().find(|(name, _)| *name == what);
        let (Some((_, way)), Some((_, what))) = (find_way, find_use) else {
            return Err(format!("no damage {way} {what}"));
        };
        let maps = matches!(what, Use::Nat | Use::L2pEntry);
        let fits = match way {
            Way::Twice => maps,
            Way::Spare => *what == Use::L2pEntry,
            Way::Later => *what == Use::Superblock,
            Way::Bit | Way::Noise | Way::Zeros => true,
        };
        if !fits {
            return Err(format!("{text}: not of these"));
        }
        let n = n.parse().map_err(|_| format!("{n} is no number"))?;
        Ok(Self {
            way: *way,
            what: *what,
            n,
        })
    }
}
