//! Counters of network interfaces: the text of `/proc/PID/net/dev` (proc_pid_net(5)).

use crate::api::{InterfaceStats, TrafficStats};

/// Every interface but the loopback, in the kernel's order. Lines of another shape are left out.
pub fn parse(text: &str) -> Vec<InterfaceStats> {
    let interfaces = text.lines().filter_map(interface);
    interfaces
        .filter(|interface| interface.name != "lo")
        .collect()
}

/// `name: bytes packets errs drop fifo frame compressed multicast`, then the same eight for what was sent.
fn interface(line: &str) -> Option<InterfaceStats> {
    let (name, rest) = line.split_once(':')?;
    let numbers: Option<Vec<u64>> = rest
        .split_whitespace()
        .map(|one| one.parse().ok())
        .collect();
    let traffic = |of: &[u64]| match of {
        [bytes, packets, errors, dropped, ..] => Some(TrafficStats {
            bytes: *bytes,
            packets: *packets,
            errors: *errors,
            dropped: *dropped,
        }),
        _ => None,
    };
    let numbers = numbers?;
    let (received, sent) = numbers.split_at_checked(8)?;
    Some(InterfaceStats {
        name: name.trim().to_owned(),
        rx: traffic(received)?,
        tx: traffic(sent)?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn counters_are_read_and_the_loopback_is_left_out() {
        let text = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
  eth0:    1500      10    1    2    0     0          0         0      700       7    3    4    0     0       0          0
";
        let found = parse(text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, "eth0");
        let rx = TrafficStats {
            bytes: 1500,
            packets: 10,
            errors: 1,
            dropped: 2,
        };
        let tx = TrafficStats {
            bytes: 700,
            packets: 7,
            errors: 3,
            dropped: 4,
        };
        assert_eq!((found[0].rx, found[0].tx), (rx, tx));
    }

    proptest! {
        #[test]
        fn no_text_is_a_panic(text in "\\PC{0,200}") {
            let _ = parse(&text);
        }
    }
}
