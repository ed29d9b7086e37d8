//! The node address table, node pages, and what is made of them: inodes and directories.

use quayfs_layout::dirent::{self, DEPTH_MAX, INDEX_MAX};
use quayfs_layout::extent::{self, Extent};
use quayfs_layout::inode::{self, INLINE_MAX, Inode};
use quayfs_layout::intent::{self, Intent};
use quayfs_layout::node::{self, HEADER, INODES_PER_PAGE, NodeKind, OFF_SEQ};
use quayfs_layout::{Ino, bytes, flaw, quota};
use quayfs_store::ns::node::{PageBytes, zero_page};

use super::{Fields, Lines, Shown, Window};
use crate::media::Media;

/// What there is to see of a node.
pub(super) enum Look {
    /// The node has no page.
    Absent,
    /// Its page, whose checksum holds.
    Page(PageBytes),
    /// What is wrong with it.
    Damaged(String),
}

/// The page of a node; `None` if it has none.
fn home(media: &Media, id: u32) -> Result<Option<u64>, String> {
    if u64::from(id) >= media.geo.nat_entries {
        return Err(format!("there are only {} node ids", media.geo.nat_entries));
    }
    let word = media.region.load_u64(media.geo.nat_entry(id));
    match node::nat_decode(id, word, media.salt) {
        Some(Some(page)) if page >= media.geo.node_pages => {
            Err(format!("its entry names page {page}, which does not exist"))
        }
        Some(page) => Ok(page),
        None => Err("its entry is damaged".into()),
    }
}

pub(super) fn look(media: &Media, id: u32) -> Look {
    let at = match home(media, id) {
        Ok(Some(at)) => at,
        Ok(None) => return Look::Absent,
        Err(why) => return Look::Damaged(why),
    };
    let mut page = zero_page();
    media.region.read(media.geo.node_page(at), &mut page[..]);
    match node::check(&page[..], id, media.salt) {
        Ok(_) => Look::Page(page),
        Err(e) => Look::Damaged(format!("page {at}: {e}")),
    }
}

/// Node pages that the table names.
pub(super) fn pages_in_use(media: &Media) -> u64 {
    let ids = 1..media.geo.nat_entries as u32;
    ids.filter(|id| matches!(home(media, *id), Ok(Some(_))))
        .count() as u64
}

/// A line for each node that has a page, or a damaged entry.
pub(super) fn table(media: &Media, window: Window) -> Fields {
    let mut fields = vec![
        ("node_ids", shown!(media.geo.nat_entries)),
        ("node_pages", shown!(media.geo.node_pages)),
    ];
    let mut lines = Lines::new(window);
    for id in 0..media.geo.nat_entries as u32 {
        let line = match (home(media, id), look(media, id)) {
            (Ok(None), _) => continue,
            (Ok(Some(at)), Look::Page(page)) => shown!({
                "node": id, "page": at, "kind": kind(&page[..]), "owner": node::owner(&page[..]),
                "seq": bytes::get_u64(&page[..], OFF_SEQ),
            }),
            (Ok(Some(at)), _) => shown!({ "node": id, "page": at, "kind": "damaged" }),
            (Err(why), _) => shown!({ "node": id, "kind": why }),
        };
        if !lines.push(id.into(), line) {
            break;
        }
    }
    lines.finish("nodes", &mut fields);
    fields
}

fn kind(page: &[u8]) -> String {
    node::kind(page).map_or_else(|| "?".into(), |k| format!("{k:?}").to_lowercase())
}

/// A page in full.
pub(super) fn node(media: &Media, id: u32) -> Fields {
    let mut fields = vec![("node", shown!(id))];
    let of = media.geo.static_kind(id);
    fields.push((
        "place",
        shown!(of.map_or("dynamic".into(), |k| format!("{k:?}").to_lowercase())),
    ));
    let page = match look(media, id) {
        Look::Page(page) => page,
        Look::Absent => {
            fields.push(("page", Shown::Null));
            return fields;
        }
        Look::Damaged(why) => {
            fields.push(("damaged", shown!(why)));
            return fields;
        }
    };
    let page = &page[..];
    let kind_of = node::kind(page);
    fields.extend([
        ("page", shown!(home(media, id).ok().flatten())),
        ("kind", shown!(kind(page))),
        ("owner", shown!(node::owner(page))),
        ("next", shown!(node::next(page))),
        ("used", shown!(node::used(page))),
        ("seq", shown!(bytes::get_u64(page, OFF_SEQ))),
    ]);
    if let Some(kind) = kind_of
        && let Err(e) = flaw::content(&media.geo, id, page, kind)
    {
        fields.push(("damaged", shown!(e.to_string())));
    }
    fields.push(("content", content(&media.geo, id, page, kind_of)));
    fields
}

