//! What is said of a file system that does not end with the mount that was taken away.

use crate::mount::superblock::Elsewhere;
use std::path::Path;

/// Places of a file system that are named.
const NAMED: usize = 4;

/// A line for the user who expected the end of the file system.
pub fn lives_on(target: &Path, places: &[Elsewhere]) -> String {
    let list = |here: bool| {
        let of = places.iter().filter(|p| p.namespace.is_none() == here);
        let words: Vec<_> = of
            .map(|p| match p.namespace {
                None => format!("on {}", quayfs_shown::argument(&p.target)),
                Some(pid) => format!(
                    "on {} in the mount namespace of process {pid}",
                    quayfs_shown::argument(&p.target)
                ),
            })
            .collect();
        words
    };
    let mut all = [list(true), list(false)].concat();
    let more = all.len().saturating_sub(NAMED);
    all.truncate(NAMED);
    let target = quayfs_shown::argument(target);
    let alive = format!("{target} is unmounted; the file system lives on");
    match (all.join(", "), more) {
        (named, _) if named.is_empty() => format!("{alive}, in use out of sight from here"),
        (named, 0) => format!("{alive}, mounted {named}"),
        (named, more) => format!("{alive}, mounted {named}, and in {more} more places"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_places_are_named() {
        let place = |target: &str, namespace| Elsewhere {
            target: target.into(),
            namespace,
        };
        let text = lives_on(Path::new("/a"), &[place("/c", Some(7)), place("/b", None)]);
        assert!(
            text.ends_with("mounted on /b, on /c in the mount namespace of process 7"),
            "{text}"
        );
        assert!(lives_on(Path::new("/a"), &[]).contains("out of sight"));
        let crowd = vec![place("/b", None); NAMED + 2];
        let text = lives_on(Path::new("/a"), &crowd);
        assert!(
            text.ends_with("on /b, on /b, and in 2 more places"),
            "{text}"
        );
    }
}
