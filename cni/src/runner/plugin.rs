//! One command to one plugin of a chain, wherever it is served.

use serde_json::{Map, Value, json};
use tokio_util::sync::CancellationToken;

use super::{Inner, RunnerError};
use crate::attachment::Attachment;
use crate::config::Config;
use crate::netns;
use crate::plugins::{self, BuiltInPlugin, Call, Verb};
use crate::spec::{AddResult, NetworkConfig, PluginConfig};

/// What the plugins of a chain are told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chain<'a> {
    pub(super) network: &'a NetworkConfig,
    pub(super) attachment: &'a Attachment,
    /// Plugin types that are served in this process.
    pub(super) in_process: &'a [String],
}

impl Inner {
    /// The plugin types of a network that are served in this process.
    pub(super) fn in_process(&self, config: &Config) -> Vec<String> {
        let always = self.options.prefer_built_in || config.file.is_none();
        let kinds = config.network.plugins.iter().map(|plugin| &plugin.kind);
        kinds
            .filter(|kind| BuiltInPlugin::find(kind).is_some())
            .filter(|kind| always || self.programs.find(kind).is_none())
            .cloned()
            .collect()
    }

    /// ADD of one plugin. Its programs are killed when `given_up` ends; what is served here is soon done, and nothing would
    /// end its thread.
    pub(super) async fn plugin_add(
        &self,
        chain: Chain<'_>,
        plugin: &PluginConfig,
        previous: Option<AddResult>,
        given_up: &CancellationToken,
    ) -> Result<AddResult, RunnerError> {
        if let Some(built_in) = chain.built_in(plugin) {
            let mut call = self.call(chain, plugin, previous);
            if let Some(ipam) = external_ipam(plugin) {
                let stdin = stdin(chain, plugin, None);
                call.ipam_result = Some(self.program_add(ipam, chain, &stdin, given_up).await?);
            }
            let added = plugins::run(built_in, Verb::Add, call).await;
            return added.map_err(in_process(&plugin.kind, "ADD"));
        }
        let stdin = stdin(chain, plugin, previous.as_ref());
        self.program_add(&plugin.kind, chain, &stdin, given_up)
            .await
    }

    async fn program_add(
        &self,
        program: &str,
        chain: Chain<'_>,
        stdin: &[u8],
        given_up: &CancellationToken,
    ) -> Result<AddResult, RunnerError> {
        let adding = self.programs.add(program, chain.attachment, stdin);
        match given_up.run_until_cancelled(adding).await {
            Some(added) => added.map_err(exec(program, "ADD")),
            None => Err(RunnerError::GivenUp(program.to_owned())),
        }
    }

    /// DEL or CHECK of one plugin.
    pub(super) async fn plugin_command(
        &self,
        chain: Chain<'_>,
        plugin: &PluginConfig,
        verb: Verb,
        previous: Option<&AddResult>,
    ) -> Result<(), RunnerError> {
        let command = if verb == Verb::Del { "DEL" } else { "CHECK" };
        let stdin = stdin(chain, plugin, previous);
        // A path that leads to no namespace is told as none at all, which plugins must bear.
        let mut attachment = chain.attachment.clone();
        if verb == Verb::Del && netns::open(&attachment.netns).is_err() {
            attachment.netns = "".into();
        }
        let Some(built_in) = chain.built_in(plugin) else {
            let done = self
                .programs
                .command(&plugin.kind, command, Some(&attachment), &stdin);
            return done.await.map_err(exec(&plugin.kind, command));
        };
        let call = self.call(chain, plugin, previous.cloned());
        plugins::run(built_in, verb, call)
            .await
            .map_err(in_process(&plugin.kind, command))?;
        if let Some(ipam) = external_ipam(plugin) {
            let done = self
                .programs
                .command(ipam, command, Some(&attachment), &stdin);
            done.await.map_err(exec(ipam, command))?;
        }
        Ok(())
    }

    /// DEL of the built-in bridge without any configuration: it deletes the pair and frees no lease.
    pub(super) async fn del_pair(&self, attachment: &Attachment) -> Result<(), RunnerError> {
        let call = Call {
            attachment: attachment.clone(),
            network: String::new(),
            config: Map::new(),
            previous: None,
            ipam_dir: self.options.ipam_dir.clone(),
            ipam_result: None,
        };
        let done = plugins::run(BuiltInPlugin::Bridge, Verb::Del, call).await;
        done.map(|_| ()).map_err(in_process("bridge", "DEL"))
    }

    fn call(&self, chain: Chain<'_>, plugin: &PluginConfig, previous: Option<AddResult>) -> Call {
        Call {
            attachment: chain.attachment.clone(),
            network: chain.network.name.clone(),
            config: plugin.raw.clone(),
            previous,
            ipam_dir: self.options.ipam_dir.clone(),
            ipam_result: None,
        }
    }
}

impl Chain<'_> {
    fn built_in(&self, plugin: &PluginConfig) -> Option<BuiltInPlugin> {
        if self.in_process.contains(&plugin.kind) {
            BuiltInPlugin::find(&plugin.kind)
        } else {
            None
        }
    }
}

pub(super) fn exec(
    plugin: &str,
    command: &'static str,
) -> impl FnOnce(crate::exec::ExecError) -> RunnerError {
    move |source| RunnerError::Exec {
        plugin: plugin.to_owned(),
        command,
        source,
    }
}

fn in_process(
    plugin: &str,
    command: &'static str,
) -> impl FnOnce(plugins::PluginError) -> RunnerError {
    move |source| RunnerError::BuiltIn {
        plugin: plugin.to_owned(),
        command,
        source,
    }
}

/// The IPAM plugin that has to be executed for a built-in plugin.
fn external_ipam(plugin: &PluginConfig) -> Option<&str> {
    plugin.ipam_kind().filter(|kind| *kind != "host-local")
}

/// The configuration as a plugin reads it (specification, section 2 "Deriving").
fn stdin(chain: Chain<'_>, plugin: &PluginConfig, previous: Option<&AddResult>) -> Vec<u8> {
    let mut config = common(chain.network, plugin);
    if let Some(previous) = previous {
        config.insert("prevResult".into(), previous.to_json(chain.network.version));
    }
    let mappings = chain.attachment.port_mappings_json();
    if plugin.capabilities.contains("portMappings") && mappings != json!([]) {
        config.insert("runtimeConfig".into(), json!({"portMappings": mappings}));
    }
    Value::Object(config).to_string().into_bytes()
}

/// What every command's configuration has.
pub(super) fn common(network: &NetworkConfig, plugin: &PluginConfig) -> Map<String, Value> {
    let mut config = plugin.raw.clone();
    config.insert("cniVersion".into(), network.version.as_str().into());
    config.insert("name".into(), network.name.clone().into());
    config
}
