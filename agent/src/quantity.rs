//! Kubernetes quantities (`500m`, `1Gi`, `2e3`) as exact numbers.
//!
//! The API carries them as text; everything that computes with them goes through [`Amount`], which counts in
//! billionths so that no suffix loses anything.

use std::fmt;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Billionths in a unit.
const NANO: i128 = 1_000_000_000;

/// A parsed quantity, in billionths of its unit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(i128);

/// Text that is no quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a quantity: write a number with an optional suffix, as in 500m, 2 or 1Gi")]
pub struct QuantityError(pub String);

impl Amount {
    /// Parses the text of a quantity. What is finer than a billionth is rounded away from zero.
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        parse(text).ok_or_else(|| QuantityError(text.to_owned()))
    }

    /// A whole number of units.
    pub fn units(count: i64) -> Self {
        Self(i128::from(count) * NANO)
    }

    /// A number of thousandths.
    pub fn millis(count: i64) -> Self {
        Self(i128::from(count) * (NANO / 1000))
    }

    /// Units, rounded up; what does not fit becomes the largest number that does.
    pub fn to_units(self) -> i64 {
        saturate(div_up(self.0, NANO))
    }

    /// Thousandths, rounded up; what does not fit becomes the largest number that does.
    pub fn to_millis(self) -> i64 {
        saturate(div_up(self.0, NANO / 1000))
    }

    /// The canonical form with suffixes of the kind that another quantity has: `1536Ki` like `1Mi`, `3M` like `2M`.
    pub fn like(self, other: &Quantity) -> String {
        let binary = other.0.ends_with('i');
        let (step, suffixes) = match binary {
            true => (1024, ["Ei", "Pi", "Ti", "Gi", "Mi", "Ki"]),
            false => (1000, ["E", "P", "T", "G", "M", "k"]),
        };
        let units = self.0 / NANO;
        let mut powers = suffixes.iter().zip((1..=6).rev()).map(|(suffix, power)| {
            let unit = i128::pow(step, power);
            (units % unit == 0).then(|| format!("{}{suffix}", units / unit))
        });
        let whole = self.0 % NANO == 0 && units != 0;
        let found = powers.find_map(|found| found).filter(|_| whole);
        found.unwrap_or_else(|| self.to_string())
    }

    /// Whether it is zero.
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The sum, saturating.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// The difference, and zero where it would be negative.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0).max(0))
    }
}

impl TryFrom<&Quantity> for Amount {
    type Error = QuantityError;

    fn try_from(quantity: &Quantity) -> Result<Self, QuantityError> {
        Self::parse(&quantity.0)
    }
}

/// The canonical decimal form: `2`, `1500m`.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, suffix) in [(NANO, ""), (NANO / 1000, "m"), (1000, "u")] {
            if self.0 % unit == 0 {
                return write!(f, "{}{suffix}", self.0 / unit);
            }
        }
        write!(f, "{}n", self.0)
    }
}

/// Division that rounds away from zero on the positive side, as the API's Value() does.
fn div_up(value: i128, by: i128) -> i128 {
    let quotient = value.div_euclid(by);
    if value.rem_euclid(by) == 0 {
        quotient
    } else {
        quotient + 1
    }
}

/// Clamps to what an i64 holds.
fn saturate(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

/// Sign, digits, fraction, suffix; none for anything else.
fn parse(text: &str) -> Option<Amount> {
    let (negative, rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (whole, rest) = rest.split_at(digits);
    let (fraction, suffix) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).count()),
        None => ("", rest),
    };
    // 30 digits hold everything the API allows, and keep the arithmetic below within an i128.
    if whole.len() + fraction.len() == 0 || whole.len() + fraction.len() > 30 {
        return None;
    }
    let mantissa: i128 = format!("{whole}{fraction}").parse().ok()?;
    let (numerator, power) = scale(suffix)?;
    let power = power - i32::try_from(fraction.len()).ok()? + 9;
    let scaled = mantissa.checked_mul(numerator)?;
    let nanos = if power >= 0 {
        scaled.checked_mul(10i128.checked_pow(u32::try_from(power).ok()?)?)?
    } else {
        div_up(
            scaled,
            10i128
                .checked_pow(power.unsigned_abs())
                .unwrap_or(i128::MAX),
        )
    };
    Some(Amount(if negative { -nanos } else { nanos }))
}

/// A suffix as (binary factor, power of ten).
fn scale(suffix: &str) -> Option<(i128, i32)> {
    Some(match suffix {
        "" => (1, 0),
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        exponent => {
            let power = exponent.strip_prefix(['e', 'E'])?;
            (
                1,
                power
                    .parse()
                    .ok()
                    .filter(|power| (-30..=18).contains(power))?,
            )
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sums_are_written_as_their_parts_are() {
        for (sum, part, expected) in [
            ("1536Ki", "1Mi", "1536Ki"),
            ("2048Ki", "1Mi", "2Mi"),
            ("3Gi", "1Mi", "3Gi"),
            ("1000", "1Ki", "1000"),
            ("3000k", "2M", "3M"),
            ("1500k", "2M", "1500k"),
            ("100m", "1", "100m"),
        ] {
            let sum = Amount::parse(sum).unwrap();
            assert_eq!(sum.like(&Quantity(part.into())), expected);
        }
    }

    #[test]
    fn every_suffix_has_its_factor() {
        for (text, units, millis) in [
            ("0", 0, 0),
            ("2", 2, 2000),
            ("500m", 1, 500),
            ("0.1", 1, 100),
            ("1.5", 2, 1500),
            (".5", 1, 500),
            ("1k", 1000, 1_000_000),
            ("1Ki", 1024, 1_024_000),
            ("1.5Gi", 1_610_612_736, 1_610_612_736_000),
            ("1e3", 1000, 1_000_000),
            ("1E3", 1000, 1_000_000),
            ("1E", 1_000_000_000_000_000_000, i64::MAX),
            ("100n", 1, 1),
            ("-1", -1, -1000),
            ("8Ei", i64::MAX, i64::MAX),
        ] {
            let amount = Amount::parse(text).unwrap();
            assert_eq!(
                (amount.to_units(), amount.to_millis()),
                (units, millis),
                "{text}"
            );
        }
    }

    #[test]
    fn what_is_no_quantity_is_refused_by_name() {
        for text in [
            "", "-", "m", "1x", "1 Gi", "1ki", "0x10", "1e", "1e99", "1.2.3", "١",
        ] {
            assert_eq!(
                Amount::parse(text),
                Err(QuantityError(text.to_owned())),
                "{text}"
            );
        }
    }

    #[test]
    fn the_canonical_form_is_the_shortest_exact_one() {
        for (text, canonical) in [
            ("2000m", "2"),
            ("1.5", "1500m"),
            ("1Ki", "1024"),
            ("3n", "3n"),
        ] {
            assert_eq!(Amount::parse(text).unwrap().to_string(), canonical);
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC{0,40}") {
            let _ = Amount::parse(&text);
        }

        #[test]
        fn printing_and_parsing_agree(nanos in any::<i64>()) {
            let amount = Amount(i128::from(nanos));
            prop_assert_eq!(Amount::parse(&amount.to_string()), Ok(amount));
        }
    }
}
