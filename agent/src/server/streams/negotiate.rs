//! Which protocol a stream speaks: WebSocket or SPDY, and which version of what runs on it.

use axum::http::header::{CONNECTION, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use super::super::target::Refusal;

/// The SPDY clients' list of what they speak, and our answer.
pub(in super::super) const PROTOCOL_VERSION: HeaderName =
    HeaderName::from_static("x-stream-protocol-version");

/// What we would have accepted, when nothing of the client's list is.
const ACCEPTED_VERSIONS: HeaderName =
    HeaderName::from_static("x-accepted-stream-protocol-versions");

/// What carries the streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Carrier {
    /// RFC 6455.
    WebSocket,
    /// SPDY/3.1 after an HTTP upgrade.
    Spdy,
}

/// Reads the carrier off the request's head.
pub(in super::super) fn carrier(headers: &HeaderMap) -> Result<Carrier, Refusal> {
    let tokens = |name: HeaderName| {
        headers
            .get_all(name)
            .into_iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .map(|token| token.trim().to_ascii_lowercase())
            .collect::<Vec<_>>()
    };
    if tokens(CONNECTION).iter().any(|token| token == "upgrade") {
        for upgrade in tokens(UPGRADE) {
            match upgrade.as_str() {
                "websocket" => return Ok(Carrier::WebSocket),
                "spdy/3.1" => return Ok(Carrier::Spdy),
                _ => {}
            }
        }
    }
    Err(Refusal::bad_request(
        "unable to upgrade: missing upgrade headers in request",
    ))
}

/// Nothing that the client offers is spoken here.
#[derive(Debug)]
pub(in super::super) struct NoProtocol {
    offered: Vec<String>,
    ours: Vec<&'static str>,
}

impl IntoResponse for NoProtocol {
    fn into_response(self) -> Response {
        let message = format!(
            "unable to upgrade: unable to negotiate protocol: client supports {:?}, server accepts {:?}",
            self.offered, self.ours
        );
        let mut response = (StatusCode::FORBIDDEN, message).into_response();
        for our in self.ours {
            response
                .headers_mut()
                .append(ACCEPTED_VERSIONS, HeaderValue::from_static(our));
        }
        response
    }
}

/// Chooses the first protocol of the client's list that is in ours. A client without a list gets "".
pub(in super::super) fn spdy_protocol(
    headers: &HeaderMap,
    ours: &[&'static str],
) -> Result<&'static str, NoProtocol> {
    let offered: Vec<&str> = headers
        .get_all(PROTOCOL_VERSION)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|value| !value.is_empty())
        .collect();
    if offered.is_empty() {
        return Ok("");
    }
    let chosen = offered
        .iter()
        .find_map(|offer| ours.iter().find(|our| *our == offer));
    chosen.copied().ok_or_else(|| NoProtocol {
        offered: offered.iter().map(|offer| (*offer).to_owned()).collect(),
        ours: ours.to_vec(),
    })
}

/// Whether a WebSocket client offers any protocol at all.
pub(in super::super) fn offers_protocols(headers: &HeaderMap) -> bool {
    headers.contains_key(SEC_WEBSOCKET_PROTOCOL)
}

/// The answer that turns the connection into SPDY.
pub(in super::super) fn switch_to_spdy(protocol: &'static str) -> Response {
    let mut response = (
        StatusCode::SWITCHING_PROTOCOLS,
        [(CONNECTION, "Upgrade"), (UPGRADE, "SPDY/3.1")],
    )
        .into_response();
    if !protocol.is_empty() {
        response
            .headers_mut()
            .insert(PROTOCOL_VERSION, HeaderValue::from_static(protocol));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn the_carrier_is_in_the_upgrade_header() {
        let spdy = [
            ("connection", "keep-alive, Upgrade"),
            ("upgrade", "SPDY/3.1"),
        ];
        assert_eq!(carrier(&headers(&spdy)), Ok(Carrier::Spdy));
        let websocket = [("connection", "upgrade"), ("upgrade", "WebSocket")];
        assert_eq!(carrier(&headers(&websocket)), Ok(Carrier::WebSocket));
        assert!(carrier(&headers(&[("upgrade", "websocket")])).is_err());
        assert!(carrier(&headers(&[("connection", "upgrade"), ("upgrade", "h2c")])).is_err());
    }

    #[test]
    fn the_clients_order_decides_the_protocol() {
        let ours = ["v4.channel.k8s.io", "v3.channel.k8s.io"];
        let name = "x-stream-protocol-version";
        let offer = [
            (name, "v9"),
            (name, "v3.channel.k8s.io"),
            (name, "v4.channel.k8s.io"),
        ];
        assert_eq!(
            spdy_protocol(&headers(&offer), &ours).unwrap(),
            "v3.channel.k8s.io"
        );
        assert_eq!(spdy_protocol(&HeaderMap::new(), &ours).unwrap(), "");
        let refused = spdy_protocol(&headers(&[(name, "v9")]), &ours)
            .unwrap_err()
            .into_response();
        assert_eq!(refused.status(), StatusCode::FORBIDDEN);
        assert!(refused.headers().contains_key(ACCEPTED_VERSIONS));
    }
}
