//! What the process says of itself.

use axum::http::Method;
use http_body_util::BodyExt as _;
use serde_json::Value;

use super::super::zpages::PATHS;
use super::client::Client;
use super::fixture::Fixture;

/// Asks for an object: its media type, the warning, the text.
async fn object(
    client: &Client,
    path: &str,
    accept: &'static str,
) -> (u16, String, String, String) {
    let response = client
        .send(Method::GET, path, &[("accept", accept)])
        .await
        .unwrap();
    let status = response.status().as_u16();
    let header = |name: &str| {
        let value = response
            .headers()
            .get(name)
            .map(|value| value.to_str().unwrap());
        value.unwrap_or_default().to_owned()
    };
    let (kind, warning) = (header("content-type"), header("warning"));
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (
        status,
        kind,
        warning,
        String::from_utf8(body.to_vec()).unwrap(),
    )
}

#[tokio::test]
async fn the_process_tells_people_what_it_is_and_how_it_was_started() {
    let fixture = Fixture::start();
    let client = Client::admin(&fixture);
    let (status, text) = client.get("/statusz").await.unwrap();
    assert_eq!(status, 200);
    for part in [
        "\nkubelet statusz\n",
        "\nUp: 0 hr 0",
        "\nBinary version: 1.37.",
        " /pods ",
    ] {
        assert!(text.contains(part), "{part:?}: {text}");
    }
    let (status, text) = client.get("/flagz").await.unwrap();
    assert_eq!(status, 200);
    assert!(text.starts_with("\nkubelet flagz\n") && text.ends_with("\nconfig=/etc/config.yaml\n"));
}

#[tokio::test]
async fn programs_are_told_by_version() {
    let fixture = Fixture::start();
    let client = Client::admin(&fixture);
    let accept = "application/json;g=config.k8s.io;v=v1beta1;as=Statusz";
    let (status, media, warning, text) = object(&client, "/statusz", accept).await;
    assert_eq!(
        (status, media.as_str(), warning.as_str()),
        (200, accept, "")
    );
    let told: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(told["kind"], "Statusz");
    assert_eq!(told["apiVersion"], "config.k8s.io/v1beta1");
    assert_eq!(told["metadata"]["name"], "kubelet");
    assert_eq!(told["emulationVersion"], "1.37");
    assert_eq!(told["paths"], serde_json::json!(PATHS));
    assert!(
        told["startTime"]
            .as_str()
            .is_some_and(|time| time.len() == 20),
        "{text}"
    );
    assert!(
        told["uptimeSeconds"].is_u64() && told["goVersion"] == "",
        "{text}"
    );

    let accept = "application/yaml;g=config.k8s.io;v=v1alpha1;as=Flagz";
    let (status, media, warning, text) = object(&client, "/flagz", accept).await;
    assert_eq!((status, media.as_str()), (200, accept));
    assert!(warning.starts_with("299 - \"This version of the flagz endpoint is deprecated."));
    let told: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(told["apiVersion"], "config.k8s.io/v1alpha1");
    assert_eq!(
        told["flags"],
        serde_json::json!({"config": "/etc/config.yaml"})
    );

    let (status, _, _, text) = object(&client, "/statusz", "application/json").await;
    assert_eq!(status, 406);
    assert!(
        text.contains("\"only the following media types are accepted: application/json,"),
        "{text}"
    );
}

#[tokio::test]
async fn every_path_that_is_listed_is_served_and_pages_can_be_turned_off() {
    let fixture = Fixture::start();
    let client = Client::admin(&fixture);
    let below = |path: &'static str| match path {
        "/attach" | "/containerLogs" | "/exec" | "/run" => format!("{path}/default/web/app"),
        "/portForward" => "/portForward/default/web".to_owned(),
        "/runningpods" => "/runningpods/".to_owned(),
        "/stats" => "/stats/summary".to_owned(),
        _ => path.to_owned(),
    };
    for path in PATHS {
        assert_ne!(client.get(&below(path)).await.unwrap().0, 404, "{path}");
    }
    let fixture = Fixture::with(Default::default(), |config| {
        config.debugging_handlers = false
    });
    let client = Client::admin(&fixture);
    for path in ["/statusz", "/flagz"] {
        assert_eq!(client.get(path).await.unwrap().0, 404, "{path}");
    }
}
