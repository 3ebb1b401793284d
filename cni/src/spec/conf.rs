//! Network configurations: lists (`.conflist`) and single plugins (`.conf`, `.json`).

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::Version;
use super::fields::{Field, ParseError, document};

/// Longest configuration that is read, in bytes. Real ones have a few kilobytes.
pub const MAX_CONFIG: usize = 1 << 20;

const TYPE_RULE: &str = "a plugin name of letters, digits, '.', '_' and '-'";

/// A network: a name and a chain of plugins.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkConfig {
    /// The version that its plugins are spoken to in.
    pub version: Version,
    /// Name of the network.
    pub name: String,
    /// CHECK always succeeds for this network.
    pub disable_check: bool,
    /// GC does nothing for this network.
    pub disable_gc: bool,
    /// The chain, in the order of ADD; never empty.
    pub plugins: Vec<PluginConfig>,
}

/// One plugin of a chain.
#[derive(Debug, Clone, PartialEq)]
pub struct PluginConfig {
    /// File name of the plugin's program, or the name of a built-in one.
    pub kind: String,
    /// Capabilities that the configuration switches on, like `portMappings`.
    pub capabilities: BTreeSet<String>,
    /// The whole object, handed to the plugin.
    pub raw: Map<String, Value>,
}

impl NetworkConfig {
    /// Parses the content of a `.conflist` file.
    pub fn parse_list(bytes: &[u8]) -> Result<Self, ParseError> {
        Self::from_list(&document(bytes, MAX_CONFIG)?)
    }

    /// Parses the content of a `.conf` or `.json` file: one plugin. A list is accepted as well.
    pub fn parse_single(bytes: &[u8]) -> Result<Self, ParseError> {
        let value = document(bytes, MAX_CONFIG)?;
        if value.get("plugins").is_some() {
            return Self::from_list(&value);
        }
        let root = Field::root(&value);
        Ok(Self {
            version: version(&root)?,
            name: name(&root)?,
            disable_check: false,
            disable_gc: false,
            plugins: vec![PluginConfig::from_field(&root)?],
        })
    }

    /// Reads a list that is JSON already.
    pub(crate) fn from_list(value: &Value) -> Result<Self, ParseError> {
        let root = Field::root(value);
        let list = root.need("plugins")?;
        let plugins = list
            .elements()?
            .iter()
            .map(PluginConfig::from_field)
            .collect::<Result<Vec<_>, _>>()?;
        if plugins.is_empty() {
            return Err(list.wrong("at least one plugin"));
        }
        Ok(Self {
            version: version(&root)?,
            name: name(&root)?,
            disable_check: root.flag("disableCheck")?,
            disable_gc: root.flag("disableGC")?,
            plugins,
        })
    }

    /// The list as JSON, to be kept and read again.
    #[must_use]
    pub fn to_json(&self) -> Value {
        serde_json::json!({
            "cniVersion": self.version.as_str(),
            "name": self.name,
            "disableCheck": self.disable_check,
            "disableGC": self.disable_gc,
            "plugins": self.plugins.iter().map(|p| &p.raw).collect::<Vec<_>>(),
        })
    }
}

impl PluginConfig {
    fn from_field(field: &Field<'_>) -> Result<Self, ParseError> {
        let kind = field.need("type")?;
        if !is_valid_plugin_type(kind.string()?) {
            return Err(kind.wrong(TYPE_RULE));
        }
        if let Some(ipam) = field.get("ipam")? {
            let kind = ipam.get("type")?;
            if let Some(kind) = kind
                && !kind.string()?.is_empty()
                && !is_valid_plugin_type(kind.string()?)
            {
                return Err(kind.wrong(TYPE_RULE));
            }
        }
        let mut capabilities = BTreeSet::new();
        if let Some(all) = field.get("capabilities")? {
            for name in all.object()?.keys() {
                if all.flag(name)? {
                    capabilities.insert(name.clone());
                }
            }
        }
        Ok(Self {
            kind: kind.string()?.to_owned(),
            capabilities,
            raw: field.object()?.clone(),
        })
    }

    /// The type of the IPAM plugin that this plugin delegates to, if any.
    #[must_use]
    pub fn ipam_kind(&self) -> Option<&str> {
        self.raw
            .get("ipam")?
            .get("type")?
            .as_str()
            .filter(|kind| !kind.is_empty())
    }
}

