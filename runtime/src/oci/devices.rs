//! The device list of the specification → v1's list of lines, or the rules of v2's filter. Pure.

use oci_spec::runtime::{LinuxDeviceCgroup, LinuxDeviceType, LinuxResources};

use super::{OciError, Result};
use crate::cgroup::{DeviceAccess, DeviceRule};

/// A rule of the device list, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeviceLine {
    pub(super) allow: bool,
    pub(super) rule: DeviceRule,
}

/// The device list: nothing, then what the document says, in its order, then what every container has.
pub(super) fn devices(resources: &LinuxResources) -> Result<Vec<DeviceLine>> {
    let deny_all = DeviceLine {
        allow: false,
        rule: DeviceRule {
            access: DeviceAccess::All,
            permissions: "rwm".into(),
        },
    };
    let given = resources.devices().iter().flatten();
    let given = given.map(device).collect::<Result<Vec<DeviceLine>>>()?;
    let mut lines = vec![deny_all.clone()];
    // To deny everything is how a document begins.
    let skipped = usize::from(given.first() == Some(&deny_all));
    lines.extend(given.into_iter().skip(skipped));
    // Last, as the other runtimes do it; but what is denied by name stays denied.
    let standard: Vec<DeviceRule> = DeviceRule::standard();
    let kept = standard.into_iter().filter(|rule| {
        let denied = |line: &DeviceLine| !line.allow && covers(line.rule.access, rule.access);
        !lines.iter().any(denied)
    });
    let kept: Vec<DeviceLine> = kept.map(|rule| DeviceLine { allow: true, rule }).collect();
    lines.extend(kept);
    Ok(lines)
}

/// Whether a denial is of single devices and `device` is among them.
fn covers(denied: DeviceAccess, device: DeviceAccess) -> bool {
    let all = |denied: Option<u32>, number: Option<u32>| denied.is_none() || denied == number;
    match (denied, device) {
        (DeviceAccess::Char(a, b), DeviceAccess::Char(c, d))
        | (DeviceAccess::Block(a, b), DeviceAccess::Block(c, d)) => all(a, c) && all(b, d),
        _ => false,
    }
}

fn device(given: &LinuxDeviceCgroup) -> Result<DeviceLine> {
    let number = |value: Option<i64>| match value {
        None | Some(-1) => Ok(None),
        Some(value) => u32::try_from(value)
            .map(Some)
            .map_err(|_| OciError::Config(format!("device number {value}"))),
    };
    let (major, minor) = (number(given.major())?, number(given.minor())?);
    let access = match given.typ().unwrap_or(LinuxDeviceType::A) {
        LinuxDeviceType::A => DeviceAccess::All,
        LinuxDeviceType::B => DeviceAccess::Block(major, minor),
        LinuxDeviceType::C | LinuxDeviceType::U => DeviceAccess::Char(major, minor),
        LinuxDeviceType::P => {
            return Err(OciError::Config("a device rule for a fifo".into()));
        }
    };
    let permissions = given.access().clone().filter(|access| !access.is_empty());
    let permissions = permissions.unwrap_or_else(|| "rwm".into());
    if !permissions.chars().all(|c| "rwm".contains(c)) {
        return Err(OciError::Config(format!("device access {permissions:?}")));
    }
    Ok(DeviceLine {
        allow: given.allow(),
        rule: DeviceRule {
            access,
            permissions,
        },
    })
}

/// The list as one that v2's filter can have, which only allows. A denial of single devices is refused, for
/// to leave it out would allow them.
pub(super) fn allowed(lines: &[DeviceLine]) -> Result<Vec<DeviceRule>> {
    let mut rules = Vec::new();
    for line in lines {
        if line.allow {
            rules.push(line.rule.clone());
        } else if line.rule.access == DeviceAccess::All {
            rules.clear();
        } else {
            let message = format!(
                "device rule \"deny {}\" cannot be kept on cgroup v2",
                line.rule
            );
            return Err(OciError::Config(message));
        }
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resources(text: &str) -> LinuxResources {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn the_device_list_begins_with_nothing_and_keeps_its_order() {
        let given = resources(
            r#"{"devices":[{"allow":false,"access":"rwm"},{"allow":true,"type":"c","major":10,"minor":229,"access":"rw"},
            {"allow":false,"type":"c","major":1,"minor":3}]}"#,
        );
        let list = devices(&given).unwrap();
        let line = |line: &DeviceLine| format!("{} {}", line.allow, line.rule);
        let head: Vec<String> = list[..4].iter().map(line).collect();
        assert_eq!(
            head,
            [
                "false a",
                "true c 10:229 rw",
                "false c 1:3 rwm",
                "true c *:* m"
            ]
        );
        assert!(!list.iter().any(|one| line(one) == "true c 1:3 rwm"));
        assert!(allowed(&list).is_err());
        assert_eq!(
            allowed(&devices(&resources("{}")).unwrap()).unwrap().len(),
            11
        );
    }

    #[test]
    fn odd_device_rules_are_refused() {
        for text in [
            r#"{"devices":[{"allow":true,"type":"p"}]}"#,
            r#"{"devices":[{"allow":true,"type":"c","major":-2}]}"#,
            r#"{"devices":[{"allow":true,"type":"c","access":"x"}]}"#,
        ] {
            assert!(devices(&resources(text)).is_err(), "{text}");
        }
    }
}
