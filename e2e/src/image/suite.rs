//! The images that Kubernetes' own test suite runs, as far as the node's tests need them: made from Debian's programs
//! and from the programs of the suite's module, under the names and tags that the suite asks for.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::catalog::{BUSYBOX, Recipe, busybox_layer, skeleton};
use super::rootfs::Rootfs;
use crate::paths;
use crate::pki;
use crate::process::run;

/// Repository below which the suite looks for images of its own.
pub(crate) const REPOSITORY: &str = "e2e-test-images";

/// Debian's statically linked bash (package bash-static).
const BASH: &str = "/bin/bash-static";

/// What the image's web server tells.
const NGINX: &str = "daemon off;\nuser nobody nogroup;\nerror_log /dev/stderr;\npid /tmp/nginx.pid;\nevents {}\nhttp {\n\
    access_log /dev/stdout;\n\
    client_body_temp_path /tmp/body;\nproxy_temp_path /tmp/proxy;\nfastcgi_temp_path /tmp/fastcgi;\n\
    uwsgi_temp_path /tmp/uwsgi;\nscgi_temp_path /tmp/scgi;\n\
    server { listen 80; root /usr/share/nginx/html; }\n}\n";

/// What goes into the image of this name; none when there is no such image.
///
/// # Errors
/// When a part of it is missing.
pub(super) fn recipe(name: &str) -> Result<Option<Recipe>> {
    let Some(short) = name
        .strip_prefix(REPOSITORY)
        .and_then(|n| n.strip_prefix('/'))
    else {
        return Ok(None);
    };
    let recipe = |layers, config: Value| Recipe {
        name: name.to_owned(),
        tags: Vec::new(),
        layers,
        config,
    };
    let recipe = match short {
        "agnhost" => recipe(agnhost()?, agnhost_config("pause")),
        "busybox" => recipe(shell()?, json!({ "Cmd": ["sh"], "Env": [PATH] })),
        "nonroot" => recipe(shell()?, json!({ "User": "1234", "Env": [PATH] })),
        "ipc-utils" => recipe(ipc_utils()?, json!({ "Cmd": ["sh"], "Env": [PATH] })),
        "glibc-dns-testing" => recipe(glibc()?, json!({ "Cmd": ["sh"], "Env": [PATH] })),
        "nonewprivs" => recipe(nonewprivs()?, json!({ "Cmd": ["nnp"], "Env": [PATH] })),
        "nginx" => recipe(nginx()?, json!({ "Cmd": ["nginx"], "Env": [PATH] })),
        "kitten" | "nautilus" => recipe(pet(short)?, agnhost_config("test-webserver")),
        _ => return Ok(None),
    };
    Ok(Some(recipe))
}

/// Name and tag of those references that can be made, from the suite's own list, a line each.
pub(super) fn wanted<'a>(address: &str, references: &'a str) -> Vec<(&'a str, &'a str)> {
    let of_registry = references
        .lines()
        .filter_map(|line| line.trim().strip_prefix(address)?.strip_prefix('/'));
    of_registry
        .filter_map(|reference| reference.split_once(':'))
        .filter(|(name, _)| is_made(name))
        .collect()
}

fn is_made(name: &str) -> bool {
    const MADE: [&str; 9] = [
        "agnhost",
        "busybox",
        "nonroot",
        "ipc-utils",
        "glibc-dns-testing",
        "nonewprivs",
        "nginx",
        "kitten",
        "nautilus",
    ];
    match name.split_once('/') {
        Some((REPOSITORY, short)) => MADE.contains(&short),
        _ => name == "pause",
    }
}

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

fn agnhost_config(command: &str) -> Value {
    json!({ "Entrypoint": ["/agnhost"], "Cmd": [command], "Env": [PATH] })
}

/// busybox with every applet in /bin, and a shell that hands on variables whose names are no shell names: several
/// specs print such by `sh -c env`, and busybox's own shell drops them.
fn shell() -> Result<Vec<Rootfs>> {
    ensure!(
        Path::new(BASH).exists(),
        "{BASH} is missing (package bash-static)"
    );
    let mut shell = Rootfs::new().directory("bin", 0o755);
    for applet in run(BUSYBOX, &["--list"])?
        .lines()
        .filter(|applet| !["busybox", "sh", "bash"].contains(applet))
    {
        shell = shell.symlink(&format!("bin/{applet}"), "/bin/busybox");
    }
    let shell = shell
        .program("bin/bash", Path::new(BASH))
        .program("bin/sh", &paths::testapp()?);
    Ok(vec![busybox_layer()?, shell])
}

