//! A machine without a cluster: the lab's peer, which stories do not use otherwise, with directories of a story's own.

use std::fs;

use anyhow::{Result, ensure};
use hanok_e2e::cluster::Space;
use hanok_e2e::program::hanok;
use hanok_e2e::{image, network};

/// The machine, and where hanok has its things on it.
pub(crate) struct Stage {
    pub(crate) name: String,
    pub(crate) netns: String,
    pub(crate) state: String,
    pub(crate) run_dir: String,
}

impl Stage {
    /// With the test program's image imported.
    pub(crate) fn set(space: &Space<'_>, name: &str) -> Result<Self> {
        let lab = space.lab()?;
        let state = lab.dir().join(name).display().to_string();
        let run_dir = lab.run_dir().join(name).display().to_string();
        let (_, layout) = image::build(&["testapp".to_owned()])?.remove(0);
        let layout = layout.dir().display().to_string();
        let imported = hanok(&["image", "--state-dir", &state, "import", &layout])?;
        ensure!(imported.status.success(), "{imported:?}");
        Ok(Self {
            name: name.to_owned(),
            netns: lab.netns("peer"),
            state,
            run_dir,
        })
    }

    /// What every command that runs pods is told.
    pub(crate) fn flags(&self, bridge: &str) -> Vec<String> {
        let Self {
            name,
            netns,
            state,
            run_dir,
        } = self;
        vec![
            format!("--state-dir={state}"),
            format!("--run-dir={run_dir}"),
            format!("--netns-dir={run_dir}/netns"),
            format!("--cgroup-root={netns}/{name}"),
            format!("--bridge-name={bridge}"),
        ]
    }

    /// Neither link nor record nor volume of a pod; these links may stay.
    pub(crate) fn is_clear(&self, stay: &[&str]) -> Result<()> {
        let links = network::in_namespace(&self.netns, &["ls", "/proc/sys/net/ipv4/conf"])?;
        let known = ["all", "default", "eth0", "lo"];
        ensure!(
            links
                .split_whitespace()
                .all(|link| known.contains(&link) || stay.contains(&link)),
            "{links}"
        );
        for dir in [
            format!("{}/sandboxes", self.run_dir),
            format!("{}/pods", self.state),
        ] {
            let left: Vec<_> = fs::read_dir(&dir).into_iter().flatten().flatten().collect();
            ensure!(left.is_empty(), "left in {dir}: {left:?}");
        }
        Ok(())
    }
}
