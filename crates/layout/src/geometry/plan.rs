//! Where the areas of a new volume go, from the lengths of its media: what the areas of fixed size leave is divided,
//! and `mkfs` refuses what is too small.

use super::{B, BUFFERS_MAX, DATA_MIN, Geometry, MIRROR_MIN, PMEM_MIN, Sizes};
use crate::LINE;
use crate::batch::{BATCH_LOG_MAX, BATCH_LOG_MIN};
use crate::size::exact_size;

/// Most slots that `mkfs` gives a staging buffer: as many as the journal can count.
pub(super) const SLOTS_MAX: u64 = (1 << 24) - 64;
/// Most node pages that `mkfs` makes: two node ids each, and some more, fit into 32 bits.
const NODE_PAGES_MAX: u64 = 1 << 30;

const MIB: u64 = 1 << 20;

/// What of a layout is not left to its defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Bytes of the mirror area.
    pub mirror: Option<u64>,
    /// The most bytes that go to staging slots.
    pub staging: Option<u64>,
    /// Bytes of the batch log, at most [`BATCH_LOG_MAX`]; 0 for none.
    pub batch_log: u64,
}

/// Why a volume of the wanted size cannot be laid out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// The pmem region cannot hold the fixed areas and a useful rest.
    #[error(
        "a pmem region of {} is too small for this data device: at least {} are needed",
        exact_size(*have), exact_size(*need)
    )]
    PmemTooSmall {
        /// Bytes given.
        have: u64,
        /// Bytes that would do.
        need: u64,
    },
    /// The data device is too small.
    #[error(
        "a data device of {} is too small: at least {} are needed",
        exact_size(*have), exact_size(*need)
    )]
    DataTooSmall {
        /// Bytes given.
        have: u64,
        /// Bytes that would do.
        need: u64,
    },
    /// The data device has more blocks than a page-table entry can address.
    #[error(
        "a data device of {} is too large: a page-table entry addresses 2^40 blocks",
        exact_size(*.0)
    )]
    DataTooLarge(u64),
    /// The mirror area does not fit, or is too small to be of use.
    #[error(
        "a mirror area of {}: between {} and {}, a quarter of the data device, are possible",
        exact_size(*have), exact_size(MIRROR_MIN), exact_size(*most)
    )]
    Mirror {
        /// What was asked for.
        have: u64,
        /// The most.
        most: u64,
    },
    /// The number of staging buffers is out of range.
    #[error("{0} staging buffers: between 1 and {BUFFERS_MAX} are possible")]
    Buffers(u32),
}

impl Geometry {
    /// Lays out a volume with a mirror area of the usual size: a 128th of the data device, in which two copies of the
    /// L2P map and the checksums take three quarters.
    pub fn compute(pmem_len: u64, data_len: u64, buffers: u32) -> Result<Self, GeometryError> {
        Self::compute_with(pmem_len, data_len, buffers, Wishes::default())
    }

    /// Lays out a volume. Half of what the fixed areas leave goes to staging slots, or as much as is wished, the rest
    /// to node pages.
    ///
    /// # Errors
    /// What does not fit, or is too small to work with.
    pub fn compute_with(
        pmem_len: u64,
        data_len: u64,
        buffers: u32,
        wishes: Wishes,
    ) -> Result<Self, GeometryError> {
        let batch_log = wishes.batch_log.min(BATCH_LOG_MAX) / B * B;
        if batch_log == 0 {
            return Self::compute_without_batches(pmem_len, data_len, buffers, wishes);
        }
        let rest = pmem_len.saturating_sub(batch_log) / B * B;
        let too_small = batch_log < BATCH_LOG_MIN || rest < PMEM_MIN;
        match Self::compute_without_batches(rest, data_len, buffers, wishes) {
            Err(GeometryError::PmemTooSmall { need, .. }) => Err(GeometryError::PmemTooSmall {
                have: pmem_len,
                need: need + batch_log,
            }),
            Ok(_) if too_small => Err(GeometryError::PmemTooSmall {
                have: pmem_len,
                need: PMEM_MIN + batch_log.max(BATCH_LOG_MIN),
            }),
            Ok(geometry) => Ok(Self {
                pmem_len,
                batch_log_off: rest,
                batch_log_bytes: batch_log,
                ..geometry
            }),
            Err(other) => Err(other),
        }
    }