/// The suite's own program with what its specs run beside it.
fn agnhost() -> Result<Vec<Rootfs>> {
    let tools = Rootfs::new()
        .directory("usr", 0o755)
        .directory("usr/bin", 0o755)
        .linked_program("usr/bin/curl", Path::new("/usr/bin/curl"))?;
    let (certificate, key) = server_certificate()?;
    let program = Rootfs::new()
        .text(
            "etc/passwd",
            "root:x:0:0:root:/root:/bin/sh\nuser-defined-in-image:x:1000:1000::/:/bin/sh\n\
             nobody:x:65534:65534:nobody:/:/bin/false\n",
        )
        .text(
            "etc/group",
            "root:x:0:\nuser-defined-in-image:x:1000:\nnogroup:x:65534:\n\
             group-defined-in-image:x:50000:user-defined-in-image\n",
        )
        .directory("uploads", 0o755)
        .text("localhost.crt", &certificate)
        .text("localhost.key", &key)
        .program("agnhost", &paths::go_program("agnhost")?)
        .symlink("agnhost-2", "agnhost");
    let mut layers = shell()?;
    layers.extend([tools, program]);
    Ok(layers)
}

/// Two images that differ in what they serve. A spec about image volumes knows the first by its file and by the
/// name of the distribution that it expects under it.
fn pet(name: &str) -> Result<Vec<Rootfs>> {
    let page = Rootfs::new()
        .text("data.json", &format!("{{\"image\": \"{name}.jpg\"}}\n"))
        .text(
            "etc/os-release",
            "NAME=\"in place of Alpine Linux\"\nID=hanok-suite\n",
        );
    let mut layers = agnhost()?;
    layers.push(page);
    Ok(layers)
}

fn ipc_utils() -> Result<Vec<Rootfs>> {
    let mut tools = Rootfs::new()
        .directory("usr", 0o755)
        .directory("usr/bin", 0o755);
    for name in ["ipcs", "ipcmk"] {
        let path = format!("usr/bin/{name}");
        tools = tools.linked_program(&path, &Path::new("/").join(&path))?;
    }
    let mut layers = shell()?;
    layers.push(tools);
    Ok(layers)
}

/// What asks for names by the C library of most distributions.
fn glibc() -> Result<Vec<Rootfs>> {
    let tools = Rootfs::new()
        .linked_program("bin/hostname", Path::new("/bin/hostname"))?
        .text("etc/nsswitch.conf", "hosts: files dns\n");
    let mut layers = shell()?;
    layers.push(tools);
    Ok(layers)
}

/// A program that tells its effective user, owned by root with the set-user-id bit.
fn nonewprivs() -> Result<Vec<Rootfs>> {
    let program = Rootfs::new()
        .directory("usr/local", 0o755)
        .directory("usr/local/bin", 0o755)
        .set_user_id_program("usr/local/bin/nnp", &paths::go_program("nonewprivs")?);
    let mut layers = shell()?;
    layers.push(program);
    Ok(layers)
}

fn nginx() -> Result<Vec<Rootfs>> {
    let server = skeleton()
        .directory("usr", 0o755)
        .directory("usr/sbin", 0o755)
        .linked_program("usr/sbin/nginx", &paths::nginx()?)?
        .directory("etc/nginx", 0o755)
        .text("etc/nginx/nginx.conf", NGINX)
        .directory("usr/share/nginx/html", 0o755)
        .text(
            "usr/share/nginx/html/index.html",
            "<title>Welcome to nginx!</title>\n",
        )
        .directory("var/log/nginx", 0o755);
    Ok(vec![busybox_layer()?, server])
}

/// The certificate and the key that the program's HTTPS servers are started with: made once, so that the image stays
/// the same from lab to lab.
fn server_certificate() -> Result<(String, String)> {
    let dir: PathBuf = super::directory().join("suite-pki");
    if !dir.join("localhost.key").exists() {
        fs::create_dir_all(&dir)?;
        pki::Authority::create(&dir, "authority")?.issue(
            "localhost",
            "localhost",
            "",
            &["localhost", "127.0.0.1"],
        )?;
    }
    let text = |file: &str| {
        let path = dir.join(file);
        fs::read_to_string(&path).with_context(|| path.display().to_string())
    };
    Ok((text("localhost.crt")?, text("localhost.key")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_images_of_the_registry_that_can_be_made_are_wanted() {
        let list = "r:5000/e2e-test-images/agnhost:2.55\nr:5000/pause:3.10.2\nr:5000/e2e-test-images/perl:5.26\n\
                    other/e2e-test-images/agnhost:2.6\n";
        assert_eq!(
            wanted("r:5000", list),
            [("e2e-test-images/agnhost", "2.55"), ("pause", "3.10.2")]
        );
    }
}
