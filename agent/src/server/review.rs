//! Who a token belongs to and who may do what: questions to the API server.
//!
//! TokenReviews and SubjectAccessReviews are among the few things that the `system:node` role may create
//! cluster-wide. [`Reviewer`] is the seam; tests use a fake, `hanok agent` uses [`ApiReviewer`].

use std::collections::BTreeMap;
use std::fmt;

use async_trait::async_trait;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, PostParams};

/// An authenticated caller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Identity {
    /// User name.
    pub user: String,
    /// User id, when the API server knows one.
    pub uid: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Further attributes.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// What a caller wants to do to this node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Access {
    /// API verb: get, create, update, patch, delete; empty for a method without one.
    pub verb: &'static str,
    /// Subresource of the node: proxy, stats, metrics, log, pods, healthz, configz ...
    pub subresource: &'static str,
    /// The node.
    pub node: String,
}

/// A review could not be had.
#[derive(Debug, thiserror::Error)]
#[error("{review} failed: {message}")]
pub struct ReviewError {
    /// Which kind of review.
    pub review: &'static str,
    /// The API server's or the transport's words.
    pub message: String,
}

/// Answers the two questions. Not cached; the callers do that.
#[async_trait]
pub trait Reviewer: Send + Sync + 'static {
    /// Who the token belongs to; none when it is not valid.
    async fn review_token(&self, token: &str) -> Result<Option<Identity>, ReviewError>;
    /// Whether the caller may.
    async fn review_access(&self, who: &Identity, what: &Access) -> Result<bool, ReviewError>;
}

/// Gives the client to use now. A node whose certificate rotates gets a new client from time to time.
type ClientSource = Box<dyn Fn() -> Client + Send + Sync>;

/// Asks the API server.
pub struct ApiReviewer {
    client: ClientSource,
}

impl fmt::Debug for ApiReviewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiReviewer").finish_non_exhaustive()
    }
}

impl ApiReviewer {
    /// Asks with the client that `client` returns at the time of the question.
    pub fn new(client: impl Fn() -> Client + Send + Sync + 'static) -> Self {
        Self {
            client: Box::new(client),
        }
    }
}

#[async_trait]
impl Reviewer for ApiReviewer {
    async fn review_token(&self, token: &str) -> Result<Option<Identity>, ReviewError> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: token.to_owned(),
                audiences: None,
            },
            ..TokenReview::default()
        };
        let answer = Api::<TokenReview>::all((self.client)())
            .create(&PostParams::default(), &review)
            .await
            .map_err(|error| failed("TokenReview", &error))?;
        let status = answer.status.unwrap_or_default();
        if status.authenticated != Some(true) {
            return Ok(None);
        }
        let user = status.user.unwrap_or_default();
        Ok(Some(Identity {
            user: user.username.unwrap_or_default(),
            uid: user.uid.unwrap_or_default(),
            groups: user.groups.unwrap_or_default(),
            extra: user.extra.unwrap_or_default(),
        }))
    }

    async fn review_access(&self, who: &Identity, what: &Access) -> Result<bool, ReviewError> {
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(who.user.clone()),
                uid: (!who.uid.is_empty()).then(|| who.uid.clone()),
                groups: Some(who.groups.clone()),
                extra: (!who.extra.is_empty()).then(|| who.extra.clone()),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(what.verb.to_owned()),
                    version: Some("v1".to_owned()),
                    resource: Some("nodes".to_owned()),
                    subresource: Some(what.subresource.to_owned()),
                    name: Some(what.node.clone()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let answer = Api::<SubjectAccessReview>::all((self.client)())
            .create(&PostParams::default(), &review)
            .await
            .map_err(|error| failed("SubjectAccessReview", &error))?;
        let status = answer.status.unwrap_or_default();
        Ok(status.allowed && status.denied != Some(true))
    }
}

/// Tells the API server's refusal in its own words.
fn failed(review: &'static str, error: &kube::Error) -> ReviewError {
    ReviewError {
        review,
        message: error.to_string(),
    }
}
