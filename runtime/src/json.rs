//! Where a JSON document is not what it is to be.

use serde::{Deserialize, Deserializer};

/// The field that cannot be taken, with dots between the names. None when it is the whole, or when nothing is wrong.
pub(crate) fn wrong_field<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    from: D,
) -> Option<String> {
    let error = serde_path_to_error::deserialize::<D, T>(from).err()?;
    // What serde_path_to_error calls the whole.
    Some(error.path().to_string()).filter(|field| field != ".")
}
