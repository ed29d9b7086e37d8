//! What says which volume it is and in which state.

use quayfs_layout::BLOCK;
use quayfs_layout::bytes::get_u64;
use quayfs_layout::config::{COPIES, ConfigTable, DataHeader};
use quayfs_layout::jsb::{EpochWord, JSB_BYTES, PROPOSALS, SeqWord, WordKind};

use super::{Fields, Shown};
use crate::media::Media;

pub(super) fn all(media: &Media) -> Fields {
    vec![
        ("configuration", configuration(media)),
        ("geometry", geometry(media)),
        ("data_header", header(media)),
        ("journal", journal(media)),
    ]
}

/// Both copies, the first intact one in full.
fn configuration(media: &Media) -> Shown {
    let copies = COPIES.map(|off| {
        let bytes = media.region.read_vec(off, BLOCK as u64);
        ConfigTable::decode(&bytes)
    });
    let state = |i: usize| match &copies[i] {
        Ok(table) => shown!(format!("intact, {} changes", table.changes)),
        Err(e) => shown!(e.to_string()),
    };
    let mut fields = vec![("copy_0", state(0)), ("copy_1", state(1))];
    if let Some(t) = copies.iter().flatten().next() {
        fields.extend([
            ("uuid", shown!(quayfs_fs::uuid_text(t.uuid))),
            ("data_uuid", shown!(quayfs_fs::uuid_text(t.data_uuid))),
            ("label", shown!(t.label())),
            ("stored_options", shown!(t.options())),
            ("created", shown!(t.created)),
            ("changes", shown!(t.changes)),
            (
                "fencing_token",
                shown!(format!("{:#018x}", t.fencing_token)),
            ),
            ("compatible_features", shown!(t.compat[0])),
            ("read_only_compatible_features", shown!(t.compat[1])),
            ("incompatible_features", shown!(t.compat[2])),
        ]);
    }
    Shown::Fields(fields)
}

fn geometry(media: &Media) -> Shown {
    let named = media.geo.named();
    Shown::Fields(named.map(|(name, n)| (name, shown!(n))).into())
}

fn header(media: &Media) -> Shown {
    let mut block = vec![0; BLOCK];
    if let Err(e) = media.device.read(0, &mut block) {
        return shown!(e.to_string());
    }
    match DataHeader::decode(&block) {
        Ok(h) => Shown::Fields(vec![
            ("uuid", shown!(quayfs_fs::uuid_text(h.uuid))),
            ("data_uuid", shown!(quayfs_fs::uuid_text(h.data_uuid))),
            ("blocks", shown!(h.blocks)),
            ("device_blocks", shown!(media.device.blocks())),
        ]),
        Err(e) => shown!(e.to_string()),
    }
}

fn journal(media: &Media) -> Shown {
    let page = media.region.read_vec(media.geo.jsb_off, JSB_BYTES as u64);
    let raw = |kind: WordKind| get_u64(&page, kind.offset() as usize);
    let damaged = || shown!("damaged");
    let word = |kind: WordKind| {
        let number = SeqWord::decode(raw(kind), kind.salt(media.salt));
        number.map_or_else(damaged, |n| shown!(n))
    };
    let epoch = EpochWord::decode(raw(WordKind::Epoch), media.salt);
    let clean = SeqWord::decode(raw(WordKind::Clean), WordKind::Clean.salt(media.salt));
    let proposals = (0..PROPOSALS as u8).map(WordKind::Proposal);
    let proposals = proposals.map(|kind| match raw(kind) {
        0 => Shown::Null,
        _ => word(kind),
    });
    let heads = (0..media.geo.buffers as u16).map(|lane| word(WordKind::Head(lane)));
    Shown::Fields(vec![
        ("epoch", epoch.map_or_else(damaged, |e| shown!(e.epoch))),
        (
            "durability",
            epoch.map_or_else(damaged, |e| shown!(format!("{:?}", e.mode).to_lowercase())),
        ),
        (
            "repairing",
            epoch.map_or_else(damaged, |e| shown!(e.repairing)),
        ),
        (
            "clean",
            shown!(epoch.is_some_and(|e| clean == Some(u64::from(e.epoch)))),
        ),
        ("digested_seq", word(WordKind::Digested)),
        ("retired_seq", word(WordKind::Retired)),
        ("commit_ts", word(WordKind::CommitTs)),
        ("proposals", proposals.collect()),
        ("lane_heads", heads.collect()),
    ])
}
