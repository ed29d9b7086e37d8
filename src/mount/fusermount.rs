//! The set-user-id helper `fusermount3`, for users who may not call mount(2).

use quayfs_options::{AtimePolicy, MountOptions, Permissions};

use super::{AttachError, UnmountMode};
use rustix::cmsg_space;
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};
use std::ffi::OsStr;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = "fusermount3";

/// Mounts on the directory `target` and returns the open `/dev/fuse`. The helper is started in that directory, so that
/// it need not look up a path which others may have changed: `target` may be one to a descriptor.
pub fn mount(source: &Path, target: &Path, options: &MountOptions) -> Result<OwnedFd, AttachError> {
    let socket = |e: Errno| AttachError::Helper(format!("no socket for the reply: {e}"));
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::empty(),
        None,
    )
    .map_err(socket)?;
    // Only the helper's end may survive its exec.
    fcntl_setfd(&ours, FdFlags::CLOEXEC).map_err(socket)?;
    let mut command = Command::new(PROGRAM);
    command
        .arg("-o")
        .arg(option_list(source, options))
        .arg("--")
        .arg(".")
        .current_dir(target)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string());
    let output = run(&mut command)?;
    drop(theirs);
    if !output.status.success() {
        return Err(AttachError::Helper(complaint(&output)));
    }
    receive(&ours).map_err(|e| AttachError::Helper(format!("sent no connection: {e}")))
}

/// Unmounts what is on `target`. `there`: the directory above, which may be a path to a descriptor, and the name in it;
/// the helper is started there, so that it need not look up a path which others may have changed.
pub fn unmount(
    target: &Path,
    there: Option<(PathBuf, &OsStr)>,
    mode: UnmountMode,
) -> Result<(), AttachError> {
    let mut command = Command::new(PROGRAM);
    command.arg("-u");
    if mode != UnmountMode::Normal {
        command.arg("-z");
    }
    command.arg("--");
    match there {
        Some((dir, name)) => command.arg(name).current_dir(dir),
        None => command.arg(target),
    };
    let output = run(&mut command)?;
    if output.status.success() {
        return Ok(());
    }
    Err(refusal(target, complaint(&output)))
}

/// What it means that an unmount was refused. There are paths in the complaint, which have any words: its end tells.
fn refusal(target: &Path, why: String) -> AttachError {
    let path = target.into();
    if why.ends_with(": Device or resource busy") {
        return AttachError::Busy(path);
    }
    // It looks for mounts of the caller alone.
    let table = why.rsplit_once(" not found in ").map(|(_, table)| table);
    let why = match table.is_some_and(|table| table.starts_with('/') && !table.contains(' ')) {
        true => "only root and the user who mounted it may do that".into(),
        false => why,
    };
    AttachError::Detach { path, why }
}

fn run(command: &mut Command) -> Result<Output, AttachError> {
    command
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(|e| {
            let why = match e.kind() {
                std::io::ErrorKind::NotFound => {
                    "not found; install it (Debian package fuse3) or mount as root".into()
                }
                _ => e.to_string(),
            };
            AttachError::Helper(why)
        })
}

/// The last line that the helper wrote, without its name.
fn complaint(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let line = text.lines().map(str::trim).rfind(|l| !l.is_empty());
    match line {
        Some(l) => l.trim_start_matches("fusermount3:").trim().to_string(),
        None => format!("failed without a word ({})", output.status),
    }
}

fn option_list(source: &Path, options: &MountOptions) -> std::ffi::OsString {
    let mut list = std::ffi::OsString::from("fsname=");
    // A comma would end the option and a backslash start an escape.
    let name = source
        .to_string_lossy()
        .replace('\\', "\\\\")
        .replace(',', "\\,");
    list.push(name);
    if let Some(subtype) = &options.subtype {
        list.push(format!(",subtype={subtype}"));
    }
    for (on, word) in [
        (
            options.permissions == Permissions::Kernel,
            ",default_permissions",
        ),
        (options.read_only, ",ro"),
        (options.allow_other, ",allow_other"),
        (options.nosuid, ",nosuid"),
        (options.nodev, ",nodev"),
        (options.noexec, ",noexec"),
        (options.nosymfollow, ",nosymfollow"),
        (options.sync, ",sync"),
        (options.atime == AtimePolicy::NoAtime, ",noatime"),
    ] {
        if on {
            list.push(word);
        }
    }
    list
}

fn receive(socket: &OwnedFd) -> Result<OwnedFd, Errno> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    rustix::io::retry_on_intr(|| {
        let mut bytes = [IoSliceMut::new(&mut byte)];
        recvmsg(socket, &mut bytes, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    control
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        })
        .ok_or(Errno::BADMSG)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::io::{IoSlice, Read};
    use std::os::fd::AsFd;
    use std::os::unix::process::ExitStatusExt;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap()
    }

    #[test]
    fn a_descriptor_comes_over_the_socket() {
        let (ours, theirs) = pair();
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [reader.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(
            &theirs,
            &[IoSlice::new(b"x")],
            &mut control,
            SendFlags::empty(),
        )
        .unwrap();
        rustix::io::write(&writer, b"hello").unwrap();
        drop((reader, writer));
        let mut text = String::new();
        std::fs::File::from(receive(&ours).unwrap())
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "hello");
    }

    #[test]
    fn a_closed_socket_is_an_error() {
        let (ours, theirs) = pair();
        drop(theirs);
        assert_eq!(receive(&ours).unwrap_err(), Errno::BADMSG);
    }

    #[test]
    fn names_are_escaped_and_flags_passed_on() {
        let o = MountOptions::parse(&["ro,noatime,nosuid,subtype=none"]).unwrap();
        assert_eq!(
            option_list(Path::new("/a,b\\c"), &o),
            "fsname=/a\\,b\\\\c,default_permissions,ro,nosuid,noatime"
        );
        let o = MountOptions::parse(&["allow_other"]).unwrap();
        assert_eq!(
            option_list(Path::new("v"), &o),
            "fsname=v,subtype=quayfs,default_permissions,allow_other"
        );
    }

    #[test]
    fn words_in_a_path_are_no_reason() {
        let refused = |why: &str| refusal(Path::new("/m"), why.into());
        let busy = "failed to unmount /m: Device or resource busy";
        assert!(matches!(refused(busy), AttachError::Busy(_)));
        for (why, about) in [
            (
                "entry for /g/busybox not found in /etc/mtab",
                "only root and",
            ),
            (
                "entry for /a not found in /b not found in /etc/mtab",
                "only root and",
            ),
            (
                "failed to unmount /g/busybox: Invalid argument",
                "Invalid argument",
            ),
            (
                "failed to unmount /g/not found in /x: Invalid argument",
                "Invalid argument",
            ),
        ] {
            match refused(why) {
                AttachError::Detach { why, .. } => assert!(why.contains(about), "{why}"),
                other => panic!("{other}"),
            }
        }
    }

    #[test]
    fn the_helper_is_quoted_without_its_name() {
        let mut output = Output {
            status: std::process::ExitStatus::from_raw(256),
            stdout: vec![],
            stderr: b"fusermount3: entry for /x not found\n\n".to_vec(),
        };
        assert_eq!(complaint(&output), "entry for /x not found");
        output.stderr.clear();
        assert!(complaint(&output).contains("without a word"));
    }
}
