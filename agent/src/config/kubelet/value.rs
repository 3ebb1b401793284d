//! Values of a KubeletConfiguration as the file spells them.

use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A taint as the file spells it. The API's own type takes anything, and a typing error must not go unseen.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct FileTaint {
    key: String,
    #[serde(default)]
    value: String,
    effect: String,
}

pub(super) fn taints<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Taint>, D::Error> {
    let mut taints = Vec::new();
    for taint in Vec::<FileTaint>::deserialize(d)? {
        let text = format!("{}={}:{}", taint.key, taint.value, taint.effect);
        taints.push(crate::config::text::taint(&text).map_err(serde::de::Error::custom)?);
    }
    Ok(taints)
}

/// A Go duration; zero (which generated files are full of) means the default of `SECONDS`.
pub(super) fn positive<'de, D: Deserializer<'de>, const SECONDS: u64>(
    d: D,
) -> Result<Duration, D::Error> {
    let parsed = kube::core::Duration::deserialize(d)?;
    if parsed.is_negative() {
        return Err(serde::de::Error::custom(
            "a duration cannot be negative here",
        ));
    }
    let duration = Duration::from(parsed);
    Ok(if duration.is_zero() {
        Duration::from_secs(SECONDS)
    } else {
        duration
    })
}

/// The way in which the API spells durations.
pub(super) fn go_duration<S: Serializer>(duration: &Duration, s: S) -> Result<S::Ok, S::Error> {
    kube::core::Duration::from(*duration).serialize(s)
}

/// A number of which zero means the default.
fn number<'de, D: Deserializer<'de>>(d: D, default: u32) -> Result<u32, D::Error> {
    let number = u32::deserialize(d)?;
    Ok(if number == 0 { default } else { number })
}

pub(super) fn max_pods<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    number(d, 110)
}

pub(super) fn event_burst<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    number(d, 100)
}

pub(super) fn lease_seconds<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    number(d, 40)
}

pub(super) fn ids_per_pod<'de, D: Deserializer<'de>>(d: D) -> Result<u32, D::Error> {
    number(d, 65_536)
}

pub(super) fn port<'de, D: Deserializer<'de>>(d: D) -> Result<u16, D::Error> {
    let port = u16::deserialize(d)?;
    Ok(if port == 0 { 10250 } else { port })
}
