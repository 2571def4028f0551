//! Reading JSON that people and other processes wrote, without guessing.

use cotal_wire::Space;
use serde::de::DeserializeOwned;

/// Parses an object; an array is refused, though serde would take one for a struct.
pub(crate) fn object<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    if !text.trim_start().starts_with('{') {
        return Err("it is not a JSON object".to_owned());
    }
    serde_json::from_str(text).map_err(|e| e.to_string())
}

/// Refuses a space that is named twice; `Err` is the sentence for people.
pub(crate) fn distinct(spaces: &[Space]) -> Result<(), String> {
    let mut seen = std::collections::BTreeSet::new();
    match spaces.iter().find(|space| !seen.insert(*space)) {
        Some(space) => Err(format!("space {:?} is named twice", space.as_str())),
        None => Ok(()),
    }
}
