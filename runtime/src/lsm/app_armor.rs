//! AppArmor profiles of containers: whether the kernel has a profile, and the default one, loaded where it is missing.
//!
//! A profile that a pod names is the administrator's, and is never loaded here. The default has the name that
//! containerd gives to its own, which users look for; whoever comes first on a node loads it for both.

mod profile;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::Mutex;

use crate::api::{AppArmorProfile, SecurityContext};

/// Name of the default profile.
pub const DEFAULT_PROFILE: &str = "cri-containerd.apparmor.d";

/// The kernel's side of it.
const SECURITYFS: &str = "/sys/kernel/security/apparmor";

/// Where distributions have what compiles and loads profiles.
const PARSERS: [&str; 2] = ["/sbin/apparmor_parser", "/usr/sbin/apparmor_parser"];

/// Directory of the parser's includes.
const INCLUDES: &str = "/etc/apparmor.d";

/// The features that the default profile is written for, where the parser knows them.
const ABI: &str = "abi/3.0";

/// It takes a tenth of a second.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whether the kernel enforces profiles, and shows them.
pub fn is_enabled() -> bool {
    is_in_kernel() && Path::new(SECURITYFS).exists()
}

/// Whether the kernel enforces profiles, also when it does not show them here.
pub(crate) fn is_in_kernel() -> bool {
    let enabled = fs::read_to_string("/sys/module/apparmor/parameters/enabled");
    enabled.is_ok_and(|text| text.starts_with('Y'))
}

/// Why a container cannot have its profile. Display is for the pod's event.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppArmorError {
    /// A profile is asked for where none is enforced.
    #[error("apparmor is not supported")]
    NotSupported,
    /// The kernel has no profile of this name.
    #[error("apparmor profile not found {0}")]
    NotFound(String),
    /// The default profile is asked for and neither there nor to be made.
    #[error(
        "apparmor profile {DEFAULT_PROFILE} is not loaded, and there is no apparmor_parser to load it"
    )]
    NoParser,
    /// The kernel does not tell its profiles.
    #[error("cannot read the list of apparmor profiles")]
    List(#[source] io::Error),
    /// The parser could not be run.
    #[error("cannot run {}", .0.display())]
    Run(PathBuf, #[source] io::Error),
    /// The parser or the kernel did not take the default profile.
    #[error("cannot load apparmor profile {DEFAULT_PROFILE}: {0}")]
    Load(String),
}

/// What a container's wish comes to, before anybody has looked at the loaded profiles.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    /// No profile is set.
    Unconfined,
    /// This one, which must be loaded.
    Named(String),
    /// The default one; without it there is a container only when nobody asked for it.
    Default { asked: bool },
}

/// The profiles of this node.
#[derive(Debug)]
pub(crate) struct AppArmor {
    enabled: bool,
    parser: Option<PathBuf>,
    /// One at a time: the first containers of a node come together.
    loading: Mutex<()>,
}

impl AppArmor {
    /// Looks at the kernel and for the parser.
    pub(crate) fn look() -> Self {
        // In a container the kernel's profiles are somebody else's to load.
        let contained = std::env::var_os("container").is_some_and(|value| !value.is_empty());
        let parser = PARSERS.iter().map(PathBuf::from).find(|path| path.exists());
        AppArmor {
            enabled: is_enabled(),
            parser: parser.filter(|_| !contained),
            loading: Mutex::default(),
        }
    }

    /// Loads the default profile, if there is AppArmor, so that no pod waits for it. What fails here fails again for
    /// the container that needs it.
    pub(crate) async fn prepare(&self) {
        if !self.enabled {
            return;
        }
        match self.default(false).await {
            Ok(Some(_)) => {}
            Ok(None) => {
                tracing::warn!("without apparmor_parser, containers have no AppArmor profile")
            }
            Err(error) => {
                let error = crate::service::chain(&error);
                tracing::error!(error, "no default AppArmor profile");
            }
        }
    }

    /// The loaded profile that a container is to run under; none for no confinement.
    pub(crate) async fn profile(
        &self,
        security: &SecurityContext,
    ) -> Result<Option<String>, AppArmorError> {
        let wish = security.app_armor.as_ref();
        match plan(wish, security.privileged, self.enabled)? {
            Plan::Unconfined => Ok(None),
            Plan::Default { asked } => self.default(asked).await,
            Plan::Named(name) if is_loaded(&name)? => Ok(Some(name)),
            Plan::Named(name) => Err(AppArmorError::NotFound(name)),
        }
    }

