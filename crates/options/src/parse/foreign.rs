//! Words of other programs and file systems, which arrive in the same lists.

/// What mount(8), fstab and systemd understand and pass on, and what asks for what is so in any case. To a mount they
/// mean nothing. So does everything that begins with `x-` or `X-`.
pub const ACCEPTED: [&str; 31] = [
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "nofail",
    "_netdev",
    "async",
    "norelatime",
    "nostrictatime",
    "diratime",
    "silent",
    "loud",
    "nomand",
    "nolazytime",
    "noiversion",
    "nodiscard",
    "barrier",
    "user_xattr",
    "prjquota",
    "pquota",
    "default_permissions",
    "uhelper",
    "helper",
    "comment",
];

const QUOTA_FILES: &str = "what users and groups have is kept in the volume and journaled with each operation; say usrquota or grpquota";
const LABELS: &str = "a FUSE mount is not given SELinux labels; drop it";
const OWNERS: &str = "each file has an owner and a mode of its own, those of the root directory are set by `quayfs mkfs \
     --owner --mode`; drop it";
const FLUSHES: &str = "without flushes of the device nothing would be durable; drop it";
const IN_PLACE: &str = "a volume in a file is mounted without a loop device; drop it";

/// What other file systems can be asked for and this one cannot, with the reason and the way out. A word with a value is
/// meant with that value only.
pub const REFUSED: [(&str, &str); 28] = [
    (
        "lazytime",
        "times are journaled with the operation that changes them; drop it",
    ),
    ("mand", "Linux has no mandatory locks any more; drop it"),
    ("allow_root", "use allow_other, or mount as root"),
    (
        "nonempty",
        "an existing tree is covered without asking; drop it",
    ),
    (
        "discard",
        "free blocks go back to the device by fstrim(8), not one by one; drop it and call that from time to time",
    ),
    ("iversion", "FUSE has no counter of changes; drop it"),
    ("usrjquota", QUOTA_FILES),
    ("grpjquota", QUOTA_FILES),
    ("jqfmt", QUOTA_FILES),
    ("context", LABELS),
    ("fscontext", LABELS),
    ("defcontext", LABELS),
    ("rootcontext", LABELS),
    ("uid", OWNERS),
    ("gid", OWNERS),
    ("umask", OWNERS),
    ("fmask", OWNERS),
    ("dmask", OWNERS),
    ("mode", OWNERS),
    ("nobarrier", FLUSHES),
    ("barrier=0", FLUSHES),
    ("loop", IN_PLACE),
    ("offset", IN_PLACE),
    ("sizelimit", IN_PLACE),
    (
        "nouser_xattr",
        "there are extended attributes in any case; drop it",
    ),
    (
        "dax",
        "the region is used by DAX where it lies on it (`quayfs info` shows the backend); drop it",
    ),
    (
        "auto_unmount",
        "the daemon unmounts when it is told to end, and `restart` outlives one that is killed; drop it",
    ),
    (
        "bind",
        "bind mounts are made by mount(8) itself, of a mount; say no type",
    ),
];

/// Shown in the mount table by the kernel, so they come back at `remount`.
pub(crate) const FROM_THE_TABLE: [&str; 6] = [
    "fd", "rootmode", "user_id", "group_id", "max_read", "blksize",
];

pub(super) fn is_for_others(key: &str) -> bool {
    ACCEPTED.contains(&key) || ["x-", "X-"].iter().any(|p| key.starts_with(p))
}

/// Why a word, or what it is a value of, cannot be honoured; and which of the two.
pub(super) fn impossible<'a>(word: &'a str, key: &'a str) -> Option<(&'a str, &'static str)> {
    [word, key].into_iter().find_map(|said| {
        let (_, why) = REFUSED.iter().find(|(refused, _)| *refused == said)?;
        Some((said, *why))
    })
}
