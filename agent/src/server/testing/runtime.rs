//! A runtime made of channels: one pod, one sandbox, containers and logs as a test wants them.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use hanok_runtime::api::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::{broadcast, mpsc, watch};

/// The pod's UID everywhere here.
pub(super) const UID: &str = "uid-1";

/// Bytes between an exec and its reader; small, so that back-pressure is felt soon.
const PIPE: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct FakeRuntime {
    pub(super) containers: Mutex<Vec<Container>>,
    doorbell: broadcast::Sender<PodUid>,
    /// One clone in every live process.
    live: Arc<()>,
}

impl FakeRuntime {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            containers: Mutex::default(),
            doorbell: broadcast::channel(16).0,
            live: Arc::default(),
        })
    }

    /// Adds a container with this log.
    pub(super) fn add(&self, id: &str, name: &str, state: ContainerState, log: &Path) {
        self.containers.lock().unwrap().push(Container {
            id: ContainerId(id.to_owned()),
            sandbox: SandboxId("sandbox".to_owned()),
            pod: PodUid(UID.to_owned()),
            config: ContainerConfig {
                name: name.to_owned(),
                ..ContainerConfig::default()
            },
            state,
            created_at: SystemTime::UNIX_EPOCH,
            started_at: None,
            finished_at: None,
            exit_code: 0,
            reason: String::new(),
            message: String::new(),
            image_ref: String::new(),
            log_path: log.to_owned(),
            pid: 0,
            identity: None,
        });
    }

    /// Ends a container and rings.
    pub(super) fn end(&self, id: &str) {
        for container in self.containers.lock().unwrap().iter_mut() {
            if container.id.as_str() == id {
                container.state = ContainerState::Exited;
            }
        }
        let _ = self.doorbell.send(PodUid(UID.to_owned()));
    }

    /// Processes whose session somebody still holds.
    pub(super) fn live(&self) -> usize {
        Arc::strong_count(&self.live) - 1
    }

    /// Followers of the doorbell.
    pub(super) fn listeners(&self) -> usize {
        self.doorbell.receiver_count()
    }
}

fn unused<T>() -> Result<T> {
    Err(Error::Internal("not part of this fake".to_owned()))
}

#[async_trait]
impl RuntimeService for FakeRuntime {
    async fn run_pod_sandbox(&self, _: PodSandboxConfig) -> Result<PodSandbox> {
        unused()
    }
    async fn stop_pod_sandbox(&self, _: &SandboxId) -> Result<()> {
        unused()
    }
    async fn remove_pod_sandbox(&self, _: &SandboxId) -> Result<()> {
        unused()
    }
    async fn list_pod_sandboxes(&self) -> Result<Vec<PodSandbox>> {
        let config = PodSandboxConfig {
            name: "web".to_owned(),
            namespace: "default".to_owned(),
            uid: PodUid(UID.to_owned()),
            attempt: 0,
            hostname: String::new(),
            log_directory: "/".into(),
            runtime_handler: String::new(),
            network: NamespaceMode::Pod,
            pid: NamespaceMode::Container,
            ipc: NamespaceMode::Pod,
            user_namespace: None,
            sysctls: Default::default(),
            cgroup_parent: String::new(),
            port_mappings: Vec::new(),
            labels: Default::default(),
            annotations: Default::default(),
        };
        Ok(vec![PodSandbox {
            id: SandboxId("sandbox".to_owned()),
            config,
            state: SandboxState::Ready,
            created_at: SystemTime::UNIX_EPOCH,
            ips: Vec::new(),
            pid: 0,
        }])
    }
    async fn create_container(&self, _: &SandboxId, _: ContainerConfig) -> Result<ContainerId> {
        unused()
    }
    async fn start_container(&self, _: &ContainerId) -> Result<()> {
        unused()
    }
    async fn stop_container(&self, _: &ContainerId, _: Duration) -> Result<()> {
        unused()
    }
    async fn remove_container(&self, _: &ContainerId) -> Result<()> {
        unused()
    }
    async fn list_containers(&self) -> Result<Vec<Container>> {
        Ok(self.containers.lock().unwrap().clone())
    }
    async fn exec(&self, id: &ContainerId, request: ExecRequest) -> Result<ExecSession> {
        if request.command == ["missing"] {
            return Err(Error::Start {
                id: id.clone(),
                code: 127,
                message: "exec: \"missing\": executable file not found in $PATH".to_owned(),
            });
        }
        if request.command == ["broken"] {
            return unused();
        }
        Ok(start(request, self.live.clone()))
    }
    async fn attach(&self, _: &ContainerId, stdin: bool) -> Result<ExecSession> {
        let command = vec!["cat".to_owned()];
        Ok(start(
            ExecRequest {
                command,
                tty: false,
                stdin,
                ..ExecRequest::default()
            },
            self.live.clone(),
        ))
    }
    /// Port 7 echoes; port 9 greets and resets nothing; every other one is closed.
    async fn connect(&self, _: &SandboxId, port: u16) -> Result<Box<dyn Connection>> {
        if port != 7 {
            return Err(Error::Internal(format!(
                "connect to 127.0.0.1:{port}: connection refused"
            )));
        }
        let (ours, theirs) = tokio::io::duplex(PIPE);
        tokio::spawn(async move {
            let (mut read, mut write) = tokio::io::split(theirs);
            let _ = tokio::io::copy(&mut read, &mut write).await;
            let _ = write.shutdown().await;
        });
        Ok(Box::new(ours))
    }
    async fn update_cgroup(&self, _: &str, _: &Resources) -> Result<()> {
        unused()
    }
    async fn remove_cgroup(&self, _: &str) -> Result<()> {
        unused()
    }
    fn doorbell(&self) -> broadcast::Receiver<PodUid> {
        self.doorbell.subscribe()
    }
    fn handlers(&self) -> Vec<String> {
        Vec::new()
    }
    async fn network_ready(&self) -> std::result::Result<(), String> {
        Ok(())
    }
}

