//! The permission block of a user JWT, as plain data.

use serde::{Deserialize, Serialize};

/// What a user may publish and subscribe; default-deny, so an empty block grants nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Permissions {
    /// Subjects the user may publish on.
    pub pub_allow: Vec<String>,
    /// Subjects refused even where `pub_allow` covers them.
    pub pub_deny: Vec<String>,
    /// Subjects the user may subscribe to.
    pub sub_allow: Vec<String>,
    /// Subjects refused even where `sub_allow` covers them.
    pub sub_deny: Vec<String>,
    /// Subscriptions that one connection may have; `None` for the broker's own bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscriptions: Option<i64>,
}
