//! Small manifests for stories: a pod in a line or two, and everything else by `json!`.

use serde_json::{Value, json};

/// A pod to be.
#[derive(Debug, Clone)]
pub struct Pod {
    name: String,
    spec: Value,
    labels: Value,
}

/// A container to be.
#[derive(Debug, Clone)]
pub struct Container(Value);

/// A pod without containers yet. It is given two seconds to end.
pub fn pod(name: &str) -> Pod {
    let spec = json!({ "containers": [], "terminationGracePeriodSeconds": 2 });
    Pod {
        name: name.to_owned(),
        spec,
        labels: json!({ "app": name }),
    }
}

/// A container that runs the test program with these arguments, split at blanks.
pub fn testapp(name: &str, args: &str) -> Container {
    let args: Vec<&str> = args.split_whitespace().collect();
    Container(json!({ "name": name, "image": "REGISTRY/testapp:1", "args": args }))
}

/// A container that runs a line of shell.
pub fn shell(name: &str, line: &str) -> Container {
    let command = ["sh", "-c", line];
    Container(json!({ "name": name, "image": "REGISTRY/busybox:1", "command": command }))
}

impl Pod {
    /// Adds a container.
    #[must_use]
    pub fn with(mut self, container: Container) -> Self {
        push(&mut self.spec["containers"], container.0);
        self
    }

    /// Adds an init container.
    #[must_use]
    pub fn init(mut self, container: Container) -> Self {
        push(&mut self.spec["initContainers"], container.0);
        self
    }

    /// Sets a field of the spec.
    #[must_use]
    pub fn set(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.spec[field] = value.into();
        self
    }

    /// Sets the restart policy.
    #[must_use]
    pub fn restart(self, policy: &str) -> Self {
        self.set("restartPolicy", policy)
    }

    /// Adds a volume.
    #[must_use]
    pub fn volume(mut self, name: &str, source: Value) -> Self {
        let mut volume = source;
        volume["name"] = name.into();
        push(&mut self.spec["volumes"], volume);
        self
    }

    /// Lets it run on this node only.
    #[must_use]
    pub fn on(self, node: &str) -> Self {
        self.set("nodeSelector", json!({ "kubernetes.io/hostname": node }))
    }

    /// Binds it to this node, without any scheduler.
    #[must_use]
    pub fn bound_to(self, node: &str) -> Self {
        self.set("nodeName", node)
    }

    /// Lets it stay on a node with a NoExecute taint of this key: so many seconds, or for ever.
    #[must_use]
    pub fn tolerating(mut self, key: &str, seconds: Option<u32>) -> Self {
        let mut toleration = json!({ "key": key, "operator": "Exists", "effect": "NoExecute" });
        if let Some(seconds) = seconds {
            toleration["tolerationSeconds"] = seconds.into();
        }
        push(&mut self.spec["tolerations"], toleration);
        self
    }

    /// The manifest of the pod itself.
    pub fn manifest(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": self.name, "labels": self.labels },
            "spec": self.spec,
        })
    }

    /// A Deployment of it.
    pub fn deployment(&self, replicas: u32) -> Value {
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": { "name": self.name },
            "spec": {
                "replicas": replicas,
                "selector": { "matchLabels": self.labels },
                "template": { "metadata": { "labels": self.labels }, "spec": self.spec },
            },
        })
    }

    /// A StatefulSet of it.
    pub fn stateful_set(&self, replicas: u32) -> Value {
        let mut set = self.deployment(replicas);
        set["kind"] = "StatefulSet".into();
        set
    }

    /// A DaemonSet of it.
    pub fn daemon_set(&self) -> Value {
        let mut set = self.deployment(1);
        set["kind"] = "DaemonSet".into();
        if let Some(spec) = set["spec"].as_object_mut() {
            spec.remove("replicas");
        }
        set
    }

    /// A Job of it.
    pub fn job(&self) -> Value {
        json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": { "name": self.name },
            "spec": { "template": { "metadata": { "labels": self.labels }, "spec": self.spec } },
        })
    }
}

impl Container {
    /// Sets a field.
    #[must_use]
    pub fn set(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0[field] = value.into();
        self
    }

    /// Uses another image of the lab's registry.
    #[must_use]
    pub fn image(self, image: &str) -> Self {
        self.set("image", format!("REGISTRY/{image}"))
    }

    /// Mounts a volume.
    #[must_use]
    pub fn mount(mut self, volume: &str, path: &str) -> Self {
        push(
            &mut self.0["volumeMounts"],
            json!({ "name": volume, "mountPath": path }),
        );
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        push(&mut self.0["env"], json!({ "name": name, "value": value }));
        self
    }

    /// Sets an environment variable from elsewhere (`valueFrom`).
    #[must_use]
    pub fn env_from(mut self, name: &str, source: Value) -> Self {
        push(
            &mut self.0["env"],
            json!({ "name": name, "valueFrom": source }),
        );
        self
    }

    /// Limits memory and CPU; requests are the same.
    #[must_use]
    pub fn limits(self, memory: &str, cpu: &str) -> Self {
        self.set(
            "resources",
            json!({ "limits": { "memory": memory, "cpu": cpu } }),
        )
    }
}

fn push(list: &mut Value, item: Value) {
    if !list.is_array() {
        *list = json!([]);
    }
    if let Some(list) = list.as_array_mut() {
        list.push(item);
    }
}
