//! `hanok run`, `hanok image` and `hanok ps`: pods without any API server.

use std::fs;
use std::io::{BufRead as _, BufReader};

use anyhow::{Context, Result, ensure};
use hanok_e2e::cluster::Space;
use hanok_e2e::program::{hanok, hanok_in};
use hanok_e2e::runner::Story;
use hanok_e2e::{image, network, paths, stories};

pub(crate) fn stories() -> Vec<Story> {
    stories![Lab:
        manifest_runs_in_the_foreground_and_leaves_nothing_behind,
        run_ends_with_its_pods_and_says_whether_they_succeeded,
    ]
}

/// Directories of a run, below the lab's, and the machine that it plays on: the peer's, which stories do not use.
struct Stage {
    netns: String,
    args: Vec<String>,
    state: String,
    run_dir: String,
}

impl Stage {
    /// With the test program's image imported.
    fn set(space: &Space<'_>, name: &str) -> Result<Self> {
        let lab = space.lab()?;
        let state = lab.dir().join(name).display().to_string();
        let run_dir = lab.run_dir().join(name).display().to_string();
        let (_, layout) = image::build(&["testapp".to_owned()])?.remove(0);
        let layout = layout.dir().display().to_string();
        let imported = hanok(&["image", "--state-dir", &state, "import", &layout])?;
        ensure!(imported.status.success(), "{imported:?}");
        let netns = lab.netns("peer");
        let flags = [
            format!("--state-dir={state}"),
            format!("--run-dir={run_dir}"),
            format!("--netns-dir={run_dir}/netns"),
            format!("--cgroup-root={netns}/{name}"),
            "--bridge-name=run0".to_owned(),
        ];
        let args = std::iter::once("run".to_owned()).chain(flags).collect();
        Ok(Self {
            netns,
            args,
            state,
            run_dir,
        })
    }

    fn args<'a>(&'a self, file: &'a str) -> Vec<&'a str> {
        self.args.iter().map(String::as_str).chain([file]).collect()
    }

    /// Neither link nor record nor volume of a run.
    fn is_clear(&self) -> Result<()> {
        let links = network::in_namespace(&self.netns, &["ls", "/proc/sys/net/ipv4/conf"])?;
        ensure!(
            links
                .split_whitespace()
                .all(|l| ["all", "default", "eth0", "lo"].contains(&l)),
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

fn manifest_runs_in_the_foreground_and_leaves_nothing_behind(space: &Space<'_>) -> Result<()> {
    let stage = Stage::set(space, "run-hello")?;
    let hello = paths::workspace()
        .join("deploy/examples/hello.yaml")
        .display()
        .to_string();
    let mut run = hanok_in(&stage.netns, &stage.args(&hello))?;
    let mut lines = BufReader::new(run.stdout.take().context("stdout")?).lines();
    let ready = lines.find(|l| l.as_ref().map_or(true, |l| l.contains("hello is ready at")));
    let ready = ready.context("it ended before it was ready")??;
    let address = ready
        .split_whitespace()
        .find(|w| w.starts_with("10."))
        .context(ready.clone())?;

    let url = format!("http://{address}:8080/");
    let testapp = paths::testapp()?.display().to_string();
    let page = network::in_namespace(&stage.netns, &[&testapp, "get", &url])?;
    ensure!(page == "Hello from a hanok pod\n", "{page:?}");
    let listed = hanok(&["ps", "--run-dir", &stage.run_dir])?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    ensure!(
        listed.contains("hello") && listed.contains("web"),
        "{listed}"
    );

    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(i32::try_from(run.id())?),
        nix::sys::signal::Signal::SIGINT,
    )?;
    let rest: Vec<String> = lines.collect::<Result<_, _>>()?;
    ensure!(
        rest.iter().any(|l| l.contains("sandbox.cni")),
        "no timeline in {rest:#?}"
    );
    let status = run.wait()?;
    ensure!(status.code().is_some(), "it died: {status}");
    stage.is_clear()
}

fn run_ends_with_its_pods_and_says_whether_they_succeeded(space: &Space<'_>) -> Result<()> {
    let stage = Stage::set(space, "run-ends")?;
    for (code, success) in [("0", true), ("3", false)] {
        let file = format!("{}/pod.yaml", stage.state);
        fs::write(
            &file,
            format!(
                "{{ apiVersion: v1, kind: Pod, metadata: {{ name: ends }}, spec: {{ restartPolicy: Never, containers: \
                 [ {{ name: c, image: \"hanok.local/testapp:1\", imagePullPolicy: Never, args: [crash, \"{code}\"] }} ] }} }}"
            ),
        )?;
        let output = hanok_in(&stage.netns, &stage.args(&file))?.wait_with_output()?;
        ensure!(
            output.status.success() == success,
            "exit code {code} gave {output:?}"
        );
        stage.is_clear()?;
    }
    Ok(())
}
