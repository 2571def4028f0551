//! Names that the accounts of a space have for each other (`wire.md` §11).

use super::Space;

/// Where the broker takes answers to requests that crossed from another account.
pub const FORWARDED_REPLIES: &str = "_R_.>";

/// Whether the broker itself chose `reply`, because the request crossed from another account: it
/// leads back to whoever asked, and to nobody else.
#[must_use]
pub fn is_forwarded_reply(reply: &str) -> bool {
    reply.starts_with("_R_.")
}

/// What the accounts of a space call each other's by (`wire.md` §11).
impl Space {
    /// The prefix under which the durable account calls the API of the shared one.
    #[must_use]
    pub fn shared_api(&self) -> String {
        format!("cotal.{self}.shared.API")
    }

    /// The prefix under which the shared account calls the API of the durable one.
    #[must_use]
    pub fn durable_api(&self) -> String {
        format!("cotal.{self}.durable.API")
    }

    /// Where the rows for the mirrors arrive in the shared account.
    #[must_use]
    pub fn mirror_deliveries(&self) -> String {
        format!("cotal.{self}.mirror")
    }
}