fn content(
    geo: &quayfs_layout::geometry::Geometry,
    id: u32,
    page: &[u8],
    kind: Option<NodeKind>,
) -> Shown {
    let payload = &page[HEADER..];
    match kind {
        Some(NodeKind::Bitmap) => shown!({ "bits_set": node::bits_set(page) }),
        Some(NodeKind::Inodes) => {
            let first = u64::from(id).saturating_sub(geo.inode_base) * INODES_PER_PAGE;
            let images = (0..INODES_PER_PAGE).filter_map(|slot| {
                let at = inode::offset(slot as usize);
                let image = Inode::decode(&page[at..at + inode::SIZE]);
                let line = shown!({
                    "inode": first + slot, "mode": octal(image.mode), "links": image.nlink, "size": image.size,
                });
                (image.mode != 0).then_some(line)
            });
            images.collect()
        }
        Some(NodeKind::DirLeaf) => dirent::entries(page).map(|e| entry(&e)).collect(),
        Some(NodeKind::DirIndex) => {
            let n = (node::used(page) as usize).min(INDEX_MAX);
            let child = |i| {
                let (key, child) = dirent::index_entry(page, i);
                shown!({ "cookie": format!("{key:016x}"), "node": child })
            };
            (0..n).map(child).collect()
        }
        Some(NodeKind::Extents) => extents(payload).iter().map(extent).collect(),
        Some(NodeKind::Intents) => {
            let places = payload.chunks_exact(intent::SIZE);
            let each = places.filter_map(|place| match Intent::decode(place) {
                Ok(intent) => intent.map(
                    |i| shown!({ "inode": i.ino, "kind": format!("{:?}", i.kind).to_lowercase() }),
                ),
                Err(e) => Some(shown!({ "kind": e.to_string() })),
            });
            each.collect()
        }
        Some(NodeKind::Quota) => {
            let entries = payload.chunks_exact(quota::SIZE).map(quota::Entry::decode);
            let used = entries.filter(|e| !e.is_free());
            used.map(|e| shown!(format!("{e:?}"))).collect()
        }
        Some(NodeKind::Blob) | None => Shown::Null,
    }
}

fn octal(mode: u32) -> String {
    format!("{mode:06o}")
}

fn entry(e: &dirent::Entry<'_>) -> Shown {
    shown!({
        "name": String::from_utf8_lossy(e.name), "inode": e.ino, "type": e.kind,
        "cookie": format!("{:016x}", e.cookie),
    })
}

fn extents(places: &[u8]) -> Vec<Extent> {
    let places = places.chunks_exact(extent::SIZE);
    places.filter_map(Extent::decode).collect()
}

fn extent(e: &Extent) -> Shown {
    shown!({ "file_block": e.file_block, "blocks": e.len, "lbn": e.lbn })
}

/// The image of an inode, if its page can be read.
fn image(media: &Media, ino: Ino) -> Result<Inode, Fields> {
    if ino >= media.geo.inodes() {
        let most = media.geo.inodes() - 1;
        return Err(vec![(
            "error",
            shown!(format!("numbers of inodes end at {most}")),
        )]);
    }
    let (id, slot) = media.geo.inode_place(ino);
    match look(media, id) {
        Look::Page(page) => {
            let at = inode::offset(slot);
            Ok(Inode::decode(&page[at..at + inode::SIZE]))
        }
        Look::Absent => Ok(Inode::default()),
        Look::Damaged(why) => Err(vec![
            ("inode", shown!(ino)),
            ("node", shown!(id)),
            ("damaged", shown!(why)),
        ]),
    }
}

