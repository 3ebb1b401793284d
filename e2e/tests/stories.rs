//! The stories: what a node has to do, told by kubectl against a real API server.
//!
//! `cargo test -p hanok-e2e --test stories -- NAME` tells those whose name holds NAME. With KUBECONFIG set they play on
//! that cluster, without it on a lab of their own; see `hanok_e2e::runner`.

#[path = "stories/admission.rs"]
mod admission;
#[path = "stories/agent_killed.rs"]
mod agent_killed;
#[path = "stories/api_server.rs"]
mod api_server;
#[path = "stories/bad_input.rs"]
mod bad_input;
#[path = "stories/debug.rs"]
mod debug;
#[path = "stories/deletion.rs"]
mod deletion;
#[path = "stories/golden.rs"]
mod golden;
#[path = "stories/images.rs"]
mod images;
#[path = "stories/isolation.rs"]
mod isolation;
#[path = "stories/joining.rs"]
mod joining;
#[path = "stories/local_apis.rs"]
mod local_apis;
#[path = "stories/logs_and_exec.rs"]
mod logs_and_exec;
#[path = "stories/lost.rs"]
mod lost;
#[path = "stories/many.rs"]
mod many;
#[path = "stories/probes.rs"]
mod probes;
#[path = "stories/resize.rs"]
mod resize;
#[path = "stories/restarts.rs"]
mod restarts;
#[path = "stories/run.rs"]
mod run;
#[path = "stories/stage.rs"]
mod stage;
#[path = "stories/standalone.rs"]
mod standalone;
#[path = "stories/static_pods.rs"]
mod static_pods;
#[path = "stories/taints.rs"]
mod taints;
#[path = "stories/usage.rs"]
mod usage;
#[path = "stories/volumes.rs"]
mod volumes;
#[path = "stories/workloads.rs"]
mod workloads;

use std::process::ExitCode;

fn main() -> ExitCode {
    let modules = [
        workloads::stories(),
        restarts::stories(),
        probes::stories(),
        resize::stories(),
        images::stories(),
        golden::stories(),
        logs_and_exec::stories(),
        debug::stories(),
        deletion::stories(),
        volumes::stories(),
        usage::stories(),
        isolation::stories(),
        lost::stories(),
        many::stories(),
        admission::stories(),
        taints::stories(),
        static_pods::stories(),
        local_apis::stories(),
        agent_killed::stories(),
        bad_input::stories(),
        run::stories(),
        standalone::stories(),
        joining::stories(),
        // Last: it reads the audit log of all that went before.
        api_server::stories(),
    ];
    hanok_e2e::runner::main(&modules.concat())
}