    /// The device first: the length of its map decides what is left of the region. Of that the journal gets a share,
    /// and node pages the rest.
    fn compute_without_batches(
        pmem_len: u64,
        data_len: u64,
        buffers: u32,
        wishes: Wishes,
    ) -> Result<Self, GeometryError> {
        if buffers == 0 || buffers > BUFFERS_MAX {
            return Err(GeometryError::Buffers(buffers));
        }
        let mut sizes = divide_device(data_len, wishes.mirror)?;
        sizes.buffers = u64::from(buffers);
        let too_small = |need| GeometryError::PmemTooSmall {
            have: pmem_len,
            need,
        };
        let fixed = Self::lay_out(&sizes).l2p_log_off;
        if pmem_len < PMEM_MIN || pmem_len < fixed + 12 * MIB {
            return Err(too_small(PMEM_MIN.max(fixed + 12 * MIB)));
        }
        size_journal(&mut sizes, pmem_len - fixed, wishes.staging);
        let at = Self::lay_out(&sizes).nat_off;
        if at + MIB > pmem_len {
            return Err(too_small(at + 4 * MIB));
        }
        size_nodes(&mut sizes, pmem_len - at);
        let geometry = Self::lay_out(&sizes);
        // Fewer pages than there are ids for, where rounding took the room of some.
        let node_off = geometry.node_off;
        let node_pages = (sizes.node_pages).min((pmem_len - node_off.min(pmem_len)) / B);
        if node_pages < 64 || node_off + node_pages * B > pmem_len {
            return Err(too_small(node_off + 64 * B + MIB));
        }
        Ok(Self {
            pmem_len,
            node_pages,
            ..geometry
        })
    }
}

/// The mirror area, and what is behind it.
fn divide_device(data_len: u64, mirror: Option<u64>) -> Result<Sizes, GeometryError> {
    if data_len < DATA_MIN {
        return Err(GeometryError::DataTooSmall {
            have: data_len,
            need: DATA_MIN,
        });
    }
    let data_blocks = data_len / B;
    if data_blocks > 1 << 40 {
        return Err(GeometryError::DataTooLarge(data_len));
    }
    let most = data_blocks / 4;
    let mirror_blocks = match mirror {
        Some(have) if have < MIRROR_MIN || have.div_ceil(B) > most => {
            let most = most * B;
            return Err(GeometryError::Mirror { have, most });
        }
        Some(have) => have.div_ceil(B),
        None => (data_blocks / 128).max(MIRROR_MIN / B),
    };
    let data_start = (1 + mirror_blocks).next_multiple_of(256);
    let blocks = data_blocks - data_start;
    Ok(Sizes {
        data_blocks,
        data_start,
        mirror_blocks,
        blocks,
        spare: (blocks / 64).clamp(64, 4096),
        ..Sizes::default()
    })
}

/// Lanes and slots, of the `rest` that the fixed areas leave.
pub(super) fn size_journal(sizes: &mut Sizes, rest: u64, staging: Option<u64>) {
    let buffers = sizes.buffers;
    sizes.lane_bytes = (rest / 16 / buffers)
        .clamp(MIB, 16 * MIB / buffers.min(16))
        .next_multiple_of(B);
    let half = (rest - (sizes.lane_bytes * buffers).min(rest / 2)) / 2;
    let staging = staging.map_or(half, |most| half.min(most));
    // A slot costs its block, its header and room for two undo records of 32 bytes.
    let slots_per_buffer = (staging / buffers / (B + LINE as u64 + 64)).clamp(64, SLOTS_MAX);
    sizes.slots_per_buffer = slots_per_buffer / 64 * 64;
    sizes.l2p_entries = sizes.slots_per_buffer * buffers * 2;
}

/// Node pages, and the tables among them, of the `rest` behind the journal.
fn size_nodes(sizes: &mut Sizes, rest: u64) {
    // Two node ids (inode table and dynamic) and a little more for each node page.
    sizes.node_pages = (rest / (B + 16 + 2) - 8).min(NODE_PAGES_MAX);
    sizes.intent_pages = (sizes.node_pages / 64).clamp(2, 4096);
    // A page has 63 places. It is made when the first of them is taken, and until then costs its node id.
    sizes.quota_pages = (sizes.node_pages / 8).clamp(2, 4096);
}