/// An inode with all its extents, or its link target.
pub(super) fn inode(media: &Media, ino: Ino) -> Fields {
    let i = match image(media, ino) {
        Ok(i) => i,
        Err(why) => return why,
    };
    let (id, slot) = media.geo.inode_place(ino);
    let mut fields = vec![
        ("inode", shown!(ino)),
        ("node", shown!(id)),
        ("place", shown!(slot)),
        ("in_use", shown!(i.mode != 0)),
    ];
    if i.mode == 0 {
        return fields;
    }
    let time = |t: inode::Time| shown!(format!("{}.{:09}", t.sec, t.nsec));
    fields.extend([
        ("mode", shown!(octal(i.mode))),
        ("links", shown!(i.nlink)),
        ("uid", shown!(i.uid)),
        ("gid", shown!(i.gid)),
        ("generation", shown!(i.generation)),
        ("flags", shown!(format!("{:#x}", i.flags))),
        ("project", shown!(i.project)),
        ("device", shown!(i.rdev)),
        ("size", shown!(i.size)),
        ("blocks", shown!(i.blocks)),
        ("accessed", time(i.atime)),
        ("modified", time(i.mtime)),
        ("changed", time(i.ctime)),
        ("created", time(i.btime)),
        ("first_page", shown!(i.root)),
        ("attributes_page", shown!(i.xattr)),
        ("attributes_bytes", shown!(i.xattr_len)),
    ]);
    let mut damaged = Vec::new();
    if i.is_dir() {
        fields.extend([
            ("parent", shown!(i.parent)),
            ("index_levels", shown!(i.depth)),
            ("entries", shown!(i.entries)),
        ]);
    } else if i.is_file() {
        let mut all = extents(&i.inline.0[..extent::INLINE * extent::SIZE]);
        chain(media, i.root, NodeKind::Extents, &mut damaged, |page| {
            all.extend(extents(&page[HEADER..]));
        });
        all.sort_by_key(|e| e.file_block);
        fields.push(("extents", all.iter().map(extent).collect()));
    } else if i.is_symlink() {
        let mut target = Vec::new();
        match i.root {
            0 => target.extend_from_slice(&i.inline.0[..(i.size as usize).min(INLINE_MAX)]),
            root => chain(media, root, NodeKind::Blob, &mut damaged, |page| {
                let n = (node::used(page) as usize).min(node::PAYLOAD);
                target.extend_from_slice(&page[HEADER..HEADER + n]);
            }),
        }
        fields.push(("target", shown!(String::from_utf8_lossy(&target))));
    }
    if !damaged.is_empty() {
        fields.push(("damaged", shown!(damaged)));
    }
    fields
}

/// Goes along a chain of pages of one kind, as far as it can be read.
fn chain(
    media: &Media,
    first: u32,
    kind: NodeKind,
    damaged: &mut Vec<String>,
    mut each: impl FnMut(&[u8]),
) {
    let (mut id, mut left) = (first, media.geo.node_pages);
    while id != 0 && left > 0 {
        left -= 1;
        id = match look(media, id) {
            Look::Page(page) if node::kind(&page[..]) == Some(kind) => {
                each(&page[..]);
                node::next(&page[..])
            }
            Look::Page(page) => {
                let other = self::kind(&page[..]);
                damaged.push(format!("node {id} is of kind {other}"));
                0
            }
            Look::Absent => {
                damaged.push(format!("node {id} does not exist"));
                0
            }
            Look::Damaged(why) => {
                damaged.push(format!("node {id}: {why}"));
                0
            }
        };
    }
}

/// The entries of a directory, in the order of their cookies' pages.
pub(super) fn directory(media: &Media, ino: Ino, window: Window) -> Fields {
    let i = match image(media, ino) {
        Ok(i) => i,
        Err(why) => return why,
    };
    let mut fields = vec![("inode", shown!(ino))];
    if !i.is_dir() {
        fields.push(("error", shown!("not a directory")));
        return fields;
    }
    fields.extend([("parent", shown!(i.parent)), ("entries", shown!(i.entries))]);
    let mut walk = Walk {
        media,
        lines: Lines::new(window),
        seen: 0,
        pages: media.geo.node_pages,
        damaged: Vec::new(),
    };
    if i.root != 0 {
        walk.visit(i.root, i.depth.min(DEPTH_MAX));
    }
    let Walk { lines, damaged, .. } = walk;
    lines.finish("names", &mut fields);
    if !damaged.is_empty() {
        fields.push(("damaged", shown!(damaged)));
    }
    fields
}

struct Walk<'m> {
    media: &'m Media,
    lines: Lines,
    /// Entries so far.
    seen: u64,
    /// Pages that may still be read: damage may lead in a circle.
    pages: u64,
    damaged: Vec<String>,
}

impl Walk<'_> {
    fn visit(&mut self, id: u32, depth: u16) {
        if self.lines.is_full() || self.pages == 0 {
            return;
        }
        self.pages -= 1;
        let want = match depth {
            0 => NodeKind::DirLeaf,
            _ => NodeKind::DirIndex,
        };
        let page = match look(self.media, id) {
            Look::Page(page) if node::kind(&page[..]) == Some(want) => page,
            Look::Page(page) => {
                let other = kind(&page[..]);
                return self.damaged.push(format!("node {id} is of kind {other}"));
            }
            Look::Absent => return self.damaged.push(format!("node {id} does not exist")),
            Look::Damaged(why) => return self.damaged.push(format!("node {id}: {why}")),
        };
        if depth > 0 {
            let n = (node::used(&page[..]) as usize).min(INDEX_MAX);
            for i in 0..n {
                self.visit(dirent::index_entry(&page[..], i).1, depth - 1);
            }
            return;
        }
        for e in dirent::entries(&page[..]).filter(|e| e.ino != 0) {
            if !self.lines.push(self.seen, entry(&e)) {
                return;
            }
            self.seen += 1;
        }
    }
}
