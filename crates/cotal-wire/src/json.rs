//! Reading JSON objects off the wire.

use serde::Deserialize;
use serde::de::Error as _;

/// Reads one JSON object; serde alone would also accept an array for a struct.
pub(crate) fn object<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, serde_json::Error> {
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(serde_json::Error::custom("expected an object"));
    }
    serde_json::from_slice(bytes)
}
