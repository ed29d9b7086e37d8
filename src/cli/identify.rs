//! `quayfs identify`: what udev is told of a device, since libblkid does not know volumes.
//!
//! udev's rule (`packaging/udev`) takes the lines for properties and makes the links in `/dev/disk/by-uuid` and
//! `by-label` of them, by which mount(8) and systemd find `UUID=` and `LABEL=`.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use quayfs_fs::volume::locate;
use quayfs_layout::BLOCK;
use quayfs_layout::config::{COPIES, ConfigTable};

use super::exit::{FAILED, Failure, say};
use super::unopened::unopened;

/// Prints the properties of a volume on one device. Of anything else, one half of a volume included, it fails, and udev
/// goes on to what it knows by itself.
///
/// # Errors
/// It is no such volume, or cannot be read.
pub fn run(path: &Path) -> Result<(), Failure> {
    let place = locate(path).map_err(unopened(FAILED))?;
    let failed = |why: String| Failure::new(FAILED, format!("{}: {why}", quayfs_shown::path(path)));
    if place.region_len.is_none() {
        return Err(failed("a directory, and no device".into()));
    }
    let table = table(&place.path).ok_or_else(|| failed("cannot be read any more".into()))?;
    say(properties(&table));
    Ok(())
}

fn table(path: &Path) -> Option<ConfigTable> {
    let file = File::open(path).ok()?;
    let mut block = vec![0; BLOCK];
    COPIES.into_iter().find_map(|off| {
        file.read_exact_at(&mut block, off).ok()?;
        ConfigTable::decode(&block).ok()
    })
}

fn properties(table: &ConfigTable) -> String {
    let uuid = uuid::Uuid::from_bytes(table.uuid);
    let mut text = format!(
        "ID_FS_TYPE=quayfs\nID_FS_USAGE=filesystem\nID_FS_UUID={uuid}\nID_FS_UUID_ENC={uuid}"
    );
    let label = String::from_utf8_lossy(&table.label);
    let label = label.trim_end_matches('\0');
    if !label.is_empty() {
        let (safe, encoded) = (safe(label), encoded(label));
        text += &format!("\nID_FS_LABEL={safe}\nID_FS_LABEL_ENC={encoded}");
    }
    text
}

/// Characters that are the same in a name of a file and in a property, as udev has it.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c) || !c.is_ascii()
}

/// A label for people: no character in it ends a line or has a meaning.
fn safe(label: &str) -> String {
    let plain = |c| {
        if is_plain(c) && !char::is_control(c) {
            c
        } else {
            '_'
        }
    };
    label.chars().map(plain).collect()
}

/// A label as the name of a link, in which mount(8) finds it again: `\x20` for a space.
fn encoded(label: &str) -> String {
    let mut out = String::new();
    for c in label.chars() {
        match is_plain(c) {
            true => out.push(c),
            false => out.push_str(&format!("\\x{:02x}", u32::from(c))),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_become_names_of_links() {
        for (label, safe_form, name) in [
            ("data", "data", "data"),
            ("a b/c", "a_b_c", "a\\x20b\\x2fc"),
            (
                "x\nID_FS_TYPE=ext4",
                "x_ID_FS_TYPE=ext4",
                "x\\x0aID_FS_TYPE=ext4",
            ),
            (
                "$(reboot)'\"\\",
                "__reboot____",
                "\\x24\\x28reboot\\x29\\x27\\x22\\x5c",
            ),
            ("möwe", "möwe", "möwe"),
            ("..", "..", ".."),
        ] {
            assert_eq!(safe(label), safe_form, "{label:?}");
            assert_eq!(encoded(label), name, "{label:?}");
        }
        // Of those that are not ASCII, too.
        assert_eq!(safe("a\u{85}b"), "a_b");
    }
}
