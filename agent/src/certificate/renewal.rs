//! Renews a certificate when most of its life is over.

use std::convert::Infallible;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::store::Facts;
use super::{Order, request};
use crate::back_off::BackOff;

/// The part of a certificate's life, in hundredths, after which it is renewed: nodes that came together do not
/// renew together.
const RENEWED: std::ops::Range<i64> = 70..90;
/// Longest sleep at once: a machine may have been suspended, or its clock set.
const NAP: Duration = Duration::from_secs(3600);
/// First and longest wait after a failure.
const RETRY: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(1800));

/// Keeps the certificate fresh for ever. `given` is one that is used while the store has none; without either, one
/// is obtained at once. `renewed` is called with each new one in place.
pub async fn keep<F: Future<Output = ()>>(
    client: kube::Client,
    order: Order,
    given: Option<Facts>,
    renewed: impl Fn() -> F,
) -> Infallible {
    let mut back_off = BackOff::new(RETRY.0, RETRY.1);
    let part = spread();
    loop {
        let now = Timestamp::now();
        let used = match order.holds(now) {
            true => order.store.facts(),
            false => given.clone(),
        };
        let due = used.map(|facts| due(&facts, part));
        if let Some(left) = due.and_then(|due| left(due, now)) {
            tokio::time::sleep(left.min(NAP)).await;
            continue;
        }
        match request::obtain(&client, &order).await {
            Ok(()) => {
                back_off.reset();
                renewed().await;
                let until = order.store.facts().map(|facts| facts.not_after.to_string());
                tracing::info!(kind = ?order.kind, until, "the node has a new certificate");
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(kind = ?order.kind, %error, cause, "cannot renew the certificate");
                back_off.wait().await;
            }
        }
    }
}

/// When a certificate is renewed.
fn due(facts: &Facts, part: i64) -> Timestamp {
    let life = facts.not_after.as_second() - facts.not_before.as_second();
    let after = SignedDuration::from_secs(life / 100 * part);
    facts
        .not_before
        .checked_add(after)
        .unwrap_or(facts.not_after)
}

/// The time until then; none when it has come.
fn left(due: Timestamp, now: Timestamp) -> Option<Duration> {
    let left = Duration::try_from(due.duration_since(now)).ok()?;
    (!left.is_zero()).then_some(left)
}

/// A part of [`RENEWED`].
fn spread() -> i64 {
    let width = RENEWED.end - RENEWED.start;
    RENEWED.start + Timestamp::now().as_microsecond().rem_euclid(width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(from: &str, until: &str) -> Facts {
        Facts {
            common_name: String::new(),
            not_before: from.parse().unwrap(),
            not_after: until.parse().unwrap(),
        }
    }

    #[test]
    fn a_certificate_is_renewed_when_most_of_its_life_is_over() {
        let facts = facts("2026-01-01T00:00:00Z", "2026-01-11T00:00:00Z");
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        assert_eq!(due(&facts, 70), time("2026-01-08T00:00:00Z"));
        assert_eq!(due(&facts, 90), time("2026-01-10T00:00:00Z"));
        let day = Some(Duration::from_secs(24 * 3600));
        assert_eq!(left(due(&facts, 70), time("2026-01-07T00:00:00Z")), day);
        assert_eq!(left(due(&facts, 70), time("2026-01-08T00:00:00Z")), None);
        assert_eq!(left(due(&facts, 70), time("2027-01-08T00:00:00Z")), None);
        assert!(RENEWED.contains(&spread()));
    }
}
