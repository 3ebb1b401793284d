//! Where a request goes: of an action, or of a redirect.

use http::Uri;

use super::dial;

/// A URL, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) https: bool,
    /// Without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// Path and query as they are sent.
    pub(super) path: String,
    /// The whole of it as messages show it.
    pub(super) text: String,
}

impl Target {
    /// The target of an action's fields. A path may be a URL, of which scheme and host do not count; one that is none is
    /// taken by its letters.
    pub(super) fn of_action(https: bool, host: &str, port: u16, path: &str) -> Self {
        if !is_url(path) {
            let path = path.replace('%', "%25").replace('?', "%3F");
            return Self::new(https, host, port, &path.replace('#', "%23"));
        }
        let with_scheme = path.split_once("://").filter(|_| is_absolute(path));
        let with_host = path
            .strip_prefix("//")
            .filter(|rest| !rest.starts_with('/'));
        let with_host = with_scheme.map(|(_, rest)| rest).or(with_host);
        let path = with_host.map_or(path, |rest| {
            &rest[rest.find(['/', '?']).unwrap_or(rest.len())..]
        });
        Self::new(https, host, port, path)
    }

    /// The target of these parts. What is not allowed in a path is escaped.
    pub(super) fn new(https: bool, host: &str, port: u16, path: &str) -> Self {
        let path = escape(path.split('#').next().unwrap_or_default());
        let scheme = if https { "https" } else { "http" };
        let slash = if path.is_empty() || path.starts_with(['/', '?']) {
            ""
        } else {
            "/"
        };
        let text = format!("{scheme}://{}{slash}{path}", dial::address(host, port));
        let path = match path.starts_with('/') {
            true => path,
            false => format!("/{path}"),
        };
        Self {
            https,
            host: host.to_owned(),
            port,
            path,
            text,
        }
    }

    /// Host and port.
    pub(super) fn address(&self) -> String {
        dial::address(&self.host, self.port)
    }

    /// The same without TLS; none when it has none.
    pub(super) fn in_the_clear(&self) -> Option<Self> {
        self.https
            .then(|| Self::new(false, &self.host, self.port, &self.path))
    }

    /// The target that a Location names, seen from this one.
    pub(super) fn join(&self, location: &str) -> Result<Self, String> {
        let location = location.split('#').next().unwrap_or_default();
        let scheme = if self.https { "https" } else { "http" };
        if let Some(rest) = location.strip_prefix("//") {
            return absolute(&format!("{scheme}://{rest}"), &self.host);
        }
        if is_absolute(location) {
            return absolute(location, &self.host);
        }
        let own = self.path.split('?').next().unwrap_or_default();
        let path = if location.starts_with('/') {
            location.to_owned()
        } else if location.starts_with('?') {
            format!("{own}{location}")
        } else {
            let directory = own.rfind('/').map_or("", |at| &own[..at]);
            format!("{directory}/{location}")
        };
        Ok(Self::new(self.https, &self.host, self.port, &plain(&path)))
    }
}

/// Whether the text begins with a scheme.
pub(super) fn is_absolute(text: &str) -> bool {
    let scheme = text.split_once(':').map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    })
}

/// The target of a whole URL, met on the host `own`. Which protocol another host speaks does not matter: nobody goes there.
fn absolute(text: &str, own: &str) -> Result<Target, String> {
    let rest = text.split_once(':').map(|(_, rest)| rest);
    if rest.is_some_and(|rest| !rest.starts_with("//")) {
        // It is on no host.
        return Ok(Target::new(false, "", 80, "/"));
    }
    let uri: Uri = text.parse().map_err(|error| format!("{error}"))?;
    let host = uri.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let https = match uri.scheme_str() {
        Some("https") => true,
        Some(other) if other != "http" && host == own => {
            return Err(format!("unsupported protocol scheme {other:?}"));
        }
        _ => false,
    };
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
    let target = Target::new(https, host, port, path);
    Ok(Target {
        text: text.to_owned(),
        ..target
    })
}

