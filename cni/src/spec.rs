//! The words of the CNI specification 1.1.0: network configurations, results and errors.
//!
//! Everything here parses bytes that somebody else wrote (a file of the administrator, the output of a
//! plugin), has limits and never panics. Errors name the field and the value that are wrong.

mod conf;
mod error;
mod fields;
mod result;
mod version;

pub use conf::{MAX_CONFIG, NetworkConfig, PluginConfig, is_valid_name, is_valid_plugin_type};
pub use error::ErrorObject;
pub(crate) use fields::Field;
pub use fields::ParseError;
pub(crate) use result::read_route;
pub use result::{AddResult, Dns, Interface, IpConfig, MAX_RESULT, Route};
pub use version::Version;
