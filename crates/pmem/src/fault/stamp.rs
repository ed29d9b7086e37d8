//! The time as a log has it, made without memory, locks or anything else that a signal handler may not use.

/// Bytes of what comes before the message: `2026-11-30T10:40:20.123456Z ERROR `.
const LEN: usize = 34;

/// What a line of a log begins with that says of an error, now.
pub(super) fn now() -> [u8; LEN] {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the system fills in what is borrowed. The call is safe in a signal handler; should it fail, it is 1970.
    let _ = unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now) };
    at(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() / 1000)
}

fn at(seconds: u64, micros: u64) -> [u8; LEN] {
    let mut text = *b"0000-00-00T00:00:00.000000Z ERROR ";
    let (year, month, day) = date(seconds / 86_400);
    let clock = [seconds / 3600 % 24, seconds / 60 % 60, seconds % 60];
    put(&mut text, 0..4, year);
    put(&mut text, 5..7, month);
    put(&mut text, 8..10, day);
    put(&mut text, 11..13, clock[0]);
    put(&mut text, 14..16, clock[1]);
    put(&mut text, 17..19, clock[2]);
    put(&mut text, 20..26, micros);
    text
}

/// The last digits of a number, as many as there is room for.
fn put(text: &mut [u8; LEN], place: std::ops::Range<usize>, mut number: u64) {
    for digit in text.iter_mut().take(place.end).skip(place.start).rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// Year, month and day of so many days after the beginning of 1970, counted from a first of March, behind which leap days are.
fn date(days: u64) -> (u64, u64, u64) {
    const ERA: u64 = 146_097;
    let days = days + 719_468;
    let (era, day) = (days / ERA, days % ERA);
    let year = (day - day / 1460 + day / 36_524 - day / (ERA - 1)) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = match month < 10 {
        true => (month + 3, 0),
        false => (month - 9, 1),
    };
    (era * 400 + year + next, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_told_as_logs_do() {
        let said = |seconds, micros| String::from_utf8(at(seconds, micros).to_vec()).unwrap();
        assert_eq!(said(0, 0), "1970-01-01T00:00:00.000000Z ERROR ");
        let leap = said(1_709_210_096, 7);
        assert_eq!(leap, "2024-02-29T12:34:56.000007Z ERROR ");
        let last = said(4_102_444_799, 999_999);
        assert_eq!(last, "2099-12-31T23:59:59.999999Z ERROR ");
        let first = said(951_868_800, 123_456);
        assert_eq!(first, "2000-03-01T00:00:00.123456Z ERROR ");
    }
}
