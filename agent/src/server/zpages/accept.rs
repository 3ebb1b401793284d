//! In which form a client wants a page: text, or an object of a version that it names with the media type. Pure.

use axum::http::HeaderMap;
use axum::http::header::ACCEPT;

/// The group of all kinds.
pub(super) const GROUP: &str = "config.k8s.io";

/// Versions of the kinds, which differ in nothing else.
const VERSIONS: [&str; 2] = ["v1alpha1", "v1beta1"];

/// How an object is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Encoding {
    Json,
    Yaml,
}

impl Encoding {
    pub(super) fn media_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Yaml => "application/yaml",
        }
    }
}

/// A form of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// For people.
    Text,
    /// An object of this version.
    Object(Encoding, &'static str),
}

/// The form that the client likes best; none when it takes none that there is. Without a wish it is text.
pub(super) fn choose(headers: &HeaderMap, kind: &str) -> Option<Form> {
    let wish = headers.get(ACCEPT).map(|value| value.to_str());
    let wish = wish.unwrap_or(Ok("")).ok()?.trim();
    if wish.is_empty() {
        return Some(Form::Text);
    }
    let mut ranges: Vec<Range<'_>> = wish.split(',').map(Range::read).collect();
    // Sorting is stable: of those that are liked the same, the first is taken.
    ranges.sort_by(|a, b| b.quality.total_cmp(&a.quality));
    ranges.iter().find_map(|range| range.form(kind))
}

/// A media range of an Accept header.
#[derive(Debug, Default)]
struct Range<'h> {
    media: &'h str,
    quality: f32,
    /// Parameters of Kubernetes: group, version and kind of the object that is wanted.
    group: Option<&'h str>,
    version: Option<&'h str>,
    kind: Option<&'h str>,
    /// Whether something else is asked of the answer that no page has: a stream, a server's version.
    more: bool,
}

impl<'h> Range<'h> {
    fn read(text: &'h str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let mut range = Self {
            media: parts.next().unwrap_or_default(),
            quality: 1.0,
            ..Self::default()
        };
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match name {
                "q" => range.quality = value.parse().unwrap_or(1.0),
                "g" => range.group = Some(value),
                "v" => range.version = Some(value),
                "as" => range.kind = Some(value),
                "stream" | "sv" => range.more |= !value.is_empty(),
                _ => {}
            }
        }
        range
    }

    /// What of this range there is.
    fn form(&self, kind: &str) -> Option<Form> {
        let named = self.group.or(self.version).or(self.kind).is_some();
        let encoding = match self.media {
            _ if self.more || self.quality <= 0.0 => return None,
            "text/plain" | "text/*" | "*/*" if !named => return Some(Form::Text),
            "application/json" | "application/*" | "*/*" => Encoding::Json,
            "application/yaml" => Encoding::Yaml,
            _ => return None,
        };
        if self.group != Some(GROUP) || self.kind != Some(kind) {
            return None;
        }
        let version = VERSIONS
            .into_iter()
            .find(|known| self.version == Some(*known))?;
        Some(Form::Object(encoding, version))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn text_is_for_who_does_not_care_and_objects_for_who_names_them() {
        let v1beta1 = |encoding| Some(Form::Object(encoding, "v1beta1"));
        let table = [
            ("", Some(Form::Text)),
            ("  ", Some(Form::Text)),
            ("*/*", Some(Form::Text)),
            ("text/plain", Some(Form::Text)),
            ("text/html, */*;q=0.8", Some(Form::Text)),
            ("application/json", None),
            ("application/xml", None),
            ("application/json;g=config.k8s.io;v=v1beta1", None),
            ("application/json;g=config.k8s.io;v=v2;as=Statusz", None),
            ("application/json;g=apps;v=v1beta1;as=Statusz", None),
            ("application/json;g=config.k8s.io;v=v1beta1;as=Flagz", None),
            ("text/plain;g=config.k8s.io;v=v1beta1;as=Statusz", None),
            (
                "application/json;g=config.k8s.io;v=v1beta1;as=Statusz;stream=watch",
                None,
            ),
            (
                "application/json;v=v1beta1;g=config.k8s.io;as=Statusz",
                v1beta1(Encoding::Json),
            ),
            (
                "application/yaml; v=v1beta1; g=config.k8s.io; as=Statusz",
                v1beta1(Encoding::Yaml),
            ),
            (
                "*/*;v=v1beta1;g=config.k8s.io;as=Statusz",
                v1beta1(Encoding::Json),
            ),
            (
                "application/json;v=v1alpha1;g=config.k8s.io;as=Statusz",
                Some(Form::Object(Encoding::Json, "v1alpha1")),
            ),
            (
                "application/json;v=v2;g=config.k8s.io;as=Statusz,*/*",
                Some(Form::Text),
            ),
            (
                "text/plain;q=0.5,application/yaml;v=v1beta1;g=config.k8s.io;as=Statusz;q=0.9",
                v1beta1(Encoding::Yaml),
            ),
            ("text/plain;q=0", None),
            ("application/json;;;=;q=x", None),
        ];
        for (accept, want) in table {
            let headers = [(ACCEPT, HeaderValue::from_static(accept))];
            let headers = headers.into_iter().collect();
            assert_eq!(choose(&headers, "Statusz"), want, "{accept:?}");
        }
        assert_eq!(choose(&HeaderMap::new(), "Statusz"), Some(Form::Text));
    }
}
