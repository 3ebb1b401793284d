//! Files that somebody else renews, or lets expire.

use super::*;

/// A certificate with its key, PEM.
fn pair() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(["node".to_owned()]).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

/// The same, of somebody whose certificate expires at the beginning of this year.
fn pair_until(year: i32) -> (String, String) {
    let mut params = rcgen::CertificateParams::new(["node".to_owned()]).unwrap();
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, "node");
    params.not_before = rcgen::date_time_ymd(2001, 1, 1);
    params.not_after = rcgen::date_time_ymd(year, 1, 1);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

#[tokio::test]
async fn an_expired_certificate_is_told_of_once_and_looked_after_more_often() {
    let (dir, path) = files();
    let mut follower = Follower::new(path.clone(), Arc::new(|| None)).await;
    let now = Timestamp::now();
    assert_eq!(follower.pause(now), LOOK, "no common name, no facts");
    let server = super::super::load(&path, None).await.unwrap();
    for (year, pause, told) in [(3000, LOOK, false), (2002, LOOK_EXPIRED, true)] {
        let (certificate, key) = pair_until(year);
        put(&dir, "node.pem", &certificate);
        put(&dir, "node.key", &key);
        assert!(follower.look(&server).await.unwrap().used);
        assert_eq!(follower.pause(now), pause, "{year}");
        assert_eq!(follower.told_expired.is_some(), told, "{year}");
    }
    let soon = follower.told_expired.unwrap() - jiff::SignedDuration::from_secs(60);
    assert_eq!(follower.pause(soon), Duration::from_secs(60));
}

#[tokio::test]
async fn what_takes_the_place_of_the_agents_own_expired_certificate_is_used() {
    let (dir, path) = files();
    let own = dir.path().join("own.pem");
    let put_until = |year| {
        let (certificate, key) = pair_until(year);
        std::fs::write(&own, [certificate, key].concat()).unwrap();
    };
    put_until(3000);
    let identity = own.clone();
    let identity = move || Some(identity.clone());
    let mut follower = Follower::new(path.clone(), Arc::new(identity)).await;
    let server = super::super::load(&path, Some(&own)).await.unwrap();
    // The agent itself has renewed it; then it expires, and somebody helps.
    for (year, used) in [(2002, false), (3000, true), (3001, false)] {
        put_until(year);
        assert_eq!(follower.look(&server).await.unwrap().used, used, "{year}");
    }
}

const KUBECONFIG: &str = "current-context: c\n\
    contexts: [{name: c, context: {cluster: k, user: u}}]\n\
    clusters: [{name: k, cluster: {server: 'https://127.0.0.1:1', certificate-authority: ca.pem}}]\n\
    users: [{name: u, user: {client-certificate: node.pem, client-key: node.key}}]\n";

/// A directory with a kubeconfig and its files, and the path of the kubeconfig.
fn files() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (certificate, key) = pair();
    for (name, text) in [
        ("node.kubeconfig", KUBECONFIG),
        ("ca.pem", &certificate),
        ("node.pem", &certificate),
        ("node.key", &key),
    ] {
        put(&dir, name, text);
    }
    let path = dir.path().join("node.kubeconfig");
    (dir, path)
}

fn put(dir: &tempfile::TempDir, name: &str, text: &str) {
    std::fs::write(dir.path().join(name), text).unwrap();
}

fn change(used: bool, unused: &[&'static str]) -> Change {
    let unused = unused.to_vec();
    Change { used, unused }
}

#[tokio::test]
async fn credentials_that_change_on_disk_are_used_once_they_are_whole() {
    let (dir, path) = files();
    let mut follower = Follower::new(path.clone(), Arc::new(|| None)).await;
    let server = super::super::load(&path, None).await.unwrap();
    let mut used = async || follower.look(&server).await.map(|change| change.used);
    assert!(!used().await.unwrap());
    let (certificate, key) = pair();
    put(&dir, "node.pem", &certificate);
    assert!(used().await.is_err(), "with the key of another one");
    put(&dir, "node.key", &key);
    assert!(used().await.unwrap());
    assert!(!used().await.unwrap());
    put(&dir, "ca.pem", &pair().0);
    assert!(used().await.unwrap());
    std::fs::remove_file(&path).unwrap();
    assert!(used().await.is_err());
}

#[tokio::test]
async fn another_server_or_token_is_told_of_once_and_not_called_used() {
    let (dir, path) = files();
    let mut follower = Follower::new(path.clone(), Arc::new(|| None)).await;
    let server = super::super::load(&path, None).await.unwrap();
    let moved = KUBECONFIG.replace("127.0.0.1:1", "127.0.0.1:2");
    put(&dir, "node.kubeconfig", &moved);
    let (told, nothing) = (
        change(false, &["clusters[].cluster.server"]),
        change(false, &[]),
    );
    assert_eq!(follower.look(&server).await.unwrap(), told);
    assert_eq!(follower.look(&server).await.unwrap(), nothing);
    let with_token = moved.replace("{client-certificate", "{token: t, client-certificate");
    put(&dir, "node.kubeconfig", &with_token);
    let told = change(false, &["users[].user.token"]);
    assert_eq!(follower.look(&server).await.unwrap(), told);
    put(&dir, "node.kubeconfig", "");
    assert!(follower.look(&server).await.is_err());
}

#[tokio::test]
async fn what_the_agent_renews_by_itself_is_not_followed_but_the_authority_is() {
    let (dir, path) = files();
    let own = dir.path().join("own.pem");
    let renew = || std::fs::write(&own, [pair().0, pair().1].concat()).unwrap();
    let identity = own.clone();
    let identity = move || identity.exists().then(|| identity.clone());
    let mut follower = Follower::new(path.clone(), Arc::new(identity)).await;
    let server = super::super::load(&path, None).await.unwrap();
    for _ in 0..2 {
        renew();
        assert_eq!(follower.look(&server).await.unwrap(), change(false, &[]));
    }
    let (certificate, key) = pair();
    std::fs::write(&own, [certificate, key].concat()).unwrap();
    put(&dir, "ca.pem", &pair().0);
    assert_eq!(follower.look(&server).await.unwrap(), change(true, &[]));
    std::fs::remove_file(&own).unwrap();
    let given = follower.look(&server).await.unwrap();
    assert_eq!(given, change(true, &[]), "the kubeconfig's counts again");
}