/// Whether an action's path can be read as a URL: no control characters, and every `%` of its path begins an escape.
fn is_url(path: &str) -> bool {
    let escaped = path.split(['?', '#']).next().unwrap_or_default();
    let is_escape = |after: &str| {
        let digits = after.as_bytes().get(..2);
        digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    !path.chars().any(|letter| letter.is_ascii_control())
        && escaped.split('%').skip(1).all(is_escape)
}

/// The path without `.` and `..`.
fn plain(path: &str) -> String {
    let (path, query) = match path.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (path, None),
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').skip(1) {
        match part {
            "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let path = format!("/{}", parts.join("/"));
    query.map_or(path.clone(), |query| format!("{path}?{query}"))
}

/// Escapes what must not stand in a path.
fn escape(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}' => {
                out.push_str(&format!("%{byte:02X}"));
            }
            0x21..=0x7e => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn actions_become_urls_as_the_api_has_them() {
        let table = [
            ("", "http://10.1.0.5:80", "/"),
            ("/", "http://10.1.0.5:80/", "/"),
            ("x", "http://10.1.0.5:80/x", "/x"),
            ("/a?b=c", "http://10.1.0.5:80/a?b=c", "/a?b=c"),
            ("?b", "http://10.1.0.5:80?b", "/?b"),
            ("/a b#c", "http://10.1.0.5:80/a%20b", "/a%20b"),
            ("/a%20b", "http://10.1.0.5:80/a%20b", "/a%20b"),
            ("/a?100%", "http://10.1.0.5:80/a?100%", "/a?100%"),
            (
                "/100%?b#c",
                "http://10.1.0.5:80/100%25%3Fb%23c",
                "/100%25%3Fb%23c",
            ),
            ("/a\n", "http://10.1.0.5:80/a%0A", "/a%0A"),
            ("http://h:1/a?b", "http://10.1.0.5:80/a?b", "/a?b"),
            ("//h", "http://10.1.0.5:80", "/"),
            ("///a", "http://10.1.0.5:80///a", "///a"),
        ];
        for (path, text, sent) in table {
            let target = Target::of_action(false, "10.1.0.5", 80, path);
            assert_eq!((target.text.as_str(), target.path.as_str()), (text, sent));
        }
        let six = Target::new(true, "fd00::5", 8443, "/");
        assert_eq!(six.text, "https://[fd00::5]:8443/");
    }

    #[test]
    fn redirects_are_read_from_where_they_were_met() {
        let from = Target::new(false, "10.1.0.5", 8080, "/a/b?x");
        let table = [
            ("/ok", "10.1.0.5", 8080, "/ok"),
            ("ok", "10.1.0.5", 8080, "/a/ok"),
            ("../ok", "10.1.0.5", 8080, "/ok"),
            ("?y", "10.1.0.5", 8080, "/a/b?y"),
            ("http://other/x", "other", 80, "/x"),
            ("https://10.1.0.5:9/x#f", "10.1.0.5", 9, "/x"),
            ("//other:7/x", "other", 7, "/x"),
            ("http://[fd00::1]:7", "fd00::1", 7, "/"),
            ("ftp://other/x", "other", 80, "/x"),
            ("mailto:a@b", "", 80, "/"),
        ];
        for (location, host, port, path) in table {
            let to = from.join(location).expect("a target");
            assert_eq!(
                (to.host.as_str(), to.port, to.path.as_str()),
                (host, port, path),
                "{location}"
            );
        }
        let error = from.join("ftp://10.1.0.5/").expect_err("no such scheme");
        assert_eq!(error, "unsupported protocol scheme \"ftp\"");
    }

    proptest! {
        #[test]
        fn no_location_panics_and_every_target_can_be_sent(location in ".{0,60}") {
            let from = Target::new(false, "10.1.0.5", 8080, "/a/b");
            if let Ok(to) = from.join(&location) {
                prop_assert!(to.path.starts_with('/'));
            }
            let target = Target::of_action(true, "10.1.0.5", 80, &location);
            prop_assert!(target.path.parse::<http::uri::PathAndQuery>().is_ok());
        }
    }
}
