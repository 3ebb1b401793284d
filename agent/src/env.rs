//! A container's environment: services, then `envFrom`, then `env`; what comes later wins.
//!
//! [`resolve`] fetches the objects that the container names, and the files of its volumes, then [`build`] makes the list
//! of them, purely.

mod error;
pub mod expand;
pub mod field;
pub mod file;
pub mod service;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvVarSource, Pod, Secret, Service};

use crate::pod::spec;
use crate::sinks::{MountedVolumes, ObjectError, Objects};
pub use error::EnvError;
use expand::{LONGEST, MOST, OVERHEAD, TooLong, expand};
use field::{NodeFacts, field_value, resource_value};

/// The objects that a container's environment refers to. An optional one that does not exist is none.
#[derive(Debug, Clone, Default)]
pub struct Referred {
    /// By name.
    pub config_maps: BTreeMap<String, Option<Arc<ConfigMap>>>,
    /// By name.
    pub secrets: BTreeMap<String, Option<Arc<Secret>>>,
    /// Services of the pod's namespace, and the API server's.
    pub services: Vec<Arc<Service>>,
    /// What is wanted of files of volumes.
    pub files: file::Files,
}

/// The container's environment, in order.
pub async fn resolve(
    pod: &Pod,
    container: &Container,
    facts: &NodeFacts,
    objects: &dyn Objects,
    volumes: &MountedVolumes,
) -> Result<Vec<(String, String)>, EnvError> {
    let mut referred = fetch(pod, container, objects).await?;
    referred.files = file::read_all(container, volumes).await?;
    build(pod, container, facts, &referred)
}

/// A static pod takes the services that are known after this time.
const KNOWN_SERVICES: std::time::Duration = std::time::Duration::from_millis(100);

/// Fetches what the container refers to.
async fn fetch(
    pod: &Pod,
    container: &Container,
    objects: &dyn Objects,
) -> Result<Referred, EnvError> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let services = objects.services(namespace);
    let services = match spec::is_static(pod) {
        // It starts without an API server too, and then there are none.
        true => tokio::time::timeout(KNOWN_SERVICES, services)
            .await
            .map_or_else(|_| Vec::new(), Result::unwrap_or_default),
        false => services.await?,
    };
    let mut referred = Referred {
        services,
        ..Referred::default()
    };
    for (kind, name, optional) in references(container) {
        match kind {
            Kind::ConfigMap => {
                let found = optionally(objects.config_map(namespace, name).await, optional)?;
                referred.config_maps.insert(name.to_owned(), found);
            }
            Kind::Secret => {
                let found = optionally(objects.secret(namespace, name).await, optional)?;
                referred.secrets.insert(name.to_owned(), found);
            }
        }
    }
    Ok(referred)
}

/// Which map an object goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    ConfigMap,
    Secret,
}

/// Every object that the container's environment names, once, and whether all references to it are optional; in the
/// order in which they are named, since the first that is missing is told of.
fn references(container: &Container) -> impl Iterator<Item = (Kind, &str, bool)> {
    let mut found: Vec<(Kind, &str, bool)> = Vec::new();
    let mut places: BTreeMap<(Kind, &str), usize> = BTreeMap::new();
    let mut add = |kind, name, optional: Option<bool>| {
        let place = *places.entry((kind, name)).or_insert(found.len());
        if place == found.len() {
            found.push((kind, name, true));
        }
        found[place].2 &= optional.unwrap_or(false);
    };
    for from in container.env_from.iter().flatten() {
        if let Some(source) = &from.config_map_ref {
            add(Kind::ConfigMap, source.name.as_str(), source.optional);
        }
        if let Some(source) = &from.secret_ref {
            add(Kind::Secret, source.name.as_str(), source.optional);
        }
    }
    for source in container
        .env
        .iter()
        .flatten()
        .filter_map(|var| var.value_from.as_ref())
    {
        if let Some(source) = &source.config_map_key_ref {
            add(Kind::ConfigMap, source.name.as_str(), source.optional);
        }
        if let Some(source) = &source.secret_key_ref {
            add(Kind::Secret, source.name.as_str(), source.optional);
        }
    }
    found.into_iter()
}

/// A missing optional object is no error.
fn optionally<T>(
    result: Result<Arc<T>, ObjectError>,
    optional: bool,
) -> Result<Option<Arc<T>>, ObjectError> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(ObjectError::NotFound { .. }) if optional => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes the list, in the order in which names first appear: `envFrom`, `env`, services.
pub fn build(
    pod: &Pod,
    container: &Container,
    facts: &NodeFacts,
    referred: &Referred,
) -> Result<Vec<(String, String)>, EnvError> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let links = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.enable_service_links)
        .unwrap_or(true);
    let services = service::variables(&referred.services, namespace, links);
    let mut list = List::default();
    add_env_from(container, referred, &mut list)?;
    for var in container.env.iter().flatten() {
        let value = match (&var.value, &var.value_from) {
            (Some(text), _) if !text.is_empty() => {
                let lookup = |name: &str| {
                    list.get(name)
                        .or_else(|| services.get(name).map(String::as_str))
                };
                let value = expand(text, lookup, LONGEST);
                let long = |TooLong| EnvError::Long(var.name.clone());
                Some(Cow::Owned(value.map_err(long)?.into_owned()))
            }
            (_, Some(source)) => {
                let scope = Scope {
                    pod,
                    container,
                    facts,
                    referred,
                    namespace,
                };
                scope.value_from(&var.name, source)?
            }
            _ => Some(Cow::Borrowed("")),
        };
        if let Some(value) = value {
            list.set(&var.name, value)?;
        }
    }
    for (name, value) in &services {
        if list.get(name).is_none() {
            list.set(name, Cow::Borrowed(value))?;
        }
    }
    list.finish()
}

