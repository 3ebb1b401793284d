//! The node's own certificates, when the cluster signs them.
//!
//! ```text
//! bootstrap   token ─► request ─► store ─► kubeconfig             once, before anything else
//! renewal     most of its life is over ─► request ─► store ─► new connections use it
//! ```
//! Files are the kubelet's: `kubelet-client-current.pem` and `kubelet-server-current.pem` in the certificate
//! directory, each a link to a dated file with certificate and key.

pub mod bootstrap;
pub mod renewal;
pub mod request;
pub mod store;

use std::net::IpAddr;
use std::path::PathBuf;

use rcgen::{CertificateParams, DnType, KeyPair};

use store::Store;

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The node's identity towards the API server.
    Client,
    /// The kubelet API's own.
    Serving,
}

impl Kind {
    /// What the names of its files begin with.
    fn stem(self) -> &'static str {
        match self {
            Kind::Client => "kubelet-client",
            Kind::Serving => "kubelet-server",
        }
    }

    /// Who is to sign it.
    fn signer(self) -> &'static str {
        match self {
            Kind::Client => "kubernetes.io/kube-apiserver-client-kubelet",
            Kind::Serving => "kubernetes.io/kubelet-serving",
        }
    }

    /// What it is for. Our keys are not RSA, so that nothing is enciphered with them.
    fn usages(self) -> [&'static str; 2] {
        match self {
            Kind::Client => ["digital signature", "client auth"],
            Kind::Serving => ["digital signature", "server auth"],
        }
    }
}

/// A certificate that the node wants.
#[derive(Debug, Clone)]
pub struct Order {
    /// Which.
    pub kind: Kind,
    /// The node's name.
    pub node_name: String,
    /// The node's addresses: a serving certificate holds them.
    pub addresses: Vec<IpAddr>,
    /// Where it is kept.
    pub store: Store,
}

impl Order {
    /// The request, PEM.
    fn request(&self, key: &KeyPair) -> Result<String, rcgen::Error> {
        let names = match self.kind {
            Kind::Client => Vec::new(),
            Kind::Serving => std::iter::once(self.node_name.clone())
                .chain(self.addresses.iter().map(IpAddr::to_string))
                .collect(),
        };
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        let subject = &mut params.distinguished_name;
        subject.push(DnType::OrganizationName, "system:nodes");
        subject.push(
            DnType::CommonName,
            format!("system:node:{}", self.node_name),
        );
        params.serialize_request(key)?.pem()
    }
}

/// A certificate could not be had.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file could not be read or written.
    #[error("cannot {verb} {}", path.display())]
    File {
        /// What was tried.
        verb: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// A file or an answer is no certificate or key.
    #[error("{place}: {message}")]
    Malformed {
        /// Where it was found.
        place: String,
        /// What is wrong with it.
        message: String,
    },
    /// A key or a request could not be made.
    #[error("cannot make a certificate request")]
    Request(#[from] rcgen::Error),
    /// The API server does not take the request.
    #[error("certificate signing request {name}: {message}")]
    Refused {
        /// Name of the request.
        name: String,
        /// Its words.
        message: String,
    },
    /// Whoever decides has said no.
    #[error("certificate signing request {name} is {condition}: {message}")]
    Denied {
        /// Name of the request.
        name: String,
        /// Denied or Failed.
        condition: String,
        /// Why.
        message: String,
    },
    /// Nobody has decided.
    #[error(
        "certificate signing request {name} is not approved yet: kubectl certificate approve {name}"
    )]
    Undecided {
        /// Name of the request.
        name: String,
    },
}
