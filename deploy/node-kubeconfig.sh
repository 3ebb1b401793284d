#!/bin/bash
# Makes a certificate for a node by the cluster's own signer and prints a kubeconfig with it.
# KUBECONFIG (or ~/.kube/config) is that of an administrator. Needs kubectl and openssl.
#
#   node-kubeconfig.sh NODE [SERVER]      SERVER: the API server's URL as the node reaches it; default as in KUBECONFIG
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
node=$1
field() { kubectl config view --raw --minify --output "jsonpath={.clusters[0].cluster.$1}"; }
server=${2:-$(field server)}
ca=$(field certificate-authority-data)
[ -n "$ca" ] || ca=$(base64 --wrap=0 "$(field certificate-authority)")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$work/key" \
    -subj "/O=system:nodes/CN=system:node:$node" -out "$work/csr" 2>"$work/log" || { cat "$work/log" >&2; exit 1; }
request=hanok-$node-$(sha256sum "$work/csr" | cut -c -8)
kubectl create --filename - >&2 <<YAML
apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata: { name: $request }
spec:
  signerName: kubernetes.io/kube-apiserver-client-kubelet
  usages: [digital signature, client auth]
  request: $(base64 --wrap=0 "$work/csr")
YAML
kubectl certificate approve "$request" >&2
certificate=
for _ in $(seq 50); do
    certificate=$(kubectl get csr "$request" --output 'jsonpath={.status.certificate}')
    [ -z "$certificate" ] || break
    sleep 0.2
done
[ -n "$certificate" ] || { echo "$request was approved and not signed within 10 s" >&2; exit 1; }
cat <<YAML
apiVersion: v1
kind: Config
clusters: [{ name: cluster, cluster: { server: "$server", certificate-authority-data: $ca } }]
users: [{ name: node, user: { client-certificate-data: $certificate, client-key-data: $(base64 --wrap=0 "$work/key") } }]
contexts: [{ name: node, context: { cluster: cluster, user: node } }]
current-context: node
YAML
