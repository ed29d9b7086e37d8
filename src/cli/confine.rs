//! What the threads of a daemon may do: as little as they need.
//!
//! Whatever reads the media or a request runs without capabilities, never gets any (`no_new_privs`), and can open
//! nothing but what it needs (Landlock). Rights belong to threads, and a new thread has those of the one that starts
//! it. Four threads keep what they are there for: to unmount, to have the mount table changed, to look at callers, to
//! log. They share memory with the rest: this bounds what confused code can do, not code that an attacker has put in
//! its place.
//!
//! Everything is taken as far as the kernel has it: a mount that cannot be confined is served all the same.

use std::io;
use std::thread;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, path_beneath_rules,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, set_capabilities, set_no_new_privs,
};
use tracing::warn;

/// What it takes to write a log in a directory of any user.
pub const TO_LOG: CapabilitySet = CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::FOWNER);
/// What it takes to unmount, wherever the mount point is. `fusermount3` needs nothing.
const TO_UNMOUNT: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::DAC_READ_SEARCH);

/// What Landlock is asked for: where the kernel knows less, less is asked.
const LANDLOCK: ABI = ABI::V7;
/// What is read while a mount is served: how many CPUs there are, what the kernel is set to.
const READ: [&str; 2] = ["/proc", "/sys"];
/// Devices that are opened then: another connection for each thread, what keeps CPUs from halting, and the end of
/// the standard output.
const DEVICES: [&str; 3] = ["/dev/fuse", "/dev/cpu_dma_latency", "/dev/null"];

/// Keeps what users have written out of core dumps and from other processes of the same user. Of the whole process.
pub fn keep_memory_private() {
    // Before Linux 6.4 rustix reads this from `/proc/self/auxv`, once, and panics where it cannot. Afterwards that file is
    // root's.
    rustix::param::page_size();
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    complain(
        "core dumps are possible",
        setrlimit(Resource::Core, none)
            .and_then(|()| set_dumpable_behavior(DumpableBehavior::NotDumpable)),
    );
}

/// Leaves this thread, and those that it starts, what it takes to unmount: `fusermount3` gets the rights of its owner.
pub fn to_unmount() {
    restrict(TO_UNMOUNT, CapabilitySet::empty());
}

/// As [`to_unmount`], and for the programs that the thread starts as well. Those of root have capabilities by
/// themselves; those of an ordinary user, to which a service manager gave some, have only what is handed on.
pub fn to_have_it_done() {
    restrict(TO_UNMOUNT, TO_UNMOUNT);
}

/// Leaves this thread, and those that it starts, these capabilities for good.
pub fn to(these: CapabilitySet) {
    restrict(these, CapabilitySet::empty());
    complain("programs could get privileges", set_no_new_privs(true));
}

fn restrict(these: CapabilitySet, hand_on: CapabilitySet) {
    let less = || {
        let now = capabilities(None)?;
        let kept = now.permitted & these;
        let handed_on = kept & hand_on;
        clear_ambient_capability_set()?;
        set_capabilities(
            None,
            CapabilitySets {
                effective: kept,
                permitted: kept,
                inheritable: handed_on,
            },
        )?;
        (handed_on.iter()).try_for_each(|one| configure_capability_in_ambient_set(one, true))
    };
    complain("capabilities are kept", less());
}

/// Confines this thread and those that it starts.
pub fn this_thread() {
    to(CapabilitySet::empty());
    match forbid_files() {
        Ok(RulesetStatus::NotEnforced) => tracing::debug!("this kernel has no Landlock"),
        Ok(_) => {}
        Err(e) => warn!("files can be opened: {e}"),
    }
}

/// Does something in a confined thread, and waits for it.
///
/// # Errors
/// Those of starting a thread.
///
/// # Panics
/// If it does.
pub fn run<T: Send>(what: impl FnOnce() -> T + Send) -> io::Result<T> {
    let confined = || {
        this_thread();
        what()
    };
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("confined".into());
        let thread = builder.spawn_scoped(scope, confined)?;
        thread
            .join()
            .or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn forbid_files() -> Result<RulesetStatus, RulesetError> {
    let read = AccessFs::ReadFile | AccessFs::ReadDir;
    let device: BitFlags<AccessFs> = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(LANDLOCK))?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .create()?
        .add_rules(path_beneath_rules(READ, read))?
        .add_rules(path_beneath_rules(DEVICES, device))?
        .restrict_self()?;
    Ok(status.ruleset)
}

fn complain(what: &str, done: rustix::io::Result<()>) {
    if let Err(e) = done {
        warn!("not confined, {what}: {e}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::capability_is_in_ambient_set;
    use std::fs::File;
    use std::net::TcpListener;

    fn mine() -> CapabilitySets {
        capabilities(None).unwrap()
    }

    #[test]
    fn a_confined_thread_has_no_rights() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        std::fs::write(&old, b"content").unwrap();
        let held = File::open(&old).unwrap();
        let before = mine();
        run(|| {
            assert_eq!(mine().permitted, CapabilitySet::empty());
            assert!(rustix::thread::no_new_privs().unwrap());
            // What is open stays so.
            assert_eq!(held.metadata().unwrap().len(), 7);
            File::open("/proc/self/status").unwrap();
            assert!(thread::spawn(mine).join().unwrap().permitted.is_empty());
            // Once more: whether there is such a thing here.
            if forbid_files().unwrap() == RulesetStatus::FullyEnforced {
                for refused in [
                    File::open(&old).map(drop),
                    File::create(&new).map(drop),
                    std::fs::remove_file(&old),
                    std::fs::write("/proc/self/comm", b"other"),
                    TcpListener::bind("127.0.0.1:0").map(drop),
                ] {
                    let e = refused.unwrap_err();
                    assert_eq!(e.kind(), io::ErrorKind::PermissionDenied, "{e}");
                }
            }
        })
        .unwrap();
        assert_eq!(mine(), before, "nobody else is");
        File::open(&old).unwrap();
    }

    #[test]
    fn some_capabilities_can_be_kept() {
        let before = mine();
        let after = thread::spawn(|| {
            to_unmount();
            mine()
        });
        let after = after.join().unwrap();
        assert_eq!(after.effective, before.permitted & TO_UNMOUNT);
        assert_eq!(after.permitted, after.effective);
        assert!(after.inheritable.is_empty());
    }

    #[test]
    fn some_are_handed_on_to_programs() {
        let before = mine();
        let after = thread::spawn(|| {
            to_have_it_done();
            let handed_on = |one: &CapabilitySet| capability_is_in_ambient_set(*one).unwrap();
            (mine(), TO_UNMOUNT.iter().filter(handed_on).collect())
        });
        let (after, ambient): (_, CapabilitySet) = after.join().unwrap();
        assert_eq!(after.permitted, before.permitted & TO_UNMOUNT);
        assert_eq!(
            (after.inheritable, ambient),
            (after.permitted, after.permitted)
        );
    }

    #[test]
    fn what_panics_panics_here_too() {
        let panics = || run(|| panic!("as it should"));
        assert!(std::panic::catch_unwind(panics).is_err());
    }
}
