//! One endpoint, one repository, one user: documents, and requests that prove who asks.

use hyper::body::Incoming;
use hyper::{Method, Response, StatusCode};

use super::auth::parse_challenges;
use super::http::Request;
use super::{ACCEPT, Ask, Endpoint, RegistryError, Resolved, Session, auth, fetch, text_header};
use crate::content::Digest;
use crate::image::manifest::MAX_DOCUMENT;

impl Session {
    pub(super) async fn resolve(
        &self,
        ask: Ask,
        known: impl Fn(&Digest) -> bool,
    ) -> Result<Resolved, RegistryError> {
        let identifier = self.reference.identifier();
        let url = self.url("manifests", &identifier);
        if ask == Ask::Digest
            && let Some(resolved) = self.head(&url, &known).await?
        {
            return Ok(resolved);
        }
        let mut response = self.request(&Method::GET, &url, None).await?;
        let media_type = text_header(&response, "content-type");
        let limit = usize::try_from(MAX_DOCUMENT).unwrap_or(usize::MAX);
        let bytes = self.transport.body(&mut response, limit).await?;
        let digest = Digest::of(&bytes);
        let announced = text_header(&response, "docker-content-digest").parse().ok();
        for want in [self.reference.digest().copied(), announced]
            .into_iter()
            .flatten()
        {
            if want != digest {
                return Err(RegistryError::Digest { want, got: digest });
            }
        }
        Ok(Resolved {
            digest,
            media_type,
            bytes: Some(bytes),
        })
    }

    /// Asks for the digest only, which is enough when the document is known.
    async fn head(
        &self,
        url: &str,
        known: impl Fn(&Digest) -> bool,
    ) -> Result<Option<Resolved>, RegistryError> {
        let response = self.request(&Method::HEAD, url, None).await?;
        let announced = text_header(&response, "docker-content-digest").parse().ok();
        let digest: Option<Digest> = self.reference.digest().copied().or(announced);
        let media_type = text_header(&response, "content-type");
        Ok(digest.filter(known).map(|digest| Resolved {
            digest,
            media_type,
            bytes: None,
        }))
    }

    /// Fetches a manifest or index by digest.
    pub async fn document(&self, digest: &Digest) -> Result<Vec<u8>, RegistryError> {
        self.small("manifests", digest).await
    }

    /// Fetches a small blob, such as a config, by digest.
    pub async fn small_blob(&self, digest: &Digest) -> Result<Vec<u8>, RegistryError> {
        self.small("blobs", digest).await
    }

    async fn small(&self, kind: &str, digest: &Digest) -> Result<Vec<u8>, RegistryError> {
        let url = self.url(kind, &digest.to_string());
        let limit = usize::try_from(MAX_DOCUMENT).unwrap_or(usize::MAX);
        let mut retry = fetch::Retry::new(&self.config);
        loop {
            let attempt = async {
                let mut response = self.request(&Method::GET, &url, None).await?;
                self.transport.body(&mut response, limit).await
            };
            match attempt.await {
                Ok(bytes) if Digest::of(&bytes) == *digest => return Ok(bytes),
                Ok(bytes) => {
                    return Err(RegistryError::Digest {
                        want: *digest,
                        got: Digest::of(&bytes),
                    });
                }
                Err(e) => retry.pause(e).await?,
            }
        }
    }

    pub(super) fn url(&self, kind: &str, identifier: &str) -> String {
        let Endpoint {
            origin,
            path,
            mirror,
            ..
        } = &self.endpoint;
        let repository = self.reference.repository();
        let whose = match mirror {
            true => format!("?{}", auth::form(&[("ns", self.reference.registry())])),
            false => String::new(),
        };
        format!("{origin}{path}/{repository}/{kind}/{identifier}{whose}")
    }

    /// Sends a request, answering a challenge if there is one, trying again what may be a passing failure.
    pub(super) async fn request(
        &self,
        method: &Method,
        url: &str,
        range_from: Option<u64>,
    ) -> Result<Response<Incoming>, RegistryError> {
        let mut retry = fetch::Retry::new(&self.config);
        loop {
            match self.try_request(method, url, range_from).await {
                Err(e) => retry.pause(e).await?,
                ok => return ok,
            }
        }
    }

    async fn try_request(
        &self,
        method: &Method,
        url: &str,
        range_from: Option<u64>,
    ) -> Result<Response<Incoming>, RegistryError> {
        let mut request = Request::get(url.to_owned());
        request.method = method.clone();
        request.accept = url.contains("/manifests/").then_some(ACCEPT);
        request.range_from = range_from;
        let sent = self.authorization.lock().await.clone();
        request.authorization.clone_from(&sent);
        let mut response = self.transport.send(&request, &self.endpoint.tls).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            request.authorization = self.authorize(&response, sent.as_deref()).await?;
            if request.authorization.is_some() {
                response = self.transport.send(&request, &self.endpoint.tls).await?;
            }
        }
        let status = response.status();
        let what = || self.reference.to_string();
        match status {
            _ if status.is_success() => Ok(response),
            StatusCode::NOT_FOUND => Err(RegistryError::NotFound(what())),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(RegistryError::Denied {
                what: what(),
                status: status.as_u16(),
            }),
            _ => Err(RegistryError::Status {
                method: method.to_string(),
                url: url.to_owned(),
                status,
                retry_after: text_header(&response, "retry-after").parse().ok(),
            }),
        }
    }

    /// Answers a challenge, once for all requests that meet it at the same time.
    async fn authorize(
        &self,
        response: &Response<Incoming>,
        sent: Option<&str>,
    ) -> Result<Option<String>, RegistryError> {
        let mut current = self.authorization.lock().await;
        if current.as_deref() != sent {
            return Ok(current.clone());
        }
        let challenges: Vec<_> = response
            .headers()
            .get_all("www-authenticate")
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(parse_challenges)
            .collect();
        let repository = self.reference.repository();
        let credentials = self.credentials.as_ref();
        let answer = auth::answer(
            &self.transport,
            &self.endpoint,
            &challenges,
            credentials,
            repository,
        );
        *current = answer.await?;
        Ok(current.clone())
    }
}
