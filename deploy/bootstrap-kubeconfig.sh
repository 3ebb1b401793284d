#!/bin/bash
# Makes a bootstrap token, valid for a day, and prints a kubeconfig with it; lets nodes with such a token ask for their
# certificates and have them signed, as kubeadm does.
# KUBECONFIG (or ~/.kube/config) is that of an administrator. Needs kubectl and openssl.
#
#   bootstrap-kubeconfig.sh [SERVER]      SERVER: the API server's URL as nodes reach it; default as in KUBECONFIG
set -euo pipefail
field() { kubectl config view --raw --minify --output "jsonpath={.clusters[0].cluster.$1}"; }
server=${1:-$(field server)}
ca=$(field certificate-authority-data)
[ -n "$ca" ] || ca=$(base64 --wrap=0 "$(field certificate-authority)")
id=$(openssl rand -hex 3)
secret=$(openssl rand -hex 8)
group=system:bootstrappers:hanok
role=system:certificates.k8s.io:certificatesigningrequests
kubectl apply --filename - >&2 <<YAML
apiVersion: v1
kind: Secret
metadata: { name: bootstrap-token-$id, namespace: kube-system }
type: bootstrap.kubernetes.io/token
stringData:
  token-id: "$id"
  token-secret: "$secret"
  expiration: $(date --utc --date=tomorrow +%Y-%m-%dT%H:%M:%SZ)
  usage-bootstrap-authentication: "true"
  auth-extra-groups: $group
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: { name: "hanok:bootstrap" }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:node-bootstrapper" }
subjects: [{ apiGroup: rbac.authorization.k8s.io, kind: Group, name: "$group" }]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: { name: "hanok:approve" }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "$role:nodeclient" }
subjects: [{ apiGroup: rbac.authorization.k8s.io, kind: Group, name: "$group" }]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: { name: "hanok:renew" }
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "$role:selfnodeclient" }
subjects: [{ apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:nodes" }]
YAML
cat <<YAML
apiVersion: v1
kind: Config
clusters: [{ name: cluster, cluster: { server: "$server", certificate-authority-data: $ca } }]
users: [{ name: bootstrap, user: { token: "$id.$secret" } }]
contexts: [{ name: bootstrap, context: { cluster: cluster, user: bootstrap } }]
current-context: bootstrap
YAML