/// Whether this can be a plugin's file name. It never holds a slash, so that it cannot leave the
/// directories of plugins (CVE-2021-20206).
#[must_use]
pub fn is_valid_plugin_type(kind: &str) -> bool {
    (1..=255).contains(&kind.len())
        && !kind.starts_with('.')
        && kind
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// Whether this can name a network or a container: it becomes part of file names.
#[must_use]
pub fn is_valid_name(name: &str) -> bool {
    (1..=200).contains(&name.len())
        && name.as_bytes()[0].is_ascii_alphanumeric()
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

fn name(root: &Field<'_>) -> Result<String, ParseError> {
    let field = root.need("name")?;
    if !is_valid_name(field.string()?) {
        return Err(field.wrong("a letter or digit, then letters, digits, '.', '_' and '-'"));
    }
    Ok(field.string()?.to_owned())
}

/// The newest of `cniVersions` that we speak, else `cniVersion`, else 0.1.0.
fn version(root: &Field<'_>) -> Result<Version, ParseError> {
    let offered = root.texts("cniVersions")?;
    if let Some(best) = offered.iter().filter_map(|v| v.parse().ok()).max() {
        return Ok(best);
    }
    match root.get("cniVersion")? {
        Some(field) if !field.string()?.is_empty() => {
            field.parse("a version of the CNI specification from 0.1.0 to 1.1.0")
        }
        _ => Ok(Version::V0_1_0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wrong_configurations_name_field_and_value() {
        let table = [
            (
                r#"{"name":"n","plugins":[{"type":"../sh"}]}"#,
                r#"plugins[0].type" is "../sh""#,
            ),
            (
                r#"{"name":"n","plugins":[{"type":"a","ipam":{"type":"a/b"}}]}"#,
                "plugins[0].ipam.type",
            ),
            (r#"{"name":"n","plugins":[]}"#, "at least one plugin"),
            (r#"{"name":"n"}"#, r#""plugins" is missing"#),
            (r#"{"plugins":[{"type":"a"}]}"#, r#""name" is missing"#),
            (
                r#"{"name":"../x","plugins":[{"type":"a"}]}"#,
                r#"name" is "../x""#,
            ),
            (
                r#"{"name":"n","cniVersion":"9.9","plugins":[{"type":"a"}]}"#,
                r#""9.9""#,
            ),
            (
                r#"{"name":"n","plugins":[{"type":7}]}"#,
                "expected a string",
            ),
            ("[]", "expected an object"),
            ("{", "not JSON"),
        ];
        for (text, part) in table {
            let error = NetworkConfig::parse_list(text.as_bytes())
                .expect_err(text)
                .to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_single_plugin_is_a_chain_of_one() {
        let text = br#"{"cniVersion":"0.3.1","name":"n","type":"ptp","capabilities":{"portMappings":true,"x":false}}"#;
        let config = NetworkConfig::parse_single(text).unwrap();
        assert_eq!(config.version, Version::V0_3_1);
        assert_eq!(config.plugins.len(), 1);
        assert!(config.plugins[0].capabilities.contains("portMappings"));
        assert!(!config.plugins[0].capabilities.contains("x"));
    }

    #[test]
    fn newest_common_version_wins() {
        let text = br#"{"cniVersion":"0.4.0","cniVersions":["1.0.0","1.1.0","7.0.0"],"name":"n","plugins":[{"type":"a"}]}"#;
        assert_eq!(
            NetworkConfig::parse_list(text).unwrap().version,
            Version::V1_1_0
        );
        let text = br#"{"name":"n","plugins":[{"type":"a"}]}"#;
        assert_eq!(
            NetworkConfig::parse_list(text).unwrap().version,
            Version::V0_1_0
        );
    }

    #[test]
    fn a_list_survives_being_written_and_read() {
        let text = br#"{"cniVersion":"1.0.0","name":"n","disableCheck":true,"plugins":[{"type":"a","x":[1]},{"type":"b"}]}"#;
        let config = NetworkConfig::parse_list(text).unwrap();
        assert_eq!(NetworkConfig::from_list(&config.to_json()).unwrap(), config);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            let _ = NetworkConfig::parse_list(&bytes);
            let _ = NetworkConfig::parse_single(&bytes);
        }

        #[test]
        fn no_field_values_make_the_parser_panic(name in ".{0,8}", kind in ".{0,8}", version in "[0-9.]{0,6}") {
            let value = serde_json::json!({"name": name, "cniVersion": version, "plugins": [{"type": kind, "ipam": kind}]});
            let _ = NetworkConfig::from_list(&value);
        }
    }
}
