//! Sizes as people read them; units are powers of 1024.

/// Prints a size for people: the largest unit in which it is at least 1, one decimal if needed.
pub fn format_size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (u64::BITS - 1).saturating_sub(bytes.leading_zeros()) as usize / 10;
    let tenths = (u128::from(bytes) * 10) >> (10 * unit);
    match tenths % 10 {
        0 => format!("{} {}", tenths / 10, UNITS[unit]),
        rest => format!("{}.{rest} {}", tenths / 10, UNITS[unit]),
    }
}

/// Prints a size as the command line takes it (`parse_size` of `quayfs-options`), and a long one for people as well: `128M`,
/// `127488K (124.5 MiB)`. For messages that say which size to ask for.
pub fn exact_size(bytes: u64) -> String {
    const UNITS: [(u32, &str); 6] = [
        (50, "P"),
        (40, "T"),
        (30, "G"),
        (20, "M"),
        (10, "K"),
        (0, ""),
    ];
    let whole = |(shift, _): &&(u32, &str)| bytes.trailing_zeros() >= *shift && bytes > 0;
    let (shift, unit) = UNITS.iter().find(whole).unwrap_or(&UNITS[5]);
    let number = bytes >> shift;
    match number {
        0..1024 => format!("{number}{unit}"),
        _ => format!("{number}{unit} ({})", format_size(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_whole_units() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (8 << 30, "8 GiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
    }

    #[test]
    fn a_size_to_ask_for_is_exact() {
        for (bytes, text) in [
            (0, "0"),
            (1000, "1000"),
            (4096, "4K"),
            (128 << 20, "128M"),
            (127_488 << 10, "127488K (124.5 MiB)"),
            (3 << 40, "3T"),
        ] {
            assert_eq!(exact_size(bytes), text);
        }
    }
}
