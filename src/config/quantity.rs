//! Sizes, counts and times as people write them, and back.
//!
//! * A size is digits and a binary unit: `64KiB`, `1.5 GiB`, `512B`. A bare number is refused, for it
//!   leaves open what is counted, and so are decimal units (`64KB`), for disks are laid out in powers
//!   of two and a reader of the file must not have to guess which was meant.
//! * A count is digits, or digits and `Ki` or `Mi`: `1Mi` extents.
//! * A time is what `humantime` takes: `5s`, `200ms`, `1m 30s`; `0` alone needs no unit.
//!
//! The functions only say yes or no: what was found and expected is put into words by the reader.

use crate::units::{KIB, MIB};
use bytesize::ByteSize;
use std::time::Duration;

/// The units of a size, with their bytes, largest first.
const SIZE_UNITS: [(&str, u64); 5] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", MIB),
    ("KiB", KIB),
    ("B", 1),
];

/// The bytes that `text` says, or `None` if it is not a whole number of bytes in a binary unit.
pub fn parse_size(text: &str) -> Option<u64> {
    let (number, unit) = split_number(text)?;
    let (_, bytes) = SIZE_UNITS.iter().find(|(name, _)| *name == unit)?;
    let (whole, fraction) = number
        .split_once('.')
        .map_or((number, None), |(w, f)| (w, Some(f)));
    // `bytesize` saturates; here a size beyond 64 bits is no size.
    whole
        .parse::<u64>()
        .ok()?
        .checked_mul(*bytes)?
        .checked_add(*bytes)?;
    match fraction {
        None => text.parse::<ByteSize>().ok().map(|size| size.as_u64()),
        // Fractions are for people ("1.5GiB"): few digits, and whole bytes.
        Some(digits) if !digits.is_empty() && digits.len() <= 3 => {
            let thousandths =
                10_u64.pow(3 - u32::try_from(digits.len()).ok()?) * digits.parse::<u64>().ok()?;
            let part = bytes.checked_mul(thousandths)?;
            part.is_multiple_of(1000).then(|| {
                whole
                    .parse::<u64>()
                    .ok()?
                    .checked_mul(*bytes)?
                    .checked_add(part / 1000)
            })?
        }
        Some(_) => None,
    }
}

/// The number that `text` says: `4096`, `512Ki`, `1Mi`.
pub fn parse_count(text: &str) -> Option<u64> {
    let (number, unit) = split_number(text)?;
    let factor = match unit {
        "" => 1,
        "Ki" => KIB,
        "Mi" => MIB,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor)
}

/// The time that `text` says.
pub fn parse_time(text: &str) -> Option<Duration> {
    humantime::parse_duration(text).ok()
}

/// Digits, perhaps with a point in them, and the rest without the blanks between.
fn split_number(text: &str) -> Option<(&str, &str)> {
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    number
        .starts_with(|c: char| c.is_ascii_digit())
        .then(|| (number, rest.trim_start_matches(' ')))
}

/// `bytes` exactly, in the largest unit that leaves a whole number: `64KiB`, `4608KiB`, `513B`.
pub fn size_exact(bytes: u64) -> String {
    let (unit, factor) = SIZE_UNITS
        .iter()
        .find(|(_, factor)| bytes >= *factor && bytes.is_multiple_of(*factor))
        .copied()
        .unwrap_or(("B", 1));
    format!("{}{unit}", bytes / factor)
}

/// `bytes` for the eye: three digits or so, `3.4 GiB`.
pub fn size_rough(bytes: u64) -> String {
    let Some((unit, factor)) = SIZE_UNITS
        .iter()
        .find(|(_, factor)| bytes >= *factor)
        .copied()
    else {
        return "0 B".to_owned();
    };
    let whole = bytes / factor;
    if factor == 1 || whole >= 100 {
        format!("{whole} {unit}")
    } else {
        format!("{whole}.{} {unit}", bytes % factor * 10 / factor)
    }
}

/// `bytes` for a message: exactly if that is short (`16MiB`, `6536KiB`), else for the eye, with the bytes
/// where rounding could hide the very thing that is told (`6.3 MiB (6692865 bytes)`).
pub fn size_told(bytes: u64) -> String {
    const DIGITS_MAX: usize = 5;
    let exact = size_exact(bytes);
    let digits = exact.bytes().filter(u8::is_ascii_digit).count();
    if digits <= DIGITS_MAX {
        exact
    } else {
        format!("{} ({bytes} bytes)", size_rough(bytes))
    }
}

