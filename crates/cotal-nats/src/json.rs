//! Rows and messages as the JSON that is stored or sent.

use bytes::Bytes;
use serde::Serialize;

use crate::error::NatsError;

/// A value as JSON. What cannot be encoded is an error, so that no empty value is ever written in
/// its place: an empty row is garbage, and an empty message says nothing.
///
/// # Errors
/// When the value has no JSON form.
pub fn to_json<T: Serialize>(value: &T) -> Result<Bytes, NatsError> {
    let body = serde_json::to_vec(value);
    body.map(Bytes::from).map_err(|e| NatsError::malformed(std::any::type_name::<T>(), e))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn what_has_no_json_form_is_an_error_and_no_empty_value() {
        assert_eq!(to_json(&BTreeMap::from([("a", 1)])).unwrap(), "{\"a\":1}");
        let error = to_json(&BTreeMap::from([(vec![1], 1)])).unwrap_err();
        assert!(matches!(error, NatsError::Malformed { .. }), "{error}");
    }
}
