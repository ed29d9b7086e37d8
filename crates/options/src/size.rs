//! Sizes on the command line: `4096`, `512M`, `8G`, `1T`; units are powers of 1024.

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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use quayfs_layout::size::exact_size;

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

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,24}") {
            let _ = parse_size(&text);
        }

        #[test]
        fn bytes_come_back(bytes: u64) {
            prop_assert_eq!(parse_size(&bytes.to_string()), Ok(bytes));
            let exact = exact_size(bytes);
            prop_assert_eq!(parse_size(exact.split(' ').next().unwrap()), Ok(bytes));
        }
    }
}
