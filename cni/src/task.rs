//! Short-lived threads for work that changes a thread's namespaces.
//!
//! A thread of the async runtime must never change its network namespace: the next task would run in
//! it. Such work gets a thread of its own, which ends with it.

use std::io;
use std::thread;

use tokio::sync::oneshot;

/// Runs `work` on a fresh thread and waits for it without blocking the runtime.
pub(crate) async fn on_thread<T, F>(name: &str, work: F) -> io::Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let (send, receive) = oneshot::channel();
    let span = tracing::Span::current();
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            let _entered = span.entered();
            // Nobody listens any more when the caller was cancelled; the work is done all the same.
            let _ = send.send(work());
        })?;
    receive
        .await
        .map_err(|_| io::Error::other("the thread ended without a result"))
}
