//! Words of other programs, which arrive in the same lists.

/// What mount(8), fstab and systemd understand and pass on; they mean nothing to a mount.
const FOR_OTHERS: [&str; 25] = [
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
    "default_permissions",
    "uhelper",
    "comment",
];
/// Shown in the mount table by the kernel, so they come back at `remount`.
pub(crate) const FROM_THE_TABLE: [&str; 6] = [
    "fd", "rootmode", "user_id", "group_id", "max_read", "blksize",
];

pub(super) fn is_for_others(key: &str) -> bool {
    FOR_OTHERS.contains(&key) || ["x-", "X-"].iter().any(|p| key.starts_with(p)) || key == "helper"
}

pub(super) fn impossible(key: &str) -> Option<&'static str> {
    Some(match key {
        "lazytime" => "times are journaled with the operation that changes them; drop it",
        "mand" => "Linux has no mandatory locks any more; drop it",
        "allow_root" => "use allow_other, or mount as root",
        "nonempty" => "an existing tree is covered without asking; drop it",
        _ => return None,
    })
}
