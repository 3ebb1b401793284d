//! What attaching a pod costs: the built-in network against the executed Debian plugins, in turns.
//!
//! `cargo bench -p hanok-cni [-- ROUNDS]` as root, with containernetworking-plugins installed. Prints
//! name, value, unit, what it is measured against, and the ratio; medians of all rounds.

#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::path::Path;
use std::time::{Duration, Instant};

use hanok_cni::{Attachment, BuiltIn, Config, Options, Runner, Source, netns};
use nix::sched::{CloneFlags, unshare};

/// Rounds when nobody says otherwise: some seconds of work.
const ROUNDS: usize = 60;

/// One side of the comparison, and what its steps took in every round.
struct Side {
    runner: Runner,
    add: Vec<Duration>,
    del: Vec<Duration>,
}

fn main() {
    // cargo passes --bench.
    let rounds = std::env::args()
        .skip(1)
        .find_map(|a| a.parse().ok())
        .unwrap_or(ROUNDS);
    // Every link of this bench lives in a namespace that goes with it.
    unshare(CloneFlags::CLONE_NEWNET).expect("needs root");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime starts");
    runtime.block_on(run(rounds));
}

async fn run(rounds: usize) {
    let dir = tempfile::Builder::new()
        .prefix("hanok-cni-bench-")
        .tempdir_in("/run");
    let dir = dir.expect("a directory on tmpfs");
    let mut ours = Side::new(ours(dir.path()));
    let mut plain = Side::new(Runner::new(Options {
        source: Source::Fixed(network("bench-plain", "br-plain", "10.66.2.0/24", false)),
        ..options(dir.path(), "plain")
    }));
    let mut theirs = Side::new(theirs(dir.path()));
    let mut pins = Vec::new();
    for round in 0..rounds {
        ours.round(dir.path(), &format!("ours{round}")).await;
        plain.round(dir.path(), &format!("plain{round}")).await;
        theirs.round(dir.path(), &format!("theirs{round}")).await;
        let path = netns::new_path(dir.path()).expect("a path");
        let begin = Instant::now();
        netns::create(&path).await.expect("a namespace");
        pins.push(begin.elapsed());
        netns::remove(&path).await.expect("it goes");
    }
    let against = "Debian bridge+host-local+loopback, executed";
    report("cni add", &mut ours.add, against, &mut theirs.add);
    report("cni del", &mut ours.del, against, &mut theirs.del);
    report(
        "cni add without masquerade",
        &mut plain.add,
        against,
        &mut theirs.add,
    );
    let mut both = ours.sums();
    report("cni add+del", &mut both, against, &mut theirs.sums());
    println!(
        "{:28} {:8.3} ms",
        "netns create and pin",
        millis(median(&mut pins))
    );
}

impl Side {
    fn new(runner: Runner) -> Self {
        Self {
            runner,
            add: Vec::new(),
            del: Vec::new(),
        }
    }

    async fn round(&mut self, dir: &Path, id: &str) {
        let path = netns::new_path(&dir.join("netns")).expect("a path");
        netns::create(&path).await.expect("a namespace");
        let attachment = Attachment::new(id, path);
        let begin = Instant::now();
        self.runner
            .add(&attachment)
            .await
            .unwrap_or_else(|e| panic!("{}", e.chain()));
        self.add.push(begin.elapsed());
        let begin = Instant::now();
        self.runner
            .del(&attachment)
            .await
            .unwrap_or_else(|e| panic!("{}", e.chain()));
        self.del.push(begin.elapsed());
        netns::remove(&attachment.netns).await.expect("it goes");
    }

    fn sums(&self) -> Vec<Duration> {
        self.add
            .iter()
            .zip(&self.del)
            .map(|(a, d)| *a + *d)
            .collect()
    }
}

fn options(dir: &Path, name: &str) -> Options {
    Options {
        cache_dir: dir.join(name).join("results"),
        ipam_dir: dir.join(name).join("ipam"),
        bin_dirs: vec!["/usr/lib/cni".into()],
        ..Options::default()
    }
}

fn network(name: &str, bridge: &str, cidr: &str, masquerade: bool) -> Config {
    let cidrs = vec![cidr.parse().expect("a CIDR")];
    let built_in = BuiltIn {
        name: name.into(),
        masquerade,
        ..BuiltIn::new(bridge, cidrs)
    };
    Config::built_in(&built_in).expect("a network")
}

fn ours(dir: &Path) -> Runner {
    let network = network("bench-ours", "br-ours", "10.66.0.0/24", true);
    Runner::new(Options {
        source: Source::Fixed(network),
        ..options(dir, "ours")
    })
}

fn theirs(dir: &Path) -> Runner {
    let text = format!(
        r#"{{"cniVersion":"1.0.0","name":"bench-theirs","plugins":[{{"type":"loopback"}},
        {{"type":"bridge","bridge":"br-theirs","isDefaultGateway":true,"hairpinMode":true,
        "ipam":{{"type":"host-local","dataDir":"{}","ranges":[[{{"subnet":"10.66.1.0/24"}}]]}}}}]}}"#,
        dir.join("theirs/data").display()
    );
    let net = dir.join("net.d");
    std::fs::create_dir_all(&net).expect("a directory");
    std::fs::write(net.join("10-bench.conflist"), text).expect("a file");
    let source = Source::Dir(net);
    Runner::new(Options {
        source,
        prefer_built_in: false,
        ..options(dir, "theirs")
    })
}

fn report(name: &str, ours: &mut [Duration], against: &str, theirs: &mut [Duration]) {
    let (a, b) = (millis(median(ours)), millis(median(theirs)));
    println!(
        "{name:28} {a:8.3} ms   against {b:8.3} ms ({against})   ratio {:.1}",
        b / a
    );
}

fn median(values: &mut [Duration]) -> Duration {
    values.sort();
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn millis(value: Duration) -> f64 {
    value.as_secs_f64() * 1000.0
}