/// The inside of a process.
struct Inside {
    stdin: Option<DuplexStream>,
    stdout: DuplexStream,
    stderr: Option<DuplexStream>,
    sizes: mpsc::Receiver<(u16, u16)>,
}

fn start(request: ExecRequest, live: Arc<()>) -> ExecSession {
    let (stdout, inner_stdout) = tokio::io::duplex(PIPE);
    let errors = (!request.tty).then(|| tokio::io::duplex(PIPE));
    let input = request.stdin.then(|| tokio::io::duplex(PIPE));
    let (stdin, inner_stdin) = input.unzip();
    let (stderr, inner_stderr) = errors.unzip();
    let (resizes, sizes) = mpsc::channel(4);
    let (code, ended) = watch::channel(None);
    let inside = Inside {
        stdin: inner_stdin,
        stdout: inner_stdout,
        stderr: inner_stderr,
        sizes,
    };
    tokio::spawn(async move {
        let result = run(request.command, inside).await;
        code.send_replace(Some(result.unwrap_or(141)));
    });
    ExecSession {
        stdin: stdin.map(|stdin| Box::new(stdin) as _),
        stdout: Box::new(stdout),
        stderr: stderr.map(|stderr| Box::new(stderr) as _),
        process: Box::new(FakeProcess {
            ended,
            resizes,
            _live: live,
        }),
    }
}

async fn run(command: Vec<String>, mut inside: Inside) -> std::io::Result<i32> {
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["echo", text] => inside.stdout.write_all(text.as_bytes()).await.map(|()| 0),
        ["complain", text] => {
            if let Some(stderr) = &mut inside.stderr {
                stderr.write_all(text.as_bytes()).await?;
            }
            Ok(0)
        }
        ["cat"] => {
            if let Some(stdin) = &mut inside.stdin {
                tokio::io::copy(stdin, &mut inside.stdout).await?;
            }
            Ok(0)
        }
        ["exit", code] => Ok(code.parse().unwrap()),
        ["size"] => {
            let (rows, columns) = inside.sizes.recv().await.unwrap();
            inside
                .stdout
                .write_all(format!("{rows} {columns}").as_bytes())
                .await
                .map(|()| 0)
        }
        ["flood", length] => {
            let mut left: usize = length.parse().unwrap();
            let piece = vec![b'a'; 64 << 10];
            while left > 0 {
                let length = left.min(piece.len());
                inside.stdout.write_all(&piece[..length]).await?;
                left -= length;
            }
            Ok(0)
        }
        ["hang"] => {
            let mut nothing = Vec::new();
            if let Some(stdin) = &mut inside.stdin {
                stdin.read_to_end(&mut nothing).await?;
            }
            std::future::pending().await
        }
        _ => Ok(2),
    }
}

struct FakeProcess {
    ended: watch::Receiver<Option<i32>>,
    resizes: mpsc::Sender<(u16, u16)>,
    _live: Arc<()>,
}

#[async_trait]
impl ExecProcess for FakeProcess {
    async fn wait(&self) -> Result<i32> {
        let mut ended = self.ended.clone();
        let code = ended.wait_for(Option::is_some).await.map(|code| *code);
        Ok(code.ok().flatten().unwrap_or(137))
    }
    async fn resize(&self, rows: u16, cols: u16) -> Result<()> {
        let _ = self.resizes.send((rows, cols)).await;
        Ok(())
    }
    async fn kill(&self) -> Result<()> {
        Ok(())
    }
}
