//! What can stand behind the `=` of an option.

use super::super::{
    CheckpointPolicy, DataMode, Durability, Idle, OnError, OpenPolicy, Permissions, Transport,
    format_size, parse_size,
};
use super::OptionError;
use std::ops::RangeInclusive;

pub(super) const DATA: [(&str, DataMode); 3] = [
    ("journal", DataMode::Journal),
    ("ordered", DataMode::Ordered),
    ("writeback", DataMode::Writeback),
];
pub(super) const DURABILITY: [(&str, Durability); 2] =
    [("op", Durability::Op), ("commit", Durability::Commit)];
pub(super) const OPEN: [(&str, OpenPolicy); 2] =
    [("answer", OpenPolicy::Answer), ("elide", OpenPolicy::Elide)];
pub(super) const PERMISSIONS: [(&str, Permissions); 2] = [
    ("kernel", Permissions::Kernel),
    ("owner", Permissions::Owner),
];
pub(super) const ERRORS: [(&str, OnError); 2] = [
    ("remount-ro", OnError::RemountRo),
    ("continue", OnError::Continue),
];
pub(super) const CHECKPOINT: [(&str, CheckpointPolicy); 4] = [
    ("adaptive", CheckpointPolicy::Adaptive),
    ("swap", CheckpointPolicy::Swap),
    ("inplace", CheckpointPolicy::InPlace),
    ("double", CheckpointPolicy::Double),
];
pub(super) const IDLE: [(&str, Idle); 3] = [
    ("auto", Idle::Auto),
    ("poll", Idle::Poll),
    ("halt", Idle::Halt),
];
pub(super) const TRANSPORT: [(&str, Transport); 3] = [
    ("auto", Transport::Auto),
    ("dev", Transport::Dev),
    ("uring", Transport::Uring),
];
pub(super) const ABLATIONS: &str = "staging:central, checkpoint:swap, checkpoint:inplace, checkpoint:double, \
    locking:file, workers:1, nodelog:ssd or messages:all";

pub(super) fn bad(option: &str, value: &str, expected: impl Into<String>) -> OptionError {
    OptionError::Value {
        option: option.into(),
        value: value.into(),
        expected: expected.into(),
    }
}

pub(super) fn choose<T: Copy>(
    key: &str,
    value: &str,
    from: &[(&str, T)],
) -> Result<T, OptionError> {
    match from.iter().find(|(name, _)| *name == value) {
        Some((_, found)) => Ok(*found),
        None => {
            let names: Vec<_> = from.iter().map(|(name, _)| *name).collect();
            Err(bad(key, value, names.join(" or ")))
        }
    }
}

pub(super) fn number(key: &str, value: &str, min: u32, max: u32) -> Result<u32, OptionError> {
    match value.parse() {
        Ok(n) if (min..=max).contains(&n) => Ok(n),
        _ => Err(bad(key, value, format!("a number from {min} to {max}"))),
    }
}

pub(super) fn size(key: &str, value: &str, sizes: RangeInclusive<u64>) -> Result<u64, OptionError> {
    if let Ok(bytes) = parse_size(value)
        && sizes.contains(&bytes)
    {
        return Ok(bytes);
    }
    let (least, most) = (format_size(*sizes.start()), format_size(*sizes.end()));
    let expected = match sizes.start() {
        0 => format!("a size up to {most}"),
        _ => format!("a size from {least} to {most}"),
    };
    Err(bad(key, value, expected))
}

pub(super) fn name(key: &str, value: &str) -> Result<String, OptionError> {
    if value.is_empty() {
        return Err(bad(key, value, "a name that is not empty"));
    }
    if value.contains(char::is_control) {
        return Err(bad(key, value, "a name without control characters"));
    }
    Ok(value.into())
}