/// `count` exactly, with `Ki` or `Mi` where that leaves a whole number.
pub fn count_exact(count: u64) -> String {
    if count >= MIB && count.is_multiple_of(MIB) {
        format!("{}Mi", count / MIB)
    } else if count >= KIB && count.is_multiple_of(KIB) {
        format!("{}Ki", count / KIB)
    } else {
        count.to_string()
    }
}

/// A time as the file would say it: `30s`, `1m 30s`.
pub fn time_exact(time: Duration) -> String {
    if time.is_zero() {
        "0".to_owned()
    } else {
        humantime::format_duration(time).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_binary_units_only() {
        for (text, bytes) in [
            ("512B", 512),
            ("64KiB", 64 * KIB),
            ("64 KiB", 64 * KIB),
            ("1.5GiB", 3 << 29),
            ("0.5KiB", 512),
            ("4TiB", 4 << 40),
            ("9007199254740993B", 9_007_199_254_740_993),
        ] {
            assert_eq!(parse_size(text), Some(bytes), "{text}");
        }
        for text in [
            "",
            "64",
            "64K",
            "64KB",
            "64kib",
            "64Kib",
            "KiB",
            "-1KiB",
            "1e3KiB",
            ".5KiB",
            "1.KiB",
            "1..5KiB",
            "1.2.3KiB",
            "0.0001KiB",
            "0.3B",
            "0.333KiB",
            "64KiB ",
            " 64KiB",
            "64\tKiB",
            "64KiBs",
            "99999999999TiB",
            "16777216TiB",
            "0x10KiB",
            "١KiB",
        ] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }

    #[test]
    fn counts_take_ki_and_mi() {
        for (text, count) in [
            ("4096", 4096),
            ("512Ki", 512 * KIB),
            ("1Mi", MIB),
            ("1 Mi", MIB),
        ] {
            assert_eq!(parse_count(text), Some(count), "{text}");
        }
        for text in [
            "",
            "1M",
            "1MiB",
            "1.5Mi",
            "-1",
            "1Gi",
            "99999999999999999999",
            "99999999999999999Mi",
        ] {
            assert_eq!(parse_count(text), None, "{text}");
        }
    }

    #[test]
    fn a_time_needs_a_unit_unless_it_is_zero() {
        assert_eq!(parse_time("0"), Some(Duration::ZERO));
        assert_eq!(parse_time("200ms"), Some(Duration::from_millis(200)));
        assert_eq!(parse_time("1m 30s"), Some(Duration::from_secs(90)));
        for text in ["", "5", "5 parsecs", "-1s", "s", "99999999999999999999999s"] {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_printed_exactly_is_read_back_as_the_same() {
        for bytes in [1, 512, 513, KIB, 4608 * KIB, MIB, (1 << 40) + 1, 3 << 40] {
            assert_eq!(parse_size(&size_exact(bytes)), Some(bytes));
        }
        for count in [0, 1, KIB, 4097, MIB, 3 * MIB] {
            assert_eq!(parse_count(&count_exact(count)), Some(count));
        }
        for time in [
            Duration::ZERO,
            Duration::from_millis(1500),
            Duration::from_secs(3661),
        ] {
            assert_eq!(parse_time(&time_exact(time)), Some(time));
        }
    }

    #[test]
    fn a_size_in_a_message_is_short_and_still_exact() {
        for (bytes, text) in [
            (0, "0B"),
            (4096, "4KiB"),
            (6536 * KIB, "6536KiB"),
            (16 * MIB, "16MiB"),
            (16 * MIB + 512, "16.0 MiB (16777728 bytes)"),
            (1_000_204_886_016, "931 GiB (1000204886016 bytes)"),
        ] {
            assert_eq!(size_told(bytes), text);
        }
    }

    #[test]
    fn rough_sizes_show_three_digits_or_so() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1536, "1.5 KiB"),
            (100 * MIB, "100 MiB"),
            (3_650_722_202, "3.4 GiB"),
            (u64::MAX, "16777215 TiB"),
        ] {
            assert_eq!(size_rough(bytes), text);
        }
    }
}
