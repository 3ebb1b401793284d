//! Pods from files, of which the cluster has mirrors.
//!
//! A static pod that crashes is not among them: its UID is that of its text, by which a kubelet finds the back-off of the
//! run before, and it is told as restarted or not.

use super::super::case::{Case, case};
use super::sleeper;
use crate::manifest::pod;

pub(super) fn cases() -> Vec<Case> {
    vec![
        case(&pod("static").with(sleeper("c")), &["phase Running"]).made_static(),
        case(
            &pod("static-without-image").with(sleeper("c").image("nowhere:7")),
            &[
                "container c waiting ImagePullBackOff",
                "event Normal BackOff",
            ],
        )
        .made_static(),
    ]
}
