//! Lifecycle hooks: exec, httpGet, sleep.

use std::time::Duration;

use hanok_runtime::api::{self, ContainerId, RuntimeService};
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, LifecycleHandler, Pod};

use super::command::{self, Ended, Look};
use super::http::{Get, NO_TLS};
use super::spec;
use hanok_runtime::service::chain;

/// As the API's documentation has it.
const USER_AGENT: &str = "kube-lifecycle/1.37";

/// Why a hook failed; Display is what the user reads.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// The command could not be run.
    #[error("cannot run the hook's command")]
    Exec(#[from] api::Error),
    /// The command ended badly.
    #[error("command '{command}' exited with {code}: {output}")]
    Exit {
        /// Its words.
        command: String,
        /// Its exit code.
        code: i32,
        /// The start of its output.
        output: String,
    },
    /// The request was not answered.
    #[error("{0}")]
    Http(String),
    /// The handler is of a kind that hooks do not have, or of none.
    #[error("invalid handler: it has none of exec, httpGet and sleep")]
    Unsupported,
}

/// A hook of one container.
#[derive(Debug, Clone, Copy)]
pub struct Hook<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The container.
    pub container: &'a Container,
    /// The run of it.
    pub id: &'a ContainerId,
    /// The pod's address.
    pub pod_ip: &'a str,
    /// What to do.
    pub handler: &'a LifecycleHandler,
}

/// What a hook that has succeeded has to tell: the text of a warning, if any.
pub type Told = Option<String>;

impl Hook<'_> {
    /// Runs the hook to its end. Dropping the future abandons it.
    pub async fn run(&self, runtime: &dyn RuntimeService) -> Result<Told, HookError> {
        if let Some(exec) = &self.handler.exec {
            let command = exec.command.clone().unwrap_or_default();
            let text = command.join(" ");
            return match command::run(runtime, command, self.id, None, Look::AtOnce).await? {
                Ended::Exit { code: 0, .. } | Ended::TimedOut => Ok(None),
                Ended::Exit { code, output } => Err(HookError::Exit {
                    command: text,
                    code,
                    output,
                }),
            };
        }
        if let Some(action) = &self.handler.http_get {
            return self.request(action).await.map_err(HookError::Http);
        }
        if let Some(sleep) = &self.handler.sleep {
            let seconds = u64::try_from(sleep.seconds).unwrap_or(0);
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            return Ok(None);
        }
        Err(HookError::Unsupported)
    }

    /// Any answer is success, whatever its status: a hook tells the container something, and asks nothing. A server
    /// without TLS behind an HTTPS hook is told all the same.
    async fn request(&self, action: &HTTPGetAction) -> Result<Told, String> {
        let get = Get::new(action, self.container, self.pod_ip, USER_AGENT)?;
        let failed = match get.send().await {
            Ok(_) => return Ok(None),
            Err(cause) => cause,
        };
        let Some(clear) = get.in_the_clear().filter(|_| failed.ends_with(NO_TLS)) else {
            return Err(failed);
        };
        match clear.send().await {
            Ok(_) => Ok(Some(format!(
                "request to HTTPS lifecycle hook {} got HTTP response, retry with HTTP succeeded",
                get.address()
            ))),
            Err(_) => Err(failed),
        }
    }

    /// What the container's status says of a failure.
    pub fn message(&self, error: &HookError) -> String {
        let cause = chain(error);
        let (container, pod) = (&self.container.name, spec::display(self.pod));
        let of = format!("for Container \"{container}\" in Pod \"{pod}\" failed - error: {cause}");
        if let Some(exec) = &self.handler.exec {
            let command = exec.command.as_deref().unwrap_or_default().join(" ");
            let output = match error {
                HookError::Exit { output, .. } => output.as_str(),
                _ => "",
            };
            return format!("Exec lifecycle hook ([{command}]) {of}, message: {output:?}");
        }
        if let Some(get) = &self.handler.http_get {
            let path = get.path.as_deref().unwrap_or_default();
            return format!("HTTP lifecycle hook ({path}) {of}");
        }
        if let Some(sleep) = &self.handler.sleep {
            return format!("Sleep lifecycle hook ({}) {of}", sleep.seconds);
        }
        format!("Cannot run handler: {cause}")
    }
}

#[cfg(test)]
mod tests;
