//! Wall clock time as text, without a time zone library: the log and rotated files use UTC.

use std::time::{SystemTime, UNIX_EPOCH};

const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 86_400;

/// Now, in nanoseconds since the epoch.
pub(crate) fn now_ns() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// `2006-01-02T15:04:05.000000000Z`, always with nine digits.
pub(super) fn rfc3339(ns: i64) -> String {
    let [year, month, day, hour, minute, second] = fields(ns.div_euclid(SECOND));
    let nanos = ns.rem_euclid(SECOND);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanos:09}Z")
}

/// `20060102-150405`, the suffix of a rotated log.
pub(super) fn compact(seconds: i64) -> String {
    let [year, month, day, hour, minute, second] = fields(seconds);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

/// Year, month, day, hour, minute, second.
fn fields(seconds: i64) -> [i64; 6] {
    let mut days = seconds.div_euclid(DAY);
    let time = seconds.rem_euclid(DAY);
    let mut year = 1970 + days.div_euclid(366);
    days -= days_before(year);
    while days >= year_length(year) {
        days -= year_length(year);
        year += 1;
    }
    let mut month = 1;
    while days >= month_length(year, month) {
        days -= month_length(year, month);
        month += 1;
    }
    [
        year,
        month,
        days + 1,
        time / 3600,
        time / 60 % 60,
        time % 60,
    ]
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn year_length(year: i64) -> i64 {
    if is_leap(year) { 366 } else { 365 }
}

fn month_length(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1 January 1970 to 1 January of `year`.
fn days_before(year: i64) -> i64 {
    let past = year - 1;
    let leaps = |y: i64| y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400);
    (year - 1970) * 365 + leaps(past) - leaps(1969)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_the_calendar_has_them() {
        for (seconds, want) in [
            (0, "19700101-000000"),
            (951_782_399, "20000228-235959"),
            (951_782_400, "20000229-000000"),
            (1_709_164_800, "20240229-000000"),
            (1_735_689_599, "20241231-235959"),
            (1_735_689_600, "20250101-000000"),
            (4_107_542_400, "21000301-000000"),
        ] {
            assert_eq!(compact(seconds), want);
        }
        assert_eq!(
            rfc3339(1_735_689_600 * SECOND + 7),
            "2025-01-01T00:00:00.000000007Z"
        );
    }
}
