//! Laws of executed plugins.

use std::fs;
use std::time::Instant;

use super::*;

struct Scripts(tempfile::TempDir);

impl Scripts {
    fn new(name: &str, script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self(dir)
    }

    fn programs(&self, timeout: Duration) -> Programs {
        Programs {
            dirs: vec![self.0.path().to_owned()],
            timeout,
        }
    }

    async fn add(&self, name: &str) -> Result<AddResult, ExecError> {
        let attachment = Attachment::new("a", "/x");
        self.programs(Duration::from_secs(20))
            .add(name, &attachment, b"{}")
            .await
    }
}

#[tokio::test]
async fn a_result_is_read_from_standard_output() {
    let scripts = Scripts::new(
        "ok",
        r#"cat >/dev/null; echo '{"ips":[{"address":"10.0.0.2/24"}]}'"#,
    );
    assert_eq!(scripts.add("ok").await.unwrap().ips.len(), 1);
}

#[tokio::test]
async fn an_error_object_is_what_failed() {
    let script = r#"echo '{"code":7,"msg":"bad","details":"very"}'; exit 1"#;
    let error = Scripts::new("bad", script).add("bad").await.unwrap_err();
    assert_eq!(error.to_string(), "bad (code 7): very");
}

#[tokio::test]
async fn without_an_error_object_standard_error_tells() {
    let script = "echo nonsense; echo 'no such device' >&2; exit 3";
    let error = Scripts::new("bad", script)
        .add("bad")
        .await
        .unwrap_err()
        .to_string();
    assert_eq!(error, r#"exit status: 3, standard error: "no such device""#);
}

#[tokio::test]
async fn success_with_garbage_is_a_failure() {
    let error = Scripts::new("bad", "echo garbage")
        .add("bad")
        .await
        .unwrap_err();
    assert!(matches!(error, ExecError::Output(_)), "{error}");
}

#[tokio::test]
async fn a_hanging_plugin_is_killed_with_its_children() {
    let scripts = Scripts::new("hangs", "sleep 1000 & echo $! >$(dirname $0)/child; wait");
    let programs = scripts.programs(Duration::from_millis(300));
    let begin = Instant::now();
    let attachment = Attachment::new("a", "/x");
    let error = programs.add("hangs", &attachment, b"{}").await.unwrap_err();
    assert!(matches!(error, ExecError::Timeout { .. }), "{error}");
    assert!(begin.elapsed() < Duration::from_secs(10));
    assert_child_ends(&scripts).await;
}

#[tokio::test]
async fn endless_output_is_cut_off() {
    let scripts = Scripts::new(
        "talks",
        "echo $$ >$(dirname $0)/child; while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxx; done",
    );
    let error = scripts.add("talks").await.unwrap_err();
    assert!(matches!(error, ExecError::TooMuchOutput), "{error}");
    assert_child_ends(&scripts).await;
}

#[tokio::test]
async fn a_dropped_call_kills_the_plugin() {
    let scripts = Scripts::new("hangs", "echo $$ >$(dirname $0)/child; exec sleep 1000");
    let programs = scripts.programs(Duration::from_secs(1000));
    let attachment = Attachment::new("a", "/x");
    let call = programs.add("hangs", &attachment, b"{}");
    let begun = async {
        while !fs::read_to_string(scripts.0.path().join("child")).is_ok_and(|t| t.ends_with('\n')) {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = call => unreachable!("it hangs"),
        () = begun => {}
    }
    assert_child_ends(&scripts).await;
}

#[tokio::test]
async fn names_with_slashes_are_never_looked_up() {
    let scripts = Scripts::new("ok", "exit 0");
    let inside = scripts.0.path().join("deep");
    fs::create_dir(&inside).unwrap();
    let programs = Programs {
        dirs: vec![inside],
        timeout: Duration::from_secs(1),
    };
    for name in ["../ok", "/bin/sh", ".", "..", ""] {
        assert_eq!(programs.find(name), None, "{name:?}");
    }
    assert!(matches!(
        scripts.add("missing").await,
        Err(ExecError::Missing { .. })
    ));
}

/// The process whose id a script has written ends within the deadline; a zombie has ended.
async fn assert_child_ends(scripts: &Scripts) {
    let pid = fs::read_to_string(scripts.0.path().join("child")).unwrap();
    let stat = format!("/proc/{}/stat", pid.trim());
    let begin = Instant::now();
    while fs::read_to_string(&stat).is_ok_and(|text| !text.contains(") Z ")) {
        assert!(
            begin.elapsed() < Duration::from_secs(10),
            "process {pid} lives on"
        );
        tokio::task::yield_now().await;
    }
}
