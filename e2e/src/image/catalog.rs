//! The images of the stories and of the demo, and what goes into each.

use std::path::Path;

use anyhow::{Result, bail, ensure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::layout::{Layout, hex};
use super::push::Registry;
use super::rootfs::Rootfs;
use super::suite;
use crate::paths;
use crate::process::run;

/// Debian's statically linked busybox (package busybox-static).
pub(super) const BUSYBOX: &str = "/bin/busybox";

/// Changes when the same recipe is written as another layout.
const FORMAT: &str = "2";

/// What an image is made of.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// Its repository, without the registry.
    pub name: String,
    /// Its tags.
    pub tags: Vec<String>,
    /// Its layers, the lowest first.
    pub layers: Vec<Rootfs>,
    /// The `config` of its configuration: Entrypoint, Cmd, Env, User ...
    pub config: Value,
}

impl Recipe {
    /// Names the image's content: the same key, the same image.
    ///
    /// # Errors
    /// When something that goes into it is missing.
    pub fn key(&self) -> Result<String> {
        let mut hash = Sha256::new();
        hash.update(FORMAT);
        hash.update(self.config.to_string());
        hash.update(self.tags.join(","));
        for layer in &self.layers {
            hash.update("layer\n");
            layer.hash_into(&mut hash)?;
        }
        Ok(hex(&hash.finalize()[..8]))
    }

    /// Pushes its layout under every tag to the registry at `address` (host:port).
    ///
    /// # Errors
    /// When the registry refuses something.
    pub fn push(&self, layout: &Layout, address: &str) -> Result<()> {
        let registry = Registry::new(address);
        self.tags
            .iter()
            .try_for_each(|tag| registry.push(layout, &self.name, tag))
    }
}

/// Every image of the stories.
pub(super) const NAMES: [&str; 6] = ["busybox", "testapp", "nonroot", "named", "pause", "agnhost"];

/// What goes into an image.
///
/// # Errors
/// When a part of it is missing, or there is no such image.
pub(super) fn recipe(name: &str) -> Result<Recipe> {
    match name {
        "busybox" => busybox(),
        "testapp" => testapp(),
        "nonroot" => nonroot(),
        "named" => named(),
        "pause" => pause(),
        "agnhost" => agnhost(),
        _ => match suite::recipe(name)? {
            Some(recipe) => Ok(recipe),
            None => bail!("there is no such image; there are {NAMES:?}"),
        },
    }
}

/// The shell and its tools.
///
/// # Errors
/// When busybox is missing.
fn busybox() -> Result<Recipe> {
    Ok(Recipe {
        name: "busybox".into(),
        tags: vec!["1".into(), "latest".into()],
        layers: vec![busybox_layer()?],
        config: json!({ "Cmd": ["sh"], "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"] }),
    })
}

/// The static test program alone, with its subcommands.
///
/// # Errors
/// When it is not built.
fn testapp() -> Result<Recipe> {
    Ok(Recipe {
        name: "testapp".into(),
        tags: vec!["1".into()],
        layers: vec![skeleton().program("testapp", &paths::testapp()?)],
        config: json!({ "Entrypoint": ["/testapp"], "Cmd": ["serve", "8080"] }),
    })
}

/// An image that names its user, working directory, environment and stop signal; three layers, the last of which
/// removes and replaces files of the first.
fn nonroot() -> Result<Recipe> {
    let whiteouts = Rootfs::new()
        .text("etc/.wh.motd", "")
        .text("opt/old/.wh..wh..opq", "");
    Ok(Recipe {
        name: "nonroot".into(),
        tags: vec!["1".into()],
        layers: vec![
            busybox_layer()?
                .text("etc/motd", "gone\n")
                .text("opt/old/gone", "gone\n"),
            Rootfs::new()
                .program("testapp", &paths::testapp()?)
                .text("opt/layer", "two\n"),
            whiteouts
                .text("opt/layer", "three\n")
                .directory("work", 0o1777),
        ],
        config: json!({
            "User": "1234:2345",
            "WorkingDir": "/work",
            "Env": ["PATH=/bin:/usr/bin", "FROM_IMAGE=yes"],
            "Entrypoint": ["/testapp"],
            "Cmd": ["catch"],
            "StopSignal": "SIGUSR1",
        }),
    })
}

/// An image whose user has a name instead of a number.
fn named() -> Result<Recipe> {
    Ok(Recipe {
        name: "named".into(),
        config: json!({ "Cmd": ["sh"], "User": "nobody" }),
        tags: vec!["1".into()],
        ..busybox()?
    })
}

/// What holds a pod's namespaces on the peer node, and what waits in many specs of the conformance suite.
fn pause() -> Result<Recipe> {
    Ok(Recipe {
        name: "pause".into(),
        tags: vec!["1".into()],
        layers: vec![Rootfs::new().program("testapp", &paths::testapp()?)],
        config: json!({ "Entrypoint": ["/testapp", "sleep"] }),
    })
}

/// Kubernetes' own test program, with a shell beside it.
fn agnhost() -> Result<Recipe> {
    Ok(Recipe {
        name: "agnhost".into(),
        tags: vec!["2".into()],
        layers: vec![
            busybox_layer()?,
            Rootfs::new().program("agnhost", &paths::go_program("agnhost")?),
        ],
        config: json!({
            "Entrypoint": ["/agnhost"],
            "Cmd": ["pause"],
            "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
        }),
    })
}

pub(super) fn skeleton() -> Rootfs {
    Rootfs::new()
        .directory("etc", 0o755)
        .text(
            "etc/passwd",
            "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
        )
        .text("etc/group", "root:x:0:\nnogroup:x:65534:\n")
        .directory("root", 0o700)
        .directory("tmp", 0o1777)
}

pub(super) fn busybox_layer() -> Result<Rootfs> {
    ensure!(
        Path::new(BUSYBOX).exists(),
        "{BUSYBOX} is missing (package busybox-static)"
    );
    let mut layer = skeleton()
        .directory("bin", 0o755)
        .program("bin/busybox", Path::new(BUSYBOX))
        .directory("sbin", 0o755)
        .directory("usr/bin", 0o755)
        .directory("usr/sbin", 0o755);
    for link in run(BUSYBOX, &["--list-full"])?
        .lines()
        .filter(|l| *l != "bin/busybox")
    {
        layer = layer.symlink(link, "/bin/busybox");
    }
    Ok(layer)
}