/// Adds the whole objects that `envFrom` names, with their prefix.
fn add_env_from<'v>(
    container: &Container,
    referred: &'v Referred,
    list: &mut List<'v>,
) -> Result<(), EnvError> {
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        let config_map = from.config_map_ref.as_ref().and_then(|source| {
            referred
                .config_maps
                .get(&source.name)
                .and_then(Option::as_ref)
        });
        for (key, value) in config_map
            .iter()
            .flat_map(|object| object.data.iter().flatten())
        {
            list.set_valid(format!("{prefix}{key}"), Cow::Borrowed(value))?;
        }
        let secret = from
            .secret_ref
            .as_ref()
            .and_then(|source| referred.secrets.get(&source.name).and_then(Option::as_ref));
        for (key, value) in secret
            .iter()
            .flat_map(|object| object.data.iter().flatten())
        {
            list.set_valid(format!("{prefix}{key}"), String::from_utf8_lossy(&value.0))?;
        }
    }
    Ok(())
}

/// Bytes as a variable's value; what is no UTF-8 is replaced, since the runtime's interface carries text.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Variables in the order of their first appearance. A value that an object has is not copied before all are known to
/// be such as a program can be given.
#[derive(Debug, Default)]
struct List<'v> {
    entries: Vec<(String, Cow<'v, str>)>,
    index: BTreeMap<String, usize>,
    /// Bytes of the values that were made.
    made: usize,
}

impl<'v> List<'v> {
    fn get(&self, name: &str) -> Option<&str> {
        self.index.get(name).map(|&at| &*self.entries[at].1)
    }

    fn set(&mut self, name: &str, value: Cow<'v, str>) -> Result<(), EnvError> {
        if let Cow::Owned(made) = &value {
            self.made += made.len();
        }
        if self.made > MOST {
            return Err(EnvError::Most(name.to_owned()));
        }
        if let Some(&at) = self.index.get(name) {
            self.entries[at].1 = value;
            return Ok(());
        }
        self.index.insert(name.to_owned(), self.entries.len());
        self.entries.push((name.to_owned(), value));
        Ok(())
    }

    /// Skips a name that no environment can hold: keys of objects are freer than names of variables.
    fn set_valid(&mut self, name: String, value: Cow<'v, str>) -> Result<(), EnvError> {
        let printable = |c: char| (' '..='~').contains(&c) && c != '=';
        if !name.is_empty() && name.chars().all(printable) {
            return self.set(&name, value);
        }
        Ok(())
    }

    /// The variables, if a program can be given them.
    fn finish(self) -> Result<Vec<(String, String)>, EnvError> {
        let mut bytes = 0;
        for (name, value) in &self.entries {
            let pair = name.len() + 1 + value.len();
            if pair > LONGEST {
                return Err(EnvError::Long(name.clone()));
            }
            bytes += pair + OVERHEAD;
            if bytes > MOST {
                return Err(EnvError::Most(name.clone()));
            }
        }
        let owned = |(name, value): (String, Cow<'_, str>)| (name, value.into_owned());
        Ok(self.entries.into_iter().map(owned).collect())
    }
}

/// What a `valueFrom` is resolved against.
struct Scope<'a> {
    pod: &'a Pod,
    container: &'a Container,
    facts: &'a NodeFacts,
    referred: &'a Referred,
    namespace: &'a str,
}

impl<'a> Scope<'a> {
    /// The value; none where an optional object or key is missing.
    fn value_from(
        &self,
        name: &str,
        source: &EnvVarSource,
    ) -> Result<Option<Cow<'a, str>>, EnvError> {
        if let Some(field) = &source.field_ref {
            let value = field_value(self.pod, self.facts, &field.field_path)?;
            return Ok(Some(Cow::Owned(value)));
        }
        if let Some(field) = &source.resource_field_ref {
            let own = Some(self.container);
            let value = resource_value(self.pod, own, self.facts, field)?;
            return Ok(Some(Cow::Owned(value)));
        }
        if let Some(key) = &source.config_map_key_ref {
            let object = self
                .referred
                .config_maps
                .get(&key.name)
                .and_then(Option::as_ref);
            let value = object.and_then(|object| object.data.as_ref()?.get(&key.key));
            let value = value.map(|value| Cow::Borrowed(value.as_str()));
            return self.found(value, "ConfigMap", &key.name, &key.key, key.optional);
        }
        if let Some(key) = &source.secret_key_ref {
            let object = self
                .referred
                .secrets
                .get(&key.name)
                .and_then(Option::as_ref);
            let value = object.and_then(|object| object.data.as_ref()?.get(&key.key));
            let value = value.map(|value| String::from_utf8_lossy(&value.0));
            return self.found(value, "Secret", &key.name, &key.key, key.optional);
        }
        if let Some(source) = &source.file_key_ref {
            return file::variable(&self.referred.files, source).map(|value| value.map(Cow::Owned));
        }
        Err(EnvError::Source(name.to_owned()))
    }

    /// A missing key is an error, unless it is optional.
    fn found(
        &self,
        value: Option<Cow<'a, str>>,
        kind: &'static str,
        name: &str,
        key: &str,
        optional: Option<bool>,
    ) -> Result<Option<Cow<'a, str>>, EnvError> {
        if value.is_some() || optional.unwrap_or(false) {
            return Ok(value);
        }
        let (key, name) = (key.to_owned(), name.to_owned());
        Err(EnvError::Key {
            key,
            kind,
            namespace: self.namespace.to_owned(),
            name,
        })
    }
}

#[cfg(test)]
#[path = "env/tests.rs"]
mod tests;
