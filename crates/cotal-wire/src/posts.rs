//! What agents are told about posts (`wire.md` §6): which they missed, which of their own is
//! stored, and which of their own was refused.

use serde::{Deserialize, Serialize};

use crate::channel::Channel;
use crate::ids::LifecycleUid;

/// Arguments of `missedPosts`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MissedArgs {
    /// The caller's incarnation; without it the caller's one live ACL row decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle_uid: Option<LifecycleUid>,
    /// What the caller has been shown: the `id` and `missed` of earlier answers. It is not answered
    /// again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub told: Vec<Told>,
}

/// What a member was shown of an episode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// The episode.
    pub id: u64,
    /// How many of its posts.
    pub missed: u64,
}

/// An episode in which a member's store was full and evicted unread copies of posts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissedPosts {
    /// Names the episode to the daemon.
    pub id: u64,
    /// No post before this number on CHAT is among them.
    pub from: u64,
    /// Nor any post after this one.
    pub to: u64,
    /// How many posts were lost that the member has not been told of.
    pub missed: u64,
    /// When the first loss was seen, Unix milliseconds.
    pub since: i64,
    /// When the last was.
    pub until: i64,
}

/// Result of `missedPosts`, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Missed {
    /// What the caller has not been told of.
    pub episodes: Vec<MissedPosts>,
}

/// Arguments of `findPost`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindPostArgs {
    /// The channel that it was posted on.
    pub channel: Channel,
    /// Its id.
    pub id: String,
    /// When it was first sent at the earliest, Unix milliseconds; 0 for unknown.
    #[serde(default)]
    pub since: i64,
}

/// Result of `findPost`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FoundPost {
    /// Its number on CHAT; absent when CHAT holds no such post of the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
}

/// The type of [`RefusedPost`].
pub const POST_REFUSED: &str = "post.refused";

/// The data part of the notice that a post was refused for good.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedPost {
    /// Always [`POST_REFUSED`].
    #[serde(rename = "type")]
    pub kind: String,
    /// The post's number on CHAT.
    pub seq: u64,
    /// The channel of its subject.
    pub channel: Channel,
    /// What is wrong with it.
    pub reason: String,
}

/// The message id of that notice.
#[must_use]
pub fn refused_id(seq: u64, stored_ms: i64) -> String {
    format!("post-refused-{stored_ms}-{seq}")
}