    async fn default(&self, asked: bool) -> Result<Option<String>, AppArmorError> {
        let name = Some(DEFAULT_PROFILE.to_owned());
        if is_loaded(DEFAULT_PROFILE)? {
            return Ok(name);
        }
        let Some(parser) = &self.parser else {
            return if asked {
                Err(AppArmorError::NoParser)
            } else {
                Ok(None)
            };
        };
        let _alone = self.loading.lock().await;
        if !is_loaded(DEFAULT_PROFILE)? {
            load(parser).await?;
        }
        Ok(name)
    }
}

/// The rules are containerd's: who says nothing gets the default, a privileged container only what it names.
fn plan(
    wish: Option<&AppArmorProfile>,
    privileged: bool,
    enabled: bool,
) -> Result<Plan, AppArmorError> {
    let plan = match wish {
        Some(AppArmorProfile::Unconfined) => return Ok(Plan::Unconfined),
        None if !enabled => return Ok(Plan::Unconfined),
        Some(_) if !enabled => return Err(AppArmorError::NotSupported),
        Some(AppArmorProfile::Localhost(name)) => {
            let name = name.strip_prefix("localhost/").unwrap_or(name);
            Plan::Named(name.to_owned())
        }
        None | Some(AppArmorProfile::RuntimeDefault) if privileged => Plan::Unconfined,
        None => Plan::Default { asked: false },
        Some(AppArmorProfile::RuntimeDefault) => Plan::Default { asked: true },
    };
    Ok(plan)
}

fn is_loaded(name: &str) -> Result<bool, AppArmorError> {
    let list = fs::read_to_string(Path::new(SECURITYFS).join("profiles"));
    Ok(lists(&list.map_err(AppArmorError::List)?, name))
}

/// Whether the kernel's list, lines of `name (mode)`, has the profile.
fn lists(list: &str, name: &str) -> bool {
    let names = list.lines().filter_map(|line| line.rsplit_once(" ("));
    !name.is_empty() && names.into_iter().any(|(loaded, _)| loaded == name)
}

/// Has the default profile compiled and loaded.
async fn load(parser: &Path) -> Result<(), AppArmorError> {
    let run = |error| AppArmorError::Run(parser.to_owned(), error);
    let own = fs::read_to_string("/proc/self/attr/current").unwrap_or_default();
    let abi = Path::new(INCLUDES).join(ABI).exists().then_some(ABI);
    let text = profile::default(DEFAULT_PROFILE, abi, &own);
    let mut child = Command::new(parser)
        .args(["--skip-cache", "--replace"])
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(run)?;
    if let Some(mut stdin) = child.stdin.take() {
        // If it does not listen, it says why.
        let _ = stdin.write_all(text.as_bytes()).await;
    }
    let ended = tokio::time::timeout(PATIENCE, child.wait_with_output()).await;
    let late = io::Error::new(io::ErrorKind::TimedOut, "it does not end");
    let output = ended.unwrap_or(Err(late)).map_err(run)?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(AppArmorError::Load(said.trim().to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_says_nothing_gets_the_default_and_who_is_privileged_only_what_it_names() {
        let local = AppArmorProfile::Localhost("localhost/a".into());
        let (default, none) = (AppArmorProfile::RuntimeDefault, AppArmorProfile::Unconfined);
        let named = || Plan::Named("a".into());
        for (wish, privileged, want) in [
            (None, false, Plan::Default { asked: false }),
            (None, true, Plan::Unconfined),
            (Some(&default), false, Plan::Default { asked: true }),
            (Some(&default), true, Plan::Unconfined),
            (Some(&none), false, Plan::Unconfined),
            (Some(&none), true, Plan::Unconfined),
            (Some(&local), false, named()),
            (Some(&local), true, named()),
        ] {
            assert_eq!(plan(wish, privileged, true).unwrap(), want, "{wish:?}");
        }
    }

    #[test]
    fn what_nobody_would_enforce_is_an_error() {
        let local = AppArmorProfile::Localhost("a".into());
        for wish in [AppArmorProfile::RuntimeDefault, local] {
            for privileged in [false, true] {
                let error = plan(Some(&wish), privileged, false).unwrap_err();
                assert_eq!(error.to_string(), "apparmor is not supported");
            }
        }
        for wish in [None, Some(&AppArmorProfile::Unconfined)] {
            assert_eq!(plan(wish, false, false).unwrap(), Plan::Unconfined);
        }
    }

    #[test]
    fn a_profile_is_loaded_only_under_its_whole_name() {
        let list =
            "cri-containerd.apparmor.d (enforce)\n/usr/bin/a b (complain)\nx//y (unconfined)\n";
        for name in ["cri-containerd.apparmor.d", "/usr/bin/a b", "x//y"] {
            assert!(lists(list, name), "{name}");
        }
        for name in [
            "",
            "cri-containerd",
            "x",
            "cri-containerd.apparmor.d (enforce)",
            "y",
            "\n",
        ] {
            assert!(!lists(list, name), "{name}");
        }
    }
}
