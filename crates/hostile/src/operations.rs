//! Target `operations`: any calls, on a volume that is whole.

use std::sync::Arc;

use quayfs_fs::Fs;
use quayfs_options::MountOptions;

use crate::input::Input;
use crate::script::Script;
use crate::volumes::{self, Media};

/// Most calls of one input.
const CALLS: usize = 200;
/// Mounts to choose from.
const MODES: [&str; 5] = [
    "noatime,durability=op,ablation=workers:1",
    "relatime,durability=op,checkpoint=swap,ablation=workers:1",
    "noatime,durability=commit,ablation=workers:1",
    "noatime,data=ordered,ablation=workers:1",
    "noatime,data=writeback,checkpoint=inplace,ablation=workers:1",
];

/// Whatever is called, the checker finds nothing wrong afterwards, neither after a death nor after
/// a clean end.
pub fn operations(data: &[u8]) {
    let mut input = Input::new(data);
    let media = volumes::empty();
    let mut fs = mount(&media, &options(&mut input));
    let mut script = Script::new(Vec::new());
    for _ in 0..CALLS {
        if input.is_empty() {
            break;
        }
        if input.u8() >= 250 {
            let clean = input.flag();
            end(&fs, clean);
            drop(fs);
            if input.flag() {
                check(&media);
            }
            fs = mount(&media, &options(&mut input));
            script.forget_everything();
        } else {
            let _ = script.step(&fs, &mut input);
        }
    }
    assert!(!fs.e.is_read_only(), "the mount has given up");
    fs.abandon();
    drop(fs);
    check(&media);
    let fs = mount(&media, &options(&mut input));
    end(&fs, true);
    drop(fs);
    check(&media);
}

fn options(input: &mut Input<'_>) -> MountOptions {
    let text = MODES[input.below(MODES.len())];
    MountOptions::parse(&[text]).expect("options")
}

fn mount(media: &Media, options: &MountOptions) -> Arc<Fs> {
    Fs::mount_quiet(media.volume().expect("volume"), options).expect("mount")
}

fn end(fs: &Fs, clean: bool) {
    if clean {
        fs.shutdown().expect("shutdown");
    } else {
        fs.abandon();
    }
}

fn check(media: &Media) {
    let report = media.fsck().expect("fsck");
    assert!(report.is_clean() && report.skipped.is_empty(), "{report}");
}
