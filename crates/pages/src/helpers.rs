//! The page of the helpers of mount(8) and umount(8), whose arguments are not defined with clap.

use clap::Command;
use quayfs_options::{ACCEPTED, REFUSED};

use crate::man::{exit_status, mount_options, named, see_also};
use crate::roff::{entry, example, prose, section, title};

/// Letters of `mount.quayfs`, and what they do.
pub const LETTERS: [(&str, &str); 6] = [
    ("-o", "mount options, see below"),
    ("-f", "check everything and mount nothing"),
    (
        "-s",
        "drop options that nobody knows, instead of refusing them",
    ),
    ("-v", "say what was mounted, and how durable it is"),
    ("-n", "accepted: there is no `/etc/mtab` to write"),
    ("-t", "accepted: the type as mount(8) has it"),
];

/// Those of `umount.quayfs`.
pub const LETTERS_OF_UMOUNT: [(&str, &str); 3] = [
    (
        "-l",
        "take the tree out of sight at once; the mount ends when it is no longer in use",
    ),
    (
        "-f",
        "take the tree away from those who use it: their calls fail",
    ),
    ("-n", "accepted, as are `-r` and `-v`"),
];

/// `mount.quayfs(8)`. `mount`: the definition of `quayfs mount`, whose exit codes are the same.
pub fn mount(mount: &Command) -> String {
    let mut text = title("mount.quayfs", 8);
    text += &section("name");
    text += &named(
        "mount.quayfs, umount.quayfs",
        "what mount(8) and umount(8) call for QuayFS",
    );
    text += &section("synopsis");
    text += &prose(&format!("`{}`", quayfs::cli::MOUNT_FORM));
    text += ".br\n";
    text += &prose(&format!("`{}`", quayfs::cli::UMOUNT_FORM));
    text += &section("description");
    text += &prose(
        "mount(8) calls `mount.quayfs` for file systems of type `quayfs`, on its command line and in `/etc/fstab`;\n\
         umount(8) calls `umount.quayfs`, which waits until everything is on the data device and the daemon has ended.\n\
         Both are the program `quayfs` under another name: see quayfs-mount(1) and quayfs-umount(1).",
    );
    text += &section("options");
    text += &entries(&LETTERS);
    text += ".PP\nOf umount.quayfs:\n";
    text += &entries(&LETTERS_OF_UMOUNT);
    text += &mount_options();
    text += &of_others();
    text += &section("examples");
    text += &example([
        "mount -t quayfs /dev/nvme0n1p3 /mnt/q",
        "mount -t quayfs -o ro,allow_other /srv/vol /mnt/q",
        "umount /mnt/q",
    ]);
    text += ".PP\n";
    text += &prose("In `/etc/fstab`:");
    text += ".PP\n";
    text += &example(["/dev/nvme0n1p3  /mnt/q  quayfs  allow_other,nofail  0 0"]);
    text += &exit_status(mount);
    text += &see_also("mount.quayfs");
    text
}

/// What fstab has for mount(8), systemd and other file systems.
fn of_others() -> String {
    let accepted = ACCEPTED.map(|word| format!("`{word}`")).join(", ");
    let refused = REFUSED.map(|(word, why)| entry(&format!("`{word}`"), why));
    section("options of others")
        + &prose("Accepted, since they are not about the mount or ask for what is so in any case:")
        + &prose(&format!("{accepted}, and what begins with `x-` or `X-`."))
        + ".PP\nRefused, each for its reason:\n"
        + &refused.concat()
}

fn entries(letters: &[(&str, &str)]) -> String {
    let entries = letters
        .iter()
        .map(|(term, text)| entry(&format!("`{term}`"), text));
    entries.collect()
}
