//! Proving to a registry who is asking: challenges, tokens, and which host may see which secret.
//!
//! A secret belongs to one registry. It goes to that registry's own endpoint, and to the token service that
//! the endpoint names, if that is asked over https (or is on the very host that is configured for plain
//! http). Mirrors and hosts that a redirect leads to never see it.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::Uri;
use serde::Deserialize;

use super::RegistryError;
use super::hosts::{Endpoint, host_of};
use super::http::{Request, Transport};
use crate::api::Credentials;

/// Largest answer of a token service, bytes.
const MAX_TOKEN: usize = 64 << 10;

/// What a registry wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// A token from `realm`.
    Bearer {
        realm: String,
        service: Option<String>,
        scope: Option<String>,
    },
    /// User and password.
    Basic,
}

/// Reads `WWW-Authenticate`: one or more challenges. What is not understood is skipped.
pub(crate) fn parse_challenges(header: &str) -> Vec<Challenge> {
    let mut challenges = Vec::new();
    let mut rest = header.trim_start_matches([' ', ',', '\t']);
    while !rest.is_empty() {
        let end = rest.find([' ', ',']).unwrap_or(rest.len());
        let scheme = rest[..end].to_ascii_lowercase();
        let (parameters, after) = parse_parameters(&rest[end..]);
        let get = |name: &str| {
            let found = parameters.iter().find(|(key, _)| key == name);
            found.map(|(_, value)| value.clone())
        };
        match (scheme.as_str(), get("realm")) {
            ("bearer", Some(realm)) => challenges.push(Challenge::Bearer {
                realm,
                service: get("service"),
                scope: get("scope"),
            }),
            ("basic", _) => challenges.push(Challenge::Basic),
            _ => {}
        }
        // Each turn takes at least the scheme, so this ends.
        rest = after.trim_start_matches([' ', ',', '\t']);
    }
    challenges
}

/// Reads `name="value", …` up to the next scheme; returns what follows.
fn parse_parameters(text: &str) -> (Vec<(String, String)>, &str) {
    let mut parameters = Vec::new();
    let mut rest = text;
    loop {
        let next = rest.trim_start_matches([' ', ',', '\t']);
        let Some(equals) = next.find('=') else {
            return (parameters, rest);
        };
        let name = &next[..equals];
        if name.contains([' ', ',', '"']) {
            return (parameters, rest);
        }
        let (value, after) = match next[equals + 1..].strip_prefix('"') {
            Some(quoted) => unquote(quoted),
            None => {
                let value = &next[equals + 1..];
                let end = value.find([',', ' ']).unwrap_or(value.len());
                (value[..end].to_owned(), &value[end..])
            }
        };
        parameters.push((name.to_ascii_lowercase(), value));
        rest = after;
    }
}

fn unquote(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut escaped = false;
    for (at, letter) in text.char_indices() {
        match letter {
            _ if escaped => {
                value.push(letter);
                escaped = false;
            }
            '\\' => escaped = true,
            '"' => return (value, &text[at + 1..]),
            _ => value.push(letter),
        }
    }
    (value, "")
}

#[derive(Deserialize)]
struct TokenAnswer {
    #[serde(default)]
    token: Option<String>,
    #[serde(default)]
    access_token: Option<String>,
}

/// Answers a challenge. The result is a value for `Authorization`; none when there is nothing to say.
pub(crate) async fn answer(
    transport: &Transport,
    endpoint: &Endpoint,
    challenges: &[Challenge],
    credentials: Option<&Credentials>,
    repository: &str,
) -> Result<Option<String>, RegistryError> {
    let credentials = credentials.filter(|_| !endpoint.mirror);
    if let Some(Credentials::RegistryToken(token)) = credentials {
        return Ok(Some(format!("Bearer {token}")));
    }
    let bearer = challenges.iter().find_map(|challenge| match challenge {
        Challenge::Bearer {
            realm,
            service,
            scope,
        } => Some((realm, service, scope)),
        Challenge::Basic => None,
    });
    if let Some((realm, service, scope)) = bearer {
        let scope = scope
            .clone()
            .unwrap_or_else(|| format!("repository:{repository}:pull"));
        let query = Query {
            realm,
            service: service.as_deref().unwrap_or_default(),
            scope: &scope,
        };
        return fetch_token(transport, endpoint, &query, credentials)
            .await
            .map(Some);
    }
    match (challenges.contains(&Challenge::Basic), credentials) {
        (true, Some(Credentials::Basic { username, password })) => {
            Ok(Some(basic(username, password)))
        }
        _ => Ok(None),
    }
}

fn basic(username: &str, password: &str) -> String {
    format!(
        "Basic {}",
        STANDARD.encode(format!("{username}:{password}"))
    )
}

struct Query<'a> {
    realm: &'a str,
    service: &'a str,
    scope: &'a str,
}

