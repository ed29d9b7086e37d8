//! Sizes as people write and read them: `4096`, `512M`, `8G`, `1T`; units are powers of 1024.

/// Why a text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// Not a number with an optional unit.
    #[error(
        "`{0}` is not a size: write a whole number of bytes, or of K, M, G, T (powers of 1024)"
    )]
    Syntax(String),
    /// More than 2^64 - 1 bytes.
    #[error("`{0}` is larger than any device")]
    TooLarge(String),
}

/// Reads a size: digits, then nothing, `B`, or one of `K M G T P` in either case, optionally
/// followed by `B` or `iB`. The result is in bytes.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let syntax = || SizeError::Syntax(text.to_string());
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    if number.is_empty() {
        return Err(syntax());
    }
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        "p" | "pb" | "pib" => 50,
        _ => return Err(syntax()),
    };
    let too_large = || SizeError::TooLarge(text.to_string());
    let number: u64 = number.parse().map_err(|_| too_large())?;
    number.checked_mul(1 << shift).ok_or_else(too_large)
}

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

/// Prints a size such that [`parse_size`] reads the same, and about how much it is where that is not seen: `128M`,
/// `127488K (124.5 MiB)`. For messages that tell what to ask for.
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
    use proptest::prelude::*;

    #[test]
    fn sizes_are_binary() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("1b", 1),
            ("1K", 1 << 10),
            ("512M", 512 << 20),
            ("512mb", 512 << 20),
            ("8G", 8 << 30),
            ("8GiB", 8 << 30),
            ("1T", 1 << 40),
            ("2p", 2 << 50),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "", "G", "-1", "+1", "1.5G", "8 G", " 8G", "8GG", "8Gi", "0x10", "1e9", "٣",
        ] {
            assert_eq!(
                parse_size(text),
                Err(SizeError::Syntax(text.into())),
                "{text}"
            );
        }
        for text in [
            "18446744073709551616",
            "16777216T",
            "99999999999999999999999",
        ] {
            assert_eq!(
                parse_size(text),
                Err(SizeError::TooLarge(text.into())),
                "{text}"
            );
        }
    }

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

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,24}") {
            let _ = parse_size(&text);
        }

        #[test]
        fn bytes_come_back(bytes: u64) {
            prop_assert_eq!(parse_size(&bytes.to_string()), Ok(bytes));
            prop_assert!(!format_size(bytes).is_empty());
            let exact = exact_size(bytes);
            prop_assert_eq!(parse_size(exact.split(' ').next().unwrap()), Ok(bytes));
        }
    }
}
