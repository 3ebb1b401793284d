//! The lab's machines as network namespaces, the bridge between them, and the routes to pods.

use anyhow::Result;

use super::Lab;
use crate::network;

/// Machines beside the control plane, with their host numbers.
const MACHINES: [(&str, u8); 3] = [("n1", 11), ("n2", 12), ("peer", 13)];

/// Host number of the host's end of the lab's network.
const HOST: u8 = 254;

/// First address of the cluster's Services, that of the API server.
pub(super) const KUBERNETES_SERVICE: &str = "10.96.0.1";

/// Where the cluster's DNS would be; the lab has none, but pods with a name server are what people run.
pub(super) const CLUSTER_DNS: &str = "10.96.0.10";

/// Makes namespaces, links and addresses.
pub(super) fn create(lab: &Lab) -> Result<()> {
    let cp = lab.netns("cp");
    network::add_namespace(&cp)?;
    let address = lab.control_plane_address();
    network::ip_batch(
        &cp,
        &format!("link add lab0 type bridge\nlink set lab0 up\naddr add {address}/24 dev lab0\n"),
    )?;
    for (machine, host) in MACHINES {
        let netns = lab.netns(machine);
        network::add_namespace(&netns)?;
        attach(&cp, machine, &format!("eth0 netns {netns}"))?;
        network::ip_batch(
            &netns,
            &format!(
                "addr add {}/24 dev eth0\nlink set eth0 up\nroute add default via {address}\n",
                lab.address(host)
            ),
        )?;
    }
    // The peer's end of the host's link is made in the host's namespace, so the host makes the pair.
    let link = lab.prefix();
    network::ip_batch(
        "",
        &format!(
            "link add {link} type veth peer name host netns {cp}\n\
             addr add {}/24 dev {link}\nlink set {link} up\n",
            lab.address(HOST)
        ),
    )?;
    network::ip_batch(&cp, "link set host master lab0\nlink set host up\n")?;
    publish_api_server(lab)
}

/// Makes the Service `kubernetes` work without kube-proxy: nodes' default route leads to the control plane,
/// which sends what is meant for the Service to the API server.
fn publish_api_server(lab: &Lab) -> Result<()> {
    let rule = format!(
        "table ip lab {{\nchain services {{\ntype nat hook prerouting priority dstnat;\n\
         ip daddr {KUBERNETES_SERVICE} tcp dport 443 dnat to {}:6443\n}}\n}}",
        lab.control_plane_address()
    );
    network::in_namespace(&lab.netns("cp"), &["nft", &rule])?;
    Ok(())
}

fn attach(cp: &str, port: &str, peer: &str) -> Result<()> {
    network::ip_batch(
        cp,
        &format!(
            "link add {port} type veth peer name {peer}\n\
             link set {port} master lab0\nlink set {port} up\n"
        ),
    )
}

/// The host number of a node.
pub(super) fn host_number(node: &str) -> u8 {
    MACHINES
        .iter()
        .find(|(name, _)| *name == node)
        .map_or(0, |(_, host)| *host)
}

/// Sets the routes to the pods of nodes (name, podCIDR) in every other machine's namespace.
pub(super) fn route(lab: &Lab, nodes: &[(String, String)]) -> Result<()> {
    for machine in std::iter::once("cp").chain(MACHINES.iter().map(|(name, _)| *name)) {
        let others = nodes
            .iter()
            .filter(|(name, _)| name != machine && host_number(name) != 0);
        let routes: String = others
            .map(|(name, cidr)| {
                format!(
                    "route replace {cidr} via {}\n",
                    lab.address(host_number(name))
                )
            })
            .collect();
        network::ip_batch(&lab.netns(machine), &routes)?;
    }
    Ok(())
}