async fn fetch_token(
    transport: &Transport,
    endpoint: &Endpoint,
    query: &Query<'_>,
    credentials: Option<&Credentials>,
) -> Result<String, RegistryError> {
    let realm = check_realm(endpoint, query.realm)?;
    let mut request = match credentials {
        Some(Credentials::IdentityToken(token)) => Request::post(
            realm.to_string(),
            form(&[
                ("grant_type", "refresh_token"),
                ("refresh_token", token),
                ("service", query.service),
                ("scope", query.scope),
                ("client_id", "hanok"),
            ]),
        ),
        _ => {
            let mut pairs = vec![("scope", query.scope)];
            if !query.service.is_empty() {
                pairs.push(("service", query.service));
            }
            let joint = if realm.query().is_some() { '&' } else { '?' };
            Request::get(format!("{realm}{joint}{}", form(&pairs)))
        }
    };
    if let Some(Credentials::Basic { username, password }) = credentials {
        request.authorization = Some(basic(username, password));
    }
    let mut response = transport.send_once(&request, &endpoint.tls).await?;
    let status = response.status();
    if !status.is_success() {
        return Err(RegistryError::Token {
            realm: query.realm.to_owned(),
            status: status.as_u16(),
        });
    }
    let body = transport.body(&mut response, MAX_TOKEN).await?;
    let unusable = || RegistryError::BadToken {
        realm: query.realm.to_owned(),
    };
    let answer: TokenAnswer = serde_json::from_slice(&body).map_err(|_| unusable())?;
    let token = answer
        .token
        .or(answer.access_token)
        .filter(|token| !token.is_empty());
    Ok(format!("Bearer {}", token.ok_or_else(unusable)?))
}

/// Whether a token service may be asked: it is about to see a secret.
fn check_realm(endpoint: &Endpoint, realm: &str) -> Result<Uri, RegistryError> {
    let refuse = |why| RegistryError::Realm {
        realm: realm.chars().take(200).collect(),
        why,
    };
    let uri: Uri = realm.parse().map_err(|_| refuse("it is not a URL"))?;
    let Some(authority) = uri.authority() else {
        return Err(refuse("it is not a URL"));
    };
    if authority.as_str().contains('@') {
        return Err(refuse("it carries a user name"));
    }
    let plain_host = endpoint.origin.strip_prefix("http://").map(host_of);
    match uri.scheme_str() {
        Some("https") => Ok(uri),
        Some("http") if plain_host == Some(host_of(authority.as_str())) => Ok(uri),
        Some("http") => Err(refuse("it is not https")),
        _ => Err(refuse("it is not https")),
    }
}

/// Encodes a query or a form.
pub(crate) fn form(pairs: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (name, value) in pairs {
        if !text.is_empty() {
            text.push('&');
        }
        for (at, part) in [name, value].into_iter().enumerate() {
            if at == 1 {
                text.push('=');
            }
            for byte in part.bytes() {
                match byte {
                    b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                        text.push(char::from(byte));
                    }
                    _ => text.push_str(&format!("%{byte:02X}")),
                }
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Challenge {
        Challenge::Bearer {
            realm: realm.to_owned(),
            service: service.map(str::to_owned),
            scope: scope.map(str::to_owned),
        }
    }

    #[test]
    fn challenges_are_read_as_registries_write_them() {
        assert_eq!(
            parse_challenges(
                "Bearer realm=\"https://a/token\",service=\"s.io\",scope=\"repository:x:pull,push\""
            ),
            [bearer(
                "https://a/token",
                Some("s.io"),
                Some("repository:x:pull,push")
            )]
        );
        assert_eq!(
            parse_challenges("Basic realm=\"x y\", bearer Realm=\"https://b\", Negotiate"),
            [Challenge::Basic, bearer("https://b", None, None)]
        );
        assert_eq!(parse_challenges("Basic"), [Challenge::Basic]);
        assert_eq!(parse_challenges("Bearer service=x"), []);
        assert_eq!(
            parse_challenges(r#"Bearer realm="a\"b""#),
            [bearer("a\"b", None, None)]
        );
    }

    #[test]
    fn a_token_service_must_be_https_or_the_plain_host_itself() {
        let endpoint = |origin: &str| Endpoint {
            origin: origin.to_owned(),
            path: "/v2".to_owned(),
            tls: super::super::hosts::Tls::default(),
            mirror: false,
            resolve: true,
        };
        let https = endpoint("https://r.io");
        let http = endpoint("http://lab:5000");
        assert!(check_realm(&https, "https://auth.io/token").is_ok());
        assert!(check_realm(&http, "http://lab:5001/token").is_ok());
        for (from, realm) in [
            (&https, "http://auth.io/token"),
            (&https, "http://r.io/token"),
            (&http, "http://other:5000/token"),
            (&https, "https://u:p@auth.io/"),
            (&https, "file:///etc/passwd"),
            (&https, "token"),
        ] {
            assert!(check_realm(from, realm).is_err(), "{realm}");
        }
    }

    proptest! {
        #[test]
        fn no_header_makes_it_panic_or_hang(text in "\\PC{0,200}") {
            let _ = parse_challenges(&text);
        }

        #[test]
        fn no_mutation_of_a_challenge_makes_it_panic(at in 0_usize..60, letter in any::<char>()) {
            let mut text: Vec<char> = "Bearer realm=\"https://a/t\",service=\"s\", Basic realm=x".chars().collect();
            let at = at % text.len();
            text[at] = letter;
            let _ = parse_challenges(&text.into_iter().collect::<String>());
        }
    }
}
